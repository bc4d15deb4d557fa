"""Who works on which queries, and which keys travel where and when: settled by sizes and the mask, alike on every rank.

Under a causal mask the last rank would have most to do. So every rank keeps the first half of its queries and works on
the second half of the rank that stands as far from the other end: rank r and rank R − 1 − r together have as much to do
as any other two, and each does half of it. Keys and values stay where they are.
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

Run = tuple[int, int]
MIN_PIECE, MAX_PIECES = 1024, 64  # tokens of a message at least, and messages for a shard at most
MAX_BALANCED_RATIO = 0.95  # queries change places where the busiest rank has no more than this part of its work left


class RingStep(NamedTuple):
    """The number-th piece between ranks that stand `distance` apart round the ring."""

    distance: int
    number: int


class Schedule:
    """What every rank does. rows: for each rank the queries that it keeps and those of its partner that it works on."""

    def __init__(self, sharded: ShardedInputs) -> None:
        self._sharded = sharded
        self._size = sharded.axis.size
        plain = [(sharded.queries.of(rank), (0, 0)) for rank in range(self._size)]
        swapped = [self._halved(rank) for rank in range(self._size)]
        self.swaps = (
            self._size > 1 and sharded.bias is None and self._most(swapped) < MAX_BALANCED_RATIO * self._most(plain)
        )
        self.rows: list[tuple[Run, Run]] = swapped if self.swaps else plain
        longest = max(stop - start for start, stop in map(sharded.keys.of, range(self._size)))
        self.piece = max(MIN_PIECE, -(-longest // MAX_PIECES))

    def partner(self, rank: int) -> int:
        return self._size - 1 - rank

    def half(self, rank: int) -> int:
        """The first of a rank's queries that its partner works on."""
        start, stop = self._sharded.queries.of(rank)
        return stop if self.partner(rank) == rank else start + (stop - start + 1) // 2

    def _halved(self, rank: int) -> tuple[Run, Run]:
        partner, start = self.partner(rank), self._sharded.queries.of(rank)[0]
        kept = start, self.half(rank)
        return kept, (0, 0) if partner == rank else (self.half(partner), self._sharded.queries.of(partner)[1])

    def _most(self, rows: list[tuple[Run, Run]]) -> int:
        return max(sum(map(self._work, runs)) for runs in rows)

    def _work(self, run: Run) -> int:
        return self.pairs(run, (0, self._sharded.extent.len_k))

    def pairs(self, rows: Run, keys: Run) -> int:
        """How many pairs of these queries and keys the mask leaves, as far as it is known as runs."""
        if rows[0] >= rows[1] or keys[0] >= keys[1]:
            return 0
        band = self._band
        batch = range(self._sharded.extent.batch) if band.starts is not None or band.stops is not None else range(1)
        return sum(band.count(b, rows, keys) for b in batch)

    @cached_property
    def _band(self) -> Band:
        """What is known of the mask as runs of keys; the rest of it is taken to be spread evenly."""
        band, parts = Band(), () if self._sharded.mask is None else self._sharded.mask.parts()
        for part in parts:
            own: Band | None = part.band(self._sharded.extent) if isinstance(part, Mask) else None
            band = band if own is None else band.intersect(own)
        return band

    @cached_property
    def _seen(self) -> list[list[Run]]:
        """For each rank the keys that the queries it works on may see: two runs, of which each may be empty."""
        mask, extent = self._sharded.mask, self._sharded.extent
        everything = 0, extent.len_k
        return [
            [
                (0, 0) if rows[0] >= rows[1] else everything if mask is None else mask.bounds(extent, rows)
                for rows in both
            ]
            for both in self.rows
        ]

    def pieces(self, rank: int, of: int) -> list[Run]:
        """The keys of rank `of` that a rank needs for the queries it works on, in messages."""
        first, last = self._sharded.keys.of(of)
        cut = [(max(lo, first), min(hi, last)) for lo, hi in self._seen[rank]]
        runs = sorted(run for run in cut if run[0] < run[1])
        joined: list[Run] = []
        for lo, hi in runs:
            if joined and lo <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(hi, joined[-1][1])
            else:
                joined.append((lo, hi))
        return [(lo, min(lo + self.piece, stop)) for start, stop in joined for lo in range(start, stop, self.piece)]

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], list[Run]]:
        ranks = range(self._size)
        return {(rank, of): self.pieces(rank, of) for rank in ranks for of in ranks if rank != of}

    @cached_property
    def steps(self) -> list[RingStep]:
        """In this order on every rank, so that nobody waits for a message that is sent after one he has yet to get."""
        found = []
        for distance in range(1, self._size):
            most = max(len(self._pieces[(rank + distance) % self._size, rank]) for rank in range(self._size))
            found += [RingStep(distance, number) for number in range(most)]
        return found

    def arrives(self, rank: int, step: RingStep) -> Run | None:
        """The keys that a rank gets in a step, from the rank `distance` before it."""
        return _get(self._pieces[rank, (rank - step.distance) % self._size], step.number)

    def leaves(self, rank: int, step: RingStep) -> Run | None:
        """The keys that a rank sends in a step, to the rank `distance` after it."""
        return _get(self._pieces[(rank + step.distance) % self._size, rank], step.number)


