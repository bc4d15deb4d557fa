"""Mean and variance of qᵀk and its like, for independent random vectors with any means and covariances.

A scalar that is at most bilinear, S = c + Σ_r b_rᵀx_r + Σ_{r<s} x_rᵀA_rs x_s, needs nothing but the means μ_r and the
covariances Σ_r: with x_r = μ_r + z_r the linear parts of S become g_r = b_r + Σ_s A_rs μ_s, every cross term has a
factor z that stands alone and means zero, and so

    E[S] = c + Σ_r b_rᵀμ_r + Σ_{r<s} μ_rᵀA_rs μ_s
    Var(S) = Σ_r g_rᵀΣ_r g_r + Σ_{r<s} tr(Σ_r A_rs Σ_s A_rsᵀ).

For S = qᵀk: E = μ_qᵀμ_k and Var = tr(Σ_qΣ_k) + μ_qᵀΣ_kμ_q + μ_kᵀΣ_qμ_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product as combinations
from typing import NamedTuple

from qkv.errors import OptionError, complaint
from qkv.maths.bilinear import Form, form_of
from qkv.maths.combining import dot, is_zero, number, plus, product, times, trace, transposed
from qkv.maths.reading import parse
from qkv.maths.tree import Add, Covariance, Expect, Node, Outer, Power, Symbol
from qkv.maths.writing import latex

MOST_CASES = 200_000

ANY_LAW = {
    "q": "random vector[d] ~ (mu_q, Sigma_q)",
    "k": "random vector[d] ~ (mu_k, Sigma_k)",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "Sigma_q": "matrix[d,d]",
    "Sigma_k": "matrix[d,d]",
}
VECTOR_MEAN = {
    "q": "random vector[d] ~ N(mu, sigma^2 I)",
    "k": "random vector[d] ~ N(mu, sigma^2 I)",
    "mu": "vector[d]",
    "sigma": "positive",
}
SCALAR_MEAN = {
    "q": "random vector[d] ~ N(m 1_d, sigma^2 I)",
    "k": "random vector[d] ~ N(m 1_d, sigma^2 I)",
    "m": "scalar",
    "sigma": "positive",
}
STANDARD = {"q": "random vector[d] ~ N(0, I)", "k": "random vector[d] ~ N(0, I)", "d": "natural"}


class Step(NamedTuple):
    """One line of a derivation: equal to the line before by `reason`; relation "" begins a chain."""

    text: str
    reason: str
    relation: str = "="


class Moments(NamedTuple):
    """Mean and variance, as texts that `compare` reads, and the steps that lead to each of them."""

    mean: str
    variance: str
    steps: tuple[Step, ...]


def moments(expression: str, symbols: Mapping[str, str]) -> Moments:
    """Mean and variance of a scalar that is affine or bilinear in independent random names.

    The laws stand in `symbols`. Refused (OptionError) where a random name is multiplied by itself or stands in
    something else than a linear form: then the two moments of the laws do not say it.

    >>> found = moments("q^T k", STANDARD)
    >>> found.mean, found.variance
    ('0', 'd')
    """
    node = parse(expression, symbols)
    form = form_of(node, expression)
    steps = (*_mean_steps(node, form), *_variance_steps(node, form))
    return Moments(latex(_mean(form)), latex(_variance(form)), steps)


def _mean_steps(node: Node, form: Form) -> list[Step]:
    names = form.names
    terms = [
        *([] if is_zero(form.constant) else [form.constant]),
        *(Expect((), dot(b, names[r])) for r, b in form.linear.items()),
        *(Expect((), _paired(names[r], a, names[s])) for (r, s), a in form.pairs.items()),
    ]
    apart = [
        form.constant,
        *(dot(b, _expected(names[r])) for r, b in form.linear.items()),
        *(_paired(_expected(names[r]), a, _expected(names[s])) for (r, s), a in form.pairs.items()),
    ]
    independent = "linearity, and independence of what is multiplied" if form.pairs else "linearity of expectation"
    chain = [
        (Expect((), node), "what is asked"),
        (_listed(terms), "linearity of expectation"),
        (_listed([term for term in apart if not is_zero(term)]), independent),
        (_mean(form), "the means"),
    ]
    return _chain(chain)


def _variance_steps(node: Node, form: Form) -> list[Step]:
    names = form.names
    rest = {name: _less(symbol, _law(symbol).mean) for name, symbol in names.items()}
    parts = [
        *(dot(g, rest[r]) for r, g in _slopes(form).items() if not is_zero(g)),
        *(_paired(rest[r], a, rest[s]) for (r, s), a in form.pairs.items()),
    ]
    left_over = _less(node, _mean(form))
    apart = [
        (left_over, "what is left when the mean is taken away"),
        (_listed(parts), "every vector as its mean and a deviation"),
    ]
    chain = [
        (Covariance((), node, node), "what is asked"),
        (Expect((), _square(left_over)), "definition of variance"),
        (
            _listed([Expect((), _square(part)) for part in parts]),
            "linearity; between two parts a deviation of mean zero is independent of the rest",
        ),
        (_variance(form), "definition of covariance, and independence of what is multiplied"),
    ]
    told = _chain(apart)
    return [*(told if told[0].text != told[-1].text else []), *_chain(chain)]


def _chain(chain: list[tuple[Node, str]]) -> list[Step]:
    """Written out, without lines that only repeat the one before."""
    steps: list[Step] = []
    for node, reason in chain:
        text = latex(node)
        if not steps or text != steps[-1].text:
            steps.append(Step(text, reason, "=" if steps else ""))
    # A chain of one line (a constant's mean) would be a line that nothing checks.
    return steps if len(steps) > 1 else [*steps, Step(steps[0].text, "as it stands")]


def _law(symbol: Symbol):
    law = symbol.type.law
    assert law is not None
    return law


def _expected(symbol: Symbol) -> Node:
    return Expect(symbol.shape, symbol)


def _less(node: Node, other: Node) -> Node:
    return node if is_zero(other) else Add(node.shape, (node, times(number(-1), other)))


def _square(node: Node) -> Node:
    return Power((), node, number(2))


def _listed(terms: Sequence[Node]) -> Node:
    if len(terms) < 2:
        return terms[0] if terms else number(0)
    return Add((), tuple(terms))


def _paired(left: Node, coefficient: Node, right: Node) -> Node:
    """leftᵀ A right, whichever of the two are vectors."""
    if len(coefficient.shape) == 2:
        return dot(left, product(coefficient, right))
    if left.shape or right.shape:
        return times(dot(coefficient, left), right) if left.shape else times(left, dot(coefficient, right))
    return times(coefficient, left, right)


def _mean(form: Form) -> Node:
    means = {name: _law(symbol).mean for name, symbol in form.names.items()}
    return plus(
        form.constant,
        *(dot(b, means[r]) for r, b in form.linear.items()),
        *(_paired(means[r], a, means[s]) for (r, s), a in form.pairs.items()),
    )


def _slopes(form: Form) -> dict[str, Node]:
    """g_r: what multiplies the deviation of each name when all others stand at their means."""
    slopes: dict[str, list[Node]] = {name: [] for name in form.names}
    for name, coefficient in form.linear.items():
        slopes[name].append(coefficient)
    for (r, s), a in form.pairs.items():
        mean_r, mean_s = _law(form.names[r]).mean, _law(form.names[s]).mean
        slopes[r].append(_against(a, mean_s, bool(form.names[r].shape)))
        slopes[s].append(_against(transposed(a) if len(a.shape) == 2 else a, mean_r, bool(form.names[s].shape)))
    return {name: plus(*terms) for name, terms in slopes.items() if terms}


def _against(coefficient: Node, mean: Node, wants_vector: bool) -> Node:
    if len(coefficient.shape) == 2:
        return product(coefficient, mean)
    return times(coefficient, mean) if wants_vector or not coefficient.shape else dot(coefficient, mean)


def _variance(form: Form) -> Node:
    spread = {name: _law(symbol).covariance for name, symbol in form.names.items()}
    slopes = [_quadratic(g, spread[r]) for r, g in _slopes(form).items() if not is_zero(g)]
    pairs = [_pair_variance(spread[r], a, spread[s]) for (r, s), a in form.pairs.items()]
    return plus(number(0), *pairs, *slopes)


def _quadratic(slope: Node, covariance: Node) -> Node:
    if not slope.shape:
        return times(slope, slope, covariance)
    return dot(slope, product(covariance, slope))


def _pair_variance(left: Node, coefficient: Node, right: Node) -> Node:
    """E[(zᵀAw)²] of independent z, w with mean zero."""
    if len(coefficient.shape) == 2:
        if isinstance(coefficient, Outer):
            return times(_quadratic(coefficient.left, left), _quadratic(coefficient.right, right))
        return trace(product(left, product(coefficient, product(right, transposed(coefficient)))))
    if left.shape or right.shape:
        vector, scalar = (left, right) if left.shape else (right, left)
        return times(scalar, _quadratic(coefficient, vector))
    return times(coefficient, coefficient, left, right)


Point = Sequence[int | Fraction]


class Exact(NamedTuple):
    mean: Fraction
    variance: Fraction


class Discrete:
    """A law on finitely many points of R^d, with exact chances (equal ones, where none are given).

    >>> coin = Discrete([(1, 0), (0, 2)])
    >>> coin.mean == (Fraction(1, 2), 1), coin.covariance[0][1]
    (True, Fraction(-1, 2))
    """

    def __init__(self, points: Sequence[Point], chances: Sequence[int | Fraction] | None = None) -> None:
        if not points or len({len(point) for point in points}) > 1:
            raise OptionError(complaint("points", repr(points), "one point or more, all of one length"))
        weights = [Fraction(1)] * len(points) if chances is None else [Fraction(chance) for chance in chances]
        if len(weights) != len(points) or min(weights) < 0 or sum(weights) == 0:
            raise OptionError(complaint("chances", repr(chances), "one for each point, none negative, not all zero"))
        self.points = tuple(tuple(Fraction(x) for x in point) for point in points)
        total = sum(weights)
        self.chances = tuple(weight / total for weight in weights)
        width = range(len(self.points[0]))
        cases = list(zip(self.points, self.chances, strict=True))
        self.mean = tuple(sum((c * p[i] for p, c in cases), Fraction(0)) for i in width)
        self.covariance = tuple(
            tuple(
                sum((c * (p[i] - self.mean[i]) * (p[j] - self.mean[j]) for p, c in cases), Fraction(0)) for j in width
            )
            for i in width
        )


def enumerate_moments(score: Callable[..., int | Fraction], **laws: Discrete) -> Exact:
    """Mean and variance of score(**points) over all combinations of independent discrete laws, in exact fractions.

    >>> sign = Discrete([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    >>> enumerate_moments(lambda q, k: q[0] * k[0] + q[1] * k[1], q=sign, k=sign)
    Exact(mean=Fraction(0, 1), variance=Fraction(2, 1))
    """
    cases = math.prod(len(law.points) for law in laws.values())
    if cases > MOST_CASES:
        raise OptionError(complaint("laws", f"{cases} combinations", f"at most {MOST_CASES}", "use fewer points"))
    first = second = Fraction(0)
    for case in combinations(*(zip(law.points, law.chances, strict=True) for law in laws.values())):
        value = Fraction(score(**{name: point for name, (point, _) in zip(laws, case, strict=True)}))
        chance = math.prod((chance for _, chance in case), start=Fraction(1))
        first += chance * value
        second += chance * value**2
    return Exact(first, second - first**2)


class Sampled(NamedTuple):
    """Estimates, and the intervals that hold the true values with the confidence that was asked for."""

    mean: float
    mean_interval: tuple[float, float]
    variance: float
    variance_interval: tuple[float, float]


def monte_carlo(score, *, samples: int = 40_000, seed: int = 0, confidence: float = 0.999, **laws) -> Sampled:
    """Mean and variance of score(**draws) by sampling normal vectors, each with a confidence interval.

    laws: for each name its mean, a sequence of d numbers, and its covariance, d by d. `score` takes arrays of shape
    (samples, d) and gives one number a sample. The intervals are those of the normal approximation; the variance's
    uses the fourth central moment of the sample.

    >>> law = ([0.0, 0.0, 0.0], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> low, high = monte_carlo(lambda q, k: (q * k).sum(1), q=law, k=law).variance_interval
    >>> low < 3 < high
    True
    """
    import statistics

    import numpy as np

    if samples < 100 or not 0 < confidence < 1:
        given = f"samples={samples}, confidence={confidence}"
        raise OptionError(complaint("monte_carlo", given, "100 samples or more and a confidence between 0 and 1"))
    generator = np.random.default_rng(seed)
    draws = {name: generator.multivariate_normal(mean, cov, size=samples) for name, (mean, cov) in laws.items()}
    values = np.asarray(score(**draws), dtype=float)
    found = sample_moments(values)
    wide = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    return Sampled(
        found.mean,
        (found.mean - wide * found.mean_error, found.mean + wide * found.mean_error),
        found.variance,
        (found.variance - wide * found.variance_error, found.variance + wide * found.variance_error),
    )


class SampleMoments(NamedTuple):
    """Mean and variance of a sample, each with its standard error."""

    mean: float
    mean_error: float
    variance: float
    variance_error: float


def sample_moments(values) -> SampleMoments:
    """Of an array of two numbers or more; the error of the variance comes from the sample's fourth central moment."""
    samples = len(values)
    mean = float(values.mean())
    centred = values - mean
    variance = float((centred**2).sum() / (samples - 1))
    fourth = float((centred**4).mean())
    return SampleMoments(
        mean,
        math.sqrt(variance / samples),
        variance,
        math.sqrt(max(fourth - variance**2, 0.0) / samples),
    )
