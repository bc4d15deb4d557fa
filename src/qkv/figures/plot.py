"""Marks in a frame: from values to pixels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from qkv.figures.axis import Axis, Ruler
from qkv.figures.labels import Box, Point, Room
from qkv.figures.legend import Entry, bar, line_swatch, marker
from qkv.figures.marks import Bars, Dots, Level, Line
from qkv.figures.quantity import readable
from qkv.figures.svg import number, tag, title
from qkv.figures.theme import COLOURS, DASHED, LEVEL_DASHES, SOFT, colour_of

FEW = 24  # points that each get a marker; a longer line gets one now and then
MARKER_STEP, POINTER_STEP = 80, 6  # pixels along a line
SWATCH_BAR = Box(-9, -5, 9, 5)
MOST_LABELS, LABEL_AREA = 40, 4000  # labels in a chart, and pixels that each needs around it

NOT_FINITE, NOT_POSITIVE, OUTSIDE = "not finite", "zero or negative on a log axis", "outside the axes"
BEYOND = "too large or too small to draw"


@dataclass
class Plot:
    """The frame with its rulers, and what was met while drawing into it."""

    x: Ruler
    y: Ruler
    frame: Box
    left_out: Counter[str] = field(default_factory=Counter)
    explained: list[Entry] = field(default_factory=list)  # labels that stand in the legend for want of room
    unlabelled: int = 0

    def __post_init__(self) -> None:
        self.room = Room(self.frame)
        self._labels: list[tuple[Point, str, Entry]] = []

    def pixel(self, x: float, y: float) -> Point:
        return (
            self.frame.left + self.x.share(x) * self.frame.width,
            self.frame.bottom - self.y.share(y) * self.frame.height,
        )

    def line(self, mark: Line, series: int) -> str:
        index = colour_of(series)
        strokes, markers, since = "", "", MARKER_STEP * (0.5 + series * 0.382 % 1)
        for run in self._runs(mark):
            strokes += self._stroke([at for at, _ in run])
            before, pointed = run[0][0], -math.inf
            for at, said in run:
                step = math.dist(before, at)
                before, since, pointed = at, since + step, pointed + step
                if not self.frame.holds(at, 0.01):
                    continue
                shown = mark.markers and (len(mark.points) <= FEW or since >= MARKER_STEP)
                if shown or not mark.markers or pointed >= POINTER_STEP:
                    markers += self._marker(series, at, said) if shown else _pointer(at, said)
                    since, pointed = 0 if shown else since, 0
        dash = {"stroke_dasharray": DASHED} if mark.dashed else {}
        path = tag(
            "path",
            title(mark.name),
            class_=f"qkv-line qkv-stroke-{index}",
            d=strokes,
            fill="none",
            stroke=COLOURS[index],
            stroke_width=2,
            stroke_linejoin="round",
            **dash,
        )
        if not strokes + markers:
            return ""
        return tag("g", path if strokes else "", markers, class_=f"qkv-series qkv-series-{series + 1}")

    def dots(self, mark: Dots, series: int) -> str:
        drawn = ""
        for n, (x, y) in enumerate(mark.points):
            label = mark.labels[n] if mark.labels else ""
            if self._can_show(x, y):
                at = self.pixel(x, y)
                drawn += self._marker(series, at, self._say(", ".join(filter(None, (mark.name, label))), x, y))
                if label:
                    self._labels.append((at, label, Entry(f"{label}: {self._say('', x, y)}", marker(series, 0, 0))))
        return tag("g", drawn, class_=f"qkv-series qkv-series-{series + 1}") if drawn else ""

    def bars(self, mark: Bars, series: int) -> str:
        drawn = ""
        base = self.y.low if self.y.axis.scale == "log" else min(max(0.0, self.y.low), self.y.high)
        for n, (left, right, height) in enumerate(mark.bars):
            _ = self._can_show(left, height) and self._can_show(right, height)  # a bar that is cut counts as outside
            if (
                not can_draw(self.x.axis, self.y.axis, left, right, height)
                or right <= self.x.low
                or left >= self.x.high
            ):
                continue
            (x0, y0), (x1, y1) = map(self.frame.nearest, (self.pixel(left, base), self.pixel(right, height)))
            box = Box(x0, min(y0, y1), x1, max(y0, y1))
            self.room.take_box(box)
            ends = f"{self.x.axis.say(left)} to {readable(right, self.x.axis.unit)}"
            where = mark.labels[n] if mark.labels and mark.labels[n] else ends
            drawn += bar(series, box, f"{mark.name}: {where}, {self.y.axis.say(height)}")
        return tag("g", drawn, class_=f"qkv-series qkv-series-{series + 1}") if drawn else ""

    def level(self, mark: Level, which: int) -> str:
        ruler, value = (self.x, mark.x) if mark.x is not None else (self.y, mark.y)
        assert value is not None
        if not self._can_show(*((value, self.y.low) if mark.x is not None else (self.x.low, value))):
            return ""
        start, end = self.level_ends(mark)
        self.room.take_segment(start, end)
        return _level_line(start, end, which, f"{mark.name}: {ruler.axis.say(value)}")

    def level_ends(self, mark: Level) -> tuple[Point, Point]:
        if mark.x is not None:
            x = self.pixel(mark.x, self.y.low)[0]
            return (x, self.frame.top), (x, self.frame.bottom)
        assert mark.y is not None
        y = self.pixel(self.x.low, mark.y)[1]
        return (self.frame.left, y), (self.frame.right, y)

    def labels(self, levels: list[tuple[int, Level]]) -> str:
        """Every label, when all that they must not cover is drawn."""
        drawn = ""
        fallen: list[Entry] = []
        most = min(MOST_LABELS, int(self.frame.width * self.frame.height / LABEL_AREA))
        for at, words, entry in self._labels[:most]:
            label = self.room.label_dot(at, words)
            drawn += label
            fallen += [] if label else [entry]
        self.unlabelled = max(0, len(self._labels) - most)
        for which, mark in levels:
            label = self.room.label_level(*self.level_ends(mark), mark.name)
            drawn += label
            fallen += [] if label else [Entry(mark.name, _level_line((-15, 0), (15, 0), which, mark.name))]
        self.explained = [Entry(words, sign=str(n + 1)) for n, words in enumerate(self.room.numbered)] + fallen
        return tag("g", drawn, class_="qkv-labels") if drawn else ""

    def shows(self, mark: Level) -> bool:
        ruler, value = (self.x, mark.x) if mark.x is not None else (self.y, mark.y)
        return value is not None and ruler.axis.can_show(value) and ruler.holds(value)

    def _marker(self, series: int, at: Point, said: str) -> str:
        self.room.take_dot(at)
        return marker(series, *at, said)

    def _say(self, name: str, x: float, y: float) -> str:
        where = f"{self.x.axis.say(x)}, {self.y.axis.say(y)}"
        return f"{name}: {where}" if name else where

    def _can_show(self, x: float, y: float) -> bool:
        """Whether the point has a place; one that has none is counted, with the reason."""
        reason = None
        for ruler, value in ((self.x, x), (self.y, y)):
            if not ruler.axis.can_show(value):
                drawn_as_log = ruler.axis.scale == "log"
                reason = (
                    NOT_FINITE if not math.isfinite(value) else NOT_POSITIVE if drawn_as_log and value <= 0 else BEYOND
                )
                break
            if not ruler.holds(value):
                reason = OUTSIDE
        if reason:
            self.left_out[reason] += 1
        return reason is None

    def _runs(self, mark: Line) -> Iterator[list[tuple[Point, str]]]:
        """Stretches without a gap, in pixels, each point with what it says. What is outside the axes stays in, to be
        cut at the frame."""
        run: list[tuple[Point, str]] = []
        for x, y in mark.points:
            self._can_show(x, y)
            if self.x.axis.can_show(x) and self.y.axis.can_show(y):
                run.append((self.pixel(x, y), self._say(mark.name, x, y)))
            elif run:
                yield run
                run = []
        if run:
            yield run

    def _stroke(self, run: list[Point]) -> str:
        path, pen = "", None
        for start, end in pairwise(_thinned(run)):
            part = self.frame.cut(start, end)
            if not part:
                continue
            here, there = part
            path += "" if here == pen else f"M{number(here[0])} {number(here[1])}"
            path += f"L{number(there[0])} {number(there[1])}"
            pen = there
            self.room.take_segment(here, there)
        return path


def can_draw(x_axis: Axis, y_axis: Axis, left: float, right: float, height: float) -> bool:
    """Whether a bar has a place between ends that are not fixed yet."""
    return x_axis.can_show(left) and x_axis.can_show(right) and y_axis.can_show(height)


def entry_of(mark: Line | Dots | Bars, series: int, drawable: bool) -> Entry:
    if isinstance(mark, Line):
        swatch = line_swatch(series, mark.dashed, mark.markers)
    else:
        swatch = bar(series, SWATCH_BAR) if isinstance(mark, Bars) else marker(series, 0, 0)
    return Entry(mark.name if drawable else f"{mark.name} (no points)", swatch)


def _thinned(run: list[Point]) -> list[Point]:
    """Without points that fall on the last one: no eye sees half a pixel."""
    kept = run[:1]
    for at in run[1:-1]:
        if math.dist(at, kept[-1]) >= 0.5:
            kept.append(at)
    return kept + run[1:][-1:]


def _pointer(at: Point, said: str) -> str:
    """A place that a pointer finds and no eye."""
    return tag("circle", title(said), class_="qkv-pointer", cx=at[0], cy=at[1], r=5, fill=SOFT, fill_opacity=0)


def _level_line(start: Point, end: Point, which: int, said: str) -> str:
    return tag(
        "path",
        title(said),
        class_="qkv-level",
        d=f"M{number(start[0])} {number(start[1])}L{number(end[0])} {number(end[1])}",
        fill="none",
        stroke=SOFT,
        stroke_width=1.5,
        stroke_dasharray=LEVEL_DASHES[which % len(LEVEL_DASHES)],
    )
