"""Exact formulas of sizes without SymPy: sums of products of powers, with the operations that the counts of this
package use, so that counting with them gives formulas, and their values, fast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Any

Powers = tuple[tuple[str, Any], ...]
_NAME = re.compile(r"[^\W\d][\w']*")
# What a name in brackets stands for: a sum that is divided by, or a power whose exponent is a formula.
_COMPOUND: dict[str, tuple[Any, Any]] = {}


class Polynomial:
    """A sum of factors times powers of names; powers may be negative, and halves after `root`.

    >>> n, d = Polynomial.name("n"), Polynomial.name("d")
    >>> print(2 * n * (n + 1) * d / 2, (d / n) ** 2, 4 * n - n * 4)
    d n^2 + d n d^2/n^2 0
    >>> (2 * n * d).value({"n": 3, "d": 5}), str((2 * n * d).substituted({"n": 3}))
    (30, '6 d')
    """

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Powers, Fraction]) -> None:
        self.terms = {powers: factor for powers, factor in terms.items() if factor}

    @classmethod
    def name(cls, name: str) -> Polynomial:
        return cls({((name, 1),): Fraction(1)})

    @classmethod
    def of(cls, number: Any) -> Polynomial:
        return number if isinstance(number, Polynomial) else cls({(): Fraction(number)})

    @property
    def free_symbols(self) -> frozenset[str]:
        """The names; the counts take a size with this attribute for a symbol."""
        found: set[str] = set()
        for name in {name for powers in self.terms for name, _ in powers}:
            base, power = _COMPOUND.get(name, (None, None))
            found |= {name} if base is None else base.free_symbols | getattr(power, "free_symbols", set())
        return frozenset(found)

    @property
    def number(self) -> Fraction | None:
        """The value of a formula without names, otherwise None."""
        return self.terms.get((), Fraction(0)) if self.terms.keys() <= {()} else None

    def root(self) -> Polynomial | None:
        """The square root of a single term whose factor is a square, otherwise None."""
        if len(self.terms) != 1:
            return None
        ((powers, factor),) = self.terms.items()
        root = Fraction(isqrt(abs(factor.numerator)), isqrt(factor.denominator))
        halved = tuple((name, Fraction(power) / 2) for name, power in powers)
        return Polynomial({halved: root}) if root**2 == factor else None

    @property
    def compound(self) -> bool:
        """Whether it divides by a sum, or has a formula as an exponent."""
        return any(name in _COMPOUND for powers in self.terms for name, _ in powers)

    def __add__(self, other: Any) -> Polynomial:
        total = dict(self.terms)
        for powers, factor in Polynomial.of(other).terms.items():
            total[powers] = total.get(powers, Fraction(0)) + factor
        return Polynomial(total)

    def __mul__(self, other: Any) -> Polynomial:
        total: dict[Powers, Fraction] = {}
        for left, factor in self.terms.items():
            for right, by in Polynomial.of(other).terms.items():
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                key = tuple(sorted((name, power) for name, power in powers.items() if power))
                total[key] = total.get(key, Fraction(0)) + factor * by
        return Polynomial(total)

    def __truediv__(self, other: Any) -> Polynomial:
        below = Polynomial.of(other)
        if len(below.terms) != 1:
            if not below:
                raise ZeroDivisionError(f"{self} divided by 0")
            common = Fraction(
                gcd(*(factor.numerator for factor in below.terms.values())),
                lcm(*(factor.denominator for factor in below.terms.values())),
            )
            below = below * (1 / common)
            _COMPOUND[f"({below})"] = below, 1
            return self * Polynomial({((f"({below})", -1),): 1 / common})
        ((powers, factor),) = below.terms.items()
        return self * Polynomial({tuple((name, -power) for name, power in powers): 1 / factor})

    def __pow__(self, power: Any) -> Polynomial:
        if isinstance(power, Fraction):
            power = whole(power)
        if not isinstance(power, int):
            _COMPOUND[f"({self})^({power})"] = self, power
            return Polynomial.name(f"({self})^({power})")
        if len(self.terms) == 1 and power:
            ((powers, factor),) = self.terms.items()
            return Polynomial({tuple((name, each * power) for name, each in powers): factor**power})
        found = Polynomial.of(1)
        for _ in range(abs(power)):
            found = found * self
        return found if power >= 0 else 1 / found

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Any) -> Polynomial:
        return self + -Polynomial.of(other)

    def __rsub__(self, other: Any) -> Polynomial:
        return Polynomial.of(other) - self

    def __rtruediv__(self, other: Any) -> Polynomial:
        return Polynomial.of(other) / self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Fraction | Polynomial) and self.terms == Polynomial.of(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def substituted(self, values: Mapping[str, Any]) -> Any:
        """The formula with values for some of its names; a number where none is left."""
        total: Any = Polynomial({})
        for powers, factor in self.terms.items():
            term = Polynomial.of(factor)
            for name, power in powers:
                value = _value_of(name, values)
                term = term * value**power if power > 0 else term / value**-power
            total = total + term
        return total if total.free_symbols else whole(total.terms.get((), Fraction(0)))

    def value(self, values: Mapping[str, Any]) -> Any:
        """The number that the formula has where every name has a value."""
        found = self.substituted(values)
        if isinstance(found, Polynomial):
            raise KeyError(", ".join(sorted(found.free_symbols)))
        return found

    def __str__(self) -> str:
        """In the notation of `qkv.maths`: highest powers first, a product is a space."""
        text = ""
        for powers, factor in self._ordered():
            term = _term_text(powers, abs(factor))
            text += (" - " if factor < 0 else " + ") + term if text else ("-" if factor < 0 else "") + term
        return text or "0"

    __repr__ = __str__

    def written(self, values: Mapping[str, Any]) -> str:
        """The formula with numbers in place of names, not yet multiplied: "4 * 24 * 1024^2"."""
        shown = {name: f"({value})" if "/" in str(value) else str(value) for name, value in values.items()}
        terms = [_term_text(powers, factor, shown, " * ") for powers, factor in self._ordered()]
        return " + ".join(terms).replace("+ -", "- ") or "0"

    def _ordered(self) -> list[tuple[Powers, Fraction]]:
        return sorted(self.terms.items(), key=lambda item: _order(item[0]))


def _order(powers: Powers) -> Any:
    """Highest degrees first, then by names, of which the highest power first."""
    return -sum(power for _, power in powers), [(name, -power) for name, power in powers]


def _value_of(name: str, values: Mapping[str, Any]) -> Polynomial:
    if name not in _COMPOUND:
        return Polynomial.of(values[name]) if name in values else Polynomial.name(name)
    base, power = _COMPOUND[name]
    inner = base.substituted(values)
    if isinstance(power, Polynomial):
        power = power.substituted(values)
    if isinstance(inner, Polynomial) or isinstance(power, Polynomial):
        return Polynomial.of(inner) ** power
    return Polynomial.of(inner**power if power == 1 else float(inner) ** float(power))


def whole(number: Any) -> Any:
    """A fraction that is a whole number as an int."""
    return int(number) if isinstance(number, Fraction) and number.denominator == 1 else number


def _term_text(powers: Powers, factor: Fraction, shown: Mapping[str, str] | None = None, between: str = " ") -> str:
    named = sorted(powers, key=lambda item: _NAME.fullmatch(item[0]) is None)
    above = [_power_text(name, power, shown or {}) for name, power in named if power > 0]
    below = [_power_text(name, -power, shown or {}) for name, power in named if power < 0]
    above = ([str(factor.numerator)] if factor.numerator != 1 or not above else []) + above
    below = ([str(factor.denominator)] if factor.denominator != 1 else []) + below
    divided = "" if not below else f"/{below[0]}" if len(below) == 1 else f"/({between.join(below)})"
    return between.join(above) + divided


def _power_text(name: str, power: Any, shown: Mapping[str, str]) -> str:
    """A power; half a power is a root, and what is no name stands in brackets."""
    text = shown.get(name, name)
    if power == 1:
        return text
    if name not in shown and name not in _COMPOUND and not _NAME.fullmatch(name):
        text = f"({name})"
    above, rest = divmod(power, 1)
    if rest not in (0, Fraction(1, 2)):
        return f"{text}^({power})"
    raised = "" if not above else text if above == 1 else f"{text}^{above}"
    return f"{raised} sqrt({name})".strip() if rest else raised
