"""What φ is, for a similarity that is a product of features: sim(q, k) = φ_q(q)·φ_k(k)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import features
from .errors import DtypeError, ShapeError, complaint
from .kernels.linear import ELU1, IDENTITY, POWER, RELU, SQUARED, Rule
from .shapes import Float
from .similarity import AnySimilarity, FeatureMap, Polynomial

# Features beyond which a state is no bargain for anybody.
MOST_FEATURES = 1 << 20
# Factors of a monomial that the native library takes.
MOST_FACTORS = 8
_ELEMENTWISE: dict[Any, int] = {
    features.identity: IDENTITY,
    features.elu1: ELU1,
    features.relu: RELU,
    features.squared: SQUARED,
}

Map = Callable[[Tensor], Tensor]


class Maps(NamedTuple):
    """φ of queries and φ of keys, (…, width) → (…, features); they differ where a weight stands on one side only.

    rule: the same in the native library's words; None when it does not know the map. normalize: whether to divide.
    """

    query: Map
    key: Map
    features: int
    rule: Rule | None
    normalize: bool


def maps_of(similarity: AnySimilarity, width: int) -> Maps:
    """The maps of a similarity that has some."""
    if isinstance(similarity, Polynomial):
        return _power(similarity.degree, similarity.offset, width, True)
    assert isinstance(similarity, FeatureMap)
    given = similarity.map
    if isinstance(given, features.polynomial):
        return _power(given.degree, given.offset, width, similarity.normalize)
    code = _ELEMENTWISE.get(given) if _hashable(given) else None
    rule = None if code is None else Rule(code, width)
    count = feature_count(similarity, width)
    phi = partial(_mapped_to, similarity, count)
    return Maps(phi, phi, count, rule, similarity.normalize)


def _mapped_to(similarity: FeatureMap, count: int, x: Tensor) -> Tensor:
    """φ(x), with as many features as before: sums of others are no sums of these."""
    found = mapped(similarity, x)
    if found.shape[-1] != count:
        wanted = f"{count} features, as it gave before"
        raise ShapeError(complaint(f"map (of {similarity!r})", f"{found.shape[-1]} features", wanted))
    return found


def feature_count(similarity: AnySimilarity, width: int) -> int:
    """How many features φ has; a map that does not say is asked for those of a vector of zeros."""
    if isinstance(similarity, Polynomial):
        return _coordinates(similarity.offset, width, similarity.degree)
    assert isinstance(similarity, FeatureMap)
    given = similarity.map
    if _hashable(given) and given in _ELEMENTWISE:
        return width
    if isinstance(given, features.polynomial | features.positive_random):
        return given.features(width)
    try:
        return _probed(similarity, width, torch.float32)
    except RuntimeError:  # what torch says of a module whose parameters are float64
        return _probed(similarity, width, torch.float64)


def _probed(similarity: FeatureMap, width: int, dtype: torch.dtype) -> int:
    with torch.no_grad():
        return mapped(similarity, torch.zeros(1, 1, 1, width, dtype=dtype)).shape[-1]


def mapped(similarity: FeatureMap, x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n f"]:
    """φ(x), looked at: a row of features, at least one, for every row of x."""
    half = _half(similarity.map)
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
        wanted = f"shape ({', '.join(map(str, x.shape[:3]))}, features): one row for each that it was given"
        raise ShapeError(complaint(f"map (of {similarity!r})", given, wanted))
    if features.dtype is not x.dtype or features.shape[3] == 0:
        given = f"{features.shape[3]} features of {features.dtype}"
        raise DtypeError(complaint(f"map (of {similarity!r})", given, f"at least one feature, of {x.dtype}"))
    return features.contiguous()


def _half(given: Any) -> torch.dtype | None:
    """The dtype of a module in half precision: what is around it computes in float32."""
    first = next(given.parameters(), None) if isinstance(given, torch.nn.Module) else None
    return first.dtype if first is not None and first.dtype in (torch.bfloat16, torch.float16) else None


def is_known(similarity: AnySimilarity) -> bool:
    """Whether the native library has the map, and not only torch."""
    if isinstance(similarity, Polynomial):
        return 1 <= similarity.degree <= MOST_FACTORS
    given = similarity.map if isinstance(similarity, FeatureMap) else None
    if isinstance(given, features.polynomial):
        return given.degree <= MOST_FACTORS
    return _hashable(given) and given in _ELEMENTWISE


def _hashable(thing: object) -> bool:
    return type(thing).__hash__ is not None


def _coordinates(offset: float, width: int, degree: int) -> int:
    free = width if offset else max(width - 1, 0)
    return math.comb(free + degree, degree)


def _power(degree: int, offset: float, width: int, normalize: bool) -> Maps:
    rule = Rule(POWER, width, degree, offset) if 1 <= degree <= MOST_FACTORS and width else None
    count = _coordinates(offset, width, degree)
    of_query = partial(monomials, degree=degree, offset=offset, weighted=False)
    return Maps(of_query, partial(monomials, degree=degree, offset=offset, weighted=True), count, rule, normalize)


def monomials(x: Float[Tensor, "... d"], degree: int, offset: float, weighted: bool) -> Float[Tensor, "... f"]:
    """The monomials of (q·k + offset)^degree; weighted, each as often as it comes up, times the offset's part in it.

    >>> q, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    >>> monomials(q, 2, -3.0, False) @ monomials(k, 2, -3.0, True)  # (3 − 2 − 3)²
    tensor(4.)
    """
    if degree == 0:
        return x.new_ones((*x.shape[:-1], 1))
    columns, weights = _table(x.shape[-1], degree, offset)
    extended = torch.cat([x, x.new_ones((*x.shape[:-1], 1))], dim=-1) if offset else x
    product = _columns(extended, columns[0])
    for column in columns[1:]:
        product = product * _columns(extended, column)
    return product * weights.to(x.device, x.dtype) if weighted else product


def _columns(x: Tensor, column: Tensor) -> Tensor:
    """x[..., column]; but of that, threads sum the derivative in any order, and the bits change from run to run."""
    return x.gather(-1, column.to(x.device).expand(*x.shape[:-1], -1))


@cache
def _table(width: int, degree: int, offset: float) -> tuple[tuple[Tensor, ...], Tensor]:
    chosen = list(combinations_with_replacement(range(width + 1 if offset else width), degree))
    ways = [
        math.factorial(degree) / math.prod(math.factorial(m.count(i)) for i in set(m)) * offset ** m.count(width)
        for m in chosen
    ]
    if not chosen:
        return tuple(torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(degree)), torch.empty(0)
    columns = tuple(torch.tensor(column, device="cpu") for column in zip(*chosen, strict=True))
    return columns, torch.tensor(ways, dtype=torch.float64, device="cpu")
