"""Softmax attention of a few queries over keys and values in plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import FormRefused
from ..shapes import Bool, Float
from .capability import load
from .dtypes import CODE, NOTHING


def attend_plain(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    value: Float[Tensor, "batch heads_kv len_k width_v"],
    *,
    scale: float,
    softcap: float | None = None,
    sink: Float[Tensor, " heads_q"] | None = None,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    keep: Bool[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    bias: Float[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    return_lse: bool = False,
) -> tuple[Float[Tensor, "batch heads_q len_q width_v"], Float[Tensor, "batch heads_q len_q"] | None]:
    """out = Σ_j e^(s_j) v_j / Σ_j e^(s_j) and lse = log Σ_j e^(s_j), s = scale·q·k, then softcap, then + bias.

    Query i of row b sees the keys j with starts[b] ≤ j < stops[b], i + lower ≤ j < i + upper and keep[b, h, i, j], as
    far as each is given. float32, float16 and bfloat16 tensors in main memory of any strides; sums are float32, and
    the same bits for any number of threads, any batch companions and any layout. Each key and value is read once for
    all the query heads that share it. A sink adds to the lower sum. The caller has checked the shapes.

    >>> query, key, value = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 3, 2), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    >>> attend_plain(query, key, value, scale=1.0, stops=[2])[0]
    tensor([[[[1.5000]]]])
    """
    native = load().native
    if native is None:
        raise FormRefused("kernels.attend_plain needs the native library", load().reasons)
    batch, heads_q, len_q, _ = query.shape
    query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
    # An answer as its query lies in memory: models turn it back, which then moves nothing.
    heads_last = query.stride(1) < query.stride(2)
    sizes = (batch, len_q, heads_q) if heads_last else (batch, heads_q, len_q)
    out = torch.empty(*sizes, value.shape[3], dtype=query.dtype, device="cpu")
    lse = torch.empty(batch, heads_q, len_q, dtype=torch.float32, device="cpu") if return_lse else None
    scores = batch, heads_q, len_q, key.shape[2]
    keep = None if keep is None else keep.expand(scores)
    bias = None if bias is None else bias.to(torch.float32).resolve_neg().expand(scores)
    sink = None if sink is None else sink.to(torch.float32).expand(heads_q).contiguous()
    bounds = [None if bound is None else np.asarray(bound, dtype=np.int64) for bound in (starts, stops)]
    native.attend_plain(
        CODE[query.dtype],
        query.shape,
        key.shape,
        value.shape[3],
        query.data_ptr(),
        query.stride(),
        key.data_ptr(),
        key.stride(),
        value.data_ptr(),
        value.stride(),
        out.data_ptr(),
        0 if lse is None else lse.data_ptr(),
        *(0 if bound is None else bound.ctypes.data for bound in bounds),
        lower,
        upper,
        0 if keep is None else keep.data_ptr(),
        NOTHING if keep is None else keep.stride(),
        0 if bias is None else bias.data_ptr(),
        NOTHING if bias is None else bias.stride(),
        scale,
        softcap or 0.0,
        0 if sink is None else sink.data_ptr(),
        heads_last,
        torch.get_num_threads(),
    )
    return out.transpose(1, 2) if heads_last else out, lse
