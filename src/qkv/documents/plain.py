"""Plain text and PDF text: paragraphs, and listings that lost their marks put between lines of backticks."""

from __future__ import annotations

import re

from .document import TABLE, Block, Draft

Change = tuple[int, int, str]


def read_plain(draft: Draft) -> list[Block]:
    """The blocks of a plain draft: listings get lines of backticks, everything else is paragraphs."""
    if not TABLE["fence"].search(draft.text):
        draft.replace(_fences(draft.text))
    return [
        Block("code" if found["code"] else "paragraph", found.span()) for found in TABLE["block"].finditer(draft.text)
    ]


def _fences(text: str) -> list[Change]:
    """Lines of backticks around the listings of a text, and their line numbers taken out."""
    lines = list(re.finditer(r"[^\n]*\n|[^\n]+\Z", text))
    changes: list[Change] = []
    at = 0
    while at < len(lines):
        stop, inner = _numbered_run(lines, at) or _code_run(lines, at)
        if stop - at > 1:
            start, end = lines[at].start(), lines[stop - 1].end()
            closing = "```\n" if text[end - 1] == "\n" else "\n```"
            changes += [(start, start, "```\n"), *inner, (end, end, closing)]
        at = max(stop, at + 1)
    return changes


def _numbered_run(lines: list[re.Match[str]], at: int) -> tuple[int, list[Change]] | None:
    """A listing with printed line numbers 1, 2, 3, …; a long line may be wrapped, so that one line has no number."""
    first = TABLE["numbered_code"].match(lines[at].group())
    if first is None:
        return None
    expected, last = int(first[1]), at
    changes: list[Change] = []
    for index in range(at, len(lines)):
        number = re.match(r"\s*(\d{1,4})(?!\d)", lines[index].group())
        if number and int(number[1]) == expected:
            start = lines[index].start()
            changes.append((start, start + number.end(), ""))
            expected, last = expected + 1, index
        elif index - last > 2:
            break
    return (last + 1, changes) if len(changes) > 3 else None


def _code_run(lines: list[re.Match[str]], at: int) -> tuple[int, list[Change]]:
    """The line after a listing that begins at a line, and the spaces that it lost after keywords."""
    depth, stop = 0, at
    changes: list[Change] = []
    if not TABLE["code_start"].match(lines[at].group()):
        return at, changes
    for index in range(at, len(lines)):
        line = lines[index].group()
        if not line.strip():
            if index > stop:
                break
            continue
        if depth <= 0 and (TABLE["prose"].match(line) or not TABLE["code_line"].match(line)):
            break
        stop = index + 1
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if glued := TABLE["glued"].match(line):
            place = lines[index].start() + glued.end()
            changes.append((place, place, " "))
    return stop, changes
