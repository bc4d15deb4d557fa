"""Shapes during parsing: unknown sizes, unification, and how messages show shapes, names and nodes."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, TypeGuard, cast

from qkv.maths.parsing.words import GREEK
from qkv.maths.printing import ATOM, POWER, Plain
from qkv.maths.tree import Index, Node, Number, Shape, Size, Special, Sum, Symbol, Transpose, Written, children

DEEPEST = 80  # levels of a tree, definitions included
OR = " or "  # between suggestions


class UnknownSize:
    """A size that is not determined yet."""

    __slots__ = ("link",)

    def __init__(self) -> None:
        self.link: Size | UnknownSize | None = None


def resolved_size(size: Any) -> Any:
    """The size that unification found: a number, a text, or still an UnknownSize."""
    while isinstance(size, UnknownSize) and size.link is not None:
        size = size.link
    return size


def can_unify(a: Any, b: Any) -> bool:
    a, b = resolved_size(a), resolved_size(b)
    return a is b or isinstance(a, UnknownSize) or isinstance(b, UnknownSize) or a == b


def unify(a: Any, b: Any) -> bool:
    """Make two sizes equal; False if they are known to differ."""
    a, b = resolved_size(a), resolved_size(b)
    if a is b or (not isinstance(a, UnknownSize) and not isinstance(b, UnknownSize) and a == b):
        return True
    if isinstance(a, UnknownSize):
        a.link = b
        return True
    if isinstance(b, UnknownSize):
        b.link = a
        return True
    return False


def is_sized(node: Node) -> bool:
    """Whether a node has a known shape: all sizes are known, and it is not a 0, which may be of any shape."""
    return not is_zero(node) and not any(isinstance(resolved_size(size), UnknownSize) for size in node.shape)


def unify_shapes(a: Shape, b: Shape) -> bool:
    if len(a) != len(b) or not all(can_unify(x, y) for x, y in zip(a, b, strict=True)):
        return False
    return all(unify(x, y) for x, y in zip(a, b, strict=True))


def depth(node: Node, most: int = DEEPEST) -> int:
    """The depth of a tree, definitions included; computed without recursion, and only up to `most`."""
    deepest, pending = 0, [(node, 1)]
    seen: dict[int, int] = {}
    while pending:
        part, level = pending.pop()
        if level > most or seen.get(id(part), 0) >= level:
            deepest = max(deepest, level)
            continue
        seen[id(part)] = level
        deepest = max(deepest, level)
        pending.extend((child, level + 1) for child in children(part))
        if isinstance(part, Symbol) and part.type.definition is not None:
            pending.append((part.type.definition, level + 1))
    return deepest


def unknown_size() -> Size:
    return cast(Size, UnknownSize())


def resolve_sizes(node: Node, missing: Any) -> Node:
    """The tree with all unified sizes filled in; calls `missing(node)` for each that is still unknown."""
    changed: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == "shape":
            new: Any = tuple(resolved_size(size) for size in value)
            if any(isinstance(size, UnknownSize) for size in new) and isinstance(node, Special):
                missing(node)
        elif field.name == "size" and isinstance(node, Index):
            new = resolved_size(value)
            if isinstance(new, UnknownSize):
                missing(node)
        elif isinstance(value, Node):
            new = resolve_sizes(value, missing)
        elif isinstance(value, tuple) and field.name not in ("span", "signs"):
            new = tuple(_resolved_part(part, missing) for part in value)
        else:
            continue
        changed[field.name] = new
    return replace(node, **changed)


def _resolved_part(part: Any, missing: Any) -> Any:
    if isinstance(part, Node):
        return resolve_sizes(part, missing)
    return tuple(_resolved_part(piece, missing) for piece in part) if isinstance(part, tuple) else part


def describe_size(size: Any) -> str:
    size = resolved_size(size)
    if isinstance(size, UnknownSize):
        return "?"
    return re.sub(r"[A-Za-z]+", lambda found: GREEK.get(found[0], found[0]), str(size))


def describe_shape(shape: Shape) -> str:
    """A shape in words.

    >>> describe_shape(()), describe_shape(("d",)), describe_shape(("n", "d")), describe_shape((1, "d"))
    ('a scalar', 'a vector of size d', 'an n×d matrix', 'a row of size d')
    """
    sizes = [describe_size(size) for size in shape]
    if not sizes:
        return "a scalar"
    if len(sizes) == 1:
        return f"a vector of size {sizes[0]}"
    if sizes[0] == "1":
        return f"a row of size {sizes[1]}"
    article = "an" if sizes[0][0] in "8aefhilmnorsxAEFHILMNORSX" and len(sizes[0]) == 1 else "a"
    return f"{article} {'×'.join(sizes)} matrix"


def is_transposed_list(node: Node) -> TypeGuard[Transpose]:
    """Whether this is [1, 4, 3]ᵀ, which is often written for the vector itself."""
    return isinstance(node, Transpose) and isinstance(node.body, Written) and len(node.body.shape) == 1


def is_zero(node: Node) -> bool:
    return isinstance(node, Number) and node.value == 0


LONGEST = 80
_DEEPEST_SHOWN = 40


class _MessageText(Plain):
    """Leaves out sizes that are not known yet."""

    def size(self, size: Size) -> str:
        return super().size(resolved_size(size))

    def _special(self, node: Special) -> tuple[str, int]:
        shape = tuple(resolved_size(size) for size in node.shape)
        if any(isinstance(size, UnknownSize) for size in shape):
            return self.special(node.name), POWER
        return super()._special(Special(shape, node.name))

    def _sum(self, node: Sum) -> tuple[str, int]:
        if not any(isinstance(resolved_size(index.size), UnknownSize) for index in node.indices):
            return super()._sum(node)
        names = ", ".join(self.name(index.name) for index in node.indices)
        pairs = ", ".join(f"{self.at(a, 0)} {self.signs[op]} {self.at(b, 0)}" for op, a, b in node.conditions)
        return f"{self.big[node.product]}{self.lower(pairs or names)} {self.at(node.body, 1)}", 1


def pretty_name(name: str) -> str:
    """A name in Unicode.

    >>> pretty_name("mu_q"), pretty_name("d_model")
    ('μ_q', 'd_model')
    """
    return Plain().name(name)


def node_text(node: Node) -> str:
    """A tree as text that can be typed in again; "" if the tree is too deep."""
    return "" if depth(node, _DEEPEST_SHOWN) > _DEEPEST_SHOWN else _MessageText().whole(node)


def power_text(base: Node, exponent: Node) -> str:
    """base^exponent as text, even if it is ill-typed."""
    if max(depth(base, _DEEPEST_SHOWN), depth(exponent, _DEEPEST_SHOWN)) > _DEEPEST_SHOWN:
        return ""
    above = node_text(exponent)
    return f"{_MessageText().at(base, ATOM)}^{above if len(above) == 1 else f'{{{above}}}'}"


def product_text(left: Node, right: Node) -> str:
    """left and right side by side as text, even if they have no product."""
    if max(depth(left, _DEEPEST_SHOWN), depth(right, _DEEPEST_SHOWN)) > _DEEPEST_SHOWN:
        return ""
    writer = _MessageText()
    return writer.side_by_side(writer.left(left), writer.at(right, POWER))


def plural(count: int | str, what: str) -> str:
    """A count with its noun, in the plural unless it is 1.

    >>> plural(1, "argument"), plural("d", "component")
    ('1 argument', 'd components')
    """
    return f"{count} {what}" if str(count) == "1" else f"{count} {what}s"


def shortened(text: str) -> str:
    """Cut to a length that fits a message."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
