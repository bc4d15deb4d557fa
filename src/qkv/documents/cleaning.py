"""Clean a text: control bytes, invisible characters, ligatures, entities, page furniture, words cut at line ends."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter

from .document import TABLE, Draft, Span

_EDGE = 3  # lines at the top and at the bottom of a page that may be furniture


def clean(draft: Draft) -> bool:
    """Clean a draft, and say whether it was printed on pages (breaks between pages were found)."""
    for (opening, closing), brackets in TABLE.data["large_brackets"].items():
        if draft.text.count(opening) == draft.text.count(closing):
            draft.substitute(re.compile(opening), brackets[0])
            draft.substitute(re.compile(closing), brackets[1])
    draft.substitute(TABLE["character"], _character)
    draft.substitute(TABLE["entity"], _entity)
    for sign, pieces in TABLE.data["tall_brackets"].items():
        draft.substitute(re.compile(rf"[{pieces}](?:\s*[{pieces}])*"), lambda found, sign=sign, ends=pieces[:2]:
                         sign if len(found.group()) > 1 or found.group() in ends else " ")  # fmt: skip
    breaks = [found.span() for found in TABLE["page"].finditer(draft.text)]
    gone = breaks + _furniture(draft.text, breaks) if breaks else _numbered_footers(draft.text)
    # A removed line takes its end with it: a paragraph may go on over the page.
    draft.replace((start, stop + (draft.text[stop : stop + 1] == "\n"), "") for start, stop in sorted(gone))
    if breaks:
        draft.substitute(TABLE["hyphen"], lambda found: found["kept"] or "")
    return bool(breaks)


def _character(found: re.Match[str]) -> str:
    if found["compatible"]:
        return unicodedata.normalize("NFKC", found.group())
    return "\n" if found["newline"] else "    " if found["tab"] else ""


def _entity(found: re.Match[str]) -> str | None:
    sign = html.unescape(found.group())
    return None if len(sign) > 2 or (sign < " " and sign != "\n") else sign.replace("\xa0", " ").replace("\xad", "")


def _furniture(text: str, breaks: list[Span]) -> list[Span]:
    """Lines at the edges of pages that are repeated but for a page number, and page numbers."""
    bounds = [0, *(place for span in breaks for place in span), len(text)]
    pages: list[list[tuple[re.Match[str], str]]] = []
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        lines = list(TABLE["line"].finditer(text, start, stop))
        edges = lines[:_EDGE] + lines[_EDGE:][-_EDGE:]
        pages.append([(line, TABLE["paged"].sub("#", line.group().strip())) for line in edges])
    counts = Counter(key for page in pages for key in {key for _, key in page})
    often = max(2, sum(map(bool, pages)) / 2)
    found: list[Span] = []
    for page in pages:
        for line, key in page:
            repeated = len(key) > 5 and counts[key] >= often and not TABLE["label"].match(key)
            number = line is page[-1][0] and TABLE["page_number"].fullmatch(line.group().strip())
            if repeated or (number and counts[key] > 1):
                found.append(line.span())
    return found


def _numbered_footers(text: str) -> list[Span]:
    """Long lines that differ in a page number at the end alone, counted upwards, where no page breaks are left."""
    lines: dict[str, list[re.Match[str]]] = {}
    for line in TABLE["numbered_line"].finditer(text):
        lines.setdefault(line[1], []).append(line)
    found: list[Span] = []
    for group in lines.values():
        numbers = [int(line[2]) for line in group]
        if len(group) > 2 and numbers == list(range(numbers[0], numbers[0] + len(group))):
            found += [line.span() for line in group]
    return found
