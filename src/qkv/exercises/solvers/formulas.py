"""Formulas as sums of terms: simplified texts, roots, growth classes, and answers that are formulas."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from ...cost.polynomial import Polynomial
from ...derivation import Derivation, Step
from ...errors import MathsError
from ...maths import compare, latex, parse
from ...maths import tree as t
from ..findings import Finding
from ..solving import Answer

ONE = Polynomial.of(1)
_GREEK = re.compile(
    r"\\([mn]u|[Ss]igma|[Ll]ambda|alpha|beta|[Gg]amma|epsilon|tau|rho|[Tt]heta|[Pp]hi|[Pp]si)(?![A-Za-z])|_\{(\w+)\}"
)


@cache
def table(name: str) -> Any:
    """A table of patterns, templates or operations of `symbols.toml`."""
    return tomllib.loads(files("qkv.exercises.solvers").joinpath("symbols.toml").read_text(encoding="utf-8"))[name]


def product(sizes: Iterable[Polynomial]) -> Polynomial:
    """All sizes of a shape, multiplied."""
    return prod(sizes, start=ONE)


def as_polynomial(node: t.Node) -> Polynomial:
    """A scalar tree as a sum of terms; what is no product of powers is a name under its text."""
    match node:
        case t.Number(value=value):
            return Polynomial.of(value)
        case t.Symbol(type=t.Type(definition=t.Node() as definition)) if not node.shape:
            return as_polynomial(definition)
        case t.Symbol(name=name):
            return Polynomial.name(name)
        case t.Add(terms=terms):
            return sum(map(as_polynomial, terms), Polynomial({}))
        case t.Multiply(factors=factors):
            return product(map(as_polynomial, factors))
        case t.Divide(top=top, bottom=bottom) if len((below := as_polynomial(bottom)).terms) == 1:
            return as_polynomial(top) / below
        case t.Call(name="sqrt", arguments=(inside,)) if (root := as_polynomial(inside).root()) is not None:
            return root
        case t.Power(base=base, exponent=t.Number(value=power)) if power.denominator == 1 and abs(power) <= 12:
            inner = as_polynomial(base)
            if len(inner.terms) == 1 or 0 <= power <= 4:
                return inner**power
    plain = latex(node).replace(r"^\top", "^T").replace(r"\mathbf{1}", "1")
    return Polynomial.name(_GREEK.sub(lambda found: found[1] or f"_{found[2]}", plain))


def simplified(text: str, symbols: Mapping[str, str]) -> str:
    """A scalar formula with like terms collected; the text itself where that cannot be shown to be the same.

    >>> simplified("sigma^4 (1/sqrt(d))^2 d + 2 d/d", {"sigma": "positive", "d": "natural"})
    'sigma^4 + 2'
    """
    try:
        short = str(as_polynomial(parse(text, symbols)))
        return short if compare(text, short, symbols).kind == "equal" else text
    except MathsError:
        return text


def number_in(text: str) -> Any:
    """The value of a formula without names, or None."""
    try:
        return as_polynomial(parse(text, {})).number
    except MathsError:
        return None


def naturals(*names: object) -> dict[str, str]:
    """The types of the sizes that are names; numbers have none."""
    return {str(name): "natural" for name in names if not str(name).isdigit()}


def leading(formula: Polynomial, at_most: Sequence[tuple[str, str]] = ()) -> Polynomial:
    """The terms that no other term bounds, for sizes of at least 1; pairs (small, large) say which size bounds which.

    >>> b, d = Polynomial.name("b"), Polynomial.name("d")
    >>> print(leading(2 * b * d + b + 3))
    b d
    """
    kept = [Polynomial({powers: ONE.terms[()]}) for powers in formula.terms]
    for term in list(kept):
        if any(_bounds(other / term, at_most) for other in kept if other is not term):
            kept.remove(term)
    return sum(kept, Polynomial({}))


def _bounds(quotient: Polynomial, at_most: Sequence[tuple[str, str]]) -> bool:
    """Whether a single term is at least 1."""
    ratio = dict(next(iter(quotient.terms)))
    for low, high in at_most:
        moved = min(-ratio.get(low, 0), ratio.get(high, 0))
        if moved > 0:
            ratio[low] += moved
            ratio[high] -= moved
    return all(power >= 0 for power in ratio.values())


def split(text: str, signs: str = ",") -> list[str]:
    """The parts of a text between signs that stand outside of brackets.

    >>> split("a, f(b, c)")
    ['a', 'f(b, c)']
    """
    depth, parts = 0, [""]
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign in signs and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def assumed(convention: str, value: str) -> tuple[Finding, ...]:
    """The finding that a convention was not said, and which one was taken."""
    return (Finding("assumed", {"convention": convention, "value": value}),)


def formula(
    text: str, *steps: Iterable[Step], symbols: Mapping[str, str] | None = None, form: str = "formula", **fields: Any
) -> Answer:
    """The answer that a formula is, or words, with the chains that lead to it."""
    fields.setdefault("value", text)
    fields.setdefault("derivation", Derivation.of(*steps, symbols=symbols))
    return Answer(text, form=form, symbols=symbols or {}, **fields)
