"""The strategy `ring`: keys and values are sent round a ring, and partial results of softmax are merged by log-sum-exp.

    lse = log Σ_c exp(lse_c)        out = Σ_c exp(lse_c − lse) out_c        over the blocks c of keys

While a rank computes with one block, it receives the next. Only the keys that a rank's queries may attend to are sent,
in pieces, so that a rank needs little memory besides its own shard.

Under a causal mask the last rank would have the most work. So every rank keeps the first half of its queries and works
on the second half of its partner's: rank r and rank R − 1 − r together have as much work as any other pair, and each
does half of it. Keys and values stay on their ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..backends import sdpa
from ..backends.base import RUNS
from ..backends.blockwise import sink_gradient
from ..backends.dispatch import choose
from ..backends.reference import NEG_INF, Result
from ..backends.sdpa import add_sink
from ..inputs import AttentionInputs, read_inputs
from ..masks import Band, Mask
from ..similarity import Softmax
from .inputs import ShardedInputs, compute_dtype_of
from .transfer import RESULTS, Message, Pending, start

Range = tuple[int, int]
MIN_PIECE, MAX_PIECES = 1024, 64  # tokens of a message, and messages of a shard
MAX_BALANCED_RATIO = 0.95  # partners exchange queries if that reduces the work of the busiest rank by this factor


class RingStep(NamedTuple):
    """The number-th piece that every rank sends to the rank `distance` after it."""

    distance: int
    number: int


class Schedule:
    """Which queries every rank works on, and which keys it sends and receives in each step; the same on every rank.

    rows: for each rank the queries that it keeps and those of its partner that it works on.
    """

    def __init__(self, sharded: ShardedInputs) -> None:
        self._sharded = sharded
        self._size = sharded.axis.size
        own = [(sharded.queries.of(rank), (0, 0)) for rank in range(self._size)]
        swapped = [self._halved(rank) for rank in range(self._size)]
        self.swaps = (
            self._size > 1 and sharded.bias is None and self._most(swapped) < MAX_BALANCED_RATIO * self._most(own)
        )
        self.rows: list[tuple[Range, Range]] = swapped if self.swaps else own
        longest = max(stop - start for start, stop in map(sharded.keys.of, range(self._size)))
        self.piece = max(MIN_PIECE, -(-longest // MAX_PIECES))

    def partner(self, rank: int) -> int:
        return self._size - 1 - rank

    def half(self, rank: int) -> int:
        """The first of a rank's queries that its partner works on."""
        start, stop = self._sharded.queries.of(rank)
        return stop if self.partner(rank) == rank else start + (stop - start + 1) // 2

    def _halved(self, rank: int) -> tuple[Range, Range]:
        partner, start = self.partner(rank), self._sharded.queries.of(rank)[0]
        kept = start, self.half(rank)
        return kept, (0, 0) if partner == rank else (self.half(partner), self._sharded.queries.of(partner)[1])

    def _most(self, rows: list[tuple[Range, Range]]) -> int:
        return max(sum(map(self._work, runs)) for runs in rows)

    def _work(self, run: Range) -> int:
        return self.pairs(run, (0, self._sharded.extent.len_k))

    def pairs(self, rows: Range, keys: Range) -> int:
        """How many of these pairs the mask allows, as far as it is a band."""
        if rows[0] >= rows[1] or keys[0] >= keys[1]:
            return 0
        band = self._band
        batch = range(self._sharded.extent.batch) if band.starts is not None or band.stops is not None else range(1)
        return sum(band.count(b, rows, keys) for b in batch)

    @cached_property
    def _band(self) -> Band:
        """The parts of the mask that are bands; other parts are assumed to mask the same fraction everywhere."""
        band, parts = Band(), () if self._sharded.mask is None else self._sharded.mask.parts()
        for part in parts:
            own: Band | None = part.band(self._sharded.extent) if isinstance(part, Mask) else None
            band = band if own is None else band.intersect(own)
        return band

    @cached_property
    def _attended(self) -> list[list[Range]]:
        """For each rank the keys that the queries it works on may attend to: two ranges, which may be empty."""
        mask, extent = self._sharded.mask, self._sharded.extent
        everything = 0, extent.len_k
        return [
            [
                (0, 0) if rows[0] >= rows[1] else everything if mask is None else mask.bounds(extent, rows)
                for rows in both
            ]
            for both in self.rows
        ]

    def pieces(self, rank: int, of: int) -> list[Range]:
        """The keys of rank `of` that a rank needs for the queries it works on, divided into messages."""
        first, last = self._sharded.keys.of(of)
        cut = [(max(lo, first), min(hi, last)) for lo, hi in self._attended[rank]]
        runs = sorted(run for run in cut if run[0] < run[1])
        joined: list[Range] = []
        for lo, hi in runs:
            if joined and lo <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(hi, joined[-1][1])
            else:
                joined.append((lo, hi))
        return [(lo, min(lo + self.piece, stop)) for start, stop in joined for lo in range(start, stop, self.piece)]

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], list[Range]]:
        ranks = range(self._size)
        return {(rank, of): self.pieces(rank, of) for rank in ranks for of in ranks if rank != of}

    @cached_property
    def steps(self) -> list[RingStep]:
        """All steps, in the same order on every rank, which prevents deadlocks."""
        found = []
        for distance in range(1, self._size):
            most = max(len(self._pieces[(rank + distance) % self._size, rank]) for rank in range(self._size))
            found += [RingStep(distance, number) for number in range(most)]
        return found

    def received(self, rank: int, step: RingStep) -> Range | None:
        """The keys that a rank receives in a step, from the rank `distance` before it."""
        return _get(self._pieces[rank, (rank - step.distance) % self._size], step.number)

    def sent(self, rank: int, step: RingStep) -> Range | None:
        """The keys that a rank sends in a step, to the rank `distance` after it."""
        return _get(self._pieces[(rank + step.distance) % self._size, rank], step.number)


