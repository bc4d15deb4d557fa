"""Markdown: blocks by markdown-it, and the marks of headings, emphasis, links and HTML taken out of the text."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING

from .document import TABLE, Block, BlockKind, Draft

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_KINDS: dict[str, BlockKind] = {"heading_open": "heading", "fence": "code", "table_open": "table",
                                "paragraph_open": "paragraph", "html_block": "paragraph"}  # fmt: skip


def read_markdown(draft: Draft) -> list[Block]:
    """The blocks of a Markdown draft; the marks leave its text."""
    blocks = _blocks(draft.text)
    inner = Draft(draft.text)
    inner.substitute(TABLE["marks"], _without_mark)
    begins = array("q", (draft.begins[place] for place in inner.begins))
    ends = array("q", (draft.ends[place - 1] for place in inner.ends))
    draft.text, draft.begins, draft.ends = inner.text, begins, ends
    moved = [[bisect_left(inner.begins, place) for place in block.span] for block in blocks]
    return [Block(block.kind, (start, stop), block.level) for block, (start, stop) in zip(blocks, moved, strict=True)]


def _without_mark(found: re.Match[str]) -> str | None:
    kind = found.lastgroup or ""
    inner = found[kind]
    if kind in ("low", "high"):
        return ("_" if kind == "low" else "^") + (inner if len(inner) == 1 else f"{{{inner}}}")
    if kind.endswith("slanted"):  # what stands in emphasis may have marks too
        return TABLE["marks"].sub(lambda mark: mark.group() if (put := _without_mark(mark)) is None else put, inner)
    return {"code": None, "maths": None, "break": "\n", "mark": ""}.get(kind, inner)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Inline structure is not needed, and indented prose is more frequent in sheets than indented code.
    return MarkdownIt("commonmark").enable("table").disable(["inline", "code", "lheading"])


def _blocks(text: str) -> list[Block]:
    starts = [0, *(found.end() for found in re.finditer(r"\n", text)), len(text)]
    displays = {found.span() for found in TABLE["display"].finditer(text)}
    # Within a displayed formula no line begins a list, whatever sign it starts with.
    masked = TABLE["display"].sub(lambda each: re.sub(r"[^\n]+", "x", re.sub(r"\n(?=\n)", "\n ", each.group())), text)
    blocks: list[Block] = []
    in_item = False
    for token in _parser().parse(masked):
        in_item = in_item or token.type == "list_item_open"
        kind = _KINDS.get(token.type)
        if token.map is None or kind is None:
            continue
        start, stop = (starts[line] for line in token.map)
        stop = start + len(text[start:stop].rstrip())
        if kind == "paragraph":
            kind = "item" if in_item else "formula" if (start, stop) in displays else kind
            in_item = False
        blocks.append(Block(kind, (start, stop), int(token.tag[1]) if kind == "heading" else 0))
    return blocks
