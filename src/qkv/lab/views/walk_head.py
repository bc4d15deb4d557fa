"""One head of the walk: from its queries, keys and values to scores, weights and sums, each with where it came from;
in float64 and, where the numbers are fractions, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...exercises import exact
from ...exercises.exact import Scale
from ..fields import State
from . import walk_texts as say

if TYPE_CHECKING:
    from torch import Tensor

    from .walk import Given

Vector = tuple[Fraction, ...]
Matrix = tuple[Vector, ...]
Floats = list[list[float]]
Texts = list[list[str]]
Cells = list[list[str | None]]

NONE = "–"  # in the place of a weight that does not exist

_LARGEST_POWER = 700.0  # of e, in float64
_CLOSE = 1e-6  # float64 that is farther from the exact number, relative to it, is told with it


@dataclass(frozen=True)
class Head:
    """One query head as the page shows it. `exactly`: sentences and cells show fractions where there are some.

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

    def _scaled_value(self, i: int, j: int) -> float | None:
        if not self.seen[i][j]:
            return None
        if self.similar is not None:
            return self.similar[i][j]
        return scaled(self.scale, self.scores[i][j])

    def _normaliser(self, i: int) -> float | None:
        """What stands below the fraction; None where there is no fraction, or no float64 is so large."""
        if self.lse is not None:
            return math.exp(self.lse[i]) if self.lse[i] < _LARGEST_POWER else None
        if self.similar is None:
            return None
        if self._totals is not None:
            return float(self._totals[i])
        return sum(each for each, may in zip(self.similar[i], self.seen[i], strict=True) if may)

    @cached_property
    def _totals(self) -> Vector | None:
        """What stands below the fraction, where that is a fraction itself."""
        if self.exact_similar is None:
            return None
        kept = exact.masked(exact.array(self.exact_similar), np.array(self.seen))
        return tuple(exact.total(kept, keepdims=False))

    def _cancels(self, i: int) -> bool:
        """Whether similarities that are there sum to exactly 0."""
        return self._totals is not None and any(self.seen[i]) and not self._totals[i]

    def _vanishes(self, i: int) -> bool:
        """Whether similarities that are not 0 are so in float64."""
        return self.kind == "elu1" and any(self.seen[i]) and not any(self.weights[i])

    def _known(self, i: int, j: int) -> Fraction | None:
        """The weight as a fraction, where it is one."""
        if self.exact_weights is not None:
            return self.exact_weights[i][j]
        among = self._among(i)
        same = self.kind == "softmax" and len({self.scores[i][place] for place in among}) == 1
        return Fraction(int(self.seen[i][j]), len(among)) if same or len(among) == 1 else None

    @cached_property
    def _known_sums(self) -> list[list[Fraction] | None]:
        """The sums of each query as fractions, where they are some."""
        rows: list[list[Fraction] | None] = []
        for i in range(len(self.q)):
            weights = [weight for j in range(len(self.k)) if (weight := self._known(i, j)) is not None]
            rows.append(list(times((tuple(weights),), self.v)[0]) if len(weights) == len(self.k) else None)
        return rows

    def _among(self, i: int) -> list[int]:
        return [j for j, may in enumerate(self.seen[i]) if may]

    def _off(self, i: int) -> bool:
        """Whether float64 gives other weights than there are."""
        found = [(Fraction(self.weights[i][j]), self._known(i, j)) for j in self._among(i)]
        pairs = [(got, known) for got, known in found if known is not None and not self._vanishes(i)]
        return any(abs(got - known) > _CLOSE * max(1, abs(known)) for got, known in pairs)

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

    def _exact_texts(self) -> dict[str, Any]:
        weights: Cells | None = None
        output: Cells | None = None
        if self.exact_weights is not None:
            weights = self._each(self._exact_weight)
            output = [[self._exact_sum(i, c) for c in range(len(self.v[0]))] for i in range(len(self.q))]
        elif self.kind == "softmax":
            weights = self._each(self._power_share)
        below = [self._total(i) for i in range(len(self.q))] if self.kind != "argmax" else None
        return {
            "scores": texts(self.scores),
            "scaled": self._each(self._exact_scaled),
            "weights": weights,
            "normaliser": below,
            "output": output,
        }

    def _exact_weight(self, i: int, j: int) -> str | None:
        if self._cancels(i) and self.seen[i][j]:
            return NONE
        assert self.exact_weights is not None
        return _text_of(self.exact_weights[i][j], self.weights[i][j])

    def _exact_sum(self, i: int, c: int) -> str | None:
        row = self._known_sums[i]
        return None if row is None else _text_of(row[c], self.output[i][c])

    def _exact_scaled(self, i: int, j: int) -> str | None:
        if not self.seen[i][j]:
            return None
        if self.similar is None:
            return say.exact_text(self.scores[i][j] * self.scale.factor, self.scale.under)
        return None if self.exact_similar is None else say.exact_text(self.exact_similar[i][j])

    def _power_share(self, i: int, j: int) -> str:
        if not self.seen[i][j]:
            return "0"
        return f"{self._power(i, j).text}/{say.subscript('Σ', i)}"

    def _total(self, i: int) -> str:
        """The sum below the fraction, written out and, where it is a fraction, summed."""
        whole = () if self._totals is None else (say.number(self._totals[i], True),)
        return say.chain(say.subscript("Σ", i), self._below(i), *whole)

    def _below(self, i: int) -> say.Said:
        places = self._among(i)
        if self.kind == "softmax":
            write = self._power
        else:
            write = self._similar_factor if len(places) > 1 else self._similar_number
        return say.summed([write(i, j) for j in places[: say.first(len(places))]], len(places))

    def _score(self, i: int, j: int) -> say.Said:
        """A scaled score as it stands in a sentence."""
        score = self.scores[i][j] * self.scale.factor
        if self.scale.under == 1 or not score:
            return say.number(score, self.exactly)
        text = say.exact_text(score, self.scale.under) if self.exactly else None
        value = scaled(self.scale, self.scores[i][j])
        return say.number(value, False) if text is None else say.Said(say.shown(text))

    def _power(self, i: int, j: int) -> say.Said:
        text, rounded = self._score(i, j)
        return say.Said(say.power("e", text), rounded)

    def _similar(self, i: int, j: int) -> Fraction | float:
        assert self.similar is not None
        if self.exact_similar is not None:
            return self.exact_similar[i][j]
        left, right = self._mapped(i, j)
        fractions = all(isinstance(entry, Fraction) for entry in (*left, *right))
        return dot(left, right) if fractions else self.similar[i][j]

    def _similar_number(self, i: int, j: int) -> say.Said:
        return say.number(self._similar(i, j), self.exactly)

    def _similar_factor(self, i: int, j: int) -> say.Said:
        return say.factor(self._similar(i, j), self.exactly)

    def _why_score(self, i: int, j: int) -> str:
        pair = f"{say.subscript('q', i)}·{say.subscript('k', j)}"
        terms = say.products(self.q[i], self.k[j], self.exactly)
        return say.chain(pair, terms, say.number(self.scores[i][j], self.exactly))

    def _why_scaled(self, i: int, j: int) -> str:
        q, k = say.subscript("q", i), say.subscript("k", j)
        if not self.seen[i][j]:
            return f"Masked: {q} may not see {k}, so that its weight is 0"
        score = say.number(self.scores[i][j], self.exactly)
        if self.kind == "polynomial":
            offset = say.number(_fraction(self.state["offset"]), self.exactly)
            degree = str(self.state["degree"])
            start, filled = (
                say.power(f"({say.plus(inside, offset.text)})", degree) for inside in (f"{q}·{k}", score.text)
            )
            middle = say.Said(filled, score.rounded or offset.rounded)
            return say.chain(start, middle, self._similar_number(i, j))
        if self.similar is not None:
            terms = say.products(*self._mapped(i, j), self.exactly)
            return say.chain(f"φ({q})·φ({k})", terms, self._similar_number(i, j))
        if self.scale.plain:
            return f"{say.chain(f'{q}·{k}', score)}: neither scaled nor masked"
        if self.scale.under == 1:
            scale, product = say.factor(self.scale.factor, self.exactly), say.factor(self.scores[i][j], self.exactly)
            middle = say.Said(f"{scale.text}·{product.text}", scale.rounded or product.rounded)
            return say.chain(f"{scale.text}·({q}·{k})", middle, self._score(i, j))
        root = f"√{self.scale.under}"
        decimal = say.number(scaled(self.scale, self.scores[i][j]) or Fraction(0), False)
        return say.chain(f"{q}·{k}/{root}", say.Said(f"{score.text}/{root}", score.rounded), decimal)

    def _mapped(self, i: int, j: int) -> tuple[Any, Any]:
        assert self.features is not None
        if self.exact_features is not None:
            return self.exact_features[0][i], self.exact_features[1][j]
        return _whole_ones(self.features[0][i], self.q[i]), _whole_ones(self.features[1][j], self.k[j])

    def _why_weight(self, i: int, j: int) -> str:
        name = f"weight of {say.subscript('v', j)} for {say.subscript('q', i)}"
        if not any(self.seen[i]):
            return f"{name} = 0: {say.subscript('q', i)} may see nothing"
        if not self.seen[i][j]:
            return f"{name} = 0: masked"
        weight, known = self.weights[i][j], self._known(i, j)
        if self._vanishes(i):
            return f"{name}: float64 gives 0, as the similarities of this row are smaller than it can hold"
        gap = _compared(weight, known)
        if self.kind == "argmax":
            assert known is not None
            return f"{say.chain(name, say.number(known, True))}: {self._ranked(i, j, known)}{gap}"
        if self._cancels(i):
            found = gap or "; attention then gives 0"
            return f"{name}: none, as the similarities of this row sum to exactly 0: nothing to divide by{found}"
        top = self._power(i, j) if self.kind == "softmax" else self._similar_factor(i, j)
        below = self._below(i)
        whole = f"{top.text} / {below.text}" if sum(self.seen[i]) == 1 else f"{top.text} / ({below.text})"
        return say.chain(name, say.Said(whole, top.rounded or below.rounded), *self._told(weight, known)) + gap

    def _told(self, value: float, known: Fraction | None) -> tuple[say.Said, ...]:
        """A number at the end of a sentence: as a fraction and as a decimal, or as float64 has it."""
        if known is None:
            return (say.number(value, False),)
        return (*((say.number(known, True),) if self.exactly else ()), say.number(known, False))

    def _ranked(self, i: int, j: int, weight: Fraction) -> str:
        among = self._among(i)
        score, row = say.number(self.scores[i][j], self.exactly).text, self.scores[i]
        others = ", ".join(say.number(row[place], self.exactly).text for place in among)
        if row[j] != max(row[place] for place in among):
            return f"{score} is not the largest of {others}"
        if not weight:
            return f"{score} is the largest of {others}, but an earlier key has it too"
        return f"{score} is the largest of {others}"

    def _why_sum(self, i: int, c: int) -> str:
        known = self._known_sums[i]
        among = self._among(i)
        weights = [self.weights[i][j] if known is None else self._known(i, j) or Fraction(0) for j in among]
        terms = say.products(weights, [self.v[j][c] for j in among], self.exactly)
        return self.why_entry(f"entry {c + 1} of {say.subscript('o', i)}", i, c, terms)

    def why_entry(self, name: str, i: int, c: int, *terms: say.Said) -> str:
        """Of an entry of the sums: what it is called, what it is made of, and what it is."""
        query = say.subscript("q", i)
        if not any(self.seen[i]):
            return f"{name} = 0 exactly: {query} may see nothing"
        if self._vanishes(i):
            return f"{name}: float64 gives 0, as the similarities of {query} are smaller than it can hold"
        row, value = self._known_sums[i], self.output[i][c]
        known = None if row is None else row[c]
        if self._cancels(i):
            return f"{name} = 0: {query} has no weights, and such a row is 0{_compared(value, known)}"
        return say.chain(name, *terms, *self._told(value, known)) + _compared(value, known)

    def notes(self, where: str) -> list[str]:
        """What a reader should know of the weights. where: " in head 2", or nothing."""
        rows = range(len(self.q))

        def named(mark: Any) -> str:
            return say.listed([say.subscript("q", i) for i in rows if mark(i)])

        found = []
        if lost := named(self._cancels):
            found.append(f"The similarities of {lost}{where} sum to exactly 0: there is nothing to divide by, no "
                         "weights exist, and the row of the output is 0 by definition.")  # fmt: skip
        if rounding := named(lambda i: self._cancels(i) and any(self.weights[i])):
            found.append(f"In float64 the sum for {rounding}{where} is not quite 0: it is divided by all the same, and "
                         f"what comes out is rounding, made large. {self._which}")  # fmt: skip
        if other := named(lambda i: not self._cancels(i) and self._off(i)):
            found.append(f"In float64 the weights of {other}{where} come out otherwise than they are: too many digits "
                         f"cancel or are lost. {self._which}")  # fmt: skip
        if small := named(self._vanishes):
            found.append(f"The similarities of {small}{where} are smaller than float64 can hold: they come out as 0, "
                         "and so does the row.")  # fmt: skip
        weights = self.exact_weights or self.weights
        if any(weight < 0 for i in rows if not self._cancels(i) for weight in weights[i]):
            found.append(f"Some weights{where} are negative: they sum to 1, but they are no probabilities.")
        return found

    @property
    def _which(self) -> str:
        known = self.exactly and self.exact_weights is not None
        return "What is exact is shown here." if known else "What float64 gives is shown here."


