"""Scores q·k of drawn vectors beside the law that is predicted for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

from ..maths import parse
from ..maths.moments import SCALAR_MEAN, moments
from ..maths.tree import Node
from ..maths.values.exact import evaluate

SCORE, SCALED_SCORE = "q^T k", r"\frac{q^T k}{\sqrt{d}}"
SYMBOLS = {**SCALAR_MEAN, "d": "natural"}
BLOCK = 1 << 17  # numbers drawn at a time: they stay in the cache, and memory stays small


def predicted_moments(width: int, mean: float, sigma: float, *, scaled: bool) -> tuple[float, float]:
    """Mean and variance of q·k, or of q·k/√d, for components with one mean and one standard deviation.

    >>> predicted_moments(4, 0.5, 1, scaled=False), predicted_moments(4, 0.5, 1, scaled=True)
    ((1.0, 6.0), (0.5, 1.5))
    """
    # What was typed as 0.1 is a tenth, not the float beside it.
    values = {"m": Fraction(repr(mean)), "sigma": Fraction(repr(sigma)), "d": width}
    first, second = (evaluate(formula, {"d": width}, values) for formula in _formulas(scaled))
    return float(first), float(second)


@lru_cache(maxsize=2)
def _formulas(scaled: bool) -> tuple[Node, Node]:
    found = moments(SCALED_SCORE if scaled else SCORE, SYMBOLS)
    return parse(found.mean, SYMBOLS), parse(found.variance, SYMBOLS)


def drawn_scores(width: int, mean: float, sigma: float, samples: int, seed: int):
    """q·k of `samples` pairs of normal vectors, every one drawn in full."""
    import numpy as np

    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // width)
    values = np.empty(samples)
    for start in range(0, samples, block):
        stop = min(start + block, samples)
        drawn = generator.standard_normal((2, stop - start, width))
        drawn *= sigma
        drawn += mean
        values[start:stop] = np.einsum("nd,nd->n", *drawn)
    return values


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, as densities: count / (samples × width of the bar); `outside` lie beyond the edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    heights: tuple[float, ...]
    outside: int


def histogram(values, centre: float, deviation: float, *, reach: int = 4, bars: int = 40) -> Histogram:
    """Bars of equal width, `reach` standard deviations to each side of the centre."""
    import numpy as np

    edges = centre + deviation * np.linspace(-reach, reach, bars + 1)
    counts = np.histogram(values, edges)[0]
    heights = [int(n) / (len(values) * (b - a)) for n, (a, b) in zip(counts, pairwise(edges.tolist()), strict=True)]
    return Histogram(tuple(edges.tolist()), tuple(map(int, counts)), tuple(heights), len(values) - int(counts.sum()))


def normal_curve(centre: float, deviation: float, *, reach: int = 4, steps: int = 40) -> list[tuple[float, float]]:
    """Points of the normal density with this centre and deviation."""
    law = NormalDist(centre, deviation)
    places = (centre + deviation * reach * (2 * n / steps - 1) for n in range(steps + 1))
    return [(x, law.pdf(x)) for x in places]


def normal_distance(values, centre: float, deviation: float, *, rarity: int = 10_000) -> tuple[float, float]:
    """Kolmogorov's distance, the largest difference between the share of values below a point and the normal law's,
    and what samples of that law exceed at most once in `rarity` times, by the inequality of Dvoretzky, Kiefer,
    Wolfowitz and Massart."""
    import numpy as np

    ordered = (np.sort(values) - centre) / (deviation * math.sqrt(2))
    below = np.array([0.5 * math.erfc(-x) for x in ordered.tolist()])
    steps = np.arange(len(below) + 1) / len(below)
    distance = max(float((steps[1:] - below).max()), float((below - steps[:-1]).max()))
    return distance, math.sqrt(math.log(2 * rarity) / (2 * len(below)))
