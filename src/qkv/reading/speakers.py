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
        if role := role or (inside if inside in ("student", "tutor") else None):
            found.append(_mark(match, role))
    return found


def _mark(match: re.Match[str], role: str) -> Mark:
    return Mark(match.start(), match.end(), role, match["name"].strip())


def _alone(text: str) -> list[Mark]:
    known = [match for match in _line()[1].finditer(text) if match["name"].strip() in names()["alone"]]
    return [_mark(match, role) for match in known if (role := role_of(match["name"]))]


def _pairs(text: str) -> list[Mark]:
    """Q: and A:, Prompt and Response, where they alternate strictly."""
    roles, found = names()["pairs"], dict[int, Mark]()
    for match in (*_line()[1].finditer(text), *_line()[0].finditer(text)):
        role = roles.get(match["name"].strip().lower())
        if role and not match["suffix"] and re.search(r":|^\W*[A-Z]\w", match[0]):
            found.setdefault(match.start(), _mark(match, role))
    marked = [found[start] for start in sorted(found)]
    return marked if len(marked) > 1 and _alternate(marked) and marked[0].role == "student" else []


def _partners(text: str) -> list[Mark]:
    """Two names that take turns in the same form, alone on lines, of which one is known: the other answers it."""
    forms: dict[str, list[re.Match[str]]] = {}
    for match in _line()[1].finditer(text):
        forms.setdefault(re.sub(r"\w.*\w|\w", "N", match[0].strip()), []).append(match)
    for spoken in forms.values():
        counts = Counter(match["name"].strip() for match in spoken)
        for known in (name for name in counts if name in names()["alone"]):
            role, others = role_of(known), [name for name, count in counts.most_common() if count > 1 and name != known]
            answers = {"student": "tutor", "tutor": "student"}.get(role or "")
            roles = {known: role, others[0]: answers} if others and role_of(others[0]) is None else {}
            found = [_mark(match, said) for match in spoken if (said := roles.get(match["name"].strip()))]
            if answers and len(found) > 3 and _alternate(found):
                return found
    return []


def _alternate(found: Sequence[Mark]) -> bool:
    return all(one.role != two.role for one, two in itertools.pairwise(found))
