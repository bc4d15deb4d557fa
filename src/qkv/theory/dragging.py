"""One entry of the input of a norm is dragged: which outputs move, by how much, and what stays as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError, ShapeError, complaint
from .normalisation import CASES, length_left, made

Grid = list[list[float]]


@dataclass(frozen=True)
class Normalised:
    """A vector of layer normalisation, or a component of batch normalisation over the batch, as it came out.

    sigma is the spread of what went in; the mean of what came out is β, and its distance from β1 `length`, which
    should be `said`: |γ|√d·σ/√(σ² + ε).
    """

    mean: float
    sigma: float
    length: float
    said: float


@dataclass(frozen=True)
class Drag:
    before: Grid
    after: Grid
    jacobian: list[list[Grid]]  # ∂y_ij/∂x_kl where the drag begins
    depends: list[list[list[list[bool]]]]  # whether that is more than rounding
    expected: list[list[list[list[bool]]]]  # whether y_ij is made from x_kl at all
    normalised: list[Normalised]  # none in evaluation, where the batch is not normalised by itself
    stored: tuple[list[float], list[float]] | None  # mean and variance that evaluation uses

    @property
    def difference(self) -> Grid:
        pairs = zip(self.before, self.after, strict=True)
        return [[new - old for old, new in zip(*rows, strict=True)] for rows in pairs]


def drag(
    x: Sequence[Sequence[float]],
    row: int,
    column: int,
    by: float,
    *,
    kind: str = "layer",
    training: bool = True,
    epsilon: float = 1e-5,
    gamma: float = 1.0,
    beta: float = 0.0,
) -> Drag:
    """torch's LayerNorm or BatchNorm1d on vectors as rows, before and after x[row][column] grows `by`.

    Batch normalisation in evaluation uses what it stored from one pass over the batch as it was: its mean, and its
    variance with B − 1 in the divisor, as torch keeps it. One vector alone leaves its mean, which is itself; the
    variance that is stored stays that of a new layer, 1.

    >>> moved = drag([[1.0, 2.0, 4.0], [3.0, 5.0, 0.0]], 0, 1, 1.0)
    >>> [[change != 0 for change in row] for row in moved.difference]
    [[True, True, True], [False, False, False]]
    """
    import torch

    start = torch.tensor(x, dtype=torch.float64)
    if start.ndim != 2 or not start.numel():
        raise ShapeError(complaint("x", f"shape {tuple(start.shape)}", "vectors as rows"))
    batch, width = start.shape
    if kind not in ("layer", "batch"):
        raise OptionError(complaint("kind", repr(kind), "layer or batch"))
    if kind == "batch" and training and batch < 2:
        raise ShapeError(complaint("x", "one vector", "two or more: one alone has no spread over the batch"))
    end = start.clone()
    end[row, column] += by

    norm = _norm(kind, width, training, start, epsilon, gamma, beta)
    with torch.no_grad():
        before, after = norm(start), norm(end)
    jacobian: Any = torch.autograd.functional.jacobian(norm, start)
    rule = next(rule for name, trains, _, rule in CASES if (name, trains) == (kind, training))
    places = [[(i, j) for j in range(width)] for i in range(batch)]
    over = {"layer": 1, "batch": 0}[kind]
    evaluating = kind == "batch" and not training
    variance = norm.running_var if evaluating else start.var(dim=over, correction=0, keepdim=True)
    # What is written with a formula cancels to a few eps of its terms, which are of the order of γ/√(σ² + ε).
    noise = 16 * start.numel() * torch.finfo(torch.float64).eps * abs(gamma) / (variance + epsilon).sqrt()
    depends = jacobian.abs() > noise.expand(batch, width)[:, :, None, None]
    return Drag(
        before.tolist(),
        after.tolist(),
        jacobian.tolist(),
        depends.tolist(),
        [[[[rule(*here, *there) for there in line] for line in places] for here in rows] for rows in places],
        [] if evaluating else _normalised(end, after, over, epsilon, gamma, beta),
        (norm.running_mean.tolist(), norm.running_var.tolist()) if evaluating else None,
    )


def _norm(kind: str, width: int, training: bool, x: Any, epsilon: float, gamma: float, beta: float) -> Any:
    import torch

    options = {"momentum": 1.0} if kind == "batch" else {}
    norm = made(kind, width, eps=epsilon, **options).requires_grad_(False)
    torch.nn.init.constant_(norm.weight, gamma)
    torch.nn.init.constant_(norm.bias, beta)
    if kind == "batch" and len(x) == 1:
        norm.running_mean.copy_(x[0])
    else:
        norm(x)  # what evaluation finds stored
    return norm.train(training)


def _normalised(x: Any, y: Any, over: int, epsilon: float, gamma: float, beta: float) -> list[Normalised]:
    means, sigmas = y.mean(dim=over).tolist(), x.std(dim=over, correction=0).tolist()
    lengths = (y - beta).norm(dim=over).tolist()
    said = [length_left(gamma, x.shape[over], sigma / math.sqrt(sigma**2 + epsilon)) for sigma in sigmas]
    return [Normalised(*each) for each in zip(means, sigmas, lengths, said, strict=True)]
