"""The kernels' claim on real runs: both orders of the products, counted; qkv's backends; decoding."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any

from ..cost import count
from ..similarity import Polynomial
from .claim import Evidence, measured

Rows = Sequence[Sequence["Tallied"]]


def quadratic_features(width: int) -> dict[tuple[int, ...], int]:
    """Each feature as the coordinates that it multiplies, `width` for the constant 1, and the square of its factor.

    >>> quadratic_features(2)
    {(0, 0): 1, (1, 1): 1, (0, 1): 2, (0, 2): 2, (1, 2): 2, (2, 2): 1}
    """
    squares = {(i, i): 1 for i in range(width)}
    mixed = dict.fromkeys(combinations(range(width), 2), 2)
    return squares | mixed | {(i, width): 2 for i in range(width)} | {(width, width): 1}


class Tallied:
    """An exact number that counts the sums and products made of it."""

    made = 0

    def __init__(self, value: Fraction | int) -> None:
        self.value = Fraction(value)

    def __add__(self, other: Tallied) -> Tallied:
        Tallied.made += 1
        return Tallied(self.value + other.value)

    def __mul__(self, other: Tallied) -> Tallied:
        Tallied.made += 1
        return Tallied(self.value * other.value)


def dot(left: Sequence[Tallied], right: Sequence[Tallied]) -> Tallied:
    """A product and a sum for each pair, the sum into an empty place included."""
    total = Tallied(0)
    for a, b in zip(left, right, strict=True):
        total = total + a * b
    return total


def by_scores(queries: Rows, keys: Rows, values: Rows) -> list[list[Fraction]]:
    """The equation as it stands, with (q·k + 1)²."""
    answers = []
    for query in queries:
        sims = [(dot(query, key).value + 1) ** 2 for key in keys]
        above = [dot([Tallied(sim) for sim in sims], column) for column in zip(*values, strict=True)]
        answers.append([one.value / sum(sims) for one in above])
    return answers


def by_sums(queries: Rows, keys: Rows, values: Rows) -> list[list[Fraction]]:
    """Sums over the keys first, one more column for the sum below the fraction; no root is taken: √2·√2 is 2."""
    features = quadratic_features(len(queries[0]))

    def monomials(row: Sequence[Tallied]) -> list[Tallied]:
        extended = [one.value for one in row] + [Fraction(1)]
        return [Tallied(prod(extended[place] for place in places)) for places in features]

    by_feature = list(zip(*(monomials(key) for key in keys), strict=True))
    columns = [*zip(*values, strict=True), [Tallied(1)] * len(values)]
    sums = [[dot(feature, column) for feature in by_feature] for column in columns]
    answers = []
    for query in queries:
        weighted = [Tallied(one.value * twice) for one, twice in zip(monomials(query), features.values(), strict=True)]
        *above, below = [dot(weighted, column) for column in sums]
        answers.append([one.value / below.value for one in above])
    return answers


def counted_runs(
    seed: int, length: int = 5, width: int = 3, value_width: int = 2, rewritten: Callable[..., Any] = by_sums
) -> list[Evidence]:
    """Both orders of the products in exact arithmetic: the same answer, and the work that `qkv.cost` says."""
    draw = random.Random(seed)
    rows = [
        [[Tallied(draw.randint(-4, 4)) for _ in range(w)] for _ in range(length)] for w in (width, width, value_width)
    ]
    answers, made = [], []
    for run in (by_scores, rewritten):
        Tallied.made = 0
        answers.append(run(*rows))
        made.append(Tallied.made)
    shapes = ((length, width), (length, width), (length, value_width))
    backends = [
        count(*shapes, backend=backend, similarity=Polynomial(2, 1.0)).products for backend in ("reference", "linear")
    ]
    unlike = sum(a != b for one, other in zip(*answers, strict=True) for a, b in zip(one, other, strict=True))
    return [
        measured("both orders of the products in exact fractions: entries of the answer that differ", unlike, 0),
        measured("sums and products of the run with scores, against `qkv.cost`", abs(made[0] - backends[0]), 0),
        measured(
            "sums and products of the run with sums over the keys, against `qkv.cost`", abs(made[1] - backends[1]), 0
        ),
    ]


def linear_form(
    seed: int, length: int, width: int, value_width: int, attend: Callable[..., Any] | None = None
) -> Evidence:
    """qkv's backend with sums over the keys against the equation with the matrix of similarities."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(length, width, dtype=torch.float64, generator=generator) for _ in range(2))
    v = torch.randn(length, value_width, dtype=torch.float64, generator=generator)
    sim = (q @ k.T + 1) ** 2
    said = (sim @ v) / sim.sum(-1, keepdim=True)
    similarity = qkv.Polynomial(2, 1.0)
    attend = attend or (lambda *qkv_: qkv.attention(*qkv_, similarity=similarity, backend="linear"))
    residual = (attend(q, k, v) - said).abs().max().item()
    # Sums of F·N products round on the scale of Σ|φ(q)||φ(k)||v|, which is at most (|q||k| + 1)² |v|.
    size = ((q.norm(dim=-1, keepdim=True) * k.norm(dim=-1) + 1) ** 2).sum(-1) / sim.sum(-1)
    terms = length * (width + 1) * (width + 2) // 2
    bound = 4 * terms * torch.finfo(torch.float64).eps * (size.max() * v.abs().max()).item()
    return measured("`backend='linear'` of the quadratic kernel against the matrix of similarities", residual, bound)