def far(value: float, known: Fraction) -> bool:
    """Whether float64 has something else than an exact number."""
    return abs(Fraction(value) - known) > _CLOSE * abs(known)


def heads(state: State, start: Given, seen: list[list[bool]], run: dict[str, Tensor | None]) -> list[Head]:
    """Every query head. `run`: out, weights, lse, and the similarities before division, from one call each."""
    exactly = state["numbers"] == "exact" and start.model is None
    return [_head(state, start, seen, run, head, exactly) for head in range(start.heads)]


def _head(
    state: State, start: Given, seen: list[list[bool]], run: dict[str, Tensor | None], head: int, exactly: bool
) -> Head:
    q, k, v = start.sliced(head)
    scores = times(q, transposed(k))
    allowed = np.array(seen)
    kind = state["similarity"]
    similar: Matrix | None = None
    phi: tuple[Matrix, Matrix] | None = None
    if kind == "polynomial":
        shifted = exact.plus(exact.array(scores), _fraction(state["offset"]))
        similar = _rows(exact.power(shifted, Fraction(state["degree"])))
    elif kind == "relu":
        phi = _rows(exact.function("relu", exact.array(q))), _rows(exact.function("relu", exact.array(k)))
        similar = times(phi[0], transposed(phi[1]))
    weights: Matrix | None = None
    if kind == "argmax":
        weights = _rows(exact.hardest(exact.array(scores), allowed))
    elif similar is not None:
        weights = _shares(exact.array(similar), allowed)
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


