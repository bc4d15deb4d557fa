"""Clean a text: control bytes, invisible characters, ligatures, entities, page furniture, words cut at line ends."""

from __future__ import annotations

import html
import re
from collections import Counter
from itertools import pairwise

from .document import Draft

_INVISIBLE = "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufffc-\ufffe"
_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
_SPACES = "\xa0\u2000-\u200a\u202f\u205f\u3000"
_CHARACTERS = re.compile(rf"\r\n?|\u2028|\u2029|[{_INVISIBLE}]+|[{''.join(_LIGATURES)}]|[{_SPACES}\t]")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});")
# Codes of large brackets in TeX's extension font, which PDF readers pass on as control bytes.
_TEX_BRACKETS = (("\x10", "\x11", "()"), ("\x12", "\x13", "()"), ("\x14", "\x15", "[]"), ("\x1a", "\x1b", "{}"))
# Pieces that tall brackets are stacked of: those of the Symbol font's private codes, then Unicode's.
_LEFT = {"(": "\uf8eb-\uf8ed⎛⎜⎝", "[": "\uf8ee-\uf8f0⎡⎢⎣", "{": "\uf8f1-\uf8f4⎧⎨⎩⎪"}
_RIGHT = {")": "\uf8f6-\uf8f8⎞⎟⎠", "]": "\uf8f9-\uf8fb⎤⎥⎦", "}": "\uf8fc-\uf8fe⎫⎬⎭"}
_TOPS, _BOTTOMS = "\uf8eb\uf8ee\uf8f1⎛⎡⎧", "\uf8f8\uf8fb\uf8fe⎠⎦⎭"
_STACKED = re.compile("|".join(
    rf"(?P<{name}>[{glyphs}](?:\s*[{glyphs}{extra}])*)"
    for name, glyphs, extra in (
        *((f"L{at}", glyphs, "") for at, glyphs in enumerate(_LEFT.values())),
        *((f"R{at}", glyphs, "\uf8f4⎪" if at == 2 else "") for at, glyphs in enumerate(_RIGHT.values())),
    )
))  # fmt: skip
_PAGE = re.compile(
    r"^[ ]*(?:[-=–—*\[(]{1,6}[ ]*page[ ]+\d{1,4}(?:[ ]*(?:of|/)[ ]*\d{1,4})?[ ]*[-=–—*\])]{1,6}|\f)[ ]*$|\f",
    re.IGNORECASE | re.MULTILINE,
)
_PAGE_NUMBER = re.compile(r"(?:page[ ]+)?\d{1,4}(?:[ ]*(?:of|/)[ ]*\d{1,4})?|[-–—][ ]*\d{1,4}[ ]*[-–—]", re.IGNORECASE)
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_PAGED = re.compile(r"^\d{1,4}\b|\d{1,4}$|\d{1,4}(?=[ ]*(?:of|/)[ ]*\d{1,4}$)")  # where a line has its page number
_LABEL = re.compile(r"(?:question|problem|exercise|task|part|test|q)\b.{0,25}$", re.IGNORECASE)
_EDGE_LINES = 3
_HYPHENATED = re.compile(r"(?<![^\W\d_])([^\W\d_]{2,})-\n[ ]*(?=[a-zà-ÿ]{2})")
# First halves of words that keep their hyphen.
_KEPT = re.compile(
    "self cross multi dot key query value non two three four one feed pre post low high single auto grouped well layer "
    "token long short half per batch row column fixed full large small mean zero unit time head encoder decoder "
    "log end point first second third left right soft hard re co sub key-value position element input output".replace(
        " ", "|"
    ),
    re.IGNORECASE,
)


