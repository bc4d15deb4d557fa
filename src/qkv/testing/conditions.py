"""Checks of a similarity function or feature map, on random data.

qkv calls `Similarity(function)` and `FeatureMap(map)` on blocks of queries and keys. That is right only
for a function of one query and one key, applied to each pair independently. And
V'_i = Σ_j sim v_j / Σ_j sim exists only where Σ_j sim(q_i, k_j) ≠ 0: sim ≥ 0 with one positive term is
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import DtypeError, OptionError, ShapeError, complaint

from .call_case import generator


@dataclass(frozen=True)
class Conditions:
    """What was observed on random data; it proves nothing about other data.

    nonnegative: no similarity was below 0. sums_positive: no row's sum was 0 or less. smallest_sum: the
    smallest sum of a row, relative to the sum of absolute values: 1.0 means no cancellation, values near
    0 lose digits.
    """

    nonnegative: bool
    sums_positive: bool
    smallest_sum: float

    def __str__(self) -> str:
        if self.nonnegative and self.sums_positive:
            return "no similarity was negative and every sum was positive: the quotient exists on this data"
        if self.sums_positive:
            smallest = f"the smallest {self.smallest_sum:.3g} of its terms"
            return f"some similarities were negative; every sum was positive, {smallest}"
        return "some sums were 0 or negative: rows can be 0, or lose their digits to cancellation"


def check_similarity(
    function: Callable[[Tensor, Tensor], Tensor],
    width: int = 5,
    *,
    heads: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    scale: float = 1.0,
) -> Conditions:
    """Check a function for `Similarity(function)`.

    Args:
        function: (b, h, q, width), (b, h, k, width) → (b, h, q, k).
        width: of queries and keys.
        heads: for functions with parameters per head.
        dtype: of the random data.
        seed: of the random data.
        scale: the factor of the random data.

    Returns:
        Whether similarities were nonnegative and sums positive.

    Raises:
        ShapeError, DtypeError: for a result of the wrong shape or dtype.
        OptionError: for non-finite results, and for results that depend on anything but one query and one
            key: the block, the position in it, or the batch.

    >>> from qkv.testing.call_case import gaussian
    >>> check_similarity(gaussian).sums_positive
    True
    >>> check_similarity(lambda q, k: (q @ k.transpose(-1, -2)).softmax(-1))
    Traceback (most recent call last):
    qkv.errors.OptionError: function: got other numbers when the keys are cut into blocks, \
wanted a function of one query and one key alone. Hint: sums, maxima and norms over keys or queries \
belong in the equation, not in the similarity.
    """
    source = generator(seed)
    query = torch.randn(3, heads, 5, width, generator=source, dtype=torch.float64).mul(scale).to(dtype)
    key = torch.randn(3, heads, 7, width, generator=source, dtype=torch.float64).mul(scale).to(dtype)
    whole = _similarities(function, query, key)
    others = torch.arange(6, -1, -1)
    for what, (q, k), wanted in (
        ("when it is called again", (query, key), whole),
        ("when the keys are cut into blocks", (query, key[:, :, 2:4]), whole[..., 2:4]),
        ("when the queries are cut into blocks", (query[:, :, 1:2], key), whole[:, :, 1:2]),
        ("when the keys change places", (query, key[:, :, others]), whole[..., others]),
        ("when a batch row is alone", (query[1:2], key[1:2]), whole[1:2]),
    ):
        _assert_equal("function", what, _similarities(function, q, k), wanted, "one query and one key alone")
    sums, sizes = whole.double().sum(-1), whole.double().abs().sum(-1)
    smallest = float((sums / torch.where(sizes == 0, 1.0, sizes)).min())
    return Conditions(bool((whole >= 0).all()), bool((sums > 0).all()), smallest)


def check_feature_map(
    phi: Callable[[Tensor], Tensor],
    width: int = 5,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    scale: float = 1.0,
) -> Conditions:
    """Check a map for `FeatureMap(map)`.

    Args:
        phi: (..., width) → (..., features), each vector independently.
        width: of queries and keys.
        dtype: of the random data.
        seed: of the random data.
        scale: the factor of the random data.

    Returns:
        Whether the similarities φ(q)·φ(k) were nonnegative and their sums positive.

    Raises:
        ShapeError, DtypeError: for a result of the wrong shape or dtype.
        OptionError: for non-finite features, and for features that depend on other vectors.

    >>> from qkv import features
    >>> print(check_feature_map(features.elu1))
    no similarity was negative and every sum was positive: the quotient exists on this data
    >>> check_feature_map(features.identity).sums_positive
    False
    """
    source = generator(seed)
    x = torch.randn(3, 2, 7, width, generator=source, dtype=torch.float64).mul(scale).to(dtype)
    wanted = "(..., features) with the same axes before the last"
    whole = _checked("map", phi(x), (x,), x.shape[:3], wanted, f"features of data of size {scale:g}")
    alone = (x[:, :, 2:3], whole[:, :, 2:3]), (x[1, 1], whole[1, 1]), (x[..., 0, :], whole[..., 0, :])
    for part, right in alone:
        _assert_equal("map", "when vectors are outside of their block", phi(part), right, "one vector alone")
    return check_similarity(lambda q, k: phi(q) @ phi(k).transpose(-1, -2), width, dtype=dtype, seed=seed, scale=scale)


def _similarities(function: Callable[[Tensor, Tensor], Tensor], query: Tensor, key: Tensor) -> Tensor:
    shape = (*query.shape[:3], key.shape[2])
    wanted = f"(batch, heads, queries, keys) = {shape}"
    return _checked("function", function(query, key), (query, key), shape, wanted, "similarities")


def _checked(
    argument: str, found: Any, inputs: tuple[Tensor, ...], shape: tuple[int, ...], wanted: str, what: str
) -> Tensor:
    """The result, if it is a finite tensor of the dtype of the inputs whose shape begins with `shape`."""
    dtype, given = inputs[0].dtype, " and ".join(str(tuple(tensor.shape)) for tensor in inputs)
    if not isinstance(found, Tensor):
        raise DtypeError(complaint(argument, type(found).__name__, "a tensor"))
    if found.dim() != 4 or found.shape[: len(shape)] != shape or not found.shape[3]:
        raise ShapeError(complaint(argument, f"shape {tuple(found.shape)} for {given}", wanted))
    if found.dtype is not dtype:
        raise DtypeError(complaint(argument, f"{found.dtype} for {dtype}", f"{dtype}", "keep the dtype of the input"))
    if not bool(found.isfinite().all()):
        hint = "overflow, 0/0 and roots of negative numbers are the usual causes"
        raise OptionError(complaint(argument, f"non-finite {what}", "finite numbers for finite vectors", hint))
    return found


def _assert_equal(argument: str, what: str, found: Tensor, wanted: Tensor, alone: str) -> None:
    """Equal up to rounding: torch sums blocks of another size in another order."""
    close = 64 * torch.finfo(wanted.dtype).eps * max(1.0, float(wanted.double().abs().max()))
    if found.shape != wanted.shape or float((found.double() - wanted.double()).abs().max()) > close:
        hint = "sums, maxima and norms over keys or queries belong in the equation, not in the similarity"
        raise OptionError(complaint(argument, f"other numbers {what}", f"a function of {alone}", hint))
