"""Kernels: five similarities on the same data, how near they are to each other, and what they cost."""

from __future__ import annotations

import math
from typing import Any

from ...figures import Axis, Dots, Level, Line, chart, heat_map, readable
from ...masks import Causal
from ...similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Softmax
from ..fields import Choice, Flag, Number, State
from ..view import Result, View, Work

WITH_SUMS = ("polynomial", "elu1", "random")
TEMPERATURES = tuple(float(f"{10 ** (step / 6):.3g}") for step in range(-12, 7))  # 0.01 to 10
COUNTS = (4, 8, 16, 32, 64, 128, 256, 512, 2048)
SHORTEST, LONGEST = 4, 14  # powers of two: lengths at which costs are drawn, and further where two curves meet later

FIELDS = (
    Choice(
        name="data",
        label="Data",
        group="Data",
        options={"random": "random", "clustered": "three clusters", "repeated": "a sequence said twice"},
        default="random",
    ),
    Number(name="n", label="Tokens n", group="Data", low=2, high=32, default=12, whole=True),
    Number(name="d", label="Width d", group="Data", low=1, high=16, default=8, whole=True),
    Number(name="seed", label="Seed", group="Data", low=0, high=9999, default=0, whole=True, slider=False),
    Flag(name="causal", label="Causal: no key from the future", group="Data"),
    Number(
        name="temperature",
        label="Temperature T",
        group="Softmax",
        help="The scale is 1/(T√d). Random features copy it.",
        low=0.01,
        high=10,
        default=1,
        step=0.01,
    ),
    Number(name="degree", label="Degree", group="Polynomial", low=1, high=4, default=2, whole=True),
    Number(name="offset", label="Offset", group="Polynomial", low=0, high=4, default=1, step=0.25),
    Number(
        name="features",
        label="Features",
        group="Random features",
        low=4,
        high=512,
        default=128,
        whole=True,
        doubling=True,
    ),
    Number(
        name="draw",
        label="Seed of the draw",
        group="Random features",
        low=0,
        high=9999,
        default=0,
        whole=True,
        slider=False,
    ),
    Number(
        name="width",
        label="Width of a head",
        group="Cost",
        help="Of queries, keys and values, in the count of work.",
        low=2,
        high=256,
        default=64,
        whole=True,
        doubling=True,
    ),
    Choice(
        name="colours",
        label="Colours of the maps",
        group="Showing",
        options={"own": "each map its own range", "one": "one range, 0 to 1"},
        default="one",
    ),
)


def scale_of(state: State) -> float:
    return 1 / (state["temperature"] * math.sqrt(state["d"]))


def similarities_of(state: State) -> dict[str, AnySimilarity]:
    from ...features import elu1, positive_random

    scale = scale_of(state)
    drawn = positive_random(state["d"], state["features"], seed=state["draw"], scale=scale)
    return {
        "softmax": Softmax(scale=scale),
        "polynomial": Polynomial(state["degree"], state["offset"]),
        "elu1": FeatureMap(elu1),
        "random": FeatureMap(drawn),
        "argmax": Argmax(),
    }


def compute(state: State, work: Work) -> Result:
    from ...features import positive_random
    from ...theory import similarities

    query, key, value = similarities.sample(state["data"], state["n"], state["d"], seed=state["seed"])
    mask = Causal() if state["causal"] else None
    kinds = similarities_of(state)
    found = similarities.compared(query, key, value, kinds, mask=mask)
    even = similarities.compared(query, key, value, {"even": Polynomial(degree=0)}, mask=mask, reference="even")["even"]
    cooling = similarities.cooling(query, key, TEMPERATURES, mask=mask)
    now = similarities.cooling(query, key, [state["temperature"]], mask=mask).steps[0]
    work.say("random features")
    counts = sorted({*COUNTS, state["features"]})
    errors = similarities.approximated(query, key, counts, scale=scale_of(state), seed=state["draw"], mask=mask)
    drawn = positive_random(state["d"], state["features"], seed=state["draw"], scale=scale_of(state))
    return {
        "maps": {name: _map(each) for name, each in found.items()},
        "even_entropy": _plain(even.entropy.tolist()),
        "cooling": {
            "gap": _finite(cooling.gap),
            "tied": cooling.tied,
            "now": _step(now),
            "curve": [_step(each) for each in cooling.steps],
        },
        "random": {
            "now": _error(next(each for each in errors if each.features == state["features"])),
            "curve": [_error(each) for each in errors],
            "standard_error": _finite(similarities.median(drawn.error(query, key))),
        },
        "cost": _cost(kinds, state, mask),
    }


