"""The typed tree that a text is parsed into, and how to walk it and substitute in it.

A shape is () for a scalar, (d,) for a vector (a column), (n, d) for a matrix; a row vector is (1, d). A size is a
whole number or a text in canonical form ("d", "n+1"). Every node keeps the span of the source that it was read from;
spans do not take part in comparison.
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
    """The law of a random name: mean, covariance (variance, for a scalar), and whether it is normal."""

    mean: Node
    covariance: Node
    normal: bool


@dataclass(frozen=True)
class Type:
    """The declared type of a name.

    kind: "scalar", "positive", "nonnegative", "natural", "vector", "matrix", "index" (from 1 to `shape`'s one size,
    itself a scalar) or "map" (`arguments` are the shapes of its arguments, `shape` that of its result).
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
    """An exact number. `unit` is one unit in the last digit of a decimal; `rounded`: it was written after ≈."""

    value: Fraction
    unit: Fraction | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Constant(Node):
    """pi, e or infinity."""

    name: str


@dataclass(frozen=True)
class Symbol(Node):
    """A declared name; `type.definition` is its definition, if it has one."""

    name: str
    type: Type


@dataclass(frozen=True)
class Index(Node):
    """An index, as a value or a subscript, from 1 to `size`: bound by a Sum over this name, or free."""

    name: str
    size: Size


@dataclass(frozen=True)
class Special(Node):
    """ "ones" and "zeros" of any shape, "identity" of a square one."""

    name: str


@dataclass(frozen=True)
class Written(Node):
    """A vector (shape (n,)) or a matrix (shape (n, m)) given by its entries, which are scalars, row by row.

    `brackets` is "(" or "[" if the entries were written in these, which may have meant an interval or a shape.
    """

    entries: tuple[Node, ...]
    brackets: str = field(default="", compare=False)


@dataclass(frozen=True)
class Add(Node):
    terms: tuple[Node, ...]


@dataclass(frozen=True)
class Multiply(Node):
    """A product of scalars and at most one vector or matrix, in source order."""

    factors: tuple[Node, ...]


@dataclass(frozen=True)
class Divide(Node):
    """A node divided by a scalar, entry by entry."""

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
    """A scalar to the power of a scalar, or a square matrix to a whole power (-1 is the inverse)."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Transpose(Node):
    """The transpose of a matrix; of a vector (d,) it is the row (1, d), of a row (1, d) the vector (d,)."""

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
    """A call of a known function by name, or of a declared map (then `map` is its Symbol).

    exp log relu abs sign sqrt (entry by entry), softmax (of a vector, of each row of a matrix), max min (of a vector:
    its largest entry; of several scalars: the largest of them), argmax (of a vector: the first position, from 1), norm
    (2-norm of a vector), norm1, norm_inf, norm_F (of a matrix), trace, diag (both ways), sum (of all entries), det,
    floor, ceil, factorial, sin, cos, tan (of scalars).
    """

    name: str
    arguments: tuple[Node, ...]
    map: Symbol | None = None


@dataclass(frozen=True)
class Sum(Node):
    """Σ of `body` over `indices`, or Π if `product`; `conditions` such as ("<", i, j) and ("!=", i, j) restrict it."""

    indices: tuple[Index, ...]
    body: Node
    conditions: tuple[tuple[str, Node, Node], ...] = ()
    product: bool = False


@dataclass(frozen=True)
class Delta(Node):
    """1 if two indices are equal, else 0."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Expect(Node):
    """E[body]."""

    body: Node


@dataclass(frozen=True)
class Covariance(Node):
    """Cov(left, right) of two scalars, or the matrix of two vectors; Var(x) is Cov(x, x)."""

    left: Node
    right: Node


@dataclass(frozen=True)
class Derivative(Node):
    """∂ body / ∂ target; target is a Symbol or a Part of one. Its shape is that of body followed by that of target."""

    body: Node
    target: Node


@dataclass(frozen=True)
class PlusMinus(Node):
    """body and −body, two values."""

    body: Node


@dataclass(frozen=True)
class Order(Node):
    """An asymptotic class: kind is "O", "Theta" or "Omega"."""

    kind: str
    body: Node