def _get(pieces: list[Run], number: int) -> Run | None:
    return pieces[number] if number < len(pieces) else None


TILE_NUMBERS = 1 << 18  # numbers of an answer that are held beside those that were merged


class Rows(NamedTuple):
    """Queries in global positions, and all that belongs to them. out, lse: being merged in the forward pass, final in
    the backward pass, in which grad_out and grad_lse come back and by_query is added to. bias: of these rows, or None.
    """

    rows: Run
    query: Tensor
    out: Tensor
    lse: Tensor
    grad_out: Tensor | None
    grad_lse: Tensor | None
    by_query: Tensor | None
    bias: Tensor | None

    def cut(self, start: int, stop: int) -> Rows:
        """Some of them, counted from the first."""
        part = slice(start, stop)
        bias = self.bias
        if bias is not None and bias.shape[2] > 1:
            bias = bias[:, :, part]
        return Rows(
            (self.rows[0] + start, self.rows[0] + stop),
            self.query[:, :, part],
            self.out[:, :, part],
            self.lse[:, :, part],
            None if self.grad_out is None else self.grad_out[:, :, part],
            None if self.grad_lse is None else self.grad_lse[:, :, part],
            None if self.by_query is None else self.by_query[:, :, part],
            bias,
        )


def split_tiles(sharded: ShardedInputs, rows: Rows) -> Iterator[Rows]:
    """The rows in parts whose answers are small."""
    count, extent = rows.rows[1] - rows.rows[0], sharded.extent
    step = max(256, TILE_NUMBERS // max(1, extent.batch * extent.heads * max(sharded.call.width, sharded.call.width_v)))
    for start in range(0, count, step):
        yield rows.cut(start, min(start + step, count))


def _block_inputs(
    sharded: ShardedInputs, tile: Rows, key: Tensor, value: Tensor, keys: Run
) -> tuple[AttentionInputs, slice] | None:
    """The call of these rows and those of the keys that they may see; None where they see none."""
    lo, hi = (0, sharded.extent.len_k) if sharded.mask is None else sharded.mask.bounds(sharded.extent, tile.rows)
    lo, hi = max(lo, keys[0]), min(hi, keys[1])
    if lo >= hi or not tile.query.numel():
        return None
    seen = slice(lo - keys[0], hi - keys[0])
    similarity = sharded.call.similarity
    assert isinstance(similarity, Softmax)
    if similarity.sink is not None:  # it joins once, at the end
        similarity = Softmax(similarity.scale_for(sharded.call.width), similarity.softcap)
    mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, tile.rows, (lo, hi))
    bias = tile.bias
    if bias is not None and bias.shape[3] > 1:
        bias = bias[..., lo:hi]
    key, value = key[:, :, seen], value[:, :, seen]
    backend = sharded.call.backend
    return read_inputs(tile.query, key, value, similarity, mask, bias, 0.0, backend, True, False), seen


