"""Random scores q·k: their predicted and sampled moments, and how peaked softmax is over them, how large its Jacobian
and the gradient are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from ..maths import parse
from ..maths.moments import SCALAR_MEAN, moments
from ..maths.tree import Node
from ..maths.values.evaluate import evaluate

SCORE, SCALED_SCORE = "q^T k", r"\frac{q^T k}{\sqrt{d}}"
SYMBOLS = {**SCALAR_MEAN, "d": "natural"}
BLOCK = 1 << 17  # numbers drawn at a time: they fit the processor's cache


def predicted_moments(width: int, mean: float, sigma: float, *, scaled: bool) -> tuple[float, float]:
    """Mean and variance of q·k, or of q·k/√d, for components with one mean and one standard deviation.

    >>> predicted_moments(4, 0.5, 1, scaled=False), predicted_moments(4, 0.5, 1, scaled=True)
    ((1.0, 6.0), (0.5, 1.5))
    """
    # 0.1 means a tenth, not the nearest float.
    values = {"m": Fraction(repr(mean)), "sigma": Fraction(repr(sigma)), "d": width}
    first, second = (evaluate(formula, {"d": width}, values) for formula in _formulas(scaled))
    return float(first), float(second)


@lru_cache(maxsize=2)
def _formulas(scaled: bool) -> tuple[Node, Node]:
    found = moments(SCALED_SCORE if scaled else SCORE, SYMBOLS)
    return parse(found.mean, SYMBOLS), parse(found.variance, SYMBOLS)


def drawn_scores(width: int, mean: float, sigma: float, samples: int, seed: int):
    """q·k of `samples` pairs of normal vectors."""
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


VALUE_WIDTH = 5  # of the values and the target that the gradient is taken with
MEASURES = ("most", "entropy", "jacobian", "entry", "gradient")


@dataclass(frozen=True)
class Sizes:
    """One number for each draw: the largest weight, the entropy in nats, ‖J‖_F, the largest |J_ij| and ‖∂loss/∂q‖."""

    most: Any
    entropy: Any
    jacobian: Any
    entry: Any
    gradient: Any

    def quantiles(self, shares: tuple[float, ...] = (0.1, 0.5, 0.9)) -> dict[str, list[float]]:
        import numpy as np

        return {name: np.quantile(getattr(self, name), shares).tolist() for name in MEASURES}


@dataclass(frozen=True)
class SoftmaxRows:
    """Rows of scores, the best first, and their softmax; `rest` is 1 − max(a) without the cancellation, which would
    lose it where softmax is close to argmax."""

    scores: Any  # less the best: none is above 0
    weights: Any
    rest: Any

    @classmethod
    def of(cls, ordered) -> SoftmaxRows:
        """From rows in descending order.

        >>> import numpy as np
        >>> f"{SoftmaxRows.of(np.array([[3.0, -77.0]])).rest[0]:.4g}", f"{math.exp(-80):.4g}"
        ('1.805e-35', '1.805e-35')
        """
        import numpy as np

        scores = ordered - ordered[:, :1]
        powers = np.exp(scores)
        tail = powers[:, 1:].sum(1)
        return cls(scores, powers / (1 + tail)[:, None], tail / (1 + tail))

    @property
    def most(self):
        return self.weights[:, 0]

    @property
    def entropy(self):
        """−Σ a log a = log Σ e^s − Σ a s, of terms that are all positive."""
        import numpy as np

        return -np.log1p(-self.rest) - (self.weights * self.scores).sum(1)

    @property
    def _left(self):
        """1 − a_i."""
        left = 1 - self.weights
        left[:, 0] = self.rest
        return left

    @property
    def jacobian(self):
        """‖diag(a) − aaᵀ‖_F from its entries: a_i(1 − a_i), and −a_i a_j for every pair twice."""
        import numpy as np

        size = _above_zero(self.entry)
        squares, others = self.weights**2, (self.weights[:, 1:] / size[:, None]) ** 2
        together = others.sum(1)
        pairs = squares[:, 0] * together + (squares[:, 1:] * (together[:, None] - others)).sum(1) / 2
        diagonal = self.weights * self._left / size[:, None]
        return size * np.sqrt((diagonal**2).sum(1) + 2 * pairs)

    @property
    def entry(self):
        """max |J_ij|: a row's entry on the diagonal outweighs all its others, which sum to it."""
        return (self.weights * self._left).max(1)

    def slopes(self, values, target) -> tuple[Any, Any]:
        """g = ∂loss/∂s, with the loss half the squared distance of the output from the target: for each row its largest
        |g|, and g divided by that."""
        import numpy as np

        a = self.weights
        error = (a[:, None, :] @ values)[:, 0] - target
        slope = (values @ error[:, :, None])[:, :, 0]
        slope -= slope[:, :1]  # relative to the best key's: no cancellation where its weight is nearly 1
        slope = a * (slope - (a * slope).sum(1, keepdims=True))
        size = _above_zero(np.abs(slope).max(1))
        return size, slope / size[:, None]


