"""Tensors as bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, row by row: of the same memory if that is how it lies there.

    Args:
        tensor: (...) of any dtype.

    Returns:
        uint8 (bytes,).

    >>> as_bytes(torch.tensor([[1.0], [2.0]])).tolist()
    [0, 0, 128, 63, 0, 0, 0, 64]
    """
    flat = tensor.reshape(-1)
    # The stride of a single number may be anything, and torch then refuses to see its bytes.
    return flat.contiguous().as_strided(flat.shape, (1,)).view(torch.uint8)
