"""Plans as pictures: time over context, and the roofline with what each part reaches of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..cost.formats import LARGEST
from ..cost.hardware import HERE
from ..cost.machine import Machine
from ..cost.planning import Plan, Run
from ..cost.readable import in_words, quantity, readable_seconds, whole
from ..figures import Axis, Level, Line, Table, chart, page, roofline, standalone


def draw(plans: Sequence[Plan], file: Path) -> None:
    """Both pictures into a file; an HTML page has the numbers too."""
    figures = [over_context(plans), roofs(plans)]
    if file.suffix.lower() == ".html":
        text = page(_title(plans), figures, [_table(plans), *map(_parts_table, plans)], _asked(plans))
    else:
        text = standalone(_stacked(figures))
    file.write_text(text, encoding="utf-8")


def over_context(plans: Sequence[Plan]) -> str:
    """Time of a token (of an encoder's pass) at contexts from 128 to four times what was asked for: of one plan with
    other attention beside it, of several one line each."""
    far = max(4 * max(plan.context for plan in plans), 131072)
    contexts = [2**power for power in range(7, min(far, LARGEST).bit_length())]
    lines = []
    for plan in plans:
        run = Run(plan.model, plan.hardware, plan.batch, plan.weights, plan.cache, plan.prompt)
        if len(plans) > 1:
            lines.append(Line(_name(plan), [(n, run.seconds(n)) for n in contexts]))
            continue
        for variant in plan.variants.values():
            name = f"{variant.name}, as it is" if variant.as_is else variant.name
            lines.append(Line(name, [(n, _variant_seconds(run, variant.name, n)) for n in contexts], not variant.as_is))
    decodes = any(plan.seconds_per_token is not None for plan in plans)
    title = f"Time {'of a token' if decodes else 'of a pass'} over context: {_title(plans)}"
    marks = [*lines, *(Level(f"{whole(n)} tokens", x=n) for n in sorted({plan.context for plan in plans}))]
    return chart(title, Axis("context", "tokens", "log"), Axis("time", "s", "log"), marks, _asked(plans))


def roofs(plans: Sequence[Plan]) -> str:
    """The roofs of the machines, and where steps and their parts stand by the count."""
    machines = {(plan.hardware.name, plan.rate_dtype): plan for plan in plans}
    tops = [(name, plan.hardware.rates[dtype], plan.hardware.bandwidth) for (name, dtype), plan in machines.items()]
    dots = []
    for plan in plans:
        whole_step = "a token" if plan.seconds_per_token is not None else "a pass"
        dots.append((whole_step if len(plans) == 1 else _name(plan), plan.intensity, plan.flops / plan.step_seconds))
        if len(plans) == 1:
            dots += _part_dots(plan)
    machine = Machine.stored() if any(name == HERE for name, _ in machines) else None
    more = {"measured here": machine.dots} if machine is not None and machine.dots else {}
    if machine is not None and more and (HERE, "float32") not in machines:
        # What was measured is multiplied in float32, whatever it is stored in.
        tops.append((f"{HERE}, float32", machine.multiply_rate("float32"), machine.memory_rate))
    return roofline(f"Roofline: {_title(plans)}", tops, dots, "counted", _asked(plans), more=more)


def _part_dots(plan: Plan) -> list[tuple[str, float, float]]:
    """Scores and the cache that they read are one dot."""
    groups = {"attention": ("scores", "cache"), **{name: (name,) for name in ("projections", "feed-forward", "logits")}}
    found = []
    for name, members in groups.items():
        some = [plan.parts[member] for member in members if member in plan.parts]
        flops, moved = sum(part.flops for part in some), sum(part.bytes for part in some)
        if flops and moved:
            found.append((name, flops / moved, flops / sum(part.seconds for part in some)))
    return found


def _variant_seconds(run: Run, name: str, context: int) -> float:
    if name == "linear":
        return run.seconds(context, "linear")
    heads = {"MHA": run.model.heads, "MQA": 1}.get(name, run.model.kv_heads)
    if heads == run.model.kv_heads and not (name == "MHA" and run.model.latent is not None):
        return run.seconds(context)
    return replace(run, model=replace(run.model, kv_heads=heads, latent=None)).seconds(context)


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
    return Table(f"Where the time goes: {_name(plan)}", ["part", "time", "flops", "bytes", "bound", "formula"], rows)


def _name(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.hardware.name}"


def _title(plans: Sequence[Plan]) -> str:
    return _name(plans[0]) if len(plans) == 1 else " and ".join(dict.fromkeys(plan.model.name for plan in plans))


def _asked(plans: Sequence[Plan]) -> str:
    plan, contexts = plans[0], " or ".join(whole(n) for n in sorted({plan.context for plan in plans}))
    return (
        f"batch {whole(plan.batch)}, context {contexts}, {plan.weights} weights, {plan.cache} cache; "
        "times by the roofline, not measured"
    )
