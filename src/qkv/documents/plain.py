"""Plain text and PDF text: paragraphs, and listings that lost their marks put between lines of backticks."""

from __future__ import annotations

import re

from .document import Block, Draft
from .markdown import FENCE

_CODE_START = re.compile(
    r"\s*(?:class\s*\w+\s*(?:\([\w., ]*\))?:|def\s*\w+\s*\(|async def |import [\w.]+(?: as \w+)?$|from [\w.]+ import "
    r"|@\w+|for\s*\w[\w, ]* in .*:\s*$|[\w.]+(?:,\s*\w+)* = (?:np|torch|nn|F|jnp|tf)\.\w|(?:np|torch)\.random\.seed\()"
)
_CODE_LINE = re.compile(
    r"\s*(?:#|\"\"\"|'''|return|yield|if\b.*:|ifmask|else\s*:|elif\b|for\b.*:|while\b.*:|with\b.*:|print\(|self\.|super\("
    r"|class\s*\w+.*:|def\s*\w+\s*\(|import |from \w+ import|assert |@\w+|pass\b|[\])}]+[,.)\w(]*\s*$)"
    r"|\s*[\w.\[\]:, ]+\s*[-+*/@]?=(?!=)\s*\S|.*\w\(.*\)\s*(?:#.*)?$|.*[,(\[{\\]\s*$"
)
_PROSE = re.compile(r"\s*(?:\([a-z]{1,4}\)|\d{1,2}\.)\s|.*[.?!:]\s*$|\s*(?:[A-Za-z]+\s+){7}")
_NUMBERED = re.compile(r"(\d{1,3})(?![\d.)])[ ]?(.*)")


def read_plain(draft: Draft) -> list[Block]:
    """The blocks of a plain draft: listings get lines of backticks, everything else is paragraphs."""
    draft.replace(_fences(draft.text))
    blocks: list[Block] = []
    end = 0
    for found in [*re.finditer(FENCE, draft.text, re.MULTILINE), None]:
        stop = found.start() if found else len(draft.text)
        for each in re.finditer(r"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*", draft.text[end:stop]):
            blocks.append(Block("paragraph", (end + each.start(), end + each.end())))
        if found:
            blocks.append(Block("code", found.span()))
            end = found.end()
    return blocks


def _fences(text: str) -> list[tuple[int, int, str]]:
    """Where lines of backticks and line numbers change, for the listings of a text that has no such lines."""
    if re.search(FENCE, text, re.MULTILINE):
        return []
    lines = [(found.start(), found.end()) for found in re.finditer(r"[^\n]*\n|[^\n]+\Z", text)]
    changes: list[tuple[int, int, str]] = []
    at = 0
    while at < len(lines):
        numbers, stop = _numbered_run(text, lines, at)
        if not numbers:
            stop = _code_run(text, lines, at)
        if stop - at < 2:
            at += 1
            continue
        changes.append((lines[at][0], lines[at][0], "```\n"))
        changes += [(start, start + length, "") for start, length in numbers] or _parted(text, lines[at:stop])
        end = lines[stop - 1][1]
        changes.append((end, end, "```\n" if text[end - 1] == "\n" else "\n```"))
        at = stop
    return changes


def _parted(text: str, lines: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Spaces that are lost after a keyword at the beginning of a line: "classHead", "def__init__", "returnx"."""
    glued = [(start, re.match(r"\s*(?:class(?=[A-Z])|def(?=[a-z_])|return(?=[a-zA-Z]))", text[start:stop]))
             for start, stop in lines]  # fmt: skip
    return [(start + found.end(), start + found.end(), " ") for start, found in glued if found]


def _numbered_run(text: str, lines: list[tuple[int, int]], at: int) -> tuple[list[tuple[int, int]], int]:
    """A listing with printed line numbers 1, 2, 3, …; a long line may be wrapped, so that one line has no number."""
    first = _NUMBERED.match(text[slice(*lines[at])])
    if first is None or not _CODE_START.match(first[2]):
        return [], at
    expected, found, last = int(first[1]), [], at
    for index in range(at, len(lines)):
        line = text[slice(*lines[index])]
        number = re.match(rf"\s*{expected}(?=\D|$)", line)
        if number:
            found.append((lines[index][0], number.end()))
            expected, last = expected + 1, index
        elif index - last > 2:
            break
    return (found, last + 1) if len(found) > 3 else ([], at)


def _code_run(text: str, lines: list[tuple[int, int]], at: int) -> int:
    """The line after a listing that begins at a line; the line itself where none begins."""
    if not _CODE_START.match(text[slice(*lines[at])]):
        return at
    depth, last = 0, at
    for index in range(at, len(lines)):
        line = text[slice(*lines[index])]
        code = bool(_CODE_LINE.match(line) or _CODE_START.match(line)) and not (depth <= 0 and _PROSE.match(line)
                and not re.search(r"[=({\[].*:\s*$|^\s*(?:#|return|if|for|class|def)|\(.*\)\s*$", line))  # fmt: skip
        if line.strip() and not code and depth <= 0:
            break
        if line.strip():
            last = index
            depth += sum(line.count(sign) for sign in "([{") - sum(line.count(sign) for sign in ")]}")
        elif index - last > 1:
            break
    return last + 1
