"""Heat maps: a matrix as coloured cells with values in tooltips, and thumbnails of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qkv.errors import OptionError, OptionTypeError, ShapeError, complaint
from qkv.figures.axis import as_number, exponent_of, fixed, readable
from qkv.figures.chart import CAPTION, EDGE, LARGEST, NARROWEST, NOTE, TICK, svg_figure
from qkv.figures.labels import text_block
from qkv.figures.marks import as_name
from qkv.figures.svg import BOLD, LINE, escape, number, tag, text_width, wrap
from qkv.figures.theme import GRID, HEAT, HEAT_STEPS, HEAT_TEXT, INK, PAPER, RULE, SOFT

HEADING = 14
WIDEST_CELL = 48
MAX_CELLS = 16_384
MAX_THUMBNAIL = 48  # rows or columns
LABEL_SHARE, TALLEST_LABEL = 0.3, 84  # of the width, for row names; pixels, for vertical column names
HATCH, BAR = 6, 10  # pixels between the lines of a masked cell; height of the colour bar


@dataclass(frozen=True)
class Heat:
    """A checked matrix with the range of its colours."""

    values: tuple[tuple[float, ...], ...]
    masked: tuple[tuple[bool, ...], ...]
    low: float
    high: float

    @property
    def size(self) -> tuple[int, int]:
        return len(self.values), len(self.values[0])

    def unmasked(self) -> list[tuple[float, int, int]]:
        """(value, row, column) of every unmasked number."""
        rows, columns = self.size
        places = ((row, column) for row in range(rows) for column in range(columns))
        return [
            (self.values[row][column], row, column)
            for row, column in places
            if not self.masked[row][column] and not math.isnan(self.values[row][column])
        ]

    def step(self, value: float) -> int | None:
        if math.isnan(value):
            return None
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(share * (HEAT_STEPS - 1))


def heat_map(
    title: str,
    values: Iterable[Iterable[float]],
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    row_axis: str = "query",
    column_axis: str = "key",
    low: float = 0.0,
    high: float | None = None,
    masked: Iterable[Iterable[bool]] | None = None,
    unit: str = "",
    note: str = "",
    width: float = 320,
    numbers: bool = False,
) -> str:
    """A heat map as an <svg> element; the same input gives the same text.

    Args:
        title: above the map.
        values: a matrix; nan is a blank cell, which the note counts.
        rows, columns: names, cut if they are long; numbers from 1 by default.
        row_axis, column_axis: what rows and columns are.
        low, high: values of the first and last colour; values beyond get these colours, and the note counts them. None:
            the largest value.
        masked: True for cells that are hatched, whatever the value.
        unit: of the values.
        note: below the map.
        width: pixels; with `numbers` the figure may be wider.
        numbers: whether to write values into cells.

    Returns:
        The <svg> element as text.

    Raises:
        ShapeError: matrices or names of the wrong size.
        OptionError: a value out of range, or too many cells.

    >>> svg = heat_map("Weights", [[1, 0], [0.25, 0.75]], rows=["the", "cat"], columns=["the", "cat"])
    >>> "<title>query 2 cat, key 1 the: 0.25</title>" in svg
    True
    """
    name, heat = as_name("title", title), checked_heat(values, masked, low, high)
    if isinstance(width, bool) or not isinstance(width, (int, float)):
        raise OptionTypeError(complaint("width", repr(width), "a number of pixels"))
    if not NARROWEST <= width <= LARGEST:
        raise OptionError(complaint("width", width, f"{NARROWEST} to {LARGEST} pixels"))
    for argument, text in (("row_axis", row_axis), ("column_axis", column_axis), ("note", note), ("unit", unit)):
        if not isinstance(text, str):
            raise OptionTypeError(complaint(argument, repr(text), "text"))
    count = heat.size
    if count[0] * count[1] > MAX_CELLS:
        given = f"{count[0]} by {count[1]} values"
        raise OptionError(complaint("values", given, f"at most {MAX_CELLS} cells", "small_map averages larger ones"))
    down, across = _labels("rows", rows, count[0]), _labels("columns", columns, count[1])
    full_note = " ".join(filter(None, (note.strip(), _remarks(heat))))
    return _Map(name, heat, down, across, row_axis, column_axis, unit, full_note, numbers).drawn(width)


@dataclass(frozen=True)
class _Map:
    title: str
    heat: Heat
    rows: tuple[str, ...]  # "" everywhere: counted
    columns: tuple[str, ...]
    row_axis: str
    column_axis: str
    unit: str
    note: str
    numbers: bool

    def drawn(self, width: float) -> str:
        count = self.heat.size
        down = [label or str(n + 1) for n, label in enumerate(self.rows)]
        across = [label or str(n + 1) for n, label in enumerate(self.columns)]
        down = [_cut(label, LABEL_SHARE * width) for label in down]
        left = math.ceil(EDGE + max(text_width(label, TICK) for label in down) + 6)
        needed = self._widest_number() + 6 if self.numbers else 0
        width = min(max(width, left + needed * count[1] + EDGE), LARGEST)
        cell = min((width - left - EDGE) / count[1], max(WIDEST_CELL, needed))
        cell = math.floor(2 * cell) / 2 if cell >= 4 else cell
        tall = (
            min(cell, max(TICK * LINE, 2 * width / count[0]))
            if not self.numbers
            else max(min(cell, 40), TICK * LINE + 4)
        )

        upright = any(text_width(label, TICK) > cell - 2 for label in across) and any(self.columns)
        across = [_cut(label, TALLEST_LABEL) for label in across] if upright else across
        head = max(text_width(label, TICK) for label in across) + 4 if upright else TICK * LINE + 2
        heading = wrap(self.title, width - 2 * EDGE, HEADING * BOLD)
        caption = wrap(f"{self.row_axis} ↓  {self.column_axis} →", width - 2 * EDGE, CAPTION)
        top = math.ceil(EDGE + len(heading) * HEADING * LINE + 2 + len(caption) * CAPTION * LINE + 4 + head)
        bottom = top + tall * count[0]

        bar, bar_height = self._bar(left, bottom + 10, max(120, min(cell * count[1], 220)))
        note_top = bottom + 10 + bar_height + 6
        note = wrap(self.note, width - 2 * EDGE, NOTE)
        body = (
            text_block(heading, EDGE, EDGE, HEADING, "qkv-title qkv-ink", INK, font_weight="bold"),
            text_block(caption, EDGE, EDGE + len(heading) * HEADING * LINE + 2, CAPTION, "qkv-caption qkv-soft", SOFT),
            self._names(down, across, left, top, cell, tall, upright),
            self._cells(left, top, cell, tall),
            bar,
            text_block(note, EDGE, note_top, NOTE, "qkv-note qkv-soft", SOFT),
        )
        end = note_top + len(note) * NOTE * LINE + EDGE - (0 if note else 6)
        return svg_figure(self.title, self._description(), "".join(body), round(width), round(end))

    def _widest_number(self) -> float:
        return max((text_width(self._short(value), TICK) for value, _, _ in self.heat.unmasked()), default=0)

    def _short(self, value: float) -> str:
        peak = max(abs(self.heat.low), abs(self.heat.high))
        decimals = 2 if 0.1 <= peak <= 1 else 2 - exponent_of(peak)
        if not math.isfinite(value) or not -4 <= decimals <= 5:
            return _say(value, "", 2)
        return fixed(value, max(decimals, 0))

    def _names(
        self, down: list[str], across: list[str], left: float, top: float, cell: float, tall: float, upright: bool
    ) -> str:
        size = TICK * LINE
        drawn = ""
        for n in range(0, len(down), max(1, math.ceil(size / tall))):
            y = top + (n + 0.5) * tall - 0.65 * TICK
            drawn += text_block([down[n]], left - 6, y, TICK, "qkv-tick qkv-tick-y qkv-soft", SOFT, "end")
        spacing = size if upright else max(text_width(label, TICK) for label in across) + 4
        for n in range(0, len(across), max(1, math.ceil(spacing / cell))):
            x = left + (n + 0.5) * cell
            if upright:
                turned = {"transform": f"rotate(-90 {x + 0.35 * TICK:.2f} {top - 4:.2f})"}
                x, y = x + 0.35 * TICK, top - 4 - TICK
                drawn += text_block([across[n]], x, y, TICK, "qkv-tick qkv-tick-x qkv-soft", SOFT, **turned)
            else:
                y = top - TICK - 4
                drawn += text_block([across[n]], x, y, TICK, "qkv-tick qkv-tick-x qkv-soft", SOFT, "middle")
        return tag("g", drawn, class_="qkv-scales")

    def _cells(self, left: float, top: float, cell: float, tall: float) -> str:
        """Rows are groups and cells their children, in order: scripts find a cell by counting."""
        gap = 1 if min(cell, tall) >= 6 else 0
        hatch = "qkv-hatch-" + hashlib.sha256(repr((self.title, self.heat)).encode()).hexdigest()[:12]
        across = [escape(self._name(self.column_axis, at, label)) for at, label in enumerate(self.columns)]
        wide, high = number(cell - gap), number(tall - gap)
        lines, texts = "", ""
        for row, values in enumerate(self.heat.values):
            inside, down = "", escape(self._name(self.row_axis, row, self.rows[row]))
            for column, value in enumerate(values):
                x = column * cell
                hidden = self.heat.masked[row][column]
                step = None if hidden else self.heat.step(value)
                fill = f"url(#{hatch})" if hidden else PAPER if step is None else HEAT[step]
                look = "qkv-masked" if hidden else "qkv-paper" if step is None else f"qkv-heat-{step}"
                tooltip = f"{down}, {across[column]}: {'masked' if hidden else escape(_say(value, self.unit))}"
                # Not with `tag`, which would take most of the time for thousands of cells.
                inside += f'<rect class="{look}" x="{number(x)}" width="{wide}" height="{high}" fill="{fill}">'
                inside += f"<title>{tooltip}</title></rect>"
                if self.numbers and step is not None:
                    texts += text_block(
                        [self._short(value)],
                        left + x + (cell - gap) / 2,
                        top + row * tall + (tall - gap) / 2 - 0.65 * TICK,
                        TICK,
                        f"qkv-heat-text-{step}",
                        HEAT_TEXT[step],
                        "middle",
                        pointer_events="none",
                    )
            lines += tag("g", inside, transform=f"translate({left} {number(top + row * tall)})")
        stroke = tag("path", class_="qkv-rule", d=f"M0 {HATCH}L{HATCH} 0", stroke=RULE, stroke_width=0.8)
        pattern = tag("pattern", stroke, id=hatch, width=HATCH, height=HATCH, patternUnits="userSpaceOnUse")
        count = self.heat.size
        frame = tag(
            "rect",
            class_="qkv-frame qkv-rule",
            x=left - 1,
            y=top - 1,
            width=cell * count[1] + 2 - gap,
            height=tall * count[0] + 2 - gap,
            fill="none",
            stroke=RULE,
            pointer_events="none",
        )
        some_hidden = any(any(row) for row in self.heat.masked)
        cells = tag("g", lines, class_="qkv-cells")
        return (tag("defs", pattern) if some_hidden else "") + cells + texts + frame

    def _bar(self, left: float, top: float, width: float) -> tuple[str, float]:
        """The colour bar with its ends and, if it fits, its middle; and its height."""
        low, high, step = self.heat.low, self.heat.high, width / HEAT_STEPS
        drawn = "".join(
            tag("rect", class_=f"qkv-heat-{n}", x=left + n * step, y=top, width=step + 0.3, height=BAR, fill=colour)
            for n, colour in enumerate(HEAT)
        )
        frame = tag("rect", class_="qkv-rule", x=left, y=top, width=width + 0.3, height=BAR, fill="none", stroke=RULE)
        texts = [_say(value, self.unit, 3) for value in (low, (low + high) / 2, high)]
        places = [(texts[0], 0, "start"), (texts[1], 0.5, "middle"), (texts[2], 1, "end")]
        if sum(text_width(text, TICK) for text in texts) > width - 24:
            places = places[::2]
        ticks = "".join(
            text_block([text], left + at * width, top + BAR + 3, TICK, "qkv-tick qkv-soft", SOFT, anchor)
            for text, at, anchor in places
        )
        return tag("g", drawn, frame, ticks, class_="qkv-heat-bar"), BAR + 3 + TICK * LINE

    def _name(self, axis: str, at: int, label: str) -> str:
        return " ".join(filter(None, (axis, str(at + 1), label)))

    def _place(self, row: int, column: int) -> str:
        down = self._name(self.row_axis, row, self.rows[row])
        return f"{down}, {self._name(self.column_axis, column, self.columns[column])}"

    def _description(self) -> str:
        count = self.heat.size
        sentences = [f"{count[0]} by {count[1]} cells. Down: {self.row_axis}. Across: {self.column_axis}."]
        ends = f"{_say(self.heat.low, self.unit, 3)} to {_say(self.heat.high, self.unit, 3)}"
        sentences.append(f"Colours from {ends}.")
        if unmasked := self.heat.unmasked():
            most = max(unmasked, key=lambda each: each[0])
            sentences.append(f"Largest: {_say(most[0], self.unit)} at {self._place(*most[1:])}.")
        if hidden := sum(map(sum, self.heat.masked)):
            sentences.append(f"Masked: {hidden}.")
        return " ".join((*sentences, self.note)).strip()


def checked_heat(values: object, masked: object, low: float, high: float | None) -> Heat:
    """A matrix with its mask and range, checked."""
    lines = _matrix("values", values)
    numbers = tuple(tuple(as_number("values", value) for value in line) for line in lines)
    if not numbers or not numbers[0] or len({len(line) for line in numbers}) > 1:
        given = f"rows of {sorted({len(line) for line in numbers})}" if numbers else "nothing"
        raise ShapeError(complaint("values", given, "rows with equal numbers of values, at least one"))
    hidden = tuple(tuple(map(bool, line)) for line in _matrix("masked", masked)) if masked is not None else None
    hidden = hidden or tuple((False,) * len(line) for line in numbers)
    if [len(line) for line in hidden] != [len(line) for line in numbers]:
        raise ShapeError(
            complaint("masked", f"{len(hidden)} rows", f"{len(numbers)} by {len(numbers[0])}, like values")
        )
    low = as_number("low", low)
    if high is None:
        pairs = (pair for lines in zip(numbers, hidden, strict=True) for pair in zip(*lines, strict=True))
        high = max((value for value, masks in pairs if not masks and math.isfinite(value)), default=low)
        high = high if high > low else low + (abs(low) or 1)
    high = as_number("high", high)
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low) and low < high):
        raise OptionError(complaint("low, high", f"{low:g}, {high:g}", "two finite numbers, low below high"))
    return Heat(numbers, hidden, low, high)


def _matrix(argument: str, given: object) -> list[list[object]]:
    try:
        return [list(line) for line in given]  # pyright: ignore[reportGeneralTypeIssues]
    except TypeError:
        raise OptionTypeError(complaint(argument, repr(given)[:60], "a list of rows")) from None


def _labels(argument: str, given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if given is None:
        return ("",) * count
    if isinstance(given, str) or not all(isinstance(label, str) for label in given):
        raise OptionTypeError(complaint(argument, repr(given)[:60], "a list of texts"))
    if len(given) != count:
        raise ShapeError(complaint(argument, f"{len(given)}", f"{count}, one for each"))
    return tuple(" ".join(label.split()) or "␣" for label in given)


def _cut(label: str, width: float) -> str:
    return wrap(label, width, TICK, most=1)[0]


def _say(value: float, unit: str = "", digits: int = 4) -> str:
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return readable(value, unit, digits)


def _remarks(heat: Heat) -> str:
    """What the colours do not show."""
    unmasked = [value for value, _, _ in heat.unmasked()]
    blank = heat.size[0] * heat.size[1] - sum(map(sum, heat.masked)) - len(unmasked)
    beyond = sum(not heat.low <= value <= heat.high for value in unmasked)
    sentences = [f"Not a number: {blank}."] if blank else []
    sentences += [f"Beyond the ends of the colours: {beyond}."] if beyond else []
    return " ".join(sentences)


def small_map(
    values: Iterable[Iterable[float]],
    *,
    title: str = "weights",
    low: float = 0.0,
    high: float | None = None,
    masked: Iterable[Iterable[bool]] | None = None,
    size: float = 64,
) -> str:
    """A thumbnail of a heat map as an <svg> element, without labels.

    Args:
        values, low, high, masked: as of `heat_map`; more than 48 rows or columns are averaged over blocks, without
            masked cells, and the title says so.
        title: the tooltip.
        size: pixels of the longer side.

    Returns:
        The <svg> element as text.

    >>> "averaged over blocks of 2 by 2" in small_map([[1.0] * 96] * 96)
    True
    """
    name, heat = as_name("title", title), checked_heat(values, masked, low, high)
    rows, columns = heat.size
    block = math.ceil(rows / MAX_THUMBNAIL), math.ceil(columns / MAX_THUMBNAIL)
    if block != (1, 1):
        name += f", {rows} by {columns}, averaged over blocks of {block[0]} by {block[1]}"
        heat = _averaged(heat, block, low, high)
    rows, columns = heat.size
    paths: dict[tuple[str, str], str] = {}
    for row, line in enumerate(heat.values):
        looks = [_look(heat, value, heat.masked[row][n]) for n, value in enumerate(line)]
        start = 0
        for column in range(1, columns + 1):
            if column == columns or looks[column] != looks[start]:
                path = f"M{start} {row + 0.5}h{column - start}"
                paths[looks[start]] = paths.get(looks[start], "") + path
                start = column
    background = "qkv-heat-line-0"
    body = tag("rect", class_="qkv-heat-0", width=columns, height=rows, fill=HEAT[0])
    body += "".join(
        tag("path", class_=look, d=path, stroke=colour) for (look, colour), path in paths.items() if look != background
    )
    longest = max(rows, columns)
    return tag(
        "svg",
        tag("title", escape(name)),
        body,
        xmlns="http://www.w3.org/2000/svg",
        class_="qkv-thumbnail",
        viewBox=f"0 0 {columns} {rows}",
        width=size * columns / longest,
        height=size * rows / longest,
        role="img",
        aria_label=name,
        shape_rendering="crispEdges",
        preserveAspectRatio="none",
    )


def _look(heat: Heat, value: float, hidden: bool) -> tuple[str, str]:
    step = None if hidden else heat.step(value)
    return ("qkv-grid", GRID) if step is None else (f"qkv-heat-line-{step}", HEAT[step])


def _averaged(heat: Heat, block: tuple[int, int], low: float, high: float | None) -> Heat:
    rows, columns = heat.size
    values, masked = [], []
    for top in range(0, rows, block[0]):
        sums = [[0.0, 0] for _ in range(0, columns, block[1])]
        for row in range(top, min(top + block[0], rows)):
            for column, (value, hidden) in enumerate(zip(heat.values[row], heat.masked[row], strict=True)):
                if not hidden:
                    sums[column // block[1]][0] += value
                    sums[column // block[1]][1] += 1
        values.append([total / count if count else math.nan for total, count in sums])
        masked.append([count == 0 for _, count in sums])
    return checked_heat(values, masked, low, high)
