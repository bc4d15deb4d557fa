"""Normal forms: two trees that have the same one are equal, whatever they looked like.

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

from qkv.maths.algebra import rules  # noqa: F401  (its rules join the others when it is imported)
from qkv.maths.algebra.budget import WORK, NotNormal, NoValue, TooLarge, budget, roots
from qkv.maths.algebra.clearing import vanishes
from qkv.maths.algebra.indices import all_places, entry
from qkv.maths.algebra.monomials import Frozen, Ix, Poly, freeze, subtract
from qkv.maths.algebra.notation import text
from qkv.maths.algebra.scope import scope_of
from qkv.maths.tree import Node, Order, PlusMinus, Relation, Shape

__all__ = ["Normal", "NotNormal", "TooLarge", "is_zero", "normal", "same", "terms"]


@dataclass(frozen=True)
class Normal:
    """The entries of a tree as canonical sums of monomials: equal where the canonical forms agree."""

    shape: Shape
    entries: tuple[tuple[tuple[Ix, ...], Frozen], ...]

    def __repr__(self) -> str:
        shown = [text(sums) for _, sums in self.entries]
        return f"Normal({shown[0] if len(shown) == 1 else ', '.join(shown)})"


def normal(node: Node, *, work: int = WORK) -> Normal:
    """The normal form. Raises TooLarge when it costs more than `work`, NotNormal when there is none."""
    _refuse(node)
    with budget(work):
        scope = scope_of(node)
        while True:
            before = roots()
            form = Normal(node.shape, tuple((at, freeze(entry(node, at, scope))) for at in all_places(node.shape)))
            # What was learnt about what stands under a root may make it shorter.
            if roots() == before:
                return form


def same(a: Node, b: Node, *, work: int = WORK) -> bool:
    """True: proved equal wherever both are defined. False: not proved."""
    if a.shape != b.shape:
        return False
    for node in (a, b):
        _refuse(node)
    if a == b:
        return _has_value(a, work)
    try:
        with budget(work):
            scope = scope_of(a, b)
            return all(
                _vanishes(lambda at=at: subtract(entry(a, at, scope), entry(b, at, scope)))
                for at in all_places(a.shape)
            )
    except TooLarge:
        return False


def _has_value(node: Node, work: int) -> bool:
    """True, unless it is seen to have no value at all: what is written twice alike is the same, whatever it is."""
    try:
        normal(node, work=work)
    except NoValue:
        raise
    except (NotNormal, TooLarge):
        pass
    return True


def _vanishes(make: Callable[[], Poly]) -> bool:
    """Whether what is made is zero; made again as long as more is learnt about what stands under a root."""
    while True:
        before = roots()
        if vanishes(make()):
            return True
        if roots() == before:
            return False


def is_zero(node: Node, *, work: int = WORK) -> bool:
    """True: proved to be zero everywhere. False: not proved."""
    _refuse(node)
    try:
        with budget(work):
            scope = scope_of(node)
            return all(_vanishes(lambda at=at: entry(node, at, scope)) for at in all_places(node.shape))
    except TooLarge:
        return False


def terms(form: Normal) -> int:
    """How many monomials a normal form has."""
    return sum(len(sums) for _, sums in form.entries)


def _refuse(node: Node) -> None:
    if isinstance(node, PlusMinus | Order | Relation):
        raise NotNormal(f"{type(node).__name__} has no normal form")
