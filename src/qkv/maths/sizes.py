"""Sizes: whole numbers, or polynomials in names with whole exponents, kept as text in a canonical form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any, TypeAlias

from qkv.maths.tree import Add, Divide, Multiply, Node, Number, Power, Size, Symbol, Type
from qkv.maths.values.arithmetic import Undefined, Unevaluable

Monomial: TypeAlias = tuple[tuple[str, int], ...]
Polynomial: TypeAlias = dict[Monomial, Fraction]

_MOST_TERMS = 40
_HIGHEST_POWER = 12
NATURAL = Type("natural")

_NAME = re.compile(r"[^\W\d][\w']*")
_ATOM = rf"(?:[1-9]\d*|{_NAME.pattern}(?:\^\d+)?)"
_TERM = re.compile(rf"(?P<sign>[+-]?){_ATOM}(?:[*/]{_ATOM})*")
_FACTOR = re.compile(rf"(?P<operator>[*/]?)(?:(?P<number>[1-9]\d*)|(?P<name>{_NAME.pattern})(?:\^(?P<power>\d+))?)")


def _collected(terms: Iterable[tuple[Monomial, Fraction]]) -> Polynomial:
    total: Polynomial = {}
    for key, value in terms:
        total[key] = total.get(key, Fraction(0)) + value
    return {key: value for key, value in total.items() if value}


def _monomial(factors: Iterable[tuple[str, int]]) -> Monomial:
    powers = Counter[str]()
    for name, power in factors:
        powers[name] += power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    return _collected((_monomial((*x, *y)), p * q) for x, p in a.items() for y, q in b.items())


def polynomial(node: Node) -> Polynomial | None:
    """A scalar tree as a polynomial in names, or None; negative powers of single terms are allowed.

    Definitions are substituted, so that d_model = h d_k and h d_k are the same size.
    """
    match node:
        case Number(value=value):
            return {(): value} if value else {}
        case Symbol(shape=(), type=Type(definition=Node() as definition)):
            return polynomial(definition)
        case Symbol(shape=(), name=name):
            return {((name, 1),): Fraction(1)}
        case Add(terms=terms):
            parts = [polynomial(term) for term in terms]
            return None if None in parts else _collected(item for part in parts if part for item in part.items())
        case Multiply(factors=factors):
            return _products([polynomial(factor) for factor in factors])
        case Divide(top=top, bottom=bottom):
            over = polynomial(bottom)
            return _products([polynomial(top), None if over is None else _inverse(over)])
        case Power(base=base, exponent=Number(value=value)) if value.denominator == 1 and abs(value) <= _HIGHEST_POWER:
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


def canonical_size(part: Polynomial) -> Size:
    """The canonical text of a size.

    >>> canonical_size({(("n", 1),): Fraction(1), (): Fraction(1)})
    'n+1'
    >>> canonical_size({(("d", 1), ("h", -1)): Fraction(1)})
    'd/h'
    """
    if not part:
        return 0
    if set(part) == {()} and part[()].denominator == 1:
        return int(part[()])
    order = sorted(part.items(), key=lambda item: (-sum(power for _, power in item[0]), item[0]))
    text = ""
    for key, value in order:
        above, below = _sides(key, abs(value), _power, str)
        sign = "-" if value < 0 else "+" if text else ""
        text += sign + "*".join(above) + "".join(f"/{name}" for name in below)
    return text


def _power(name: str, power: int) -> str:
    return name if power == 1 else f"{name}^{power}"


def _sides(key: Monomial, value: Fraction, named: Callable[[str, int], Any], numbered: Callable[[int], Any]) -> Any:
    """The factors above and below of a fraction."""
    above = [named(name, power) for name, power in key if power > 0]
    below = [named(name, -power) for name, power in key if power < 0]
    if value.numerator != 1 or not above:
        above.insert(0, numbered(value.numerator))
    return above, ([numbered(value.denominator)] if value.denominator != 1 else []) + below


def size_of(node: Node) -> Size | None:
    """The size that a scalar tree denotes, or None."""
    part = polynomial(node)
    # The text of a size contains its names: d_{i+1} would be read as d_i plus one.
    if part is None or not all(_NAME.fullmatch(name) for key in part for name, _ in key):
        return None
    return canonical_size(part)


@lru_cache(maxsize=1024)
def size_polynomial(size: Size) -> Mapping[Monomial, Fraction]:
    """The polynomial of a size, parsed from its text; Unevaluable if `canonical_size` cannot have written the text.

    >>> dict(size_polynomial("d/h-1")) == {(("d", 1), ("h", -1)): 1, (): -1}
    True
    """
    if isinstance(size, int):
        return MappingProxyType({(): Fraction(size)} if size else {})
    terms = list(_TERM.finditer(size))
    if not terms or "".join(term[0] for term in terms) != size or any(not term["sign"] for term in terms[1:]):
        raise Unevaluable(f"the size {size} cannot be read")
    found = []
    for term in terms:
        value, factors = Fraction(-1 if term["sign"] == "-" else 1), []
        for factor in _FACTOR.finditer(term[0]):
            sign = -1 if factor["operator"] == "/" else 1
            if factor["number"]:
                value *= Fraction(int(factor["number"])) ** sign
            else:
                factors.append((factor["name"], sign * int(factor["power"] or 1)))
        found.append((_monomial(factors), value))
    return MappingProxyType(_collected(found))


def is_impossible(size: Size) -> bool:
    """Whether no natural values of its names make the size a whole number of at least 1.

    >>> is_impossible(0), is_impossible("5/2"), is_impossible("-n"), is_impossible("n-1"), is_impossible("n/2")
    (True, True, True, False, False)
    """
    part = size_polynomial(size)
    broken = set(part) == {()} and part[()].denominator != 1
    return broken or all(value < 0 for value in part.values())


@lru_cache(maxsize=1024)
def names_in(size: Size) -> tuple[str, ...]:
    """The names in a size, in source order.

    >>> names_in("d/h"), names_in(3)
    (('d', 'h'), ())
    """
    known = {name for key in size_polynomial(size) for name, _ in key}
    return tuple(dict.fromkeys(name for name in _NAME.findall(str(size)) if name in known))


def size_value(size: Size, sizes: Mapping[str, int]) -> Fraction:
    """The value of a size, whole or not, for these values of its names.

    >>> size_value("d/h", {"d": 6, "h": 4})
    Fraction(3, 2)
    """
    if isinstance(size, int):
        return Fraction(size)
    if size in sizes:
        return Fraction(sizes[size])
    return _size_value_cached(size, tuple(sizes.get(name) for name in names_in(size)))


@lru_cache(maxsize=4096)
def _size_value_cached(size: Size, values: tuple[int | None, ...]) -> Fraction:
    """`size_value` with the values of the names in order; cached, because the same sizes are tried many times."""
    sizes = dict(zip(names_in(size), values, strict=True))
    total = Fraction(0)
    for key, value in size_polynomial(size).items():
        for name, power in key:
            known = sizes[name]
            if known is None:
                raise Unevaluable(f"the size {name} has no value")
            if power < 0 and not known:
                raise Undefined("a size divided by zero")
            if abs(power) > _HIGHEST_POWER:
                raise Undefined("a size to a power that is too large")
            value *= Fraction(known) ** power
        total += value
    return total


def whole_size(size: Size, sizes: Mapping[str, int]) -> int:
    """The value of a size, which must be a whole number of at least 1; raises Undefined otherwise."""
    found = size_value(size, sizes)
    if found.denominator != 1 or found < 1:
        raise Undefined(f"the size {size} is {found}")
    return int(found)


def whole_range(size: Size, sizes: Mapping[str, int]) -> int:
    """The number of terms of a sum to a size: 0 if that is negative; raises Undefined if it is not whole."""
    found = size_value(size, sizes)
    if found.denominator != 1:
        raise Undefined(f"the size {size} is {found}")
    return max(0, int(found))


def size_node(size: Size) -> Node:
    """A size as a typed tree in which the names are naturals.

    >>> size_node("n+1").terms[0].name
    'n'
    """
    terms = [_term(key, value) for key, value in size_polynomial(size).items()]
    if not terms:
        return Number((), Fraction(0))
    return terms[0] if len(terms) == 1 else Add((), tuple(terms))


def _term(key: Monomial, value: Fraction) -> Node:
    above, below = _sides(key, value, _raised, lambda whole: Number((), Fraction(whole)))
    top = above[0] if len(above) == 1 else Multiply((), tuple(above))
    return reduce(lambda over, under: Divide((), over, under), below, top)


def _raised(name: str, power: int) -> Node:
    symbol = Symbol((), name, NATURAL)
    return symbol if power == 1 else Power((), symbol, Number((), Fraction(power)))
