"""The typed tree: what a text means once every part of it has a shape.

A shape is () for a scalar, (d,) for a vector (a column), (n, d) for a matrix; a row vector is (1, d). A size is a
whole number or a text in canonical form ("d", "n+1"). Every node knows the part of the source that it was read from,
which is no part of what it means: nodes that are equal up to their spans compare equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeAlias

Size: TypeAlias = int | str
Shape: TypeAlias = tuple[Size, ...]
Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Law:
    """What is known of a random name: its mean and covariance (variance, for a scalar), and whether it is normal."""

    mean: Node
    covariance: Node
    normal: bool


@dataclass(frozen=True)
class Type:
    """What `symbols` says of a name.

    kind: "scalar", "positive", "nonnegative", "natural", "vector", "matrix", "index" (from 1 to `shape`'s one size,
    itself a scalar) or "map" (`arguments` are the shapes that it takes, `shape` the one that it gives).
    """

    kind: str
    shape: Shape = ()
    law: Law | None = None
    definition: Node | None = None
    arguments: tuple[Shape, ...] = ()

    @property
    def random(self) -> bool:
        return self.law is not None


@dataclass(frozen=True)
class Node:
    shape: Shape
    span: Span = field(default=(0, 0), compare=False, kw_only=True)


@dataclass(frozen=True)
class Number(Node):
    """An exact number. `unit` is one unit of the last digit of a decimal; `rounded` says that ≈ stood before it."""

    value: Fraction
    unit: Fraction | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Constant(Node):
    """pi, e or infinity."""

    name: str


@dataclass(frozen=True)
class Symbol(Node):
    """A declared name; `type.definition`, where there is one, is what it stands for."""

    name: str
    type: Type


@dataclass(frozen=True)
class Index(Node):
    """An index as a value or a subscript: bound by a Sum or Product of the same name, or free. From 1 to `size`."""

    name: str
    size: Size


@dataclass(frozen=True)
class Special(Node):
    """ "ones" and "zeros" of any shape, "identity" of a square one."""

    name: str


@dataclass(frozen=True)
class Written(Node):
    """A vector (shape (n,)) or a matrix (shape (n, m)) written out; entries are scalars, row by row."""

    entries: tuple[Node, ...]


@dataclass(frozen=True)
class Add(Node):
    terms: tuple[Node, ...]


@dataclass(frozen=True)
class Multiply(Node):
    """Scalars times at most one vector or matrix, in the order they were written."""

    factors: tuple[Node, ...]


@dataclass(frozen=True)
class Divide(Node):
    """Anything over a scalar (entry by entry)."""

    top: Node
    bottom: Node


@dataclass(frozen=True)
class Contract(Node):
    """The matrix product of (n, k) and (k, m), of (n, k) and (k,), of (1, k) and (k,): the last is a scalar."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Outer(Node):
    """u vᵀ of two vectors, (n, m)."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Hadamard(Node):
    left: Node
    right: Node


@dataclass(frozen=True)
class Power(Node):
    """A scalar to a scalar; of a square matrix, to a whole number (-1 is its inverse)."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Transpose(Node):
    """Of a matrix its transpose; of a vector (d,) the row (1, d); of (1, d) the vector (d,)."""

    body: Node


@dataclass(frozen=True)
class Part(Node):
    """`body` at `indices`, each a scalar node (Index, Number, Symbol of a natural) or None for the whole axis.

    One index for a vector gives a scalar; for a matrix M_i, (i,), gives the row as a vector; (i, None) gives the row
    as (1, d), (None, j) the column as a vector, (i, j) the entry.
    """

    body: Node
    indices: tuple[Node | None, ...]


@dataclass(frozen=True)
class Call(Node):
    """A function that is known, by name, or a declared map (`map` is then its Symbol).

    exp log relu abs sign sqrt (entry by entry), softmax (of a vector, of each row of a matrix), max min (of a vector:
    its largest entry; of several scalars: the largest of them), argmax (of a vector: the first place, from 1), norm
    (2-norm of a vector), norm1, norm_inf, norm_F (of a matrix), trace, diag (both ways), sum (of all entries), det.
    """

    name: str
    arguments: tuple[Node, ...]
    map: Symbol | None = None


@dataclass(frozen=True)
class Sum(Node):
    """Σ over `indices` of `body`, or Π where `product`. `conditions` say what is kept: ("<", i, j), ("!=", i, j)."""

    indices: tuple[Index, ...]
    body: Node
    conditions: tuple[tuple[str, Node, Node], ...] = ()
    product: bool = False


@dataclass(frozen=True)
class Delta(Node):
    """1 where two indices are the same, 0 elsewhere."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Expect(Node):
    """E[body]; Var is Covariance of a thing with itself."""

    body: Node


@dataclass(frozen=True)
class Covariance(Node):
    """Cov(left, right) of two scalars, or the matrix of two vectors; Var(x) is Cov(x, x)."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Derivative(Node):
    """∂ body / ∂ target; target is a Symbol or a Part of one. The shape is body's followed by target's."""

    body: Node
    target: Node


@dataclass(frozen=True)
class PlusMinus(Node):
    """body and −body, two values."""

    body: Node


@dataclass(frozen=True)
class Order(Node):
    """A class of growth: kind is "O", "Theta" or "Omega"."""

    kind: str
    body: Node


