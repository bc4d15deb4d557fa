"""Layers over positions: which positions of each layer a chosen one of the top layer comes from, and by which edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.errors import ShapeError, complaint
from qkv.figures.chart import EDGE, whole
from qkv.figures.legend import Entry, draw_legend, text_block
from qkv.figures.marks import as_name
from qkv.figures.svg import number, tag, text_width, title
from qkv.figures.theme import COLOURS, INK, LEVEL_DASHES, PAPER, RULE, SOFT, colour_of

SIZE = 14  # of letters: a lattice is scrolled where it is too wide, never shrunk
NARROW, BROAD = 30, 64  # between two columns
LOW, HIGH = 62, 92  # between two rows
RADIUS, SMALL = 7, 3


@dataclass(frozen=True)
class Strand:
    """Edges of one kind: for each row but the last, pairs of a column there and a column of the row beneath.

    `series` is a place among the colours and dashes; without one they are drawn as rules are.
    """

    name: str
    steps: Sequence[Sequence[tuple[int, int]]]
    series: int | None = None


def lattice(
    heading: str, rows: Sequence[str], counts: Sequence[Sequence[int]], strands: Sequence[Strand], chosen: int
) -> str:
    """Rows from the top down, columns numbered from 1; a dot where `counts` is 1, a square where more paths meet.

    Every column of the top row is a group with the class `qkv-pick` and its number in `data-column`: what a page
    needs to let the reader choose another. `chosen` counts from 0.

    >>> svg = lattice("Reach", ["out", "in"], [[0, 1], [1, 1]], [Strand("head", [[(1, 0)]], series=0)], chosen=1)
    >>> "<title>in, position 1: 1 path</title>" in svg
    True
    """
    heading, columns = as_name("heading", heading), len(counts[0])
    if len(counts) != len(rows) or any(len(row) != columns for row in counts):
        raise ShapeError(complaint("counts", f"{len(counts)} rows", f"{len(rows)} of the same length"))
    left = EDGE + max(text_width(name, SIZE) for name in rows) + 20
    across = min(BROAD, max(NARROW, 560 / columns))
    down = HIGH if len(rows) <= 4 else LOW
    place = _Places(left + across / 2, EDGE + 24, across, down)
    bottom = place.y(len(rows) - 1)
    width = left + columns * across + EDGE

    names = "".join(
        text_block([name], EDGE, place.y(r) - 0.65 * SIZE, SIZE, "qkv-soft", SOFT) for r, name in enumerate(rows)
    )
    numbers = "".join(
        text_block([str(c + 1)], place.x(c), bottom + 18, SIZE, "qkv-soft", SOFT, "middle") for c in range(columns)
    )
    edges = "".join(_strand(place, strand) for strand in strands)
    nodes = "".join(_row(place, r, name, counts[r]) for r, name in enumerate(rows) if r)
    picks = "".join(_pick(place, rows[0], c, counts[0][c], c == chosen) for c in range(columns))
    entries = [Entry(strand.name, _edge(strand, "M-15 0H15")) for strand in strands]
    entries += [
        Entry("reached by one path", _mark(0, 0, 1)),
        Entry("paths meet", _mark(0, 0, 2)),
        Entry("not reached", _mark(0, 0, 0)),
    ]
    top = bottom + 18 + 2 * SIZE
    legend, high = draw_legend(entries, EDGE, top, max(width, 300) - 2 * EDGE)
    said = "; ".join(
        f"{name}: {', '.join(str(c + 1) for c, count in enumerate(row) if count) or 'none'}"
        for name, row in zip(rows, counts, strict=True)
    )
    body = names + edges + nodes + tag("g", picks, class_="qkv-picks") + numbers + legend
    return whole(heading, f"Positions reached, from the top: {said}.", body, max(width, 300), round(top + high + EDGE))


@dataclass(frozen=True)
class _Places:
    left: float
    top: float
    across: float
    down: float

    def x(self, column: int) -> float:
        return self.left + column * self.across

    def y(self, row: int) -> float:
        return self.top + row * self.down


def _strand(place: _Places, strand: Strand) -> str:
    drawn = ""
    for r, steps in enumerate(strand.steps):
        ends = ((place.x(a), place.y(r), place.x(b), place.y(r + 1)) for a, b in steps)
        lines = "".join(f"M{number(xa)} {number(ya)}L{number(xb)} {number(yb)}" for xa, ya, xb, yb in ends)
        drawn += _edge(strand, lines, strand.name) if lines else ""
    return drawn


def _edge(strand: Strand, lines: str, said: str = "") -> str:
    name, looks = "qkv-rule", {"stroke": RULE, "stroke_width": 2.5}
    if strand.series is not None:
        index = colour_of(strand.series)
        name, looks = f"qkv-stroke-{index}", {"stroke": COLOURS[index], "stroke_width": 1.8}
        if strand.series:
            looks["stroke_dasharray"] = LEVEL_DASHES[(strand.series - 1) % len(LEVEL_DASHES)]
    return tag("path", *([title(said)] if said else []), class_=f"qkv-edge {name}", d=lines, fill="none", **looks)


def _row(place: _Places, row: int, name: str, counts: Sequence[int]) -> str:
    return "".join(
        _mark(place.x(c), place.y(row), count, f"{name}, position {c + 1}: {_paths(count)}")
        for c, count in enumerate(counts)
    )


def _pick(place: _Places, name: str, column: int, count: int, chosen: bool) -> str:
    x, y, side = place.x(column), place.y(0), min(place.across, 34)
    # A field to point at that is larger than the mark in it.
    field = tag(
        "rect",
        class_="qkv-pick-field qkv-stroke-0" if chosen else "qkv-pick-field",
        x=x - side / 2,
        y=y - side / 2,
        width=side,
        height=side,
        rx=4,
        fill="none",
        stroke=COLOURS[0] if chosen else "none",
        stroke_width=2,
        pointer_events="all",
    )
    said = title(f"{name}, position {column + 1}{': chosen' if chosen else ''}")
    return tag("g", said, field, _mark(x, y, count), class_="qkv-pick", data_column=str(column + 1))


def _mark(x: float, y: float, count: int, said: str = "") -> str:
    told = [title(said)] if said else []
    if not count:
        hollow = {"fill": PAPER, "stroke": SOFT}
        return tag("circle", *told, class_="qkv-node qkv-paper qkv-level", cx=x, cy=y, r=SMALL, **hollow)
    if count == 1:
        return tag("circle", *told, class_="qkv-node qkv-ink", cx=x, cy=y, r=RADIUS, fill=INK)
    corner = {"x": x - RADIUS, "y": y - RADIUS, "width": 2 * RADIUS, "height": 2 * RADIUS}
    return tag("rect", *told, class_="qkv-node qkv-ink", **corner, fill=INK)


def _paths(count: int) -> str:
    return "not reached" if not count else f"{count} path{'s' if count != 1 else ''}"