def _get(pieces: list[Range], number: int) -> Range | None:
    return pieces[number] if number < len(pieces) else None


TILE_NUMBERS = 1 << 18  # numbers of a partial result that is not merged yet


class Rows(NamedTuple):
    """Queries at global positions with their results and gradients.

    out, lse: partial in the forward pass, final in the backward pass. grad_out, grad_lse: incoming gradients.
    grad_query: is added to. bias: of these rows, or None.
    """

    positions: Range
    query: Tensor
    out: Tensor
    lse: Tensor
    grad_out: Tensor | None
    grad_lse: Tensor | None
    grad_query: Tensor | None
    bias: Tensor | None

    def narrow(self, first: int, stop: int) -> Rows:
        """The rows first to stop - 1, counted from the first of these rows."""
        part = slice(first, stop)
        bias = self.bias
        if bias is not None and bias.shape[2] > 1:
            bias = bias[:, :, part]
        return Rows(
            (self.positions[0] + first, self.positions[0] + stop),
            self.query[:, :, part],
            self.out[:, :, part],
            self.lse[:, :, part],
            None if self.grad_out is None else self.grad_out[:, :, part],
            None if self.grad_lse is None else self.grad_lse[:, :, part],
            None if self.grad_query is None else self.grad_query[:, :, part],
            bias,
        )


def split_tiles(sharded: ShardedInputs, rows: Rows) -> Iterator[Rows]:
    """The rows in tiles with small results."""
    count, extent = rows.positions[1] - rows.positions[0], sharded.extent
    step = max(256, TILE_NUMBERS // max(1, extent.batch * extent.heads * max(sharded.call.width, sharded.call.width_v)))
    for first in range(0, count, step):
        yield rows.narrow(first, min(first + step, count))


def _block_inputs(
    sharded: ShardedInputs, tile: Rows, key: Tensor, value: Tensor, keys: Range
) -> tuple[AttentionInputs, slice] | None:
    """The call of these rows and the keys that they may attend to; None if there are none."""
    lo, hi = (0, sharded.extent.len_k) if sharded.mask is None else sharded.mask.bounds(sharded.extent, tile.positions)
    lo, hi = max(lo, keys[0]), min(hi, keys[1])
    if lo >= hi or not tile.query.numel():
        return None
    attended = slice(lo - keys[0], hi - keys[0])
    similarity = sharded.call.similarity
    assert isinstance(similarity, Softmax)
    if similarity.sink is not None:  # added once, at the end
        similarity = Softmax(similarity.scale_for(sharded.call.width), similarity.softcap)
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, tile.positions, (lo, hi))
    bias = tile.bias
    if bias is not None and bias.shape[3] > 1:
        bias = bias[..., lo:hi]
    key, value = key[:, :, attended], value[:, :, attended]
    backend = sharded.call.backend
    return read_inputs(tile.query, key, value, similarity, mask, bias, 0.0, backend, True, False), attended


