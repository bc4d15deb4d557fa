"""Reach: which inputs the values of a chosen output come from, layer by layer, against (k+1)ⁿ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..fields import Choice, Flag, Number, State
from ..view import Result, View, Work

if TYPE_CHECKING:
    from ...theory.reach import Patterns

MOST_TOKENS, MOST_LAYERS, MOST_HEADS = 32, 6, 4


@dataclass(frozen=True)
class Looks:
    """One way for heads to look: what it is called, and the call that makes it."""

    name: str
    call: Callable[[State], str]


def _spread(state: State, **more: object) -> str:
    options = {"residual": state["residual"]} | more
    given = "".join(f", {name}={value}" for name, value in options.items() if value is False)
    return f"spread({_sizes(state)}{given})"


def _sizes(state: State) -> str:
    return f"{state['n']}, {state['heads']}, {state['layers']}"


LOOKS: Mapping[str, Looks] = {
    "apart": Looks(
        "apart: each layer takes longer steps",
        _spread,
    ),
    "causal": Looks(
        "causal: the same, only to earlier tokens",
        lambda state: _spread(state, wrapped=False),
    ),
    "window": Looks(
        "window: 1 to k back in every layer",
        lambda state: f"shifted({state['n']}, range(1, {state['heads']} + 1), {state['layers']})",
    ),
    "agree": Looks(
        "agree: all heads look at the same token",
        lambda state: f"agreeing({_sizes(state)})",
    ),
    "random": Looks(
        "random: every head looks anywhere",
        lambda state: f"anywhere({_sizes(state)}, seed={state['seed']})",
    ),
}


def why(state: State, levels: list[dict[str, Any]], visible: int) -> str:
    """Why so many tokens are reached, of those that the output may see."""
    last, pattern = levels[-1], state["pattern"]
    paths, reached = last["bound"], last["count"]
    if paths == 1:
        return "There is only one path."
    if paths == reached:
        return "No two paths end at the same token."
    if pattern == "window" and state["layers"] > 1:
        met = "Paths that take the same steps in another order meet"
        added = {below["count"] - above["count"] for above, below in pairwise(levels)}
        return f"{met}: each layer adds as many positions, not a factor." if len(added) == 1 else f"{met}."
    if pattern == "agree" and state["heads"] > 1:
        agreed = "Heads that agree add paths and no positions"
        doubled = state["residual"] and reached == 2 ** state["layers"]
        return f"{agreed}: with the residual there are 2ⁿ, whatever k is." if doubled else f"{agreed}."
    if paths > visible:
        which = "tokens up to this one" if pattern == "causal" else "tokens"
        more = f"There are more paths than {which}, so that some must meet"
        return f"{more}." if reached == visible else f"{more}; others do so by chance."
    return "Some paths meet by chance."


def patterns(state: State) -> Patterns:
    """Where each head looks; positions count from 0."""
    from ...theory.reach import agreeing, anywhere, shifted, spread

    n, heads, layers, residual = (state[name] for name in ("n", "heads", "layers", "residual"))
    match state["pattern"]:
        case "window":
            return shifted(n, range(1, heads + 1), layers)
        case "agree":
            return agreeing(n, heads, layers)
        case "random":
            return anywhere(n, heads, layers, state["seed"])
        case pattern:
            return spread(n, heads, layers, residual, wrapped=pattern == "apart")


def chosen(state: State) -> int:
    return min(state["output"], state["n"])


def compute(state: State, work: Work) -> Result:
    from ...theory.reach import bound, fields, paths, slopes

    n, heads, residual, output = state["n"], state["heads"], state["residual"], chosen(state)
    looks = patterns(state)
    visible = output if state["pattern"] == "causal" else n
    levels = []
    for below, counts in enumerate(paths(looks, output - 1, residual)):
        reached = [position for position, count in enumerate(counts, 1) if count]
        most = bound(heads, below, residual)
        levels.append(
            {
                "below": below,
                "layer": state["layers"] - below,
                "reached": reached,
                "count": len(reached),
                "paths": counts,
                "bound": most,
                "possible": min(visible, most),
                "meeting": most - len(reached),
            }
        )
    sizes = next(slopes(looks, 0, [output - 1])) if residual else None
    every = [bits.bit_count() for bits in fields(looks, residual)]
    last = levels[-1]
    return {
        "tokens": n,
        "output": output,
        "why": why(state, levels, visible),
        "looks": [[[to + 1 for to in head] for head in layer] for layer in looks],
        "levels": levels,
        "reached": last["count"],
        "bound": last["bound"],
        "possible": last["possible"],
        "attained": last["count"] == last["possible"],
        "fewest": min(every),
        "most": max(every),
        "slopes": sizes,
        "with_slope": None if sizes is None else sum(size > 0 for size in sizes),
        "agree": None if sizes is None else [p for p, size in enumerate(sizes, 1) if size > 0] == last["reached"],
    }


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...theory.reach import SYMBOLS
    from ..markup import formula

    visible = "i" if state["pattern"] == "causal" else "N"
    most = rf"\min({visible}, {'(k + 1)' if state['residual'] else 'k'}^n)"
    drawn = {"lattice": _lattice(state, result), "growth": _growth(state, result), "most": formula(most, SYMBOLS)}
    return drawn | _said()


def _lattice(state: State, result: Result) -> str:
    from ...figures.diagrams import EdgeSet, lattice

    levels = result["levels"]
    looks = result["looks"][::-1]
    strands = []
    if state["residual"]:
        strands.append(EdgeSet("residual", [[(p - 1, p - 1) for p in level["reached"]] for level in levels[:-1]]))
    for head in range(state["heads"]):
        steps = [
            [(p - 1, layer[head][p - 1] - 1) for p in level["reached"]]
            for level, layer in zip(levels, looks, strict=False)
        ]
        strands.append(EdgeSet(f"head {head + 1}", steps, series=head))
    names = [f"layer {level['layer']}" if level["layer"] else "input" for level in levels]
    heading = f"Where output {result['output']} takes its values from"
    return lattice(heading, names, [level["paths"] for level in levels], strands, result["output"] - 1)


def _growth(state: State, result: Result) -> str:
    from ...figures import Axis, Level, Line, chart

    levels = result["levels"]
    marks = [
        Line("paths: the bound", [(level["below"], level["bound"]) for level in levels], dashed=True),
        Line("positions reached", [(level["below"], level["count"]) for level in levels]),
        Level("all tokens", y=state["n"]),
    ]
    axes = Axis("layers below the output", low=0, high=MOST_LAYERS), Axis("positions", "", "log")
    return chart("Reached against the bound", *axes, marks, width=460, height=340)


@lru_cache(maxsize=1)
def _said() -> dict[str, str]:
    """What the claim says: the same for every state."""
    from ...theory.claim import correction_items, statement_blocks
    from ...theory.reach import without_evidence
    from ..markup import blocks_html

    claim = without_evidence()
    return {
        "statement": blocks_html(statement_blocks(claim)),
        "derivation": blocks_html([claim.derivation]),
        "corrections": blocks_html([correction_items(claim)]),
    }


def python(state: State) -> str:
    call, output = LOOKS[state["pattern"]].call(state), chosen(state) - 1
    given = "" if state["residual"] else ", residual=False"
    of_paths, of_reach = {"bound", "paths"}, {"slopes"} if state["residual"] else set[str]()
    maker = call.partition("(")[0]
    (of_paths if maker == "spread" else of_reach).add(maker)
    lines = [f"from qkv.theory.reach import {', '.join(sorted(of_paths))}"]
    if of_reach:
        lines.append(f"from qkv.theory.reach import {', '.join(sorted(of_reach))}")
    lines += [
        "",
        f"looks = {call}",
        f"for layers, counts in enumerate(paths(looks, {output}{given})):",
        "    reached = [position for position, count in enumerate(counts, 1) if count]",
        f"    print(len(reached), bound({state['heads']}, layers{given}), reached)",
    ]
    if state["residual"]:
        lines += [
            "# The same by derivatives, through blocks of qkv.nn that look so.",
            f"sizes = next(slopes(looks, 0, [{output}]))",
            "print([position for position, size in enumerate(sizes, 1) if size > 0])",
        ]
    return "\n".join(lines) + "\n"


_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_POSITIONS = {"type": "array", "items": _WHOLE}

VIEW = View(
    name="reach",
    title="Reach",
    verb="prove",
    simple="Which words can reach which output through several layers.",
    lead="Every head looks at one token: which inputs the values of an output come from, layer by layer.",
    fields=(
        Number(name="n", label="Tokens N", low=2, high=MOST_TOKENS, default=12, whole=True, group="Stack"),
        Number(name="layers", label="Layers n", low=1, high=MOST_LAYERS, default=2, whole=True, group="Stack"),
        Number(
            name="heads",
            label="Heads k",
            help="Each looks at one token.",
            low=1,
            high=MOST_HEADS,
            default=2,
            whole=True,
            group="Stack",
        ),
        Flag(
            name="residual",
            label="Residual",
            help="A token keeps what it had.",
            default=True,
            group="Stack",
        ),
        Choice(
            name="pattern",
            label="Where heads look",
            options={name: looks.name for name, looks in LOOKS.items()},
            default="apart",
            group="Heads",
        ),
        Number(
            name="seed",
            label="Seed",
            low=0,
            high=999,
            default=0,
            whole=True,
            slider=False,
            group="Heads",
            needs=("pattern", ("random",)),
        ),
        Number(
            name="output",
            label="Output",
            help="A token of the last layer; beyond the last one, that one.",
            low=1,
            high=MOST_TOKENS,
            default=12,
            whole=True,
            group="Heads",
        ),
    ),
    compute=compute,
    pictures=pictures,
    python=python,
    schema={
        **dict.fromkeys(("tokens", "output"), _WHOLE),
        "why": {"type": "string"},
        "looks": {"type": "array", "items": {"type": "array", "items": _POSITIONS}},
        "levels": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    **dict.fromkeys(("below", "layer", "count", "bound", "possible", "meeting"), _WHOLE),
                    **dict.fromkeys(("reached", "paths"), _POSITIONS),
                },
            },
        },
        **dict.fromkeys(("reached", "bound", "possible", "fewest", "most"), _WHOLE),
        "attained": {"type": "boolean"},
        "slopes": {"type": ["array", "null"], "items": {"type": "number"}},
        "with_slope": {"type": ["integer", "null"]},
        "agree": {"type": ["boolean", "null"]},
    },
    scripts=("views/reach.js",),
)
