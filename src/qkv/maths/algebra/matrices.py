"""Inverses, powers and determinants of matrices, and the largest entry of a vector."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

from qkv.maths import tree as t
from qkv.maths.algebra.functions import largest, power, split_content, symbolic_power
from qkv.maths.algebra.heads import arguments, closed, sign_of, single_monomial
from qkv.maths.algebra.indices import Scope, delta, entries_at_own_axes, entry, places_of, size_poly
from qkv.maths.algebra.monomials import (
    Ix,
    NotNormal,
    NoValue,
    Poly,
    TooLarge,
    add,
    atom,
    constant,
    fresh,
    multiply,
    number,
    rename,
    scale,
    subtract,
)

SMALL = 4
LARGEST_POWER = 12
MINUS_ONE = t.Number((), Fraction(-1))


def without_definition(node: t.Node, scope: Scope) -> t.Node:
    """The definition of a name, if it has one; else the node itself."""
    while isinstance(node, t.Symbol) and node.type.definition is not None and node.name not in scope.kept_names:
        node = node.type.definition
    return node


def inverted(node: t.Node) -> t.Node | None:
    """The matrix that `node` is the inverse of, or None."""
    if isinstance(node, t.Transpose):
        inner = inverted(node.body)
        return None if inner is None else t.Transpose(inner.shape, inner)
    if isinstance(node, t.Power) and len(node.shape) == 2 and node.exponent == MINUS_ONE:
        return node.base
    return None


def cancelled(node: t.Contract, scope: Scope) -> t.Node | None:
    """The product without an adjacent pair A and A⁻¹; None if there is none."""
    chain = _product_chain(node, scope)
    if not any(inverted(item) is not None for item in chain):
        return None
    for place in range(len(chain) - 1):
        left, right = chain[place], chain[place + 1]
        for one, other in ((inverted(left), right), (inverted(right), left)):
            if one is not None and one.shape == other.shape and _is_same_matrix(one, other, scope):
                return _product([*chain[:place], *chain[place + 2 :]], node.shape)
    return None


def _product_chain(node: t.Node, scope: Scope) -> list[t.Node]:
    known = without_definition(node, scope)
    if isinstance(known, t.Contract) and (len(known.shape) == 2 or known is node or len(known.shape) == 1):
        return [*_product_chain(known.left, scope), *_product_chain(known.right, scope)]
    return [node]


def _is_same_matrix(a: t.Node, b: t.Node, scope: Scope) -> bool:
    """Whether a, which is inverted, equals b."""
    at = (fresh(), fresh())
    found = entry(a, at, scope)
    if not found:
        raise NoValue("the inverse of zero has no value")
    return not subtract(found, entry(b, at, scope))


def _product(chain: list[t.Node], shape: t.Shape) -> t.Node:
    if not chain:
        return t.Special(shape, "identity")
    result = chain[0]
    for item in chain[1:]:
        joined = result.shape[:-1] + item.shape[1:]
        result = t.Contract(() if len(item.shape) == 1 and joined == (1,) else joined, result, item)
    if result.shape == shape:
        return result
    # After cancelling, only the shapes (1,) and () can differ.
    return t.Contract(shape, chain[0], _product(chain[1:], chain[-1].shape))


def matrix_power(base: t.Node, exponent: Fraction | None, at: tuple[Ix, ...], scope: Scope) -> Poly:
    """Entry `at` of a square matrix to a whole power."""
    if exponent is None or exponent.denominator != 1:
        raise NotNormal("a matrix has a normal form only to a whole power")
    if abs(exponent) > LARGEST_POWER:
        raise TooLarge(f"a matrix to the power {exponent} is too large to multiply out")
    if exponent == 0:
        return delta(*at)
    if exponent < 0:
        one: t.Node = t.Power(base.shape, base, MINUS_ONE)
        if exponent == -1:
            return inverse(base, at, scope)
        base = one
    product = base
    for _ in range(int(abs(exponent)) - 1):
        product = t.Contract(base.shape, base, product)
    return entry(product, at, scope)


def inverse(node: t.Node, at: tuple[Ix, ...], scope: Scope) -> Poly:
    """Entry `at` of the inverse."""
    node = without_definition(node, scope)
    match node:
        case t.Special(name="identity"):
            return delta(*at)
        case t.Transpose(body=body) if len(body.shape) == 2:
            return inverse(body, at[::-1], scope)
        case t.Multiply(factors=factors):
            scalars = [entry(factor, (), scope) for factor in factors if not factor.shape]
            (matrix,) = [factor for factor in factors if factor.shape]
            return multiply(power(multiply(*scalars), -1), inverse(matrix, at, scope))
        case t.Divide(top=top, bottom=bottom):
            return multiply(entry(bottom, (), scope), inverse(top, at, scope))
        case t.Contract(left=left, right=right) if left.shape == right.shape:
            first, second = (t.Power(x.shape, x, MINUS_ONE) for x in (right, left))
            return entry(t.Contract(node.shape, first, second), at, scope)
        case t.Power(base=base, exponent=t.Number(value=value)) if value < 0:
            return matrix_power(base, -value, at, scope)
        case t.Call(name="diag", arguments=(vector,)):
            return multiply(delta(*at), power(entry(vector, at[:1], scope), -1))
    size = node.shape[0]
    if isinstance(size, int) and size <= SMALL and all(ix[0] == "c" for ix in at):
        return _by_cofactors(node, size, at, scope)
    body = entries_at_own_axes(node, (("r", 0), ("r", 1)), scope)
    if not body:
        raise NoValue("the inverse of zero has no value")
    turned = rename(body, {("r", 0): ("r", 1), ("r", 1): ("r", 0)})
    extent = size_poly(size, scope)
    one, _ = closed("inverse", [body, extent], out=at)
    two, _ = closed("inverse", [turned, extent], out=at[::-1])
    found = min(one, two, key=lambda factor: factor.head)
    if one.head == two.head and not one.head.symmetry:
        # A symmetric matrix has a symmetric inverse.
        rest = tuple(range(2, len(one.slots)))
        if one.slots[2:] == two.slots[2:]:
            return atom(one.head._replace(symmetry=((0, 1, *rest), (1, 0, *rest))), one.slots)
    return atom(found.head, found.slots)


def _by_cofactors(node: t.Node, size: int, at: tuple[Ix, ...], scope: Scope) -> Poly:
    row, column = at[0][1], at[1][1]
    rows = [k for k in range(1, size + 1) if k != column]
    columns = [k for k in range(1, size + 1) if k != row]
    minor = _leibniz(rows, columns, lambda a, b: entry(node, (("c", a), ("c", b)), scope))
    return multiply(number((-1) ** (row + column)), minor, power(determinant(node, scope), -1))


def _leibniz(rows: list[int], columns: list[int], at: Callable[[int, int], Poly]) -> Poly:
    parts = []
    for order in permutations(range(len(rows))):
        swaps = sum(order[a] > order[b] for a in range(len(order)) for b in range(a + 1, len(order)))
        product = multiply(number(1), *(at(row, columns[k]) for row, k in zip(rows, order, strict=True)))
        parts.append(scale(product, (-1) ** swaps))
    return add(*parts)


def determinant(node: t.Node, scope: Scope) -> Poly:
    node = without_definition(node, scope)
    size = node.shape[0]
    if isinstance(size, int) and size <= SMALL:
        every = list(range(1, size + 1))
        return _leibniz(every, every, lambda a, b: entry(node, (("c", a), ("c", b)), scope))
    match node:
        case t.Special(name="identity"):
            return number(1)
        case t.Transpose(body=body) if len(body.shape) == 2:
            return determinant(body, scope)
        case t.Multiply(factors=factors):
            scalars = [entry(factor, (), scope) for factor in factors if not factor.shape]
            (matrix,) = [factor for factor in factors if factor.shape]
            return multiply(symbolic_power(multiply(*scalars), size_poly(size, scope)), determinant(matrix, scope))
        case t.Divide(top=top, bottom=bottom):
            below = symbolic_power(entry(bottom, (), scope), scale(size_poly(size, scope), -1))
            return multiply(below, determinant(top, scope))
        case t.Contract(left=left, right=right) if left.shape == right.shape:
            return multiply(determinant(left, scope), determinant(right, scope))
        case t.Power(base=base, exponent=t.Number(value=value)):
            return power(determinant(base, scope), value)
    body = entries_at_own_axes(node, (("r", 0), ("r", 1)), scope)
    if not body:
        return {}
    turned = rename(body, {("r", 0): ("r", 1), ("r", 1): ("r", 0)})
    found = min(
        (closed("det", [one, size_poly(size, scope)])[0] for one in (body, turned)), key=lambda factor: factor.head
    )
    return atom(found.head, found.slots)


def extreme(node: t.Call, scope: Scope) -> Poly:
    """max or min, of the entries of a vector or of several scalars."""
    sign = 1 if node.name == "max" else -1
    if len(node.arguments) == 1 and node.arguments[0].shape:
        return scale(largest_entry(node.arguments[0], scope, lambda x: scale(x, sign)), sign)
    found = [scale(entry(arg, (), scope), sign) for arg in _flat_arguments(node, scope)]
    return scale(largest(found), sign)


def _flat_arguments(node: t.Call, scope: Scope) -> list[t.Node]:
    parts = []
    for arg in node.arguments:
        known = without_definition(arg, scope)
        if isinstance(known, t.Call) and known.name == node.name and not any(a.shape for a in known.arguments):
            parts += _flat_arguments(known, scope)
        else:
            parts.append(arg)
    return parts


def largest_entry(node: t.Node, scope: Scope, of: Callable[[Poly], Poly]) -> Poly:
    """The largest value of a function of the entries."""
    if all(places_of(size) is not None for size in node.shape):
        positions: list[tuple[Ix, ...]] = [()]
        for size in node.shape:
            positions = [(*at, ("c", k)) for at in positions for k in places_of(size) or ()]
        return largest([of(entry(node, at, scope)) for at in positions])
    opens = tuple(fresh() for _ in node.shape)
    body = of(entry(node, opens, scope))
    inside = frozenset(opens)
    moving, constant_part = _split_by_indices(body, inside)
    if not moving:
        return constant_part
    content, rest = split_content(moving, whole=False, inside=inside)
    own = {ix: ("r", axis) for axis, ix in enumerate(opens)}
    sizes = [size_poly(size, scope) for size in node.shape]
    factor, _ = closed("largest", [rename(rest, own), *sizes], sign=sign_of(rest))
    return add(constant_part, multiply(content, atom(factor.head, factor.slots)))


def argmax(node: t.Node, scope: Scope) -> Poly:
    """The first position of the largest entry, up to increasing functions of all entries."""
    written = places_of(node.shape[0])
    if written is not None:
        values = [constant(entry(node, (("c", k),), scope)) for k in written]
        if None not in values:
            known = [value for value in values if value is not None]
            return number(known.index(max(known)) + 1)
    index = fresh()
    inside = frozenset([index])
    body = entry(node, (index,), scope)
    while True:
        body, _ = _split_by_indices(body, inside)
        if not body:
            return number(1)
        content, rest = split_content(body, whole=False, inside=inside)
        if sign_of(content) == "positive":
            body = rest
        alone = single_monomial(body)
        if alone is None or alone[1] <= 0:
            break
        head, slots, exponent = alone[0].factors[0]
        if len(alone[0].factors) > 1 or head.kind != "exp":
            break
        body = scale(arguments(head, slots)[0], exponent)
    factor, _ = closed("argmax", [rename(body, {index: ("r", 0)}), size_poly(node.shape[0], scope)], sign="positive")
    return atom(factor.head, factor.slots)


def _split_by_indices(body: Poly, inside: frozenset[Ix]) -> tuple[Poly, Poly]:
    """The terms that depend on the indices `inside`, and the others."""
    moving: Poly = {}
    still: Poly = {}
    for monomial, coefficient in body.items():
        uses = any(ix in inside for factor in monomial.factors for ix in factor.slots)
        (moving if uses else still)[monomial] = coefficient
    return moving, still
