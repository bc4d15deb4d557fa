"""PyTorch: scaled_dot_product_attention as it dispatches by default, and MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import Subject, only


def joined(keep: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One attn_mask of both: numbers are added to scores, True attends."""
    if keep is None or bias is None:
        return keep if bias is None else bias
    return bias.masked_fill(~keep, float("-inf"))


class TorchSdpa(Subject):
    name, short = "torch SDPA", "SDPA"
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        only(options, "keep", "bias", "scale", "causal", "corner", "dropout", "out")
        mask, causal = joined(options.get("keep"), options.get("bias")), options.get("causal", False)
        more = {"out": options["out"]} if "out" in options else {}
        if options.get("corner") is not None:
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(query.shape[-2], key.shape[-2])
        grouped = query.dim() == 4 and query.shape[1] != key.shape[1]
        dropout = options.get("dropout") or 0.0
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=options.get("scale"),
            enable_gqa=grouped, **more,
        )  # fmt: skip


def _layer(width: int, heads: int, dtype: torch.dtype, dropout: float = 0.0) -> torch.nn.MultiheadAttention:
    layer = torch.nn.MultiheadAttention(width, heads, dropout=dropout, bias=False, batch_first=True)
    floats = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.float32
    layer = layer.to(floats)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(width))
    return layer.train(dropout != 0.0)


def _rows(tensor: Tensor) -> Tensor:
    """(batch, heads, length, width) -> (batch, length, heads · width)."""
    return tensor.transpose(1, 2).flatten(2)


class TorchMha(Subject):
    """With projections that change nothing, with its default need_weights=True and without."""

    name, short = "torch MultiheadAttention", "MHA"
    ways = ("need_weights=True", "need_weights=False")
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    grouped = False
    own_value_width = False

    def attend(self, way: str, query: Any, key: Any, value: Any, **options: Any) -> Tensor:
        only(options, "keep", "bias", "causal", "dropout", "padding")
        _, heads, _, width = query.shape
        layer = _layer(heads * width, heads, query.dtype, options.get("dropout") or 0.0)
        mask = joined(options.get("keep"), options.get("bias"))
        if mask is not None:
            mask = mask.flatten(0, 1)  # (batch · heads, len_q, len_k)
            mask = ~mask if mask.dtype == torch.bool else mask  # its True masks
        out, _ = layer(
            _rows(query), _rows(key), _rows(value), attn_mask=mask, key_padding_mask=options.get("padding"),
            need_weights=way == "need_weights=True", is_causal=options.get("causal", False),
        )  # fmt: skip
        return out.unflatten(2, (heads, width)).transpose(1, 2)


SUBJECTS = [TorchSdpa(), TorchMha()]
