"""Labels beside dots and lines: put where nothing else is, or numbered and explained in the legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from qkv.figures.svg import LINE, escape, tag, text_width
from qkv.figures.theme import INK, PAPER, RULE

SIZE = 12
CELL = 3  # pixels: how finely the room is kept
NEAR = 10  # from the middle of a dot to its label; anything farther gets a leader
DISTANCES = (NEAR, 22, 38, 56)
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
        """The part of a segment that is inside: each side moves the ends, as shares of the way, towards each other.

        >>> Box(0, 0, 10, 10).cut((-5, 5), (5, 5))
        ((0.0, 5.0), (5, 5))
        """
        (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
        first, last = 0.0, 1.0
        for speed, room in ((-dx, x - self.left), (dx, self.right - x), (-dy, y - self.top), (dy, self.bottom - y)):
            if speed == 0:
                if room < 0:
                    return None
            elif speed < 0:
                first = max(first, room / speed)
            else:
                last = min(last, room / speed)
        if first > last:
            return None
        here = start if first == 0 else self.nearest((x + first * dx, y + first * dy))
        there = end if last == 1 else self.nearest((x + last * dx, y + last * dy))
        return here, there


def _cells(box: Box) -> Iterator[tuple[int, int]]:
    for row in range(math.floor(box.top / CELL), math.floor(box.bottom / CELL) + 1):
        for column in range(math.floor(box.left / CELL), math.floor(box.right / CELL) + 1):
            yield row, column


def _way(start: Point, end: Point) -> Iterator[tuple[int, int]]:
    """Cells under a segment and, so that no letter touches it, their neighbours by a pixel."""
    count = max(1, math.ceil(math.dist(start, end) / 2))
    for n in range(count + 1):
        x, y = (a + (b - a) * n / count for a, b in zip(start, end, strict=True))
        yield from _cells(Box(x - 1, y - 1, x + 1, y + 1))


# A box, on which side of its subject it is (1: to the right), and where its leader starts, if it needs one.
Place = tuple[Box, int, Point | None]


@dataclass
class Room:
    """What is taken inside the frame."""

    frame: Box
    taken: set[tuple[int, int]] = field(default_factory=set)
    texts: set[tuple[int, int]] = field(default_factory=set)
    numbered: list[str] = field(default_factory=list)

    def take_segment(self, start: Point, end: Point) -> None:
        self.taken.update(_way(start, end))

    def take_dot(self, at: Point, radius: float = 6) -> None:
        x, y = at
        self.taken.update(_cells(Box(x - radius, y - radius, x + radius, y + radius)))

    def take_box(self, box: Box) -> None:
        self.taken.update(_cells(box))

    def free(self, box: Box) -> bool:
        inside = self.frame.holds((box.left, box.top)) and self.frame.holds((box.right, box.bottom))
        return inside and not any(cell in self.taken for cell in _cells(box))

    def label_dot(self, at: Point, text: str) -> str:
        """The label of a dot as SVG; a number instead where it does not fit, explained by `numbered`; "" where even
        that has no room."""
        return self._first(text, lambda words: _around(at, words))

    def label_level(self, start: Point, end: Point, text: str) -> str:
        """The same for a line across the frame."""
        return self._first(text, lambda words: _along(start, end, words))

    def _first(self, text: str, candidates: Callable[[str], Iterable[Place]]) -> str:
        for words in (text, str(len(self.numbered) + 1)):
            for box, side, start in candidates(words):
                stop = box.nearest(start) if start else None
                if not self.free(box) or (start and stop and not self.texts.isdisjoint(_way(start, stop))):
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
    """Text that starts, ends or has its middle at the edge of the box which is towards the subject: letters may be
    narrower than the box."""
    return tag(
        "text",
        escape(words),
        class_="qkv-label qkv-ink qkv-halo",
        x=(box.left, (box.left + box.right) / 2, box.right)[1 - side],
        y=box.bottom - 0.3 * SIZE,
        font_size=SIZE,
        text_anchor=("start", "middle", "end")[1 - side],
        fill=INK,
        stroke=PAPER,
        stroke_width=3,
        paint_order="stroke",
    )


def _size(words: str) -> tuple[float, float]:
    return text_width(words, SIZE), SIZE * LINE


def _around(at: Point, words: str) -> Iterator[Place]:
    """Boxes around a dot, near ones first."""
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
    """Boxes on both sides of a level or upright line, from its ends to its middle."""
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
