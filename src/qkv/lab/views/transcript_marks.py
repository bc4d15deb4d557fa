"""Where in a turn a claim stands: the turn's text in pieces, each with the claims that are made in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ...tutor.claims import Claim

LONGEST_SOUGHT = 2000  # characters of a claim that is looked for with other spaces
_BEGINNING = 60  # characters by which a section is found


def pieces(text: str, claims: Mapping[str, Claim]) -> list[tuple[str, list[str]]]:
    """The text cut at its claims, by their names; claims that overlap share a piece.

    >>> pieces("so it is d, and s = d", {"b": Claim(1, "s = d", None)})
    [('so it is d, and ', []), ('s = d', ['b'])]
    """
    spans = sorted((*span, name) for name, claim in claims.items() if (span := place(text, claim)) is not None)
    cut: list[tuple[str, list[str]]] = []
    done = 0
    for start, end, names in _joined(spans):
        if start > done:
            cut.append((text[done:start], []))
        cut.append((text[start:end], names))
        done = end
    return [*cut, (text[done:], [])] if done < len(text) else cut


def place(text: str, claim: Claim) -> tuple[int, int] | None:
    """Where a claim stands: its own words within the section that it was found in, or else that section."""
    begin = max(0, text.find(claim.section[:_BEGINNING]))
    end = min(len(text), begin + len(claim.section)) if claim.section else len(text)
    for sought in dict.fromkeys((claim.text, claim.whole)):
        if sought.strip() and (found := _last(text, sought.strip(), begin, end)):
            return found
    if claim.section and (at := text.find(claim.section)) >= 0:
        return at, at + len(claim.section)
    return None


def _last(text: str, sought: str, begin: int, end: int) -> tuple[int, int] | None:
    """The last mention within a section, or else anywhere: what is said at the end counts."""
    if len(sought) > LONGEST_SOUGHT:
        at = text.find(sought)
        return (at, at + len(sought)) if at >= 0 else None
    # A letter alone is no piece of a word, and line breaks may stand where spaces are.
    words = r"\s+".join(map(re.escape, sought.split()))
    pattern = re.compile(rf"(?<![\w\\]){words}(?!\w)")
    within = [found.span() for found in pattern.finditer(text, begin, end)]
    if within:
        return within[-1]
    found = pattern.search(text)
    return found.span() if found else None


def _joined(spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, list[str]]]:
    joined: list[tuple[int, int, list[str]]] = []
    for start, end, name in spans:
        if joined and start < joined[-1][1]:
            first, last, names = joined[-1]
            joined[-1] = (first, max(last, end), [*names, name])
        else:
            joined.append((start, end, [name]))
    return joined
