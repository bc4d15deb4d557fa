"""The maps and charts of Kernels, drawn of numbers that the result holds."""

from __future__ import annotations

import math

from ...figures import Axis, Dots, Level, Line, chart, heat_map, readable
from ..fields import State
from ..view import Result

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
