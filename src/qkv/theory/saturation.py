"""What large scores do to training: the softmax Jacobian, its exact size, and how it vanishes in probability;
by formula, by sampling, and in real calls of attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from ..derivation import Derivation, Step
from .claim import Claim, Correction, Evidence, measured

STATEMENT = (
    r"With $a = softmax(s)$ the Jacobian is $J = \operatorname{diag}(a) - a a^T$, and "
    r"$\|J\|_F^2 = \|a\|^2 - 2 \sum_i a_i^3 + \|a\|^4$. It is at most $tr(J)^2$, with equality where no more than two "
    r"weights differ from 0, hence $\|J\|_F \le 1 - \|a\|^2 \le 1 - \max(a)^2 \le 2 (1 - \max(a))$: no number of keys "
    r"enters, as it does in the bound of the published solution. Without scaling $\max(a)$ tends to 1 in probability "
    r"as $d$ grows with $n$ fixed, not surely: the probability of $\max(a) < 1 - \epsilon$ falls only as "
    r"$\frac{1}{\sqrt{d}}$. So the median of the gradient vanishes exponentially in $\sqrt{d}$ while its mean does "
    "not; with scaling neither depends on $d$."
)
WEIGHTS = {"a": "vector[n]"}
SOFTMAX = {"s": "vector[n]", "a": "vector[n] = softmax(s)"}
HEATED = {"s": "vector[n]", "t": "positive", "a": "vector[n] = softmax(t s)"}
# The symbols of the prose, besides those of the derivation.
PROSE_SYMBOLS = {
    **SOFTMAX,
    "J": "matrix[n,n]",
    "q": "vector[d]",
    "k": "matrix[n,d]",
    **dict.fromkeys(("t", "epsilon", "g"), "positive"),
    **dict.fromkeys(("d", "n"), "natural"),
}


KEYS = 16


def drawn_sizes(generator, width: float, count: int, *, scaled: bool, keys: int = KEYS):
    """Weights, top gaps and ‖J‖_F of `count` queries, each with its own standard normal keys.

    Given q, such scores are ‖q‖ times independent normals, and ‖q‖² is a chi-square: no vector need be drawn.
    """
    import numpy as np

    length = np.sqrt(generator.chisquare(width, count) / (width if scaled else 1))[:, None]
    scores = length * generator.standard_normal((count, keys))
    scores -= scores.max(1, keepdims=True)
    powers = np.exp(scores)
    weights = powers / powers.sum(1, keepdims=True)
    square = (weights**2).sum(1)
    size = np.sqrt(np.maximum(square - 2 * (weights**3).sum(1) + square**2, 0))
    return weights, -np.sort(scores, 1)[:, -2], size


def top_gap_density(keys: int) -> float:
    """The density at 0 of the gap between the two largest of n standard normals, n(n−1)∫φ²Φ^{n−2}.

    >>> round(top_gap_density(2), 4) == round(1 / math.sqrt(math.pi), 4)
    True
    """
    step, total = 1e-3, 0.0
    for place in range(-8000, 8001):
        x = place * step
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        total += density**2 * (0.5 * math.erfc(-x / math.sqrt(2))) ** (keys - 2) * step
    return keys * (keys - 1) * total


def median_bound(width: int, keys: int, trials: int) -> float:
    """What the median of ‖J‖_F without scaling stays below: 2(n − 1)e^{−gap} at a gap that more than half exceed.

    The chance that the best of n normals leads by t is n∫φ(x)Φ(x − t)^{n−1}; 4.5 standard errors of a sample median,
    and of ‖q‖/√d, are granted.
    """
    wanted = 0.5 + 4.5 * 0.5 / math.sqrt(trials)

    def exceeds(t: float) -> float:
        step = 5e-3
        points = (place * step for place in range(-1600, 1601))
        return (
            keys
            * step
            * sum(
                math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (0.5 * math.erfc((t - x) / math.sqrt(2))) ** (keys - 1)
                for x in points
            )
        )

    low, high = 0.0, 3.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) > wanted else (low, middle)
    return 2 * (keys - 1) * math.exp(-low * math.sqrt(width) * (1 - 4.5 / math.sqrt(2 * width)))


def gradients(width: int, scaled: bool, trials: int, seed: int, keys: int = KEYS):
    """‖∂loss/∂q‖ for `trials` queries, each with its own keys: a squared error behind a real call of attention."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed + width)
    query = torch.randn(trials, 1, width, generator=generator).requires_grad_()
    key = torch.randn(trials, keys, width, generator=generator)
    value = torch.randn(trials, keys, 5, generator=generator)
    target = torch.randn(trials, 1, 5, generator=generator)
    scale = 1 / math.sqrt(width) if scaled else 1.0
    out = qkv.attention(query, key, value, similarity=qkv.Softmax(scale=scale), backend="reference")
    loss = 0.5 * ((out - target) ** 2).sum()
    (slope,) = torch.autograd.grad(loss, query)
    return slope.double().norm(dim=-1).flatten()


