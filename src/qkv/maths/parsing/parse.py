"""`parse`: from a text and the types of its names to a typed tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from qkv.errors import IllTyped, MathsError, OptionTypeError, Unreadable, complaint
from qkv.maths.parsing.elaborate import Elaborator
from qkv.maths.parsing.grammar import Token, syntax_tree
from qkv.maths.parsing.lexer import Lexer
from qkv.maths.parsing.naming import CleanText
from qkv.maths.parsing.shapes import DEEPEST, OR, depth
from qkv.maths.tree import Node, Shape, Type

__all__ = ["DEEPEST", "depth", "parse", "read", "tokens"]

LONGEST_CACHED = 1000  # characters of a text whose tree is kept: the same formulas are compared with many answers


def parse(text: str, symbols: Mapping[str, str], *, expected: Shape | None = None, free: Collection[str] = ()) -> Node:
    """What `text` means with these types: a tree whose every part has a shape.

    `expected` is a shape that an ambiguous 0, 1 or I may take; `free` are indices that the text is given from outside,
    so that Σ_{j<i} does not bind i. Raises Unreadable or IllTyped, with a caret under the
    offending place, and OptionError where `symbols` make no sense.

    >>> parse("mu^T mu", {"mu": "vector[d]"}).shape, parse("μμᵀ", {"mu": "vector[d]"}).shape
    ((), ('d', 'd'))
    """
    from qkv.maths.types import declare

    if not isinstance(text, str):
        raise OptionTypeError(complaint("text", type(text).__name__, "a text"))
    declared = declare(symbols)
    if len(text) > LONGEST_CACHED or not isinstance(symbols, Mapping):
        return read(text, declared.types, declared.maps, expected=expected, free=free)
    return _parse_cached(text, tuple(symbols.items()), expected, frozenset(free))


@lru_cache(maxsize=1024)
def _parse_cached(text: str, items: tuple[tuple[str, str], ...], expected: Shape | None, free: frozenset[str]) -> Node:
    from qkv.maths.types import declare

    declared = declare(dict(items))
    return read(text, declared.types, declared.maps, expected=expected, free=free)


def read(
    text: str,
    types: Mapping[str, Type],
    maps: Collection[str] = (),
    *,
    expected: Shape | None = None,
    naturals: bool = False,
    free: Collection[str] = (),
) -> Node:
    """`parse` with types that were read before. `naturals`: names that are not declared are naturals."""

    def meant(written: str) -> Node:
        found = tokens(written, types, maps)
        return Elaborator(written, types, syntax_tree(found, written), naturals=naturals, told=free).whole(expected)

    try:
        return meant(text)
    except IllTyped as error:
        if not error.suggestion:
            raise
        raise IllTyped(error.reason, error.source, error.span, _workable_suggestions(error, meant, expected)) from None


def tokens(text: str, types: Mapping[str, Type], maps: Collection[str]) -> list[Token]:
    """The tokens; where || as the bars of a norm never closes, as in ||x| + 1|, it is two bars."""
    clean = CleanText(text)
    try:
        return Lexer(clean, types, maps).run()
    except Unreadable:
        if "||" not in clean.text:
            raise
        try:
            return Lexer(clean, types, maps, single=True).run()
        except Unreadable:
            pass
        raise


def _workable_suggestions(error: IllTyped, meant: Callable[[str], Node], expected: Shape | None) -> str:
    """Of the suggestions those that make sense where they would stand; where none does, those that do alone.

    What has the shape that is expected comes first.
    """
    start, stop = error.span
    options = error.suggestion.split(OR)
    for before, after in ((error.source[:start] + "(", ")" + error.source[stop:]), ("", "")):
        trees = [(option, _try_reading(before + option + after, meant)) for option in options if option]
        found = [(option, tree.shape == expected) for option, tree in trees if tree is not None]
        if found:
            return OR.join(option for option, _ in sorted(found, key=lambda each: not each[1]))
    return ""


def _try_reading(text: str, meant: Callable[[str], Node]) -> Node | None:
    try:
        return meant(text)
    except MathsError:
        return None
