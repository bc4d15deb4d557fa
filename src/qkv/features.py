"""Feature maps φ for sim(q, k) = φ(q)·φ(k), each a callable (..., width) → (..., features)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import DtypeError, OptionError, ShapeError, complaint
from .ops.kernels import ELU1, IDENTITY, POWER, RELU, SQUARED, FeatureRule
from .shapes import Float
from .similarity import AnySimilarity, FeatureMap, Polynomial

__all__ = ["elu1", "identity", "monomials", "polynomial", "positive_random", "relu", "squared"]


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1: positive everywhere, so the denominator never vanishes.

    Args:
        x: (..., width).

    Returns:
        (..., width).

    >>> elu1(torch.tensor([0.0, 2.0, -40.0]))
    tensor([1.0000e+00, 3.0000e+00, 4.2484e-18])
    """
    # Not F.elu(x) + 1, which rounds exp(x) away for very negative x: a sum of such terms would vanish.
    # Not clamp and relu, whose derivatives at NaN differ between versions of torch and may hide it.
    return torch.where((positive := x > 0), 0.0, x).exp() + torch.where(positive, x, 0.0)


def relu(x: Tensor) -> Tensor:
    """max(x, 0): never negative; two vectors with no positive coordinate in common give 0.

    Args:
        x: (..., width).

    Returns:
        (..., width).

    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return F.relu(x)


def identity(x: Tensor) -> Tensor:
    """x itself: sim(q, k) = q·k, which has both signs, so that the denominator can cancel.

    Args:
        x: (..., width).

    Returns:
        (..., width).

    >>> identity(torch.tensor([-1.0, 2.0]))
    tensor([-1.,  2.])
    """
    return x


def squared(x: Tensor) -> Tensor:
    """x² coordinate by coordinate: never negative.

    Args:
        x: (..., width).

    Returns:
        (..., width).

    >>> squared(torch.tensor([-1.0, 2.0]))
    tensor([1., 4.])
    """
    return x.square()


@dataclass(frozen=True)
class polynomial:  # noqa: N801 - called like the functions above
    """The explicit map of (q·k + offset)^degree, each monomial once.

    For degree 2 and offset 1: the squares, √2 times the products of two coordinates, √2 times the
    coordinates, and 1: d(d+3)/2 + 1 features for width d. In general C(d + degree, degree).

    Args:
        degree: an integer, 1 or more.
        offset: 0 or more: (q·k − c)^n is not an inner product of real features. `Polynomial` takes any offset.

    >>> phi = polynomial(degree=2)
    >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    >>> phi(q).shape, round((phi(q) @ phi(k)).item(), 4), ((q @ k + 1) ** 2).item()
    (torch.Size([6]), 4.0, 4.0)
    """

    degree: int = 2
    offset: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 1:
            raise OptionError(complaint("degree", repr(self.degree), "an integer, 1 or more"))
        if not (math.isfinite(self.offset) and self.offset >= 0):
            hint = "Polynomial(degree, offset) takes any offset"
            raise OptionError(complaint("offset", self.offset, "0 or more", hint))

    def features(self, width: int) -> int:
        free = width if self.offset else width - 1
        return math.comb(free + self.degree, self.degree)

    def __call__(self, x: Tensor) -> Tensor:
        indices, weights = _monomials(x.shape[-1], self.degree, self.offset > 0)
        # Index `width` is the constant coordinate √offset.
        constant = x.new_full((*x.shape[:-1], 1), math.sqrt(self.offset))
        extended = torch.cat([x, constant], dim=-1)
        product = extended[..., indices[0].to(x.device)]
        for column in indices[1:]:
            product = product * extended[..., column.to(x.device)]
        return product * weights.to(x.device, x.dtype)


def _monomials(width: int, degree: int, with_constant: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    """The coordinates that each monomial multiplies, and the square root of its multinomial coefficient."""
    return _cached_monomials(width, degree, with_constant)


# As torch.compiler.assume_constant_result does, without loading the compiler.
_monomials._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@cache
def _cached_monomials(width: int, degree: int, with_constant: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    monomials = sorted(
        combinations_with_replacement(range(width + 1 if with_constant else width), degree),
        # Pure powers first, then mixed ones, then lower degrees, the constant last.
        key=lambda m: (m.count(width), len(set(m)), m),
    )
    ways = [math.factorial(degree) // math.prod(math.factorial(m.count(i)) for i in set(m)) for m in monomials]
    columns = tuple(torch.tensor(column, device="cpu") for column in zip(*monomials, strict=True))
    return columns, torch.tensor(ways, dtype=torch.float64, device="cpu").sqrt()


class positive_random:  # noqa: N801 - called like the functions above
    """Random features whose product is exp(scale·q·k) on average, and always positive.

    φ(x)_r = exp(ω_r·x√scale − scale·|x|²/2) / √count, with ω_r Gaussian: softmax attention, approximated.

    >>> phi = positive_random(width=4, count=4096, seed=1)
    >>> q, k = torch.tensor([0.3, -0.2, 0.5, 0.1]), torch.tensor([0.1, 0.4, 0.2, -0.3])
    >>> bool((phi(q) @ phi(k) - torch.exp(q @ k / 2)).abs() < 0.05)
    True

    Args:
        width: the width of queries and keys.
        count: how many features.
        seed: the same seed gives the same features on every machine.
        scale: None is 1/√width, as in `Softmax`.
        orthogonal: draw orthogonal directions, which have a smaller variance.
    """

    def __init__(
        self, width: int, count: int = 256, *, seed: int = 0, scale: float | None = None, orthogonal: bool = True
    ) -> None:
        if width < 1 or count < 1:
            raise OptionError(complaint("width, count", (width, count), "integers, 1 or more"))
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
        """The same map with other directions: the errors of several draws are independent, so their mean is smaller.

        >>> phi = positive_random(width=4, count=8)
        >>> phi.redraw(seed=3)
        positive_random(width=4, count=8, seed=3)
        """
        return positive_random(self.width, self.count, seed=seed, scale=self.scale, orthogonal=self.orthogonal)

    def error(self, query: Tensor, key: Tensor) -> Tensor:
        """The relative standard error of φ(q)·φ(k): (…, q, width), (…, k, width) → (…, q, k).

        √((exp(scale·|q + k|²) − 1) / count) for independent directions; orthogonal ones have a smaller error.

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


