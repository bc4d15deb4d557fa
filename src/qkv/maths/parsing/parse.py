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

LONGEST_CACHED = (
    1000  # characters; trees of shorter texts are cached, because one formula is compared with many answers
)


def parse(text: str, symbols: Mapping[str, str], *, expected: Shape | None = None, free: Collection[str] = ()) -> Node:
    """Parse a text into a tree in which every node has a shape.

    Args:
        text: LaTeX or Unicode mathematics.
        symbols: Names and their types, such as `{"mu": "vector[d]"}`.
        expected: A shape that an ambiguous 0, 1 or I takes.
        free: Indices that are given from outside, so that Σ_{j<i} does not bind i.

    Returns:
        The typed tree; its `shape` is () for a scalar, (d,) for a vector, (n, d) for a matrix.

    Raises:
        Unreadable: If the text is not mathematics that qkv knows; the message has a caret under the place.
        IllTyped: If the shapes do not fit; the message has a caret and may have a suggestion.
        OptionError: If `symbols` are malformed.

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
    """`parse` with types that are parsed already. `naturals`: undeclared names are naturals."""

    def read_text(written: str) -> Node:
        found = tokens(written, types, maps)
        return Elaborator(written, types, syntax_tree(found, written), naturals=naturals, free=free).whole(expected)

    try:
        return read_text(text)
    except IllTyped as error:
        if not error.suggestion:
            raise
        raise IllTyped(
            error.reason, error.source, error.span, _workable_suggestions(error, read_text, expected)
        ) from None


def tokens(text: str, types: Mapping[str, Type], maps: Collection[str]) -> list[Token]:
    """The tokens of a text; an || that is never closed as a norm, as in ||x| + 1|, is read as two bars."""
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


def _workable_suggestions(error: IllTyped, read_text: Callable[[str], Node], expected: Shape | None) -> str:
    """The suggestions that are well-typed in place; if none is, those that are well-typed alone.

    Suggestions of the expected shape come first.
    """
    start, stop = error.span
    options = error.suggestion.split(OR)
    for before, after in ((error.source[:start] + "(", ")" + error.source[stop:]), ("", "")):
        trees = [(option, _try_reading(before + option + after, read_text)) for option in options if option]
        found = [(option, tree.shape == expected) for option, tree in trees if tree is not None]
        if found:
            return OR.join(option for option, _ in sorted(found, key=lambda each: not each[1]))
    return ""


def _try_reading(text: str, read_text: Callable[[str], Node]) -> Node | None:
    try:
        return read_text(text)
    except MathsError:
        return None
