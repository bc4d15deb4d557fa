"""The text of a PDF, page by page: notes in the margin apart, furniture and lines printed several times removed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from .speakers import names, pattern

_BREAK = re.compile(r"^[ ]*[-=–—]{2,6}[ ]*page[ ]+(\d{1,4})[ ]*[-=–—]{2,6}[ ]*$|\f", re.IGNORECASE | re.MULTILINE)
_EDGE = 5
# TeX's tall brackets, as some PDFs give them: the digits 2, 6, 4 on the left, 3, 7, 5 on the right, one a line.
_COLUMN = re.compile(r"(?:(?<=\n)|\A)2\n(?:6+\n?)?4\n((?:[−-]?[\w.,/−-]{1,12}\n){1,12}?)3\n(?:7+\n?)?5(?=[ ,.;\n]|\Z)")


def is_paged(text: str) -> bool:
    """Whether breaks between pages are in a text."""
    return len(_BREAK.findall(text)) > 1


def read_pages(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The text of all pages as one, and the notes of the margin with the place in the text where each page ends."""
    pieces = _BREAK.split(text)
    numbers, pages = pieces[1::2], [page.strip("\n").split("\n") for page in pieces[2::2]]
    if pieces[0].strip():
        numbers, pages = [None, *numbers], [pieces[0].strip("\n").split("\n"), *pages]
    counted = [int(number) if number else at for at, number in enumerate(numbers, 1)]
    ends = [_footer(page, number) for page, number in zip(pages, counted, strict=True)]
    # A number alone may be of a formula: it is a page's where most pages have theirs.
    styles = Counter(style for _, style in ends)
    cut = [(page[:at], "\n".join(page[at + 1 :]).strip()) if 2 * styles[style] > len(pages) and style else (page, "")
           for page, (at, style) in zip(pages, ends, strict=True)]  # fmt: skip
    bodies = _without_furniture([body for body, _ in cut])
    printed = sum(one == two != "" for body in bodies for one, two in itertools.pairwise(body))
    joined, notes = "", []
    for body, (_, note) in zip(bodies, cut, strict=True):
        lines = _collapsed(body) if printed > 3 else body
        joined += "\n".join(lines) + "\n"
        if note:
            notes.append((len(joined), note))
    return joined, notes


def columns(text: str) -> str:
    """A text with the columns of matrices, whose brackets came as digits, as lists: "[1, 4, 3]"."""
    text = re.sub(r"(?<=[A-Za-z])↵(?=[a-z])", "ff", text)  # a ligature of TeX's fonts
    found = list(_COLUMN.finditer(text))
    if len(found) < 3:
        return text  # too few to tell brackets from numbers
    text = _COLUMN.sub(lambda match: f"[{', '.join(match[1].split())}]", text)
    return re.sub(r"=[ ]*\n(?=\[[^\n\]]*\])", "= ", text)


def _footer(lines: Sequence[str], number: int) -> tuple[int, str]:
    """Where the number of a page stands, and in which style: notes are printed over a page, and come behind it."""
    footer = re.compile(rf"\s*(page\s+)?{number}(\s*(?:/|of)\s*\d{{1,4}})?\s*", re.IGNORECASE)
    for at in range(len(lines) - 1, len(lines) // 4, -1):
        if found := footer.fullmatch(lines[at]):
            return at, f"{'page ' if found[1] else ''}#{'/#' if found[2] else ''}"
    return len(lines), ""


def _without_furniture(pages: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pages without lines that recur at their edges; names of speakers stay."""

    def key(line: str) -> str:
        return re.sub(r"\d+", "#", line.strip())

    keep = set(names()["alone"])
    edges = [{key(line) for line in (*page[:_EDGE], *page[-_EDGE:])} for page in pages]
    counts = Counter(each for edge in edges for each in edge if (len(each) > 3 or each == "#/#") and each not in keep)
    furniture = {each for each, count in counts.items() if count > 2 and 2 * count >= len(pages)}
    inside = pattern("furniture")
    return [
        [line for at, line in enumerate(page)
         if not (key(line) in furniture and (at < _EDGE or at >= len(page) - _EDGE)) and not inside.match(line.strip())]
        for page in pages
    ]  # fmt: skip


def _collapsed(lines: Sequence[str]) -> list[str]:
    """Bold text is printed several times, whole or in pieces: a line that repeats an edge of its neighbour goes."""
    kept: list[str] = []
    for line in lines:
        plain, last = line.strip(), kept[-1].strip() if kept else ""
        if kept and plain:
            if last == plain and (len(plain) > 3 or not plain.isdigit()):
                continue
            long = len(plain) > 2 or (len(plain) == 2 and not plain.isalnum())
            if last.endswith(plain) and long and not plain.isdigit():
                continue
            while len(last) > 2 and plain.startswith(last) and not last.isdigit():
                kept.pop()
                last = kept[-1].strip() if kept else ""
        kept.append(line)
    return kept