def listing_subscripts(values: str = "bhn,bhv->bhv", output: str = "bhv,bdv->bd") -> Evidence:
    """How many of the multi-query listing's two products torch can do when all sizes differ."""
    import torch

    b, h, n, v, d = 2, 3, 5, 7, 11
    weights, cached, heads = torch.ones(b, h, n), torch.ones(b, n, v), torch.ones(b, h, v)
    done = 0
    for subscripts, operands in ((values, (weights, cached)), (output, (heads, torch.ones(h, v, d)))):
        try:
            torch.einsum(subscripts, *operands)
            done += 1
        except RuntimeError:
            pass
    return measured(
        "products of the multi-query listing, as printed, that torch can do with sizes that differ", done, 0
    )


def decoding(seed: int, *, scaled: bool = True, handed_on: bool = True) -> Evidence:
    """Multi-query steps as they should be listed, token by token, against causal attention over all tokens."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(seed)
    b, h, n, width, out = 2, 3, 5, 7, 11
    q = torch.randn(b, h, n, width, dtype=torch.float64, generator=generator)
    k = torch.randn(b, 1, n, width, dtype=torch.float64, generator=generator)
    v = torch.randn(b, 1, n, out, dtype=torch.float64, generator=generator)
    whole = qkv.attention(q, k, v, mask=qkv.Causal(), backend="reference")
    keys, values, steps = k[:, 0, :0], v[:, 0, :0], []
    for t in range(n):
        new_keys, new_values = torch.cat([keys, k[:, 0, t : t + 1]], 1), torch.cat([values, v[:, 0, t : t + 1]], 1)
        logits = torch.einsum("bhk,bnk->bhn", q[:, :, t], new_keys) / (width**0.5 if scaled else 1)
        steps.append(torch.einsum("bhn,bnv->bhv", logits.softmax(-1), new_values))
        if handed_on:
            keys, values = new_keys, new_values
    residual = (torch.stack(steps, 2) - whole).abs().max().item()
    # A score is off by at most its terms times eps times |q||k|, and each weight by twice that.
    scores = (q.norm(dim=-1).max() * k.norm(dim=-1).max()).item()
    bound = 4 * (width * scores + n) * torch.finfo(torch.float64).eps * v.abs().max().item()
    return measured("multi-query steps with scaling, the cache handed on, against causal attention", residual, bound)
