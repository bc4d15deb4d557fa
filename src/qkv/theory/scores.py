"""Why attention divides by √d: mean and variance of a score q·k, for every mean and covariance."""

from __future__ import annotations

import math
from fractions import Fraction

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
from .claim import Claim, Correction, Evidence, Line, measured

STATEMENT = (
    "For independent q and k with means μ_q, μ_k and covariances Σ_q, Σ_k: E[qᵀk] = μ_qᵀμ_k and "
    "Var(qᵀk) = tr(Σ_qΣ_k) + μ_qᵀΣ_kμ_q + μ_kᵀΣ_qμ_k. With μ a vector and Σ = σ²I for both that is ‖μ‖² and "
    "dσ⁴ + 2σ²‖μ‖²; only where every component of μ is the same m is it dm² and dσ⁴ + 2dσ²m². With μ = 0 and σ = 1 the "
    "variance is d, and qᵀk/s has variance 1 for s = √d and for s = −√d alone; −√d turns the order of the keys round."
)
SCALED = {**STANDARD, "s": "positive"}
RANKED = {"z": "vector[n]", "d": "natural"}


def scores(*, seed: int = 0, samples: int = 60_000) -> Claim:
    """E and Var of q·k for vector, scalar and general means, why s = √d, and what s = −√d would do."""
    return Claim(
        name="scores",
        title="Scores: mean, variance, and why they are divided by √d",
        statement=STATEMENT,
        symbols=VECTOR_MEAN,
        derivation=(*_general(), *_vector_mean(), *_scalar_mean(), *_standard(), *_scaling(), *_shared_query()),
        evidence=(
            _conditional("dμ² is the mean only if all components are equal", r"\mu^T\mu", r"d\mu^2", VECTOR_MEAN),
            *_enumerated(),
            *_sampled(seed, samples),
            *_confident(seed, samples),
            *_attended(seed),
        ),
        corrections=CORRECTIONS,
        sources=("000 1", "002 2", "003 1", "004 1a"),
        figure=lambda: _figure(seed),
    )


def _general() -> list[Line]:
    steps = [Line(*step, symbols=ANY_LAW) for step in moments("q^T k", ANY_LAW).steps]
    formula = r"tr(\Sigma_q \Sigma_k) + \mu_q^T \Sigma_k \mu_q + \mu_k^T \Sigma_q \mu_k"
    return [*steps, Line(formula, "the formula of the statement: its terms in another order")]


def _vector_mean() -> list[Line]:
    return [
        Line("E[q^T k]", "what documents 000 and 003 ask first; μ is a vector", "", VECTOR_MEAN),
        Line(r"E[\sum_{i=1}^d q_i k_i]", "definition of the dot product"),
        Line(r"\sum_{i=1}^d E[q_i k_i]", "linearity of expectation"),
        Line(r"\sum_{i=1}^d E[q_i] E[k_i]", "independence of q and k"),
        Line(r"\sum_{i=1}^d \mu_i^2", "the mean of component i is μ_i, one number for each i"),
        Line(r"\mu^T \mu", "definition of the dot product"),
        Line(r"\|\mu\|^2", "definition of the norm"),
        Line(r"\operatorname{Var}(q^T k)", "its variance", "", VECTOR_MEAN),
        Line(
            r"\sum_{i=1}^d \operatorname{Var}(q_i k_i)",
            "the components are independent, so no term is left between them",
        ),
        Line(r"\sum_{i=1}^d (E[q_i^2 k_i^2] - E[q_i k_i]^2)", "definition of variance"),
        Line(r"\sum_{i=1}^d (E[q_i^2] E[k_i^2] - E[q_i]^2 E[k_i]^2)", "independence of q and k"),
        Line(
            r"\sum_{i=1}^d ((\sigma^2 + \mu_i^2)^2 - \mu_i^4)", "a second moment is the variance and the mean's square"
        ),
        Line(r"\sum_{i=1}^d (\sigma^4 + 2 \sigma^2 \mu_i^2)", "multiplied out"),
        Line(r"d \sigma^4 + 2 \sigma^2 \mu^T \mu", "d equal terms, and the dot product"),
    ]


