"""Why attention divides by √d: mean and variance of a score q·k, for every mean and covariance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..derivation import Derivation, Step
from ..maths import compare
from ..maths.moments import (
    ANY_LAW,
    SCALAR_MEAN,
    STANDARD,
    VECTOR_MEAN,
    Discrete,
    enumerate_moments,
    moments,
    monte_carlo,
)
from .claim import Claim, Correction, Evidence, measured

STATEMENT = (
    r"For independent $q$ and $k$ with means $\mu_q$, $\mu_k$ and covariances $\Sigma_q$, $\Sigma_k$: "
    r"$E[q^T k] = \mu_q^T \mu_k$ and "
    r"$\operatorname{Var}(q^T k) = tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k$. With one "
    r"mean $\mu$, a vector, and covariance $\sigma^2 I_d$ for both that is $\|\mu\|^2$ and "
    r"$d \sigma^4 + 2 \sigma^2 \|\mu\|^2$; only where every component of $\mu$ is the same $m$ is it $d m^2$ and "
    r"$d \sigma^4 + 2 d \sigma^2 m^2$. With $\mu = 0$ and $\sigma = 1$ the variance is $d$, and $\frac{q^T k}{s}$ has "
    r"variance 1 for $s = \sqrt{d}$ and for $s = -\sqrt{d}$ alone; $-\sqrt{d}$ reverses the order of the keys."
)
SCALED = {**STANDARD, "s": "positive"}
RANKED = {"z": "vector[n]", "d": "natural"}
# The symbols of the prose, besides those of the derivation.
PROSE_SYMBOLS = {
    **SCALAR_MEAN,
    **ANY_LAW,
    **VECTOR_MEAN,
    "d": "natural",
    "i": "index[d]",
    "j": "index[d]",
    "s": "scalar",
    "a": "vector[n]",
    "z": "vector[n]",
    "Q": "matrix[n,d]",
    "K": "matrix[n,d]",
}


def scores(*, seed: int = 0, samples: int = 60_000) -> Claim:
    """E and Var of q·k for vector, scalar and general means, why s = √d, and what s = −√d would do.

    Args:
        seed: Of the samples.
        samples: How many are drawn.

    Returns:
        The claim, with its derivation and the evidence for it.
    """
    evidence = (
        _conditional(r"the answer `d\mu^2` for the mean, right only if", r"\mu^T\mu", r"d\mu^2", VECTOR_MEAN),
        *_enumerated(),
        *_sampled(seed, samples),
        *_confident(seed, samples),
        *_attended(seed),
    )
    return replace(without_evidence(seed), evidence=evidence)


def without_evidence(seed: int = 0) -> Claim:
    """The claim without its evidence, which takes time to compute."""
    return Claim(
        name="scores",
        title="Scores: mean, variance, and why they are divided by √d",
        statement=STATEMENT,
        derivation=Derivation(
            (*_general(), *_vector_mean(), *_scalar_mean(), *_standard(), *_scaling(), *_shared_query()),
            PROSE_SYMBOLS,
            shown=True,
        ),
        corrections=CORRECTIONS,
        sources=("scaling", "scaling-scalar", "saturation (a)"),
        figure=lambda: _figure(seed),
    )


def _general() -> list[Step]:
    steps = [Step(*step, symbols=ANY_LAW) for step in moments("q^T k", ANY_LAW).steps]
    formula = r"tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k"
    return [*steps, Step(formula, "the formula of the statement: its terms in another order")]


def _vector_mean() -> list[Step]:
    return [
        Step("E[q^T k]", r"the exercise scaling: $\mu$ is a vector", "", symbols=VECTOR_MEAN),
        Step(r"E[\sum_{i=1}^d q_i k_i]", "definition of the dot product"),
        Step(r"\sum_{i=1}^d E[q_i k_i]", "linearity of expectation"),
        Step(r"\sum_{i=1}^d E[q_i] E[k_i]", "independence of $q$ and $k$"),
        Step(r"\sum_{i=1}^d \mu_i^2", r"the mean of component $i$ is $\mu_i$, one number for each"),
        Step(r"\mu^T \mu", "definition of the dot product"),
        Step(r"\|\mu\|^2", "definition of the norm"),
        Step(r"\operatorname{Var}(q^T k)", "its variance", "", symbols=VECTOR_MEAN),
        Step(
            r"\sum_{i=1}^d \operatorname{Var}(q_i k_i)",
            "the components are independent, so no term is left between them",
        ),
        Step(r"\sum_{i=1}^d (E[q_i^2 k_i^2] - E[q_i k_i]^2)", "definition of variance"),
        Step(r"\sum_{i=1}^d (E[q_i^2] E[k_i^2] - E[q_i]^2 E[k_i]^2)", "independence of $q$ and $k$"),
        Step(
            r"\sum_{i=1}^d ((\sigma^2 + \mu_i^2)^2 - \mu_i^4)", "a second moment is the variance and the mean's square"
        ),
        Step(r"\sum_{i=1}^d (\sigma^4 + 2 \sigma^2 \mu_i^2)", "multiplied out"),
        Step(r"d \sigma^4 + 2 \sigma^2 \mu^T \mu", "$d$ equal terms, and the dot product"),
    ]


def _scalar_mean() -> list[Step]:
    return [
        Step("E[q^T k]", "the exercise scaling-scalar: every component has the same mean $m$", "", symbols=SCALAR_MEAN),
        Step(r"\sum_{i=1}^d E[q_i] E[k_i]", "linearity and independence"),
        Step(r"\sum_{i=1}^d m^2", "the mean of every component is $m$"),
        Step("d m^2", "$d$ equal terms"),
        Step(r"\operatorname{Var}(q^T k)", "its variance", "", symbols=SCALAR_MEAN),
        Step(r"\sum_{i=1}^d ((\sigma^2 + m^2)^2 - m^4)", r"as before, with $m$ for every $\mu_i$"),
        Step(r"d \sigma^4 + 2 d \sigma^2 m^2", "$d$ equal terms"),
        Step(
            r"E[\frac{q^T k}{\sqrt{d}}]", "a mean that is not zero still grows after scaling", "", symbols=SCALAR_MEAN
        ),
        Step(r"\sqrt{d} m^2", "linearity"),
        Step(r"\operatorname{Var}(\frac{q^T k}{\sqrt{d}})", "its variance does not", "", symbols=SCALAR_MEAN),
        Step(r"\frac{1}{d} \operatorname{Var}(q^T k)", "a factor leaves a variance squared"),
        Step(r"\sigma^4 + 2 \sigma^2 m^2", "$d$ falls away"),
    ]


def _standard() -> list[Step]:
    return [
        Step(r"\operatorname{Var}(q^T k)", "the practical case: mean 0, variance 1", "", symbols=STANDARD),
        Step(r"E[(q^T k)^2]", "definition of variance; the mean is 0"),
        Step(
            r"\sum_{i=1}^d \sum_{j=1}^d E[q_i q_j] E[k_i k_j]",
            r"squared out, and independence of $q$ and $k$: the terms with different $i$ and $j$, which the solution "
            "of saturation leaves out, are here",
        ),
        Step(
            r"\sum_{i=1}^d E[q_i^2] E[k_i^2]",
            "components are independent with mean 0: $E[q_i q_j] = 0$ where $i$ and $j$ differ",
        ),
        Step("d", "$d$ terms that are 1"),
    ]


def _scaling() -> list[Step]:
    plus, minus = {**STANDARD, "s": "positive = sqrt(d)"}, {**STANDARD, "s": "scalar = -sqrt(d)"}
    ranked = {**RANKED, "a": "vector[n] = softmax(z/sqrt(d))", "b": "vector[n] = softmax(-z/sqrt(d))"}
    return [
        Step(r"\operatorname{Var}(\frac{q^T k}{s})", "divided by $s$", "", symbols=SCALED),
        Step(r"\frac{1}{s^2} \operatorname{Var}(q^T k)", "a factor leaves a variance squared"),
        Step(r"\frac{d}{s^2}", "the variance is $d$"),
        Step(r"1 - \frac{d}{s^2}", "how far that is from 1", "", symbols=SCALED),
        Step(
            r"\frac{(s - \sqrt{d})(s + \sqrt{d})}{s^2}",
            r"zero for $s = \sqrt{d}$ and $s = -\sqrt{d}$, and for nothing else",
        ),
        Step(r"\operatorname{Var}(\frac{q^T k}{s})", r"$s = \sqrt{d}$", "", symbols=plus),
        Step("1", "a variance of $d$ over $d$"),
        Step(r"\operatorname{Var}(\frac{q^T k}{s})", r"$s = -\sqrt{d}$ gives the same variance", "", symbols=minus),
        Step("1", r"$(-\sqrt{d})^2$ is $d$ too"),
        Step(r"\frac{q^T k}{s}", "but it reverses the sign of every score", "", symbols=minus),
        Step(r"-\frac{q^T k}{\sqrt{d}}", "the sign moves"),
        Step(r"\frac{a_i}{a_j}", r"weights with $s = \sqrt{d}$", "", symbols=ranked),
        Step(r"e^{(z_i - z_j)/\sqrt{d}}", "the better key has the larger weight"),
        Step(r"\frac{b_j}{b_i}", r"with $s = -\sqrt{d}$ every comparison is reversed"),
    ]


def _shared_query() -> list[Step]:
    two = {
        **ANY_LAW,
        "l": "random vector[d] ~ (mu_l, Sigma_l)",
        "mu_l": "vector[d]",
        "Sigma_l": "matrix[d,d]",
    }
    return [
        Step(r"\operatorname{Cov}(q^T k, q^T l)", "two scores of one query", "", symbols=two),
        Step(r"E[q^T k q^T l] - E[q^T k] E[q^T l]", "definition of covariance"),
        Step(r"\mu_k^T \Sigma_q \mu_l", "independence: zero for centred keys, though the scores share $q$"),
    ]


def _conditional(what: str, gold: str, answer: str, symbols: dict[str, str]) -> Evidence:
    verdict = compare(gold, answer, symbols)
    return Evidence(f"{what} {verdict.condition}", "proved" if verdict.kind == "conditional" else "refuted")


def _dot(q, k):
    return sum(a * b for a, b in zip(q, k, strict=True))


def predicted(q: Discrete, k: Discrete) -> tuple[Fraction, Fraction]:
    """The formulas of the statement at two laws, in fractions."""
    width = range(len(q.mean))
    trace = sum(q.covariance[i][j] * k.covariance[j][i] for i in width for j in width)
    query = sum(q.mean[i] * k.covariance[i][j] * q.mean[j] for i in width for j in width)
    key = sum(k.mean[i] * q.covariance[i][j] * k.mean[j] for i in width for j in width)
    return Fraction(_dot(q.mean, k.mean)), Fraction(trace + query + key)


def _enumerated(formulas=predicted) -> list[Evidence]:
    """All cases of small laws whose components depend on one another, so that covariances matter."""
    laws = (
        Discrete([(1, 2, 0), (0, -1, 3), (2, 2, -1), (-3, 1, 1)], [1, 2, 3, 4]),
        Discrete([(0, 1, 5), (4, -2, 1), (1, 1, 1)], [3, 1, 1]),
        Discrete([(1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, -1, -1)]),
    )
    worst_mean = worst_variance = Fraction(0)
    for q in laws:
        for k in laws:
            exact = enumerate_moments(lambda q, k: _dot(q, k), q=q, k=k)
            mean, variance = formulas(q, k)
            worst_mean = max(worst_mean, abs(exact.mean - mean))
            worst_variance = max(worst_variance, abs(exact.variance - variance))
    return [
        measured(
            r"$E[q^T k] = \mu_q^T \mu_k$ over all cases of nine pairs of discrete laws, in fractions",
            float(worst_mean),
            0.0,
        ),
        measured(r"$\operatorname{Var}(q^T k)$ likewise, with correlated components", float(worst_variance), 0.0),
    ]


def _sampled(seed: int, samples: int, width: int = 7, sigma: float = 1.3, errors: float = 4.5) -> list[Evidence]:
    """Normal vectors with a mean whose components differ; bounds are standard errors known from theory.

    The error of a variance needs the fourth central moment: three times the variance squared, and the fourth cumulant
    of Σ_i (μ_i + σx_i)(μ_i + σy_i), which is 6dσ⁸ + 24σ⁶‖μ‖².
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    mean = np.arange(width) / width - 0.3
    q = mean + sigma * generator.standard_normal((samples, width))
    k = mean + sigma * generator.standard_normal((samples, width))
    values = (q * k).sum(1)
    length = float(mean @ mean)
    variance = width * sigma**4 + 2 * sigma**2 * length
    fourth = 3 * variance**2 + 6 * width * sigma**8 + 24 * sigma**6 * length
    standard = generator.standard_normal((2, samples, width))
    scaled = (standard[0] * standard[1]).sum(1) / math.sqrt(width)
    return [
        measured(
            rf"mean of {samples} scores against $\|\mu\|^2$, $d = {width}$",
            abs(values.mean() - length),
            errors * math.sqrt(variance / samples),
        ),
        measured(
            r"their variance against $d \sigma^4 + 2 \sigma^2 \|\mu\|^2$",
            abs(values.var(ddof=1) - variance),
            errors * math.sqrt((fourth - variance**2) / samples),
        ),
        measured(
            r"variance of $\frac{q^T k}{\sqrt{d}}$ against 1, for standard vectors",
            abs(scaled.var(ddof=1) - 1),
            errors * math.sqrt((2 + 6 / width) / samples),
        ),
    ]


