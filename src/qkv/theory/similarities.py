"""Similarities on the same data: their weights and differences, softmax as its temperature falls, and the length from
which sums over the keys are less work than a matrix of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cost import count
from ..cost.planning import first_size
from ..errors import OptionError, complaint
from ..masks import Mask
from ..similarity import AnySimilarity, Argmax, FeatureMap, Softmax

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES = ("random", "clustered", "repeated")
CLUSTERS, SPREAD = 3, 0.4


def sample(kind: str, tokens: int, width: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each (tokens, width) in float64.

    random: independent normal numbers. clustered: three clusters of tokens, one after the other; queries and keys of
    one cluster are similar. repeated: a sequence twice; a query is its token and a key the token before it, so that
    a query finds what followed its own token the last time, as induction heads do.

    >>> query, key, value = sample("repeated", 6, 4)
    >>> [float((query[2] - key[at]).norm()) for at in (0, 3)], bool((query[:3] == query[3:]).all())
    ([0.0, 0.0], True)
    """
    import torch

    if kind not in SAMPLES:
        raise OptionError(complaint("kind", repr(kind), f"one of {', '.join(SAMPLES)}"))
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    if kind == "clustered":
        centres, which = normal(CLUSTERS), torch.arange(tokens) * CLUSTERS // tokens
        return centres[which] + SPREAD * normal(tokens), centres[which] + SPREAD * normal(tokens), normal(tokens)
    if kind == "repeated":
        period = -(-tokens // 2)
        sequence = normal(period)[torch.arange(tokens) % period]
        # The sequence is periodic: the token before the first is the last of the period.
        return sequence, sequence[(torch.arange(tokens) - 1) % period], sequence.clone()
    return normal(tokens), normal(tokens), normal(tokens)


@dataclass(frozen=True)
class Compared:
    """One similarity compared with another. `entropy`: of each row, in nats, nan where the weights are no distribution;
    `weights_apart`, `out_apart`: the largest differences; `empty`: rows whose similarities sum to 0; `negative`:
    negative weights."""

    weights: Tensor
    out: Tensor
    entropy: Tensor
    weights_apart: float
    out_apart: float
    empty: int
    negative: int


def compared(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarities: Mapping[str, AnySimilarity],
    *,
    mask: Mask | None = None,
    reference: str = "softmax",
) -> dict[str, Compared]:
    """Each similarity on the same two-dimensional tensors, and its distance to the one named `reference`.

    >>> q, k, v = sample("random", 5, 3)
    >>> found = compared(q, k, v, {"softmax": Softmax(), "argmax": Argmax()})
    >>> float(found["argmax"].entropy.max()), found["softmax"].weights_apart
    (0.0, 0.0)
    """
    from ..functional import attention

    answers = {
        name: attention(query, key, value, similarity=each, mask=mask, return_weights=True)
        for name, each in similarities.items()
    }
    if reference not in answers:
        raise OptionError(complaint("reference", repr(reference), f"one of {', '.join(answers)}"))
    reference_out, reference_weights = answers[reference]
    return {
        name: Compared(
            weights,
            out,
            entropies(weights),
            float((weights - reference_weights).abs().max()),
            float((out - reference_out).abs().max()),
            int((weights == 0).all(-1).sum()),
            int((weights < 0).sum()),
        )
        for name, (out, weights) in answers.items()
    }


def entropies(weights: Tensor) -> Tensor:
    """−Σ a ln a of each row; nan where weights are negative or all 0.

    >>> import torch
    >>> entropies(torch.tensor([[0.5, 0.5], [1.0, 0.0], [1.5, -0.5], [0.0, 0.0]]))
    tensor([0.6931, 0.0000,    nan,    nan])
    """
    import torch

    found = torch.special.entr(weights).sum(-1)
    return found.masked_fill((weights < 0).any(-1) | (weights == 0).all(-1), math.nan)


def median(values: Tensor) -> float:
    """The median: of an even number of values, the mean of the middle two.

    >>> import torch
    >>> median(torch.tensor([[4.0, 1.0], [2.0, 8.0]]))
    3.0
    """
    import numpy as np

    return float(np.median(values.numpy()))


@dataclass(frozen=True)
class Cooled:
    """The distance of softmax from argmax at one temperature: the largest |difference of weights| of all rows, the
    median over rows, and the bounds of that median by the gaps."""

    temperature: float
    apart: float
    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Cooling:
    """`gap`: the smallest difference between the best and the second score of a row (inf: no row has two keys);
    `tied`: the number of rows where it is 0."""

    gap: float
    tied: int
    steps: tuple[Cooled, ...]


def cooling(query: Tensor, key: Tensor, temperatures: Sequence[float], *, mask: Mask | None = None) -> Cooling:
    """softmax(q·k / (τ√width)) compared with argmax as the temperature τ falls.

    With a gap Δ to the second best of n scores, 1/(1 + e^(Δ/τ)) ≤ 1 − max(a) ≤ (n − 1)e^(−Δ/τ) (see `argmax`), in
    every row, and so for the medians of the three. Rows that tie go to the average of the tied keys instead.

    >>> import torch
    >>> found = cooling(torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64), [0.1])
    >>> found.gap, [round(x, 5) for x in (found.steps[0].least, found.steps[0].apart, found.steps[0].most)]
    (0.5, [0.00669, 0.01981, 0.02021])
    """
    import torch

    from ..functional import attention

    root = math.sqrt(query.shape[-1])
    keys = key.shape[-2]
    values = torch.eye(keys, dtype=query.dtype)
    chosen = attention(query, key, values, similarity=Argmax(), mask=mask)
    # A query of zeros gives each visible key a weight above 0.
    seen = attention(query * 0, key, values, similarity=Softmax(), mask=mask) > 0
    scores = (query @ key.T / root).masked_fill(~seen, -math.inf)
    best = scores.topk(min(2, keys)).values
    counts = seen.sum(-1)
    gaps = (best[:, 0] - best[:, -1]).masked_fill(counts < 2, math.inf)
    rounding = 8 * torch.finfo(query.dtype).eps * best[:, 0].abs()
    steps = []
    for temperature in temperatures:
        soft = attention(query, key, values, similarity=Softmax(scale=1 / (temperature * root)), mask=mask)
        rows = (soft - chosen).abs().amax(-1)
        least = torch.sigmoid(-gaps / temperature)
        most = ((counts - 1) * torch.exp(-gaps / temperature)).clamp(max=1)
        steps.append(Cooled(temperature, float(rows.max()), *map(median, (rows, least, most))))
    return Cooling(float(gaps.min()), int((gaps <= rounding).sum()), tuple(steps))


@dataclass(frozen=True)
class Approximated:
    """The distance of random-feature weights from softmax's: in one draw, and the median of several."""

    features: int
    apart: float
    median: float


def approximated(
    query: Tensor,
    key: Tensor,
    counts: Sequence[int],
    *,
    scale: float | None = None,
    seed: int = 0,
    draws: int = 5,
    mask: Mask | None = None,
) -> list[Approximated]:
    """The largest |weight of positive random features − weight of softmax|, for each number of features; the draws
    use `seed` and the seeds after it.

    >>> q, k, v = sample("random", 6, 4)
    >>> few, many = approximated(q, k, [4, 4096])
    >>> few.median > 4 * many.median
    True
    """
    import torch

    from ..features import positive_random
    from ..functional import attention

    values = torch.eye(key.shape[-2], dtype=query.dtype)
    exact = attention(query, key, values, similarity=Softmax(scale=scale), mask=mask)
    found = []
    for number in counts:
        maps = (positive_random(query.shape[-1], number, seed=seed + n, scale=scale) for n in range(draws))
        weights = (attention(query, key, values, similarity=FeatureMap(each), mask=mask) for each in maps)
        apart = torch.stack([(each - exact).abs().max() for each in weights])
        found.append(Approximated(number, float(apart[0]), median(apart)))
    return found


def work(
    similarity: AnySimilarity, length: int, width: int, *, features: int | None = None, mask: Mask | None = None
) -> int:
    """Flops of one head over `length` tokens: sums over the keys where the similarity has features, the best key alone
    for argmax, else the scores of all pairs that the mask lets through.

    >>> work(Softmax(), 10, 64), 2 * 10**2 * (64 + 64 + 3)
    (26200, 26200)
    >>> from ..masks import Causal
    >>> work(Softmax(), 10, 64, mask=Causal()), 10 * 11 * (64 + 64 + 3)
    (14410, 14410)
    """
    backend = (
        "reference" if isinstance(similarity, Softmax) else "argmax" if isinstance(similarity, Argmax) else "linear"
    )
    shape = (length, width)
    return count(shape, shape, shape, similarity=similarity, mask=mask, backend=backend, features=features).flops


def pays_from(
    similarity: AnySimilarity, width: int, *, features: int | None = None, mask: Mask | None = None
) -> int | None:
    """The first length at which a similarity with features is less work than softmax: about as many tokens as features,
    and twice as many with a causal mask, which halves the scores but not the sums.

    >>> from ..masks import Causal
    >>> from ..similarity import Polynomial
    >>> pays_from(Polynomial(2), 64), pays_from(Polynomial(2), 64, mask=Causal())
    (2146, 4290)
    """

    def is_less(length: int) -> bool:
        sums = work(similarity, length, width, features=features, mask=mask)
        return sums < work(Softmax(), length, width, mask=mask)

    return first_size(is_less)
