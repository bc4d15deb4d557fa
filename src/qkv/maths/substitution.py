"""Putting one thing in the place of another in a typed tree, and listing what a tree is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Covariance,
    Delta,
    Derivative,
    Divide,
    Expect,
    Hadamard,
    Index,
    Law,
    Multiply,
    Node,
    Order,
    Outer,
    Part,
    PlusMinus,
    Power,
    Relation,
    Sum,
    Symbol,
    Transpose,
    Type,
    Written,
    children,
)


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


def beneath(node: Node) -> tuple[Node, ...]:
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
        waiting.extend(reversed(beneath(node)))


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
        for child in beneath(node):
            visit(child, bound)

    for node in nodes:
        visit(node, frozenset())
    return found
