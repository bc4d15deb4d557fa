"""Charts as SVG text, for files, reports and pages: no torch, no numpy, no script, nothing from a network.

>>> from qkv.figures import Axis, Line, chart
>>> lines = [Line("measured", [(1024, 0.002), (4096, 0.009), (16384, 0.04)])]
>>> chart("Time per token", Axis("context", "tokens", "log"), Axis("time", "s", "log"), lines)[:4]
'<svg'
"""

from __future__ import annotations

from qkv.figures.axis import Axis, readable
from qkv.figures.chart import chart, roofline
from qkv.figures.heat import heat_map, small_map
from qkv.figures.marks import Bars, Dots, Level, Line
from qkv.figures.page import Table, page
from qkv.figures.shown import show
from qkv.figures.theme import STYLE, standalone

__all__ = [
    "STYLE",
    "Axis",
    "Bars",
    "Dots",
    "Level",
    "Line",
    "Table",
    "chart",
    "heat_map",
    "page",
    "readable",
    "roofline",
    "show",
    "small_map",
    "standalone",
]
