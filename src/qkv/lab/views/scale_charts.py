"""The charts of Scale: densities of scores, weights of one query, and sizes over the width."""

from __future__ import annotations

from ...figures import Axis, Bars, Level, Line, chart
from ..fields import State
from ..view import Result

SCORE = {"plain": "q·k", "scaled": "q·k/√d"}
NAMED = {"plain": "q·k as it is", "scaled": "q·k divided by √d"}
MEASURED = {
    "jacobian": "norm of the Jacobian, ‖J‖",
    "gradient": "size of the gradient at q",
    "entropy": "entropy in nats",
    "entry": "largest entry of the Jacobian",
    "most": "largest weight",
}
WIDTH, HEIGHT = 400, 300
LEAST = 1e-12  # below it a size is as good as none, and would take all of a log axis


def charts(state: State, result: Result) -> dict[str, str]:
    drawn = {}
    for side in SCORE:
        drawn[f"law_{side}"] = _law(side, result)
        drawn[f"weights_{side}"] = _weights(side, state, result)
    return {**drawn, "sweep": _sweep(state, result)}


def _law(side: str, result: Result) -> str:
    law = result["law"][side]
    outside = f"{law['outside']} of the samples lie beyond the axis." if law["outside"] else ""
    return chart(
        f"Law of {SCORE[side]}",
        Axis(SCORE[side], low=law["edges"][0], high=law["edges"][-1]),
        Axis("density"),
        [
            Bars(f"{result['drawn']} samples", law["edges"], law["heights"]),
            Line("normal law, the limit", law["curve"], markers=False),
            Level("predicted mean", x=law["mean"]["predicted"]),
        ],
        note=outside,
        width=WIDTH,
        height=HEIGHT,
    )


def _weights(side: str, state: State, result: Result) -> str:
    one = result["softmax"][side]
    count = len(one["weights"])
    left = state["keys"] - count
    return chart(
        f"Weights from {SCORE[side]}",
        Axis("keys, the best first", low=0.5, high=count + 0.5),
        Axis("weight", low=0, high=1),
        [
            Bars(
                "softmax of one query",
                [n + 0.5 for n in range(count + 1)],
                one["weights"],
                [f"key {key}" for key in one["key"]],
            ),
            Level("all equal", y=1 / state["keys"]),
        ],
        note=f"{left} smaller weights are not drawn: {one['rest']:.3g} together." if left else "",
        width=WIDTH,
        height=HEIGHT,
    )


def _sweep(state: State, result: Result) -> str:
    measure = state["sweep"]
    straight = measure in ("entropy", "most")
    sides = ("scaled", "plain") if state["scaled"] == "yes" else ("plain", "scaled")
    lines, sizes = [], []
    for side in sides:
        quantiles = list(zip(*result["sweep"][side][measure], strict=True))
        sizes += [size for line in quantiles for size in line]
        for place, share in ((1, "median"), (0, "one in ten below"), (2, "one in ten above")):
            points = list(zip(result["widths"], quantiles[place], strict=True))
            lines.append(Line(f"{NAMED[side]}: {share}", points, dashed=place != 1, markers=place == 1))
    ends = {"low": 0.0} if straight else {"low": LEAST} if min(sizes) < LEAST else {}
    if measure == "most":
        ends["high"] = 1.0
    return chart(
        f"{MEASURED[measure][0].upper()}{MEASURED[measure][1:]}, over the width",
        Axis("width d", "", "log"),
        Axis(MEASURED[measure], "", "linear" if straight else "log", **ends),
        [*lines, Level("d now", x=state["d"])],
        note=f"{state['keys']} keys, {result['draws']} queries at each width, μ {state['mu']:g}, σ {state['sigma']:g}.",
    )
