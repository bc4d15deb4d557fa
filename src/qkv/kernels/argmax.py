"""The key that each query likes best, without the table of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DtypeError, FormRefused, ShapeError, complaint
from ..shapes import Float, Int64
from .capability import load
from .dtypes import CODE

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def argmax_scores(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    starts: Int64[Tensor, "batch len_q"] | None = None,
    stops: Int64[Tensor, "batch len_q"] | None = None,
) -> Int64[Tensor, "batch heads_q len_q"]:
    """For each query the index of the key with the largest score, over the keys in its range.

        result[b, h, i] = argmax over starts[b, i] ≤ j < stops[b, i] of Σ_c query[b, h, i, c] · key[b, g, j, c]

    with g = h // (heads_q // heads_kv). No `starts`: from the first key; no `stops`: to the last. Sums are float32,
    one rounding after the other in the order of c, for every pair alike: equal keys tie exactly, the lowest index
    wins, and the answer does not depend on threads, on the rest of the batch or on the layout.

    -1 where nothing is in range or every score in range is -inf; -2 where a score in range is NaN. Keys out of
    range cannot matter, NaN included; ranges may reach beyond the keys. float32, float16 and bfloat16 tensors in
    main memory, of any strides; the extra memory is a float32 copy of the keys at most.

    >>> query = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]])
    >>> key = torch.tensor([[[[1.0, 2.0], [3.0, 2.0], [3.0, 1.0]]]])
    >>> argmax_scores(query, key)
    tensor([[[1, 0, 0]]])
    >>> argmax_scores(query, key, starts=torch.tensor([[2, 1, 3]]))
    tensor([[[ 2,  1, -1]]])
    """
    native = load().native
    if native is None:
        raise FormRefused("kernels.argmax_scores needs the native library", load().reasons)
    _check(query, key, starts, stops)
    query, key = query.resolve_neg(), key.resolve_neg()
    starts = None if starts is None else starts.contiguous()
    stops = None if stops is None else stops.contiguous()
    result = torch.empty(query.shape[:3], dtype=torch.int64, device="cpu")
    native.argmax_scores(
        CODE[query.dtype],
        query.shape,
        key.shape,
        query.data_ptr(),
        query.stride(),
        key.data_ptr(),
        key.stride(),
        0 if starts is None else starts.data_ptr(),
        0 if stops is None else stops.data_ptr(),
        result.data_ptr(),
        torch.get_num_threads(),
    )
    return result


def _check(query: Tensor, key: Tensor, starts: Tensor | None, stops: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dtype not in _DTYPES or tensor.dtype != query.dtype or not tensor.is_cpu:
            given = f"{tensor.dtype} on {tensor.device}"
            raise DtypeError(complaint(name, given, "float32, float16 or bfloat16 on the CPU, the same for both"))
        if tensor.dim() != 4:
            raise ShapeError(complaint(name, tuple(tensor.shape), "four dimensions: batch, heads, length, width"))
    batch, heads_q, len_q, width = query.shape
    heads_kv = key.shape[1]
    if key.shape[0] != batch or key.shape[3] != width or (heads_q % heads_kv if heads_kv else heads_q):
        wanted = f"batch {batch}, width {width} and a number of heads that divides {heads_q}"
        raise ShapeError(complaint("key", tuple(key.shape), wanted))
    for name, bound in (("starts", starts), ("stops", stops)):
        if bound is None:
            continue
        if bound.dtype != torch.int64 or not bound.is_cpu:
            raise DtypeError(complaint(name, f"{bound.dtype} on {bound.device}", "int64 on the CPU"))
        if bound.shape != (batch, len_q):
            raise ShapeError(complaint(name, tuple(bound.shape), f"{(batch, len_q)}: batch, len_q"))
