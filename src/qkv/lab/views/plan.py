"""Plan: `qkv plan` as a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...cost.architecture import MODELS_FILE as MODELS
from ...cost.formulas import LETTERS
from ...cost.lookup import read_data
from ...cost.machine import HARDWARE_FILE as MACHINES
from ...cost.machine import HERE
from ...cost.planning import Curve, Roofs, plan, plan_name, roofs, times_over_context
from ...cost.report import letters
from ...cost.sizes import BITS
from ...errors import QkvError, complaint
from ..fields import Choice, Number, State, Words, WrongField
from ..view import Result, View, Work

if TYPE_CHECKING:
    from ...cost.architecture import Model

OWN = "config"
LONGEST = 200_000
FORMATS = {name: name for name in BITS}
EXAMPLE = (
    '{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, '
    '"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256}'
)

FIELDS = (
    Choice(name="model", label="Model", group="Model", default="llama-3-8b",
           options={OWN: "a config.json of your own", **{name: name for name in read_data(MODELS)["models"]}}),
    Words(name="config", label="Text of a config.json", group="Model", needs=("model", (OWN,)), longest=LONGEST,
          lines=8, drop=".json", placeholder=EXAMPLE, help="Read as JSON here, never run, and sent nowhere."),
    Choice(name="weights", label="Weights stored in", group="Model", default="bfloat16", options=FORMATS),
    Choice(name="cache", label="Cache stored in", group="Model", default="bfloat16", options=FORMATS),
    Choice(name="hardware", label="Machine", group="Use", default=HERE,
           options={HERE: "this machine", **{name: each["title"] for name, each in read_data(MACHINES).items()}}),
    Number(name="context", label="Context", group="Use", low=1, high=1 << 24, default=8192, whole=True, doubling=True,
           help="Tokens of each sequence, the newest included."),
    Number(name="batch", label="Sequences", group="Use", low=1, high=1 << 16, default=1, whole=True, doubling=True),
    Number(name="prompt", label="Prompt", group="Use", low=0, high=1 << 24, default=0, whole=True, doubling=True,
           help="Tokens that are read before the first new one; 0: as many as the context."),
)  # fmt: skip


def compute(state: State, work: Work) -> Result:
    found = plan(_model(state), state["hardware"], **_asked(state))
    values, charted = letters(found), roofs([found])
    return {
        **found.as_dict(),
        "name": plan_name(found),
        "rate": found.hardware.rates[found.rate_dtype],
        "bandwidth": found.hardware.bandwidth,
        "bound": "flops" if found.intensity >= found.ridge else "bytes",
        "decodes": found.seconds_per_token is not None,
        "letters": [
            {"letter": letter, "value": values[letter], "meaning": meaning}
            for letter, meaning in LETTERS.items()
            if letter in values and any(letter in part.formula for part in found.parts.values())
        ],
        "curves": [
            {"name": curve.name, "as_is": curve.as_is, "points": [list(point) for point in curve.points]}
            for curve in times_over_context([found])
        ],
        "roofs": {name: [list(dot) for dot in dots] for name, dots in charted._asdict().items()},
    }


def _model(state: State) -> str | Model:
    if state["model"] != OWN:
        return state["model"]
    from ...cost.configs import config_model

    if not state["config"].strip():
        hint = "drop the file here, or paste its text"
        raise WrongField("config", complaint("config", "nothing", "the text of a config.json", hint))
    try:
        return config_model(state["config"])
    except QkvError as error:
        raise WrongField("config", str(error)) from None


def _asked(state: State) -> dict[str, Any]:
    asked = {name: state[name] for name in ("context", "batch", "weights", "cache")}
    return {**asked, "prompt": state["prompt"] or None}


def pictures(state: State, result: Result) -> dict[str, str]:
    from ...figures.plans import roofs_chart, time_chart
    from ..markup import formula

    symbols = dict.fromkeys(LETTERS, "scalar")
    drawn = {
        f"formula_{name}": formula(part["formula"], symbols) if part["formula"] else ""
        for name, part in result["parts"].items()
    }
    curves = [Curve(each["name"], each["as_is"], [(n, s) for n, s in each["points"]]) for each in result["curves"]]
    drawn["time"] = time_chart(result["name"], curves, [result["context"]], decodes=result["decodes"])
    found = Roofs(*([tuple(dot) for dot in result["roofs"][name]] for name in Roofs._fields))
    drawn["roofs"] = roofs_chart(result["name"], found)
    return drawn


def python(state: State) -> str:
    asked = ", ".join(f"{name}={value!r}" for name, value in _asked(state).items() if value is not None)
    if state["model"] != OWN:
        return (
            "from qkv.cost import plan\n\n"
            f"found = plan({state['model']!r}, {state['hardware']!r}, {asked})\n"
            "print(found)\n"
        )
    return (
        "from qkv.cost import config_model, plan\n\n"
        f"config = {state['config']!r}\n"
        f"found = plan(config_model(config), {state['hardware']!r}, {asked})\n"
        "print(found)\n"
    )


_NUMBER, _WHOLE, _TEXT, _YES = {"type": "number"}, {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
_LIST, _OBJECT = {"type": "array"}, {"type": "object"}
_MAYBE = {"type": ["integer", "null"]}

SCHEMA = {
    "model": _OBJECT,
    "hardware": _OBJECT,
    **dict.fromkeys(("context", "batch", "prompt"), _WHOLE),
    **dict.fromkeys(("weights", "cache", "bottleneck", "rate_dtype", "name", "bound"), _TEXT),
    **dict.fromkeys(
        ("weight_bytes", "cache_bytes", "cache_bytes_per_token", "cross_cache_bytes", "held_bytes"), _WHOLE
    ),
    "seconds_per_token": {"type": ["number", "null"]},
    **dict.fromkeys(("tokens_per_second", "prefill_seconds", "step_seconds"), _NUMBER),
    **dict.fromkeys(("intensity", "ridge", "rate", "bandwidth", "flops", "bytes"), _NUMBER),
    **dict.fromkeys(("fits", "decodes"), _YES),
    **dict.fromkeys(("largest_batch", "largest_context"), _MAYBE),
    **dict.fromkeys(("parts", "variants", "crossings", "roofs"), _OBJECT),
    **dict.fromkeys(("notes", "letters", "curves"), _LIST),
}

VIEW = View(
    name="plan",
    title="Plan",
    verb="cost",
    lead="What a model takes on a machine before it runs: time, memory, where both go, and where they change.",
    simple="What a model will need on a machine: memory, time, tokens a second.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema=SCHEMA,
)
