"""What the native kernels report: the sizes of their tiles, and the work that they have executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Executed:
    """Work of one kernel call.

    Attributes:
        score_flops: products of queries and keys.
        value_flops: products of weights and values.
        other_flops: products of the linear backend.
        feature_flops: monomials, powers and squares.
        exponentials: computed in vectors; the two for each query's sink are not included.
        tiles: pages and tiles of scores.

    >>> Executed(score_flops=6, value_flops=4).flops
    10
    """

    score_flops: int = 0
    value_flops: int = 0
    other_flops: int = 0
    feature_flops: int = 0
    exponentials: int = 0
    tiles: int = 0

    @property
    def flops(self) -> int:
        """Flops of all products; a multiplication and an addition are two."""
        return self.score_flops + self.value_flops + self.other_flops
