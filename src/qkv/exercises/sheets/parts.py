"""Find the parts of one question where its text goes on with a list: "compute p for (a) T = 1 (b) T = 2"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from .asked import TABLE, find_asked, sentences
from .splitting import Question

_LINE = TABLE["line"]
_INLINE = re.compile(r"(?<=[\s:,;.])\((?P<inner>[a-h]|i{1,3}|iv|v|\d)\)[ \t]+(?=\S)(?!and\b|or\b|of\b)")
_COUNTED = ("abcdefghijkl", ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii"), [str(at) for at in range(1, 13)])
_COMPLETE = re.compile(r"[.?!\])}]\W*$")
_ASKS = TABLE["asks"]


def stem_of(text: str) -> str:
    """The last sentence of a set-up, where it is not complete: "compute p when"."""
    last = text[slice(*(list(sentences(text)) or [(0, 0)])[-1])].strip()
    return "" if _COMPLETE.search(last) else last


def with_parts(question: Question, names: Mapping[str, str] | None = None) -> Question:
    """A question without parts, with those that stand in its text as a list."""
    text = question.text
    if question.options and not question.parts and stem_of(text):
        text = "\n".join([text, *(f"({each.label}) {each.text}" for each in question.options)])
    for pattern in (_LINE, _INLINE):
        marks = _run(
            [(found["inner"] or found.groupdict().get("outer") or "", found) for found in pattern.finditer(text)]
        )
        if len(marks) < 2:
            continue
        ends = [*(found.start() for _, found in marks[1:]), len(text)]
        bodies = [text[found.end() : end].strip(" \n,;") for (_, found), end in zip(marks, ends, strict=True)]
        bodies[-1], _, after = bodies[-1].partition("\n\n")
        stem = text[: marks[0][1].start()].strip()
        if stem and _are_parts(stem, bodies, names):
            told = f"{stem}\n\n{after}".strip()
            shared = f"{question.context}\n\n{told}".strip()
            parts = tuple(
                Question(f"{question.label}({name})" if question.label else name, body, question.span, context=shared)
                for (name, _), body in zip(marks, bodies, strict=True)
            )
            return replace(question, text=told, parts=parts, options=(), pieces=())
    return question


def _run(marks: list[tuple[str, re.Match[str]]]) -> list[tuple[str, re.Match[str]]]:
    """The labels that count from the first of a list on."""
    for counted in _COUNTED:
        found: list[tuple[str, re.Match[str]]] = []
        for name, match in marks:
            if len(found) < len(counted) and name == counted[len(found)]:
                found.append((name, match))
        if len(found) > 1:
            return found
    return []


def _are_parts(stem: str, bodies: list[str], names: Mapping[str, str] | None) -> bool:
    if any(_ASKS.search(body) for body in bodies):
        return True
    if last := stem_of(stem):
        asked = find_asked(last, names)
        if (
            asked.wanted
            or asked.unread
            or re.search(r"\b(?:compute|find|give|evaluate|state|determine)\W*$", last, re.IGNORECASE)
        ):
            return True
    return not stem.rstrip().endswith("?") and all(find_asked(body, names, noun=True).wanted for body in bodies)
