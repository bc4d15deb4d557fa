"""From the typed tree to index notation: entry (i, j) of a node as a sum of monomials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from qkv.maths import tree as t
from qkv.maths.algebra.functions import HALF, absolute, exponential, logarithm, power, sign, symbolic_power
from qkv.maths.algebra.heads import arguments, closed, sign_of, single_monomial
from qkv.maths.algebra.monomials import (
    DELTA,
    LESS,
    PLACE,
    Factor,
    Frozen,
    Head,
    Ix,
    NotNormal,
    Poly,
    TooLarge,
    add,
    atom,
    bind,
    build,
    constant,
    freeze,
    fresh,
    indices_of,
    multiply,
    number,
    rename,
    scale,
    spend,
    subtract,
)
from qkv.maths.algebra.symmetry import symmetric
from qkv.maths.sizes import names_in, size_polynomial
from qkv.maths.values.arithmetic import Unevaluable


@dataclass
class Scope:
    """What is known of the names of a tree, and the indices bound around the current node."""

    definitions: dict[str, t.Node] = field(default_factory=dict)
    naturals: set[str] = field(default_factory=set)
    symmetric: set[str] = field(default_factory=set)
    laws: dict[str, t.Law] = field(default_factory=dict)
    bound: Mapping[str, Ix] = field(default_factory=dict)
    kept_names: frozenset[str] = frozenset()

    def within(self, bound: Mapping[str, Ix]) -> Scope:
        return replace(self, bound={**self.bound, **bound})

    def outside(self) -> Scope:
        """The scope of a definition or a law, in which no index of its use is visible."""
        return replace(self, bound={})

    def keeping(self, name: str) -> Scope:
        """A scope in which `name` is not replaced by its definition."""
        return replace(self, kept_names=self.kept_names | {name})


def scope_of(*nodes: t.Node) -> Scope:
    """The definitions, laws, names of sizes and symmetric names of the trees."""
    scope = Scope()
    pending, seen = list(nodes), set()
    random: list[t.Type] = []
    while pending:
        node = pending.pop()
        for size in (*node.shape, *([node.size] if isinstance(node, t.Index) else [])):
            scope.naturals.update(names_in(size))
        if isinstance(node, t.Symbol) and node.name not in seen:
            seen.add(node.name)
            if node.type.definition is not None:
                scope.definitions[node.name] = node.type.definition
                pending.append(node.type.definition)
            if node.type.law is not None:
                scope.laws[node.name] = node.type.law
                random.append(node.type)
                pending += [node.type.law.mean, node.type.law.covariance]
        if isinstance(node, t.Call) and node.map is not None:
            pending.append(node.map)
        pending += t.children(node)
    scope.symmetric.update(symmetric(random).known)
    return scope


def size_poly(size: t.Size, scope: Scope) -> Poly:
    """A size as a polynomial in naturals.

    >>> size_poly("n+1", Scope()) == add(size_poly("n", Scope()), number(1))
    True
    """
    try:
        terms = size_polynomial(size).items()
    except Unevaluable as problem:
        raise NotNormal(str(problem)) from None
    total = number(0)
    for key, value in terms:
        factors = [power(_size_name(name, scope), exponent) for name, exponent in key]
        total = add(total, multiply(number(value), *factors))
    return total


def _size_name(name: str, scope: Scope) -> Poly:
    if name in scope.definitions:
        return entry(scope.definitions[name], (), scope.outside())
    return atom(Head("name", name, (), "natural"))


# Axes of up to this many positions are expanded; longer ones keep an index.
WRITTEN_OUT = 12
KINDS = {"natural": "natural", "positive": "positive", "index": "natural", "nonnegative": "nonnegative"}


def places_of(size: t.Size) -> range | None:
    """The positions of an axis that is expanded; None for a longer one."""
    return range(1, size + 1) if isinstance(size, int) and size <= WRITTEN_OUT else None


def sum_over_axis(size: t.Size, scope: Scope, body: Callable[[Ix], Poly]) -> Poly:
    """Σ of `body` over the positions of an axis."""
    written = places_of(size)
    if written is not None:
        return add(*(body(("c", k)) for k in written))
    index = fresh()
    return bind(body(index), index, freeze(size_poly(size, scope)))


def delta(x: Ix, y: Ix) -> Poly:
    return build(Fraction(1), [Factor(DELTA, (x, y))], {})


def less_than(x: Ix, y: Ix) -> Poly:
    return atom(LESS, (x, y))


def place_of(node: t.Node, scope: Scope) -> Ix:
    """The index of a subscript."""
    if isinstance(node, t.Index):
        return scope.bound.get(node.name, ("f", node.name))
    poly = entry(node, (), scope)
    value = constant(poly)
    if value is not None and value.denominator == 1:
        return ("c", int(value))
    alone = single_monomial(poly)
    if alone is not None and alone[1] == 1 and len(alone[0].factors) == 1 and alone[0].factors[0].head == PLACE:
        return alone[0].factors[0].slots[0]
    if any(ix[0] == "o" for ix in indices_of(poly)):
        raise NotNormal("a subscript that is computed from a bound index has no normal form")
    return ("v", repr(freeze(poly)))


def entry(node: t.Node, at: tuple[Ix, ...], scope: Scope) -> Poly:
    """The entry of `node` at the indices `at`, one for each axis of its shape."""
    spend(1)
    match node:
        case t.Number():
            return number(node.value)
        case t.Constant(name="e"):
            return exponential(number(1))
        case t.Constant(name="pi"):
            return atom(Head("constant", "pi", (), "positive"))
        case t.Symbol():
            return _symbol_entry(node, at, scope)
        case t.Index():
            return atom(PLACE, (scope.bound.get(node.name, ("f", node.name)),))
        case t.Special(name="zeros"):
            return {}
        case t.Special(name="ones"):
            return number(1)
        case t.Special(name="identity"):
            return delta(*at)
        case t.Written():
            return _written_entry(node, at, scope)
        case t.Table(indices=indices, body=body):
            names = (index.name for index in indices)
            return entry(body, (), scope.within(dict(zip(names, at, strict=True))))
        case t.Add(terms=terms):
            return add(*(entry(term, at, scope) for term in terms))
        case t.Multiply(factors=factors):
            return multiply(*(entry(factor, at if factor.shape else (), scope) for factor in factors))
        case t.Divide(top=top, bottom=bottom):
            return multiply(entry(top, at, scope), power(entry(bottom, (), scope), -1))
        case t.Contract():
            return _contract_entry(node, at, scope)
        case t.Outer(left=left, right=right):
            return multiply(entry(left, at[:1], scope), entry(right, at[1:], scope))
        case t.Hadamard(left=left, right=right):
            return multiply(entry(left, at, scope), entry(right, at, scope))
        case t.Power():
            return _power_entry(node, at, scope)
        case t.Transpose(body=body):
            return entry(
                body, at[::-1] if len(body.shape) == 2 and len(at) == 2 else _transposed_indices(body, at), scope
            )
        case t.Part():
            return _part_entry(node, at, scope)
        case t.Call():
            return _call_entry(node, at, scope)
        case t.Sum():
            return _sum_entry(node, at, scope)
        case t.Delta(left=left, right=right):
            return delta(place_of(left, scope), place_of(right, scope))
        case t.Expect(body=body):
            from qkv.maths.algebra.expectation import expectation

            return expectation(entry(body, at, scope), scope)
        case t.Covariance(left=left, right=right):
            from qkv.maths.algebra.expectation import covariance

            cut = len(left.shape)
            return covariance(entry(left, at[:cut], scope), entry(right, at[cut:], scope), scope)
        case t.Derivative():
            from qkv.maths.algebra.derivative import derivative

            return derivative(node, at, scope)
    raise NotNormal(f"{type(node).__name__} has no normal form")


def _transposed_indices(body: t.Node, at: tuple[Ix, ...]) -> tuple[Ix, ...]:
    """The indices of a vector from those of its transpose (1, d), or of a row from those of its transpose (d,)."""
    return at[1:] if len(body.shape) == 1 else (("c", 1), at[0])


def _symbol_entry(node: t.Symbol, at: tuple[Ix, ...], scope: Scope) -> Poly:
    if node.type.definition is not None and node.name not in scope.kept_names:
        return entry(node.type.definition, at, scope.outside())
    if node.type.kind == "index" and not node.shape:
        return atom(PLACE, (("f", node.name),))
    known = "natural" if node.name in scope.naturals and not at else KINDS.get(node.type.kind, "real")
    if node.type.law is not None:
        return atom(Head("random", node.name), at)
    symmetry = ((0, 1), (1, 0)) if node.name in scope.symmetric and len(at) == 2 else ()
    return atom(Head("name", node.name, (), known if not at else "real", symmetry), at)


def _written_entry(node: t.Written, at: tuple[Ix, ...], scope: Scope) -> Poly:
    columns = len(node.entries) if len(at) == 1 else int(node.shape[1])
    parts = []
    for place, item in enumerate(node.entries):
        where = (place + 1,) if len(at) == 1 else (place // columns + 1, place % columns + 1)
        pairs = list(zip(at, where, strict=True))
        if any(ix[0] == "c" and ix[1] != k for ix, k in pairs):
            continue
        match_ = [delta(ix, ("c", k)) for ix, k in pairs if ix[0] != "c"]
        if all(match_):
            parts.append(multiply(entry(item, (), scope), *match_))
    return add(*parts)


def _contract_entry(node: t.Contract, at: tuple[Ix, ...], scope: Scope) -> Poly:
    from qkv.maths.algebra.matrices import cancelled

    shorter = cancelled(node, scope)
    if shorter is not None:
        return entry(shorter, at, scope)
    left, right = node.left, node.right
    rows = len(node.shape) - (len(right.shape) - 1)
    first = at[:rows] if rows else (("c", 1),) * (len(left.shape) - 1)
    return sum_over_axis(
        left.shape[-1],
        scope,
        lambda k: multiply(entry(left, (*first, k), scope), entry(right, (k, *at[rows:]), scope)),
    )


def _power_entry(node: t.Power, at: tuple[Ix, ...], scope: Scope) -> Poly:
    exponent = entry(node.exponent, (), scope)
    value = constant(exponent)
    if node.shape:
        from qkv.maths.algebra.matrices import matrix_power

        return matrix_power(node.base, value, at, scope)
    base = node.base
    if value is not None and isinstance(base, t.Power) and not base.shape:
        inner = constant(entry(base.exponent, (), scope))
        if inner is not None and inner.denominator == 1 and inner % 2 == 0 and value.denominator % 2 == 0:
            return power(absolute(entry(base.base, (), scope)), inner * value)
    return symbolic_power(entry(base, (), scope), exponent)


def _part_entry(node: t.Part, at: tuple[Ix, ...], scope: Scope) -> Poly:
    whole, rest = list(node.body.shape), list(at)
    if len(node.indices) == 2 and node.indices[1] is None and node.indices[0] is not None and len(at) == 2:
        rest = rest[1:]  # the row as (1, d): its first axis has one position
    chosen = []
    for axis in range(len(whole)):
        index = node.indices[axis] if axis < len(node.indices) else None
        chosen.append(rest.pop(0) if index is None else place_of(index, scope))
    return entry(node.body, tuple(chosen), scope)


def _sum_entry(node: t.Sum, at: tuple[Ix, ...], scope: Scope) -> Poly:
    if node.product:
        return product_over(node, scope)
    chosen: list[dict[str, Ix]] = [{}]
    opens: list[tuple[Ix, Frozen]] = []
    for index in node.indices:
        written = places_of(index.size)
        if written is None:
            open_index = fresh()
            opens.append((open_index, freeze(size_poly(index.size, scope))))
            chosen = [{**names, index.name: open_index} for names in chosen]
        else:
            chosen = [{**names, index.name: ("c", k)} for names in chosen for k in written]
            spend(len(chosen))
    parts = []
    for names in chosen:
        inner = scope.within(names)
        kept = number(1)
        for relation, left, right in node.conditions:
            kept = multiply(kept, condition(relation, place_of(left, inner), place_of(right, inner)))
        if kept:
            parts.append(multiply(kept, entry(node.body, at, inner)))
    poly = add(*parts)
    for open_index, size in opens:
        poly = bind(poly, open_index, size)
    return poly


def condition(relation: str, x: Ix, y: Ix) -> Poly:
    """1 if the relation of two indices holds, else 0."""
    match relation:
        case "!=":
            return subtract(number(1), delta(x, y))
        case "=":
            return delta(x, y)
        case "<":
            return less_than(x, y)
        case ">":
            return less_than(y, x)
        case "<=":
            return add(less_than(x, y), delta(x, y))
        case ">=":
            return add(less_than(y, x), delta(x, y))
    raise NotNormal(f"a sum under the condition {relation!r} has no normal form")


def _call_entry(node: t.Call, at: tuple[Ix, ...], scope: Scope) -> Poly:
    from qkv.maths.algebra import matrices

    args = node.arguments
    first = args[0]
    if node.map is not None:
        axes = [tuple(("r", k) for k in range(len(arg.shape))) for arg in args]
        bodies = [entries_at_own_axes(arg, own, scope) for arg, own in zip(args, axes, strict=True)]
        factor, _ = closed("map", bodies, name=f"{node.map.name}/{len(at)}", out=at)
        return atom(factor.head, factor.slots)
    match node.name:
        case "exp":
            return exponential(entry(first, at, scope))
        case "log":
            return logarithm(entry(first, at, scope))
        case "sqrt":
            return (
                _power_entry(t.Power((), first, t.Number((), HALF)), (), scope)
                if not at
                else power(entry(first, at, scope), HALF)
            )
        case "abs":
            return absolute(entry(first, at, scope))
        case "sign":
            return sign(entry(first, at, scope))
        case "relu":
            body = entry(first, at, scope)
            return scale(add(body, absolute(body)), HALF)
        case "softmax":
            below = sum_over_axis(first.shape[-1], scope, lambda k: exponential(entry(first, (*at[:-1], k), scope)))
            return multiply(exponential(entry(first, at, scope)), power(below, -1))
        case "max" | "min":
            return matrices.extreme(node, scope)
        case "argmax":
            return matrices.argmax(first, scope)
        case "norm" | "norm_F":
            return power(over_all(first, scope, lambda x: multiply(x, x)), HALF)
        case "norm1":
            return over_all(first, scope, absolute)
        case "norm_inf":
            return matrices.largest_entry(first, scope, absolute)
        case "trace":
            return sum_over_axis(first.shape[0], scope, lambda k: entry(first, (k, k), scope))
        case "diag" if len(at) == 2:
            return multiply(delta(*at), entry(first, at[:1], scope))
        case "diag":
            return entry(first, at * 2, scope)
        case "sum":
            return over_all(first, scope, lambda x: x)
        case "det":
            return matrices.determinant(first, scope)
    raise NotNormal(f"{node.name} has no normal form")


def over_all(node: t.Node, scope: Scope, of: Callable[[Poly], Poly], at: tuple[Ix, ...] = ()) -> Poly:
    """Σ of a function of each entry of a node."""
    if len(at) == len(node.shape):
        return of(entry(node, at, scope))
    return sum_over_axis(node.shape[len(at)], scope, lambda k: over_all(node, scope, of, (*at, k)))


def entries_at_own_axes(node: t.Node, own: tuple[Ix, ...], scope: Scope) -> Poly:
    """The entries of an argument, at the axes of the head that it is closed in."""
    opens = tuple(fresh() for _ in own)
    return rename(entry(node, opens, scope), dict(zip(opens, own, strict=True)))


def all_places(shape: t.Shape) -> Iterator[tuple[Ix, ...]]:
    """Indices that cover every entry: numbers along expanded axes, a free name along others."""
    found: list[tuple[Ix, ...]] = [()]
    for axis, size in enumerate(shape):
        written = places_of(size)
        options: list[Ix] = [("f", f"#{axis}")] if written is None else [("c", k) for k in written]
        found = [(*at, ix) for at in found for ix in options]
        if len(found) > 400:
            raise TooLarge("too many entries to compare one by one")
    yield from found


def product_over(node: t.Sum, scope: Scope) -> Poly:
    """Π: expanded along short ranges; else a power, an exponential of a sum, or a separate factor."""
    return _product_over_indices(list(node.indices), node, scope)


def _product_over_indices(indices: list[t.Index], node: t.Sum, scope: Scope) -> Poly:
    if not indices:
        return entry(node.body, (), scope) if _conditions_hold(node, scope) else number(1)
    first, rest = indices[0], indices[1:]
    written = places_of(first.size)
    if written is not None:
        return multiply(*(_product_over_indices(rest, node, scope.within({first.name: ("c", k)})) for k in written))
    index = fresh()
    size = size_poly(first.size, scope)
    return _long_product(_product_over_indices(rest, node, scope.within({first.name: index})), index, size)


def _conditions_hold(node: t.Sum, scope: Scope) -> bool:
    for relation, left, right in node.conditions:
        holds = constant(condition(relation, place_of(left, scope), place_of(right, scope)))
        if holds is None:
            raise NotNormal("a product under a condition has a normal form only when it is written out")
        if not holds:
            return False
    return True


def _long_product(body: Poly, index: Ix, size: Poly) -> Poly:
    if index not in indices_of(body):
        return symbolic_power(body, size)
    alone = single_monomial(body)
    if alone is None:
        return _product_head(body, index, size)
    monomial, coefficient = alone
    parts = [symbolic_power(number(coefficient), size)]
    for head, slots, exponent in monomial.factors:
        factor = atom(head, slots)
        if index not in slots:
            parts.append(symbolic_power(atom(head, slots, exponent), size))
        elif head.kind == "exp":
            inside = scale(arguments(head, slots)[0], exponent)
            parts.append(exponential(bind(inside, index, freeze(size))))
        elif exponent.denominator == 1 or head.sign != "real":
            parts.append(power(_product_head(factor, index, size), exponent))
        else:
            parts.append(_product_head(atom(head, slots, exponent), index, size))
    return multiply(*parts)


def _product_head(body: Poly, index: Ix, size: Poly) -> Poly:
    closed_body = rename(body, {index: ("r", 0)})
    factor, _ = closed("product", [closed_body, size], sign=sign_of(body))
    return atom(factor.head, factor.slots, Fraction(1))