def times(left: Matrix, right: Matrix) -> Matrix:
    """The product of two matrices of fractions."""
    return _rows(exact.times(exact.array(left), exact.array(right)))


def transposed(rows: Matrix) -> Matrix:
    return tuple(zip(*rows, strict=True))


def dot(left: Vector, right: Vector) -> Fraction:
    return times((left,), transposed((right,)))[0][0]


def scaled(scale: Scale, score: Fraction) -> float:
    """A scaled score in float64, rounded once."""
    whole = score * scale.factor
    return float(Decimal(whole.numerator) / whole.denominator / Decimal(scale.under).sqrt())


def _shares(similar: exact.Array, allowed: exact.Array) -> Matrix:
    """Each similarity over the sum of its row; where that sum is 0, the weights are."""
    kept = exact.masked(similar, allowed)
    below = exact.total(kept)
    divides = np.asarray(below != 0, dtype=bool)
    return _rows(exact.masked(exact.over(kept, exact.masked(below, divides, Fraction(1))), divides))


def _rows(values: exact.Array) -> Matrix:
    return tuple(map(tuple, values))


def floats(rows: Matrix) -> Floats:
    return [[float(entry) for entry in row] for row in rows]


def texts(rows: Matrix) -> Cells:
    return [[say.exact_text(entry) for entry in row] for row in rows]


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None


