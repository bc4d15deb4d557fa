"""Who says what, where names that are known stand before it: alone on a line, or before a colon."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

ROLES = ("student", "tutor", "note", "silent")


@dataclass(frozen=True)
class Mark:
    """A name at the beginning of a line: where the line begins, and where what is said begins."""

    start: int
    said: int
    role: str
    name: str

    @property
    def weak(self) -> bool:
        """Whether lines that no one speaks begin like this too."""
        return self.name.lower() in names()["weak"]


@cache
def names() -> dict[str, Any]:
    """The data file of names."""
    return tomllib.loads(files("qkv.reading").joinpath("speakers.toml").read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    return re.compile(names()["patterns"][name], re.IGNORECASE | re.MULTILINE)


@cache
def _line() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A name before a colon, and a name alone on a line."""
    name, tail = names()["patterns"]["name"], names()["patterns"]["tail"]
    lead = r"^[ ]{0,3}(?:>[ ]?){0,3}(?:\#{1,6}[ ]+)?(?:[-*•][ ]+)?(?:\*\*|__)?"
    colon = rf"{lead}{name}{tail}(?:\*\*|__)?[ ]*[:：](?:\*\*|__)?"
    alone = rf"{lead}{name}{tail}(?:\*\*|__)?[ ]*[:：]?[ ]*$"
    signs = re.IGNORECASE | re.MULTILINE
    return re.compile(colon, signs), re.compile(alone, signs)


def role_of(name: str) -> str | None:
    """The role of a name that is known, "student", "tutor", "note" or "silent"; None for any other.

    >>> role_of("ChatGPT"), role_of("Student 2"), role_of("Dana"), role_of("AI tutor")
    ('tutor', 'student', None, 'tutor')
    """
    plain = re.sub(r"\s+", " ", re.sub(r"[^\w\s-]", " ", name)).strip().lower().removeprefix("the ")
    plain = re.sub(r"(?<=[^\W\d_]{2})[ -](?:\d{1,2}|[a-z])$", "", plain).removesuffix(" said")
    for role in ROLES:
        if plain in names()[role]:
            return role
    words = plain.split()
    known = {role_of(word) for word in words} if 1 < len(words) <= 3 else set()
    return known.pop() if len(known) == 1 else None


def marks(text: str) -> list[Mark]:
    """The names that divide a text into turns; none where no two speakers that are known take turns."""
    found = sorted({*_colons(text), *_alone(text)}, key=lambda mark: mark.start)
    found = [mark for at, mark in enumerate(found) if not at or mark.start != found[at - 1].start]
    strong = {mark.role for mark in found if not mark.weak}
    found = [mark for mark in found if not (mark.weak and mark.role in strong and mark.role != "note")]
    if not _takes_turns([mark for mark in found if mark.role in ("student", "tutor")]):
        found = _pairs(text) or _partners(text)
    return found


def _takes_turns(spoken: Sequence[Mark]) -> bool:
    """Whether a student and a tutor both speak, and answer each other."""
    changes = sum(one.role != two.role for one, two in itertools.pairwise(spoken))
    return changes > 0 and 8 * changes >= len(spoken)


def _colons(text: str) -> list[Mark]:
    found = []
    for match in _line()[0].finditer(text):
        role = role_of(match["name"] + (match["suffix"] or ""))
        inside = role_of(match["inside"]) if match["inside"] else None
        if role is None and inside in ("student", "tutor"):
            role = inside
        if role:
            found.append(Mark(match.start(), match.end(), role, match["name"].strip()))
    return found


def _alone(text: str) -> list[Mark]:
    found = []
    for match in _line()[1].finditer(text):
        name = match["name"].strip()
        if name in names()["alone"] and (role := role_of(name)):
            found.append(Mark(match.start(), match.end(), role, name))
    return found


def _pairs(text: str) -> list[Mark]:
    """Q: and A:, where they alternate strictly."""
    roles = names()["pairs"]
    found = {}
    for match in (*_line()[1].finditer(text), *_line()[0].finditer(text)):
        name = match["name"].strip()
        if name.lower() in roles and not match["suffix"] and re.search(r":|^\W*[A-Z]\w", match[0]):
            found.setdefault(match.start(), Mark(match.start(), match.end(), roles[name.lower()], name))
    marked = [found[start] for start in sorted(found)]
    return marked if len(marked) > 1 and _alternate(marked) and marked[0].role == "student" else []


def _partners(text: str) -> list[Mark]:
    """Two names that take turns, as headings, in bold or alone on lines, of which one is known: the other answers it."""
    alone = [match for match in _line()[1].finditer(text) if not match["suffix"]]
    for known in dict.fromkeys(name for match in alone if (name := match["name"].strip()) in names()["alone"]):
        role = role_of(known)
        first = next(match for match in alone if match["name"].strip() == known)
        form = re.sub(r"\w.*\w|\w", "N", first[0].strip())
        spoken = [match for match in alone if re.sub(r"\w.*\w|\w", "N", match[0].strip()) == form]
        counts = Counter(match["name"].strip() for match in spoken)
        other = next((name for name, count in counts.most_common(2) if name != known and count > 1), "")
        roles = {known: role or "", other: {"student": "tutor", "tutor": "student"}.get(role or "", "")}
        found = [Mark(each.start(), each.end(), roles[name], name) for each in spoken
                 if (name := each["name"].strip()) in roles]  # fmt: skip
        if other and roles[other] and role_of(other) is None and len(found) > 3 and _alternate(found):
            return found
    return []


def _alternate(found: Sequence[Mark]) -> bool:
    return all(one.role != two.role for one, two in itertools.pairwise(found))
