"""Cache: one step of decoding after another, for four ways to keep the past."""

from __future__ import annotations

from statistics import quantiles
from typing import Any

from ...cost.formulas import LETTERS
from ...cost.lookup import read_data
from ...cost.machine import HARDWARE_FILE, HERE, Machine, as_hardware
from ...cost.sizes import BITS, PAGE
from ...cost.variants import VARIANTS, Formulas, formulas_of, past, seconds_by_roofline, smaller_from
from ...errors import OptionError, complaint
from ..fields import Choice, Flag, Number, State, WrongField
from ..view import Result, View, Work
from .cache_race import MOMENTS, frames, race

FORMS = {"mha": "MHA", "gqa": "GQA", "mqa": "MQA", "linear": "linear"}
DTYPES = ("float32", "float16", "bfloat16", "int8")  # what a KVCache stores
MOST_STEPS = 16
FARTHEST = 131072
QUANTITIES = ("held", "scales", "read", "written", "flops")

FIELDS = (
    Choice(name="form", label="Look at", group="Attention", default="gqa",
           options={"mha": "MHA: every head keeps its own", "gqa": "GQA: heads share in groups",
                    "mqa": "MQA: all heads share one", "linear": "linear: sums, no tokens"}),
    Number(name="heads", label="Query heads", group="Attention", low=1, high=64, default=32, whole=True, doubling=True),
    Number(name="kvheads", label="Key/value heads of GQA", group="Attention", low=1, high=64, default=8, whole=True,
           doubling=True, help="Divides the query heads. The linear state has as many."),
    Number(name="width", label="Width of a head", group="Attention", low=8, high=256, default=128, whole=True,
           doubling=True),
    Number(name="batch", label="Sequences", group="Decoding", low=1, high=64, default=1, whole=True, doubling=True),
    Number(name="past", label="Tokens before the first step", group="Decoding", low=0, high=FARTHEST, default=4096,
           whole=True, doubling=True),
    Number(name="layers", label="Layers", group="Decoding", low=1, high=256, default=32, whole=True,
           help="Of the race; everything else is of one layer."),
    Choice(name="machine", label="Machine", group="Decoding", default=HERE,
           options={HERE: "this machine", **{name: each["title"] for name, each in read_data(HARDWARE_FILE).items()}}),
    Number(name="moment", label="Moment of the race", group="Decoding", low=0, high=MOMENTS, default=MOMENTS // 2,
           whole=True),
    Number(name="step", label="Steps taken", group="Decoding", low=0, high=MOST_STEPS, default=0, whole=True,
           help="Each step adds one token."),
    Choice(name="dtype", label="Cache stored in", group="Decoding", default="bfloat16",
           options={name: name for name in DTYPES}),
    Flag(name="measure", label="Decode on this machine", group="Measurement",
         help="Runs qkv.decode at these sizes, as far as they fit into 64 MB."),
    Flag(name="calibrate", label="Calibrate this machine", group="Measurement",
         help="Measures its rates, once: 15 seconds. Run nothing else meanwhile."),
)  # fmt: skip


def _sizes(state: State) -> dict[str, Any]:
    names = {"batch": "batch", "heads": "heads", "kv_heads": "kvheads", "width": "width", "cache": "dtype"}
    return {name: state[field] for name, field in names.items()}