@dataclass(frozen=True)
class Relation(Node):
    """A chain: members joined by signs ("=", "≈", "<=", "<", ">=", ">", "!="), one fewer than the members."""

    members: tuple[Node, ...]
    signs: tuple[str, ...]


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in reading order.

    >>> x = Symbol((), "x", Type("scalar"))
    >>> [child.name for child in children(Add((), (x, x)))]
    ['x', 'x']
    """
    match node:
        case Written(entries=many) | Add(terms=many) | Multiply(factors=many) | Call(arguments=many):
            return many
        case Relation(members=many):
            return many
        case Divide(top=a, bottom=b) | Power(base=a, exponent=b) | Derivative(body=a, target=b):
            return (a, b)
        case Contract() | Outer() | Hadamard() | Delta() | Covariance():
            return (node.left, node.right)
        case Transpose() | Expect() | PlusMinus() | Order():
            return (node.body,)
        case Part(body=body, indices=indices):
            return (body, *(index for index in indices if index is not None))
        case Sum(indices=indices, body=body, conditions=conditions):
            return (*indices, body, *(side for _, a, b in conditions for side in (a, b)))
    return ()


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node with `change` done to each node directly below it; the index names that a sum binds stay."""
    match node:
        case Written():
            return replace(node, entries=tuple(map(change, node.entries)))
        case Add():
            return replace(node, terms=tuple(map(change, node.terms)))
        case Multiply():
            return replace(node, factors=tuple(map(change, node.factors)))
        case Call():
            return replace(node, arguments=tuple(map(change, node.arguments)))
        case Relation():
            return replace(node, members=tuple(map(change, node.members)))
        case Divide():
            return replace(node, top=change(node.top), bottom=change(node.bottom))
        case Power():
            return replace(node, base=change(node.base), exponent=change(node.exponent))
        case Contract() | Outer() | Hadamard() | Delta() | Covariance():
            return replace(node, left=change(node.left), right=change(node.right))
        case Transpose() | Expect() | PlusMinus() | Order():
            return replace(node, body=change(node.body))
        case Part():
            kept = tuple(None if index is None else change(index) for index in node.indices)
            return replace(node, body=change(node.body), indices=kept)
        case Derivative():
            return replace(node, body=change(node.body), target=change(node.target))
        case Sum():
            pairs = tuple((sign, change(a), change(b)) for sign, a, b in node.conditions)
            return replace(node, body=change(node.body), conditions=pairs)
    return node


def parts_of(node: Node) -> tuple[Node, ...]:
    """What `node` is made of: its children, and for a name its definition or its law."""
    if isinstance(node, Symbol):
        parts = () if node.type.definition is None else (node.type.definition,)
        return parts if node.type.law is None else (*parts, node.type.law.mean, node.type.law.covariance)
    if isinstance(node, Call) and node.map is not None:
        return (node.map, *node.arguments)
    return children(node)


def walk(*nodes: Node) -> Iterator[Node]:
    """Every node of the trees, in reading order, through definitions and laws; a name's own are walked once."""
    seen: set[str] = set()
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Symbol):
            if node.name in seen:
                continue
            seen.add(node.name)
        waiting.extend(reversed(parts_of(node)))


def symbols_of(*nodes: Node) -> dict[str, Symbol]:
    """The names that the trees use, in reading order, those in definitions and laws included.

    >>> x = Symbol((), "x", Type("scalar"))
    >>> y = Symbol((), "y", Type("scalar", definition=x))
    >>> list(symbols_of(Add((), (y, y))))
    ['y', 'x']
    """
    found: dict[str, Symbol] = {}
    for node in walk(*nodes):
        if isinstance(node, Symbol):
            found.setdefault(node.name, node)
    return found


def names(*nodes: Node) -> set[str]:
    """The names of symbols in the trees, definitions and laws included."""
    return set(symbols_of(*nodes))


def substitute(node: Node, replacements: Mapping[str, Node]) -> Node:
    """`node` with symbols replaced by name, in definitions and laws too. Shapes are the caller's to keep.

    >>> x, y = (Symbol((), name, Type("scalar")) for name in "xy")
    >>> substitute(Add((), (x, y)), {"x": y}) == Add((), (y, y))
    True
    """
    renewed: dict[str, Node] = {}

    def change(node: Node) -> Node:
        if isinstance(node, Symbol):
            if node.name not in renewed:
                renewed[node.name] = replacements.get(node.name) or replace(node, type=within(node.type))
            return renewed[node.name]
        if isinstance(node, Call) and node.map is not None:
            return rebuilt(node, change)
        if isinstance(node, Derivative):
            target = change(node.target)
            if not isinstance(target.body if isinstance(target, Part) else target, Symbol):
                raise ValueError("a name that is differentiated by cannot be replaced")
        return rebuilt(node, change)

    def within(type: Type) -> Type:  # noqa: A002
        law = type.law
        if law is not None:
            law = Law(change(law.mean), change(law.covariance), law.normal)
        definition = None if type.definition is None else change(type.definition)
        return replace(type, law=law, definition=definition)

    return change(node)


def free_indices(*nodes: Node) -> dict[str, Index]:
    """The indices that no sum binds, by name, in reading order."""
    found: dict[str, Index] = {}

    def visit(node: Node, bound: frozenset[str]) -> None:
        if isinstance(node, Index):
            if node.name not in bound:
                found.setdefault(node.name, node)
            return
        if isinstance(node, Sum):
            bound = bound | {index.name for index in node.indices}
        for child in parts_of(node):
            visit(child, bound)

    for node in nodes:
        visit(node, frozenset())
    return found
