"""Softmax over scores q·k: how peaked it is, how large its Jacobian and the gradient behind it, over draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
class Softmaxed:
    """Rows of scores, the best first, and what softmax makes of them; `rest` is 1 − max(a) without its rounding, which
    is all that is left of it where softmax is nearly hard."""

    scores: Any  # less the best: none is above 0
    weights: Any
    rest: Any

    @classmethod
    def of(cls, ordered) -> Softmaxed:
        """Of rows that descend.

        >>> import numpy as np
        >>> f"{Softmaxed.of(np.array([[3.0, -77.0]])).rest[0]:.4g}", f"{math.exp(-80):.4g}"
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

        squares = self.weights**2
        others = squares[:, 1:].sum(1)
        pairs = squares[:, 0] * others + (squares[:, 1:] * (others[:, None] - squares[:, 1:])).sum(1) / 2
        return np.sqrt((squares * self._left**2).sum(1) + 2 * pairs)

    @property
    def entry(self):
        """max |J_ij|: a row's entry on the diagonal outweighs all its others, which sum to it."""
        return (self.weights * self._left).max(1)


def descending(rows):
    import numpy as np

    return -np.sort(-rows, axis=1)


class SoftmaxDraws:
    """`count` queries, each with keys, values and a target of its own, the same for every width and scale, so that what
    differs between two of them is not chance.

    Given q, the scores of keys with components of mean μ and deviation σ are a common shift, which softmax does not
    see, and σ‖q‖ times independent standard normals. ‖q‖² is σ² times a noncentral chi-square, and across q a key is
    normal: no vector need be drawn. With the loss half the squared distance of the output from the target, g = ∂loss/∂s
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
        soft = Softmaxed.of((scale * sigma * length)[:, None] * self.normals)
        a = soft.weights
        error = (a[:, None, :] @ self.values)[:, 0] - self.target
        slope = (self.values @ error[:, :, None])[:, :, 0]
        slope -= slope[:, :1]  # against the best key's, so that nothing is lost where its weight is nearly 1
        slope = a * (slope - (a * slope).sum(1, keepdims=True))
        along = (self.normals * slope).sum(1)
        gradient = scale * sigma * np.sqrt(along**2 + (slope**2).sum(1) * across)
        return Sizes(soft.most, soft.entropy, soft.jacobian, soft.entry, gradient)


def attended(width: int, *, scaled: bool, keys: int, seed: int, mean: float = 0.0, sigma: float = 1.0):
    """One query with real vectors, by a real call of attention and torch's own gradient: the weights, and the Sizes."""
    import numpy as np
    import torch

    import qkv

    generator = np.random.default_rng(seed)
    vectors = torch.from_numpy(mean + sigma * generator.standard_normal((1 + keys, width)))
    query, key = vectors[:1].clone().requires_grad_(), vectors[1:]
    value = torch.from_numpy(generator.standard_normal((keys, VALUE_WIDTH)))
    target = torch.from_numpy(generator.standard_normal((1, VALUE_WIDTH)))
    similarity = qkv.Softmax(scale=None if scaled else 1.0)
    out, weights = qkv.attention(query, key, value, similarity=similarity, form="dense", return_weights=True)
    (slope,) = torch.autograd.grad(0.5 * ((out - target) ** 2).sum(), query)
    scores = (query.detach() @ key.T).numpy()
    soft = Softmaxed.of(descending(scores / math.sqrt(width) if scaled else scores))
    gradient = slope.norm(dim=-1).numpy()
    return weights[0].detach().tolist(), Sizes(soft.most, soft.entropy, soft.jacobian, soft.entry, gradient)
