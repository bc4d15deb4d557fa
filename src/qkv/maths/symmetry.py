"""Which matrices are symmetric because they are declared as covariances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Multiply,
    Node,
    Number,
    Outer,
    Power,
    Special,
    Symbol,
    Transpose,
    Type,
    Written,
)


@dataclass(frozen=True)
class Symmetric:
    """The names of symmetric matrices; trial points draw symmetric values for them."""

    known: frozenset[str] = frozenset()


NONE = Symmetric()
_declared: ContextVar[Symmetric] = ContextVar("declared", default=NONE)


@contextmanager
def declared_symmetric(types: Iterable[Type]) -> Iterator[None]:
    """Treat the covariances of these types as symmetric inside, even if the random names do not occur."""
    token = _declared.set(symmetric_in(types))
    try:
        yield
    finally:
        _declared.reset(token)


def symmetric(types: Iterable[Type]) -> Symmetric:
    """The symmetric names by these types and by the declared ones."""
    return Symmetric(symmetric_in(types).known | _declared.get().known)


def symmetric_in(types: Iterable[Type]) -> Symmetric:
    covariances = [kind.law.covariance for kind in types if kind.law is not None]
    known = set().union(*map(scaled_names, covariances))
    for covariance in covariances:
        known |= symmetric_names(covariance, frozenset(known)) or set()
    return Symmetric(frozenset(known))


def scaled_names(covariance: Node) -> set[str]:
    """The names of matrices that a covariance is a multiple of.

    >>> sigma = Symbol(("d", "d"), "Sigma", Type("matrix", ("d", "d")))
    >>> scaled_names(Multiply(("d", "d"), (Symbol((), "s", Type("positive")), sigma)))
    {'Sigma'}
    """
    match covariance:
        case Symbol(type=Type(kind="matrix", definition=None)):
            return {covariance.name}
        case Symbol(type=Type(definition=Node() as definition)):
            return {covariance.name} | scaled_names(definition)
        case Divide():
            return scaled_names(covariance.top)
        case Multiply():
            return set().union(*(scaled_names(factor) for factor in covariance.factors if factor.shape))
    return set()


def symmetric_names(covariance: Node, known: frozenset[str] = frozenset()) -> set[str] | None:
    """The names that must be symmetric if this is a covariance; None if that does not follow from its form.

    A is symmetric if A or A + I is a covariance, S if D S Dᵀ is; nothing follows from A + B, A B and A B A.
    """
    match covariance:
        case Symbol(shape=()) | Number():
            return set()
        case Symbol(type=Type(definition=Node() as definition)):
            inner = symmetric_names(definition, known)
            return None if inner is None else inner | {covariance.name}
        case Symbol():
            return {covariance.name}
        case Special() | Call(name="diag"):
            return set()
        case Written(entries=entries):
            rows = [entries[i : i + int(covariance.shape[1])] for i in range(0, len(entries), int(covariance.shape[1]))]
            return set() if rows == [tuple(column) for column in zip(*rows, strict=True)] else None
        case Divide():
            return symmetric_names(covariance.top, known)
        case Multiply():
            matrices = [factor for factor in covariance.factors if factor.shape]
            return symmetric_names(matrices[0], known) if matrices else set()
        case Add():
            return _symmetric_in_sum(
                [symmetric_names(term, known) for term in covariance.terms], covariance.terms, known
            )
        case Power(exponent=Number(value=exponent)):
            inner = symmetric_names(covariance.base, known)
            return inner if exponent == -1 or (inner is not None and inner <= known) else None
        case Transpose():
            return symmetric_names(covariance.body, known)
        case Outer():
            return set() if covariance.left == covariance.right else None
        case Contract():
            return _symmetric_in_product(chain(covariance), known)
    return set() if not covariance.shape else None


def _symmetric_in_sum(found: list[set[str] | None], terms: tuple[Node, ...], known: frozenset[str]) -> set[str] | None:
    """If all terms but one are symmetric, so is that one."""
    if any(one is None for one in found):
        return None
    open_ = [term for term in terms if not scaled_names(term) <= known]
    return set().union(*(one for one in found if one)) if len(open_) < 2 else None


def chain(node: Node) -> list[Node]:
    """The factors of a product of matrices in order, with transposes distributed over products."""
    if isinstance(node, Contract):
        return chain(node.left) + chain(node.right)
    if isinstance(node, Transpose) and isinstance(node.body, Contract):
        return [transposed(factor) for factor in reversed(chain(node.body))]
    return [node]


def transposed(node: Node) -> Node:
    return node.body if isinstance(node, Transpose) else Transpose(node.shape[::-1], node)


def _symmetric_in_product(factors: list[Node], known: frozenset[str]) -> set[str] | None:
    """The names in a product that equals its transpose: mirrored factors around a symmetric middle; else None."""

    def mirrored(a: Node, b: Node) -> bool:
        return transposed(a) == b or (a == b and isinstance(a, Symbol) and a.name in known)

    half = len(factors) // 2
    if not all(mirrored(a, b) for a, b in zip(factors[:half], reversed(factors[-half:]), strict=True)):
        return None
    return symmetric_names(factors[half], known) if len(factors) % 2 else set()
