"""Charts: title, frame, ticks, marks, legend and note, from top to bottom; rooflines."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.axis import Axis, Ruler, Ticks, as_number, readable, ruler
from qkv.figures.labels import Box, Entry, LabelSpace, Point, bar, draw_legend, line_swatch, marker, text_block
from qkv.figures.marks import Bars, Dots, Level, Line, Mark, as_name
from qkv.figures.svg import BOLD, LINE, escape, number, tag, text_width, title, wrap
from qkv.figures.theme import COLOURS, DASHED, FONT, GRID, INK, LEVEL_DASHES, PAPER, RULE, SOFT, colour_of

TITLE, CAPTION, TICK, NOTE = 16, 13, 12, 12
EDGE = 12  # pixels of margin around everything
NARROWEST, LOWEST, LARGEST = 240, 160, 10_000
WIDE = 560  # wider figures scroll on narrow screens: shrunk letters would be unreadable
MAX_DOTS = 20_000
FEW = 24  # up to this many points each get a marker; a longer line gets some
MARKER_STEP, POINTER_STEP = 80, 6  # pixels along a line
SWATCH_BAR = Box(-9, -5, 9, 5)
MAX_LABELS, LABEL_AREA = 40, 4000  # labels in a chart, and square pixels for each
NOT_FINITE, NOT_POSITIVE, OUTSIDE = "not finite", "zero or negative on a log axis", "outside the axes"
BEYOND = "too large or too small to draw"
STEPS = 48  # points with tooltips along a roof


def chart(
    title: str,
    x_axis: Axis,
    y_axis: Axis,
    marks: Iterable[Mark],
    note: str = "",
    width: float = 720,
    height: float = 420,
) -> str:
    """A chart as an <svg> element, for a page, or through `standalone` for a file.

    Points that an axis cannot show (nan, infinite, zero or negative on a log axis, beyond given ends) are left out, and
    the note says how many. The same input gives the same text.

    Args:
        title: above the chart.
        x_axis, y_axis: the axes.
        marks: `Line`, `Dots`, `Bars` or `Level` marks.
        note: below the chart.
        width, height: pixels; long legends and notes make the figure higher, so that the plot keeps half of `height`.

    Returns:
        The <svg> element as text.

    Raises:
        OptionError: a value out of range.
        OptionTypeError: a value of the wrong type.

    >>> svg = chart("Growth", Axis("n"), Axis("cost", "s"), [Line("ours", [(1, 0.001), (2, 0.004)])])
    >>> "<title>ours: n 2, cost 4 ms</title>" in svg
    True
    """
    title, marks = as_name("title", title), _checked(x_axis, y_axis, marks)
    for argument, given, least in (("width", width, NARROWEST), ("height", height, LOWEST)):
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise OptionTypeError(complaint(argument, repr(given), "a number of pixels"))
        if not least <= given <= LARGEST:
            raise OptionError(complaint(argument, given, f"{least} to {LARGEST} pixels"))
    if not isinstance(note, str):
        raise OptionTypeError(complaint("note", repr(note), "text"))

    x, y = _rulers(x_axis, y_axis, marks)
    inner = width - 2 * EDGE
    heading = wrap(title, inner, TITLE * BOLD)
    y_caption, x_caption = wrap(y.caption, inner, CAPTION), wrap(x.caption, inner, CAPTION)
    top = EDGE + _high(heading, TITLE) + 4 + _high(y_caption, CAPTION) + 8
    below = 8 + TICK * LINE + 4 + _high(x_caption, CAPTION) + 10
    series = [mark for mark in marks if not isinstance(mark, Level)]
    entries = [entry_of(mark, n, bool(_drawable(x_axis, y_axis, mark))) for n, mark in enumerate(series)]
    # Labels that do not fit are known only after drawing: they make the figure higher, not the plot smaller.
    expected = draw_legend(entries, EDGE, 0, inner)[1] + _high(wrap(note, inner, NOTE), NOTE)
    tall = max(height - top - below - expected - EDGE, height / 2)

    y_ticks = _y_ticks(y, tall)
    left = EDGE + max((text_width(text, TICK) for _, text in y_ticks), default=0) + 8
    x_ticks, right = _x_ticks(x, left, width)
    plot = Plot(x, y, Box(left, top, right, top + tall))
    drawn = _draw(plot, marks)

    text = " ".join(filter(None, (note.strip(), _left_out(plot))))
    bottom = plot.frame.bottom + below
    legend, legend_height = draw_legend([*entries, *plot.explained], EDGE, bottom, inner)
    bottom += legend_height + (6 if legend_height and text else 0)
    note_lines = wrap(text, inner, NOTE)
    middle = min(max((left + right) / 2, EDGE + _widest(x_caption) / 2), width - EDGE - _widest(x_caption) / 2)
    body = (
        text_block(heading, EDGE, EDGE, TITLE, "qkv-title qkv-ink", INK, font_weight="bold"),
        text_block(y_caption, EDGE, EDGE + _high(heading, TITLE) + 4, CAPTION, "qkv-caption qkv-ink", INK),
        _scales(plot, x_ticks, y_ticks),
        drawn,
        text_block(
            x_caption,
            middle,
            plot.frame.bottom + 12 + TICK * LINE,
            CAPTION,
            "qkv-caption qkv-ink",
            INK,
            "middle",
        ),
        legend,
        text_block(note_lines, EDGE, bottom, NOTE, "qkv-note qkv-soft", SOFT),
    )
    bottom += _high(note_lines, NOTE) + EDGE
    return svg_figure(title, _description(plot, marks, text), "".join(body), width, round(bottom))


def _checked(x_axis: Axis, y_axis: Axis, marks: Iterable[Mark]) -> tuple[Mark, ...]:
    for argument, axis in (("x_axis", x_axis), ("y_axis", y_axis)):
        if not isinstance(axis, Axis):
            raise OptionTypeError(complaint(argument, repr(axis), "an Axis", 'Axis("time", "s")'))
    marks = (marks,) if isinstance(marks, (Line, Dots, Bars, Level)) else tuple(marks)
    for mark in marks:
        if not isinstance(mark, (Line, Dots, Bars, Level)):
            raise OptionTypeError(complaint("marks", repr(mark), "Line, Dots, Bars or Level"))
    for what, count in (
        ("dots", sum(len(mark.points) for mark in marks if isinstance(mark, Dots))),
        ("bars", sum(len(mark.heights) for mark in marks if isinstance(mark, Bars))),
    ):
        if count > MAX_DOTS:
            raise OptionError(complaint("marks", f"{count} {what}", f"at most {MAX_DOTS}", "draw fewer of them"))
    return marks


def _rulers(x_axis: Axis, y_axis: Axis, marks: Sequence[Mark]) -> tuple[Ruler, Ruler]:
    points = [at for mark in marks if not isinstance(mark, Level) for at in _drawable(x_axis, y_axis, mark)]
    levels = [mark for mark in marks if isinstance(mark, Level)]
    bars = [bar for mark in marks if isinstance(mark, Bars) for bar in mark.bars if can_draw(x_axis, y_axis, *bar)]
    edges = [x for left, right, _ in bars for x in (left, right)]
    xs = [x for x, _ in points] + edges + [m.x for m in levels if m.x is not None and x_axis.can_show(m.x)]
    zero = [0.0] if edges and y_axis.scale == "linear" else []
    ys = [y for _, y in points] + zero + [m.y for m in levels if m.y is not None and y_axis.can_show(m.y)]
    return ruler(x_axis, xs), ruler(y_axis, ys)


def _drawable(x_axis: Axis, y_axis: Axis, mark: Line | Dots | Bars) -> list[tuple[float, float]]:
    if isinstance(mark, Bars):
        return [(bar[0], bar[2]) for bar in mark.bars if can_draw(x_axis, y_axis, *bar)]
    return [(x, y) for x, y in mark.points if x_axis.can_show(x) and y_axis.can_show(y)]


def _draw(plot: Plot, marks: Sequence[Mark]) -> str:
    levels = list(enumerate(mark for mark in marks if isinstance(mark, Level)))
    drawn = "".join(plot.level(mark, which) for which, mark in levels)
    series = [mark for mark in marks if not isinstance(mark, Level)]
    drawn += "".join(plot.bars(mark, n) for n, mark in enumerate(series) if isinstance(mark, Bars))
    drawn += "".join(plot.line(mark, n) for n, mark in enumerate(series) if isinstance(mark, Line))
    drawn += "".join(plot.dots(mark, n) for n, mark in enumerate(series) if isinstance(mark, Dots))
    labels = plot.labels([(which, mark) for which, mark in levels if plot.shows(mark)])
    if not drawn:
        frame = plot.frame
        x, y = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2 - CAPTION
        return text_block(["nothing to draw"], x, y, CAPTION, "qkv-empty qkv-soft", SOFT, "middle")
    return tag("g", drawn, labels, class_="qkv-marks")


def _y_ticks(y: Ruler, tall: float) -> Ticks:
    """The densest ticks of the y axis whose texts do not overlap."""
    ticks: Ticks = []
    for ticks in y.tick_sets():
        places = [y.share(value) * tall for value, _ in ticks]
        if all(b - a >= TICK * 2.2 for a, b in pairwise(places)):
            break
    return ticks


def _x_ticks(x: Ruler, left: float, width: float) -> tuple[Ticks, float]:
    """The densest ticks of the x axis whose texts do not overlap, and the right end of the frame."""
    ticks: Ticks = []
    right = width - EDGE - 6
    for ticks in x.tick_sets():
        halves = [text_width(text, TICK) / 2 for _, text in ticks]
        right = width - EDGE - 6
        for (value, _), half in zip(ticks, halves, strict=True):
            if x.share(value) > 0:
                right = min(right, left + (width - EDGE / 2 - half - left) / x.share(value))
        places = [left + x.share(value) * (right - left) for value, _ in ticks]
        ends = [at - half - 12 for at, half in zip(places[1:], halves[1:], strict=True)]
        if all(a + half <= end for a, half, end in zip(places, halves, ends, strict=False)):
            break
    return ticks, right


def _scales(plot: Plot, x_ticks: Ticks, y_ticks: Ticks) -> str:
    frame = plot.frame
    grid, texts = "", ""
    for value, text in x_ticks:
        x = plot.pixel(value, plot.y.low)[0]
        grid += tag("line", class_="qkv-grid", x1=x, y1=frame.top, x2=x, y2=frame.bottom, stroke=GRID)
        texts += text_block([text], x, frame.bottom + 8, TICK, "qkv-tick qkv-tick-x qkv-soft", SOFT, "middle")
    for value, text in y_ticks:
        y = plot.pixel(plot.x.low, value)[1]
        grid += tag("line", class_="qkv-grid", x1=frame.left, y1=y, x2=frame.right, y2=y, stroke=GRID)
        texts += text_block([text], frame.left - 8, y - 0.65 * TICK, TICK, "qkv-tick qkv-tick-y qkv-soft", SOFT, "end")
    edges = tag(
        "rect",
        class_="qkv-frame qkv-rule",
        x=frame.left,
        y=frame.top,
        width=frame.width,
        height=frame.height,
        fill="none",
        stroke=RULE,
    )
    return tag("g", grid, edges, texts, class_="qkv-scales")


def _left_out(plot: Plot) -> str:
    text = ""
    if plot.left_out:
        counts = [f"{count} {reason}" for reason, count in sorted(plot.left_out.items())]
        total = sum(plot.left_out.values())
        text = f"Left out: {total} {'point' if total == 1 else 'points'} ({', '.join(counts)})."
    if plot.unlabelled:
        text += f" Labels that show when a dot is pointed at: {plot.unlabelled} more."
    return text.strip()


def _description(plot: Plot, marks: Sequence[Mark], note: str) -> str:
    """The chart in words, for screen readers."""
    sentences = []
    for name, scale in (("across", plot.x), ("upwards", plot.y)):
        ends = f"{readable(scale.low, scale.axis.unit, 3)} to {readable(scale.high, scale.axis.unit, 3)}"
        sentences.append(f"{name.capitalize()}: {scale.axis.label or 'values'}, {scale.axis.scale} scale, {ends}.")
    for mark in marks:
        if isinstance(mark, Level):
            value, axis = (mark.x, plot.x.axis) if mark.x is not None else (mark.y, plot.y.axis)
            sentences.append(
                f"Reference line {mark.name}: {axis.say(value)}." if plot.shows(mark) and value is not None else ""
            )
            continue
        shown = _drawable(plot.x.axis, plot.y.axis, mark)
        kind = type(mark).__name__
        one, many = ("bar", "bars") if isinstance(mark, Bars) else ("point", "points")
        if not shown:
            sentences.append(f"{kind} {mark.name}: no {many}.")
            continue
        ys = [y for _, y in shown]
        reach = plot.y.axis.say(min(ys))
        reach += f" to {readable(max(ys), plot.y.axis.unit)}" if max(ys) > min(ys) else ""
        sentences.append(f"{kind} {mark.name}: {len(shown)} {one if len(shown) == 1 else many}, {reach}.")
    return " ".join(filter(None, (*sentences, note)))


def svg_figure(title: str, description: str, body: str, width: float, height: float) -> str:
    """The <svg> element with a title, a description and a body."""
    # Charts on one page need different ids, which must not change between runs.
    name = "qkv-" + hashlib.sha256(f"{title}{description}{body}".encode("utf-8", "replace")).hexdigest()[:12]
    return tag(
        "svg",
        tag("title", escape(title), id=f"{name}-title"),
        tag("desc", escape(description), id=f"{name}-desc"),
        tag("rect", class_="qkv-paper", width=width, height=height, fill=PAPER),
        body,
        xmlns="http://www.w3.org/2000/svg",
        class_="qkv-chart qkv-wide" if width >= WIDE else "qkv-chart",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        font_family=FONT,
    )


def _high(lines: Sequence[str], size: float) -> float:
    return len(lines) * size * LINE


def _widest(lines: Sequence[str]) -> float:
    return max((text_width(line, CAPTION) for line in lines), default=0)


@dataclass
class Plot:
    """A frame with its axes; records what was left out while drawing."""

    x: Ruler
    y: Ruler
    frame: Box
    left_out: Counter[str] = field(default_factory=Counter)
    explained: list[Entry] = field(default_factory=list)  # labels that did not fit, for the legend
    unlabelled: int = 0

    def __post_init__(self) -> None:
        self.space = LabelSpace(self.frame)
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
            for at, tooltip in run:
                step = math.dist(before, at)
                before, since, pointed = at, since + step, pointed + step
                if not self.frame.holds(at, 0.01):
                    continue
                shown = mark.markers and (len(mark.points) <= FEW or since >= MARKER_STEP)
                if shown or not mark.markers or pointed >= POINTER_STEP:
                    markers += self._marker(series, at, tooltip) if shown else _pointer(at, tooltip)
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
            _ = self._can_show(left, height) and self._can_show(right, height)  # count a clipped bar as outside
            if (
                not can_draw(self.x.axis, self.y.axis, left, right, height)
                or right <= self.x.low
                or left >= self.x.high
            ):
                continue
            (x0, y0), (x1, y1) = map(self.frame.nearest, (self.pixel(left, base), self.pixel(right, height)))
            box = Box(x0, min(y0, y1), x1, max(y0, y1))
            self.space.take_box(box)
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
        self.space.take_segment(start, end)
        return _level_line(start, end, which, f"{mark.name}: {ruler.axis.say(value)}")

    def level_ends(self, mark: Level) -> tuple[Point, Point]:
        if mark.x is not None:
            x = self.pixel(mark.x, self.y.low)[0]
            return (x, self.frame.top), (x, self.frame.bottom)
        assert mark.y is not None
        y = self.pixel(self.x.low, mark.y)[1]
        return (self.frame.left, y), (self.frame.right, y)

    def labels(self, levels: list[tuple[int, Level]]) -> str:
        """All labels, after everything that they must not cover is drawn."""
        drawn = ""
        fallen: list[Entry] = []
        most = min(MAX_LABELS, int(self.frame.width * self.frame.height / LABEL_AREA))
        for at, words, entry in self._labels[:most]:
            label = self.space.label_dot(at, words)
            drawn += label
            fallen += [] if label else [entry]
        self.unlabelled = max(0, len(self._labels) - most)
        for which, mark in levels:
            label = self.space.label_level(*self.level_ends(mark), mark.name)
            drawn += label
            fallen += [] if label else [Entry(mark.name, _level_line((-15, 0), (15, 0), which, mark.name))]
        self.explained = [Entry(words, sign=str(n + 1)) for n, words in enumerate(self.space.numbered)] + fallen
        return tag("g", drawn, class_="qkv-labels") if drawn else ""

    def shows(self, mark: Level) -> bool:
        ruler, value = (self.x, mark.x) if mark.x is not None else (self.y, mark.y)
        return value is not None and ruler.axis.can_show(value) and ruler.holds(value)

    def _marker(self, series: int, at: Point, tooltip: str) -> str:
        self.space.take_dot(at)
        return marker(series, *at, tooltip)

    def _say(self, name: str, x: float, y: float) -> str:
        where = f"{self.x.axis.say(x)}, {self.y.axis.say(y)}"
        return f"{name}: {where}" if name else where

    def _can_show(self, x: float, y: float) -> bool:
        """Whether a point can be drawn; if not, it is counted with the reason."""
        reason = None
        for scale, value in ((self.x, x), (self.y, y)):
            if not scale.axis.can_show(value):
                drawn_as_log = scale.axis.scale == "log"
                reason = (
                    NOT_FINITE if not math.isfinite(value) else NOT_POSITIVE if drawn_as_log and value <= 0 else BEYOND
                )
                break
            if not scale.holds(value):
                reason = OUTSIDE
        if reason:
            self.left_out[reason] += 1
        return reason is None

    def _runs(self, mark: Line) -> Iterator[list[tuple[Point, str]]]:
        """Runs of points without a gap, in pixels, with tooltips. Points outside the axes stay, to be clipped at the
        frame."""
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
            self.space.take_segment(here, there)
        return path


def can_draw(x_axis: Axis, y_axis: Axis, left: float, right: float, height: float) -> bool:
    """Whether a bar can be drawn on axes whose ends are not fixed yet."""
    return x_axis.can_show(left) and x_axis.can_show(right) and y_axis.can_show(height)


def entry_of(mark: Line | Dots | Bars, series: int, drawable: bool) -> Entry:
    if isinstance(mark, Line):
        swatch = line_swatch(series, mark.dashed, mark.markers)
    else:
        swatch = bar(series, SWATCH_BAR) if isinstance(mark, Bars) else marker(series, 0, 0)
    return Entry(mark.name if drawable else f"{mark.name} (no points)", swatch)


def _thinned(run: list[Point]) -> list[Point]:
    """Without points less than half a pixel from the previous one."""
    kept = run[:1]
    for at in run[1:-1]:
        if math.dist(at, kept[-1]) >= 0.5:
            kept.append(at)
    return kept + run[1:][-1:]


def _pointer(at: Point, tooltip: str) -> str:
    """An invisible circle with a tooltip."""
    return tag("circle", title(tooltip), class_="qkv-pointer", cx=at[0], cy=at[1], r=5, fill=SOFT, fill_opacity=0)


def _level_line(start: Point, end: Point, which: int, tooltip: str) -> str:
    return tag(
        "path",
        title(tooltip),
        class_="qkv-level",
        d=f"M{number(start[0])} {number(start[1])}L{number(end[0])} {number(end[1])}",
        fill="none",
        stroke=SOFT,
        stroke_width=1.5,
        stroke_dasharray=LEVEL_DASHES[which % len(LEVEL_DASHES)],
    )


def roofline(
    title: str,
    roofs: Iterable[tuple[str, float, float]],
    dots: Iterable[tuple[str, float, float]] = (),
    dots_name: str = "measured",
    note: str = "",
    width: float = 720,
    height: float = 460,
    *,
    more: Mapping[str, Sequence[tuple[str, float, float]]] | None = None,
) -> str:
    """A roofline chart as an <svg> element.

    A roof is min(flops per second, intensity × bytes per second); the ridge, where the two are equal, is marked.

    Args:
        title, note, width, height: as of `chart`.
        roofs: (name, flops per second, bytes per second) of machines.
        dots: (name, flops per byte, flops per second) of calls.
        dots_name: name of their series.
        more: further series of dots by name.

    Returns:
        The <svg> element as text.

    Raises:
        OptionError: no roofs, or a rate out of range.

    >>> "ridge 5 flop/byte" in roofline("Here", [("this machine", 40e9, 8e9)], [("decode", 0.5, 3.1e9)])
    True
    """
    tops = [_roof(roof) for roof in roofs]
    if not tops:
        raise OptionError(complaint("roofs", "none", "at least one (name, flops per second, bytes per second)"))
    series = {dots_name: [_dot(dot) for dot in dots]}
    series |= {name: [_dot(dot) for dot in given] for name, given in (more or {}).items()}
    points = [point for some in series.values() for point in some]
    ridges = [flops / bandwidth for _, flops, bandwidth in tops]
    reached = [x for _, x, y in points if 0 < x < math.inf and 0 < y < math.inf]
    low, high = min([*ridges, *reached]) / 8, max([*ridges, *reached]) * 8
    axis = Axis("arithmetic intensity", "flop/byte", "log", low, high)
    marks: list[Mark] = []
    for n, ((name, flops, bandwidth), ridge) in enumerate(zip(tops, ridges, strict=True)):
        intensities = sorted({*(low * (high / low) ** (k / STEPS) for k in range(1, STEPS)), low, high, ridge})
        label = f"{name}: {readable(flops, 'FLOP/s', 3)}, {readable(bandwidth, 'B/s', 3)}"
        marks.append(
            Line(label, [(x, min(flops, x * bandwidth)) for x in intensities], dashed=n % 2 == 1, markers=False)
        )  # roofs that coincide show both
    for (name, _, _), ridge in zip(tops, ridges, strict=True):
        label = (
            f"ridge {readable(ridge, digits=3)}, {name}"
            if len(tops) > 1
            else f"ridge {readable(ridge, 'flop/byte', 3)}"
        )
        marks.append(Level(label, x=ridge))
    for named, some in series.items():
        if some:
            marks.append(Dots(named, [(x, y) for _, x, y in some], [name for name, _, _ in some]))
    return chart(title, axis, Axis("speed", "FLOP/s", "log"), marks, note, width, height)


def _roof(given: object) -> tuple[str, float, float]:
    name, flops, bandwidth = _three("roofs", given, "(name, flops per second, bytes per second)")
    for argument, rate in (("flops per second", flops), ("bytes per second", bandwidth)):
        if not 1e-30 <= rate <= 1e30:
            raise OptionError(complaint(f"roofs, {argument} of {name}", rate, "a finite number above zero"))
    return name, flops, bandwidth


def _dot(given: object) -> tuple[str, float, float]:
    return _three("dots", given, "(name, flops per byte, flops per second)")


def _three(argument: str, given: object, wanted: str) -> tuple[str, float, float]:
    if not isinstance(given, (tuple, list)):
        raise OptionTypeError(complaint(argument, repr(given), wanted))
    if len(given) != 3:
        raise ShapeError(complaint(argument, repr(given), wanted))
    return as_name(argument, given[0]), as_number(argument, given[1]), as_number(argument, given[2])
