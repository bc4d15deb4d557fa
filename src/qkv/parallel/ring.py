"""`ring`: blocks of keys and values travel, and the partial answers of softmax are merged by log-sum-exp.

    lse = log Σ_c exp(lse_c)        out = Σ_c exp(lse_c − lse) out_c        over the blocks c of keys

While a rank computes with one block, the next is on its way. Only the keys that a rank's queries may see are sent, in
pieces, so that a rank holds little beside its own shard. `schedule` says who works on what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends.base import RUNS
from ..backends.blockwise import sink_gradient
from ..backends.reference import NEG_INF, Result
from ..backends.sdpa import with_sink
from ..similarity import Softmax
from .blocks import Rows, attend, gradients, tiles
from .schedule import Schedule, Step
from .share import Share, scores_dtype
from .swapping import swapped, swapped_back
from .ways import Way
from .wire import ANSWERS, Message, Pending, start


def reasons_against(share: Share) -> tuple[str, ...]:
    reasons = []
    if not isinstance(share.call.similarity, Softmax):
        reasons.append(f"{type(share.call.similarity).__name__} has no log-sum-exp by which partial answers merge")
    if share.call.dropout:
        reasons.append("dropout would have to be drawn again, block by block, in the backward pass")
    if share.call.return_weights:
        reasons.append("return_weights asks for a row of all keys, and ring never holds them")
    return tuple(reasons)


def run(share: Share) -> Result:
    RUNS["parallel.ring"] += 1
    call, schedule = share.call, Schedule(share)
    if share.needs_grad:
        inputs = call.query, call.key, call.value, share.bias, call.sink
        out, lse = _Ring.apply(share, schedule, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        out, lse = _forward(share, schedule)
        out = out.to(call.query.dtype)
    return Result(out, lse if call.return_lse else None, None)


class Buffers:
    """Room for the keys and values of a message: two to receive in turn."""

    def __init__(self, share: Share, length: int, dtype: torch.dtype) -> None:
        call = share.call
        self._heads = call.extent.batch, call.heads_kv
        self._widths = call.width, call.width_v
        size = call.extent.batch * call.heads_kv * length * (call.width + call.width_v)
        self._rooms = [torch.empty(size, dtype=dtype, device=call.query.device) for _ in range(2)]

    def views(self, turn: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """The message as it travels, and the keys and values in it."""
        batch, heads = self._heads
        cut, size = (batch * heads * length * width for width in (self._widths[0], sum(self._widths)))
        whole = self._rooms[turn % 2][:size]
        shapes = [(batch, heads, length, width) for width in self._widths]
        return whole, whole[:cut].view(shapes[0]), whole[cut:].view(shapes[1])


def packed(key: Tensor, value: Tensor) -> Tensor:
    """Both in one message."""
    message = key.new_empty(key.numel() + value.numel())
    message[: key.numel()].view(key.shape).copy_(key)
    message[key.numel() :].view(value.shape).copy_(value)
    return message


class _Travel:
    """Keys and values under way. The first message leaves at once; iterating gives every step with the keys that came
    in it, in global positions, while those of the next are on their way."""

    def __init__(self, share: Share, schedule: Schedule) -> None:
        self._share, self._schedule = share, schedule
        self._buffers = Buffers(share, schedule.piece, share.call.key.dtype)
        self._pending = self._begun(0)

    def _begun(self, turn: int) -> Pending | None:
        share, schedule, axis = self._share, self._schedule, self._share.axis
        if turn >= len(schedule.steps):
            return None
        step, first = schedule.steps[turn], share.own_keys[0]
        leaves, arrives = schedule.leaves(axis.rank, step), schedule.arrives(axis.rank, step)
        sends, receives = [], []
        if leaves is not None:
            own = slice(leaves[0] - first, leaves[1] - first)
            message = packed(share.call.key[:, :, own], share.call.value[:, :, own])
            sends.append(Message(axis.after(step.distance), message))
        if arrives is not None:
            room, _, _ = self._buffers.views(turn, arrives[1] - arrives[0])
            receives.append(Message(axis.after(-step.distance), room))
        return start(axis, sends, receives)

    def __iter__(self) -> Iterator[tuple[Step, tuple[int, int] | None, Tensor, Tensor]]:
        for turn, step in enumerate(self._schedule.steps):
            assert self._pending is not None
            self._pending.wait()
            self._pending = self._begun(turn + 1)
            arrives = self._schedule.arrives(self._share.axis.rank, step)
            _, key, value = self._buffers.views(turn, 0 if arrives is None else arrives[1] - arrives[0])
            yield step, arrives, key, value


class _Paced:
    """Work on a rank's own keys, done between the steps in such parts that all ranks come to a step at the same time:
    nobody waits for a rank that has much to do at home."""

    def __init__(self, share: Share, schedule: Schedule, both: tuple[Rows, Rows], work: Callable[[Rows], None]) -> None:
        parts = [tile for rows in both for tile in tiles(share, rows)]
        self._tasks = [(tile, schedule.pairs(tile.rows, share.own_keys)) for tile in reversed(parts)]
        self._work, self._steps, self._rank = work, schedule.steps, share.axis.rank
        self._pairs = {step: self._of_step(schedule, both, step) for step in schedule.steps}
        total = sum(pairs for _, pairs in self._tasks) + sum(self._pairs.values())
        self._stretch = total / (len(schedule.steps) + 1)
        self._done, self._due = 0.0, 0.0

    def _of_step(self, schedule: Schedule, both: tuple[Rows, Rows], step: Step) -> int:
        keys = schedule.arrives(self._rank, step)
        return 0 if keys is None else sum(schedule.pairs(rows.rows, keys) for rows in both)

    def begin(self) -> None:
        """While the first message is on its way."""
        self._advance(0)

    def keep_up(self, step: Step) -> None:
        """After a step."""
        self._advance(self._pairs[step])

    def _advance(self, done: int) -> None:
        self._done += done
        self._due += self._stretch
        while self._tasks and self._done < self._due:
            self._next()

    def finish(self) -> None:
        while self._tasks:
            self._next()

    def _next(self) -> None:
        tile, pairs = self._tasks.pop()
        self._work(tile)
        self._done += pairs


def _forward(share: Share, schedule: Schedule) -> tuple[Tensor, Tensor]:
    call = share.call
    with torch.no_grad():
        shape = call.query.shape[:3]
        out = call.query.new_zeros((*shape, call.width_v), dtype=scores_dtype(share))
        lse = call.query.new_full(shape, NEG_INF, dtype=scores_dtype(share))
        kept, theirs = swapped(share, schedule, out, lse)
        travel = _Travel(share, schedule)
        own = _Paced(share, schedule, (kept, theirs), lambda t: _merge(share, t, call.key, call.value, share.own_keys))
        own.begin()
        for step, keys, key, value in travel:
            if keys is not None:
                for rows in (kept, theirs):
                    _merge(share, rows, key, value, keys)
            own.keep_up(step)
        own.finish()
        swapped_back(share, schedule, out, lse, theirs)
        if call.sink is not None:
            out, lse = with_sink(out, lse, call.sink.detach())
    return out, lse


def _merge(share: Share, rows: Rows, key: Tensor, value: Tensor, keys: tuple[int, int]) -> None:
    """The answers to some keys into those to all so far."""
    for tile in tiles(share, rows):
        found = attend(share, tile, key, value, keys)
        if found is not None:
            merge_into(tile.out, tile.lse, *found)
        del found  # before the next one is made


def merge_into(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """out, lse ← both together; −inf is a part with nothing in it."""
    total = torch.logaddexp(lse, more_lse)
    top = torch.where(total == NEG_INF, 0.0, total)
    # An infinite value that is attended stays infinite, however small its weight: 0·∞ would be NaN.
    least = torch.finfo(out.dtype).tiny
    out.mul_(torch.exp(lse - top).clamp_min_(least).unsqueeze(-1))
    out.addcmul_(more.to(out.dtype), torch.exp(more_lse - top).clamp_min_(least).unsqueeze(-1))
    lse.copy_(total)


class _Ring(torch.autograd.Function):
    """Backward, keys and values travel again, and what comes back for them goes to their owners.

    In the forward pass this was: P_ij = exp(s_ij − lse_i), out_i = Σ_j P_ij v_j. Since ds_ij = P_ij (dout_i·v_j −
    dout_i·out_i + dlse_i) needs only the row's final lse and out, each block of keys has its share without the others.
    """

    @staticmethod
    def forward(ctx, share, schedule, query, key, value, bias, sink):  # pyright: ignore[reportIncompatibleMethodOverride]
        out, lse = _forward(share, schedule)
        ctx.share = share._replace(call=share.call._replace(query=None, key=None, value=None), bias=None)
        ctx.schedule = schedule
        ctx.save_for_backward(query, key, value, bias, sink, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(query.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, bias, sink, out, lse = ctx.saved_tensors
        call = ctx.share.call._replace(query=query, key=key, value=value)
        share: Share = ctx.share._replace(call=call, bias=bias)
        dtype = scores_dtype(share)
        grad_out = torch.zeros_like(out, dtype=query.dtype) if grad_out is None else grad_out
        # What comes back for a row that saw nothing must not reach a key, whatever it is.
        empty = lse == NEG_INF
        grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
        if share.call.return_lse:  # on every rank, whether this one used its lse or not
            grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(empty, 0.0)
        found = _backward(share, ctx.schedule, out, lse, grad_out, grad_lse)
        by_sink = None
        if share.learns[4] and sink is not None:
            level = -(grad_out.to(dtype) * out.to(dtype)).sum(-1)
            by_sink = sink_gradient(sink, lse, level if grad_lse is None else level + grad_lse)
        inputs = query, key, value, bias
        wanted = (
            None if grad is None or not wants or tensor is None else grad.to(tensor.dtype)
            for grad, wants, tensor in zip(found, share.learns[:4], inputs, strict=True)
        )
        return None, None, *wanted, by_sink


def _backward(
    share: Share, schedule: Schedule, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    call, axis, dtype = share.call, share.axis, scores_dtype(share)
    by_query = torch.zeros_like(call.query, dtype=dtype)
    by_key, by_value = torch.zeros_like(call.key, dtype=dtype), torch.zeros_like(call.value, dtype=dtype)
    by_bias = torch.zeros_like(share.bias, dtype=dtype) if share.bias is not None and share.learns[3] else None
    every = _, theirs = swapped(share, schedule, out, lse, grad_out, grad_lse, by_query)
    travel, first = _Travel(share, schedule), share.own_keys[0]

    start_ = share.rows[0]
    own = _Paced(
        share, schedule, every,
        lambda t: gradients(share, t, call.key, call.value, share.own_keys, by_key, by_value, by_bias, start_),
    )  # fmt: skip
    own.begin()
    answers = Buffers(share, schedule.piece, dtype)
    returning: list[tuple[int, tuple[int, int] | None, Pending]] = []

    def returned(turn: int, keys: tuple[int, int] | None, pending: Pending) -> None:
        pending.wait()
        if keys is not None:
            _, key, value = answers.views(turn, keys[1] - keys[0])
            own = slice(keys[0] - first, keys[1] - first)
            by_key[:, :, own] += key
            by_value[:, :, own] += value

    for turn, (step, keys, key, value) in enumerate(travel):
        sends, receives = [], []
        if keys is not None:
            more_key, more_value = torch.zeros_like(key, dtype=dtype), torch.zeros_like(value, dtype=dtype)
            for rows in every:
                gradients(share, rows, key, value, keys, more_key, more_value, by_bias, start_)
            sends.append(Message(axis.after(-step.distance), packed(more_key, more_value)))
        gone = schedule.leaves(axis.rank, step)
        if len(returning) == 2:
            returned(*returning.pop(0))
        if gone is not None:
            receives.append(Message(axis.after(step.distance), answers.views(turn, gone[1] - gone[0])[0]))
        returning.append((turn, gone, start(axis, sends, receives, ANSWERS)))
        own.keep_up(step)
    own.finish()
    for waiting in returning:
        returned(*waiting)
    swapped_back(share, schedule, by_query, None, theirs)
    return by_query, by_key, by_value, by_bias


RING = Way("ring", "blocks of keys and values travel, partial answers merge by log-sum-exp", reasons_against, run)
