"""The legend: under the plot, in columns, so that it never lies over data and no entry over another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkv.figures.labels import Box
from qkv.figures.svg import LINE, escape, tag, text_width, title, wrap
from qkv.figures.theme import COLOURS, DASHED, INK, PAPER, colour_of, shape_of

SIZE = 13
SWATCH, GAP = 38, 18
MOST_LINES = 3


@dataclass(frozen=True)
class Entry:
    """`swatch` is drawn around the middle of its place, `sign` is a number of a label that found no room."""

    name: str
    swatch: str = ""
    sign: str = ""


def marker(series: int, x: float, y: float, said: str = "") -> str:
    index = colour_of(series)
    return tag(
        "path",
        *([title(said)] if said else []),
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


def bar(series: int, box: Box, said: str = "") -> str:
    """Filled thinly, so that a line over it is seen, and edged in full."""
    index = colour_of(series)
    return tag(
        "rect",
        *([title(said)] if said else []),
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
    """The SVG, and the height that it takes."""
    if not entries:
        return "", 0
    widest = max(text_width(entry.name, SIZE) for entry in entries) + SWATCH + GAP
    cell = min(widest, width / 2 if len(entries) > 3 and width >= 500 else width)
    columns = max(1, int(width // cell))
    columns = -(-len(entries) // -(-len(entries) // columns))  # as many rows, but evenly filled
    step = width / columns if columns * cell > 0.7 * width else cell
    drawn, y = "", top
    for start in range(0, len(entries), columns):
        row = entries[start : start + columns]
        texts = [wrap(entry.name, step - SWATCH - GAP + 1, SIZE, MOST_LINES) for entry in row]
        for column, (entry, lines) in enumerate(zip(row, texts, strict=True)):
            drawn += _entry(entry, lines, left + column * step, y)
        y += max(map(len, texts)) * SIZE * LINE + 3
    return tag("g", drawn, class_="qkv-legend"), y - top


def _entry(entry: Entry, lines: list[str], left: float, top: float) -> str:
    middle = top + SIZE * LINE / 2
    swatch = (
        tag("g", entry.swatch, transform=f"translate({left + SWATCH / 2 - 2:.2f} {middle:.2f})") if entry.swatch else ""
    )
    if entry.sign:
        swatch = text_block([entry.sign], left + SWATCH / 2 - 2, top, SIZE, "qkv-legend-sign qkv-ink", INK, "middle")
    name = text_block(lines, left + SWATCH, top, SIZE, "qkv-legend-name qkv-ink", INK)
    whole = title(entry.name) if lines and lines[-1].endswith("…") else ""
    return tag("g", whole, swatch, name, class_="qkv-legend-entry")


def text_block(
    lines: Sequence[str], x: float, top: float, size: float, classes: str, fill: str, anchor: str = "start", **more: str
) -> str:
    """Lines of text, the first one's upper edge at `top`."""
    if not lines:
        return ""
    spans = [
        tag("tspan", escape(line), x=x, y=top + (n * LINE + 1) * size) if len(lines) > 1 else escape(line)
        for n, line in enumerate(lines)
    ]
    extra = {"text_anchor": anchor} if anchor != "start" else {}
    return tag("text", " ".join(spans), class_=classes, x=x, y=top + size, font_size=size, fill=fill, **extra, **more)
