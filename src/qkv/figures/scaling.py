"""Scaling as a picture: how many times as fast so many machines are, by every split, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from qkv.cost.links import Point
from qkv.cost.readable import counted, quantity, readable_seconds, whole
from qkv.cost.scaling import LINEAR, Scaling
from qkv.figures.axis import Axis
from qkv.figures.chart import chart
from qkv.figures.marks import Dots, Line, Mark
from qkv.figures.page import Table


def scaling_chart(of: str, found: Scaling, points: Sequence[Point] = (), note: str = "") -> str:
    """Over machines, both axes logarithmic: the time on one machine divided by the time on these, for each split; the
    ideal, which no split is above; and `points` that were measured, each call with the line that was predicted."""
    machines = [row.machines for row in found.rows]
    far = max([*machines, *(point.ranks for point in points), 2])
    marks: list[Mark] = [Line("ideal", [(1, 1), (far, far)], dashed=True, markers=False)]
    first = found.rows[0].splits
    for name in first:
        alone = first[name].seconds
        line = [(row.machines, seconds) for row in found.rows if (seconds := row.splits[name].seconds) is not None]
        shown = "linear attention, scan" if name == LINEAR else name
        if alone is not None:
            marks.append(Line(shown, [(count, alone / seconds) for count, seconds in line]))
    marks += [mark for _, some in groupby(points, key=lambda point: point.sizes) for mark in _measured(list(some))]
    title = f"Speed over machines: {of}"
    said = f"{counted(found.tokens, 'token')}, {quantity(found.link.bandwidth, 'B/s')} and "
    said += f"{readable_seconds(found.link.latency)} a message between machines"
    note = "; ".join(filter(None, (said, note)))
    return chart(
        title, Axis("machines", scale="log"), Axis("times as fast as one", scale="log"), marks, note, height=520
    )


def clearest(points: Sequence[Point]) -> list[Point]:
    """One call by one split, so that the chart can be read: the longest that was measured in one process too, forward
    alone and by a ring if it was."""
    found: list[Point] = []
    for _, some in groupby(points, key=lambda point: point.sizes):
        group = list(some)
        splits = dict.fromkeys(point.split for point in group if point.ranks > 1)
        if not splits or all(point.ranks > 1 for point in group):
            continue
        split = "ring" if "ring" in splits else next(iter(splits))
        mine = [point for point in group if point.ranks == 1 or point.split == split]
        if not found or _rank(mine[0]) > _rank(found[0]):
            found = mine
    return found


def _rank(point: Point) -> tuple[bool, int, bool]:
    return not point.learns, point.tokens, point.causal


def scaling_table(of: str, found: Scaling) -> Table:
    """The numbers of the chart."""
    names = list(found.rows[0].splits)
    header = ["machines", "tokens each", *("linear" if name == LINEAR else name for name in names), "best"]
    header += ["efficiency", "memory each", "sent a layer", "a token"]
    rows = []
    for row in found.rows:
        times = [row.splits[name].seconds for name in names]
        cells = ["-" if seconds is None else readable_seconds(seconds) for seconds in times]
        token = "-" if row.token_seconds is None else readable_seconds(row.token_seconds)
        own = quantity(row.memory_bytes, "B"), quantity(row.sent_bytes_per_layer, "B"), token
        rows.append([whole(row.machines), whole(row.tokens), *cells, row.best, f"{row.efficiency:.2%}", *own])
    return Table(f"Spread over machines: {of}", header, rows)


def _measured(group: Sequence[Point]) -> list[Mark]:
    """Points of one call, against the same call in one process; nothing where that was not measured."""
    alone = next((point.seconds for point in group if point.ranks == 1), None)
    if alone is None:
        return []
    found: list[Mark] = []
    what = f"{whole(group[0].tokens)} tokens here"
    for split in dict.fromkeys(point.split for point in group if point.ranks > 1):
        mine = [point for point in group if point.split == split and point.ranks > 1]
        said = [(point.ranks, alone / point.predicted()) for point in mine if point.link is not None]
        if said:
            found.append(Line(f"{split}, {what}: predicted", [(1, 1), *said], dashed=True, markers=False))
        dots = [(point.ranks, alone / point.seconds) for point in mine]
        labels = [f"{point.ranks} ranks: × {alone / point.seconds:.2f}" for point in mine]
        found.append(Dots(f"{split}, {what}: measured", dots, labels))
    return found