def attend_block(
    sharded: ShardedInputs, tile: Rows, key: Tensor, value: Tensor, keys: Range
) -> tuple[Tensor, Tensor] | None:
    """out and lse of the tile over these keys alone; None if it attends to none of them."""
    block = _block_inputs(sharded, tile, key, value, keys)
    if block is None:
        return None
    call, _ = block
    result = choose(call).run(call)
    assert result.lse is not None
    return result.out, result.lse


def add_block_gradients(
    sharded: ShardedInputs,
    rows: Rows,
    key: Tensor,
    value: Tensor,
    keys: Range,
    grad_key: Tensor,
    grad_value: Tensor,
    grad_bias: Tensor | None,
    first: int,
) -> None:
    """Add the contributions of these pairs to the gradients of rows, keys, values and bias. first: the position of the
    first row of the bias."""
    for tile in split_tiles(sharded, rows):
        block = _block_inputs(sharded, tile, key, value, keys)
        if block is None:
            continue
        call, attended = block
        assert tile.grad_out is not None
        assert tile.grad_query is not None
        if _flash_applies(call, tile, grad_bias):
            RUNS["parallel.flash"] += 1
            found = sdpa.partial_gradients(call, tile.grad_out, tile.out.to(call.query.dtype), tile.lse)
        else:
            RUNS["parallel.autograd"] += 1
            *found, more_bias = _autograd_gradients(call, tile, grad_bias is not None)
            if grad_bias is not None and more_bias is not None:
                lo = keys[0] + attended.start
                _bias_slice(grad_bias, tile.positions[0] - first, call, lo).add_(more_bias)
        tile.grad_query.add_(found[0])
        grad_key[:, :, attended].add_(found[1])
        grad_value[:, :, attended].add_(found[2])


def _bias_slice(grad_bias: Tensor, row: int, call: AttentionInputs, lo: int) -> Tensor:
    rows = slice(row, row + call.extent.len_q) if grad_bias.shape[2] > 1 else slice(None)
    keys = slice(lo, lo + call.extent.len_k) if grad_bias.shape[3] > 1 else slice(None)
    return grad_bias[:, :, rows, keys]


def _flash_applies(call: AttentionInputs, tile: Rows, grad_bias: Tensor | None) -> bool:
    if grad_bias is not None or sdpa.flash_reasons_against(call):
        return False
    if tile.grad_lse is not None and tile.grad_lse.any():
        return False
    if not ops.all_finite(call.query, call.key, call.value):
        return False
    return not (tile.lse.isnan() | (tile.lse == torch.inf)).any()


def _autograd_gradients(
    call: AttentionInputs, tile: Rows, with_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """By autograd through the block, with its weight in the merged result.

    out = Σ_c w_c out_c with w_c = exp(lse_c − lse), and so dout_c = w_c dout and
    dlse_c = w_c (dout·out_c − dout·out + dlse).
    """
    assert tile.grad_out is not None
    dtype = tile.lse.dtype
    with torch.enable_grad():
        # In the compute dtype: the difference of two rounded results would have no correct digits.
        query, key, value = (
            tensor.detach().to(dtype).requires_grad_() for tensor in (call.query, call.key, call.value)
        )
        bias = call.bias.detach().to(dtype).requires_grad_(with_bias) if call.bias is not None else None
        inputs = [query, key, value, *([bias] if bias is not None and with_bias else [])]
        own = read_inputs(query, key, value, call.similarity, call.mask, bias, 0.0, "auto", True, False)
        result = choose(own).run(own)
    assert result.lse is not None
    with torch.no_grad():
        lse = torch.where(tile.lse == NEG_INF, 0.0, tile.lse)
        weight = torch.exp(result.lse - lse)
        grad_out, out = tile.grad_out.to(dtype), result.out.to(dtype)
        shift = (grad_out * out).sum(-1) - (grad_out * tile.out.to(dtype)).sum(-1)
        if tile.grad_lse is not None:
            shift = shift + tile.grad_lse
        # A row that attends to nothing in the block has weight 0 and no gradient.
        empty = result.lse == NEG_INF
        block_grad_lse = torch.where(empty, 0.0, weight * shift)
        block_grad_out = torch.where(empty.unsqueeze(-1), 0.0, weight.unsqueeze(-1) * grad_out)
    found = torch.autograd.grad(
        [result.out, result.lse],
        inputs,
        [block_grad_out.to(result.out.dtype), block_grad_lse.to(result.lse.dtype)],
        allow_unused=True,
    )
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)]
    return filled[0], filled[1], filled[2], filled[3] if len(filled) > 3 else None


