"""Plans as pictures: time over context, and the roofline with what each part reaches of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qkv.cost.curves import Curve, Roofs, plan_name, roofs, times_over_context
from qkv.cost.links import read_points
from qkv.cost.planning import Plan
from qkv.cost.readable import counted, in_words, quantity, readable_seconds, whole
from qkv.figures.axis import Axis
from qkv.figures.chart import chart
from qkv.figures.marks import Level, Line
from qkv.figures.page import Table, page
from qkv.figures.roofline import roofline
from qkv.figures.scaling import clearest, scaling_chart, scaling_table
from qkv.figures.theme import standalone

BELOW = (
    "Where parts are added up one after another, those of a step or scores and cache in attention, a dot can lie below "
    "the roof."
)


def picture(plans: Sequence[Plan], *, html: bool) -> str:
    """Both charts, and scaling where it was asked for, as the text of an .svg file, or of a page with the numbers."""
    names, asked = _names(plans), _asked(plans)
    decodes = any(plan.seconds_per_token is not None for plan in plans)
    contexts = sorted({plan.context for plan in plans})
    figures = [
        time_chart(names, times_over_context(plans), contexts, asked, decodes=decodes, alone=len(plans) == 1),
        roofs_chart(names, roofs(plans), asked),
    ]
    tables = [_table(plans), *map(_parts_table, plans)]
    for plan in plans:
        if plan.scaling is not None:
            figures.append(scaling_chart(plan_name(plan), plan.scaling, clearest(read_points()), _sizes([plan])))
            tables.append(scaling_table(plan_name(plan), plan.scaling))
    if html:
        return page(names, figures, tables, asked)
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
    """Curves of `qkv.cost.curves`; `contexts` that were asked for are marked. alone: the curves are of one model, with
    its own attention and with others."""
    lines = [
        Line(f"{name}, as it is" if as_is and alone else name, points, dashed=not as_is)
        for name, as_is, points in curves
    ]
    title = f"Time {'of a token' if decodes else 'of a pass'} over context: {of}"
    marks = [*lines, *(Level(counted(n, "token"), x=n) for n in contexts)]
    return chart(title, Axis("context", "tokens", "log"), Axis("time", "s", "log"), marks, note)


def roofs_chart(of: str, found: Roofs, note: str = "") -> str:
    """Roofs, and dots under them."""
    more = {"measured here": found.measured} if found.measured else {}
    said = f"{note}. {BELOW}" if note else BELOW
    return roofline(f"Roofline: {of}", found.tops, found.counted, "counted", said, more=more)


def _stacked(figures: Sequence[str]) -> str:
    """Several figures below each other in one."""
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


def _asked(plans: Sequence[Plan]) -> str:
    return f"{_sizes(plans)}; times by the roofline, not measured"


def _sizes(plans: Sequence[Plan]) -> str:
    plan, contexts = plans[0], " or ".join(whole(n) for n in sorted({plan.context for plan in plans}))
    return f"batch {whole(plan.batch)}, context {contexts}, {plan.weights} weights, {plan.cache} cache"
