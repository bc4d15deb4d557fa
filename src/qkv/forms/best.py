"""Which key is best, decided by sums in one order.

torch's products may sum one score in another order than the next: by its place in the matrix, by where a row starts in
memory, by the number of threads. Equal keys then differ in the last bit, and the later one may win. So the scores that
rounding could make the best are summed once more, all in the same order: equal keys tie, and the choice
depends on the numbers alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..shapes import Float

NEVER = float("-inf")
# Pairs that are summed again at a time.
PAIRS = 1 << 15


def settled(
    scores: Float[Tensor, "b hq r c"], query: Float[Tensor, "b hq r n"], key: Float[Tensor, "b hkv c n"]
) -> Float[Tensor, "b hq r c"]:
    """The scores q·k, −inf where masked, with those that may be a row's best summed again; written in place.

    A sum of n products is off by less than (n + 1)·eps·Σ|q k| in any order, and Σ|q k| ≤ Σ|q|·max|k|. What is four
    times that below the best, twice for each of the two sums, cannot be the best in another order.

    >>> query, key = torch.ones(1, 1, 1, 3), torch.tensor([[[[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 2.0, 3.0]]]])
    >>> settled(torch.tensor([[[[6.0000005, 1.5, 6.0]]]]), query, key)
    tensor([[[[6.0000, 1.5000, 6.0000]]]])

    A row with a NaN among its scores stays as it is.
    """
    if key.shape[3] == 0:
        return scores
    group = query.shape[1] // key.shape[1]
    slack = 4 * (key.shape[3] + 1) * torch.finfo(scores.dtype).eps * query.abs().sum(-1, keepdim=True)
    slack = slack * _largest(key).repeat_interleave(group, dim=1)
    least = scores.amax(-1, keepdim=True) - slack
    # Nothing is near where everything is masked, and sums of zeros are exact already.
    near = scores >= torch.where((least > NEVER) & (slack > 0), least, torch.nan)
    shared = torch.arange(key.shape[1], device=key.device).repeat_interleave(group)
    for places in near.nonzero().split(PAIRS):
        b, h, i, j = places.unbind(1)
        scores[b, h, i, j] = (query[b, h, i] * key[b, shared[h], j]).sum(-1)
    return scores


def _largest(key: Float[Tensor, "b hkv c n"]) -> Float[Tensor, "b hkv 1 1"]:
    """max|k| of each head, over its finite keys: what is not finite may be masked."""
    largest = torch.maximum(key.amax((2, 3), keepdim=True), -key.amin((2, 3), keepdim=True))
    if largest.isfinite().all():
        return largest
    by_key = key.abs().amax(3, keepdim=True)
    return torch.where(by_key.isfinite(), by_key, 0.0).amax(2, keepdim=True)