def trained(
    scaled: bool, steps: int, seed: int, width: int = 1024, batch: int = 40, rate: float = 0.1
) -> tuple[list[float], list[float]]:
    """Median and mean over queries of ‖∂loss/∂q‖ at each step of training W_Q and W_K to find a key by its content.

    Both projections are diagonal, with signs at random to begin with: enough for scores of the size √d.
    """
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    to_query, to_key = (torch.randn(width, generator=generator).sign() for _ in range(2))
    learned = [to_query.requires_grad_(), to_key.requires_grad_()]
    similarity = qkv.Softmax(scale=1 / math.sqrt(width) if scaled else 1.0)
    medians, means = [], []
    for _ in range(steps):
        tokens = torch.randn(batch, KEYS, width, generator=generator)
        values = torch.randn(batch, KEYS, 5, generator=generator)
        wanted = torch.randint(KEYS, (batch,), generator=generator)
        rows = torch.arange(batch)
        query = tokens[rows, wanted][:, None] * to_query
        out = qkv.attention(query, tokens * to_key, values, similarity=similarity, backend="reference")
        loss = 0.5 * ((out - values[rows, wanted][:, None]) ** 2).sum()
        slope, *steps_down = torch.autograd.grad(loss, [query, *learned])
        sizes = slope.norm(dim=-1)
        medians.append(float(sizes.median()))
        means.append(float(sizes.mean()))
        with torch.no_grad():
            for parameter, gradient in zip(learned, steps_down, strict=True):
                parameter -= rate * gradient / batch
    return medians, means


def saturation(*, seed: int = 0, draws: int = 100_000, trials: int = 300, steps: int = 4) -> Claim:
    """The softmax Jacobian and its Frobenius norm; saturation in probability; medians vanish, means do not.

    Args:
        seed: Of the random scores.
        draws: Scores that are drawn for the probabilities.
        trials: Queries whose gradients are taken.
        steps: Steps of training.

    Returns:
        The claim, with its derivation and the evidence for it.

    >>> saturation(draws=20_000, trials=100, steps=2).holds
    True
    """
    evidence = (
        *_differentiated(seed),
        *_all_cases(),
        *_in_probability(seed, draws),
        *_at_random(seed, trials),
        *_in_training(seed, steps),
    )
    return replace(without_evidence(seed), evidence=evidence)


def without_evidence(seed: int = 0) -> Claim:
    """The claim without its evidence, which takes time to compute."""
    return Claim(
        name="saturation",
        title="Saturation: what becomes of the gradient when scores are not scaled",
        statement=STATEMENT,
        derivation=Derivation((*_jacobian(), *_norm(), *_bounds(), *_sharpening()), PROSE_SYMBOLS, shown=True),
        corrections=CORRECTIONS,
        sources=("saturation (a)",),
        figure=lambda: _figure(seed),
    )


def _jacobian() -> list[Step]:
    return [
        Step(
            r"\frac{\partial a_i}{\partial s_j}",
            "the derivative of one weight with respect to one score",
            "",
            symbols=SOFTMAX,
        ),
        Step(
            r"(\operatorname{diag}(a) - a a^T)_{ij}", "the quotient rule: $e^{s_i}$ over the sum, each differentiated"
        ),
    ]


