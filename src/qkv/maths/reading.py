"""`parse`: from a text and the types of its names to a typed tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qkv.errors import OptionTypeError, Unreadable, complaint
from qkv.maths.cleaning import Clean
from qkv.maths.elaborate import Elaborator
from qkv.maths.lexing import Lexer
from qkv.maths.syntax import arrange
from qkv.maths.tree import Node, Shape, Symbol, Type, children

DEEPEST = 80


def parse(text: str, symbols: Mapping[str, str], *, expected: Shape | None = None) -> Node:
    """What `text` means with these types: a tree whose every part has a shape.

    `expected` is a shape that an ambiguous 0, 1 or I may take. Raises Unreadable or IllTyped, with a caret under the
    offending place, and OptionError where `symbols` make no sense.

    >>> parse("mu^T mu", {"mu": "vector[d]"}).shape, parse("μμᵀ", {"mu": "vector[d]"}).shape
    ((), ('d', 'd'))
    """
    from qkv.maths.types import declare

    if not isinstance(text, str):
        raise OptionTypeError(complaint("text", type(text).__name__, "a text"))
    declared = declare(symbols)
    return read(text, declared.types, declared.maps, expected=expected)


def read(
    text: str,
    types: Mapping[str, Type],
    maps: Collection[str] = (),
    *,
    expected: Shape | None = None,
    naturals: bool = False,
) -> Node:
    """`parse` with types that were read before. `naturals`: names that are not declared are naturals."""
    tokens = Lexer(Clean(text), types, maps).run()
    node = Elaborator(text, types, arrange(tokens, text), naturals=naturals).whole(expected)
    if depth(node) > DEEPEST:
        raise Unreadable("this is nested too deeply, definitions included", text, node.span)
    return node


def depth(node: Node) -> int:
    """How deep a tree is, with definitions put in; counted without recursion."""
    deepest, waiting = 0, [(node, 1)]
    seen: dict[int, int] = {}
    while waiting:
        part, level = waiting.pop()
        if level > DEEPEST or seen.get(id(part), 0) >= level:
            deepest = max(deepest, level)
            continue
        seen[id(part)] = level
        deepest = max(deepest, level)
        waiting.extend((child, level + 1) for child in children(part))
        if isinstance(part, Symbol) and part.type.definition is not None:
            waiting.append((part.type.definition, level + 1))
    return deepest
