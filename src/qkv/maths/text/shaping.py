"""Shapes while a text is being read: sizes that are not known yet, how two are made to agree, and how one is said."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, cast

from qkv.maths.text.words import GREEK
from qkv.maths.tree import Index, Node, Shape, Size, Special, Symbol, children

DEEPEST = 80  # levels of a tree, definitions included


class Unknown:
    """A size that nothing has said yet."""

    __slots__ = ("link",)

    def __init__(self) -> None:
        self.link: Size | Unknown | None = None


def known(size: Any) -> Any:
    """What a size has turned out to be: a number, a text, or still Unknown."""
    while isinstance(size, Unknown) and size.link is not None:
        size = size.link
    return size


def could_fit(a: Any, b: Any) -> bool:
    a, b = known(a), known(b)
    return a is b or isinstance(a, Unknown) or isinstance(b, Unknown) or a == b


def fit(a: Any, b: Any) -> bool:
    """Makes two sizes one; False where they are different ones."""
    a, b = known(a), known(b)
    if a is b or (not isinstance(a, Unknown) and not isinstance(b, Unknown) and a == b):
        return True
    if isinstance(a, Unknown):
        a.link = b
        return True
    if isinstance(b, Unknown):
        b.link = a
        return True
    return False


def fit_shapes(a: Shape, b: Shape) -> bool:
    if len(a) != len(b) or not all(could_fit(x, y) for x, y in zip(a, b, strict=True)):
        return False
    return all(fit(x, y) for x, y in zip(a, b, strict=True))


def depth(node: Node, most: int = DEEPEST) -> int:
    """How deep a tree is, with definitions put in; counted without recursion, and not on beyond `most`."""
    deepest, waiting = 0, [(node, 1)]
    seen: dict[int, int] = {}
    while waiting:
        part, level = waiting.pop()
        if level > most or seen.get(id(part), 0) >= level:
            deepest = max(deepest, level)
            continue
        seen[id(part)] = level
        deepest = max(deepest, level)
        waiting.extend((child, level + 1) for child in children(part))
        if isinstance(part, Symbol) and part.type.definition is not None:
            waiting.append((part.type.definition, level + 1))
    return deepest


def unknown_size() -> Size:
    return cast(Size, Unknown())


def settle(node: Node, missing: Any) -> Node:
    """The same tree with every size that was found out; calls `missing(node)` where one was not."""
    changed: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == "shape":
            new: Any = tuple(known(size) for size in value)
            if any(isinstance(size, Unknown) for size in new) and isinstance(node, Special):
                missing(node)
        elif field.name == "size" and isinstance(node, Index):
            new = known(value)
            if isinstance(new, Unknown):
                missing(node)
        elif isinstance(value, Node):
            new = settle(value, missing)
        elif isinstance(value, tuple) and field.name not in ("span", "signs"):
            new = tuple(_settled(part, missing) for part in value)
        else:
            continue
        changed[field.name] = new
    return replace(node, **changed)


def _settled(part: Any, missing: Any) -> Any:
    if isinstance(part, Node):
        return settle(part, missing)
    return tuple(_settled(piece, missing) for piece in part) if isinstance(part, tuple) else part


def plain_size(size: Any) -> str:
    size = known(size)
    if isinstance(size, Unknown):
        return "?"
    return re.sub(r"[A-Za-z]+", lambda found: GREEK.get(found[0], found[0]), str(size))


def plain_shape(shape: Shape) -> str:
    """A shape in words.

    >>> plain_shape(()), plain_shape(("d",)), plain_shape(("n", "d")), plain_shape((1, "d"))
    ('a scalar', 'a vector of size d', 'an n×d matrix', 'a row of size d')
    """
    sizes = [plain_size(size) for size in shape]
    if not sizes:
        return "a scalar"
    if len(sizes) == 1:
        return f"a vector of size {sizes[0]}"
    if sizes[0] == "1":
        return f"a row of size {sizes[1]}"
    article = "an" if sizes[0][0] in "8aefhilmnorsxAEFHILMNORSX" and len(sizes[0]) == 1 else "a"
    return f"{article} {'×'.join(sizes)} matrix"
