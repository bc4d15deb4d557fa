"""The sizes in shapes at a point: whole numbers, or short texts such as "d", "n+1" and "d/h"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qkv.maths.tree import Size
from qkv.maths.values.arithmetic import Undefined, Unevaluable

TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d](?:[\w']|\{[^{}]*\})*)|(.))")


@lru_cache(maxsize=1024)
def _tree(text: str) -> tuple[str, Any, Any]:
    """(operator, left, right), with ("number", value, None) and ("name", name, None) at the leaves."""
    tokens = [match.groups() for match in TOKEN.finditer(text.strip())]
    place = 0

    def peek() -> str:
        return (tokens[place][2] or "atom") if place < len(tokens) else ""

    def total() -> tuple[str, Any, Any]:
        nonlocal place
        left = product()
        while peek() in ("+", "-", "−"):
            place += 1
            left = ("+" if tokens[place - 1][2] == "+" else "-", left, product())
        return left

    def product() -> tuple[str, Any, Any]:
        nonlocal place
        left = factor()
        while peek() in ("*", "·", "/", "atom", "("):
            over = peek() == "/"
            if peek() in ("*", "·", "/"):
                place += 1
            left = ("/" if over else "*", left, factor())
        return left

    def factor() -> tuple[str, Any, Any]:
        nonlocal place
        base = atom()
        if peek() == "^":
            place += 1
            return ("^", base, atom())
        return base

    def atom() -> tuple[str, Any, Any]:
        nonlocal place
        if peek() in ("-", "−"):
            place += 1
            return ("-", ("number", 0, None), factor())
        if peek() == "(":
            place += 1
            inside = total()
            if peek() != ")":
                raise Unevaluable(f"the size {text} cannot be read")
            place += 1
            return inside
        if peek() != "atom":
            raise Unevaluable(f"the size {text} cannot be read")
        number, name, _ = tokens[place]
        place += 1
        return ("number", int(number), None) if number else ("name", name, None)

    tree = total()
    if place != len(tokens):
        raise Unevaluable(f"the size {text} cannot be read")
    return tree


def names_in(size: Size) -> tuple[str, ...]:
    """The names that a size is made of, in reading order.

    >>> names_in("d/h"), names_in(3)
    (('d', 'h'), ())
    """
    if isinstance(size, int):
        return ()
    found: list[str] = []
    waiting = [_tree(size)]
    while waiting:
        kind, left, right = waiting.pop()
        if kind == "name":
            found.append(left)
        waiting.extend(part for part in (right, left) if isinstance(part, tuple))
    return tuple(dict.fromkeys(found))


def measure(size: Size, sizes: Mapping[str, int]) -> Fraction:
    """What a size is, whole or not, where its names have these values.

    >>> measure("d/h", {"d": 6, "h": 4})
    Fraction(3, 2)
    """
    if isinstance(size, int):
        return Fraction(size)

    def value(tree: tuple[str, Any, Any]) -> Fraction:
        kind, left, right = tree
        if kind == "number":
            return Fraction(left)
        if kind == "name":
            if left not in sizes:
                raise Unevaluable(f"the size {left} has no value")
            return Fraction(sizes[left])
        a, b = value(left), value(right)
        if kind == "/":
            if not b:
                raise Undefined("a size over zero")
            return a / b
        if kind == "^":
            if b.denominator != 1 or abs(b) > 12:
                raise Undefined("a size to a power that is too large")
            return a ** int(b)
        return a + b if kind == "+" else a - b if kind == "-" else a * b

    return value(_tree(size))


def whole(size: Size, sizes: Mapping[str, int]) -> int:
    """The same where it must be a whole number >= 1."""
    found = measure(size, sizes)
    if found.denominator != 1 or found < 1:
        raise Undefined(f"the size {size} is {found}")
    return int(found)
