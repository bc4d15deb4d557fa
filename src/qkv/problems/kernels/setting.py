"""The setting of a question on attention with a kernel: its degree, its constant, the names of its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Setting:
    """A polynomial kernel (qᵀk + `constant`)^`degree`, the names of the sizes, and numbers for some parts.

    `tied` says that values are about as wide as keys, `open_constant` that a text names no constant: 0 is as good as 1.
    """

    degree: int = 2
    constant: int = 1
    length: str = "N"
    width: str = "D"
    value: str = "M"
    q: str = "q"
    k: str = "k"
    tied: bool = True
    query: tuple[int, ...] = (1, 0)
    key: tuple[int, ...] = (2, 3)
    concrete: int = 4
    open_constant: bool = False

    @cached_property
    def symbols(self) -> dict[str, str]:
        n, d, m = self.length, self.width, self.value
        return {
            **dict.fromkeys((n, d, m, "F"), "natural"),
            self.q: f"vector[{d}]",
            self.k: f"vector[{d}]",
            "Q": f"matrix[{n},{d}]",
            "K": f"matrix[{n},{d}]",
            "V": f"matrix[{n},{m}]",
            "phi": f"map vector[{d}] -> vector[F]",
            "sim": f"map vector[{d}], vector[{d}] -> scalar",
            "i": f"index[{n}]",
            "r": "natural",
            "c": "scalar",
        }

    @property
    def names(self) -> tuple[str, str, str, str]:
        return self.length, self.width, self.value, self.q

    @property
    def sizes(self) -> dict[str, str]:
        return dict.fromkeys((self.length, self.width, self.value, "F"), "natural")

    @property
    def equal_widths(self) -> dict[str, str]:
        """The sizes where values are as wide as keys."""
        return self.sizes | {self.value: f"natural = {self.width}"}

    @property
    def kernel(self) -> str:
        inside = f"{self.q}^T {self.k}"
        return f"({inside} + {self.constant})^{self.degree}" if self.constant else f"({inside})^{self.degree}"

    @property
    def features(self) -> str:
        """How many monomials there are: those of at most the degree, or of exactly it where the constant is 0."""
        d = self.width
        if self.degree == 2:
            return rf"\frac{{({d} + 1)({d} + 2)}}{{2}}" if self.constant else rf"\frac{{{d} ({d} + 1)}}{{2}}"
        if self.constant:
            return rf"\frac{{({d} + 1)({d} + 2)({d} + 3)}}{{6}}"
        return rf"\frac{{{d} ({d} + 1)({d} + 2)}}{{6}}"

    def attention(self, similarity: str) -> str:
        total = rf"\sum_{{j=1}}^{{{self.length}}}"
        return rf"\frac{{{total} {similarity} V_j}}{{{total} {similarity}}}"