@dataclass(frozen=True)
class Relation(Node):
    """A chain: members with a sign ("=", "≈", "<=", "<", ">=", ">", "!=", "in") between each two."""

    members: tuple[Node, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Interval(Node):
    """An interval of numbers; `closed` says of each end whether it belongs to the interval."""

    low: Node
    high: Node
    closed: tuple[bool, bool]


@dataclass(frozen=True)
class Collection(Node):
    """Several statements or values without an order: a set {1, 2}, a system of equations, named answers."""

    parts: tuple[Node, ...]


def children(node: Node) -> tuple[Node, ...]:
    """The child nodes, in source order.

    >>> x = Symbol((), "x", Type("scalar"))
    >>> [child.name for child in children(Add((), (x, x)))]
    ['x', 'x']
    """
    match node:
        case Written(entries=many) | Add(terms=many) | Multiply(factors=many) | Call(arguments=many):
            return many
        case Relation(members=many) | Collection(parts=many):
            return many
        case Interval(low=a, high=b):
            return (a, b)
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
    """The node with `change` applied to each child; the indices that a sum binds are kept."""
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
        case Collection():
            return replace(node, parts=tuple(map(change, node.parts)))
        case Interval():
            return replace(node, low=change(node.low), high=change(node.high))
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
    """The children of a node; for a name, its definition or its law."""
    if isinstance(node, Symbol):
        parts = () if node.type.definition is None else (node.type.definition,)
        return parts if node.type.law is None else (*parts, node.type.law.mean, node.type.law.covariance)
    if isinstance(node, Call) and node.map is not None:
        return (node.map, *node.arguments)
    return children(node)


def walk(*nodes: Node) -> Iterator[Node]:
    """Every node of the trees, in source order; the definition and the law of each name are visited once."""
    seen: set[str] = set()
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, Symbol):
            if node.name in seen:
                continue
            seen.add(node.name)
        pending.extend(reversed(parts_of(node)))


def symbols_of(*nodes: Node) -> dict[str, Symbol]:
    """The names in the trees, in source order, including those in definitions and laws.

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
    """The names of the symbols in the trees, including those in definitions and laws."""
    return set(symbols_of(*nodes))


def substitute(node: Node, replacements: Mapping[str, Node]) -> Node:
    """`node` with symbols replaced by name, in definitions and laws too. The caller must keep shapes equal.

    >>> x, y = (Symbol((), name, Type("scalar")) for name in "xy")
    >>> substitute(Add((), (x, y)), {"x": y}) == Add((), (y, y))
    True
    """
    replaced: dict[str, Node] = {}

    def change(node: Node) -> Node:
        if isinstance(node, Symbol):
            if node.name not in replaced:
                replaced[node.name] = replacements.get(node.name) or replace(node, type=within(node.type))
            return replaced[node.name]
        if isinstance(node, Call) and node.map is not None:
            return rebuilt(node, change)
        if isinstance(node, Derivative):
            target = change(node.target)
            if not isinstance(target.body if isinstance(target, Part) else target, Symbol):
                raise ValueError("a name with respect to which a derivative is taken cannot be replaced")
        return rebuilt(node, change)

    def within(type: Type) -> Type:  # noqa: A002
        law = type.law
        if law is not None:
            law = Law(change(law.mean), change(law.covariance), law.normal)
        definition = None if type.definition is None else change(type.definition)
        return replace(type, law=law, definition=definition)

    return change(node)


def free_indices(*nodes: Node) -> dict[str, Index]:
    """The indices that no sum binds, by name, in source order."""
    found: dict[str, Index] = {}
    seen: set[str] = set()

    def visit(node: Node, bound: frozenset[str]) -> None:
        if isinstance(node, Symbol):
            if node.name in seen:
                return
            seen.add(node.name)
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


def parts(node: Node) -> list[Node]:
    """The children that a place in a tree counts."""
    found: list[Node] = []
    rebuilt(node, lambda child: found.append(child) or child)
    return found


@dataclass(frozen=True)
class Step:
    """One step of a proof: `rule` rewrites the node at `place` (the positions of children from the root) of `side`.

    The child of a name is its definition. "multiply from the left" and "multiply from the right" multiply both sides by
    the matrix whose inverse stands at the place.
    """

    side: str
    rule: str
    place: tuple[int, ...]


@dataclass(frozen=True)
class Certificate:
    """The steps of a proof that `gold` and `answer` are equal and defined in the same places.

    `symmetric` are the matrices that are symmetric by their declaration as covariances.
    """

    gold: Node
    answer: Node
    steps: tuple[Step, ...]
    symmetric: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Certificate({len(self.steps)} steps)"
