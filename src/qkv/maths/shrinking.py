"""Vectors of 4096 entries tried at a few: where a large number is only a size, a small one serves as well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from qkv.maths.substitution import rebuilt, walk
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Delta,
    Divide,
    Hadamard,
    Index,
    Law,
    Multiply,
    Node,
    Number,
    Outer,
    Part,
    Power,
    Shape,
    Size,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
    Written,
)

LARGEST = 8
FARTHEST = 16
TAME = frozenset({Fraction(0), Fraction(1), Fraction(2), Fraction(1, 2)})


@dataclass(frozen=True)
class Smaller:
    """Trees with small sizes in place of large ones, and which for which."""

    gold: Node
    answer: Node
    sizes: Mapping[int, int]

    def __str__(self) -> str:
        return " and ".join(f"{small} in place of {large}" for large, small in self.sizes.items())


def smaller(gold: Node, answer: Node, step: int = 0) -> Smaller | None:
    """The trees with every large size made small; None where there is none, or where it is a number in them too.

    Sizes keep their order and stay even or odd, so that what hangs on either stays as it was; with another `step` they
    become other ones.
    """
    found: set[int] = set()
    numbers: set[int] = set()
    subscripts: set[int] = set()
    if not hidden(gold, answer):
        return None
    for node in walk(gold, answer):
        if isinstance(node, Number):
            numbers |= {abs(node.value.numerator), node.value.denominator}
        if isinstance(node, Part):
            subscripts |= {int(index.value) for index in node.indices if isinstance(index, Number)}
        if isinstance(node, Written):
            numbers |= {size for size in node.shape if isinstance(size, int)}
        if isinstance(node, Sum):
            numbers |= {index.size for index in counted(node) if isinstance(index.size, int)}
        for size in sizes_of(node):
            if isinstance(size, int):
                found.add(size)
            else:
                numbers |= {int(digits) for digits in re.findall(r"(?<![\w'])\d+", size)}
    large = sorted(size for size in found if size > LARGEST and size not in numbers)
    # Above every size and subscript that stays, so that nothing that was in range falls out of it.
    least = max([2 + 2 * step, *subscripts, *(size for size in found | numbers if size <= LARGEST)])
    chosen: dict[int, int] = {}
    for size in large:
        least += 1 + (least + 1 - size) % 2
        while least in found | numbers:
            least += 2
        chosen[size] = least
    if not chosen or least > FARTHEST:
        return None
    return Smaller(resized(gold, chosen), resized(answer, chosen), chosen)


def hidden(*trees: Node) -> bool:
    """Whether no number that is written could be one that comes out of a size: 55 may be a sum to 10, 2 is none.

    In polynomials of the entries alone none comes out of one, and any number may stand there.
    """
    if all(polynomial(node) for node in walk(*trees)):
        return True
    subscripts = {id(index) for node in walk(*trees) if isinstance(node, Part) for index in node.indices}
    return all(abs(n.value) in TAME for n in walk(*trees) if isinstance(n, Number) and id(n) not in subscripts)


def polynomial(node: Node) -> bool:
    match node:
        case Call(name=name):
            return name in ("trace", "sum", "norm", "norm_F")
        case Special():
            return node.name == "zeros" or not node.shape
        case Power(exponent=Number(value=value)):
            return value > 0
        case Sum():
            return not node.product and not counted(node)
    return isinstance(
        node, (Number, Symbol, Index, Part, Add, Multiply, Divide, Contract, Outer, Hadamard, Transpose, Delta)
    )


def counted(node: Sum) -> list[Index]:
    """The indices of a sum whose number or value goes into it: those that stand anywhere but as a subscript."""
    inside = list(walk(node.body, *(side for _, a, b in node.conditions for side in (a, b))))
    subscripts = [index for n in inside if isinstance(n, Part) for index in n.indices]
    subscripts += [side for n in inside if isinstance(n, Delta) for side in (n.left, n.right)]
    pointing = {index.name for index in subscripts if isinstance(index, Index)}
    places = {id(index) for index in subscripts}
    bare = {n.name for n in inside if isinstance(n, Index) and id(n) not in places}
    return [index for index in node.indices if index.name in bare or index.name not in pointing]


def sizes_of(node: Node) -> tuple[Size, ...]:
    sizes = node.shape
    if isinstance(node, Index):
        sizes += (node.size,)
    named = node if isinstance(node, Symbol) else node.map if isinstance(node, Call) else None
    if named is not None:
        sizes += (*named.type.shape, *(size for shape in named.type.arguments for size in shape))
    return sizes


def resized(tree: Node, sizes: Mapping[int, int]) -> Node:
    """`tree` with other sizes, in the types of its names too."""
    renewed: dict[str, Type] = {}

    def shape_of(shape: Shape) -> Shape:
        return tuple(sizes.get(size, size) if isinstance(size, int) else size for size in shape)

    def type_of(name: str, type: Type) -> Type:  # noqa: A002
        if name not in renewed:
            law, definition = type.law, type.definition
            renewed[name] = replace(
                type,
                shape=shape_of(type.shape),
                arguments=tuple(map(shape_of, type.arguments)),
                law=None if law is None else Law(change(law.mean), change(law.covariance), law.normal),
                definition=None if definition is None else change(definition),
            )
        return renewed[name]

    def change(node: Node) -> Node:
        changed = replace(rebuilt(node, change), shape=shape_of(node.shape))
        if isinstance(changed, Symbol):
            return replace(changed, type=type_of(changed.name, changed.type))
        if isinstance(changed, Call) and changed.map is not None:
            named = change(changed.map)
            return replace(changed, map=named) if isinstance(named, Symbol) else changed
        if isinstance(changed, Index):
            return replace(changed, size=shape_of((changed.size,))[0])
        if isinstance(changed, Sum):
            kept = tuple(index for index in map(change, changed.indices) if isinstance(index, Index))
            return replace(changed, indices=kept)
        return changed

    return change(tree)