def clean(draft: Draft) -> bool:
    """Clean a draft, and say whether it was printed on pages (breaks between pages were found)."""
    for opening, closing, brackets in _TEX_BRACKETS:
        if 0 < draft.text.count(opening) == draft.text.count(closing):
            table = dict(zip((opening, closing), brackets, strict=True))
            draft.substitute(re.compile(f"[{opening}{closing}]"), lambda found, table=table: table[found.group()])
    draft.substitute(_CHARACTERS, _character)
    draft.substitute(_ENTITY, lambda found: _entity(found.group()))
    draft.substitute(_STACKED, _bracket)
    paged = _without_furniture(draft)
    if paged:
        draft.substitute(_HYPHENATED, lambda found: found[1] + ("-" if _KEPT.fullmatch(found[1]) else ""))
    return paged


def _character(found: re.Match[str]) -> str:
    sign = found.group()
    if sign[0] in "\r\u2028\u2029":
        return "\n"
    return "    " if sign == "\t" else _LIGATURES.get(sign, " " if re.match(f"[{_SPACES}]", sign) else "")


def _entity(text: str) -> str | None:
    sign = html.unescape(text)
    return None if len(sign) > 2 or (sign < " " and sign != "\n") else sign.replace("\xa0", " ").replace("\xad", "")


def _bracket(found: re.Match[str]) -> str:
    """A run of pieces is one bracket; a piece on a line with entries counts only at the top left or bottom right."""
    kind, glyphs = found.lastgroup or "", found.group().split()
    sign = (*_LEFT, *_RIGHT)[int(kind[1]) + (3 if kind[0] == "R" else 0)]
    ends = _TOPS if kind[0] == "L" else _BOTTOMS
    return sign if len("".join(glyphs)) > 1 or glyphs[0] in ends else " "


def _without_furniture(draft: Draft) -> bool:
    breaks = [(found.start(), found.end()) for found in _PAGE.finditer(draft.text)]
    if not breaks:
        _numbered_footers(draft)
        return False
    starts = [0, *(stop for _, stop in breaks)]
    stops = [*(start for start, _ in breaks), len(draft.text)]
    edges: list[list[tuple[int, int, str]]] = []
    for start, stop in zip(starts, stops, strict=True):
        lines = [at.span() for at in _LINE.finditer(draft.text, start, stop)]
        chosen = dict.fromkeys((*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]))
        edges.append([(begin, end, _PAGED.sub("#", draft.text[begin:end].strip())) for begin, end in chosen])
    pages = [page for page in edges if page]
    counts = Counter(key for page in pages for key in {key for *_, key in page})
    changes = [(start, stop, "") for start, stop in breaks]
    for page in pages:
        for begin, end, key in page:
            repeated = len(key) > 5 and counts[key] > 1 and 2 * counts[key] >= len(pages) and not _LABEL.match(key)
            number = (begin, end) == page[-1][:2] and _PAGE_NUMBER.fullmatch(draft.text[begin:end].strip())
            if repeated or (number and counts[key] > 1):
                changes.append((begin, end, ""))
    # A removed line takes its end with it: a paragraph may go on over the page.
    ended = [(start, min(stop + 1, len(draft.text)) if draft.text[stop : stop + 1] == "\n" else stop, put)
             for start, stop, put in sorted(changes)]  # fmt: skip
    draft.replace(ended)
    return True


def _numbered_footers(draft: Draft) -> None:
    """Long lines that differ in a page number at the end alone, counted upwards, where no page breaks are left."""
    lines: dict[str, list[re.Match[str]]] = {}
    for found in re.finditer(r"^(.{40,400}?)(\d{1,3})$", draft.text, re.MULTILINE):
        if "=" not in found[1]:
            lines.setdefault(found[1], []).append(found)
    furniture = [
        found
        for group in lines.values()
        if len(group) > 2 and all(int(after[2]) == int(before[2]) + 1 for before, after in pairwise(group))
        for found in group
    ]
    draft.replace([(found.start(), min(found.end() + 1, len(draft.text)), "")
                   for found in sorted(furniture, key=lambda found: found.start())])  # fmt: skip