def _norm() -> list[Step]:
    return [
        Step(r"\|\operatorname{diag}(a) - a a^T\|_F^2", "its squared Frobenius norm", "", symbols=SOFTMAX),
        Step(
            r"\sum_i a_i^2 (1 - a_i)^2 + 2 \sum_{i<j} a_i^2 a_j^2",
            "diagonal entries $a_i (1 - a_i)$; every other entry $-a_i a_j$ stands twice",
        ),
        Step(r"\|a\|^2 - 2 \sum_i a_i^3 + \|a\|^4", "multiplied out: the two sums of fourth powers join"),
        Step(
            r"(\sum_i a_i (1 - a_i))^2 - \sum_{i \ne j} a_i a_j (1 - a_i - a_j)",
            "the squared trace less twice the principal minors of order two",
        ),
        Step(
            r"(\sum_i a_i (1 - a_i))^2",
            "weights: none negative, two of them at most 1 together; nothing is taken away where $n = 2$",
            "<=",
            attained={"s": (0, 0)},
        ),
        Step(r"(1 - \|a\|^2)^2", r"the weights sum to 1: $\|J\|_F$ is at most the trace of $J$"),
    ]


def _bounds() -> list[Step]:
    return [
        Step(r"1 - \|a\|^2", "the trace itself; from here on any vector $a$ will do", "", symbols=WEIGHTS),
        Step(
            r"1 - \max(a)^2",
            "one square alone is no more than all of them",
            "<=",
            attained={"a": ("1/2", 0, 0)},
        ),
        Step(r"2(1 - \max(a)) - (1 - \max(a))^2", "multiplied out"),
        Step(r"2(1 - \max(a))", "a square is taken away", "<=", attained={"a": (1, 0, 0)}),
        Step(r"2 - 2 \max(a)", r"multiplied out: $\|J\|_F \le 2 (1 - \max(a))$"),
    ]


def _sharpening() -> list[Step]:
    return [
        Step(r"\frac{a_i}{a_j}", "scores $t$ times as large", "", symbols=HEATED),
        Step(
            r"e^{t (s_i - s_j)}", "the sum below the fractions falls away: every ratio moves away from 1 as $t$ grows"
        ),
        Step(r"\frac{\partial a_i}{\partial t}", "how a weight answers to the scale of the scores", "", symbols=HEATED),
        Step(
            r"a_i (s_i - \sum_j a_j s_j)", "positive for the best key: larger scores only sharpen, they never flatten"
        ),
    ]


def jacobian_norm(weights: Sequence[Fraction]) -> Fraction:
    """‖diag(a) − aaᵀ‖_F², from the matrix itself.

    >>> jacobian_norm([Fraction(1, 2), Fraction(1, 2)])
    Fraction(1, 4)
    """
    entries = [(a if i == j else 0) - a * b for i, a in enumerate(weights) for j, b in enumerate(weights)]
    return sum((entry**2 for entry in entries), Fraction(0))


