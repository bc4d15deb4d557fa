"""Queries that change places for a while: half of a rank's, with its partner's half, and their answers back again."""

from __future__ import annotations

from torch import Tensor

from .blocks import Rows
from .schedule import Schedule
from .share import Share
from .wire import Message, start

STRIP, STRIPS = 1 << 19, 16  # bytes of a message that are worth one of their own, and messages at most


def swapped(
    share: Share,
    schedule: Schedule,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor | None = None,
    grad_lse: Tensor | None = None,
    by_query: Tensor | None = None,
) -> tuple[Rows, Rows]:
    """The rows that this rank keeps, and its partner's that it works on.

    out, lse: of the rank's own rows. In the forward pass the partner's answers are written where the rank's own will
    come, if they fit there. In the backward pass (grad_out given) out and lse are read, and by_query is written to.
    """
    call, (kept, theirs) = share.call, schedule.rows[share.axis.rank]
    start_, stop = share.rows
    middle = kept[1] - start_
    own = slice(0, middle)
    backward = grad_out is not None
    first = Rows(
        kept, call.query[:, :, own], out[:, :, own], lse[:, :, own],
        None if grad_out is None else grad_out[:, :, own], None if grad_lse is None else grad_lse[:, :, own],
        None if by_query is None else by_query[:, :, own],
        share.bias,
    )  # fmt: skip
    rest, count = slice(middle, stop - start_), theirs[1] - theirs[0]
    if not schedule.swaps:
        nothing = slice(0, 0)
        return first, first._replace(rows=(0, 0), query=call.query[:, :, nothing])
    # Answers travel in the query's dtype; the rank's own keep the digits that they were merged with.
    given = [call.query, *((out.to(call.query.dtype), lse, grad_out, grad_lse) if backward else ())]
    got = [None if tensor is None else _exchanged(share, schedule, tensor, rest, count) for tensor in given]
    query = got[0]
    assert query is not None
    fits = count == stop - start_ - middle
    if not backward:
        place = out[:, :, rest] if fits else out.new_zeros((*out.shape[:2], count, out.shape[3]))
        sums = lse[:, :, rest] if fits else lse.new_full((*lse.shape[:2], count), float("-inf"))
        return first, Rows(theirs, query, place, sums, None, None, None, None)
    assert by_query is not None
    assert got[1] is not None
    assert got[2] is not None
    place = by_query[:, :, rest] if fits else by_query.new_zeros((*by_query.shape[:2], count, by_query.shape[3]))
    return first, Rows(theirs, query, got[1], got[2], got[3], got[4], place, None)


def _exchanged(share: Share, schedule: Schedule, tensor: Tensor, rest: slice, count: int) -> Tensor:
    """The partner's second half for the own one."""
    partner = schedule.partner(share.axis.rank)
    if partner == share.axis.rank:
        return tensor[:, :, :0]
    found = tensor.new_empty((*tensor.shape[:2], count, *tensor.shape[3:]))
    _trade(share, partner, tensor[:, :, rest], found)
    return found


def _trade(share: Share, partner: int, given: Tensor, taken: Tensor) -> None:
    """given goes to the partner, and its own comes into `taken`, which may be the same place: strip by strip, so that
    no second copy of either is held. Both know both sizes, and so the number of strips."""
    largest = max(given.numel(), taken.numel()) * given.element_size()
    strips = min(STRIPS, 1 + largest // STRIP)
    for strip in range(strips):
        there, here = (_strip(tensor.shape[2], strip, strips) for tensor in (given, taken))
        room = taken.new_empty((*taken.shape[:2], here.stop - here.start, *taken.shape[3:]))
        start(share.axis, [Message(partner, given[:, :, there].contiguous())], [Message(partner, room)]).wait()
        taken[:, :, here] = room


def swapped_back(share: Share, schedule: Schedule, whole: Tensor, lse: Tensor | None, theirs: Rows) -> None:
    """What was found for the partner's rows goes to it, and what it found comes to its place in `whole` (and lse)."""
    partner = schedule.partner(share.axis.rank)
    if not schedule.swaps or partner == share.axis.rank:
        return
    middle = schedule.half(share.axis.rank) - share.rows[0]
    found = theirs.out if theirs.by_query is None else theirs.by_query
    if lse is not None:
        _trade(share, partner, theirs.lse, lse[:, :, middle:])
    _trade(share, partner, found, whole[:, :, middle:])


def _strip(length: int, number: int, of: int) -> slice:
    return slice(length * number // of, length * (number + 1) // of)