# With more features a linear state never pays.
MAX_FEATURES = 1 << 20
# Factors of a monomial that the native kernel supports.
MAX_FACTORS = 8
_ELEMENTWISE: dict[Any, int] = {identity: IDENTITY, elu1: ELU1, relu: RELU, squared: SQUARED}


TensorMap = Callable[[Tensor], Tensor]


class FeatureMaps(NamedTuple):
    """φ of queries and φ of keys, (…, width) → (…, features); they differ where only one of them has the weights.

    rule: the map for the native kernel; None when it does not have the map. normalize: whether to divide.
    """

    query: TensorMap
    key: TensorMap
    features: int
    rule: FeatureRule | None
    normalize: bool


def feature_maps(similarity: AnySimilarity, width: int) -> FeatureMaps:
    """The maps of a `FeatureMap` or `Polynomial`."""
    code = _elementwise_code(similarity)
    count = width if code is not None else feature_count(similarity, width)
    power = _power(similarity) if code is None else None
    if power is not None:
        rule = FeatureRule(POWER, width, *power) if 1 <= power[0] <= MAX_FACTORS and width else None
        of_query, of_key = (partial(monomials, degree=power[0], offset=power[1], weighted=w) for w in (False, True))
        return FeatureMaps(of_query, of_key, count, rule, similarity.normalizes)
    assert isinstance(similarity, FeatureMap)
    phi = partial(_apply_with_count, similarity, count)
    return FeatureMaps(phi, phi, count, None if code is None else FeatureRule(code, width), similarity.normalize)


_POWERS = (polynomial, Polynomial)  # a tuple: to join types takes longer than to compare them


def _power(similarity: AnySimilarity) -> tuple[int, float] | None:
    """The degree and the offset of a similarity (q·k + offset)^degree; None for others."""
    given = similarity.map if isinstance(similarity, FeatureMap) else similarity
    return (given.degree, given.offset) if isinstance(given, _POWERS) else None


def _elementwise_code(similarity: AnySimilarity) -> int | None:
    """The native kernel's code of an elementwise map; None for other similarities."""
    given = similarity.map if isinstance(similarity, FeatureMap) else None
    return _ELEMENTWISE.get(given) if type(given).__hash__ is not None else None


def _apply_with_count(similarity: FeatureMap, count: int, x: Tensor) -> Tensor:
    """φ(x), checked to have `count` features: sums of different features cannot be added."""
    features = apply_feature_map(similarity, x)
    if features.shape[-1] != count:
        wanted = f"{count} features, as before"
        raise ShapeError(complaint(f"map (of {similarity!r})", f"{features.shape[-1]} features", wanted))
    return features