def attend_block(
    sharded: ShardedInputs, tile: Rows, key: Tensor, value: Tensor, keys: Run
) -> tuple[Tensor, Tensor] | None:
    """out and lse of the tile over these keys alone; None where it sees none of them."""
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
    keys: Run,
    by_key: Tensor,
    by_value: Tensor,
    by_bias: Tensor | None,
    first: int,
) -> None:
    """Add what these keys have to do with the gradients of the rows, and the rows with theirs. first: the query that
    the bias begins with."""
    for tile in split_tiles(sharded, rows):
        block = _block_inputs(sharded, tile, key, value, keys)
        if block is None:
            continue
        call, seen = block
        assert tile.grad_out is not None
        assert tile.by_query is not None
        if _flash_applies(call, tile, by_bias):
            RUNS["parallel.flash"] += 1
            found = sdpa.partial_gradients(call, tile.grad_out, tile.out.to(call.query.dtype), tile.lse)
        else:
            RUNS["parallel.equation"] += 1
            *found, of_bias = _autograd_gradients(call, tile, by_bias is not None)
            if by_bias is not None and of_bias is not None:
                lo = keys[0] + seen.start
                _bias_slice(by_bias, tile.rows[0] - first, call, lo).add_(of_bias)
        tile.by_query.add_(found[0])
        by_key[:, :, seen].add_(found[1])
        by_value[:, :, seen].add_(found[2])


def _bias_slice(by_bias: Tensor, row: int, call: AttentionInputs, lo: int) -> Tensor:
    rows = slice(row, row + call.extent.len_q) if by_bias.shape[2] > 1 else slice(None)
    keys = slice(lo, lo + call.extent.len_k) if by_bias.shape[3] > 1 else slice(None)
    return by_bias[:, :, rows, keys]


def _flash_applies(call: AttentionInputs, tile: Rows, by_bias: Tensor | None) -> bool:
    if by_bias is not None or sdpa.flash_reasons_against(call):
        return False
    if tile.grad_lse is not None and tile.grad_lse.any():
        return False
    if not ops.all_finite(call.query, call.key, call.value):
        return False
    return not (tile.lse.isnan() | (tile.lse == torch.inf)).any()


def _autograd_gradients(
    call: AttentionInputs, tile: Rows, of_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """By torch's own derivative of the block, with the weight that it has in the whole.

    out = Σ_c w_c out_c with w_c = exp(lse_c − lse), and so dout_c = w_c dout and
    dlse_c = w_c (dout·out_c − dout·out + dlse).
    """
    assert tile.grad_out is not None
    dtype = tile.lse.dtype
    with torch.enable_grad():
        # In the arithmetic's dtype: what two rounded answers differ by would have no digits left.
        query, key, value = (
            tensor.detach().to(dtype).requires_grad_() for tensor in (call.query, call.key, call.value)
        )
        bias = call.bias.detach().to(dtype).requires_grad_(of_bias) if call.bias is not None else None
        inputs = [query, key, value, *([bias] if bias is not None and of_bias else [])]
        own = read_inputs(query, key, value, call.similarity, call.mask, bias, 0.0, "auto", True, False)
        result = choose(own).run(own)
    assert result.lse is not None
    with torch.no_grad():
        lse = torch.where(tile.lse == NEG_INF, 0.0, tile.lse)
        weight = torch.exp(result.lse - lse)
        grad_out, out = tile.grad_out.to(dtype), result.out.to(dtype)
        level = (grad_out * out).sum(-1) - (grad_out * tile.out.to(dtype)).sum(-1)
        if tile.grad_lse is not None:
            level = level + tile.grad_lse
        # A row of the block that sees nothing has weight 0, and nothing goes back through it.
        nothing = result.lse == NEG_INF
        by_lse = torch.where(nothing, 0.0, weight * level)
        by_out = torch.where(nothing.unsqueeze(-1), 0.0, weight.unsqueeze(-1) * grad_out)
    found = torch.autograd.grad(
        [result.out, result.lse], inputs, [by_out.to(result.out.dtype), by_lse.to(result.lse.dtype)], allow_unused=True
    )
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)]
    return filled[0], filled[1], filled[2], filled[3] if len(filled) > 3 else None