def _map(found: Any) -> Result:
    return {
        "weights": found.weights.tolist(),
        "entropy": _plain(found.entropy.tolist()),
        "mean_entropy": _finite(float(found.entropy.mean())),
        "weights_apart": found.weights_apart,
        "out_apart": found.out_apart,
        "empty": found.empty,
        "negative": found.negative,
    }


def _step(found: Any) -> Result:
    return {name: getattr(found, name) for name in ("temperature", "apart", "median", "least", "most")}


def _error(found: Any) -> Result:
    return {"features": found.features, "apart": found.apart, "median": found.median}


def _cost(kinds: dict[str, AnySimilarity], state: State, mask: Causal | None) -> Result:
    """Flops over the length, and where each form with sums begins to pay."""
    from ...cost.counting import Workload, feature_count
    from ...cost.sizes import Sizes
    from ...theory.similarities import pays_from, work

    width = state["width"]
    # How many features a random map makes does not depend on the width that it was drawn for.
    given = {name: state["features"] if name == "random" else None for name in kinds}
    pays = {}
    for name in WITH_SUMS:
        asked = Workload(Sizes(1, 1, 1, 1, 1, width, width), 1, 4, kinds[name], given[name])
        pays[name] = {
            "features": feature_count(asked),
            "from": pays_from(kinds[name], width, features=given[name], mask=mask),
        }
    latest = max(each["from"] or 1 for each in pays.values())
    lengths = [2**power for power in range(SHORTEST, max(LONGEST, latest.bit_length() + 2) + 1)]
    work_of = {
        name: [work(each, n, width, features=given[name], mask=mask) for n in lengths] for name, each in kinds.items()
    }
    return {"lengths": lengths, "flops": work_of, "pays": pays}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(values: list[float]) -> list[float | None]:
    return [_finite(value) for value in values]


def python(state: State) -> str:
    mask = "qkv.Causal()" if state["causal"] else "None"
    temperature, offset = float(state["temperature"]), float(state["offset"])
    return f"""\
import math

import qkv
from qkv.theory import similarities

q, k, v = similarities.sample({state["data"]!r}, {state["n"]}, {state["d"]}, seed={state["seed"]})
mask = {mask}
scale = 1 / ({temperature!r} * math.sqrt({state["d"]}))
kinds = {{
    "softmax": qkv.Softmax(scale=scale),
    "polynomial": qkv.Polynomial(degree={state["degree"]}, offset={offset!r}),
    "elu1": qkv.FeatureMap(qkv.features.elu1),
    "random": qkv.FeatureMap(
        qkv.features.positive_random(width={state["d"]}, count={state["features"]}, seed={state["draw"]}, scale=scale)
    ),
    "argmax": qkv.Argmax(),
}}
for name, found in similarities.compared(q, k, v, kinds, mask=mask).items():
    print(name, "mean entropy", float(found.entropy.mean()))
    print(name, "from softmax", found.weights_apart, "in weights,", found.out_apart, "in answers")
    print(found.weights)

cooling = similarities.cooling(q, k, [{temperature!r}], mask=mask)
now = cooling.steps[0]
print("softmax from argmax", now.apart, "median of rows", now.median, "smallest gap", cooling.gap, "tied", cooling.tied)
for found in similarities.approximated(q, k, [4, 16, 64, 256], scale=scale, seed={state["draw"]}, mask=mask):
    print(found.features, "random features", found.apart, "median of five draws", found.median)
print("standard error of a random similarity", similarities.median(kinds["random"].map.error(q, k)))
for name, features in (("polynomial", None), ("elu1", None), ("random", {state["features"]})):
    found = similarities.pays_from(kinds[name], {state["width"]}, features=features, mask=mask)
    print(name, "pays from", found, "tokens on")
"""


_NUMBER, _NULLABLE, _WHOLE = {"type": "number"}, {"type": ["number", "null"]}, {"type": "integer"}


TITLES = {
    "softmax": "softmax",
    "polynomial": "polynomial",
    "elu1": "elu + 1",
    "random": "random features",
    "argmax": "argmax",
}
WIDTH, HEIGHT = 440, 330


def pictures(state: State, result: Result) -> dict[str, str]:
    maps = {f"map_{name}": weight_map(name, state, result) for name in TITLES}
    return maps | {
        "entropy": entropy(result),
        "cooling": cooling(result),
        "random": random_features(result),
        "cost": cost(state, result),
    }


