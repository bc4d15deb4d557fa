"""Formulas as sums of terms: simplified texts, roots, and growth classes of counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import isqrt
from typing import TypeAlias

from ...errors import MathsError
from ...maths import compare, latex, parse
from ...maths import tree as t

Powers: TypeAlias = tuple[tuple[str, Fraction], ...]
Terms: TypeAlias = dict[Powers, Fraction]
ONE: Terms = {(): Fraction(1)}
_NAME = re.compile(r"[^\W\d][\w']*")
_GREEK = re.compile(
    r"\\([mn]u|[Ss]igma|[Ll]ambda|alpha|beta|[Gg]amma|epsilon|tau|rho|[Tt]heta|[Pp]hi|[Pp]si)(?![A-Za-z])|_\{(\w+)\}"
)


def symbol(name: str) -> Terms:
    """A name as a formula.

    >>> show(times(symbol("n"), symbol("n"), symbol("d")))
    'd n^2'
    """
    return {((name, Fraction(1)),): Fraction(1)}


def number(value: int | Fraction) -> Terms:
    return {(): Fraction(value)} if value else {}


def plus(*formulas: Terms) -> Terms:
    total: Terms = {}
    for formula in formulas:
        for powers, factor in formula.items():
            total[powers] = total.get(powers, Fraction(0)) + factor
    return {powers: factor for powers, factor in total.items() if factor}


def times(*formulas: Terms) -> Terms:
    total = ONE
    for formula in formulas:
        total = plus(*({_joined(a, b): x * y} for a, x in total.items() for b, y in formula.items()))
    return total


def _joined(one: Powers, other: Powers) -> Powers:
    powers = dict(one)
    for name, power in other:
        powers[name] = powers.get(name, Fraction(0)) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def inverse(formula: Terms) -> Terms | None:
    """1 / formula, where it is a single term."""
    if len(formula) != 1:
        return None
    ((powers, factor),) = formula.items()
    return {tuple((name, -power) for name, power in powers): 1 / factor}


def root_of(formula: Terms) -> Terms | None:
    """The square root of a single term with a number whose root is whole, or that stays as an atom."""
    if len(formula) != 1:
        return None
    ((powers, factor),) = formula.items()
    halved = {tuple((name, power / 2) for name, power in powers): Fraction(1)}
    top, bottom = isqrt(factor.numerator) if factor > 0 else -1, isqrt(factor.denominator)
    if factor > 0 and top**2 == factor.numerator and bottom**2 == factor.denominator:
        return times(halved, number(Fraction(top, bottom)))
    return None


def terms_of(node: t.Node) -> Terms:
    """A scalar tree as a sum of terms; what is no product of powers is an atom under its text."""
    match node:
        case t.Number(value=value):
            return number(value)
        case t.Symbol(type=t.Type(definition=t.Node() as definition)) if not node.shape:
            return terms_of(definition)
        case t.Symbol(name=name):
            return symbol(name)
        case t.Add(terms=terms):
            return plus(*map(terms_of, terms))
        case t.Multiply(factors=factors):
            return times(*map(terms_of, factors))
        case t.Divide(top=top, bottom=bottom) if (below := inverse(terms_of(bottom))) is not None:
            return times(terms_of(top), below)
        case t.Call(name="sqrt", arguments=(inside,)) if (root := root_of(terms_of(inside))) is not None:
            return root
        case t.Power(base=base, exponent=t.Number(value=power)) if power.denominator == 1 and abs(power) <= 12:
            inner: Terms | None = terms_of(base)
            inner = inner if power >= 0 else inverse(inner)
            if inner is not None and (len(inner) == 1 or abs(power) <= 4):
                return times(*[inner] * abs(int(power)))
    return symbol(
        _GREEK.sub(lambda m: m[1] or f"_{m[2]}", latex(node).replace(r"^\top", "^T").replace(r"\mathbf{1}", "1"))
    )


def show(formula: Terms, first: Iterable[str] = ()) -> str:
    """A formula as text; names of `first` come first in each term."""
    order = {name: place for place, name in enumerate(first)}
    degrees = {powers: sum(power for _, power in powers) for powers in formula}
    shown = ""
    for powers in sorted(formula, key=lambda key: (-degrees[key], [(order.get(n, 99), n, -p) for n, p in key])):
        term = _term(powers, abs(formula[powers]), order)
        sign = "-" if formula[powers] < 0 else "+"
        shown += f" {sign} {term}" if shown else ("-" if sign == "-" else "") + term
    return shown or "0"


def _term(powers: Powers, factor: Fraction, order: Mapping[str, int]) -> str:
    named = sorted(powers, key=lambda item: (order.get(item[0], 99), not _NAME.fullmatch(item[0]), item[0]))
    above = [_power(name, power) for name, power in named if power > 0]
    below = [_power(name, -power) for name, power in named if power < 0]
    if factor.numerator != 1 or not above:
        above.insert(0, str(factor.numerator))
    if factor.denominator != 1:
        below.insert(0, str(factor.denominator))
    return " ".join(above) + (f"/{below[0]}" if len(below) == 1 else f"/({' '.join(below)})" if below else "")


def _power(name: str, power: Fraction) -> str:
    atom = name if _NAME.fullmatch(name) or power == 1 else f"({name})"
    whole, rest = divmod(power, 1)
    root = f"sqrt({name})" if rest == Fraction(1, 2) else ""
    if rest and not root:
        return f"{atom}^({power})"
    raised = "" if not whole else atom if whole == 1 else f"{atom}^{whole}"
    return " ".join(part for part in (raised, root) if part)


def simplified(text: str, symbols: Mapping[str, str], first: Iterable[str] = ()) -> str:
    """A scalar formula with like terms collected; the text itself where that cannot be shown to be the same.

    >>> simplified("sigma^4 (1/sqrt(d))^2 d + 2 d/d", {"sigma": "positive", "d": "natural"})
    'sigma^4 + 2'
    """
    try:
        short = show(terms_of(parse(text, symbols)), first)
        return short if compare(text, short, symbols).kind == "equal" else text
    except MathsError:
        return text


def root_text(text: str, symbols: Mapping[str, str]) -> str:
    """The positive square root of a formula, as text."""
    root = root_of(terms_of(parse(text, symbols)))
    return f"sqrt({text})" if root is None else show(root)


def number_in(text: str) -> Fraction | None:
    """The value of a formula without names."""
    try:
        found = terms_of(parse(text, {}))
    except MathsError:
        return None
    return found.get((), Fraction(0)) if set(found) <= {()} else None


def leading(formula: Terms, at_most: Iterable[tuple[str, str]] = ()) -> Terms:
    """The terms that no other term bounds, for sizes of at least 1; pairs (small, large) say which size bounds which.

    >>> show(leading(plus(times(symbol("b"), symbol("d")), symbol("b"), number(3))))
    'b d'
    """
    pairs = list(at_most)
    kept = list(formula)
    for powers in list(kept):
        if any(_bounds(other, powers, pairs) for other in kept if other != powers):
            kept.remove(powers)
    return {powers: Fraction(1) for powers in kept}


def _bounds(large: Powers, small: Powers, pairs: list[tuple[str, str]]) -> bool:
    ratio = dict(_joined(large, tuple((name, -power) for name, power in small)))
    for low, high in pairs:
        moved = min(-ratio.get(low, Fraction(0)), ratio.get(high, Fraction(0)))
        if moved > 0:
            ratio[low] += moved
            ratio[high] -= moved
    return all(power >= 0 for power in ratio.values())


def substituted(formula: Terms, values: Mapping[str, Terms]) -> Terms:
    """The formula with names replaced; the powers of a replaced name must be whole, and negative only for one term."""
    total: Terms = {}
    for powers, factor in formula.items():
        term = number(factor)
        for name, power in powers:
            value = values.get(name)
            if value is None:
                term = times(term, {((name, power),): Fraction(1)})
                continue
            value = value if power > 0 else inverse(value)
            if value is None or power.denominator != 1:
                raise ValueError(f"{name} to the power {power} cannot be replaced")
            term = times(term, *[value] * abs(int(power)))
        total = plus(total, term)
    return total
