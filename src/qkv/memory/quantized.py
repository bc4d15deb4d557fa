"""int8, symmetric, one scale for each token and head: x ≈ scale · q with q in −127 … 127.

Quantised once, when a token is appended. The error of a coordinate is at most scale / 2 = max|x| / 254.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..shapes import Float, Int

LARGEST = 127


def quantized(x: Float[Tensor, "*tokens width"]) -> tuple[Int[Tensor, "*tokens width"], Float[Tensor, "*tokens"]]:
    """scale = max|x| / 127 and q = x / scale, halves to even; float32 throughout.

    A token of zeros has scale 0. One with a NaN or an infinity has scale NaN: it is NaN as a whole.

    >>> q, scale = quantized(torch.tensor([[254.0, -3.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()
    ([[127, -2, 0], [0, 0, 0]], [2.0, 0.0])
    """
    x = x.to(torch.float32)
    scale = x.abs().amax(-1) / LARGEST
    scale = torch.where(torch.isfinite(x).all(-1), scale, torch.nan)
    # What has no finite scale above 0 has no digits: the scale alone says what the token is.
    usable = (scale > 0).unsqueeze(-1)
    digits = torch.where(usable, x / torch.where(usable, scale.unsqueeze(-1), 1.0), 0.0)
    return digits.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantized(q: Int[Tensor, "*tokens width"], scale: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens width"]:
    """scale · q in float32.

    >>> dequantized(torch.tensor([[127, -2]], dtype=torch.int8), torch.tensor([2.0]))
    tensor([[254.,  -4.]])
    """
    return q.to(torch.float32) * scale.unsqueeze(-1)
