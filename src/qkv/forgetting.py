"""`Softmax(log_decay=...)`, forgetting attention: score_ij += Σ log f_t over j < t <= i, without a matrix of pairs.

With c_t the sum of the gates up to token t, in float64, that is c_i − c_j, computed for a block of pairs at a time.
Gates that forget everything are not summed, since −∞ − (−∞) is NaN: they limit where the keys of a query begin. A gate
that is NaN makes the score of each pair across it NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .errors import DtypeError, OptionError, ShapeError, complaint
from .shapes import Bool, Float, Int64

FORGETS_ALL = -1e8  # log gates up to this count as −infinity: with them in a sum, the others would lose their digits
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Forgetting(NamedTuple):
    """The gates of a call, as sums.

    Args:
        query, key: c at the position of each query and key, with one row for each query head.
        positions: of the keys; they broadcast to `key`.
        starts: the position from which on a query has forgotten nothing completely.
        odd: the position of the last NaN gate up to each query.
    """

    query: Float[Tensor, "batch heads rows"]
    key: Float[Tensor, "batch heads keys"]
    positions: Int64[Tensor, "#batch #heads keys"]
    starts: Int64[Tensor, "batch heads rows"]
    odd: Int64[Tensor, "batch heads rows"]

    def part(self, batch: slice, heads: slice, rows: slice, keys: slice) -> Forgetting:
        """Of some batch rows, query heads, queries and keys."""
        own, across = (batch, heads, rows), self.positions
        across = across[
            batch if across.shape[0] > 1 else slice(None), heads if across.shape[1] > 1 else slice(None), keys
        ]
        return Forgetting(self.query[own], self.key[batch, heads, keys], across, self.starts[own], self.odd[own])

    def kernel_rule(self) -> dict[str, Tensor]:
        """The arguments of the native kernel, for keys at their positions and gates without NaN."""
        sums = {"decay_query": self.query.detach(), "decay_key": self.key.detach(), "decay_starts": self.starts}
        return {name: tensor.contiguous() for name, tensor in sums.items()}

    def added_to(self, bias: Tensor | None, dtype: torch.dtype) -> Float[Tensor, "batch heads rows keys"]:
        """What is added to all scores, together with a bias; −infinity where everything is forgotten."""
        ahead = self.positions.unsqueeze(-2)
        decay = (self.query.unsqueeze(-1) - self.key.unsqueeze(-2)).to(dtype)
        decay = decay.masked_fill(ahead < self.odd.unsqueeze(-1), torch.nan)
        decay = decay.masked_fill(ahead < self.starts.unsqueeze(-1), -torch.inf)
        # −infinity masks a pair, whatever is added to it.
        return decay if bias is None else torch.where(decay == -torch.inf, decay, decay + bias)


def check_log_decay(log_decay: Tensor, like: Tensor, shape: tuple[int, ...], axes: str) -> Tensor:
    """A tensor of gates of this shape."""
    if log_decay.dtype not in _FLOATS or log_decay.device != like.device:
        given, wanted = f"{log_decay.dtype} on {log_decay.device}", f"floating-point numbers on {like.device}"
        raise DtypeError(complaint("log_decay", given, wanted))
    if tuple(log_decay.shape) != shape:
        raise ShapeError(complaint("log_decay", f"shape {tuple(log_decay.shape)}", f"{shape}: {axes}"))
    return log_decay


def forgetting_of(
    log_decay: Float[Tensor, "batch heads total"],
    at: Int64[Tensor, "#batch rows"],
    real: Bool[Tensor, "batch total"] | None,
    positions: Int64[Tensor, "batch heads keys"] | None,
    traced: bool = False,
) -> Forgetting:
    """The gates as sums.

    Args:
        log_decay: checked.
        at: the position of each query.
        real: which tokens are real; the gates of the others count as 0. None for all.
        positions: of the keys; None where key j is at position j.
        traced: whether the contents are unknown.
    """
    batch, heads, total = log_decay.shape
    gates = log_decay if real is None else log_decay.masked_fill(~real[:, None], 0.0)
    if not traced and total and bool((gates.detach() > 0).any()):
        hint = "gates are given as logarithms: write gate.log(), or logsigmoid(x) for sigmoid(x)"
        largest = float(gates.detach().nan_to_num(0.0).max())
        raise OptionError(complaint("log_decay", f"{largest:.6g}", "0 or less", hint))
    every = torch.arange(total, device=gates.device)
    odd, forgets = gates.isnan(), gates <= FORGETS_ALL
    sums = gates.double().masked_fill(odd | forgets, 0.0).cumsum(-1)
    starts, lasts = (torch.where(found, every, 0).cummax(-1).values if total else every for found in (forgets, odd))
    places = at.clamp(0, max(total - 1, 0))[:, None].expand(batch, heads, -1)
    by_query = (t.gather(2, places) if total else t.new_zeros(places.shape) + t.sum() for t in (sums, starts, lasts))
    keys = sums if positions is None else sums.gather(2, positions.clamp(max=max(total - 1, 0)))
    query, begin, last = by_query
    return Forgetting(query, keys, every[None, None] if positions is None else positions, begin, last)