STRIP_BYTES, MAX_STRIPS = 1 << 19, 16  # bytes of a message, and messages of an exchange


def exchange_rows(
    sharded: ShardedInputs,
    schedule: Schedule,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor | None = None,
    grad_lse: Tensor | None = None,
    grad_query: Tensor | None = None,
) -> tuple[Rows, Rows]:
    """Exchange the second half of the rows with the partner: the rows that this rank keeps, and its partner's.

    out, lse: of the rank's own rows. In the forward pass the results of the partner's rows are written to the memory of
    the own second half, if they fit. In the backward pass (grad_out given) out and lse are read, and grad_query is
    written.
    """
    call, (kept, theirs) = sharded.call, schedule.rows[sharded.axis.rank]
    first_query, stop = sharded.rows
    middle = kept[1] - first_query
    own = slice(0, middle)
    backward = grad_out is not None
    first = Rows(
        kept, call.query[:, :, own], out[:, :, own], lse[:, :, own],
        None if grad_out is None else grad_out[:, :, own], None if grad_lse is None else grad_lse[:, :, own],
        None if grad_query is None else grad_query[:, :, own],
        sharded.bias,
    )  # fmt: skip
    rest, count = slice(middle, stop - first_query), theirs[1] - theirs[0]
    if not schedule.swaps:
        return first, first._replace(positions=(0, 0), query=call.query[:, :, :0])
    # Results are sent in the query's dtype; the rank's own stay in the compute dtype.
    own_tensors = [call.query, *((out.to(call.query.dtype), lse, grad_out, grad_lse) if backward else ())]
    received = [
        None if tensor is None else _partner_rows(sharded, schedule, tensor, rest, count) for tensor in own_tensors
    ]
    query = received[0]
    assert query is not None
    fits = count == stop - first_query - middle
    if not backward:
        partial = out[:, :, rest] if fits else out.new_zeros((*out.shape[:2], count, out.shape[3]))
        partial_lse = lse[:, :, rest] if fits else lse.new_full((*lse.shape[:2], count), float("-inf"))
        return first, Rows(theirs, query, partial, partial_lse, None, None, None, None)
    assert grad_query is not None
    assert received[1] is not None
    assert received[2] is not None
    grads = (
        grad_query[:, :, rest] if fits else grad_query.new_zeros((*grad_query.shape[:2], count, grad_query.shape[3]))
    )
    return first, Rows(theirs, query, received[1], received[2], received[3], received[4], grads, None)


def _partner_rows(sharded: ShardedInputs, schedule: Schedule, tensor: Tensor, rest: slice, count: int) -> Tensor:
    """Send the second half of a tensor to the partner, and receive its second half."""
    partner = schedule.partner(sharded.axis.rank)
    if partner == sharded.axis.rank:
        return tensor[:, :, :0]
    found = tensor.new_empty((*tensor.shape[:2], count, *tensor.shape[3:]))
    _swap(sharded, partner, tensor[:, :, rest], found)
    return found


