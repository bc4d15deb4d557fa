"""Normal forms: two trees with the same normal form are equal.

>>> from fractions import Fraction
>>> from qkv.maths.tree import Call, Contract, Number, Power, Symbol, Transpose, Type
>>> mu = Symbol(("d",), "mu", Type("vector", ("d",)))
>>> dot = Contract((), Transpose((1, "d"), mu), mu)
>>> same(dot, Power((), Call((), "norm", (mu,)), Number((), Fraction(2))))
True
>>> normal(dot)
Normal(Σ mu[1]^2)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qkv.maths.algebra import rules  # noqa: F401  (registers its rules)
from qkv.maths.algebra.indices import all_places, entry, scope_of
from qkv.maths.algebra.monomials import (
    WORK,
    Factor,
    Frozen,
    Ix,
    Monomial,
    NotNormal,
    NoValue,
    Poly,
    TooLarge,
    budget,
    freeze,
    root_count,
    subtract,
    vanishes,
)
from qkv.maths.tree import Node, Order, PlusMinus, Relation, Shape


def frozen_text(poly: Frozen) -> str:
    """A sum of monomials as text, for debugging.

    >>> frozen_text(())
    '0'
    """
    return " + ".join(_term_text(monomial, str(coefficient)) for monomial, coefficient in poly) or "0"


def _term_text(monomial: Monomial, coefficient: str) -> str:
    shown = [_factor_text(factor) for factor in monomial.factors]
    if coefficient != "1" or not shown:
        shown.insert(0, coefficient)
    return ("Σ " if monomial.sizes else "") + " ".join(shown)


def _factor_text(factor: Factor) -> str:
    head, slots, exponent = factor
    own = head.kind in ("name", "random", "constant")
    name = head.name if own else ":".join(filter(None, (head.kind, head.name)))
    if head.kind == "prime":
        name = str(head.args[0])
    elif head.args:
        name += "(" + ", ".join(frozen_text(arg) for arg in head.args) + ")"
    if slots:
        name += "[" + ",".join(_index_text(ix) for ix in slots) + "]"
    return name if exponent == 1 else f"{name}^{exponent}"


def _index_text(ix: Ix) -> str:
    kind, key = ix
    return {"c": f"={key}", "f": str(key), "b": str(key + 1) if kind == "b" else ""}.get(kind, f"{kind}{key}")


__all__ = ["Normal", "NotNormal", "TooLarge", "is_zero", "normal", "same", "term_count"]


@dataclass(frozen=True)
class Normal:
    """The entries of a tree as canonical sums of monomials."""

    shape: Shape
    entries: tuple[tuple[tuple[Ix, ...], Frozen], ...]

    def __repr__(self) -> str:
        shown = [frozen_text(sums) for _, sums in self.entries]
        return f"Normal({shown[0] if len(shown) == 1 else ', '.join(shown)})"


def normal(node: Node, *, work: int = WORK) -> Normal:
    """The normal form of a tree; raises TooLarge if it costs more than `work`, NotNormal if there is none."""
    _refuse_without_form(node)
    with budget(work):
        scope = scope_of(node)
        while True:
            before = root_count()
            form = Normal(node.shape, tuple((at, freeze(entry(node, at, scope))) for at in all_places(node.shape)))
            # New knowledge of what is under a root may make it shorter.
            if root_count() == before:
                return form


def same(a: Node, b: Node, *, work: int = WORK) -> bool:
    """Whether two trees are proved equal wherever both are defined; False means not proved."""
    if a.shape != b.shape:
        return False
    for node in (a, b):
        _refuse_without_form(node)
    if a == b:
        return _has_value(a, work)
    try:
        with budget(work):
            scope = scope_of(a, b)
            return all(
                _is_zero_poly(lambda at=at: subtract(entry(a, at, scope), entry(b, at, scope)))
                for at in all_places(a.shape)
            )
    except TooLarge:
        return False


def _has_value(node: Node, work: int) -> bool:
    """True for equal trees, unless they provably have no value (then NoValue is raised)."""
    try:
        normal(node, work=work)
    except NoValue:
        raise
    except (NotNormal, TooLarge):
        pass
    return True


def _is_zero_poly(make: Callable[[], Poly]) -> bool:
    """Whether `make()` is zero; repeated as long as more becomes known of what is under a root."""
    while True:
        before = root_count()
        if vanishes(make()):
            return True
        if root_count() == before:
            return False


def is_zero(node: Node, *, work: int = WORK) -> bool:
    """Whether a tree is proved to be zero everywhere; False means not proved."""
    _refuse_without_form(node)
    try:
        with budget(work):
            scope = scope_of(node)
            return all(_is_zero_poly(lambda at=at: entry(node, at, scope)) for at in all_places(node.shape))
    except TooLarge:
        return False


def term_count(form: Normal) -> int:
    """The number of monomials of a normal form."""
    return sum(len(sums) for _, sums in form.entries)


def _refuse_without_form(node: Node) -> None:
    if isinstance(node, PlusMinus | Order | Relation):
        raise NotNormal(f"{type(node).__name__} has no normal form")
