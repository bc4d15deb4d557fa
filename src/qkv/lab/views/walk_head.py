"""One head of the walk: from its queries, keys and values to scores, weights and sums, each with where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...problems.exact import Matrix, Scale, dot, times, transposed
from ...problems.exact_weights import hardest, raised, rectified, shares, sums
from ..fields import State
from . import walk_texts as say
from .walk_given import Given

if TYPE_CHECKING:
    from torch import Tensor

Floats = list[list[float]]
Texts = list[list[str]]
Cells = list[list[str | None]]

_LARGEST_POWER = 700.0  # of e, in float64


@dataclass(frozen=True)
class Head:
    """Numbers of one query head. `exactly`: sentences and cells show fractions where there are some.

    similar: the similarities before their sum divides them, for what is no softmax; features: φ(q) and φ(k).
    exact_*: the same in fractions, or None where they are none."""

    state: State
    exactly: bool
    scale: Scale
    seen: list[list[bool]]
    q: Matrix
    k: Matrix
    v: Matrix
    scores: Matrix
    weights: Floats
    output: Floats
    lse: list[float] | None
    features: tuple[Floats, Floats] | None
    similar: Floats | None
    exact_features: tuple[Matrix, Matrix] | None
    exact_similar: Matrix | None
    exact_weights: Matrix | None

    @property
    def kind(self) -> str:
        return self.state["similarity"]

    def result(self) -> dict[str, Any]:
        """JSON: the grids, and for each the sentences in the same places."""
        masked = [[not may for may in row] for row in self.seen]
        scaled = self._each(self._scaled_value)
        texts = self._exact_texts() if self.exactly else None
        phi = self.features
        return {
            "q": floats(self.q),
            "k": floats(self.k),
            "v": floats(self.v),
            "scores": floats(self.scores),
            "features": None if phi is None else {"q": phi[0], "k": phi[1]},
            "scaled": scaled,
            "masked": masked,
            "weights": self.weights,
            "normaliser": [self._normaliser(i) for i in range(len(self.q))],
            "lse": None if self.lse is None else [_finite(each) for each in self.lse],
            "output": self.output,
            "empty": [not any(row) for row in self.seen],
            "cancelled": [self._cancels(i) for i in range(len(self.q))],
            "exact": texts,
            "why": {
                "scores": self._each(self._why_score),
                "scaled": self._each(self._why_scaled),
                "weights": self._each(self._why_weight),
                "output": [[self._why_sum(i, c) for c in range(len(self.v[0]))] for i in range(len(self.q))],
            },
        }

    def _each(self, function: Any) -> list[list[Any]]:
        return [[function(i, j) for j in range(len(self.k))] for i in range(len(self.q))]

    def _scaled_value(self, i: int, j: int) -> float | None:
        if not self.seen[i][j]:
            return None
        if self.similar is not None:
            return self.similar[i][j]
        return float(self.scale.value(self.scores[i][j]))

    def _normaliser(self, i: int) -> float | None:
        """What stands below the fraction; None where there is no fraction, or no float64 is so large."""
        if self.lse is not None:
            return math.exp(self.lse[i]) if self.lse[i] < _LARGEST_POWER else None
        if self.similar is None:
            return None
        if self.exact_similar is not None:
            return float(sums(self.exact_similar, self.seen)[i])
        return sum(each for each, may in zip(self.similar[i], self.seen[i], strict=True) if may)

    def _cancels(self, i: int) -> bool:
        """Whether similarities that are there sum to exactly 0."""
        return self.exact_similar is not None and any(self.seen[i]) and not sums(self.exact_similar, self.seen)[i]

    def _exact_texts(self) -> dict[str, Any]:
        weights: Cells | None = None
        output: Cells | None = None
        if self.exact_weights is not None:
            weights, output = texts(self.exact_weights), texts(times(self.exact_weights, self.v))
        elif self.kind == "softmax":
            weights = self._each(self._power_share)
        below = [self._below(i) for i in range(len(self.q))] if self.kind != "argmax" else None
        return {
            "scores": texts(self.scores),
            "scaled": self._each(self._exact_scaled),
            "weights": weights,
            "normaliser": below,
            "output": output,
        }

    def _exact_scaled(self, i: int, j: int) -> str | None:
        if not self.seen[i][j]:
            return None
        if self.similar is None:
            return say.exact_text(self.scores[i][j] * self.scale.factor, self.scale.under)
        return None if self.exact_similar is None else say.exact_text(self.exact_similar[i][j])

    def _power_share(self, i: int, j: int) -> str:
        if not self.seen[i][j]:
            return "0"
        return f"{self._power(i, j)}/{say.subscript('Σ', i)}"

    def _below(self, i: int) -> str:
        """The sum below the fraction, written out."""
        places = [j for j, may in enumerate(self.seen[i]) if may]
        write = self._power if self.kind == "softmax" else self._similar_text
        return say.summed([write(i, j) for j in places[: say.first(len(places))]], len(places))

    def _score_text(self, i: int, j: int) -> str:
        """A scaled score as it stands in a sentence."""
        exact = say.exact_text(self.scores[i][j] * self.scale.factor, self.scale.under) if self.exactly else None
        return say.shown(exact if exact is not None else float(self.scale.value(self.scores[i][j])))

    def _power(self, i: int, j: int) -> str:
        return say.power("e", self._score_text(i, j))

    def _similar_text(self, i: int, j: int) -> str:
        assert self.similar is not None
        exact = self.exact_similar
        return say.factor(self.similar[i][j] if exact is None else exact[i][j], self.exactly)

    def _why_score(self, i: int, j: int) -> str:
        pair = f"{say.subscript('q', i)}·{say.subscript('k', j)}"
        terms = say.products(self.q[i], self.k[j], self.exactly)
        return f"{pair} = {terms} = {say.number(self.scores[i][j], self.exactly)}"

    def _why_scaled(self, i: int, j: int) -> str:
        q, k = say.subscript("q", i), say.subscript("k", j)
        if not self.seen[i][j]:
            return f"Masked: {q} may not see {k}, so that its weight is 0"
        score = say.number(self.scores[i][j], self.exactly)
        if self.kind == "polynomial":
            offset = say.number(_fraction(self.state["offset"]), self.exactly)
            whole = say.power(f"({score} + {offset})", str(self.state["degree"]))
            return f"({q}·{k} + {offset}){whole[whole.rindex(')') + 1 :]} = {whole} = {self._similar_text(i, j)}"
        if self.similar is not None:
            left, right = self._mapped(i, j)
            return f"φ({q})·φ({k}) = {say.products(left, right, self.exactly)} = {self._similar_text(i, j)}"
        if self.scale.plain:
            return f"{q}·{k} = {score}: neither scaled nor masked"
        decimal = say.shown(float(self.scale.value(self.scores[i][j])))
        if self.scale.under == 1:
            times_what = say.factor(self.scale.factor, self.exactly)
            return f"{times_what}·({q}·{k}) = {times_what}·{say.factor(self.scores[i][j], self.exactly)} = {decimal}"
        return f"{q}·{k}/√{self.scale.under} = {score}/√{self.scale.under} = {decimal}"

    def _mapped(self, i: int, j: int) -> tuple[Any, Any]:
        assert self.features is not None
        phi = self.features if self.exact_features is None else self.exact_features
        return phi[0][i], phi[1][j]

    def _why_weight(self, i: int, j: int) -> str:
        name = f"weight of {say.subscript('v', j)} for {say.subscript('q', i)}"
        if not any(self.seen[i]):
            return f"{name} = 0: {say.subscript('q', i)} may see nothing"
        if not self.seen[i][j]:
            return f"{name} = 0: masked"
        weight = say.shown(self.weights[i][j])
        if self.kind == "argmax":
            return f"{name} = {weight}: {self._ranked(i, j)}"
        if self._cancels(i):
            return f"{name} = {weight}: the similarities of this row sum to 0 and there is nothing to divide by"
        top = self._power(i, j) if self.kind == "softmax" else self._similar_text(i, j)
        exact = self._weight_text(i, j)
        between = f"{exact} = " if exact not in (weight, None) else ""
        below = self._below(i) if sum(self.seen[i]) == 1 else f"({self._below(i)})"
        return f"{name} = {top} / {below} = {between}{weight}"

    def _weight_text(self, i: int, j: int) -> str | None:
        if self.exact_weights is None or not self.exactly:
            return None
        text = say.exact_text(self.exact_weights[i][j])
        return None if text is None else say.shown(text)

    def _ranked(self, i: int, j: int) -> str:
        among = [place for place, may in enumerate(self.seen[i]) if may]
        score, row = say.number(self.scores[i][j], self.exactly), self.scores[i]
        others = ", ".join(say.number(row[place], self.exactly) for place in among)
        if row[j] != max(row[place] for place in among):
            return f"{score} is not the largest of {others}"
        if self.weights[i][j] == 0:
            return f"{score} is the largest of {others}, but an earlier key has it too"
        return f"{score} is the largest of {others}"

    def _why_sum(self, i: int, c: int) -> str:
        name = f"entry {c + 1} of {say.subscript('o', i)}"
        if not any(self.seen[i]):
            return f"{name} = 0 exactly: {say.subscript('q', i)} may see nothing"
        among = [j for j, may in enumerate(self.seen[i]) if may]
        exact = self.exact_weights if self.exactly else None
        weights = [self.weights[i][j] if exact is None else exact[i][j] for j in among]
        terms = say.products(weights, [self.v[j][c] for j in among], self.exactly)
        return f"{name} = {terms} = {say.shown(self.output[i][c])}"


def heads(state: State, start: Given, seen: list[list[bool]], run: dict[str, Tensor | None]) -> list[Head]:
    """Every query head. `run`: out, weights, lse, and the similarities before division, from one call each."""
    exactly = state["numbers"] == "exact" and start.model is None
    return [_head(state, start, seen, run, head, exactly) for head in range(start.heads)]


def _head(
    state: State, start: Given, seen: list[list[bool]], run: dict[str, Tensor | None], head: int, exactly: bool
) -> Head:
    q, k, v = start.sliced(head)
    scores = times(q, transposed(k))
    kind = state["similarity"]
    similar: Matrix | None = None
    phi: tuple[Matrix, Matrix] | None = None
    if kind == "polynomial":
        similar = raised(scores, state["degree"], _fraction(state["offset"]))
    elif kind == "relu":
        phi = rectified(q), rectified(k)
        similar = times(phi[0], transposed(phi[1]))
    weights = hardest(scores, seen) if kind == "argmax" else None if similar is None else shares(similar, seen)
    return Head(
        state=state,
        exactly=exactly,
        scale=start.scale if kind == "softmax" else Scale(),
        seen=seen,
        q=q,
        k=k,
        v=v,
        scores=scores,
        weights=_of(run["weights"], head) or [],
        output=_of(run["out"], head) or [],
        lse=_of(run["lse"], head),
        features=_pair(run, head, start.kv_head(head)),
        similar=floats(similar) if similar is not None else _of(run["similar"], head),
        exact_features=phi,
        exact_similar=similar,
        exact_weights=weights,
    )


def _pair(run: dict[str, Tensor | None], head: int, kv_head: int) -> tuple[Floats, Floats] | None:
    left, right = _of(run["phi_q"], head), _of(run["phi_k"], kv_head)
    return None if left is None or right is None else (left, right)


def _of(tensor: Tensor | None, head: int) -> Any:
    return None if tensor is None else tensor[0, head].tolist()


def floats(rows: Matrix) -> Floats:
    return [[float(entry) for entry in row] for row in rows]


def texts(rows: Matrix) -> Cells:
    return [[say.exact_text(entry) for entry in row] for row in rows]


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None


def _fraction(value: float) -> Fraction:
    """The number that was typed, and not its neighbour in binary."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def product_texts(left: Matrix, right: Matrix, names: tuple[str, str, str], exactly: bool) -> Texts:
    """For a product of matrices: in every place the row times the column that made it."""
    made, row, column = names
    return [
        [
            f"{say.subscript(made, i)}, entry {c + 1} = {say.subscript(row, i)} · column {c + 1} of {column} = "
            f"{say.products(line, down, exactly)} = {say.number(dot(line, down), exactly)}"
            for c, down in enumerate(transposed(right))
        ]
        for i, line in enumerate(left)
    ]
