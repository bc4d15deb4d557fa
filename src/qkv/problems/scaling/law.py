"""The law of a query and a key, and what it makes of their score: mean and variance as formulas in its own names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


def key(latex: str) -> str:
    """The name under which a sign is declared: "mu_q" for "\\mu_q"."""
    return latex.replace("\\", "").replace("{", "").replace("}", "").replace("text", "")


@dataclass(frozen=True)
class Spread:
    """A covariance: `kind` "equal" (σ²I, `name` σ), "unit" (I), "number" (4I), "diagonal" (diag(λ)) or "full" (Σ)."""

    kind: str = "equal"
    name: str = r"\sigma"

    @property
    def scale(self) -> str:
        return {"equal": f"{self.name}^2", "number": self.name}.get(self.kind, "")

    @property
    def plain(self) -> bool:
        """Whether it is a multiple of the identity."""
        return self.kind in ("equal", "unit", "number")

    def matrix(self, width: str = "") -> str:
        """As it is written; with a `width` the identity shows its size."""
        identity = f"I_{{{width}}}" if width else "I"
        written = {
            "equal": f"{self.name}^2 {identity}",
            "unit": identity,
            "number": f"{self.name} {identity}",
            "full": self.name,
        }
        return written.get(self.kind, rf"\operatorname{{diag}}({self.name})")

    def declared(self, width: str) -> dict[str, str]:
        kinds = {"equal": "positive", "diagonal": f"vector[{width}]", "full": f"matrix[{width},{width}]"}
        return {key(self.name): kinds[self.kind]} if self.kind in kinds else {}


@dataclass(frozen=True)
class Law:
    """Independent normal vectors `q` and `k` of `width` components; their score is `factor` qᵀk.

    A mean written "0" is zero from the start. `mean` is "vector" or "scalar": then every component has the mean
    `mean_q`, or `mean_k`, one number. `model` is the width of a model and its number of heads. `copies` is the
    number of independent scores that are added, where there are several. `values` gives numbers to names.
    """

    mean: str = "vector"
    width: str = "d"
    q: str = "q"
    k: str = "k"
    mean_q: str = r"\mu"
    mean_k: str = r"\mu"
    spread_q: Spread = field(default_factory=Spread)
    spread_k: Spread = field(default_factory=Spread)
    divisor: str = "s"
    factor: int = 1
    copies: str = ""
    model: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def same_mean(self) -> bool:
        return self.mean_q == self.mean_k

    @property
    def same_spread(self) -> bool:
        return self.spread_q == self.spread_k

    @property
    def means(self) -> tuple[str, ...]:
        """The names of the means, those that are not 0 from the start."""
        return tuple(mean for mean in dict.fromkeys((self.mean_q, self.mean_k)) if mean != "0")

    @property
    def dot(self) -> str:
        return f"{self.q}^T {self.k}"

    @property
    def score(self) -> str:
        """The score of one pair, with its factor."""
        return f"{self.factor} {self.dot}" if self.factor != 1 else self.dot

    def symbols(self, fixed: Mapping[str, str] | None = None, misread: bool = False) -> dict[str, str]:
        """Types of all names; `fixed` gives values to some; `misread` takes a vector mean for a number, or reversed."""
        number = (self.mean == "scalar") != misread
        kind = "scalar" if number else f"vector[{self.width}]"
        found = {key(self.width): "natural"}
        if self.model:
            whole, heads = self.model
            found = {
                key(whole): "natural",
                key(heads): "natural",
                key(self.width): f"natural = {key(whole)}/{key(heads)}",
            }
        if self.copies:
            found[key(self.copies)] = "natural"
        found |= {key(mean): kind for mean in self.means}
        found |= self.spread_q.declared(self.width) | self.spread_k.declared(self.width)
        found[self.divisor] = "positive"
        for name, value in {**self.values, **(fixed or {})}.items():
            if name in found:
                found[name] = f"{found[name].partition(' = ')[0]} = {value}"
        for vector, mean, spread in ((self.q, self.mean_q, self.spread_q), (self.k, self.mean_k, self.spread_k)):
            if not misread:
                ones = f" 1_{{{self.width}}}" if self.mean == "scalar" and mean != "0" else ""
                found[vector] = f"random vector[{self.width}] ~ N({mean}{ones}, {spread.matrix()})"
        return found

    def centred(self) -> dict[str, str]:
        """Values that make every mean zero."""
        return dict.fromkeys(map(key, self.means), "0")

    def unit(self) -> dict[str, str]:
        """Values that make every standard deviation that is a number one."""
        return {key(spread.name): "1" for spread in (self.spread_q, self.spread_k) if spread.kind == "equal"}

    def mean_text(self) -> str:
        """E of the score."""
        if "0" in (self.mean_q, self.mean_k):
            return "0"
        return times(self.copies, number(self.factor), self._product(self.mean_q, self.mean_k))

    def _product(self, left: str, right: str) -> str:
        if "0" in (left, right):
            return "0"
        if self.mean == "vector":
            return f"{left}^T {right}"
        return times(self.width, f"{left}^2" if left == right else f"{left} {right}")

    def variance_text(self) -> str:
        """Var of the score, for any mean."""
        pairs = ((self.mean_q, self.spread_k), (self.mean_k, self.spread_q))
        forms = [self.quadratic(mean, spread) for mean, spread in pairs if mean != "0"]
        terms = [self.trace_text(), *([times("2", forms[0])] if len(forms) == 2 and forms[0] == forms[1] else forms)]
        outside = times(self.copies, number(self.factor**2))
        return f"{outside} ({' + '.join(terms)})" if outside else " + ".join(terms)

    def trace_text(self) -> str:
        """tr(Σ_q Σ_k): the variance of one product qᵀk where both means are zero."""
        one, two = self.spread_q, self.spread_k
        scale = f"{one.name}^4" if one == two and one.kind == "equal" else times(one.scale, two.scale)
        cores = [spread for spread in (one, two) if spread.kind in ("diagonal", "full")]
        if not cores:
            core = self.width
        elif len(cores) == 1 and cores[0].kind == "diagonal":
            core = rf"\sum_{{i=1}}^{{{self.width}}} {cores[0].name}_i"
        else:
            core = rf"\operatorname{{tr}}({' '.join(spread.matrix() for spread in cores)})"
        return times(scale, core) if cores or scale.isdigit() else times(core, scale)

    def quadratic(self, mean: str, spread: Spread) -> str:
        if spread.plain:
            return times(spread.scale, self._product(mean, mean))
        if spread.kind == "diagonal":
            return rf"\sum_{{i=1}}^{{{self.width}}} {spread.name}_i {mean}_i^2"
        return f"{mean}^T {spread.name} {mean}"

    def centred_variance_text(self, fixed: Mapping[str, str] | None = None) -> str:
        """Var of the score where both means are zero, with the values of `fixed` for standard deviations put in."""
        fixed = fixed or {}
        free = replace(self, spread_q=_put(self.spread_q, fixed), spread_k=_put(self.spread_k, fixed))
        scale = self.factor**2
        for spread in (self.spread_q, self.spread_k):
            if spread.kind == "equal" and key(spread.name) in fixed:
                scale *= int(fixed[key(spread.name)]) ** 2
        return times(number(scale), self.copies, free.trace_text())


def _put(spread: Spread, fixed: Mapping[str, str]) -> Spread:
    return Spread("unit", "") if spread.kind == "equal" and key(spread.name) in fixed else spread


def number(value: int) -> str:
    return "" if value == 1 else str(value)


def times(*factors: str) -> str:
    """A product of what is not empty, its whole numbers multiplied and first.

    >>> times("4", "", "d", "9"), times("1", "d"), times("1", "1")
    ('36 d', 'd', '1')
    >>> times("9", "4 d")
    '36 d'
    """
    factors = tuple(piece for factor in factors for piece in _led(factor))
    whole = math.prod(int(factor) for factor in factors if factor.isdigit())
    rest = [factor for factor in factors if factor and not factor.isdigit()]
    return " ".join([*([str(whole)] if whole != 1 or (not rest and any(factors)) else []), *rest])


def _led(factor: str) -> tuple[str, ...]:
    """A product's leading number and the rest of it; a sum stays whole."""
    first, _, rest = factor.partition(" ")
    return (first, rest) if first.isdigit() and rest and not re.search(r" [+-] ", rest) else (factor,)
