"""Scale: the law of a score, what softmax makes of it with and without 1/√d, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...derivation import Derivation
from ...figures import Axis, Bars, Level, Line, chart
from ...maths.moments import SCALAR_MEAN
from ...render.layout import relation
from ...render.steps import lines
from ...render.to_html import inline
from ...theory.saturation import without_evidence as saturation
from ...theory.scores import without_evidence as scores
from ..fields import Choice, Number, State
from ..view import Result, View, Work

# Real vectors are drawn for every score: so many components of q in all, which takes a twentieth of a second.
MOST_COMPONENTS = 2_000_000
DRAWS = 400
RARITY = 10_000  # once in so many times chance alone makes what is called a difference
WIDTHS = [2**n for n in range(1, 11)]
MOST_SHOWN = 64  # weights of one draw, the largest first
SIDES = {"plain": False, "scaled": True}

FIELDS = (
    Number(name="d", label="Width d", group="Queries and keys", low=1, high=1024, default=64, whole=True, doubling=True,
           help="Components of q and of every k."),
    Number(name="mu", label="Mean μ", group="Queries and keys", low=-2, high=2, default=0, step=0.1,
           help="Of every component."),
    Number(name="sigma", label="Standard deviation σ", group="Queries and keys", low=0.1, high=3, default=1, step=0.1),
    Choice(name="scaled", label="Look at", group="Softmax", default="no",
           options={"no": "q·k as it is", "yes": "q·k divided by √d"}, help="This side comes first below."),
    Number(name="keys", label="Keys", group="Softmax", low=2, high=256, default=16, whole=True, doubling=True,
           help="Scores that one softmax is over."),
    Choice(name="sweep", label="Over d", group="Softmax", default="jacobian",
           options={"jacobian": "norm of the Jacobian", "gradient": "gradient at q", "entropy": "entropy",
                    "entry": "largest entry of the Jacobian", "most": "largest weight"}),
    Choice(name="samples", label="Samples of q·k", group="Chance", default="4000",
           options={"1000": "1,000", "4000": "4,000", "16000": "16,000"}),
    Number(name="seed", label="Seed", group="Chance", low=0, high=9999, default=0, whole=True, slider=False),
)  # fmt: skip


def drawn_count(state: State) -> int:
    """How many pairs q, k are drawn: what was asked for, or as many as there is time for."""
    return min(int(state["samples"]), MOST_COMPONENTS // state["d"])


def compute(state: State, work: Work) -> Result:
    from ...maths.moments import sample_moments
    from ...theory.draws import VALUE_WIDTH, drawn_scores, normal_distance, predicted_moments

    d, mu, sigma, seed = (state[name] for name in ("d", "mu", "sigma", "seed"))
    scores = drawn_scores(d, mu, sigma, drawn_count(state), seed)
    law = {}
    for side, scaled in SIDES.items():
        values = scores / math.sqrt(d) if scaled else scores
        law[side] = _law(values, sample_moments(values), *predicted_moments(d, mu, sigma, scaled=scaled))
    normal = (law["plain"]["mean"]["predicted"], law["plain"]["deviation"])
    distance, chance = normal_distance(scores, *normal, rarity=RARITY)
    return {
        "asked": int(state["samples"]),
        "drawn": len(scores),
        "law": law,
        "normal": {"distance": distance, "chance": chance, "rarity": RARITY, "differs": distance > chance},
        "softmax": {side: _one(state, scaled) for side, scaled in SIDES.items()},
        "most_entropy": math.log(state["keys"]),
        "value_width": VALUE_WIDTH,
        **_draws(state),
        "derivations": derivations(),
    }


def _law(values, found, mean: float, variance: float) -> dict[str, Any]:
    from ...theory.draws import histogram, normal_curve

    deviation = math.sqrt(variance)
    bars = histogram(values, mean, deviation)
    return {
        "mean": _compared(mean, found.mean, found.mean_error),
        "variance": _compared(variance, found.variance, found.variance_error),
        "deviation": deviation,
        "edges": list(bars.edges),
        "heights": list(bars.heights),
        "outside": bars.outside,
        "curve": [list(point) for point in normal_curve(mean, deviation)],
    }


def _compared(predicted: float, sampled: float, error: float) -> dict[str, float | None]:
    """Prediction, sample, its standard error, and how many of these lie between the two."""
    return {
        "predicted": predicted,
        "sampled": sampled,
        "error": error,
        "off": (sampled - predicted) / error if error else None,
    }


def _one(state: State, scaled: bool) -> dict[str, Any]:
    """One query and its keys, by a call of attention."""
    from ...theory.draws import MEASURES, attended

    law = {name: state[name] for name in ("keys", "seed")}
    weights, sizes = attended(state["d"], scaled=scaled, mean=state["mu"], sigma=state["sigma"], **law)
    ordered = sorted(range(len(weights)), key=lambda key: -weights[key])
    return {
        "weights": [weights[key] for key in ordered[:MOST_SHOWN]],
        "key": [key + 1 for key in ordered[:MOST_SHOWN]],
        "rest": math.fsum(weights[key] for key in ordered[MOST_SHOWN:]),
        **{name: float(getattr(sizes, name)[0]) for name in MEASURES},
    }


def _draws(state: State) -> dict[str, Any]:
    """Quantiles of every measure, at the width that was asked for and over the sweep."""
    from ...theory.draws import MEASURES, SoftmaxDraws

    draws = SoftmaxDraws(state["keys"], DRAWS, state["seed"])
    found = {
        side: {
            width: draws.sizes(width, scaled=scaled, mean=state["mu"], sigma=state["sigma"]).quantiles()
            for width in {*WIDTHS, state["d"]}
        }
        for side, scaled in SIDES.items()
    }
    return {
        "draws": DRAWS,
        "sizes": {side: at[state["d"]] for side, at in found.items()},
        "widths": WIDTHS,
        "sweep": {
            side: {name: [at[width][name] for width in WIDTHS] for name in MEASURES} for side, at in found.items()
        },
    }


def pictures(state: State, result: Result) -> Mapping[str, str]:

    return {**charts(state, result), **written()}


def python(state: State) -> str:
    return f"""import math