def _confident(seed: int, samples: int, confidence: float = 0.99999, forgotten: float = 0.0) -> list[Evidence]:
    """Different means and full covariances: the formulas lie within the intervals that sampling gives."""
    import numpy as np

    generator = np.random.default_rng(seed)
    root_q, root_k = generator.standard_normal((2, 5, 5))
    mean_q, mean_k = generator.standard_normal((2, 5))
    cov_q, cov_k = root_q @ root_q.T, root_k @ root_k.T
    found = monte_carlo(
        lambda q, k: (q * k).sum(1),
        samples=samples,
        seed=seed,
        confidence=confidence,
        q=(mean_q, cov_q),
        k=(mean_k, cov_k),
    )
    variance = float(np.trace(cov_q @ cov_k) + mean_q @ cov_k @ mean_q + (1 - forgotten) * mean_k @ cov_q @ mean_k)
    what = f"against {samples} draws with full covariances, $d = 5$: within the interval of confidence {confidence}"
    low, high = found.mean_interval
    mean = measured(f"$E[q^T k]$ {what}", abs(float(mean_q @ mean_k) - found.mean), (high - low) / 2)
    low, high = found.variance_interval
    return [mean, measured(rf"$\operatorname{{Var}}(q^T k)$ {what}", abs(variance - found.variance), (high - low) / 2)]


