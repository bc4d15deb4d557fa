"""Speakers told by a sign or a heading that recurs: "🧑 …" and "🤖 …", "### What I asked" and "### What it said"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from .markup import words

_PICTURE = r"\U0001F000-\U0001FAFF\u2600-\u27BF"
_SIGN = re.compile(rf"[ \t]{{0,3}}(?P<mark>[{_PICTURE}][{_PICTURE}\uFE0F\u200D]*)[ \t]*[:：>-]?[ \t]*(?P<rest>.*)$")
_HEADING = re.compile(r"[ \t]{0,3}(?:#{1,6}[ \t]+(?P<hash>[^\n]{1,60}?)|\*\*(?P<bold>[^*\n]{1,60})\*\*)[ \t]*:?[ \t]*$")
_MACHINES = "🤖👾💻🖥🧠🦾🛰🔮✨"
_ASKS = words("i my me mine we us our asked ask asking prompt prompts question")
_ANSWERS = words("it its bot chatbot machine reply replied replies answer answered answers response said")


def named(text: str) -> str | None:
    """The text with names in the place of two signs or headings that take turns; None where there are none such.

    >>> print(named("🧑 What is E?\\n\\n🤖 It is m.\\n\\n🧑 Why?\\n\\n🤖 By linearity."))
    **User:** What is E?
    <BLANKLINE>
    **Tutor:** It is m.
    <BLANKLINE>
    **User:** Why?
    <BLANKLINE>
    **Tutor:** By linearity.
    """
    lines = text.split("\n")
    return _renamed(lines, _by_sign, _sign_role) or _renamed(lines, _by_heading, _heading_role)


def _by_sign(line: str) -> tuple[str, str] | None:
    found = None if line.isascii() else _SIGN.match(line)
    return None if found is None else (found["mark"], found["rest"])


def _by_heading(line: str) -> tuple[str, str] | None:
    found = _HEADING.match(line)
    if found is None:
        return None
    said = re.findall(r"[^\W\d_]+", (found["hash"] or found["bold"]).lower())
    return (" ".join(said), "") if 1 <= len(said) <= 5 else None


def _sign_role(mark: str) -> str | None:
    return "tutor" if mark[0] in _MACHINES else None


def _heading_role(heading: str) -> str | None:
    # "What it asked me" has words of both: the first one tells who speaks.
    first = next((word for word in heading.split() if word in _ASKS | _ANSWERS), None)
    return None if first is None else "student" if first in _ASKS else "tutor"


def _renamed(
    lines: list[str], mark_of: Callable[[str], tuple[str, str] | None], role_of: Callable[[str], str | None]
) -> str | None:
    """The lines with names for the two marks that are most common, where they take turns."""
    marks = [(place, *found) for place, line in enumerate(lines) if len(line) < 2**16 and (found := mark_of(line))]
    common = [mark for mark, _ in Counter(mark for _, mark, _ in marks).most_common(2)]
    if len(common) < 2:
        return None
    both = [mark for _, mark, _ in marks if mark in common]
    changes = sum(one != other for one, other in pairwise(both))
    roles = {mark: role_of(mark) for mark in common}
    told = set(roles.values()) == {"student", "tutor"}
    if changes < 0.75 * (len(both) - 1) or (len(both) < 4 and not told and "tutor" not in roles.values()):
        return None
    if not told:
        # Whoever speaks first asks, unless the other is known to.
        known = next((mark for mark in common if roles[mark]), both[0])
        role = roles[known] or ("student" if mark_of is _by_sign else None)
        if role is None:
            return None
        other = next(mark for mark in common if mark != known)
        roles = {known: role, other: "tutor" if role == "student" else "student"}
    names = {mark: "User" if role == "student" else "Tutor" for mark, role in roles.items()}
    kept = list(lines)
    for place, mark, rest in marks:
        if mark in names:
            kept[place] = f"**{names[mark]}:** {rest}".rstrip()
    return "\n".join(kept)
