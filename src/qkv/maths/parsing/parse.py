"""`parse` and `readings`: from a text and the types of its names to typed trees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from qkv.errors import IllTyped, MathsError, OptionTypeError, Unreadable, complaint
from qkv.maths import tree
from qkv.maths.parsing import python
from qkv.maths.parsing.elaborate import Elaborator, whole_text
from qkv.maths.parsing.grammar import Token, syntax_tree
from qkv.maths.parsing.lexer import Lexer
from qkv.maths.parsing.naming import CleanText
from qkv.maths.parsing.shapes import DEEPEST, OR, depth
from qkv.maths.tree import Node, Shape, Type

__all__ = ["DEEPEST", "Reading", "depth", "parse", "read", "readings", "tokens"]

_LONGEST_CACHED = 1000  # characters; trees of shorter texts are cached: one formula is compared with many answers
_MOST_READINGS = 4


@dataclass(frozen=True)
class Reading:
    """A tree that a text may mean; `note` says how it was read, and is empty for the standard reading."""

    node: Node
    note: str


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
    return _readings(text, symbols, expected, free, False)[0].node


def readings(
    text: str, symbols: Mapping[str, str], *, expected: Shape | None = None, free: Collection[str] = ()
) -> list[Reading]:
    """All trees that a text may mean, at most four, the standard one (that of `parse`) first.

    Args, Raises: As `parse`.

    Returns:
        The readings, each with a note in words.

    >>> [reading.note for reading in readings("1/2d", {"d": "natural"})]
    ['', '1/2d read as 1/(2d)']
    """
    return list(_readings(text, symbols, expected, free, True))


def _readings(
    text: str, symbols: Mapping[str, str], expected: Shape | None, free: Collection[str], others: bool
) -> tuple[Reading, ...]:
    from qkv.maths.types import declare

    if not isinstance(text, str):
        raise OptionTypeError(complaint("text", type(text).__name__, "a text"))
    types = declare(symbols)
    if len(text) > _LONGEST_CACHED or not isinstance(symbols, Mapping):
        return _all_readings(text, _Given(types.types, types.maps, expected, free), others)
    return _cached(text, tuple(symbols.items()), expected, frozenset(free), others)


@lru_cache(maxsize=1024)
def _cached(
    text: str, items: tuple[tuple[str, str], ...], expected: Shape | None, free: frozenset[str], others: bool
) -> tuple[Reading, ...]:
    from qkv.maths.types import declare

    types = declare(dict(items))
    return _all_readings(text, _Given(types.types, types.maps, expected, free), others)


@dataclass(frozen=True)
class _Given:
    """What is known before a text is read: types, maps, the expected shape, free indices."""

    types: Mapping[str, Type]
    maps: Collection[str]
    expected: Shape | None
    free: Collection[str]
    naturals: bool = False

    def read(self, text: str, choice: str = "") -> tuple[Node, dict[str, str]]:
        """The tree of a text, and the names and notes of its other readings."""
        found = _statements(text, self.types, self.maps)
        notes: dict[str, str] = {}
        nodes: list[Node] = []
        for part in found:
            elaborator = Elaborator(
                text, self.types, syntax_tree(part, text), naturals=self.naturals, free=self.free, choice=choice
            )
            nodes.append(whole_text(elaborator, self.expected if len(found) == 1 else None, len(found) > 1))
            notes |= elaborator.other_readings
        return (nodes[0] if len(nodes) == 1 else tree.Collection((), tuple(nodes), span=(0, len(text)))), notes


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
    return _all_readings(text, _Given(types, maps, expected, free, naturals), False)[0].node


def _all_readings(text: str, given: _Given, others: bool) -> tuple[Reading, ...]:
    try:
        standard, notes = given.read(text)
    except MathsError as error:
        try:
            node = python.read(text, given.types, given.expected)
        except MathsError:
            if not isinstance(error, IllTyped):
                raise
            node = None
        if node is not None:
            return (Reading(node, ""),)
        if error.suggestion:
            improved = type(error)(error.reason, error.source, error.span, _workable_suggestions(error, given))
            if isinstance(improved, Unreadable) and isinstance(error, Unreadable):
                improved.undeclared = error.undeclared
            raise improved from None
        raise
    found = [Reading(standard, "")]
    for choice, note in notes.items() if others else ():
        try:
            found.append(Reading(given.read(text, choice)[0], note))
        except MathsError:
            continue
    with suppress(MathsError):
        node = python.read(text, given.types, given.expected) if others else None
        last = standard.members[-1] if isinstance(standard, tree.Relation) else standard
        found += [Reading(node, "read as Python")] if node not in (None, last) else []
    kept = [one for place, one in enumerate(found) if one.node not in (other.node for other in found[:place])]
    return tuple(kept[:_MOST_READINGS])


def tokens(text: str, types: Mapping[str, Type], maps: Collection[str]) -> list[Token]:
    """The tokens of a text."""
    return [token for statement in _statements(text, types, maps) for token in statement]


def _statements(text: str, types: Mapping[str, Type], maps: Collection[str]) -> list[list[Token]]:
    """The tokens of each statement; an || that is never closed as a norm, as in ||x| + 1|, is read as two bars."""
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


def _workable_suggestions(error: MathsError, given: _Given) -> str:
    """The suggestions that are well-typed in place; if none is, those that are well-typed alone.

    Suggestions of the expected shape come first.
    """
    start, stop = error.span
    for before, after in ((error.source[:start] + "(", ")" + error.source[stop:]), ("", "")):
        found: list[tuple[str, bool]] = []
        for option in filter(None, error.suggestion.split(OR)):
            try:
                found.append((option, given.read(before + option + after)[0].shape == given.expected))
            except MathsError:
                continue
        if found:
            return OR.join(option for option, _ in sorted(found, key=lambda each: not each[1]))
    return ""
