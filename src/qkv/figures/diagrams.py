"""Diagrams: positions that reach a position through layers, sparsity patterns of matrices, and growing caches."""

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

FONT_SIZE = 14  # wide diagrams scroll and are never shrunk
MIN_COLUMN, MAX_COLUMN = 30, 64  # pixels between two columns of a lattice
LOW, HIGH = 62, 92  # pixels between two rows of a lattice
RADIUS, SMALL = 7, 3
MIN_SIDE, MAX_SIDE = 9, 22  # pixels of an entry of a sparsity pattern
BEFORE, AFTER = 24, 16  # columns for tokens before the steps, and for steps
TALL, THIN = 48, 3
EARLIER = 56  # width of the box for all earlier tokens
OLD, NEW = 0, 1  # colours of tokens, and of what the last step wrote
CELLS = 8


@dataclass(frozen=True)
class EdgeSet:
    """Edges of one kind: for each row but the last, pairs of a column and a column of the next row.

    series: index of the colour and dashes; None draws them like rules.
    """

    name: str
    steps: Sequence[Sequence[tuple[int, int]]]
    series: int | None = None


def lattice(
    heading: str, rows: Sequence[str], counts: Sequence[Sequence[int]], edge_sets: Sequence[EdgeSet], chosen: int
) -> str:
    """Positions of each layer that reach a chosen position of the top layer, and the edges between them.

    Rows go from top to bottom; a dot stands for one path, a square for several. Every column of the top row is a group
    with the class `qkv-pick` and its number in `data-column`, so that a page can let the reader choose another.

    Args:
        heading: name of the figure.
        rows: names of the layers, from the top.
        counts: number of paths for each row and column.
        edge_sets: the edges.
        chosen: column of the top row, from 0.

    Returns:
        The <svg> element as text.

    >>> svg = lattice("Reach", ["out", "in"], [[0, 1], [1, 1]], [EdgeSet("head", [[(1, 0)]], series=0)], chosen=1)
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
    lines = "".join(_draw_edges(place, edges) for edges in edge_sets)
    nodes = "".join(_row(place, r, name, counts[r]) for r, name in enumerate(rows) if r)
    picks = "".join(_pick(place, rows[0], c, counts[0][c], c == chosen) for c in range(columns))
    entries = [Entry(edges.name, _edge(edges, "M-15 0H15")) for edges in edge_sets]
    entries += [
        Entry("reached by one path", _mark(0, 0, 1)),
        Entry("paths meet", _mark(0, 0, 2)),
        Entry("not reached", _mark(0, 0, 0)),
    ]
    top = bottom + 18 + 2 * FONT_SIZE
    legend, high = draw_legend(entries, EDGE, top, max(width, 300) - 2 * EDGE)
    tooltip = "; ".join(
        f"{name}: {', '.join(str(c + 1) for c, count in enumerate(row) if count) or 'none'}"
        for name, row in zip(rows, counts, strict=True)
    )
    body = names + lines + nodes + tag("g", picks, class_="qkv-picks") + numbers + legend
    return svg_figure(
        heading, f"Positions reached, from the top: {tooltip}.", body, max(width, 300), round(top + high + EDGE)
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


def _draw_edges(place: _Places, edges: EdgeSet) -> str:
    drawn = ""
    for r, steps in enumerate(edges.steps):
        ends = ((place.x(a), place.y(r), place.x(b), place.y(r + 1)) for a, b in steps)
        lines = "".join(f"M{number(xa)} {number(ya)}L{number(xb)} {number(yb)}" for xa, ya, xb, yb in ends)
        drawn += _edge(edges, lines, edges.name) if lines else ""
    return drawn


def _edge(edges: EdgeSet, lines: str, tooltip: str = "") -> str:
    name, looks = "qkv-rule", {"stroke": RULE, "stroke_width": 2.5}
    if edges.series is not None:
        index = colour_of(edges.series)
        name, looks = f"qkv-stroke-{index}", {"stroke": COLOURS[index], "stroke_width": 1.8}
        if edges.series:
            looks["stroke_dasharray"] = LEVEL_DASHES[(edges.series - 1) % len(LEVEL_DASHES)]
    return tag("path", *([title(tooltip)] if tooltip else []), class_=f"qkv-edge {name}", d=lines, fill="none", **looks)


def _row(place: _Places, row: int, name: str, counts: Sequence[int]) -> str:
    return "".join(
        _mark(place.x(c), place.y(row), count, f"{name}, position {c + 1}: {_paths(count)}")
        for c, count in enumerate(counts)
    )


def _pick(place: _Places, name: str, column: int, count: int, chosen: bool) -> str:
    x, y, side = place.x(column), place.y(0), min(place.across, 34)
    # A click target that is larger than the mark in it.
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
    tooltip = title(f"{name}, position {column + 1}{': chosen' if chosen else ''}")
    return tag("g", tooltip, field, _mark(x, y, count), class_="qkv-pick", data_column=str(column + 1))


def _mark(x: float, y: float, count: int, tooltip: str = "") -> str:
    inside = [title(tooltip)] if tooltip else []
    if not count:
        hollow = {"fill": PAPER, "stroke": SOFT}
        return tag("circle", *inside, class_="qkv-node qkv-paper qkv-level", cx=x, cy=y, r=SMALL, **hollow)
    if count == 1:
        return tag("circle", *inside, class_="qkv-node qkv-ink", cx=x, cy=y, r=RADIUS, fill=INK)
    corner = {"x": x - RADIUS, "y": y - RADIUS, "width": 2 * RADIUS, "height": 2 * RADIUS}
    return tag("rect", *inside, class_="qkv-node qkv-ink", **corner, fill=INK)


def _paths(count: int) -> str:
    return "not reached" if not count else f"{count} path{'s' if count != 1 else ''}"


def sparsity_pattern(
    heading: str,
    entries: Sequence[Sequence[bool]],
    block: int,
    rows: str,
    columns: str,
    marked_column: int | None = None,
) -> str:
    """The non-zero entries of a matrix as squares, with rules after every `block` rows and columns.

    Args:
        heading: name of the figure.
        entries: True for entries that are not zero.
        block: rows and columns between two rules.
        rows, columns: what they are.
        marked_column: a column to mark.

    Returns:
        The <svg> element as text.

    >>> "2 of 4 entries" in sparsity_pattern("Jacobian", [[True, False], [False, True]], 1, "outputs", "inputs")
    True
    """
    heading, width = as_name("heading", heading), len(entries[0])
    if any(len(row) != width for row in entries):
        raise ShapeError(complaint("entries", "rows of different lengths", "rows of equal length"))
    side = min(MAX_SIDE, max(MIN_SIDE, 300 / max(width, len(entries))))
    left, top = EDGE + FONT_SIZE + 8, EDGE + FONT_SIZE + 10
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
    tooltip = f"{count} of {width * len(entries)} entries are not zero"
    rules = "".join(f"M{number(left + at * side)} {number(top)}V{number(bottom)}" for at in range(0, width + 1, block))
    rules += "".join(
        f"M{number(left)} {number(top + at * side)}H{number(right)}" for at in range(0, len(entries) + 1, block)
    )
    marked = ""
    if marked_column is not None:
        place = {"x": left + marked_column * side, "y": top, "width": side, "height": bottom - top}
        looks = {"fill": "none", "stroke": COLOURS[1], "stroke_width": 2.5}
        marked = tag("rect", title("the entry that is dragged"), class_="qkv-stroke-1", **place, **looks)
    down = f"rotate(-90 {number(EDGE + FONT_SIZE)} {number((top + bottom) / 2)})"
    body = (
        text_block([columns], left, EDGE - 2, FONT_SIZE, "qkv-soft", SOFT),
        text_block(
            [rows],
            EDGE + FONT_SIZE,
            (top + bottom) / 2 - FONT_SIZE,
            FONT_SIZE,
            "qkv-soft",
            SOFT,
            "middle",
            transform=down,
        ),
        tag("path", title(tooltip), class_="qkv-ink", d=squares, fill=INK) if squares else "",
        tag("path", class_="qkv-rule", d=rules, fill="none", stroke=RULE),
        marked,
    )
    return svg_figure(heading, f"{tooltip}.", "".join(body), max(right + EDGE, 180), bottom + EDGE)


@dataclass(frozen=True)
class Lane:
    """One cache or state in the figure.

    heads: key/value heads that it keeps. detail: text after the name. grows: by a column per token; otherwise it is a
    square that every step overwrites. chosen: drawn in bold.
    """

    name: str
    heads: int
    detail: str
    grows: bool = True
    chosen: bool = False


def cache_growth(heading: str, lanes: Sequence[Lane], past: int, steps: int, page: int, width: float = 720) -> str:
    """What a decoder keeps after `past` tokens and `steps` more: caches that grow by a column per token, and states
    that do not.

    Args:
        heading: above the figure.
        lanes: caches and states.
        past, steps: tokens before, and tokens since; at most 16 steps.
        page: tokens per page.
        width: pixels.

    Returns:
        The <svg> element as text.

    >>> lanes = [Lane("MHA", 8, "1 kB"), Lane("linear", 2, "1 kB", grows=False)]
    >>> svg = cache_growth("Kept", lanes, past=64, steps=3, page=64)
    >>> svg.count('class="qkv-column qkv-fill-0"'), svg.count("qkv-newest")
    (26, 2)
    """
    if not 0 <= steps <= AFTER or past < 0 or not lanes:
        given = f"{len(lanes)} lanes, {past} tokens, {steps} steps"
        raise OptionError(
            complaint("lanes, past, steps", given, f"at least one lane, past of at least 0, and 0 to {AFTER} steps")
        )
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
            tooltip = f"{lane.name}: {count_text(self.first, 'earlier token')}"
            drawn += _filled("qkv-earlier", OLD, EDGE, y, EARLIER, high, tooltip, 0.45)
        for token in range(self.first, self.past + AFTER):
            place = {"x": self.x(token) + 1, "y": y, "width": self.pitch - 2, "height": high}
            if token >= self.tokens:
                drawn += tag("rect", class_="qkv-free qkv-grid", **place, fill="none", stroke=GRID)
                continue
            newest = token == self.tokens - 1 and self.steps > 0
            tooltip = f"{lane.name}: key and value of token {token + 1:,}, for {lane.heads} {_heads(lane.heads)}"
            name = "qkv-column qkv-newest" if newest else "qkv-column"
            share = 1 if token >= self.past else 0.45
            drawn += _filled(name, NEW if newest else OLD, **place, tooltip=tooltip, share=share)
        return tag("g", drawn, class_="qkv-lane")

    def pages(self, top: float, bottom: float) -> str:
        """Lines between pages."""
        drawn = ""
        for token in range(self.first + (-self.first) % self.page, self.past + AFTER + 1, self.page):
            if token == self.first and self.first == 0:
                continue
            x = self.x(token)
            drawn += tag("line", class_="qkv-level", x1=x, y1=top, x2=x, y2=bottom, stroke=SOFT, stroke_dasharray="4 3")
        return drawn

    def places(self, y: float) -> str:
        """Page numbers in one line, numbers of tokens in the next."""
        drawn, end = "", 0.0
        pages = sorted({token // self.page for token in range(self.first, self.past + AFTER)})
        for page in pages:
            text = f"page {page + 1:,}"
            x = max(self.x(page * self.page), self.left)
            if x >= end and x + text_width(text, NOTE) <= self.right:
                drawn += text_block([text], x, y, NOTE, "qkv-tick qkv-soft", SOFT)
                end = x + text_width(text, NOTE) + 8
        if self.first:
            drawn += text_block([f"{self.first:,}"], EDGE, y, NOTE, "qkv-tick qkv-soft", SOFT)
            drawn += text_block(["earlier"], EDGE, y + NOTE * LINE, NOTE, "qkv-tick qkv-soft", SOFT)
        tooltip = count_text(self.tokens, "token")
        half = text_width(tooltip, NOTE) / 2
        middle = self.x(self.tokens) - self.pitch / 2 if self.tokens else self.left
        at = min(max(middle, self.left + half), self.right - half)
        return drawn + text_block([tooltip], at, y + NOTE * LINE, NOTE, "qkv-tick qkv-ink", INK, "middle")

    def square(self, lane: Lane, y: float) -> str:
        """A state of sums, which every step reads and writes."""
        newest = self.steps > 0
        tooltip = f"{lane.name}: sums of {lane.heads} {_heads(lane.heads)}, the same size after any number of tokens"
        name = "qkv-column qkv-newest" if newest else "qkv-column"
        drawn = _filled(name, NEW if newest else OLD, EDGE, y, TALL, TALL, tooltip, 1 if newest else 0.45)
        for k in range(1, CELLS):
            at = TALL * k / CELLS
            across = {"x1": EDGE, "y1": y + at, "x2": EDGE + TALL, "y2": y + at}
            upright = {"x1": EDGE + at, "y1": y, "x2": EDGE + at, "y2": y + TALL}
            drawn += "".join(tag("line", class_="qkv-halo", **ends, stroke=PAPER) for ends in (across, upright))
        words = ["every step reads and writes all of it,", "and it stays as large as it is"]
        text = text_block(words, EDGE + TALL + 12, y + 6, NOTE, "qkv-note qkv-soft", SOFT)
        return tag("g", drawn + text, class_="qkv-lane")

    def words(self, lanes: Sequence[Lane]) -> str:
        """The figure in words, for screen readers."""
        sentences = [f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.detail}." for lane in lanes]
        return f"After {count_text(self.past, 'token')} and {count_text(self.steps, 'step')}. {' '.join(sentences)}"


def _label(lane: Lane, y: float) -> str:
    text = f"{lane.name}: {lane.heads} {_heads(lane.heads)}, {lane.detail}"
    weight = {"font_weight": "bold"} if lane.chosen else {}
    return text_block([text], EDGE, y, CAPTION, "qkv-caption qkv-ink", INK, **weight)


def _heads(count: int) -> str:
    return "key/value head" if count == 1 else "key/value heads"


def _filled(
    name: str, colour: int, x: float, y: float, width: float, height: float, tooltip: str = "", share: float = 1
) -> str:
    place = {"x": x, "y": y, "width": width, "height": height}
    inside = [title(tooltip)] if tooltip else []
    return tag("rect", *inside, class_=f"{name} qkv-fill-{colour}", **place, fill=COLOURS[colour], fill_opacity=share)


def _legend(y: float) -> str:
    """The meaning of the colours, in one line."""
    x, drawn, side = float(EDGE), "", 10.0
    entries = [("before the steps", OLD, 0.45), ("since then", OLD, 1.0), ("by the last step", NEW, 1.0)]
    for text, colour, share in entries:
        drawn += _filled("qkv-swatch", colour, x, y + 3, side, side, share=share)
        drawn += text_block([text], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
        x += side + 6 + text_width(text, NOTE) + 18
    drawn += tag("rect", class_="qkv-free qkv-rule", x=x, y=y + 3, width=side, height=side, fill="none", stroke=RULE)
    return drawn + text_block(["steps to come"], x + side + 6, y, NOTE, "qkv-note qkv-ink", INK)
