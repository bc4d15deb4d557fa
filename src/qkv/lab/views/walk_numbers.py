"""The numbers of one head of the walk, in float64 and, where they are fractions, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ...problems.exact import Matrix, Scale, Vector, times
from ...problems.exact_weights import sums
from ..fields import State

Floats = list[list[float]]

_LARGEST_POWER = 700.0  # of e, in float64
_CLOSE = 1e-6  # float64 that is farther from the exact number, relative to it, is told beside it


@dataclass(frozen=True)
class Numbers:
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
        if self._totals is not None:
            return float(self._totals[i])
        return sum(each for each, may in zip(self.similar[i], self.seen[i], strict=True) if may)

    @cached_property
    def _totals(self) -> Vector | None:
        """What stands below the fraction, where that is a fraction itself."""
        return None if self.exact_similar is None else sums(self.exact_similar, self.seen)

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


def far(value: float, known: Fraction) -> bool:
    """Whether float64 has something else than an exact number."""
    return abs(Fraction(value) - known) > _CLOSE * abs(known)
