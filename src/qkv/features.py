"""Feature maps φ for sim(q, k) = φ(q)·φ(k), each a callable (..., width) → (..., features)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import OptionError, ShapeError, complaint


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1: positive everywhere, so the sum below the fraction never vanishes.

    >>> elu1(torch.tensor([0.0, 2.0, -40.0]))
    tensor([1.0000e+00, 3.0000e+00, 4.2484e-18])
    """
    # Not F.elu(x) + 1: beside 1, what is below its last digit is lost, and a sum of nothing but that vanishes.
    return x.clamp(max=0).exp() + F.relu(x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0): never negative; two vectors with no positive coordinate in common give 0."""
    return F.relu(x)


def identity(x: Tensor) -> Tensor:
    """x itself: sim(q, k) = q·k, which has both signs, so that sums can cancel."""
    return x


def squared(x: Tensor) -> Tensor:
    """x² coordinate by coordinate: never negative."""
    return x.square()


@dataclass(frozen=True)
class polynomial:  # noqa: N801 - called like the functions beside it
    """The explicit map of (q·k + offset)^degree, each monomial once.

    For degree 2 and offset 1: the squares, √2 times the products of two coordinates, √2 times the
    coordinates, and 1: d(d+3)/2 + 1 features for width d. In general C(d + degree, degree).

    >>> phi = polynomial(degree=2)
    >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    >>> phi(q).shape, round((phi(q) @ phi(k)).item(), 4), ((q @ k + 1) ** 2).item()
    (torch.Size([6]), 4.0, 4.0)

    offset must not be negative: (q·k − c)^n is no inner product of real features. `Polynomial` takes
    any offset.
    """

    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 1:
            raise OptionError(complaint("degree", repr(self.degree), "a whole number, 1 or more"))
        if not (math.isfinite(self.offset) and self.offset >= 0):
            raise OptionError(
                complaint("offset", self.offset, "0 or more", "Polynomial(degree, offset) takes any offset")
            )

    def features(self, width: int) -> int:
        free = width if self.offset else width - 1
        return math.comb(free + self.degree, self.degree)

    def __call__(self, x: Tensor) -> Tensor:
        indices, weights = _monomials(x.shape[-1], self.degree, self.offset > 0)
        # Index `width` stands for the constant √offset, a coordinate that every vector has.
        constant = x.new_full((*x.shape[:-1], 1), math.sqrt(self.offset))
        extended = torch.cat([x, constant], dim=-1)
        product = extended[..., indices[0].to(x.device)]
        for column in indices[1:]:
            product = product * extended[..., column.to(x.device)]
        return product * weights.to(x.device, x.dtype)


def _monomials(width: int, degree: int, with_constant: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    """Which coordinates each monomial multiplies, and the root of how often it comes up in the power."""
    return _remembered_monomials(width, degree, with_constant)


# What torch.compiler.assume_constant_result does, without loading the compiler for those who do not compile.
_monomials._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _remembered_monomials(width: int, degree: int, with_constant: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    monomials = sorted(
        combinations_with_replacement(range(width + 1 if with_constant else width), degree),
        # Pure powers first, then mixed ones, then those of a lower degree, the constant last.
        key=lambda m: (m.count(width), len(set(m)), m),
    )
    ways = [math.factorial(degree) // math.prod(math.factorial(m.count(i)) for i in set(m)) for m in monomials]
    columns = tuple(torch.tensor(column, device="cpu") for column in zip(*monomials, strict=True))
    return columns, torch.tensor(ways, dtype=torch.float64, device="cpu").sqrt()


class positive_random:  # noqa: N801 - called like the functions beside it
    """Random features whose product is exp(scale·q·k) on average, and always positive.

    φ(x)_r = exp(ω_r·x√scale − scale·|x|²/2) / √count, with ω_r Gaussian: softmax attention, approximated.

    >>> phi = positive_random(width=4, count=4096, seed=1)
    >>> q, k = torch.tensor([0.3, -0.2, 0.5, 0.1]), torch.tensor([0.1, 0.4, 0.2, -0.3])
    >>> bool((phi(q) @ phi(k) - torch.exp(q @ k / 2)).abs() < 0.05)
    True

    scale: None is 1/√width, as in `Softmax`. orthogonal draws have a smaller variance. The same seed
    gives the same features on every machine.
    """

    def __init__(
        self,
        width: int,
        count: int = 256,
        *,
        seed: int = 0,
        scale: float | None = None,
        orthogonal: bool = True,
    ) -> None:
        if width < 1 or count < 1:
            raise OptionError(complaint("width, count", (width, count), "whole numbers, 1 or more"))
        if scale is not None and not (math.isfinite(scale) and scale > 0):
            raise OptionError(complaint("scale", scale, "a positive number, or None for 1/√width"))
        self.width, self.count, self.seed, self.orthogonal = width, count, seed, orthogonal
        self.scale = 1.0 / math.sqrt(width) if scale is None else scale
        self._directions = self._draw()

    def __repr__(self) -> str:
        return f"positive_random(width={self.width}, count={self.count}, seed={self.seed})"

    def features(self, width: int) -> int:
        return self.count

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.width:
            raise ShapeError(complaint("positive_random", f"width {x.shape[-1]}", f"width {self.width}, as drawn"))
        x = x * math.sqrt(self.scale)
        projected = x @ self._directions.to(x.device, x.dtype).T
        return torch.exp(projected - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(self.count)

    def redraw(self, seed: int) -> positive_random:
        """The same map with other directions: errors of several draws are independent, and their mean is smaller.

        >>> phi = positive_random(width=4, count=8)
        >>> phi.redraw(seed=3)
        positive_random(width=4, count=8, seed=3)
        """
        return positive_random(self.width, self.count, seed=seed, scale=self.scale, orthogonal=self.orthogonal)

    def error(self, query: Tensor, key: Tensor) -> Tensor:
        """The standard error of φ(q)·φ(k) as a part of exp(scale·q·k): (…, q, width), (…, k, width) → (…, q, k).

        √((exp(scale·|q + k|²) − 1) / count) for independent directions; orthogonal ones are better than that.

        >>> phi = positive_random(width=4, count=256)
        >>> phi.error(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]))
        tensor([[0.0000, 0.0819]])
        """
        for name, x in (("query", query), ("key", key)):
            if x.shape[-1] != self.width:
                raise ShapeError(complaint(name, f"width {x.shape[-1]}", f"width {self.width}, as drawn"))
        q, k = query.unsqueeze(-2), key.unsqueeze(-3)
        return torch.sqrt(torch.expm1(self.scale * (q + k).square().sum(-1)) / self.count)

    def _draw(self) -> Tensor:
        generator = torch.Generator("cpu").manual_seed(self.seed)
        gaussian = torch.randn(self.count, self.width, generator=generator, dtype=torch.float64, device="cpu")
        if not self.orthogonal:
            return gaussian
        # Blocks of orthogonal directions, each with the length of an independent Gaussian vector.
        squares = [
            torch.randn(self.width, self.width, generator=generator, dtype=torch.float64, device="cpu")
            for _ in range(0, self.count, self.width)
        ]
        bases, triangles = torch.linalg.qr(torch.stack(squares))
        bases = bases * triangles.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        return bases.flatten(0, 1)[: self.count] * gaussian.norm(dim=-1, keepdim=True)