def _scalar_mean() -> list[Line]:
    return [
        Line("E[q^T k]", "document 002: every component has the same mean m", "", SCALAR_MEAN),
        Line(r"\sum_{i=1}^d E[q_i] E[k_i]", "linearity and independence"),
        Line(r"\sum_{i=1}^d m^2", "the mean of every component is m"),
        Line("d m^2", "d equal terms"),
        Line(r"\operatorname{Var}(q^T k)", "its variance", "", SCALAR_MEAN),
        Line(r"\sum_{i=1}^d ((\sigma^2 + m^2)^2 - m^4)", "as before, with μ_i = m"),
        Line(r"d \sigma^4 + 2 d \sigma^2 m^2", "d equal terms"),
        Line(r"E[\frac{q^T k}{\sqrt{d}}]", "a mean that is not zero still grows after scaling", "", SCALAR_MEAN),
        Line(r"\sqrt{d} m^2", "linearity"),
    ]


def _standard() -> list[Line]:
    return [
        Line(r"\operatorname{Var}(q^T k)", "the practical case: mean 0, variance 1", "", STANDARD),
        Line(r"E[(q^T k)^2]", "definition of variance; the mean is 0"),
        Line(
            r"\sum_{i=1}^d \sum_{j=1}^d E[q_i q_j] E[k_i k_j]",
            "squared out, and independence of q and k: the terms with i ≠ j, which document 004 leaves out, are here",
        ),
        Line(r"\sum_{i=1}^d E[q_i^2] E[k_i^2]", "components are independent with mean 0: E[q_i q_j] = 0 for i ≠ j"),
        Line("d", "d terms that are 1"),
    ]


def _scaling() -> list[Line]:
    plus, minus = {**STANDARD, "s": "positive = sqrt(d)"}, {**STANDARD, "s": "scalar = -sqrt(d)"}
    ranked = {**RANKED, "a": "vector[n] = softmax(z/sqrt(d))", "b": "vector[n] = softmax(-z/sqrt(d))"}
    return [
        Line(r"\operatorname{Var}(\frac{q^T k}{s})", "divided by s", "", SCALED),
        Line(r"\frac{1}{s^2} \operatorname{Var}(q^T k)", "a factor leaves a variance squared"),
        Line(r"\frac{d}{s^2}", "the variance is d"),
        Line(r"1 - \frac{d}{s^2}", "how far that is from 1", "", SCALED),
        Line(r"\frac{(s - \sqrt{d})(s + \sqrt{d})}{s^2}", "zero for s = √d and s = −√d, and for nothing else"),
        Line(r"\operatorname{Var}(\frac{q^T k}{s})", "s = √d", "", plus),
        Line("1", "d/d"),
        Line(r"\operatorname{Var}(\frac{q^T k}{s})", "s = −√d gives the same variance", "", minus),
        Line("1", "(−√d)² is d too"),
        Line(r"\frac{q^T k}{s}", "but it turns every score round", "", minus),
        Line(r"-\frac{q^T k}{\sqrt{d}}", "the sign moves"),
        Line(r"\frac{a_i}{a_j}", "weights with s = √d", "", ranked),
        Line(r"e^{(z_i - z_j)/\sqrt{d}}", "the better key has the larger weight"),
        Line(r"\frac{b_j}{b_i}", "with s = −√d every comparison is reversed"),
    ]


def _shared_query() -> list[Line]:
    two = {
        **ANY_LAW,
        "l": "random vector[d] ~ (mu_l, Sigma_l)",
        "mu_l": "vector[d]",
        "Sigma_l": "matrix[d,d]",
    }
    return [
        Line(r"\operatorname{Cov}(q^T k, q^T l)", "two scores of one query", "", two),
        Line(r"E[q^T k q^T l] - E[q^T k] E[q^T l]", "definition of covariance"),
        Line(r"\mu_k^T \Sigma_q \mu_l", "independence: zero for centred keys, though the scores share q"),
    ]


