"""Derivatives of sums of monomials with respect to one component of a name."""

from __future__ import annotations

from fractions import Fraction

from qkv.maths import tree as t
from qkv.maths.budget import NotNormal
from qkv.maths.functions import logarithm, sign
from qkv.maths.heads import arguments
from qkv.maths.indices import delta, entry, place_of
from qkv.maths.mentions import names, replaced
from qkv.maths.monomials import Factor, Ix, Poly, add, atom, bind, build, multiply, number, unbind
from qkv.maths.powers import power
from qkv.maths.scope import Scope

# Constant almost everywhere.
STEPS = frozenset({"sign", "argmax", "less", "delta", "place"})


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
    # The body is read with the name as it stands; its definition comes in after the derivative.
    inner = scope.holding(symbol.name)
    found = differentiate(entry(node.body, at[:cut], inner), symbol.name, slots)
    definition = symbol.type.definition
    if definition is None or symbol.name in scope.held:
        return found
    return replaced(found, symbol.name, lambda where: entry(definition, where, scope.outside()))


def differentiate(poly: Poly, name: str, slots: tuple[Ix, ...]) -> Poly:
    """∂ poly / ∂ name[slots], by the product rule."""
    parts = []
    for monomial, coefficient in poly.items():
        factors, opens = unbind(monomial)
        for place, factor in enumerate(factors):
            if name not in names(factor.head):
                continue
            inner = _factor(factor._replace(exponent=Fraction(1)), name, slots)
            others = factors[:place] + factors[place + 1 :]
            lower = factor._replace(exponent=factor.exponent - 1)
            outer = build(coefficient * factor.exponent, [*others, lower], {})
            value = multiply(outer, inner)
            for index, size in opens.items():
                value = bind(value, index, size)
            parts.append(value)
    return add(*parts)


def _factor(factor: Factor, name: str, slots: tuple[Ix, ...]) -> Poly:
    head = factor.head
    if head.kind in ("name", "random"):
        return multiply(number(1), *(delta(x, y) for x, y in zip(factor.slots, slots, strict=True)))
    if head.kind in STEPS:
        return {}
    args = arguments(head, factor.slots)
    itself = atom(head, factor.slots)
    match head.kind:
        case "sum":
            return differentiate(args[0], name, slots)
        case "exp":
            return multiply(itself, differentiate(args[0], name, slots))
        case "log":
            return multiply(differentiate(args[0], name, slots), power(args[0], -1))
        case "abs":
            return multiply(sign(args[0]), differentiate(args[0], name, slots))
        case "power":
            base, exponent = args
            by_base = multiply(exponent, power(base, -1), differentiate(base, name, slots))
            by_exponent = differentiate(exponent, name, slots)
            return multiply(itself, add(by_base, multiply(by_exponent, logarithm(base)) if by_exponent else {}))
    raise NotNormal(f"the derivative of {head.kind} has no normal form")
