"""PyTorch's scaled_dot_product_attention, as it dispatches by default."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import Subject, only


def joined(keep: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One attn_mask of both: a float mask is added, a boolean one lets through."""
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


SUBJECT = TorchSdpa()