def feature_count(similarity: AnySimilarity, width: int) -> int:
    """How many features φ has; an unknown map is applied to a vector of zeros."""
    if _elementwise_code(similarity) is not None:
        return width
    power = _power(similarity)
    if power is not None:
        degree, offset = power
        return math.comb((width if offset else max(width - 1, 0)) + degree, degree)
    assert isinstance(similarity, FeatureMap)
    if isinstance(similarity.map, positive_random):
        return similarity.map.count
    try:
        return _probe_feature_count(similarity, width, torch.float32)
    except RuntimeError:  # a module whose parameters are float64
        return _probe_feature_count(similarity, width, torch.float64)


def _probe_feature_count(similarity: FeatureMap, width: int, dtype: torch.dtype) -> int:
    with torch.no_grad():
        return apply_feature_map(similarity, torch.zeros(1, 1, 1, width, dtype=dtype)).shape[-1]


def apply_feature_map(similarity: FeatureMap, x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n f"]:
    """φ(x), checked: a row of features, at least one, for every row of x."""
    half = _half_dtype(similarity.map)
    given = x.contiguous() if half is None else x.to(half).contiguous()
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            features = similarity.map(given)
    else:
        features = similarity.map(given)
    if half is not None and isinstance(features, Tensor) and features.dtype is half:
        features = features.to(x.dtype)
    if not isinstance(features, Tensor) or features.dim() != 4 or features.shape[:3] != x.shape[:3]:
        given = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        wanted = f"shape ({', '.join(map(str, x.shape[:3]))}, features): one row of features for each row"
        raise ShapeError(complaint(f"map (of {similarity!r})", given, wanted))
    if features.dtype is not x.dtype or features.shape[3] == 0:
        given = f"{features.shape[3]} features of {features.dtype}"
        raise DtypeError(complaint(f"map (of {similarity!r})", given, f"at least one feature, of {x.dtype}"))
    return features.contiguous()


def _half_dtype(given: Any) -> torch.dtype | None:
    """The dtype of a module in half precision, whose input has to be converted from float32; None otherwise."""
    first = next(given.parameters(), None) if isinstance(given, torch.nn.Module) else None
    return first.dtype if first is not None and first.dtype in (torch.bfloat16, torch.float16) else None


def has_native_map(similarity: AnySimilarity) -> bool:
    """Whether the native kernel has the map."""
    if _elementwise_code(similarity) is not None:
        return True
    power = _power(similarity)
    return power is not None and 1 <= power[0] <= MAX_FACTORS


def monomials(x: Float[Tensor, "... d"], degree: int, offset: float, weighted: bool) -> Float[Tensor, "... f"]:
    """The monomials of (q·k + offset)^degree; if weighted, times their coefficients in that power.

    Args:
        x: (..., width).
        degree: The degree of the power.
        offset: What is added to q·k.
        weighted: Whether to multiply by the coefficients; one of query and key has to be.

    Returns:
        (..., features), one feature for each monomial.

    >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    >>> monomials(q, 2, -3.0, False) @ monomials(k, 2, -3.0, True)  # (3 − 2 − 3)²
    tensor(4.)
    """
    if degree == 0:
        return x.new_ones((*x.shape[:-1], 1))
    columns, weights = _monomial_table(x.shape[-1], degree, offset)
    extended = torch.cat([x, x.new_ones((*x.shape[:-1], 1))], dim=-1) if offset else x
    product = _gather_columns(extended, columns[0])
    for column in columns[1:]:
        product = product * _gather_columns(extended, column)
    return product * weights.to(x.device, x.dtype) if weighted else product


def _gather_columns(x: Tensor, column: Tensor) -> Tensor:
    """x[..., column], with a derivative that is summed in a fixed order, so that its bits do not vary."""
    return x.gather(-1, column.to(x.device).expand(*x.shape[:-1], -1))


@cache
def _monomial_table(width: int, degree: int, offset: float) -> tuple[tuple[Tensor, ...], Tensor]:
    chosen = list(combinations_with_replacement(range(width + 1 if offset else width), degree))
    ways = [
        math.factorial(degree) / math.prod(math.factorial(m.count(i)) for i in set(m)) * offset ** m.count(width)
        for m in chosen
    ]
    if not chosen:
        return tuple(torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(degree)), torch.empty(0)
    columns = tuple(torch.tensor(column, device="cpu") for column in zip(*chosen, strict=True))
    return columns, torch.tensor(ways, dtype=torch.float64, device="cpu")