def _conditional(what: str, gold: str, answer: str, symbols: dict[str, str]) -> Evidence:
    verdict = compare(gold, answer, symbols)
    return Evidence(f"{what} ({verdict.condition})", "proved" if verdict.kind == "conditional" else "refuted")


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
            "E[qᵀk] = μ_qᵀμ_k over all cases of nine pairs of discrete laws, in fractions", float(worst_mean), 0.0
        ),
        measured("Var(qᵀk) likewise, with correlated components", float(worst_variance), 0.0),
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
            f"mean of {samples} scores against ‖μ‖², d = {width}",
            abs(values.mean() - length),
            errors * math.sqrt(variance / samples),
        ),
        measured(
            "their variance against dσ⁴ + 2σ²‖μ‖²",
            abs(values.var(ddof=1) - variance),
            errors * math.sqrt((fourth - variance**2) / samples),
        ),
        measured(
            "variance of qᵀk/√d against 1, for standard vectors",
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
    what = f"against {samples} draws with full covariances, d = 5: within the interval of confidence {confidence}"
    low, high = found.mean_interval
    mean = measured(f"E[qᵀk] {what}", abs(float(mean_q @ mean_k) - found.mean), (high - low) / 2)
    low, high = found.variance_interval
    return [mean, measured(f"Var(qᵀk) {what}", abs(variance - found.variance), (high - low) / 2)]


def _attended(seed: int, width: int = 11, keys: int = 13) -> list[Evidence]:
    """What qkv does: 1/√d unless told otherwise, and a negative scale ranks the keys the other way round."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(5, width, generator=generator, dtype=torch.float64)
    k = torch.randn(keys, width, generator=generator, dtype=torch.float64)
    v = torch.randn(keys, 3, generator=generator, dtype=torch.float64)

    def weights(scale: float | None) -> torch.Tensor:
        call = qkv.attention(q, k, v, similarity=qkv.Softmax(scale=scale), form="dense", return_weights=True)
        return call[-1]

    usual, root = weights(None), math.sqrt(width)
    by_hand = torch.softmax(q @ k.T / root, dim=-1)
    reversed_order = weights(-1 / root).argsort(dim=-1, descending=True)
    wrong = (reversed_order != usual.argsort(dim=-1)).sum()
    eps = torch.finfo(torch.float64).eps
    return [
        measured(
            "qkv.attention without a scale against softmax(QKᵀ/√d)",
            float((usual - by_hand).abs().max()),
            4 * width * eps * float((q @ k.T).abs().max()),
        ),
        measured("places where scale −1/√d does not reverse the order of the weights", float(wrong), 0.0),
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
        "000 1a",
        "The first answer, dμ², squares μ as if it were one number.",
        "μ is a vector: E[qᵀk] = Σ μ_i² = ‖μ‖². It is dm² only where μ = m·1, which is how document 002 asks it.",
    ),
    Correction(
        "000 1a",
        "The second answer says that dμ² would be right if μ were a scalar.",
        "A scalar mean has to be read as m·1 for the law to make sense; then the answer is dm², and Var gains 2dσ²m².",
    ),
    Correction(
        "000 1",
        "Each component is written N(μ, σ) beside a covariance σ²I.",
        "Component i is N(μ_i, σ²): the second argument is a variance, and the mean has an index.",
    ),
    Correction(
        "000 1, summary",
        "Large scores are said to make softmax very peaked or very flat.",
        "Scores that grow only sharpen it: ratios a_i/a_j = exp(z_i − z_j) move away from 1. Small scores flatten it.",
    ),
    Correction(
        "002 2c, 003 1c",
        "The variance of the scaled score is asked to be σ = 1.",
        "A variance is a σ²; the two agree because σ = 1, and for no other positive value.",
    ),
    Correction(
        "002 2b, 003 1b",
        "The products q_i k_i are called independent for different i without a reason.",
        "They are because the components of q, and of k, are (covariance σ²I, normal). Uncorrelated components are "
        "enough for the variance; with other covariances it is tr(Σ_qΣ_k) + μ_qᵀΣ_kμ_q + μ_kᵀΣ_qμ_k.",
    ),
    Correction(
        "003 1c",
        "From d/s² = 1 only s = √d is drawn.",
        "s = −√d solves it too: same variance, but every query would then prefer its worst key. Documents 000 and 002 "
        "choose the positive root by convention; the order of the keys is the reason for that convention.",
    ),
    Correction(
        "004 1a",
        "The square of a sum is written as the sum of squares, and the entry of q carries the index of the key.",
        "E[s_i²] has cross terms E[q_j q_l]E[k_ij k_il]; they vanish because components are independent with mean 0.",
    ),
)
