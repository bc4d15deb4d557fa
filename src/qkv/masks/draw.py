"""Pictures of masks: characters for a terminal, SVG for a notebook. Neither needs torch."""

from __future__ import annotations

from html import escape
from itertools import product
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from qkv.errors import OptionError, QkvError, complaint
from qkv.masks.base import Mask
from qkv.masks.count import BLOCK_CELLS, check_cell_count, signed_conjunctions
from qkv.masks.grid import Extent, NumpyGrid, Range, as_size

ATTENDS, MASKED, PARTLY = "■", "·", "▒"
MAX_SIGNS = 32  # in a row and in a column
EXAMPLE_LENGTH = 8
MAX_CELLS = 2**28


class Picture(NamedTuple):
    """Signs by block: `signs[r][c]` of the rectangle that `rows[r]` and `keys[c]` span.

    block: The size of a block, empty where each sign is one cell. population: How many cells attend.
    """

    rows: list[Range]
    keys: list[Range]
    signs: list[list[str]]
    block: str
    population: str


def text(mask: Mask, len_q: Any, len_k: Any, batch: int, head: int, width: int) -> str:
    """See `Mask.draw`."""
    if as_size("width", width) < 24:
        raise OptionError(complaint("width", width, "24 columns or more"))
    extent, note = _sizes(mask, len_q, len_k, batch, head)
    digits = len(str(max(0, extent.len_q - 1)))
    margin = len("query ") + digits + 1
    picture = _picture(mask, extent, batch, head, note, min(MAX_SIGNS, (width - margin) // 2))
    lines = [*wrap(repr(mask), width), " " * margin + "key", " " * margin + _ticks(picture, width - margin)]
    for (i0, _), signs in zip(picture.rows, picture.signs, strict=True):
        lines.append(f"{'' if i0 else 'query':5} {i0:>{digits}} {' '.join(signs)}")
    legend = f"{ATTENDS} True: the query attends to the key   {MASKED} False: it does not"
    if picture.block:
        legend += f"   {PARTLY} some do. Each sign stands for {picture.block} cells (queries × keys)."
    lines += [*wrap(legend, width), *wrap(picture.population, width)]
    return "\n".join(line.rstrip() for line in lines)


def html(mask: Mask) -> str:
    """The same picture as an HTML figure: an SVG with a title for screen readers."""
    try:
        extent, note = _sizes(mask, None, None, 0, 0)
        picture = _picture(mask, extent, 0, 0, note, MAX_SIGNS)
    except QkvError as error:  # a notebook shows the object in any case
        return f"<p><code>{escape(repr(mask))}</code>: {escape(str(error))}</p>"
    step, cells = 12, ""
    for sign, opacity in ((MASKED, 0.08), (PARTLY, 0.4), (ATTENDS, 0.85)):
        places = product(range(len(picture.rows)), range(len(picture.keys)))
        path = "".join(f"M{c * step} {r * step}h11v11h-11z" for r, c in places if picture.signs[r][c] == sign)
        cells += f'<path fill-opacity="{opacity}" d="{path}"/>' if path else ""
    name, about = escape(repr(mask)), escape(picture.population)
    legend = "Rows are queries, columns are keys; full cells attend (True), faint cells do not (False)"
    legend += f", half-full cells in part; each stands for {picture.block}" if picture.block else ""
    wide, tall = max(1, len(picture.keys)) * step, max(1, len(picture.rows)) * step
    # currentColor follows the notebook's theme, light or dark.
    return (
        f'<figure><svg role="img" aria-label="{name}: {about}" width="{wide}" height="{tall}" '
        f'viewBox="0 0 {wide} {tall}" fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{name}: {about}</title><desc>{legend}.</desc>{cells}</svg>"
        f"<figcaption><code>{name}</code><br/>{about} {legend}.</figcaption></figure>"
    )


def _sizes(mask: Mask, len_q: Any, len_k: Any, batch: Any, head: Any) -> tuple[Extent, str]:
    """The sizes of a picture, and a note on which of them are the mask's."""
    own, where = mask._own_sizes(), []
    places = {"batch": as_size("batch", batch), "head": as_size("head", head)}
    sizes = [index + 1 if size is None else size for index, size in zip(places.values(), own, strict=False)]
    extent = mask.extent_of(sizes[0], sizes[1], len_q, len_k, EXAMPLE_LENGTH)
    for (name, index), length, size in zip(places.items(), sizes, own, strict=False):
        if index >= length:
            raise OptionError(complaint(name, index, f"below {length}, the mask's own size"))
        if size is not None and length > 1:
            where.append(f"{'batch row' if name == 'batch' else name} {index} of {length}")
    note = f" in {', '.join(where)}" if where else ""
    if (len_q, len_k, *own[2:]) == (None,) * 4:
        note += f"; an example of {extent.len_q} × {extent.len_k}, as the mask fits any size"
    return extent, note


def _edges(length: int, signs: int) -> list[tuple[int, int]]:
    step = -(-length // max(1, signs)) or 1
    return [(start, min(length, start + step)) for start in range(0, length, step)]


def _picture(mask: Mask, extent: Extent, batch: int, head: int, note: str, signs: int) -> Picture:
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    rows, keys = _edges(extent.len_q, signs), _edges(extent.len_k, signs)
    # Bands count any rectangle in closed form, so that sequences of any length can be drawn.
    signed = signed_conjunctions(mask, extent) if extent.cells > BLOCK_CELLS else None
    if signed is not None and not any(part.holes or part.packed for _, part in signed):
        counts = [[sum(sign * part.band.count(batch, r, k) for sign, part in signed) for k in keys] for r in rows]
    else:
        counts = _count_blocks(mask, extent, batch, head, rows, keys)
    sizes = [[(i1 - i0) * (j1 - j0) for j0, j1 in keys] for i0, i1 in rows]
    found = [list(map(_sign, *row)) for row in zip(counts, sizes, strict=True)]
    high, broad = (max((stop - start for start, stop in edges), default=1) for edges in (rows, keys))
    population = f"{sum(map(sum, counts))} of {extent.len_q * extent.len_k} cells attend{note}."
    return Picture(rows, keys, found, f"{high} × {broad}" if max(high, broad) > 1 else "", population)


def _sign(cells: int, most: int) -> str:
    return MASKED if cells == 0 else ATTENDS if cells == most else PARTLY


def _count_blocks(mask: Mask, extent: Extent, batch: int, head: int, rows: Any, keys: Any) -> list[list[int]]:
    check_cell_count(mask, extent.cells, MAX_CELLS, "draw")
    if not rows or not keys:
        return [[] for _ in rows]
    starts = [start for start, _ in keys]
    counts = []
    for row in rows:
        grid = NumpyGrid(extent, row, (0, extent.len_k))
        cells = mask.cells(grid)
        slab = cells[min(batch, cells.shape[0] - 1), min(head, cells.shape[1] - 1)]
        whole = np.broadcast_to(slab, grid.shape[2:]).sum(axis=0)
        counts.append(np.add.reduceat(whole, starts).tolist())
    return counts


def _ticks(picture: Picture, width: int) -> str:
    """The first key of a block above its column, wherever it fits."""
    line = ""
    for c, (j0, _) in enumerate(picture.keys):
        label, column = str(j0), 2 * c
        if (not line or column > len(line)) and column + len(label) <= width:
            line = f"{line:<{column}}{label}"
    return line