STRIP_BYTES, MAX_STRIPS = 1 << 19, 16  # bytes of a message that are worth one of their own, and messages at most


def exchange_rows(
    sharded: ShardedInputs,
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
    call, (kept, theirs) = sharded.call, schedule.rows[sharded.axis.rank]
    start_, stop = sharded.rows
    middle = kept[1] - start_
    own = slice(0, middle)
    backward = grad_out is not None
    first = Rows(
        kept, call.query[:, :, own], out[:, :, own], lse[:, :, own],
        None if grad_out is None else grad_out[:, :, own], None if grad_lse is None else grad_lse[:, :, own],
        None if by_query is None else by_query[:, :, own],
        sharded.bias,
    )  # fmt: skip
    rest, count = slice(middle, stop - start_), theirs[1] - theirs[0]
    if not schedule.swaps:
        nothing = slice(0, 0)
        return first, first._replace(rows=(0, 0), query=call.query[:, :, nothing])
    # Answers travel in the query's dtype; the rank's own keep the digits that they were merged with.
    given = [call.query, *((out.to(call.query.dtype), lse, grad_out, grad_lse) if backward else ())]
    got = [None if tensor is None else _partner_rows(sharded, schedule, tensor, rest, count) for tensor in given]
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


def _partner_rows(sharded: ShardedInputs, schedule: Schedule, tensor: Tensor, rest: slice, count: int) -> Tensor:
    """The partner's second half for the own one."""
    partner = schedule.partner(sharded.axis.rank)
    if partner == sharded.axis.rank:
        return tensor[:, :, :0]
    found = tensor.new_empty((*tensor.shape[:2], count, *tensor.shape[3:]))
    _swap(sharded, partner, tensor[:, :, rest], found)
    return found


def _swap(sharded: ShardedInputs, partner: int, given: Tensor, taken: Tensor) -> None:
    """given goes to the partner, and its own comes into `taken`, which may be the same place: strip by strip, so that
    no second copy of either is held. Both know both sizes, and so the number of strips."""
    largest = max(given.numel(), taken.numel()) * given.element_size()
    strips = min(MAX_STRIPS, 1 + largest // STRIP_BYTES)
    for strip in range(strips):
        there, here = (_strip_slice(tensor.shape[2], strip, strips) for tensor in (given, taken))
        room = taken.new_empty((*taken.shape[:2], here.stop - here.start, *taken.shape[3:]))
        start(sharded.axis, [Message(partner, given[:, :, there].contiguous())], [Message(partner, room)]).wait()
        taken[:, :, here] = room


def return_rows(sharded: ShardedInputs, schedule: Schedule, whole: Tensor, lse: Tensor | None, theirs: Rows) -> None:
    """What was found for the partner's rows goes to it, and what it found comes to its place in `whole` (and lse)."""
    partner = schedule.partner(sharded.axis.rank)
    if not schedule.swaps or partner == sharded.axis.rank:
        return
    middle = schedule.half(sharded.axis.rank) - sharded.rows[0]
    found = theirs.out if theirs.by_query is None else theirs.by_query
    if lse is not None:
        _swap(sharded, partner, theirs.lse, lse[:, :, middle:])
    _swap(sharded, partner, found, whole[:, :, middle:])


def _strip_slice(length: int, number: int, of: int) -> slice:
    return slice(length * number // of, length * (number + 1) // of)


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    reasons = []
    if not isinstance(sharded.call.similarity, Softmax):
        reasons.append(f"{type(sharded.call.similarity).__name__} has no log-sum-exp by which partial answers merge")
    if sharded.call.dropout:
        reasons.append("dropout would have to be drawn again, block by block, in the backward pass")
    if sharded.call.return_weights:
        reasons.append("return_weights asks for a row of all keys, and ring never holds them")
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
    """Room for the keys and values of a message: two to receive in turn."""

    def __init__(self, sharded: ShardedInputs, length: int, dtype: torch.dtype) -> None:
        call = sharded.call
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


def pack_message(key: Tensor, value: Tensor) -> Tensor:
    """Both in one message."""
    message = key.new_empty(key.numel() + value.numel())
    message[: key.numel()].view(key.shape).copy_(key)
    message[key.numel() :].view(value.shape).copy_(value)
    return message


class _KeyTransfers:
    """Keys and values under way. The first message leaves at once; iterating gives every step with the keys that came
    in it, in global positions, while those of the next are on their way."""

    def __init__(self, sharded: ShardedInputs, schedule: Schedule) -> None:
        self._sharded, self._schedule = sharded, schedule
        self._buffers = Buffers(sharded, schedule.piece, sharded.call.key.dtype)
        self._pending = self._begun(0)

    def _begun(self, turn: int) -> Pending | None:
        sharded, schedule, axis = self._sharded, self._schedule, self._sharded.axis
        if turn >= len(schedule.steps):
            return None
        step, first = schedule.steps[turn], sharded.own_keys[0]
        leaves, arrives = schedule.leaves(axis.rank, step), schedule.arrives(axis.rank, step)
        sends, receives = [], []
        if leaves is not None:
            own = slice(leaves[0] - first, leaves[1] - first)
            message = pack_message(sharded.call.key[:, :, own], sharded.call.value[:, :, own])
            sends.append(Message(axis.after(step.distance), message))
        if arrives is not None:
            room, _, _ = self._buffers.views(turn, arrives[1] - arrives[0])
            receives.append(Message(axis.after(-step.distance), room))
        return start(axis, sends, receives)

    def __iter__(self) -> Iterator[tuple[RingStep, tuple[int, int] | None, Tensor, Tensor]]:
        for turn, step in enumerate(self._schedule.steps):
            assert self._pending is not None
            self._pending.wait()
            self._pending = self._begun(turn + 1)
            arrives = self._schedule.arrives(self._sharded.axis.rank, step)
            _, key, value = self._buffers.views(turn, 0 if arrives is None else arrives[1] - arrives[0])
            yield step, arrives, key, value


class _PacedLocalWork:
    """Work on a rank's own keys, done between the steps in such parts that all ranks come to a step at the same time:
    nobody waits for a rank that has much to do at home."""

    def __init__(
        self, sharded: ShardedInputs, schedule: Schedule, both: tuple[Rows, Rows], work: Callable[[Rows], None]
    ) -> None:
        parts = [tile for rows in both for tile in split_tiles(sharded, rows)]
        self._tasks = [(tile, schedule.pairs(tile.rows, sharded.own_keys)) for tile in reversed(parts)]
        self._work, self._steps, self._rank = work, schedule.steps, sharded.axis.rank
        self._pairs = {step: self._of_step(schedule, both, step) for step in schedule.steps}
        total = sum(pairs for _, pairs in self._tasks) + sum(self._pairs.values())
        self._stretch = total / (len(schedule.steps) + 1)
        self._done, self._due = 0.0, 0.0

    def _of_step(self, schedule: Schedule, both: tuple[Rows, Rows], step: RingStep) -> int:
        keys = schedule.arrives(self._rank, step)
        return 0 if keys is None else sum(schedule.pairs(rows.rows, keys) for rows in both)

    def begin(self) -> None:
        """While the first message is on its way."""
        self._advance(0)

    def keep_up(self, step: RingStep) -> None:
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


def _forward(sharded: ShardedInputs, schedule: Schedule) -> tuple[Tensor, Tensor]:
    call = sharded.call
    with torch.no_grad():
        shape = call.query.shape[:3]
        out = call.query.new_zeros((*shape, call.width_v), dtype=compute_dtype_of(sharded))
        lse = call.query.new_full(shape, NEG_INF, dtype=compute_dtype_of(sharded))
        kept, theirs = exchange_rows(sharded, schedule, out, lse)
        travel = _KeyTransfers(sharded, schedule)
        own = _PacedLocalWork(
            sharded, schedule, (kept, theirs), lambda t: _merge(sharded, t, call.key, call.value, sharded.own_keys)
        )
        own.begin()
        for step, keys, key, value in travel:
            if keys is not None:
                for rows in (kept, theirs):
                    _merge(sharded, rows, key, value, keys)
            own.keep_up(step)
        own.finish()
        return_rows(sharded, schedule, out, lse, theirs)
        if call.sink is not None:
            out, lse = add_sink(out, lse, call.sink.detach())
    return out, lse


def _merge(sharded: ShardedInputs, rows: Rows, key: Tensor, value: Tensor, keys: tuple[int, int]) -> None:
    """The answers to some keys into those to all so far."""
    for tile in split_tiles(sharded, rows):
        found = attend_block(sharded, tile, key, value, keys)
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


class _RingAttention(torch.autograd.Function):
    """Backward, keys and values travel again, and what comes back for them goes to their owners.

    In the forward pass this was: P_ij = exp(s_ij − lse_i), out_i = Σ_j P_ij v_j. Since ds_ij = P_ij (dout_i·v_j −
    dout_i·out_i + dlse_i) needs only the row's final lse and out, each block of keys has its sharded without the others.
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
        # What comes back for a row that saw nothing must not reach a key, whatever it is.
        empty = lse == NEG_INF
        grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
        if sharded.call.return_lse:  # on every rank, whether this one used its lse or not
            grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(empty, 0.0)
        found = _backward(sharded, ctx.schedule, out, lse, grad_out, grad_lse)
        by_sink = None
        if sharded.requires_grad[4] and sink is not None:
            level = -(grad_out.to(dtype) * out.to(dtype)).sum(-1)
            by_sink = sink_gradient(sink, lse, level if grad_lse is None else level + grad_lse)
        inputs = query, key, value, bias
        wanted = (
            None if grad is None or not wants or tensor is None else grad.to(tensor.dtype)
            for grad, wants, tensor in zip(found, sharded.requires_grad[:4], inputs, strict=True)
        )
        return None, None, *wanted, by_sink


def _backward(
    sharded: ShardedInputs, schedule: Schedule, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    call, axis, dtype = sharded.call, sharded.axis, compute_dtype_of(sharded)
    by_query = torch.zeros_like(call.query, dtype=dtype)
    by_key, by_value = torch.zeros_like(call.key, dtype=dtype), torch.zeros_like(call.value, dtype=dtype)
    by_bias = (
        torch.zeros_like(sharded.bias, dtype=dtype) if sharded.bias is not None and sharded.requires_grad[3] else None
    )
    every = _, theirs = exchange_rows(sharded, schedule, out, lse, grad_out, grad_lse, by_query)
    travel, first = _KeyTransfers(sharded, schedule), sharded.own_keys[0]

    start_ = sharded.rows[0]
    own = _PacedLocalWork(
        sharded, schedule, every,
        lambda t: add_block_gradients(sharded, t, call.key, call.value, sharded.own_keys, by_key, by_value, by_bias, start_),
    )  # fmt: skip
    own.begin()
    answers = Buffers(sharded, schedule.piece, dtype)
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
                add_block_gradients(sharded, rows, key, value, keys, more_key, more_value, by_bias, start_)
            sends.append(Message(axis.after(-step.distance), pack_message(more_key, more_value)))
        gone = schedule.leaves(axis.rank, step)
        if len(returning) == 2:
            returned(*returning.pop(0))
        if gone is not None:
            receives.append(Message(axis.after(step.distance), answers.views(turn, gone[1] - gone[0])[0]))
        returning.append((turn, gone, start(axis, sends, receives, RESULTS)))
        own.keep_up(step)
    own.finish()
    for waiting in returning:
        returned(*waiting)
    return_rows(sharded, schedule, by_query, None, theirs)
    return by_query, by_key, by_value, by_bias
