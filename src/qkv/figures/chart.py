"""A chart: title, frame, ticks, marks, legend and note, from the top down."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from qkv.errors import OptionError, OptionTypeError, complaint
from qkv.figures.axis import Axis, Ruler, Ticks, ruler
from qkv.figures.labels import Box
from qkv.figures.legend import draw_legend, text_block
from qkv.figures.marks import Bars, Dots, Level, Line, Mark, as_name
from qkv.figures.plot import Plot, can_draw, entry_of
from qkv.figures.quantity import readable
from qkv.figures.svg import BOLD, LINE, escape, tag, text_width, wrap
from qkv.figures.theme import FONT, GRID, INK, PAPER, RULE, SOFT

TITLE, CAPTION, TICK, NOTE = 16, 13, 12, 12
EDGE = 12  # pixels of paper around everything
NARROWEST, LOWEST, LARGEST = 240, 160, 10_000
WIDE = 560  # what a narrow screen scrolls, because it would shrink the letters beyond reading
MOST_DOTS = 20_000


def chart(
    title: str,
    x_axis: Axis,
    y_axis: Axis,
    marks: Iterable[Mark],
    note: str = "",
    width: float = 720,
    height: float = 420,
) -> str:
    """An <svg> element that stands for itself: in a page as it is, in a file through `standalone`.

    Points that an axis cannot show (nan, infinite, zero or negative on a log axis, beyond ends that were given) are
    left out, and the note says how many. A legend or a note that needs more room makes the figure higher: the plot
    keeps half of `height` at least. The same input gives the same text.

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
    beneath = 8 + TICK * LINE + 4 + _high(x_caption, CAPTION) + 10
    series = [mark for mark in marks if not isinstance(mark, Level)]
    entries = [entry_of(mark, n, bool(_drawable(x_axis, y_axis, mark))) for n, mark in enumerate(series)]
    # Labels that find no room are known only after drawing: they make the figure higher, not the plot lower.
    expected = draw_legend(entries, EDGE, 0, inner)[1] + _high(wrap(note, inner, NOTE), NOTE)
    tall = max(height - top - beneath - expected - EDGE, height / 2)

    y_ticks = _upright(y, tall)
    left = EDGE + max((text_width(text, TICK) for _, text in y_ticks), default=0) + 8
    x_ticks, right = _level_ticks(x, left, width)
    plot = Plot(x, y, Box(left, top, right, top + tall))
    drawn = _draw(plot, marks)

    text = " ".join(filter(None, (note.strip(), _left_out(plot))))
    bottom = plot.frame.bottom + beneath
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
    return whole(title, _description(plot, marks, text), "".join(body), width, round(bottom))


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
        if count > MOST_DOTS:
            raise OptionError(complaint("marks", f"{count} {what}", f"at most {MOST_DOTS}", "draw fewer of them"))
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


def _upright(y: Ruler, tall: float) -> Ticks:
    """The densest ticks of the y axis whose texts stand clear of each other."""
    ticks: Ticks = []
    for ticks in y.tick_sets():
        places = [y.share(value) * tall for value, _ in ticks]
        if all(b - a >= TICK * 2.2 for a, b in pairwise(places)):
            break
    return ticks


def _level_ticks(x: Ruler, left: float, width: float) -> tuple[Ticks, float]:
    """The same for the x axis, and the right end of the frame, which leaves room for the last text."""
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
    said = ""
    if plot.left_out:
        counts = [f"{count} {reason}" for reason, count in sorted(plot.left_out.items())]
        total = sum(plot.left_out.values())
        said = f"Left out: {total} {'point' if total == 1 else 'points'} ({', '.join(counts)})."
    if plot.unlabelled:
        said += f" Labels that show when a dot is pointed at: {plot.unlabelled} more."
    return said.strip()


def _description(plot: Plot, marks: Sequence[Mark], note: str) -> str:
    """The chart in words, for those who hear it."""
    said = []
    for name, scale in (("across", plot.x), ("upwards", plot.y)):
        ends = f"{readable(scale.low, scale.axis.unit, 3)} to {readable(scale.high, scale.axis.unit, 3)}"
        said.append(f"{name.capitalize()}: {scale.axis.label or 'values'}, {scale.axis.scale} scale, {ends}.")
    for mark in marks:
        if isinstance(mark, Level):
            value, axis = (mark.x, plot.x.axis) if mark.x is not None else (mark.y, plot.y.axis)
            said.append(
                f"Reference line {mark.name}: {axis.say(value)}." if plot.shows(mark) and value is not None else ""
            )
            continue
        shown = _drawable(plot.x.axis, plot.y.axis, mark)
        kind = type(mark).__name__
        one, many = ("bar", "bars") if isinstance(mark, Bars) else ("point", "points")
        if not shown:
            said.append(f"{kind} {mark.name}: no {many}.")
            continue
        ys = [y for _, y in shown]
        reach = plot.y.axis.say(min(ys))
        reach += f" to {readable(max(ys), plot.y.axis.unit)}" if max(ys) > min(ys) else ""
        said.append(f"{kind} {mark.name}: {len(shown)} {one if len(shown) == 1 else many}, {reach}.")
    return " ".join(filter(None, (*said, note)))


def whole(title: str, description: str, body: str, width: float, height: float) -> str:
    """The <svg> element around what was drawn, with its name and its description."""
    # Several charts share a page: their ids must differ, and be the same every time.
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
