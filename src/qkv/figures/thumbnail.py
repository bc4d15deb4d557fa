"""Thumbnails of heat maps: many of them on a page, none with a label."""

from __future__ import annotations

import math
from collections.abc import Iterable

from qkv.figures.heat import Heat, checked
from qkv.figures.marks import as_name
from qkv.figures.svg import escape, tag
from qkv.figures.theme import GRID, HEAT

MOST = 48  # cells, each way


def small_map(
    values: Iterable[Iterable[float]],
    *,
    title: str = "weights",
    low: float = 0.0,
    high: float | None = None,
    masked: Iterable[Iterable[bool]] | None = None,
    size: float = 64,
) -> str:
    """A bare thumbnail of at most `size` by `size` pixels, without labels. A matrix of more than 48 rows or columns is
    averaged over blocks, without what is masked, and the title says so.

    >>> "averaged over blocks of 2 by 2" in small_map([[1.0] * 96] * 96)
    True
    """
    name, heat = as_name("title", title), checked(values, masked, low, high)
    rows, columns = heat.size
    block = math.ceil(rows / MOST), math.ceil(columns / MOST)
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
    return checked(values, masked, low, high)
