"""Plans as curves and dots: time over context, and where steps and their parts stand under the roofs of machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .formats import LARGEST
from .hardware import HERE
from .machine import Machine
from .planning import Plan, Run

SHORTEST, FARTHEST = 7, 131072  # a power of two, and what is drawn at least

Dot = tuple[str, float, float]


class Curve(NamedTuple):
    """Seconds at contexts. as_is: the model with its own attention."""

    name: str
    as_is: bool
    points: list[tuple[int, float]]


class Roofs(NamedTuple):
    """tops: (name, flops a second, bytes a second) of machines. counted, measured: (name, flops a byte, flops a
    second)."""

    tops: list[Dot]
    counted: list[Dot]
    measured: list[Dot]


def times_over_context(plans: Sequence[Plan]) -> list[Curve]:
    """Time of a token (of an encoder's pass) at contexts from 128 to four times what was asked for: of one plan with
    other attention beside it, of several one curve each.

    >>> from qkv.cost import plan
    >>> [curve.name for curve in times_over_context([plan("llama-3-8b", "t4")])]
    ['MHA', 'GQA(8)', 'MQA', 'linear']
    """
    far = max(4 * max(plan.context for plan in plans), FARTHEST)
    contexts = [2**power for power in range(SHORTEST, min(far, LARGEST).bit_length())]
    curves = []
    for plan in plans:
        run = Run(plan.model, plan.hardware, plan.batch, plan.weights, plan.cache, plan.prompt)
        if len(plans) > 1:
            curves.append(Curve(plan_name(plan), True, [(n, run.seconds(n)) for n in contexts]))
            continue
        for variant in plan.variants.values():
            points = [(n, _variant_seconds(run, variant.name, n)) for n in contexts]
            curves.append(Curve(variant.name, variant.as_is, points))
    return curves


def roofs(plans: Sequence[Plan]) -> Roofs:
    """The roofs of the machines, and where steps and their parts stand by the count."""
    machines = {(plan.hardware.name, plan.rate_dtype): plan for plan in plans}
    tops = [(name, plan.hardware.rates[dtype], plan.hardware.bandwidth) for (name, dtype), plan in machines.items()]
    dots = []
    for plan in plans:
        whole_step = "a token" if plan.seconds_per_token is not None else "a pass"
        dots.append(
            (whole_step if len(plans) == 1 else plan_name(plan), plan.intensity, plan.flops / plan.step_seconds)
        )
        if len(plans) == 1:
            dots += _part_dots(plan)
    machine = Machine.stored() if any(name == HERE for name, _ in machines) else None
    measured = [] if machine is None else list(machine.dots)
    if machine is not None and measured and (HERE, "float32") not in machines:
        # What was measured is multiplied in float32, whatever it is stored in.
        tops.append((f"{HERE}, float32", machine.multiply_rate("float32"), machine.memory_rate))
    return Roofs(tops, dots, measured)


def plan_name(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.hardware.name}"


def _part_dots(plan: Plan) -> list[Dot]:
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
