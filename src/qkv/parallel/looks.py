"""What tells tokens from others without sending them: one sum with a phase for each place, and a length."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..inputs import compute_dtype

# Of a token at place p the phase is a·p² + b·p, with other a and b for each axis: no permutation and no constant leaves
# such a sum as it is.
_CHIRPS = {"row": (1.9127, 0.7331), "head": (1.3177, 2.1439), "place": (0.8713, 1.6421), "width": (2.3371, 0.3919)}
_LARGE = 1e30  # from which on float32 is not enough for sums


class Places(NamedTuple):
    """Where new tokens stand. turns (batch, n): a complex number of size 1 for each; real (batch, n): which of them
    count; None: all."""

    turns: np.ndarray
    real: Tensor | None


class Look(NamedTuple):
    """What tells tokens from others: Σ x e^(iφ), with a phase for each place, and ‖x‖, which is how far such a sum
    typically lies from that of other tokens. Machines may differ in how they round, so that the bits say nothing."""

    sum: complex = 0j
    size: float = 0.0

    def plus(self, other: Look, turn: complex = 1) -> Look:
        """Both as one; turned, where the two must not be exchanged or cancel each other."""
        return Look(self.sum + turn * other.sum, math.hypot(self.size, other.size))


def placed(past: np.ndarray, new: Tensor, counts: np.ndarray | None, left: bool) -> Places:
    """The places of new (batch, heads, n, width) behind `past` tokens of each row, however they come in chunks."""
    n = new.shape[2]
    skipped = n - counts if left and counts is not None else np.zeros_like(past)
    at = np.arange(n) - skipped[:, None]
    turns = _turns("row", np.arange(len(past)))[:, None] * _turns("place", past[:, None] + at)
    if counts is None:
        return Places(turns, None)
    return Places(turns, torch.from_numpy((at >= 0) & (at < counts[:, None])).to(new.device))


def look(tensor: Tensor, places: Places) -> Look:
    """What tells tensor (batch, heads, n, width) from another. What does not count is not looked at; what is not finite
    counts as much as all the rest.

    >>> key = torch.tensor([3.0, 4.0]).view(1, 1, 2, 1)
    >>> found, other = (look(each, placed(np.zeros(1), each, None, False)) for each in (key, key.flip(2)))
    >>> found.size, abs(found.sum - other.sum) > 0.1
    (5.0, True)
    """
    if tensor.numel() == 0:
        return Look()
    tensor = tensor.detach().to(compute_dtype(tensor.dtype)).contiguous()
    found = _summed(tensor, places)
    if found is None:
        tensor = tensor.double()
        if places.real is not None:
            tensor = tensor.masked_fill(~places.real[:, None, :, None], 0.0)
        rest = float(torch.linalg.vector_norm(tensor.masked_fill(~tensor.isfinite(), 0.0))) or 1.0
        found = _summed(torch.nan_to_num(tensor, rest, 2 * rest, -2 * rest), places)
    return found or Look(math.nan, math.inf)


def _summed(tensor: Tensor, places: Places) -> Look | None:
    """None where the numbers of the dtype end."""
    sizes = torch.linalg.vector_norm(tensor, dim=-1)
    real, imaginary = _directions(tensor.shape[3], tensor.dtype, tensor.device)
    sums = torch.complex(tensor @ real, tensor @ imaginary)  # a product with two columns takes five times as long
    if places.real is not None:
        away = ~places.real[:, None]
        sizes, sums = sizes.masked_fill(away, 0.0), sums.masked_fill(away, 0.0)
    size = float(torch.linalg.vector_norm(sizes))
    if not size < (_LARGE if tensor.dtype is torch.float32 else _LARGE**5):
        return None
    heads = (sums.cpu().numpy() * places.turns[:, None]).sum((0, 2))
    return Look(complex(heads @ _head_turns(len(heads))), size)


def _turns(axis: str, places: np.ndarray) -> np.ndarray:
    a, b = _CHIRPS[axis]
    at = places.astype(np.float64)
    return np.exp(1j * ((a * at + b) * at))


@lru_cache(maxsize=32)
def _head_turns(heads: int) -> np.ndarray:
    return _turns("head", np.arange(heads))


@lru_cache(maxsize=32)
def _directions(width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of a number of size 1 for each place in a token, each (width,)."""
    turns = torch.from_numpy(_turns("width", np.arange(width)))
    return turns.real.to(device, dtype), turns.imag.to(device, dtype)