def _swap(sharded: ShardedInputs, partner: int, outgoing: Tensor, incoming: Tensor) -> None:
    """Send `outgoing` to the partner and receive `incoming`, which may be the same memory: strip by strip, without a
    second copy of either. Both ranks know both sizes, and so the number of strips."""
    largest = max(outgoing.numel(), incoming.numel()) * outgoing.element_size()
    strips = min(MAX_STRIPS, 1 + largest // STRIP_BYTES)
    for strip in range(strips):
        there, here = (_strip_slice(tensor.shape[2], strip, strips) for tensor in (outgoing, incoming))
        buffer = incoming.new_empty((*incoming.shape[:2], here.stop - here.start, *incoming.shape[3:]))
        start(sharded.axis, [Message(partner, outgoing[:, :, there].contiguous())], [Message(partner, buffer)]).wait()
        incoming[:, :, here] = buffer


def return_rows(sharded: ShardedInputs, schedule: Schedule, whole: Tensor, lse: Tensor | None, theirs: Rows) -> None:
    """Send the results of the partner's rows back to it, and receive those of the own second half into `whole` and
    lse."""
    partner = schedule.partner(sharded.axis.rank)
    if not schedule.swaps or partner == sharded.axis.rank:
        return
    middle = schedule.half(sharded.axis.rank) - sharded.rows[0]
    found = theirs.out if theirs.grad_query is None else theirs.grad_query
    if lse is not None:
        _swap(sharded, partner, theirs.lse, lse[:, :, middle:])
    _swap(sharded, partner, found, whole[:, :, middle:])


def _strip_slice(length: int, number: int, of: int) -> slice:
    return slice(length * number // of, length * (number + 1) // of)


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = []
    if not isinstance(sharded.call.similarity, Softmax):
        reasons.append(f"{type(sharded.call.similarity).__name__} has no log-sum-exp to merge partial results by")
    if sharded.call.dropout:
        reasons.append("dropout would have to be drawn again for each block in the backward pass")
    if sharded.call.return_weights:
        reasons.append("return_weights needs all keys on one rank, which ring never has")
    return tuple(reasons)


def run(sharded: ShardedInputs) -> Result:
    RUNS["parallel.ring"] += 1
    call, schedule = sharded.call, Schedule(sharded)
    if sharded.needs_grad:
        inputs = call.query, call.key, call.value, sharded.bias, call.sink
        out, lse = _RingAttention.apply(sharded, schedule, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        out, lse = _forward(sharded, schedule)
        out = out.to(call.query.dtype)
    return Result(out, lse if call.return_lse else None, None)


class Buffers:
    """Two buffers, used in turn, for the keys and values of a message."""

    def __init__(self, sharded: ShardedInputs, length: int, dtype: torch.dtype) -> None:
        call = sharded.call
        self._heads = call.extent.batch, call.heads_kv
        self._widths = call.width, call.width_v
        size = call.extent.batch * call.heads_kv * length * (call.width + call.width_v)
        self._buffers = [torch.empty(size, dtype=dtype, device=call.query.device) for _ in range(2)]

    def views(self, turn: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """The message, and views of the keys and values in it."""
        batch, heads = self._heads
        cut, size = (batch * heads * length * width for width in (self._widths[0], sum(self._widths)))
        whole = self._buffers[turn % 2][:size]
        shapes = [(batch, heads, length, width) for width in self._widths]
        return whole, whole[:cut].view(shapes[0]), whole[cut:].view(shapes[1])


def pack_message(key: Tensor, value: Tensor) -> Tensor:
    """Keys and values in one message."""
    message = key.new_empty(key.numel() + value.numel())
    message[: key.numel()].view(key.shape).copy_(key)
    message[key.numel() :].view(value.shape).copy_(value)
    return message


class _KeyTransfers:
    """Keys and values in transit. The first transfer starts at once; iterating yields every step with the keys that it
    received, in global positions, while the next transfer is in progress."""

    def __init__(self, sharded: ShardedInputs, schedule: Schedule) -> None:
        self._sharded, self._schedule = sharded, schedule
        self._buffers = Buffers(sharded, schedule.piece, sharded.call.key.dtype)
        self._pending = self._start(0)

    def _start(self, turn: int) -> Pending | None:
        sharded, schedule, axis = self._sharded, self._schedule, self._sharded.axis
        if turn >= len(schedule.steps):
            return None
        step, first = schedule.steps[turn], sharded.own_keys[0]
        sent, received = schedule.sent(axis.rank, step), schedule.received(axis.rank, step)
        sends, receives = [], []
        if sent is not None:
            own = slice(sent[0] - first, sent[1] - first)
            message = pack_message(sharded.call.key[:, :, own], sharded.call.value[:, :, own])
            sends.append(Message(axis.after(step.distance), message))
        if received is not None:
            buffer, _, _ = self._buffers.views(turn, received[1] - received[0])
            receives.append(Message(axis.after(-step.distance), buffer))
        return start(axis, sends, receives)

    def __iter__(self) -> Iterator[tuple[RingStep, tuple[int, int] | None, Tensor, Tensor]]:
        for turn, step in enumerate(self._schedule.steps):
            assert self._pending is not None
            self._pending.wait()
            self._pending = self._start(turn + 1)
            received = self._schedule.received(self._sharded.axis.rank, step)
            _, key, value = self._buffers.views(turn, 0 if received is None else received[1] - received[0])
            yield step, received, key, value


class _PacedLocalWork:
    """Work on a rank's own keys, divided among the steps so that all ranks reach a step at the same time."""

    def __init__(
        self, sharded: ShardedInputs, schedule: Schedule, both: tuple[Rows, Rows], work: Callable[[Rows], None]
    ) -> None:
        parts = [tile for rows in both for tile in split_tiles(sharded, rows)]
        self._tasks = [(tile, schedule.pairs(tile.positions, sharded.own_keys)) for tile in reversed(parts)]
        self._work, self._steps, self._rank = work, schedule.steps, sharded.axis.rank
        self._pairs = {step: self._pairs_of_step(schedule, both, step) for step in schedule.steps}
        total = sum(pairs for _, pairs in self._tasks) + sum(self._pairs.values())
        self._per_step = total / (len(schedule.steps) + 1)
        self._done, self._due = 0.0, 0.0

    def _pairs_of_step(self, schedule: Schedule, both: tuple[Rows, Rows], step: RingStep) -> int:
        keys = schedule.received(self._rank, step)
        return 0 if keys is None else sum(schedule.pairs(rows.positions, keys) for rows in both)

    def begin(self) -> None:
        """Work during the first transfer."""
        self._advance(0)

    def advance(self, step: RingStep) -> None:
        """Work after a step."""
        self._advance(self._pairs[step])

    def _advance(self, done: int) -> None:
        self._done += done
        self._due += self._per_step
        while self._tasks and self._done < self._due:
            self._next()

    def finish(self) -> None:
        while self._tasks:
            self._next()

    def _next(self) -> None:
        tile, pairs = self._tasks.pop()
        self._work(tile)
        self._done += pairs


def _forward(sharded: ShardedInputs, schedule: Schedule) -> tuple[Tensor, Tensor]:
    call = sharded.call
    with torch.no_grad():
        shape = call.query.shape[:3]
        out = call.query.new_zeros((*shape, call.width_v), dtype=compute_dtype_of(sharded))
        lse = call.query.new_full(shape, NEG_INF, dtype=compute_dtype_of(sharded))
        kept, theirs = exchange_rows(sharded, schedule, out, lse)
        transfers = _KeyTransfers(sharded, schedule)
        own = _PacedLocalWork(
            sharded, schedule, (kept, theirs), lambda t: _merge(sharded, t, call.key, call.value, sharded.own_keys)
        )
        own.begin()
        for step, keys, key, value in transfers:
            if keys is not None:
                for rows in (kept, theirs):
                    _merge(sharded, rows, key, value, keys)
            own.advance(step)
        own.finish()
        return_rows(sharded, schedule, out, lse, theirs)
        if call.sink is not None:
            out, lse = add_sink(out, lse, call.sink.detach())
    return out, lse


def _merge(sharded: ShardedInputs, rows: Rows, key: Tensor, value: Tensor, keys: tuple[int, int]) -> None:
    """Attend to some keys and merge the results into those of the rows."""
    for tile in split_tiles(sharded, rows):
        found = attend_block(sharded, tile, key, value, keys)
        if found is not None:
            merge_into(tile.out, tile.lse, *found)
        del found  # frees its memory before the next one


def merge_into(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Merge a partial result into out and lse, in place; an lse of −inf is an empty part."""
    total = torch.logaddexp(lse, more_lse)
    top = torch.where(total == NEG_INF, 0.0, total)
    # An infinite value that is attended stays infinite, however small its weight: 0·∞ would be NaN.
    least = torch.finfo(out.dtype).tiny
    out.mul_(torch.exp(lse - top).clamp_min_(least).unsqueeze(-1))
    out.addcmul_(more.to(out.dtype), torch.exp(more_lse - top).clamp_min_(least).unsqueeze(-1))
    lse.copy_(total)


class _RingAttention(torch.autograd.Function):
    """In the backward pass keys and values are sent again, and their gradients are sent back to their ranks.

    The forward pass computes P_ij = exp(s_ij − lse_i) and out_i = Σ_j P_ij v_j. Since ds_ij = P_ij (dout_i·v_j −
    dout_i·out_i + dlse_i) needs only the final lse and out of the row, each block of keys is differentiated alone.
    """

    @staticmethod
    def forward(ctx, sharded, schedule, query, key, value, bias, sink):  # pyright: ignore[reportIncompatibleMethodOverride]
        out, lse = _forward(sharded, schedule)
        ctx.sharded = sharded._replace(call=sharded.call._replace(query=None, key=None, value=None), bias=None)
        ctx.schedule = schedule
        ctx.save_for_backward(query, key, value, bias, sink, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(query.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, bias, sink, out, lse = ctx.saved_tensors
        call = ctx.sharded.call._replace(query=query, key=key, value=value)
        sharded: ShardedInputs = ctx.sharded._replace(call=call, bias=bias)
        dtype = compute_dtype_of(sharded)
        grad_out = torch.zeros_like(out, dtype=query.dtype) if grad_out is None else grad_out
        # The gradient of a row that attends to nothing must not reach a key.
        empty = lse == NEG_INF
        grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
        if sharded.call.return_lse:  # the same on every rank, even if this one did not use its lse
            grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(empty, 0.0)
        found = _backward(sharded, ctx.schedule, out, lse, grad_out, grad_lse)
        grad_sink = None
        if sharded.requires_grad[4] and sink is not None:
            shift = -(grad_out.to(dtype) * out.to(dtype)).sum(-1)
            grad_sink = sink_gradient(sink, lse, shift if grad_lse is None else shift + grad_lse)
        inputs = query, key, value, bias
        grads = (
            None if grad is None or not needed or tensor is None else grad.to(tensor.dtype)
            for grad, needed, tensor in zip(found, sharded.requires_grad[:4], inputs, strict=True)
        )
        return None, None, *grads, grad_sink


def _backward(
    sharded: ShardedInputs, schedule: Schedule, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    call, axis, dtype = sharded.call, sharded.axis, compute_dtype_of(sharded)
    grad_query = torch.zeros_like(call.query, dtype=dtype)
    grad_key, grad_value = torch.zeros_like(call.key, dtype=dtype), torch.zeros_like(call.value, dtype=dtype)
    grad_bias = (
        torch.zeros_like(sharded.bias, dtype=dtype) if sharded.bias is not None and sharded.requires_grad[3] else None
    )
    every = _, theirs = exchange_rows(sharded, schedule, out, lse, grad_out, grad_lse, grad_query)
    transfers, first = _KeyTransfers(sharded, schedule), sharded.own_keys[0]

    first_query = sharded.rows[0]
    own = _PacedLocalWork(
        sharded, schedule, every,
        lambda tile: add_block_gradients(
            sharded, tile, call.key, call.value, sharded.own_keys, grad_key, grad_value, grad_bias, first_query
        ),
    )  # fmt: skip
    own.begin()
    results = Buffers(sharded, schedule.piece, dtype)
    returning: list[tuple[int, tuple[int, int] | None, Pending]] = []

    def receive(turn: int, keys: tuple[int, int] | None, pending: Pending) -> None:
        pending.wait()
        if keys is not None:
            _, key, value = results.views(turn, keys[1] - keys[0])
            own = slice(keys[0] - first, keys[1] - first)
            grad_key[:, :, own] += key
            grad_value[:, :, own] += value

    for turn, (step, keys, key, value) in enumerate(transfers):
        sends, receives = [], []
        if keys is not None:
            more_key, more_value = torch.zeros_like(key, dtype=dtype), torch.zeros_like(value, dtype=dtype)
            for rows in every:
                add_block_gradients(sharded, rows, key, value, keys, more_key, more_value, grad_bias, first_query)
            sends.append(Message(axis.after(-step.distance), pack_message(more_key, more_value)))
        sent = schedule.sent(axis.rank, step)
        if len(returning) == 2:
            receive(*returning.pop(0))
        if sent is not None:
            receives.append(Message(axis.after(step.distance), results.views(turn, sent[1] - sent[0])[0]))
        returning.append((turn, sent, start(axis, sends, receives, RESULTS)))
        own.advance(step)
    own.finish()
    for waiting in returning:
        receive(*waiting)
    return_rows(sharded, schedule, grad_query, None, theirs)
    return grad_query, grad_key, grad_value, grad_bias
