"""Labels of dots and lines, placed where nothing else is or numbered and explained in the legend; the legend itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from qkv.figures.svg import LINE, escape, tag, text_width, title, wrap
from qkv.figures.theme import COLOURS, DASHED, INK, PAPER, RULE, colour_of, shape_of

LABEL_SIZE = 12
CELL = 3  # pixels; occupied space is tracked in cells of this size
NEAR = 10  # from the centre of a dot to its label; a label further away gets a leader line
DISTANCES = (NEAR, 22, 38, 56)
LEGEND_SIZE = 13
SWATCH, GAP = 38, 18
MAX_LINES = 3
DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def holds(self, point: Point, slack: float = 0) -> bool:
        x, y = point
        return self.left - slack <= x <= self.right + slack and self.top - slack <= y <= self.bottom + slack

    def nearest(self, point: Point) -> Point:
        return min(max(point[0], self.left), self.right), min(max(point[1], self.top), self.bottom)

    def cut(self, start: Point, end: Point) -> tuple[Point, Point] | None:
        """The part of a segment inside the box, or None; each side clips the range of shares along the segment.

        >>> Box(0, 0, 10, 10).cut((-5, 5), (5, 5))
        ((0.0, 5.0), (5, 5))
        """
        (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
        first, last = 0.0, 1.0
        for speed, distance in ((-dx, x - self.left), (dx, self.right - x), (-dy, y - self.top), (dy, self.bottom - y)):
            if speed == 0:
                if distance < 0:
                    return None
            elif speed < 0:
                first = max(first, distance / speed)
            else:
                last = min(last, distance / speed)
        if first > last:
            return None
        here = start if first == 0 else self.nearest((x + first * dx, y + first * dy))
        there = end if last == 1 else self.nearest((x + last * dx, y + last * dy))
        return here, there


def _cells(box: Box) -> Iterator[tuple[int, int]]:
    for row in range(math.floor(box.top / CELL), math.floor(box.bottom / CELL) + 1):
        for column in range(math.floor(box.left / CELL), math.floor(box.right / CELL) + 1):
            yield row, column


def _segment_cells(start: Point, end: Point) -> Iterator[tuple[int, int]]:
    """Cells under a segment, with a margin of one pixel."""
    count = max(1, math.ceil(math.dist(start, end) / 2))
    for n in range(count + 1):
        x, y = (a + (b - a) * n / count for a, b in zip(start, end, strict=True))
        yield from _cells(Box(x - 1, y - 1, x + 1, y + 1))


# A box, its side of the labelled object (1: right), and the start of its leader line, if it needs one.
Place = tuple[Box, int, Point | None]


@dataclass
class LabelSpace:
    """Free and occupied space inside the frame."""

    frame: Box
    taken: set[tuple[int, int]] = field(default_factory=set)
    texts: set[tuple[int, int]] = field(default_factory=set)
    numbered: list[str] = field(default_factory=list)

    def take_segment(self, start: Point, end: Point) -> None:
        self.taken.update(_segment_cells(start, end))

    def take_dot(self, at: Point, radius: float = 6) -> None:
        x, y = at
        self.taken.update(_cells(Box(x - radius, y - radius, x + radius, y + radius)))

    def take_box(self, box: Box) -> None:
        self.taken.update(_cells(box))

    def free(self, box: Box) -> bool:
        inside = self.frame.holds((box.left, box.top)) and self.frame.holds((box.right, box.bottom))
        return inside and not any(cell in self.taken for cell in _cells(box))

    def label_dot(self, at: Point, text: str) -> str:
        """The label of a dot as SVG; a number if the label does not fit, explained by `numbered`; "" if even that does
        not fit."""
        return self._first(text, lambda words: _around(at, words))

    def label_level(self, start: Point, end: Point, text: str) -> str:
        """The same for a line across the frame."""
        return self._first(text, lambda words: _along(start, end, words))

    def _first(self, text: str, candidates: Callable[[str], Iterable[Place]]) -> str:
        for words in (text, str(len(self.numbered) + 1)):
            for box, side, start in candidates(words):
                stop = box.nearest(start) if start else None
                if not self.free(box) or (start and stop and not self.texts.isdisjoint(_segment_cells(start, stop))):
                    continue
                if words != text:
                    self.numbered.append(text)
                leader = ""
                if start and stop:
                    leader = tag(
                        "line",
                        class_="qkv-leader qkv-rule",
                        x1=start[0],
                        y1=start[1],
                        x2=stop[0],
                        y2=stop[1],
                        stroke=RULE,
                    )
                    self.take_segment(start, stop)
                cells = set(_cells(box))
                self.taken |= cells
                self.texts |= cells
                return leader + _text(words, box, side)
        return ""


def _text(words: str, box: Box, side: int) -> str:
    """Text anchored at the edge of the box nearest to its object, because letters may be narrower than the box."""
    return tag(
        "text",
        escape(words),
        class_="qkv-label qkv-ink qkv-halo",
        x=(box.left, (box.left + box.right) / 2, box.right)[1 - side],
        y=box.bottom - 0.3 * LABEL_SIZE,
        font_size=LABEL_SIZE,
        text_anchor=("start", "middle", "end")[1 - side],
        fill=INK,
        stroke=PAPER,
        stroke_width=3,
        paint_order="stroke",
    )


def _size(words: str) -> tuple[float, float]:
    return text_width(words, LABEL_SIZE), LABEL_SIZE * LINE


def _around(at: Point, words: str) -> Iterator[Place]:
    """Boxes around a dot, nearest first."""
    (x, y), (width, height) = at, _size(words)
    for distance in DISTANCES:
        for dx, dy in DIRECTIONS:
            shrink = 0.75 if dx and dy else 1
            ax, ay = x + dx * distance * shrink, y + dy * distance * shrink
            left = ax - width * (1 - dx) / 2
            top = ay - height * (1 - dy) / 2
            start = None if distance == NEAR else (x + dx * 5 * shrink, y + dy * 5 * shrink)
            yield Box(left, top, left + width, top + height), dx, start


def _along(start: Point, end: Point, words: str) -> Iterator[Place]:
    """Boxes on both sides of a horizontal or vertical line, from its ends to its middle."""
    width, height = _size(words)
    flat = start[1] == end[1]
    for share in (0.98, 0.02, 0.75, 0.25, 0.5, 0.87, 0.13, 0.62, 0.38):
        for side in (-1, 1):
            if flat:
                left = start[0] + share * (end[0] - start[0] - width)
                top, edge = start[1] + (5 if side > 0 else -5 - height), 1 if share < 0.5 else -1
            else:
                top = start[1] + share * (end[1] - start[1] - height)
                left, edge = start[0] + (6 if side < 0 else -6 - width), -side
            yield Box(left, top, left + width, top + height), edge, None


@dataclass(frozen=True)
class Entry:
    """An entry of the legend. swatch: SVG drawn around the origin. sign: the number of a label that did not fit."""

    name: str
    swatch: str = ""
    sign: str = ""


def marker(series: int, x: float, y: float, tooltip: str = "") -> str:
    index = colour_of(series)
    return tag(
        "path",
        *([title(tooltip)] if tooltip else []),
        class_=f"qkv-marker qkv-halo qkv-fill-{index}",
        d=shape_of(series),
        transform=f"translate({x:.2f} {y:.2f})",
        fill=COLOURS[index],
        stroke=PAPER,
    )


def line_swatch(series: int, dashed: bool, markers: bool) -> str:
    index = colour_of(series)
    dash = {"stroke_dasharray": DASHED} if dashed else {}
    half = SWATCH / 2 - 4
    stroke = tag(
        "path",
        class_=f"qkv-line qkv-stroke-{index}",
        d=f"M{-half:g} 0H{half:g}",
        fill="none",
        stroke=COLOURS[index],
        stroke_width=2,
        **dash,
    )
    return stroke + (marker(series, 0, 0) if markers else "")


def bar(series: int, box: Box, tooltip: str = "") -> str:
    """A bar with a transparent fill, so that lines over it stay visible."""
    index = colour_of(series)
    return tag(
        "rect",
        *([title(tooltip)] if tooltip else []),
        class_=f"qkv-bar qkv-fill-{index} qkv-stroke-{index}",
        x=box.left,
        y=box.top,
        width=box.width,
        height=box.height,
        fill=COLOURS[index],
        fill_opacity=0.3,
        stroke=COLOURS[index],
    )


def draw_legend(entries: Sequence[Entry], left: float, top: float, width: float) -> tuple[str, float]:
    """The legend as SVG, below the plot in columns, and its height."""
    if not entries:
        return "", 0
    widest = max(text_width(entry.name, LEGEND_SIZE) for entry in entries) + SWATCH + GAP
    cell = min(widest, width / 2 if len(entries) > 3 and width >= 500 else width)
    columns = max(1, int(width // cell))
    columns = -(-len(entries) // -(-len(entries) // columns))  # as many rows, evenly filled
    step = width / columns if columns * cell > 0.7 * width else cell
    drawn, y = "", top
    for start in range(0, len(entries), columns):
        row = entries[start : start + columns]
        texts = [wrap(entry.name, step - SWATCH - GAP + 1, LEGEND_SIZE, MAX_LINES) for entry in row]
        for column, (entry, lines) in enumerate(zip(row, texts, strict=True)):
            drawn += _entry(entry, lines, left + column * step, y)
        y += max(map(len, texts)) * LEGEND_SIZE * LINE + 3
    return tag("g", drawn, class_="qkv-legend"), y - top


def _entry(entry: Entry, lines: list[str], left: float, top: float) -> str:
    middle = top + LEGEND_SIZE * LINE / 2
    swatch = (
        tag("g", entry.swatch, transform=f"translate({left + SWATCH / 2 - 2:.2f} {middle:.2f})") if entry.swatch else ""
    )
    if entry.sign:
        swatch = text_block(
            [entry.sign], left + SWATCH / 2 - 2, top, LEGEND_SIZE, "qkv-legend-sign qkv-ink", INK, "middle"
        )
    name = text_block(lines, left + SWATCH, top, LEGEND_SIZE, "qkv-legend-name qkv-ink", INK)
    whole = title(entry.name) if lines and lines[-1].endswith("…") else ""
    return tag("g", whole, swatch, name, class_="qkv-legend-entry")


def text_block(
    lines: Sequence[str], x: float, top: float, size: float, classes: str, fill: str, anchor: str = "start", **more: str
) -> str:
    """Lines of text; `top` is the upper edge of the first."""
    if not lines:
        return ""
    spans = [
        tag("tspan", escape(line), x=x, y=top + (n * LINE + 1) * size) if len(lines) > 1 else escape(line)
        for n, line in enumerate(lines)
    ]
    extra = {"text_anchor": anchor} if anchor != "start" else {}
    return tag("text", " ".join(spans), class_=classes, x=x, y=top + size, font_size=size, fill=fill, **extra, **more)
