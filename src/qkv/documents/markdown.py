"""Markdown: blocks by markdown-it, and the marks of headings, emphasis, links and HTML taken out of the text."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from .document import Block, Draft

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

FENCE = r"^[ ]{0,9}(?P<fence>`{3,8}|~{3,8})[^\n]*\n(?:[^\n]*\n)*?[ ]{0,9}(?P=fence)[`~]*[ ]*$"
DISPLAY = r"\$\$(?:[^$]|\$(?!\$))*+\$\$|\\\[(?:[^\\]|\\(?![\[\]]))*+\\\]"
_MATHS = rf"{DISPLAY}|\$(?!\s)[^$\n]{{1,2000}}?(?<!\s)\$(?!\d)|\\\((?:[^\\\n]|\\(?![()]))*+\\\)"
_TAGS = "div|span|p|b|i|em|strong|br|u|s|a|img|details|summary|center|font|hr|h[1-6]|ul|ol|li|code|pre|small|mark|kbd"
_MARKS = re.compile(
    rf"(?P<code>{FENCE})|(?P<maths>{_MATHS})|`(?P<inline>[^`\n]+)`"
    r"|<(?P<script>sub|sup)>(?P<low>[^<>\n]{1,60})</(?:sub|sup)>"
    rf"|(?P<tag></?(?:{_TAGS})(?:\s[^<>]{{0,300}})?/?>)"
    r"|!?\[(?P<link>[^\[\]\n]*[A-Za-z][^\[\]\n]*)\]\((?:https?:|mailto:|/|#|\.)[^)\s]*\)"
    r"|\\(?P<escaped>[_*#|~`<>&.!+-])"
    r"|(?P<strong>\*\*|__)(?=\S)|(?<=\S)(?P<stronger>\*\*|__)"
    r"|(?<![\w*\\)\]])\*(?P<slanted>[^\s*][^*\n]{0,600}?)(?<=[^\s*])\*(?![\w*])"
    r"|(?<![\w\\])_(?P<low_slanted>[^\s_][^_\n]{0,600}?)(?<=\S)_(?!\w)"
    r"|(?P<quote>^[ ]{0,3}>[ ]?)"
    r"|^[ ]{0,3}#{1,6}(?:[ ]+|$)(?P<heading>)",
    re.MULTILINE,
)
_DISPLAY = re.compile(DISPLAY)


def read_markdown(draft: Draft) -> list[Block]:
    """The blocks of a Markdown draft; the marks leave its text."""
    blocks = _blocks(draft.text)
    before = len(draft.edits)
    draft.substitute(_MARKS, _without_marks)
    for edit in draft.edits[before:]:
        blocks = [replace(each, span=(edit.forth(each.span[0]), edit.forth(each.span[1]))) for each in blocks]
    return blocks


def _without_marks(found: re.Match[str]) -> str | None:
    if found["code"] or found["maths"]:
        return None
    if found["inline"]:
        return found["inline"]
    if found["script"]:
        inner = found["low"] if len(found["low"]) == 1 else f"{{{found['low']}}}"
        return ("_" if found["script"] == "sub" else "^") + inner
    if found["tag"]:
        return "\n" if found["tag"].startswith(("<br", "</p", "</li", "</h")) else ""
    if found["strong"] or found["stronger"]:
        text, (start, stop) = found.string, found.span()
        around = text[max(0, start - 1) : start] + text[stop : stop + 1]
        # A power (2**3), a name (__init__) or a blank to fill in is no emphasis.
        name = found.group() == "__" and re.search(r"[\w(]", around)
        return None if name or re.fullmatch(r"\w\w", around) else ""
    if found["heading"] is not None or found["quote"]:
        return ""
    return found["link"] or found["escaped"] or _unmarked(found["slanted"] or found["low_slanted"] or "")


def _unmarked(text: str) -> str:
    """What stands in emphasis may have marks too."""
    return _MARKS.sub(lambda found: found.group() if (put := _without_marks(found)) is None else put, text)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Inline structure is not needed, and indented prose is more frequent in sheets than indented code.
    return MarkdownIt("commonmark").enable("table").disable(["inline", "code", "lheading"])


def _blocks(text: str) -> list[Block]:
    starts = [0, *(found.end() for found in re.finditer(r"\n", text)), len(text)]
    # Within a displayed formula no line begins a list, whatever sign it starts with.
    masked = _DISPLAY.sub(lambda found: re.sub(r"[^\n]+", "x", re.sub(r"\n(?=\n)", "\n ", found.group())), text)
    displays = [found.span() for found in _DISPLAY.finditer(text)]
    ends = [stop for _, stop in displays]
    blocks: list[Block] = []
    label, depth = "", -1
    for token in _parser().parse(masked):
        depth += {"list_item_open": 1, "list_item_close": -1}.get(token.type, 0)
        if token.type == "list_item_open":
            label = f"{token.info}{token.markup}"
        if token.map is None or token.type not in _KINDS:
            continue
        span = (starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)])
        span = (span[0], span[0] + len(text[span[0] : span[1]].rstrip()))
        if token.type == "heading_open":
            blocks.append(Block("heading", span, int(token.tag[1])))
        elif token.type == "fence":
            blocks.append(Block("code", span, label=token.info.strip()))
        elif token.type == "table_open":
            blocks.append(Block("table", span, rows=table_rows(text[span[0] : span[1]])))
        elif label:
            blocks.append(Block("item", span, depth, label))
            label = ""
        else:
            at = bisect_left(ends, span[1])
            formula = at < len(displays) and displays[at] == span
            blocks.append(Block("formula" if formula else "paragraph", span))
    return blocks


_KINDS = {"heading_open", "paragraph_open", "fence", "table_open", "html_block"}


def table_rows(text: str) -> tuple[tuple[str, ...], ...]:
    """The cells of a table with "|" between them, without the line under the head.

    >>> table_rows("| a | b |\\n|---|---|\\n| 1 | 2 |")
    (('a', 'b'), ('1', '2'))
    """
    lines = [line.strip().removeprefix("|").removesuffix("|") for line in text.splitlines() if "|" in line]
    kept = [line for line in lines if not re.fullmatch(r"[\s|:-]+", line)]
    rows = [re.split(r"(?<!\\)\|", line) for line in kept]
    return tuple(tuple(re.sub(r"\\([_|*#])", r"\1", cell.strip()) for cell in row) for row in rows)