def partitions(total: int, parts: int) -> Iterator[tuple[Fraction, ...]]:
    """All weights with denominator `total`."""

    def counts(left: int, parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (left,)
            return
        for first in range(left + 1):
            for rest in counts(left - first, parts - 1):
                yield (first, *rest)

    for count in counts(total, parts):
        yield tuple(Fraction(c, total) for c in count)


def _all_cases(norm=jacobian_norm, factor: int = 2) -> list[Evidence]:
    """Identity and bounds in fractions, for every weight vector of a grid."""
    formula, sharp, published, slack, cases = Fraction(0), Fraction(0), Fraction(0), Fraction(10), 0
    for total, parts in ((12, 2), (12, 3), (10, 4), (7, 5)):
        for a in partitions(total, parts):
            cases += 1
            squares, cubes, most = sum(x**2 for x in a), sum(x**3 for x in a), max(a)
            size = norm(a)
            formula = max(formula, abs(size - (squares - 2 * cubes + squares**2)))
            sharp = max(sharp, size - (factor * (1 - most)) ** 2)
            published = max(published, size - (parts * (1 - most)) ** 2)
    near = Fraction(999, 1000)
    slack = 4 - jacobian_norm((near, 1 - near)) / (1 - near) ** 2
    return [
        measured(
            r"$\|J\|_F^2 = \|a\|^2 - 2 \sum_i a_i^3 + \|a\|^4$ in fractions, "
            f"at all {cases} weights of a grid",
            float(formula),
            0.0,
        ),
        measured(r"$\|J\|_F \le 2 (1 - \max(a))$ there: the largest excess of the squares", float(sharp), 0.0),
        measured(r"$\|J\|_F \le n (1 - \max(a))$, the bound of the solution, there", float(published), 0.0),
        measured(
            r"no factor below 2 would do: $4 - (\frac{\|J\|_F}{1 - \max(a)})^2$ for the weights $(0.999, 0.001)$",
            float(slack),
            4 * 2e-3,
        ),
    ]


def _differentiated(seed: int, keys: int = 7, heat: float = 1.0) -> list[Evidence]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(keys, generator=generator, dtype=torch.float64)
    found = torch.autograd.functional.jacobian(lambda s: torch.softmax(heat * s, 0), scores)
    assert isinstance(found, torch.Tensor)
    a = torch.softmax(scores, 0)
    residual = float((found - (torch.diag(a) - torch.outer(a, a))).abs().max())
    what = r"torch's derivative of softmax against $\operatorname{diag}(a) - a a^T$"
    return [measured(what, residual, 8 * torch.finfo(a.dtype).eps)]


def _in_probability(seed: int, draws: int, width: float = 1024, draw=drawn_sizes) -> list[Evidence]:
    import numpy as np

    generator = np.random.default_rng(seed)
    weights, _, _ = draw(generator, width, draws, scaled=False)
    unsaturated = float((weights.max(1) < 0.99).mean())
    far = 1e5
    weights, gap, size = draw(generator, far, draws, scaled=False)
    tie = np.exp(-gap)
    least = float((1 - weights.max(1) - tie / (1 + tie)).min())
    density = top_gap_density(KEYS)
    middle = float(np.median(draw(generator, 1024, draws, scaled=True)[2]))
    share = float((draw(generator, 4096, draws, scaled=True)[2] < middle).mean())
    return [
        measured(
            rf"$n = {KEYS}$, $d = 1024$, unscaled: how often $\max(a) < 0.99$, against 0.23, from {draws} draws",
            abs(unsaturated - 0.23),
            0.005 + 4.5 * math.sqrt(0.23 * 0.77 / draws),
        ),
        # Near ties of two keys carry the mean: their size integrates to 1 and its square to 1/3, each times f(0)/√d.
        # A third key as near is rarer by another 1/√d, with density below 0.4(n − 2), and adds at most twice that.
        measured(
            r"$\sqrt{d}$ times the mean of $\|J\|_F$ at $d = 10^5$ against its limit, the density at 0 of the gap "
            f"between the two best scores, {density:.3f}",
            abs(float(size.mean()) * math.sqrt(far) - density),
            4.5 * math.sqrt(density * math.sqrt(far) / (3 * draws)) + KEYS * density / math.sqrt(far),
        ),
        measured(
            r"$1 - \max(a)$ is never below $\frac{1}{1 + e^g}$ with $g$ the gap between the two best scores, so that a "
            "near tie never saturates",
            max(0.0, -least),
            8 * float(np.finfo(float).eps),
        ),
        # Width enters scaled scores through ‖q‖/√d alone, whose square has variance 2/d.
        measured(
            r"with scaling, the share of $\|J\|_F$ at $d = 4096$ below its median at $d = 1024$, against $\frac{1}{2}$",
            abs(share - 0.5),
            4.5 * math.sqrt(0.5 / draws) + 2 / 1024,
        ),
    ]


def _at_random(seed: int, trials: int, width: int = 1024, factor: float = 2, scale: float = 1.0) -> list[Evidence]:
    """The bound, and the median without scaling, for standard normal queries and keys."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(trials, 1, width, generator=generator, dtype=torch.float64)
    key = torch.randn(trials, KEYS, width, generator=generator, dtype=torch.float64)
    a = torch.softmax(scale * query @ key.transpose(1, 2), -1)[:, 0]
    sizes = (torch.diag_embed(a) - a[:, :, None] * a[:, None, :]).flatten(1).norm(dim=1)
    worst = float((sizes - factor * (1 - a.amax(1))).max())
    return [
        measured(
            rf"$\|J\|_F - 2 (1 - \max(a))$ for {trials} random queries",
            max(0.0, worst),
            16 * torch.finfo(a.dtype).eps,
        ),
        measured(
            rf"median $\|J\|_F$ without scaling, $n = {KEYS}$, $d = {width}$",
            float(sizes.median()),
            median_bound(width, KEYS, trials),
        ),
    ]


def _in_training(seed: int, steps: int, run=trained) -> list[Evidence]:
    raw, scaled = run(False, steps, seed), run(True, steps, seed)
    return [
        measured(
            f"{steps} steps of training, $n = {KEYS}$, $d = 1024$: median size of the gradient at $q$, unscaled over "
            "scaled, the largest",
            max(a / b for a, b in zip(raw[0], scaled[0], strict=True)),
            1.0,
        ),
        measured(
            "the mean size of that gradient, scaled over unscaled in those steps, the largest: the mean does not "
            "vanish",
            max(b / a for a, b in zip(raw[1], scaled[1], strict=True)),
            1.0,
        ),
    ]


def _figure(seed: int, trials: int = 200) -> str:
    from ..figures import Axis, chart
    from ..figures import Line as Curve

    widths = [4, 16, 64, 256, 1024]
    curves = []
    for scaled, name in ((False, "unscaled"), (True, "divided by √d")):
        found = {width: gradients(width, scaled, trials, seed) for width in widths}
        curves.append(Curve(f"{name}, median", [(w, float(g.quantile(0.5))) for w, g in found.items()]))
        curves.append(Curve(f"{name}, one in ten above", [(w, float(g.quantile(0.9))) for w, g in found.items()]))
        if not scaled:
            curves.append(Curve(f"{name}, mean", [(w, float(g.mean())) for w, g in found.items()], dashed=True))
    return chart(
        "Without scaling the typical gradient vanishes, though its mean does not",
        Axis("width d", "", "log"),
        Axis("size of the gradient at a query, ‖∂loss/∂q‖", "", "log"),
        curves,
        note=f"{KEYS} keys, {trials} queries at each width, everything standard normal, seed {seed}.",
    )


CORRECTIONS = (
    Correction(
        "saturation (a)",
        r"For every $\epsilon$ a large enough $d$ makes the largest weight exceed $1 - \epsilon$.",
        r"For fixed $n$ this holds in probability, not surely: at $n = 16$, $d = 1024$, unscaled, $\max(a) < 0.99$ "
        r"with probability 0.23, and that probability falls only as $\frac{1}{\sqrt{d}}$, since the two best scores "
        "can be close.",
    ),
    Correction(
        "saturation (a)",
        r"$\|J\|_F^2 < n^2 \epsilon^2$, which grows with the number of keys.",
        r"Right, and a sharper bound has no $n$: "
        r"$\|J\|_F \le tr(J) = 1 - \|a\|^2 \le 2 (1 - \max(a)) < 2 \epsilon$. Its last step, written as 'at most', is "
        r"an equality: $\epsilon^2 + (n - 1) \epsilon^2 + n (n - 1) \epsilon^2 = n^2 \epsilon^2$.",
    ),
    Correction(
        "saturation (a)",
        "The Jacobian goes infinitely small, so gradients vanish.",
        r"The typical one does. The mean of $\|J\|_F$ falls only as $\frac{1}{\sqrt{d}}$, the gradient that reaches "
        r"$q$ is multiplied by keys of length $\sqrt{d}$, and its mean is larger without scaling than with it: rare "
        "near ties carry it. Medians vanish.",
    ),
    Correction(
        "saturation (a)",
        "The variance of $s_i$ is written as a sum of squares alone, with the key's index on the query's entry.",
        "The cross terms are there and vanish, as the claim on scores shows; the entry is $q_j$.",
    ),
    Correction(
        "scaling, summary",
        "Large scores may also give a very flat softmax.",
        r"$\frac{\partial a_i}{\partial t} = a_i (s_i - \sum_j a_j s_j)$ for scores $t s$: the best key's weight never "
        "falls as they grow.",
    ),
)
