"""Layers over positions: which positions of each layer a chosen one of the top layer comes from, and by which edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.cost.readable import count_text
from qkv.errors import OptionError, ShapeError, complaint
from qkv.figures.chart import CAPTION, EDGE, NOTE, TITLE, svg_figure
from qkv.figures.labels import Entry, draw_legend, text_block
from qkv.figures.marks import as_name
from qkv.figures.svg import LINE, number, tag, text_width, title
from qkv.figures.theme import COLOURS, GRID, INK, LEVEL_DASHES, PAPER, RULE, SOFT, colour_of

FONT_SIZE = 14  # of letters: a lattice is scrolled where it is too wide, never shrunk
MIN_COLUMN, MAX_COLUMN = 30, 64  # between two columns
LOW, HIGH = 62, 92  # between two rows
RADIUS, SMALL = 7, 3


@dataclass(frozen=True)
class EdgeSet:
    """Edges of one kind: for each row but the last, pairs of a column there and a column of the row beneath.

    `series` is a place among the colours and dashes; without one they are drawn as rules are.
    """

    name: str
    steps: Sequence[Sequence[tuple[int, int]]]
    series: int | None = None


def lattice(
    heading: str, rows: Sequence[str], counts: Sequence[Sequence[int]], strands: Sequence[EdgeSet], chosen: int
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
    left = EDGE + max(text_width(name, FONT_SIZE) for name in rows) + 20
    across = min(MAX_COLUMN, max(MIN_COLUMN, 560 / columns))
    down = HIGH if len(rows) <= 4 else LOW
    place = _Places(left + across / 2, EDGE + 24, across, down)
    bottom = place.y(len(rows) - 1)
    width = left + columns * across + EDGE

    names = "".join(
        text_block([name], EDGE, place.y(r) - 0.65 * FONT_SIZE, FONT_SIZE, "qkv-soft", SOFT)
        for r, name in enumerate(rows)
    )
    numbers = "".join(
        text_block([str(c + 1)], place.x(c), bottom + 18, FONT_SIZE, "qkv-soft", SOFT, "middle") for c in range(columns)
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
    top = bottom + 18 + 2 * FONT_SIZE
    legend, high = draw_legend(entries, EDGE, top, max(width, 300) - 2 * EDGE)
    said = "; ".join(
        f"{name}: {', '.join(str(c + 1) for c, count in enumerate(row) if count) or 'none'}"
        for name, row in zip(rows, counts, strict=True)
    )
    body = names + edges + nodes + tag("g", picks, class_="qkv-picks") + numbers + legend
    return svg_figure(
        heading, f"Positions reached, from the top: {said}.", body, max(width, 300), round(top + high + EDGE)
    )


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


def _strand(place: _Places, strand: EdgeSet) -> str:
    drawn = ""
    for r, steps in enumerate(strand.steps):
        ends = ((place.x(a), place.y(r), place.x(b), place.y(r + 1)) for a, b in steps)
        lines = "".join(f"M{number(xa)} {number(ya)}L{number(xb)} {number(yb)}" for xa, ya, xb, yb in ends)
        drawn += _edge(strand, lines, strand.name) if lines else ""
    return drawn


def _edge(strand: EdgeSet, lines: str, said: str = "") -> str:
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


PATTERN_SIZE = 14
MIN_SIDE, MAX_SIDE = 9, 22  # of an entry


def sparsity_pattern(
    heading: str,
    entries: Sequence[Sequence[bool]],
    block: int,
    rows: str,
    columns: str,
    marked_column: int | None = None,
) -> str:
    """A square for each entry that is true; a rule after every `block` rows and columns, and one column marked.

    >>> "2 of 4 entries" in pattern("Jacobian", [[True, False], [False, True]], 1, "outputs", "inputs")
    True
    """
    heading, width = as_name("heading", heading), len(entries[0])
    if any(len(row) != width for row in entries):
        raise ShapeError(complaint("entries", "rows of different lengths", "as many entries in every row"))
    side = min(MAX_SIDE, max(MIN_SIDE, 300 / max(width, len(entries))))
    left, top = EDGE + PATTERN_SIZE + 8, EDGE + PATTERN_SIZE + 10
    right, bottom = left + width * side, top + len(entries) * side
    inset = 1 if side > 12 else 0.5
    squares = "".join(
        f"M{number(left + c * side + inset)} {number(top + r * side + inset)}"
        f"h{number(side - 2 * inset)}v{number(side - 2 * inset)}h{number(2 * inset - side)}z"
        for r, row in enumerate(entries)
        for c, here in enumerate(row)
        if here
    )
    count = sum(map(sum, entries))
    said = f"{count} of {width * len(entries)} entries are not zero"
    rules = "".join(f"M{number(left + at * side)} {number(top)}V{number(bottom)}" for at in range(0, width + 1, block))
    rules += "".join(
        f"M{number(left)} {number(top + at * side)}H{number(right)}" for at in range(0, len(entries) + 1, block)
    )
    marked = ""
    if marked_column is not None:
        place = {"x": left + marked_column * side, "y": top, "width": side, "height": bottom - top}
        looks = {"fill": "none", "stroke": COLOURS[1], "stroke_width": 2.5}
        marked = tag("rect", title("the entry that is dragged"), class_="qkv-stroke-1", **place, **looks)
    down = f"rotate(-90 {number(EDGE + PATTERN_SIZE)} {number((top + bottom) / 2)})"
    body = (
        text_block([columns], left, EDGE - 2, PATTERN_SIZE, "qkv-soft", SOFT),
        text_block(
            [rows],
            EDGE + PATTERN_SIZE,
            (top + bottom) / 2 - PATTERN_SIZE,
            PATTERN_SIZE,
            "qkv-soft",
            SOFT,
            "middle",
            transform=down,
        ),
        tag("path", title(said), class_="qkv-ink", d=squares, fill=INK) if squares else "",
        tag("path", class_="qkv-rule", d=rules, fill="none", stroke=RULE),
        marked,
    )
    return svg_figure(heading, f"{said}.", "".join(body), max(right + EDGE, 180), bottom + EDGE)


BEFORE, AFTER = 24, 16  # columns of tokens that were there, and of those that may come
TALL, THIN = 48, 3
EARLIER = 56  # width of what stands for all tokens that are not drawn one by one
OLD, NEW = 0, 1  # colours of what was there, and of what the last step wrote
CELLS = 8


@dataclass(frozen=True)
class Lane:
    """heads: that keep something, of `most` in the figure. said: beside the name. grows: by a column for each token;
    else it is a square that each step writes anew. chosen: what the reader looks at."""

    name: str
    heads: int
    said: str
    grows: bool = True
    chosen: bool = False


def cache_growth(heading: str, lanes: Sequence[Lane], past: int, steps: int, page: int, width: float = 720) -> str:
    """After `past` tokens and so many steps of one more. A page holds so many tokens.

    >>> lanes = [Lane("MHA", 8, "1 kB"), Lane("linear", 2, "1 kB", grows=False)]
    >>> svg = growing("Kept", lanes, past=64, steps=3, page=64)
    >>> svg.count('class="qkv-column qkv-fill-0"'), svg.count("qkv-newest")
    (26, 2)
    """
    if not 0 <= steps <= AFTER or past < 0 or not lanes:
        given = f"{len(lanes)} lanes, {past} tokens, {steps} steps"
        raise OptionError(complaint("lanes, past, steps", given, f"lanes, tokens, and 0 to {AFTER} steps"))
    drawing = _Growth(past, steps, page, max(lane.heads for lane in lanes), width)
    y, body = EDGE, text_block([heading], EDGE, EDGE, TITLE, "qkv-title qkv-ink", INK, font_weight="bold")
    y += TITLE * LINE + 6
    kept, states = [lane for lane in lanes if lane.grows], [lane for lane in lanes if not lane.grows]
    top = y
    for lane in kept:
        body += _label(lane, y) + drawing.columns(lane, y + CAPTION * LINE + 4)
        y += CAPTION * LINE + 4 + drawing.tall(lane) + 10
    if kept:
        body += drawing.pages(top + CAPTION * LINE, y - 6) + drawing.places(y - 2)
        y += 2 * NOTE * LINE + 8
    for lane in states:
        body += _label(lane, y) + drawing.square(lane, y + CAPTION * LINE + 4)
        y += CAPTION * LINE + 4 + TALL + 12
    body += _legend(y)
    y += NOTE * LINE + EDGE
    return svg_figure(heading, drawing.words(lanes), body, width, round(y))


class _Growth:
    def __init__(self, past: int, steps: int, page: int, most: int, width: float) -> None:
        self.past, self.steps, self.page, self.most = past, steps, page, most
        self.first = max(0, past - BEFORE)
        self.left = EDGE + EARLIER + 8
        self.pitch = (width - EDGE - self.left) / (BEFORE + AFTER)
        self.right = width - EDGE

    @property
    def tokens(self) -> int:
        return self.past + self.steps

    def x(self, token: int) -> float:
        return self.left + (token - self.first) * self.pitch

    def tall(self, lane: Lane) -> float:
        return max(THIN, TALL * lane.heads / self.most)

    def columns(self, lane: Lane, y: float) -> str:
        high, drawn = self.tall(lane), ""
        if self.first:
            said = f"{lane.name}: {count_text(self.first, 'earlier token')}"
            drawn += _filled("qkv-earlier", OLD, EDGE, y, EARLIER, high, said, 0.45)
        for token in range(self.first, self.past + AFTER):
            place = {"x": self.x(token) + 1, "y": y, "width": self.pitch - 2, "height": high}
            if token >= self.tokens:
                drawn += tag("rect", class_="qkv-room qkv-grid", **place, fill="none", stroke=GRID)
                continue
            newest = token == self.tokens - 1 and self.steps > 0
            said = f"{lane.name}: key and value of token {token + 1:,}, for {lane.heads} {_heads(lane.heads)}"
            name = "qkv-column qkv-newest" if newest else "qkv-column"
            share = 1 if token >= self.past else 0.45
            drawn += _filled(name, NEW if newest else OLD, **place, said=said, share=share)
        return tag("g", drawn, class_="qkv-lane")

    def pages(self, top: float, bottom: float) -> str:
        """Where one page ends and the next begins."""
        drawn = ""
        for token in range(self.first + (-self.first) % self.page, self.past + AFTER + 1, self.page):
            if token == self.first and self.first == 0:
                continue
            x = self.x(token)
            drawn += tag("line", class_="qkv-level", x1=x, y1=top, x2=x, y2=bottom, stroke=SOFT, stroke_dasharray="4 3")
        return drawn

    def places(self, y: float) -> str:
        """Pages in a first line, numbers of tokens in a second."""
        drawn, end = "", 0.0
        numbers = sorted({token // self.page for token in range(self.first, self.past + AFTER)})
        for number in numbers:
            text = f"page {number + 1:,}"
            x = max(self.x(number * self.page), self.left)
            if x >= end and x + text_width(text, NOTE) <= self.right:
                drawn += text_block([text], x, y, NOTE, "qkv-tick qkv-soft", SOFT)
                end = x + text_width(text, NOTE) + 8
        if self.first:
            drawn += text_block([f"{self.first:,}"], EDGE, y, NOTE, "qkv-tick qkv-soft", SOFT)
            drawn += text_block(["earlier"], EDGE, y + NOTE * LINE, NOTE, "qkv-tick qkv-soft", SOFT)
        said = count_text(self.tokens, "token")
        half = text_width(said, NOTE) / 2
        middle = self.x(self.tokens) - self.pitch / 2 if self.tokens else self.left
        at = min(max(middle, self.left + half), self.right - half)
        return drawn + text_block([said], at, y + NOTE * LINE, NOTE, "qkv-tick qkv-ink", INK, "middle")

    def square(self, lane: Lane, y: float) -> str:
        """Sums: all of them are read and written by each step."""
        newest = self.steps > 0
        said = f"{lane.name}: sums of {lane.heads} {_heads(lane.heads)}, the same size after any number of tokens"
        name = "qkv-column qkv-newest" if newest else "qkv-column"
        drawn = _filled(name, NEW if newest else OLD, EDGE, y, TALL, TALL, said, 1 if newest else 0.45)
        for k in range(1, CELLS):
            at = TALL * k / CELLS
            across = {"x1": EDGE, "y1": y + at, "x2": EDGE + TALL, "y2": y + at}
            upright = {"x1": EDGE + at, "y1": y, "x2": EDGE + at, "y2": y + TALL}
            drawn += "".join(tag("line", class_="qkv-halo", **ends, stroke=PAPER) for ends in (across, upright))
        words = ["every step reads and writes all of it,", "and it stays as large as it is"]
        beside = text_block(words, EDGE + TALL + 12, y + 6, NOTE, "qkv-note qkv-soft", SOFT)
        return tag("g", drawn + beside, class_="qkv-lane")

    def words(self, lanes: Sequence[Lane]) -> str:
        """The figure for those who hear it."""
        said = [f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.said}." for lane in lanes]
        return f"After {count_text(self.past, 'token')} and {count_text(self.steps, 'step')}. {' '.join(said)}"


def _label(lane: Lane, y: float) -> str:
    text = f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.said}"
    weight = {"font_weight": "bold"} if lane.chosen else {}
    return text_block([text], EDGE, y, CAPTION, "qkv-caption qkv-ink", INK, **weight)


def _heads(count: int) -> str:
    return "key/value head" if count == 1 else "key/value heads"


def _filled(
    name: str, colour: int, x: float, y: float, width: float, height: float, said: str = "", share: float = 1
) -> str:
    place = {"x": x, "y": y, "width": width, "height": height}
    inside = [title(said)] if said else []
    return tag("rect", *inside, class_=f"{name} qkv-fill-{colour}", **place, fill=COLOURS[colour], fill_opacity=share)


def _legend(y: float) -> str:
    """What the colours mean, in one line."""
    x, drawn, side = float(EDGE), "", 10.0
    entries = [("before the steps", OLD, 0.45), ("since then", OLD, 1.0), ("by the last step", NEW, 1.0)]
    for text, colour, share in entries:
        drawn += _filled("qkv-swatch", colour, x, y + 3, side, side, share=share)
        drawn += text_block([text], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
        x += side + 6 + text_width(text, NOTE) + 18
    drawn += tag("rect", class_="qkv-room qkv-rule", x=x, y=y + 3, width=side, height=side, fill="none", stroke=RULE)
    return drawn + text_block(["steps to come"], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
