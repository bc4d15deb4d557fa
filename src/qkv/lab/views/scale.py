"""Scale: the law of a score, what softmax makes of it with and without 1/√d, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
           options={"no": "q·k as it is", "yes": "q·k divided by √d"}),
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
    from ...theory.score_draws import drawn_scores, normal_distance, predicted_moments
    from ...theory.softmax_draws import VALUE_WIDTH
    from .scale_lines import derivations

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
    from ...theory.score_draws import histogram, normal_curve

    deviation = math.sqrt(variance)
    bars = histogram(values, mean, deviation)
    return {
        "mean": _beside(mean, found.mean, found.mean_error),
        "variance": _beside(variance, found.variance, found.variance_error),
        "deviation": deviation,
        "edges": list(bars.edges),
        "heights": list(bars.heights),
        "outside": bars.outside,
        "curve": [list(point) for point in normal_curve(mean, deviation)],
    }


def _beside(predicted: float, sampled: float, error: float) -> dict[str, float | None]:
    """Prediction, sample, its standard error, and how many of these lie between the two."""
    return {
        "predicted": predicted,
        "sampled": sampled,
        "error": error,
        "off": (sampled - predicted) / error if error else None,
    }


def _one(state: State, scaled: bool) -> dict[str, Any]:
    """One query and its keys, by a call of attention."""
    from ...theory.softmax_draws import MEASURES, attended

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
    from ...theory.softmax_draws import MEASURES, SoftmaxDraws

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
    from .scale_charts import charts
    from .scale_lines import written

    return {**charts(state, result), **written()}


def python(state: State) -> str:
    return f"""import math

from qkv.maths.moments import sample_moments
from qkv.theory.score_draws import drawn_scores, normal_distance, predicted_moments
from qkv.theory.softmax_draws import SoftmaxDraws, attended

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

VIEW = View(
    name="scale",
    title="Scale",
    verb="prove",
    lead="Why attention divides by √d: the law of a score, and what softmax and its gradient make of it.",
    fields=FIELDS,
    compute=compute,
    python=python,
    pictures=pictures,
    schema=SCHEMA,
    scripts=("views/scale.js",),
)