from qkv.maths.moments import sample_moments
from qkv.theory.draws import drawn_scores, normal_distance, predicted_moments
from qkv.theory.draws import SoftmaxDraws, attended

d, mu, sigma, keys, seed = {state["d"]}, {state["mu"]!r}, {state["sigma"]!r}, {state["keys"]}, {state["seed"]}
scores = drawn_scores(d, mu, sigma, samples={drawn_count(state)}, seed=seed)
draws = SoftmaxDraws(keys, count={DRAWS}, seed=seed)
mean, variance = predicted_moments(d, mu, sigma, scaled=False)
far, chance = normal_distance(scores, mean, math.sqrt(variance), rarity={RARITY})
print("distance to the normal law, and of chance:", far, chance)

for scaled in (False, True):
    print("q.k / sqrt(d)" if scaled else "q.k")
    mean, variance = predicted_moments(d, mu, sigma, scaled=scaled)
    found = sample_moments(scores / math.sqrt(d) if scaled else scores)
    print("mean: predicted", mean, "sampled", found.mean, "standard error", found.mean_error)
    print("variance: predicted", variance, "sampled", found.variance, "standard error", found.variance_error)
    weights, one = attended(d, scaled=scaled, keys=keys, seed=seed, mean=mu, sigma=sigma)
    print("weights of one query:", sorted(weights, reverse=True))
    over = draws.sizes(d, scaled=scaled, mean=mu, sigma=sigma).quantiles((0.1, 0.5, 0.9))
    for name, (low, median, high) in over.items():
        print(f"{{name}}: one query {{getattr(one, name)[0]:.6g}}, quantiles", low, median, high)
