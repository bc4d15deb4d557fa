r"""Text as people write it in chats, as blocks: paragraphs, lists, tables, listings, and formulas as readable signs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from . import document as d
from .to_text import signs

LONGEST = 20_000  # characters of a listing that are shown
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*([\w+-]*)[^\n]*\n?", re.MULTILINE)
_GAP = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_ITEM = re.compile(r"[ \t]*(?:[-*•–]|(\d{1,3})[.)])[ \t]+(?=\S)")
_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
# Formulas between dollars and in \( \), \[ \]; a price is none.
_MATHS = re.compile(
    r"\$\$(.+?)\$\$|\\\[((?:(?!\\\[|\\\]).){1,4000})\\\]|\\\(((?:(?!\\\(|\\\)).){1,1000})\\\)"
    r"|\$(?=\S)([^$\n]*[^$\s])\$(?!\d)",
    re.DOTALL,
)
# The end of a line that was full: it does not end a sentence, or the next one begins with a small letter.
_WRAPPED = re.compile(r"(?<=[^\n]{60})(?<![.:;?!\n])\n(?![(\[\d•])|(?<=[^\n]{60})\n(?=[a-z])")
_CODE = re.compile(r"(`+)([^`\n]+)\1")
_BOLD = re.compile(r"(\*\*|__)(?=\S)([^*_\n]+?)(?<=\S)\1")


def passages(text: str, ends: Iterable[int] = ()) -> Iterator[tuple[tuple[int, int], tuple[d.Block, ...]]]:
    """The passages of a text, each with its span and its blocks: blank lines divide them; a listing stays whole.

    Lines in which one of the `ends` lies end a passage too, so that a note can stand next to them.

    >>> [(span, type(blocks[0]).__name__) for span, blocks in passages("- a\\n- b\\n\\nso $x$")]
    [((0, 9), 'Items'), ((9, 15), 'Paragraph')]
    """
    start, fences = 0, [found.start() for found in _FENCE.finditer(text)]
    lines = {text.find("\n", end) + 1 for end in ends}
    gaps = {place for place in lines if place and not text.startswith("|", place)}
    for gap in sorted(gaps | {found.end() for found in _GAP.finditer(text)}):
        passage = text[start:gap]
        whole = (bisect_left(fences, gap) - bisect_left(fences, start)) % 2 == 0
        if whole and passage.strip() and not (gap in gaps and passage.count("$$") % 2):
            yield (start, gap), tuple(_blocks(passage.strip("\n")))
            start = gap
    if text[start:].strip():
        yield (start, len(text)), tuple(_blocks(text[start:].strip("\n")))


def _blocks(text: str) -> Iterator[d.Block]:
    fences = list(_FENCE.finditer(text))
    done = 0
    for opening, closing in zip(fences[::2], [*fences[1::2], None], strict=False):
        yield from _plain(text[done : opening.start()])
        done = closing.end() if closing else len(text)
        yield d.Code(text[opening.end() : closing.start() if closing else len(text)].strip("\n")[:LONGEST], opening[1])
    yield from _plain(text[done:])


def _plain(text: str) -> Iterator[d.Block]:
    """Lines outside listings: what begins alike goes into one list, table or paragraph."""
    # A displayed formula may go over lines, which begin no list.
    lines = _MATHS.sub(lambda found: " ".join(found.group().split()), text).split("\n")
    at = 0
    while at < len(lines):
        kind = _kind(lines[at])
        end = at + 1
        while end < len(lines) and _kind(lines[end]) == kind:
            end += 1
        group = lines[at:end]
        at = end
        if kind == "item":
            numbered = all((mark := _ITEM.match(line)) and mark[1] == str(place) for place, line in enumerate(group, 1))
            plain = [line.strip() if not numbered and line.strip()[:1].isdigit() else _ITEM.sub("", line, count=1)
                     for line in group]  # fmt: skip
            yield d.Items(tuple(map(words, plain)), ordered=numbered)
        elif kind == "row" and len(group) > 1 and _RULE.fullmatch(group[1]):
            rows = [tuple(map(words, _cells(line))) for at, line in enumerate(group) if at != 1]
            wide = max(map(len, rows))
            filled = [(*row, *[""] * (wide - len(row))) for row in rows]
            yield d.Table(filled[0], tuple(filled[1:]))
        elif joined := _WRAPPED.sub(" ", "\n".join(line.strip() for line in group).strip("\n")):
            heading = re.fullmatch(r"#{1,6}[ \t]+(.+?)[ \t]*#*", joined)
            yield d.Paragraph((d.Text(signs(heading[1]), "strong"),) if heading else words(joined))


def _kind(line: str) -> str:
    if line.lstrip().startswith("#"):
        return line  # a heading is a paragraph of one line
    return "item" if _ITEM.match(line) else "row" if line.lstrip().startswith("|") else "words"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def words(text: str) -> tuple[d.Inline, ...]:
    r"""Prose with its formulas; LaTeX that is not read as mathematics is made readable.

    >>> [piece.text for piece in words(r"so \(\frac{a}{2}\) is **half**") if isinstance(piece, d.Text)]
    ['so ', 'a/2', ' is ', 'half']
    """
    found: list[d.Inline] = []
    done = 0
    for match in _MATHS.finditer(text):
        found += _styled(text[done : match.start()])
        source = next(filter(None, match.groups()), "").strip()
        maths = d.Maths(source)
        found.append(maths if maths.tree() is not None and "=" not in source else d.Text(signs(source)))
        done = match.end()
    return (*found, *_styled(text[done:]))


def _styled(text: str) -> Iterator[d.Inline]:
    pieces = sorted([*_CODE.finditer(text), *_BOLD.finditer(text)], key=lambda match: match.start())
    done = 0
    for match in pieces:
        if match.start() >= done:
            yield from ((d.Text(signs(text[done : match.start()])),) if match.start() > done else ())
            code = match[1].startswith("`")
            yield d.Text(match[2] if code else signs(match[2]), "code" if code else "strong")
            done = match.end()
    if done < len(text):
        yield d.Text(signs(text[done:]) if "\\" in text[done:] else text[done:])
