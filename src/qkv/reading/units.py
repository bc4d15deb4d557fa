"""A turn as units in order: lines, displayed formulas, listings and rows of tables, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .chat import Turn

_DISPLAY = re.compile(
    r"\\\[(?P<brackets>.*?)\\\]|\$\$(?P<dollars>.*?)\$\$"
    r"|^[ ]*\[[ ]*\n(?P<bare>(?:(?!^[ ]*[\[\]][ ]*$)[^\n]*\n){1,30}?)[ ]*\][ ]*$"
    r"|^[ ]*(?:```|~~~)[ ]*(?:math|latex|tex)[ ]*\n(?P<fenced>.*?)\n[ ]*(?:```|~~~)[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_FENCE = re.compile(r"^[ ]*(```|~~~)[^\n]*\n.*?(?:^[ ]*\1[ ]*$|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?:^|(?<=[\s,;:]))\(?(?P<letter>[a-h])\)(?=\s*\S)")
_BEFORE = re.compile(r"[\s>•*\-–—✅✔☑✓#]*(?:[A-Za-z ]{0,20}(?:answers?|results?|summary)\s*[:：]\s*)?", re.IGNORECASE)
_RULE = re.compile(r"\s*\|?[\s:|-]+\|[\s:|-]*")


@dataclass(frozen=True)
class Unit:
    """A piece of a turn: `kind` is "line", "display", "code", "row" or "head" (the first row of a table)."""

    turn: Turn
    start: int
    stop: int
    text: str
    kind: str = "line"
    cells: tuple[str, ...] = ()

    @property
    def plain(self) -> str:
        return self.text.strip()


def units(turn: Turn) -> list[Unit]:
    """The units of a turn; blank lines are none."""
    text = turn.text
    found: list[Unit] = []
    done = 0
    for start, stop, kind, inner in _blocks(text):
        found += _lines(turn, done, start)
        found.append(Unit(turn, start, stop, inner, kind))
        done = stop
    found += _lines(turn, done, len(text))
    return found


def divided(unit: Unit) -> list[Unit]:
    """A line with several labels, "(a) x, (b) y, (c) z", as one unit for each; other units as they are."""
    if unit.kind != "line":
        return [unit]
    found: list[re.Match[str]] = []
    for mark in _INLINE.finditer(unit.text):
        if not found or ord(mark["letter"]) == ord(found[-1]["letter"]) + 1:
            found.append(mark)
    if len(found) < 2 or not _BEFORE.fullmatch(unit.text[: found[0].start()]):
        return [unit]
    starts = [0, *(mark.start() for mark in found[1:])]
    stops = [*starts[1:], len(unit.text)]
    texts = [unit.text[start:stop].rstrip(" ,;") for start, stop in zip(starts, stops, strict=True)]
    if found[0].start():
        texts[0] = texts[0][found[0].start() :]
        starts[0] = found[0].start()
    return [
        replace(unit, start=unit.start + start, stop=unit.start + start + len(text), text=text)
        for start, text in zip(starts, texts, strict=True)
    ]


def _blocks(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Displayed formulas and listings, in order and apart."""
    at = 0
    displays, fences = _DISPLAY.search(text), _FENCE.search(text)
    while displays or fences:
        if displays and (not fences or displays.start() <= fences.start()):
            inner = next((each for each in displays.groups() if each is not None), "")
            if displays["bare"] is None or re.search(r"[\\^_=]", inner):
                yield displays.start(), displays.end(), "display", " ".join(inner.split())
            at = displays.end()
        elif fences:
            yield fences.start(), fences.end(), "code", fences.group()
            at = fences.end()
        # A match that begins later is kept: searching again for each would take quadratic time.
        displays = displays if displays is None or displays.start() >= at else _DISPLAY.search(text, at)
        fences = fences if fences is None or fences.start() >= at else _FENCE.search(text, at)


def _lines(turn: Turn, start: int, stop: int) -> Iterator[Unit]:
    table = False
    for match in re.finditer(r"[^\n]*\S[^\n]*", turn.text[start:stop]):
        line, begin = match.group(), start + match.start()
        if line.count("|") > 1 and line.strip().startswith("|"):
            if not _RULE.fullmatch(line):
                cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
                yield Unit(turn, begin, begin + len(line), line, "row" if table else "head", cells)
            table = True
        else:
            table = False
            yield Unit(turn, begin, begin + len(line), line)