def _attended(seed: int, width: int = 11, keys: int = 13, weigh: Callable[..., Any] | None = None) -> list[Evidence]:
    """qkv.attention: the scale is 1/√d by default, and a negative scale reverses the order of the keys."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(5, width, generator=generator, dtype=torch.float64)
    k = torch.randn(keys, width, generator=generator, dtype=torch.float64)
    v = torch.randn(keys, 3, generator=generator, dtype=torch.float64)

    def weighed(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
        call = qkv.attention(q, k, v, similarity=qkv.Softmax(scale=scale), backend="reference", return_weights=True)
        return call[-1]

    weigh = weigh or weighed
    usual, root = weigh(q, k, None), math.sqrt(width)
    by_hand = torch.softmax(q @ k.T / root, dim=-1)
    reversed_order = weigh(q, k, -1 / root).argsort(dim=-1, descending=True)
    wrong = (reversed_order != usual.argsort(dim=-1)).sum()
    eps = torch.finfo(torch.float64).eps
    return [
        measured(
            r"`qkv.attention` without a scale against $softmax(\frac{Q K^T}{\sqrt{d}})$",
            float((usual - by_hand).abs().max()),
            4 * width * eps * float((q @ k.T).abs().max()),
        ),
        measured(
            r"places where scale $-\frac{1}{\sqrt{d}}$ does not reverse the order of the weights", float(wrong), 0.0
        ),
    ]


def _figure(seed: int) -> str:
    import numpy as np

    from ..figures import Axis, chart
    from ..figures import Line as Curve

    generator = np.random.default_rng(seed)
    widths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    raw: list[tuple[float, ...]] = []
    for width in widths:
        length = np.sqrt(generator.chisquare(width, 20_000))
        values = length * generator.standard_normal(20_000)  # given q, a score of standard normals is ‖q‖ times one
        raw.append(tuple(np.quantile(np.abs(values), (0.5, 0.9))))
    curves = [
        Curve("unscaled, half of the scores are below", [(d, at[0]) for d, at in zip(widths, raw, strict=True)]),
        Curve("unscaled, nine in ten are below", [(d, at[1]) for d, at in zip(widths, raw, strict=True)]),
        Curve("divided by √d, half", [(d, at[0] / math.sqrt(d)) for d, at in zip(widths, raw, strict=True)]),
        Curve("divided by √d, nine in ten", [(d, at[1] / math.sqrt(d)) for d, at in zip(widths, raw, strict=True)]),
        Curve("standard deviation √d", [(d, math.sqrt(d)) for d in widths], dashed=True, markers=False),
    ]
    return chart(
        "Scores grow as √d unless they are divided by it",
        Axis("width d", "", "log"),
        Axis("size of a score, |q·k|", "", "log"),
        curves,
        note=f"Standard normal q and k, 20 000 pairs at each width, seed {seed}.",
    )


CORRECTIONS = (
    Correction(
        "scaling (a)",
        r"The first answer, $d$ times the square of $\mu$, takes $\mu$ for one number.",
        r"$\mu$ is a vector: $E[q^T k] = \sum_i \mu_i^2 = \|\mu\|^2$. It is $d m^2$ only where $\mu = m 1_d$, which is "
        "what `scaling-scalar` asks.",
    ),
    Correction(
        "scaling (a)",
        r"The second answer says that the first would be right if $\mu$ were a scalar.",
        "A scalar mean has to be read as $m 1_d$ for the law to make sense; then the answer is $d m^2$, and the "
        r"variance gains $2 d \sigma^2 m^2$.",
    ),
    Correction(
        "scaling",
        r"Each component is written as normal with parameters $\mu$ and $\sigma$, next to a covariance $\sigma^2 I_d$.",
        r"Component $i$ has mean $\mu_i$ and variance $\sigma^2$: the second parameter is a variance, and the mean has "
        "an index.",
    ),
    Correction(
        "scaling, summary",
        "Large scores make softmax very peaked or very flat.",
        r"Scores that grow only sharpen it: ratios $\frac{a_i}{a_j} = e^{z_i - z_j}$ move away from 1. Small scores "
        "flatten it.",
    ),
    Correction(
        "scaling (c), scaling-scalar (c)",
        r"The variance of the scaled score is required to be $\sigma = 1$.",
        r"A variance is a $\sigma^2$; the two agree because $\sigma = 1$, and for no other positive value.",
    ),
    Correction(
        "scaling (b), scaling-scalar (b)",
        "The products $q_i k_i$ are called independent for different $i$ without a reason.",
        r"They are because the components of $q$, and of $k$, are (covariance $\sigma^2 I_d$, normal). Uncorrelated "
        "components are enough for the variance; with other covariances it is "
        r"$tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k$.",
    ),
    Correction(
        "scaling (c)",
        r"From $\frac{d}{s^2} = 1$ only $s = \sqrt{d}$ is drawn.",
        r"$s = -\sqrt{d}$ solves it too: same variance, but every query would then prefer its worst key. The other "
        "solutions choose the positive root by convention; the order of the keys is the reason for that convention.",
    ),
    Correction(
        "saturation (a)",
        "The square of a sum is written as the sum of squares, and the entry of $q$ carries the index of the key.",
        "The mean square of a score has cross terms $E[q_j q_l] E[k_j k_l]$; they vanish because components are "
        "independent with mean 0.",
    ),
)