def compute(state: State, work: Work) -> Result:
    heads, kv_heads = state["heads"], state["kvheads"]
    if heads % kv_heads:
        wanted = f"a number that divides the {heads} query heads"
        raise WrongField("kvheads", complaint("kvheads", kv_heads, wanted))
    work.say("counting")
    sizes, tokens, chosen = _sizes(state), state["past"] + state["step"], FORMS[state["form"]]
    if state["calibrate"]:
        _calibrate(work)
    machine = as_hardware(state["machine"])
    rate = machine.rate("float32")
    ways = [_way(way, sizes, tokens, machine, way == chosen) for way in VARIANTS]
    return {
        "chosen": chosen,
        "at": VARIANTS.index(chosen),
        "step": state["step"],
        "last_step": MOST_STEPS,
        "tokens": tokens,
        "page_tokens": PAGE,
        "pages": -(-tokens // PAGE),
        "ways": ways,
        "smaller_from": {way: smaller_from(way, **sizes) for way in VARIANTS if way != "linear"},
        "growth": _growth(sizes, tokens),
        "moment": state["moment"],
        "race": race(sizes, state["past"], state["layers"], machine),
        "letters": _letters(state, tokens),
        "machine": {
            "name": machine.name,
            "title": machine.title,
            "measured": machine.measured,
            "source": machine.source,
            "rate": rate,
            "bandwidth": machine.bandwidth,
            "ridge": machine.ridge("float32"),
        },
        "measured": _measured(chosen, sizes, tokens, ways, work) if state["measure"] else None,
    }


_CALIBRATED: list[bool] = []  # in this process, so that a state that asks for it measures once


def _calibrate(work: Work) -> None:
    if not _CALIBRATED:
        Machine.measure(lambda what, part: work.say(what, round(100 * part), 100)).store()
        _CALIBRATED.append(True)


def _way(way: str, sizes: dict[str, Any], tokens: int, machine: Any, chosen: bool) -> dict[str, Any]:
    found = past(way, tokens=tokens, **sizes)
    step = found.step
    seconds = seconds_by_roofline(step, machine)
    return {
        "name": way,
        "chosen": chosen,
        "kv_heads": found.kv_heads,
        "held": found.cache_bytes,
        "scales": found.scale_bytes,
        "read": step.read,
        "written": step.written,
        "flops": step.flops,
        "intensity": step.intensity,
        "seconds": seconds,
        "speed": step.flops / seconds,
        "bound": "flops" if step.intensity > machine.ridge("float32") else "bytes",
        "formulas": formulas_of(way)._asdict(),
    }


def _growth(sizes: dict[str, Any], tokens: int) -> list[dict[str, Any]]:
    """Bytes that a step moves at other lengths."""
    lengths = [2**power for power in range(max(4 * tokens, FARTHEST).bit_length())]
    return [
        {"name": way, "points": [[n, past(way, tokens=n, **sizes).step.traffic] for n in lengths]} for way in VARIANTS
    ]


def _letters(state: State, tokens: int) -> list[dict[str, Any]]:
    values = {"n": tokens, "b": state["batch"], "h": state["heads"], "g": state["kvheads"], "w": state["width"]}
    meanings = LETTERS | {"n": "tokens kept of each sequence"}
    values["c"] = BITS[state["dtype"]] // 8
    return [{"letter": letter, "value": value, "meaning": meanings[letter]} for letter, value in values.items()]


def _measured(way: str, sizes: dict[str, Any], tokens: int, ways: list[dict[str, Any]], work: Work) -> dict[str, Any]:
    from ...profiling.decode import time_steps

    try:
        timed = time_steps(way, tokens=tokens, say=work.say, **sizes)
    except OptionError as error:
        raise WrongField("measure", str(error)) from None
    counted = ways[VARIANTS.index(way)]
    low, _, high = quantiles(timed.seconds, n=4)
    return {
        "way": way,
        "steps": len(timed.seconds),
        "seconds": timed.median,
        "low": low,
        "high": high,
        "speed": counted["flops"] / timed.median,
        "nbytes": timed.nbytes,
        "counted": counted["held"],
        "ratio": timed.nbytes / counted["held"] if counted["held"] else None,
        "threads": timed.threads,
    }


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...cost.readable import count_text, quantity
    from ...figures import Axis, Level, Line, chart, roofline
    from ...figures.diagrams import Lane, cache_growth
    from ..markup import formula

    symbols = {each["letter"]: "scalar" for each in result["letters"]}
    drawn = {
        f"{way['name']}_{name}": formula(way["formulas"][name], symbols)
        for way in result["ways"]
        for name in Formulas._fields
    }
    lanes = [
        Lane(way["name"], way["kv_heads"], quantity(way["held"], "B"), way["name"] != "linear", way["chosen"])
        for way in result["ways"]
    ]
    drawn["growing"] = cache_growth("What is kept", lanes, state["past"], state["step"], result["page_tokens"])
    lines = [Line(each["name"], each["points"], markers=False) for each in result["growth"]]
    now = [Level(count_text(result["tokens"], "token"), x=result["tokens"])] if result["tokens"] else []
    title = "Bytes that a step reads and writes"
    drawn["growth"] = chart(title, Axis("tokens kept", "", "log"), Axis("moved", "B", "log"), [*lines, *now])
    machine = result["machine"]
    top = [(machine["name"], machine["rate"], machine["bandwidth"])]
    dots = [(way["name"], way["intensity"], way["speed"]) for way in result["ways"]]
    measured = result["measured"]
    more = {}
    if measured is not None:
        intensity = result["ways"][result["at"]]["intensity"]
        more["measured"] = [(f"{measured['way']}, measured", intensity, measured["speed"])]
    drawn["race"] = frames(result)
    drawn["roofline"] = roofline("Roofline of a step", top, dots, "counted", machine["source"], more=more)
    return drawn


def python(state: State) -> str:
    kept = ", ".join(f"{name}={value!r}" for name, value in _sizes(state).items())
    tokens = state["past"] + state["step"]
    machine = state["machine"]
    program = (
        "from qkv.cost.variants import past, seconds_by_roofline\n\n"
        f"sizes = dict({kept}, tokens={tokens})\n"
        f"for way in {VARIANTS!r}:\n"
        "    found = past(way, **sizes)\n"
        "    step = found.step\n"
        "    print(way, found.cache_bytes, found.scale_bytes, step.read, step.written, step.flops, step.intensity)\n"
        f'    print(way, "by the roofline", seconds_by_roofline(step, {machine!r}))\n'
    )
    if not state["measure"]:
        return program
    way = FORMS[state["form"]]
    return program + (
        "\nfrom qkv.profiling.decode import time_steps\n\n"
        f"timed = time_steps({way!r}, **sizes)\n"
        "print(timed.nbytes, timed.median)\n"
    )


_NUMBER, _WHOLE, _TEXT, _YES = {"type": "number"}, {"type": "integer"}, {"type": "string"}, {"type": "boolean"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


SCHEMA = {
    "chosen": {"enum": [*VARIANTS]},
    **dict.fromkeys(("at", "step", "last_step", "tokens", "page_tokens", "pages", "moment"), _WHOLE),
    "ways": {
        "type": "array",
        "items": _object(
            name=_TEXT, chosen=_YES, kv_heads=_WHOLE, **dict.fromkeys(QUANTITIES, _WHOLE), intensity=_NUMBER,
            seconds=_NUMBER, speed=_NUMBER, bound=_TEXT, formulas=_object(**dict.fromkeys(Formulas._fields, _TEXT)),
        ),
    },
    "smaller_from": _object(**{way: {"type": ["integer", "null"]} for way in VARIANTS if way != "linear"}),
    "growth": {"type": "array", "items": _object(name=_TEXT, points={"type": "array"})},
    "letters": {"type": "array", "items": _object(letter=_TEXT, value=_WHOLE, meaning=_TEXT)},
    "race": _object(memory=_WHOLE, layers=_WHOLE, seconds={"type": "array"}, ways={"type": "array"}),
    "machine": _object(
        name=_TEXT, title=_TEXT, measured=_YES, source=_TEXT, rate=_NUMBER, bandwidth=_NUMBER, ridge=_NUMBER
    ),
    "measured": {
        "anyOf": [
            {"type": "null"},
            _object(
                way=_TEXT, steps=_WHOLE, threads=_WHOLE, nbytes=_WHOLE, counted=_WHOLE,
                ratio={"type": ["number", "null"]}, seconds=_NUMBER, low=_NUMBER, high=_NUMBER, speed=_NUMBER,
            ),
        ]
    },
}  # fmt: skip

VIEW = View(
    name="cache",
    title="Cache",
    verb="cost",
    lead="What a decoder keeps of the past, and what each further token costs because of it.",
    bar=("machine", "heads", "kvheads", "width", "past", "layers"),
    simple="What is kept while a model writes, and who runs out of memory first.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema=SCHEMA,
    heavy=lambda state: state["measure"] or state["calibrate"],
    seconds=60,
    scripts=("views/cache.js",),
    alone=True,
)
