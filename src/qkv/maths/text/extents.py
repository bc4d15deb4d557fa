"""Sizes: whole numbers, and polynomials of names with whole exponents, kept as text in one canonical form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from qkv.maths.tree import Add, Divide, Multiply, Node, Number, Power, Size, Symbol, Type

Monomial: TypeAlias = tuple[tuple[str, int], ...]
Polynomial: TypeAlias = dict[Monomial, Fraction]

_MOST_TERMS = 40
_HIGHEST = 12
NATURAL = Type("natural")


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for left, p in a.items():
        for right, q in b.items():
            powers = dict(left)
            for name, power in right:
                powers[name] = powers.get(name, 0) + power
            key = tuple(sorted((name, power) for name, power in powers.items() if power))
            total[key] = total.get(key, Fraction(0)) + p * q
    return {key: value for key, value in total.items() if value}


def polynomial(node: Node) -> Polynomial | None:
    """A scalar tree as a polynomial of names, if it is one; negative powers of single terms are allowed.

    Definitions are put in, so that d_model = h d_k and h d_k are one size.
    """
    match node:
        case Number(value=value):
            return {(): value} if value else {}
        case Symbol(shape=(), type=Type(definition=Node() as definition)):
            return polynomial(definition)
        case Symbol(shape=(), name=name):
            return {((name, 1),): Fraction(1)}
        case Add(terms=terms):
            total: Polynomial = {}
            for term in terms:
                part = polynomial(term)
                if part is None:
                    return None
                for key, value in part.items():
                    total[key] = total.get(key, Fraction(0)) + value
            return {key: value for key, value in total.items() if value}
        case Multiply(factors=factors):
            return _products([polynomial(factor) for factor in factors])
        case Divide(top=top, bottom=bottom):
            over = polynomial(bottom)
            return _products([polynomial(top), None if over is None else _inverse(over)])
        case Power(base=base, exponent=Number(value=value)) if value.denominator == 1 and abs(value) <= _HIGHEST:
            part = polynomial(base)
            if part is not None and value < 0:
                part = _inverse(part)
            return _products([{(): Fraction(1)}] + [part] * abs(int(value)))
    return None


def _inverse(part: Polynomial) -> Polynomial | None:
    if len(part) != 1:
        return None
    ((key, value),) = part.items()
    return {tuple((name, -power) for name, power in key): 1 / value}


def _products(parts: list[Polynomial | None]) -> Polynomial | None:
    total: Polynomial = {(): Fraction(1)}
    for part in parts:
        if part is None or len(total) * len(part) > _MOST_TERMS:
            return None
        total = _product(total, part)
    return total


def canonical(part: Polynomial) -> Size:
    """The one way that a size is written.

    >>> canonical({(("n", 1),): Fraction(1), (): Fraction(1)}), canonical({(("d", 1), ("h", -1)): Fraction(1)})
    ('n+1', 'd/h')
    """
    if not part:
        return 0
    if set(part) == {()} and part[()].denominator == 1:
        return int(part[()])
    order = sorted(part.items(), key=lambda item: (-sum(power for _, power in item[0]), item[0]))
    text = ""
    for key, value in order:
        above = [_power(name, power) for name, power in key if power > 0]
        below = [_power(name, -power) for name, power in key if power < 0]
        number = abs(value)
        if number.numerator != 1 or not above:
            above.insert(0, str(number.numerator))
        if number.denominator != 1:
            below.insert(0, str(number.denominator))
        sign = "-" if value < 0 else "+" if text else ""
        text += sign + "*".join(above) + "".join(f"/{name}" for name in below)
    return text


def _power(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"


def size_of(node: Node) -> Size | None:
    """The size that a scalar tree says, or None where it says none."""
    part = polynomial(node)
    return None if part is None else canonical(part)


def size_names(size: Size) -> tuple[str, ...]:
    """The names that a size is made of, in order of first use.

    >>> size_names("h*d_k+1")
    ('h', 'd_k')
    """
    return tuple(dict.fromkeys(re.findall(r"[A-Za-z][A-Za-z0-9_']*", str(size))))


def size_node(size: Size, types: Mapping[str, Type] | None = None) -> Node:
    """A size as a typed tree: the names in it are symbols, naturals unless `types` says otherwise.

    >>> size_node("n+1").terms[0].name
    'n'
    """
    types = types or {}
    if isinstance(size, int):
        return Number((), Fraction(size))
    terms: list[Node] = []
    for sign, term in re.findall(r"([+-]?)([^+-]+)", size):
        whole = re.match(r"\d+(?![\d^])", term)
        first = Fraction(whole[0] if whole else 1) * (-1 if sign == "-" else 1)
        node: Node | None = Number((), first) if whole or sign == "-" else None
        for operator, factor in re.findall(r"([*/]?)([^*/]+)", term[whole.end() :] if whole else term):
            name, _, power = factor.partition("^")
            leaf = Number((), Fraction(name)) if name.isdigit() else Symbol((), name, types.get(name, NATURAL))
            piece: Node = Power((), leaf, Number((), Fraction(power))) if power else leaf
            joined = _over if operator == "/" else _times
            node = piece if node is None else joined(node, piece)
        if node is not None:
            terms.append(node)
    return terms[0] if len(terms) == 1 else Add((), tuple(terms))


def _times(left: Node, right: Node) -> Node:
    factors = left.factors if isinstance(left, Multiply) else (left,)
    return Multiply((), (*factors, right))


def _over(top: Node, bottom: Node) -> Node:
    return Divide((), top, bottom)
