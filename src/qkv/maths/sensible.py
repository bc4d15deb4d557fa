"""Declarations that can be read and still make no sense: a variance below zero, laws that lean on each other."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from qkv.errors import OptionError, complaint
from qkv.maths.algebra.symmetry import implied, symmetric_in
from qkv.maths.tree import Multiply, Node, Special, Type, Written


def sensible(types: Mapping[str, Type]) -> None:
    """OptionError where a law or a definition cannot be what it says that it is."""
    known = symmetric_in(types.values()).known
    for name, kind in types.items():
        if kind.law is not None:
            _law(name, kind, known)
        if kind.definition is not None:
            _definition(name, kind)


def _law(name: str, kind: Type, known: frozenset[str]) -> None:
    from qkv.maths.substitution import symbols_of

    law = kind.law
    assert law is not None
    where = f"symbols[{name!r}]"
    others = [other for other, symbol in symbols_of(law.mean, law.covariance).items() if symbol.type.random]
    if others:
        said = f"a law that mentions {others[0]}, which is random itself"
        raise OptionError(complaint(where, said, "a law of fixed things: distinct random names are independent"))
    if kind.shape and implied(law.covariance, known) is None:
        from qkv.maths.writing import plain

        said = f"the covariance {plain(law.covariance)}, which need not be symmetric"
        hint = 'declare a name for it, such as "S": "matrix[d,d]", and write that'
        raise OptionError(complaint(where, said, "a symmetric one, such as Sigma, sigma^2 I or A A^T", hint))
    value = _number(law.covariance) if not kind.shape else None
    entries = _diagonal(law.covariance) if kind.shape else [value]
    if any(entry is not None and entry < 0 for entry in entries):
        raise OptionError(complaint(where, "a variance below zero", "one that is zero or more"))


def _definition(name: str, kind: Type) -> None:
    if kind.kind not in ("positive", "nonnegative", "natural"):
        return
    assert kind.definition is not None
    value: Any = _number(kind.definition)
    if value is None:
        return
    fine = value > 0 or (value == 0 and kind.kind == "nonnegative")
    if not fine or (kind.kind == "natural" and value != int(value)):
        from qkv.maths.counterexample import number

        wanted = {"positive": "more than zero", "nonnegative": "zero or more", "natural": "a whole number from 1"}
        raise OptionError(complaint(f"symbols[{name!r}]", number(Fraction(value)), wanted[kind.kind]))


def _number(node: Node) -> Any:
    """The number that a node is by itself, None where it needs names or has no value."""
    from qkv.maths.substitution import symbols_of
    from qkv.maths.values.arithmetic import Undefined, Unevaluable
    from qkv.maths.values.exact import evaluate

    if any(symbol.type.definition is None for symbol in symbols_of(node).values()):
        return None
    try:
        return evaluate(node, {}, {})
    except (Undefined, Unevaluable):
        return None


def _diagonal(covariance: Node) -> list[Any]:
    """The diagonal of a covariance, or the number before an identity, where they are numbers; −1 where it is none."""
    from qkv.maths.values.arithmetic import Undefined
    from qkv.maths.values.chance import triangular

    match covariance:
        case Written():
            numbers = [_number(entry) for entry in covariance.entries]
            width = int(covariance.shape[1])
            if None not in numbers:
                rows = tuple(tuple(numbers[i : i + width]) for i in range(0, len(numbers), width))
                try:
                    triangular(rows)
                except Undefined:
                    return [-1]
            return numbers[:: width + 1]
        case Multiply(factors=(*scalars, Special(name="identity"))):
            return [_number(Multiply((), tuple(scalars)))]
    return []