def weight_map(name: str, state: State, result: Result) -> str:
    weights = result["maps"][name]["weights"]
    size = range(len(weights))
    masked = [[state["causal"] and key > query for key in size] for query in size]
    lowest = min(map(min, weights))
    high = 1.0 if state["colours"] == "one" or max(map(max, weights)) > 1 else None
    return heat_map(
        TITLES[name], weights, masked=masked, low=max(lowest, -1.0) if lowest < 0 else 0.0, high=high, width=300
    )


def entropy(result: Result) -> str:
    lines = [
        Line(TITLES[name], [(row + 1, _or_gap(value)) for row, value in enumerate(each["entropy"])])
        for name, each in result["maps"].items()
    ]
    lines.append(
        Line(
            "even weights", [(row + 1, _or_gap(value)) for row, value in enumerate(result["even_entropy"])], True, False
        )
    )
    return chart(
        "Entropy of each query's weights",
        Axis("query"),
        Axis("entropy", "nats", low=0),
        lines,
        "A gap: the weights are no distribution, some being negative or all 0.",
        WIDTH,
        HEIGHT,
    )


def cooling(result: Result) -> str:
    curve, now = result["cooling"]["curve"], result["cooling"]["now"]

    def line(name: str, key: str, **look: bool) -> Line:
        return Line(name, [(step["temperature"], step[key]) for step in curve], markers=False, **look)

    return chart(
        "Softmax tends to argmax as T falls",
        Axis("temperature T", scale="log"),
        Axis("largest |softmax − argmax|", low=0, high=1),
        [
            line("farthest row", "apart"),
            line("median of the rows", "median"),
            line("at most, by the gap: (n − 1)e^(−Δ/T)", "most", dashed=True),
            line("at least: 1/(1 + e^(Δ/T))", "least", dashed=True),
            Dots("now", [(now["temperature"], now[key]) for key in ("apart", "median")]),
        ],
        width=WIDTH,
        height=HEIGHT,
    )


def random_features(result: Result) -> str:
    curve, now = result["random"]["curve"], result["random"]["now"]
    return chart(
        "Random features against softmax",
        Axis("features", scale="log"),
        Axis("largest |difference of weights|", scale="log"),
        [
            Line("this draw", [(each["features"], each["apart"]) for each in curve]),
            Line("median of five draws", [(each["features"], each["median"]) for each in curve], dashed=True),
            Dots("now", [(now["features"], now["apart"])]),
        ],
        width=WIDTH,
        height=HEIGHT,
    )


def cost(state: State, result: Result) -> str:
    found = result["cost"]
    named = TITLES | {"softmax": "softmax, all scores", "argmax": "argmax, one value for each query"}
    marks: list[Line | Level] = [
        Line(named[name], list(zip(found["lengths"], flops, strict=True)), markers=False)
        for name, flops in found["flops"].items()
    ]
    for name, each in found["pays"].items():
        if each["from"] is not None:
            marks.append(Level(f"N* {readable(each['from'])}, {TITLES[name]}", x=each["from"]))
    return chart(
        f"Work of one head of width {state['width']}",
        Axis("length N", "tokens", "log"),
        Axis("work", "FLOP", "log"),
        marks,
        f"Counted by qkv.cost, {'with the causal mask' if state['causal'] else 'without a mask'}. "
        "Polynomial, elu + 1 and random features by sums over the keys.",
        760,
        440,
    )


def _or_gap(value: float | None) -> float:
    return math.nan if value is None else value


SCHEMA = {
    "maps": {"type": "object", "required": list(TITLES)},
    "even_entropy": {"type": "array", "items": _NULLABLE},
    "cooling": {
        "type": "object",
        "properties": {"gap": _NULLABLE, "tied": _WHOLE, "now": {"type": "object"}, "curve": {"type": "array"}},
        "required": ["gap", "tied", "now", "curve"],
    },
    "random": {
        "type": "object",
        "properties": {"now": {"type": "object"}, "curve": {"type": "array"}, "standard_error": _NULLABLE},
        "required": ["now", "curve", "standard_error"],
    },
    "cost": {
        "type": "object",
        "properties": {"lengths": {"type": "array"}, "flops": {"type": "object"}, "pays": {"type": "object"}},
        "required": ["lengths", "flops", "pays"],
    },
}


VIEW = View(
    name="kernels",
    title="Kernels",
    verb="compute",
    simple="Other ways to weigh keys, next to softmax, and when they are cheaper.",
    lead="Softmax, polynomial, elu + 1, random features and argmax on the same queries and keys: what each attends to, "
    "how far it is from softmax, and from which length on it is less work.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema=SCHEMA,
    scripts=("views/kernels.js",),
    alone=True,
)