"""


_OBJECT = {"type": "object"}
SCHEMA = {
    "asked": {"type": "integer"},
    "drawn": {"type": "integer"},
    "law": _OBJECT,
    "normal": _OBJECT,
    "softmax": _OBJECT,
    "most_entropy": {"type": "number"},
    "value_width": {"type": "integer"},
    "draws": {"type": "integer"},
    "sizes": _OBJECT,
    "widths": {"type": "array", "items": {"type": "integer"}},
    "sweep": _OBJECT,
    "derivations": _OBJECT,
}


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
        drawn[f"law_{side}"] = _law_chart(side, result)
        drawn[f"weights_{side}"] = _weights(side, state, result)
    return {**drawn, "shared": _shared(state, result), "sweep": _sweep(state, result)}


def _shared(state: State, result: Result) -> str:
    """Both laws over one axis. It stays the same while the wide one fits, so that a change of d is seen."""
    law, unit = result["law"], 34 * state["sigma"] ** 2
    ends = [edge for side in SCORE for edge in law[side]["edges"]]
    shapes = []
    for side in SCORE:
        most = max(law[side]["heights"]) or 1.0
        heights = [height / most for height in law[side]["heights"]]
        shapes.append(Bars(SCORE[side], law[side]["edges"], heights))
    return chart(
        "Scores with and without the division",
        Axis("score", low=min(-unit, *ends), high=max(unit, *ends)),
        Axis("samples, relative to the most frequent", low=0, high=1),
        shapes,
        width=WIDTH,
        height=HEIGHT,
    )


def _law_chart(side: str, result: Result) -> str:
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


# In the order of the chains: the ids of the numbers that each explains.
OF_SCORES = (("law-plain-mean",), ("law-plain-variance",), ("law-scaled-mean",), ("law-scaled-variance",))
OF_SOFTMAX = (
    ("sizes-entry",),
    ("sizes-jacobian",),
    ("sizes-jacobian", "sizes-most"),
    ("sizes-most",),
    ("sizes-most",),
)


def _chains() -> Iterator[tuple[str, list[Derivation], tuple[tuple[str, ...], ...]]]:
    """The chains for components of one mean, as on this page, and those of softmax; and what each explains."""
    of_scores = [chain for chain in scores().derivation.chains() if chain.steps[0].symbols is SCALAR_MEAN]
    yield "scores", of_scores, OF_SCORES
    yield "softmax", list(saturation().derivation.chains()), OF_SOFTMAX


# The same for every state: taken apart and written once.
@lru_cache(maxsize=1)
def derivations() -> dict[str, list[dict[str, Any]]]:
    """Both derivations as texts: for each chain its lines, and the ids of the numbers that they explain."""
    made = {}
    for name, chains, explained in _chains():
        made[name] = [
            {
                "explains": list(explains),
                "lines": [
                    {
                        "relation": relation(line.relation).text if line.relation else "",
                        "text": line.text,
                        "reason": line.reason,
                    }
                    for line in chain.steps
                ],
            }
            for chain, explains in zip(chains, explained, strict=True)
        ]
    return made


@lru_cache(maxsize=1)
def written() -> dict[str, str]:
    """Formulas and reasons as HTML: "scores_0_1" is the second line of the first chain, "scores_0_1_why" its reason."""
    made = {}
    for name, chains, _ in _chains():
        for i, chain in enumerate(chains):
            for j, line in enumerate(lines(replace(chain, shown=False))):
                made[f"{name}_{i}_{j}"] = inline(line.maths)
                made[f"{name}_{i}_{j}_why"] = inline(line.reason)
    return made


VIEW = View(
    name="scale",
    title="Scale",
    verb="prove",
    lead="Why attention divides by √d: the law of a score, and what softmax and its gradient make of it.",
    bar=("d", "keys", "mu", "sigma"),
    simple="Why the scores are divided by √d before softmax.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema=SCHEMA,
    scripts=("views/scale.js",),
    alone=True,
)
