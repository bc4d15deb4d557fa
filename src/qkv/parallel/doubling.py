"""What all ranks have, joined on each of them: every rank to every other while they are few, by doubling when many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .axis import Axis
from .wire import ANSWERS, Message, everybodys, start

MANY = 8  # ranks from which on a message to each costs more than a few rounds


def joined(axis: Axis, mine: Tensor, join: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """join of what all ranks have, one shape for all and for the result: the same bits on every rank, whoever is late.

    Few ranks send theirs to all others. Of many, rank r joins with r ^ 1, r ^ 2, r ^ 4, …, so that it sends and
    receives log₂ of their number; those behind the largest power of two give theirs to another first, and hear the
    end from it. The order depends on the number of ranks alone, so join must not mind it.
    """
    if axis.size < MANY:
        return join(everybodys(axis, mine, ANSWERS))
    power = 1 << (axis.size.bit_length() - 1)
    beside = axis.rank - power if axis.rank >= power else axis.rank + power
    found = mine.contiguous()
    if axis.rank >= power:
        start(axis, [Message(beside, found)], [], ANSWERS).wait()
        return _heard(axis, beside, found)
    if beside < axis.size:
        found = join([found, _heard(axis, beside, found)])
    step = 1
    while step < power:
        peer, other = axis.rank ^ step, torch.empty_like(found)
        start(axis, [Message(peer, found)], [Message(peer, other)], ANSWERS).wait()
        found = join([found, other] if axis.rank < peer else [other, found]).contiguous()
        step *= 2
    if beside < axis.size:
        start(axis, [Message(beside, found)], [], ANSWERS).wait()
    return found


def _heard(axis: Axis, peer: int, like: Tensor) -> Tensor:
    other = torch.empty_like(like)
    start(axis, [], [Message(peer, other)], ANSWERS).wait()
    return other
