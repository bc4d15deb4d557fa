"""Colours, shapes and the style sheet. Elements have light colours as attributes, so that a file looks right without a
style sheet; the style sheet has the dark colours, by class, for screens only."""

from __future__ import annotations

import math

PAPER, INK, SOFT, RULE, GRID = "#ffffff", "#1c1f23", "#535a63", "#767d86", "#e3e6ea"
DARK_PAPER, DARK_INK, DARK_SOFT, DARK_RULE, DARK_GRID = "#16181c", "#e8eaed", "#b0b7c0", "#868e98", "#30343b"

# Distinguishable with any colour vision deficiency, and with a contrast of at least 3:1: tests compute both.
COLOURS = ("#174ea6", "#c3820b", "#008283", "#e6136b", "#442767", "#845f0d", "#682121", "#348df6")
DARK_COLOURS = ("#2cb2ff", "#d1ae4d", "#0d9478", "#ff66c2", "#9662fb", "#c4e726", "#ec3a3a", "#8ce9f1")

FONT = "system-ui, sans-serif"


def _ramp(*anchors: str) -> tuple[str, ...]:
    """HEAT_STEPS colours interpolated between evenly spaced anchors."""
    colours = []
    for step in range(HEAT_STEPS):
        part, share = divmod(step * (len(anchors) - 1) / (HEAT_STEPS - 1), 1)
        ends = anchors[int(part)], anchors[min(int(part) + 1, len(anchors) - 1)]
        mixed = [(1 - share) * int(ends[0][n : n + 2], 16) + share * int(ends[1][n : n + 2], 16) for n in (1, 3, 5)]
        colours.append("#" + "".join(f"{round(each):02x}" for each in mixed))
    return tuple(colours)


# From low to high; HEAT_TEXT is the text colour on each: black or white, with a contrast of at least 4.5:1.
HEAT_STEPS = 21
HEAT = _ramp("#eef3f9", "#a9cbec", "#4a8fd3", "#1b55a8", "#0a2148")
DARK_HEAT = _ramp("#20252d", "#1d4270", "#2472b4", "#5fb6f3", "#e4f4ff")
HEAT_TEXT = ("#000000",) * 12 + ("#ffffff",) * 9
DARK_HEAT_TEXT = ("#ffffff",) * 11 + ("#000000",) * 10


def _polygon(angles: list[float], radii: list[float]) -> str:
    corners = [
        f"{r * math.sin(math.radians(a)):.2f} {-r * math.cos(math.radians(a)):.2f}"
        for a, r in zip(angles, radii, strict=True)
    ]
    return f"M{'L'.join(corners)}Z"


def _turned(count: int, first: float, radius: float) -> str:
    return _polygon([first + 360 * n / count for n in range(count)], [radius] * count)


def _star(points: int, first: float, outer: float, inner: float) -> str:
    return _polygon([first + 180 * n / points for n in range(2 * points)], [outer, inner] * points)


def _bars(first: float) -> str:
    """A plus, or turned by 45 degrees a cross."""
    angles = [first + quarter + corner for quarter in (0, 90, 180, 270) for corner in (-18, 18, 45)]
    return _polygon(angles, [5.8, 5.8, 2.55] * 4)


# Nine shapes and eight colours: 72 series before a pair repeats.
SHAPES = (
    "M4.4 0A4.4 4.4 0 1 1 -4.4 0A4.4 4.4 0 1 1 4.4 0Z",
    _turned(4, 45, 5.6),
    _turned(3, 0, 6),
    _turned(4, 0, 5.8),
    _turned(3, 180, 6),
    _bars(0),
    _bars(45),
    _star(5, 0, 6.4, 2.7),
    "M-5 -5H5L1 0L5 5H-5L-1 0Z",
)
DASHED = "7 4"
LEVEL_DASHES = ("2 3", "9 3 2 3", "5 3", "12 4")


def colour_of(series: int) -> int:
    return series % len(COLOURS)


def shape_of(series: int) -> str:
    return SHAPES[series % len(SHAPES)]


def _dark_rules() -> str:
    rules = {
        ".qkv-paper": f"fill:{DARK_PAPER}",
        ".qkv-halo": f"stroke:{DARK_PAPER}",
        ".qkv-ink": f"fill:{DARK_INK}",
        ".qkv-soft": f"fill:{DARK_SOFT}",
        ".qkv-rule": f"stroke:{DARK_RULE}",
        ".qkv-grid": f"stroke:{DARK_GRID}",
        ".qkv-level": f"stroke:{DARK_SOFT}",
    }
    for index, colour in enumerate(DARK_COLOURS):
        rules[f".qkv-stroke-{index}"] = f"stroke:{colour}"
        rules[f".qkv-fill-{index}"] = f"fill:{colour}"
    for index, (colour, text) in enumerate(zip(DARK_HEAT, DARK_HEAT_TEXT, strict=True)):
        rules[f".qkv-heat-{index}"] = f"fill:{colour}"
        rules[f".qkv-heat-line-{index}"] = f"stroke:{colour}"
        rules[f".qkv-heat-text-{index}"] = f"fill:{text}"
    return "".join(f"{selector}{{{rule}}}" for selector, rule in rules.items())


DARK_RULES = _dark_rules()
STYLE = f"@media screen and (prefers-color-scheme:dark){{{DARK_RULES}}}"


def standalone(svg: str) -> str:
    """The text of an .svg file with the chart and its style sheet for dark screens.

    >>> standalone('<svg xmlns="http://www.w3.org/2000/svg"></svg>').startswith("<?xml")
    True
    """
    opening, bracket, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{opening}{bracket}<style>{STYLE}</style>{rest}\n'