def _above_zero(sizes):
    """Divisors for scaling before squaring: the squares of numbers below 1e-154 underflow."""
    import numpy as np

    return np.where(sizes > 0, sizes, 1.0)


def descending(rows):
    import numpy as np

    return -np.sort(-rows, axis=1)


class SoftmaxDraws:
    """`count` queries, each with its own keys, values and target, the same for every width and scale, so that they can
    be compared.

    Given q, the scores of keys with components of mean μ and deviation σ are a common shift, which softmax ignores,
    plus σ‖q‖ times independent standard normals. ‖q‖² is σ² times a noncentral chi-square, and across q a key is
    normal: no vectors are drawn. With the loss half the squared distance of the output from the target, g = ∂loss/∂s
    sums to zero over the keys, and ‖∂loss/∂q‖² = scale²σ²((zᵀg)² + ‖g‖²χ²), with d − 1 degrees of freedom.
    """

    def __init__(self, keys: int, count: int, seed: int) -> None:
        import numpy as np

        self.seed, self.count = seed, count
        generator = np.random.default_rng(seed)
        # In the order of their scores, which no positive factor changes.
        self.normals = descending(generator.standard_normal((count, keys)))
        self.values = generator.standard_normal((count, keys, VALUE_WIDTH))
        self.target = generator.standard_normal((count, VALUE_WIDTH))

    def sizes(self, width: int, *, scaled: bool, mean: float = 0.0, sigma: float = 1.0) -> Sizes:
        import numpy as np

        generator = np.random.default_rng((self.seed, width))
        length = sigma * np.sqrt(generator.noncentral_chisquare(width, width * (mean / sigma) ** 2, self.count))
        across = generator.chisquare(width - 1, self.count) if width > 1 else np.zeros(self.count)
        scale = 1 / math.sqrt(width) if scaled else 1.0
        soft = SoftmaxRows.of((scale * sigma * length)[:, None] * self.normals)
        size, slope = soft.slopes(self.values, self.target)
        along = (self.normals * slope).sum(1)
        gradient = scale * sigma * size * np.sqrt(along**2 + (slope**2).sum(1) * across)
        return Sizes(soft.most, soft.entropy, soft.jacobian, soft.entry, gradient)


def attended(width: int, *, scaled: bool, keys: int, seed: int, mean: float = 0.0, sigma: float = 1.0):
    """One query with real vectors, by a call of attention: the weights, and the Sizes. The gradient is not autograd's,
    which loses the best key's share where its weight rounds to 1."""
    import numpy as np
    import torch

    import qkv

    generator = np.random.default_rng(seed)
    vectors = mean + sigma * generator.standard_normal((1 + keys, width))
    query, key = vectors[:1], vectors[1:]
    value = generator.standard_normal((keys, VALUE_WIDTH))
    target = generator.standard_normal((1, VALUE_WIDTH))
    similarity = qkv.Softmax(scale=None if scaled else 1.0)
    given = (torch.from_numpy(each) for each in (query, key, value))
    weights = qkv.attention(*given, similarity=similarity, backend="reference", return_weights=True)[1]
    scale = 1 / math.sqrt(width) if scaled else 1.0
    scores = scale * (query @ key.T)
    order = np.argsort(-scores[0])
    soft = SoftmaxRows.of(scores[:, order])
    size, slope = soft.slopes(value[None, order], target)
    gradient = scale * size * np.linalg.norm(slope @ key[order], axis=1)
    return weights[0].tolist(), Sizes(soft.most, soft.entropy, soft.jacobian, soft.entry, gradient)
