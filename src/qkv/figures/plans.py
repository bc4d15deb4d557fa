"""Plans as figures: time over context, rooflines, and speed over machines, with tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from qkv.cost.communication import Point, read_points
from qkv.cost.planning import Curve, Plan, Roofs, plan_name, roofs, times_over_context
from qkv.cost.readable import count_text, in_words, integer_text, quantity, readable_seconds
from qkv.cost.scaling import LINEAR, Scaling
from qkv.figures.axis import Axis
from qkv.figures.chart import chart, roofline
from qkv.figures.marks import Dots, Level, Line, Mark
from qkv.figures.page import Table, page
from qkv.figures.theme import standalone

BELOW = "A dot that adds up several parts, such as a step or attention, can lie below the roof."


def picture(plans: Sequence[Plan], *, html: bool) -> str:
    """All charts of some plans as the text of an .svg file, or of an HTML page with tables."""
    names, options = _names(plans), _options(plans)
    decodes = any(plan.seconds_per_token is not None for plan in plans)
    contexts = sorted({plan.context for plan in plans})
    figures = [
        time_chart(names, times_over_context(plans), contexts, options, decodes=decodes, alone=len(plans) == 1),
        roofs_chart(names, roofs(plans), options),
    ]
    tables = [_table(plans), *map(_parts_table, plans)]
    for plan in plans:
        if plan.scaling is not None:
            figures.append(scaling_chart(plan_name(plan), plan.scaling, clearest(read_points()), _sizes([plan])))
            tables.append(scaling_table(plan_name(plan), plan.scaling))
    if html:
        return page(names, figures, tables, options)
    return standalone(_stacked(figures))


def time_chart(
    of: str,
    curves: Sequence[Curve],
    contexts: Sequence[int],
    note: str = "",
    *,
    decodes: bool = True,
    alone: bool = True,
) -> str:
    """Time over context. contexts: marked on the x axis. alone: the curves are variants of one model."""
    lines = [
        Line(f"{name}, as it is" if as_is and alone else name, points, dashed=not as_is)
        for name, as_is, points in curves
    ]
    title = f"Time {'of a token' if decodes else 'of a pass'} over context: {of}"
    marks = [*lines, *(Level(count_text(n, "token"), x=n) for n in contexts)]
    return chart(title, Axis("context", "tokens", "log"), Axis("time", "s", "log"), marks, note)


def roofs_chart(of: str, found: Roofs, note: str = "") -> str:
    """A roofline chart of the machines, with the plans' parts."""
    more = {"measured here": found.measured} if found.measured else {}
    full_note = f"{note}. {BELOW}" if note else BELOW
    return roofline(f"Roofline: {of}", found.tops, found.counted, "counted", full_note, more=more)


def _stacked(figures: Sequence[str]) -> str:
    """Several figures below one another in one."""
    placed, below, width = [], 0.0, 0.0
    for figure in figures:
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure)
        assert size is not None
        placed.append(figure.replace("<svg ", f'<svg y="{below:g}" ', 1))
        below, width = below + float(size[2]), max(width, float(size[1]))
    box = f'viewBox="0 0 {width:g} {below:g}" width="{width:g}" height="{below:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(placed)}</svg>'


def _table(plans: Sequence[Plan]) -> Table:
    header = ["model", "machine", "parameters", "weights", "cache", "time", "tokens/s", "first token", "bottleneck"]
    rows = [
        [
            plan.model.name,
            plan.hardware.name,
            in_words(plan.model.parameters),
            quantity(plan.weight_bytes, "B"),
            quantity(plan.cache_bytes, "B"),
            readable_seconds(plan.step_seconds),
            quantity(plan.tokens_per_second),
            readable_seconds(plan.prefill_seconds),
            plan.bottleneck,
        ]
        for plan in plans
    ]
    return Table("The answer", header, rows)


def _parts_table(plan: Plan) -> Table:
    rows = [
        [
            part.name,
            readable_seconds(part.seconds),
            quantity(part.flops),
            quantity(part.bytes, "B"),
            part.bound,
            part.formula,
        ]
        for part in plan.parts.values()
    ]
    title = f"Where the time goes: {plan_name(plan)}"
    return Table(title, ["part", "time", "flops", "bytes", "bound", "formula"], rows)


def _names(plans: Sequence[Plan]) -> str:
    return plan_name(plans[0]) if len(plans) == 1 else " and ".join(dict.fromkeys(plan.model.name for plan in plans))


def _options(plans: Sequence[Plan]) -> str:
    return f"{_sizes(plans)}; times by the roofline, not measured"


def _sizes(plans: Sequence[Plan]) -> str:
    plan, contexts = plans[0], " or ".join(integer_text(n) for n in sorted({plan.context for plan in plans}))
    return f"batch {integer_text(plan.batch)}, context {contexts}, {plan.weights} weights, {plan.cache} cache"


def scaling_chart(of: str, found: Scaling, points: Sequence[Point] = (), note: str = "") -> str:
    """Speed over machines on logarithmic axes: time on one machine divided by time on several, for each split, with the
    ideal; and measured `points` with their predictions."""
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
    link = f"{count_text(found.tokens, 'token')}, {quantity(found.link.bandwidth, 'B/s')} and "
    link += f"{readable_seconds(found.link.latency)} a message between machines"
    note = "; ".join(filter(None, (link, note)))
    return chart(
        title, Axis("machines", scale="log"), Axis("times as fast as one", scale="log"), marks, note, height=520
    )


def clearest(points: Sequence[Point]) -> list[Point]:
    """The points of one call and one split, to keep the chart readable: the longest call that was also measured in one
    process, preferably forward only and with "ring"."""
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
    """The numbers of the chart as a table."""
    names = list(found.rows[0].splits)
    header = ["machines", "tokens each", *("linear" if name == LINEAR else name for name in names), "best"]
    header += ["efficiency", "memory each", "sent a layer", "a token"]
    rows = []
    for row in found.rows:
        times = [row.splits[name].seconds for name in names]
        cells = ["-" if seconds is None else readable_seconds(seconds) for seconds in times]
        token = "-" if row.token_seconds is None else readable_seconds(row.token_seconds)
        own = quantity(row.memory_bytes, "B"), quantity(row.sent_bytes_per_layer, "B"), token
        rows.append(
            [integer_text(row.machines), integer_text(row.tokens), *cells, row.best, f"{row.efficiency:.2%}", *own]
        )
    return Table(f"Split over machines: {of}", header, rows)


def _measured(group: Sequence[Point]) -> list[Mark]:
    """Points of one call relative to the same call in one process; none if that was not measured."""
    alone = next((point.seconds for point in group if point.ranks == 1), None)
    if alone is None:
        return []
    found: list[Mark] = []
    what = f"{integer_text(group[0].tokens)} tokens here"
    for split in dict.fromkeys(point.split for point in group if point.ranks > 1):
        mine = [point for point in group if point.split == split and point.ranks > 1]
        predicted = [(point.ranks, alone / point.predicted()) for point in mine if point.link is not None]
        if predicted:
            found.append(Line(f"{split}, {what}: predicted", [(1, 1), *predicted], dashed=True, markers=False))
        dots = [(point.ranks, alone / point.seconds) for point in mine]
        labels = [f"{point.ranks} ranks: × {alone / point.seconds:.2f}" for point in mine]
        found.append(Dots(f"{split}, {what}: measured", dots, labels))
    return found