def _fraction(value: float) -> Fraction:
    """The number that was typed, and not its neighbour in binary."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _whole_ones(features: list[float], entries: Sequence[Fraction]) -> list[Fraction | float]:
    """Features of whole numbers that are not negative are whole, and so exact in float64."""
    pairs = zip(features, entries, strict=True)
    return [Fraction(phi) if entry >= 0 and entry.denominator == 1 else phi for phi, entry in pairs]


def _compared(value: float, known: Fraction | None) -> str:
    """What float64 makes of an exact number, where that is something else."""
    return f"; float64 gives {say.shown(value)}" if known is not None and far(value, known) else ""


def _text_of(known: Fraction, value: float) -> str | None:
    """An exact number in a cell; one that is too long is left to float64, unless that has it wrong."""
    text = say.exact_text(known)
    return say.number(known, True).text if text is None and far(value, known) else text


def product_texts(left: Matrix, right: Matrix, names: tuple[str, str, str], exactly: bool) -> Texts:
    """For a product of matrices: in every place the row times the column that made it."""
    made, row, column = names
    return [
        [
            say.chain(
                f"{say.subscript(made, i)}, entry {c + 1} = {say.subscript(row, i)} · column {c + 1} of {column}",
                say.products(line, down, exactly),
                say.number(dot(line, down), exactly),
            )
            for c, down in enumerate(transposed(right))
        ]
        for i, line in enumerate(left)
    ]
