"""How large softmax's Jacobian and the gradients behind it are: by law, by draws, and in real calls of attention."""

from __future__ import annotations

import math

KEYS = 16


def drawn_sizes(generator, width: float, count: int, *, scaled: bool, keys: int = KEYS):
    """Weights, top gaps and ‖J‖_F of `count` queries with standard normal keys of their own.

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
