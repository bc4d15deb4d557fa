"""torch.nn.MultiheadAttention with projections that change nothing, with its default need_weights=True and without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import Subject, only
from .torch_sdpa import joined


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
            mask = ~mask if mask.dtype == torch.bool else mask  # its True ignores
        out, _ = layer(
            _rows(query), _rows(key), _rows(value), attn_mask=mask, key_padding_mask=options.get("padding"),
            need_weights=way == "need_weights=True", is_causal=options.get("causal", False),
        )  # fmt: skip
        return out.unflatten(2, (heads, width)).transpose(1, 2)


SUBJECT = TorchMha()
