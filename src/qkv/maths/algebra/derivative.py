"""Derivatives of sums of monomials with respect to one component of a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from qkv.maths import tree as t
from qkv.maths.algebra.functions import logarithm, power, rebuild_head, sign
from qkv.maths.algebra.heads import arguments, heads_within, random_names
from qkv.maths.algebra.indices import Scope, delta, entry, place_of, scope_of
from qkv.maths.algebra.monomials import (
    Factor,
    Head,
    Ix,
    NotNormal,
    Poly,
    add,
    atom,
    bind,
    build,
    multiply,
    number,
    unbind,
)
from qkv.maths.tree import symbols_of, walk


@lru_cache(maxsize=4096)
def names_of_head(head: Head) -> frozenset[str]:
    """Every declared name in a head and its arguments."""
    if head.kind in ("name", "random"):
        return frozenset([head.name])
    return frozenset().union(*map(names_of_head, heads_within(head)))


@lru_cache(maxsize=4096)
def averaged_names(head: Head) -> frozenset[str]:
    """The random names that the expectations in a head average over; the head depends on their laws."""
    inner = heads_within(head)
    found = frozenset().union(*map(averaged_names, inner))
    return found.union(*map(random_names, inner)) if head.kind == "expect" else found


def replace_name(poly: Poly, name: str, value: Callable[[tuple[Ix, ...]], Poly]) -> Poly:
    """The sum with each component of `name` replaced by value(slots)."""
    parts = []
    for monomial, coefficient in poly.items():
        factors, opens = unbind(monomial)
        still = [factor for factor in factors if name not in names_of_head(factor.head)]
        product = build(coefficient, still, {})
        for head, slots, exponent in factors:
            if name in names_of_head(head):
                inner = (
                    value(slots)
                    if not head.args
                    else rebuild_head(head, slots, lambda args: [replace_name(arg, name, value) for arg in args])
                )
                product = multiply(product, power(inner, exponent))
        for index, size in opens.items():
            product = bind(product, index, size)
        parts.append(product)
    return add(*parts)


# Functions that are constant almost everywhere.
STEP_FUNCTIONS = frozenset({"sign", "argmax", "less", "delta", "place"})


@dataclass(frozen=True)
class Target:
    """One component of a name, and the random names whose laws contain that name."""

    name: str
    slots: tuple[Ix, ...]
    random: frozenset[str]

    def moves(self, head: Head) -> bool:
        """Whether a head may depend on the target."""
        return self.name in names_of_head(head) or not self.random.isdisjoint(averaged_names(head))


def derivative(node: t.Derivative, at: tuple[Ix, ...], scope: Scope) -> Poly:
    """Entry `at` of ∂ body / ∂ target: the axes of the body, then those of the target."""
    target = node.target
    cut = len(node.body.shape)
    rest = list(at[cut:])
    if isinstance(target, t.Part) and isinstance(target.body, t.Symbol):
        symbol = target.body
        if len(target.indices) == 2 and target.indices[1] is None and len(rest) == 2:
            rest = rest[1:]
        chosen = [*target.indices, *([None] * (len(symbol.shape) - len(target.indices)))]
        slots = tuple(rest.pop(0) if index is None else place_of(index, scope) for index in chosen)
    elif isinstance(target, t.Symbol):
        symbol, slots = target, tuple(rest)
    else:
        raise NotNormal("a derivative is taken with respect to a name or a component of one")
    if symbol.name in scope.symmetric:
        raise NotNormal("the components of a covariance do not vary one by one")
    if symbol.name in scope_of(node.body).naturals:
        raise NotNormal("nothing is differentiated by a size")
    _refuse_average(node.body, symbol)
    moved = {name for name, law in scope.laws.items() if symbol.name in symbols_of(law.mean, law.covariance)}
    # The name stays a name in the body; its definition is substituted after differentiation.
    inner = scope.keeping(symbol.name)
    found = differentiate(entry(node.body, at[:cut], inner), Target(symbol.name, slots, frozenset(moved)))
    definition = symbol.type.definition
    if definition is None or symbol.name in scope.kept_names:
        return found
    return replace_name(found, symbol.name, lambda where: entry(definition, where, scope.outside()))


def _refuse_average(body: t.Node, symbol: t.Symbol) -> None:
    """Refuse to differentiate an expectation by a name whose definition is random."""
    if symbol.type.definition is None:
        return
    chance = any(found.type.law is not None for found in symbols_of(symbol.type.definition).values())
    if chance and any(isinstance(part, t.Expect | t.Covariance) for part in walk(body)):
        raise NotNormal("an expectation is not differentiated by what it averages over")


def differentiate(poly: Poly, target: Target) -> Poly:
    """∂ poly / ∂ target, by the product rule."""
    parts = []
    for monomial, coefficient in poly.items():
        factors, opens = unbind(monomial)
        for place, factor in enumerate(factors):
            if not target.moves(factor.head):
                continue
            inner = _differentiate_factor(factor._replace(exponent=Fraction(1)), target)
            others = factors[:place] + factors[place + 1 :]
            lower = factor._replace(exponent=factor.exponent - 1)
            outer = build(coefficient * factor.exponent, [*others, lower], {})
            value = multiply(outer, inner)
            for index, size in opens.items():
                value = bind(value, index, size)
            parts.append(value)
    return add(*parts)


def _differentiate_factor(factor: Factor, target: Target) -> Poly:
    head = factor.head
    if head.kind in ("name", "random"):
        return multiply(number(1), *(delta(x, y) for x, y in zip(factor.slots, target.slots, strict=True)))
    if head.kind in STEP_FUNCTIONS:
        return {}
    args = arguments(head, factor.slots)
    itself = atom(head, factor.slots)
    match head.kind:
        case "sum":
            return differentiate(args[0], target)
        case "exp":
            return multiply(itself, differentiate(args[0], target))
        case "log":
            return multiply(differentiate(args[0], target), power(args[0], -1))
        case "abs":
            return multiply(sign(args[0]), differentiate(args[0], target))
        case "power":
            base, exponent = args
            by_base = multiply(exponent, power(base, -1), differentiate(base, target))
            by_exponent = differentiate(exponent, target)
            return multiply(itself, add(by_base, multiply(by_exponent, logarithm(base)) if by_exponent else {}))
    raise NotNormal(f"the derivative of {head.kind} has no normal form")
