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
from typing import Any, NamedTuple

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
from ..similarity import Softmax
from .inputs import Range, ShardedInputs, intersection
from .transfer import RESULTS, Axis, Message, Pending, start

SUMMARY = "keys and values are sent round a ring, partial results are merged by log-sum-exp"
Step = tuple[int, int]  # in (distance, number) every rank sends its number-th piece to the rank `distance` after it
MIN_PIECE, MAX_PIECES = 1024, 64  # tokens of a message, and messages of a shard
MAX_BALANCED_RATIO = 0.95  # partners exchange queries if that reduces the work of the busiest rank by this factor
TILE_NUMBERS = 1 << 18  # numbers of a partial result that is not merged yet
STRIP_BYTES, MAX_STRIPS = 1 << 19, 16  # bytes of a message, and messages of an exchange of rows


def reasons_against(sharded: ShardedInputs) -> tuple[str, ...]:
    call, name = sharded.call, type(sharded.call.similarity).__name__
    against = {
        f"{name} has no log-sum-exp to merge partial results by": not call.similarity.has_lse,
        "dropout would have to be drawn again for each block in the backward pass": call.dropout > 0,
        "return_weights needs all keys on one rank, which ring never has": call.return_weights,
    }
    return tuple(reason for reason, holds in against.items() if holds)


def run(sharded: ShardedInputs) -> Result:
    call, schedule = sharded.call, Schedule(sharded)
    if sharded.needs_grad:
        inputs = call.query, call.key, call.value, sharded.bias, call.sink
        out, lse = _RingAttention.apply(sharded, schedule, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    else:
        out, lse = _forward(sharded, schedule)
        out = out.to(call.query.dtype)
    return Result(out, lse if call.return_lse else None, None)


class Schedule:
    """Which queries every rank works on, and which keys it sends and receives in each step; the same on every rank.

    rows: for each rank the queries that it keeps and those of its partner that it works on.
    """

    def __init__(self, sharded: ShardedInputs) -> None:
        self._sharded, self._size = sharded, sharded.axis.size
        own = [(queries, (0, 0)) for queries in sharded.queries.ranges]
        halved = [self._halved(rank) for rank in range(self._size)]
        balanced = self._most(halved) < MAX_BALANCED_RATIO * self._most(own)
        self.swaps = self._size > 1 and sharded.bias is None and balanced
        self.rows: list[tuple[Range, Range]] = halved if self.swaps else own
        self.piece = max(MIN_PIECE, -(-max(sharded.keys.lengths) // MAX_PIECES))

    def partner(self, rank: int) -> int:
        return self._size - 1 - rank

    def _halved(self, rank: int) -> tuple[Range, Range]:
        partner, queries = self.partner(rank), self._sharded.queries.of
        if partner == rank:
            return queries(rank), (0, 0)
        middle, theirs = ((lo + hi + 1) // 2 for lo, hi in (queries(rank), queries(partner)))
        return (queries(rank)[0], middle), (theirs, queries(partner)[1])

    def _most(self, rows: list[tuple[Range, Range]]) -> int:
        return max(sum(self.pairs(run, (0, self._sharded.extent.len_k)) for run in runs) for runs in rows)

    def pairs(self, rows: Range, keys: Range) -> int:
        """About how many of these pairs the mask allows: the first and the last query are counted."""
        if rows[0] >= rows[1]:
            return 0
        ends = [intersection(self._sharded.attended_keys((row, row + 1)), keys) for row in (rows[0], rows[1] - 1)]
        return (rows[1] - rows[0]) * sum(hi - lo for lo, hi in ends) // 2

    @cached_property
    def _pieces(self) -> dict[tuple[int, int], list[Range]]:
        """For each pair of ranks, the keys of the second that the first needs, divided into messages."""
        found = {}
        for rank, runs in enumerate(self.rows):
            attended = [run for run in map(self._sharded.attended_keys, runs) if run[0] < run[1]] or [(0, 0)]
            whole = min(lo for lo, _ in attended), max(hi for _, hi in attended)
            for of, keys in enumerate(self._sharded.keys.ranges):
                lo, hi = intersection(whole, keys)
                found[rank, of] = [(first, min(first + self.piece, hi)) for first in range(lo, hi, self.piece)]
        return found

    @cached_property
    def steps(self) -> list[Step]:
        """All steps, in the same order on every rank, which prevents deadlocks."""
        found = []
        for distance in range(1, self._size):
            most = max(len(self._pieces[(rank + distance) % self._size, rank]) for rank in range(self._size))
            found += [(distance, number) for number in range(most)]
        return found

    def received(self, rank: int, step: Step) -> Range:
        """The keys that a rank receives in a step, (0, 0) if none."""
        distance, number = step
        pieces = self._pieces[rank, (rank - distance) % self._size]
        return pieces[number] if number < len(pieces) else (0, 0)

    def sent(self, rank: int, step: Step) -> Range:
        """The keys that a rank sends in a step, (0, 0) if none."""
        return self.received((rank + step[0]) % self._size, step)


class Rows(NamedTuple):
    """Queries at global positions with their results and gradients.

    out, lse: partial in the forward pass, final in the backward pass. grad_out, grad_lse: incoming gradients.
    grad_query: is added to. bias: of these rows, or None.
    """

    positions: Range
    query: Tensor
    out: Tensor
    lse: Tensor
    grad_out: Tensor | None = None
    grad_lse: Tensor | None = None
    grad_query: Tensor | None = None
    bias: Tensor | None = None

    def narrow(self, first: int, stop: int) -> Rows:
        """The rows first to stop - 1, counted from the first of these rows."""
        cut = [None if tensor is None else tensor[:, :, first:stop] for tensor in self[1:7]]
        bias = self.bias if self.bias is None or self.bias.shape[2] == 1 else self.bias[:, :, first:stop]
        return Rows((self.positions[0] + first, self.positions[0] + stop), *cut, bias)  # pyright: ignore

    def tiles(self, sharded: ShardedInputs) -> Iterator[Rows]:
        """The rows in tiles with small results."""
        count, extent, call = self.positions[1] - self.positions[0], sharded.extent, sharded.call
        step = max(256, TILE_NUMBERS // max(1, extent.batch * extent.heads * max(call.width, call.width_v)))
        for first in range(0, count, step):
            yield self.narrow(first, min(first + step, count))


def _exchange_rows(sharded: ShardedInputs, schedule: Schedule, own: Rows) -> tuple[Rows, Rows]:
    """Exchange the second half of the rows with the partner: the rows that this rank keeps, and its partner's.

    Results of the partner's rows (in the backward pass, gradients) are written to the memory of the own second half, if
    they fit.
    """
    axis, (kept, theirs) = sharded.axis, schedule.rows[sharded.axis.rank]
    middle, count = kept[1] - kept[0], theirs[1] - theirs[0]
    first, rest = own.narrow(0, middle), own.narrow(middle, own.positions[1] - own.positions[0])
    partner = schedule.partner(axis.rank)
    if not schedule.swaps or partner == axis.rank:
        return first, rest._replace(positions=(0, 0))

    def empty(tensor: Tensor) -> Tensor:
        return tensor.new_empty((*tensor.shape[:2], count, *tensor.shape[3:]))

    def received(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else _swap(axis, partner, tensor, empty(tensor))

    def written(tensor: Tensor, number: float) -> Tensor:
        return tensor if tensor.shape[2] == count else empty(tensor).fill_(number)

    query = received(rest.query)
    assert query is not None
    if rest.grad_query is None:
        return first, Rows(theirs, query, written(rest.out, 0.0), written(rest.lse, NEG_INF))
    # Results are sent in the query's dtype; the rank's own stay in the compute dtype.
    tensors = [received(each) for each in (rest.out.to(rest.query.dtype), rest.lse, rest.grad_out, rest.grad_lse)]
    return first, Rows(theirs, query, *tensors, written(rest.grad_query, 0.0))  # pyright: ignore


def _swap(axis: Axis, partner: int, outgoing: Tensor, incoming: Tensor) -> Tensor:
    """Send `outgoing` to the partner and receive `incoming`, which may be the same memory: strip by strip, without a
    second copy of either. Both ranks know both sizes, and so the number of strips."""
    largest = max(outgoing.numel(), incoming.numel()) * outgoing.element_size()
    strips = min(MAX_STRIPS, 1 + largest // STRIP_BYTES)
    for sent, target in zip(*(tensor.tensor_split(strips, dim=2) for tensor in (outgoing, incoming)), strict=True):
        buffer = torch.empty_like(target, memory_format=torch.contiguous_format)
        start(axis, [Message(partner, sent.contiguous())], [Message(partner, buffer)]).wait()
        target.copy_(buffer)
    return incoming


def _return_rows(sharded: ShardedInputs, schedule: Schedule, results: list[tuple[Tensor, Tensor]]) -> None:
    """Send the results of the partner's rows back to it, and receive those of the own second half: pairs of tensors."""
    axis, partner = sharded.axis, schedule.partner(sharded.axis.rank)
    if schedule.swaps and partner != axis.rank:
        middle = schedule.rows[axis.rank][0][1] - sharded.rows[0]
        for found, whole in results:
            _swap(axis, partner, found, whole[:, :, middle:])


def _pack(key: Tensor, value: Tensor) -> Tensor:
    """Keys and values in one message."""
    return torch.cat([key.reshape(-1), value.reshape(-1)])


def _new_message(sharded: ShardedInputs, keys: Range, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """A message to receive, and the keys and values in it."""
    call = sharded.call
    shapes = [torch.Size((call.extent.batch, call.heads_kv, keys[1] - keys[0], w)) for w in (call.width, call.width_v)]
    message = torch.empty(sum(shape.numel() for shape in shapes), dtype=dtype, device=call.query.device)
    parts = message.split([shape.numel() for shape in shapes])
    return message, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _blocks(
    sharded: ShardedInputs, schedule: Schedule, every: tuple[Rows, Rows], own_work: Callable[[Rows], None]
) -> Iterator[tuple[Step, Range, Tensor, Tensor]]:
    """Every step with the keys that it received, in global positions, while the next transfer is in progress. Work on
    the rank's own keys is divided among the steps so that all ranks reach a step at the same time."""
    axis, call, first = sharded.axis, sharded.call, sharded.own_keys[0]

    def begin(step: Step) -> tuple[Pending, list[Tensor]]:
        sent, received = schedule.sent(axis.rank, step), schedule.received(axis.rank, step)
        own = slice(max(0, sent[0] - first), max(0, sent[1] - first))
        send = Message(axis.after(step[0]), _pack(call.key[:, :, own], call.value[:, :, own]))
        message, parts = _new_message(sharded, received, call.key.dtype)
        return start(axis, [send], [Message(axis.after(-step[0]), message)]), parts

    def pairs(keys: Range) -> int:
        return sum(schedule.pairs(rows.positions, keys) for rows in every)

    steps, done = schedule.steps, 0.0
    tiles = [tile for rows in every for tile in rows.tiles(sharded)][::-1]
    total = pairs(sharded.own_keys) + sum(pairs(schedule.received(axis.rank, step)) for step in steps)
    moving = begin(steps[0]) if steps else None
    for turn in range(len(steps) + 1):
        while tiles and (turn == len(steps) or done < total * (turn + 1) / (len(steps) + 1)):
            done += schedule.pairs(tiles[-1].positions, sharded.own_keys)
            own_work(tiles.pop())
        if moving is not None:
            pending, parts = moving
            pending.wait()
            moving = begin(steps[turn + 1]) if turn + 1 < len(steps) else None
            keys = schedule.received(axis.rank, steps[turn])
            yield steps[turn], keys, parts[0], parts[1]
            done += pairs(keys)


def _forward(sharded: ShardedInputs, schedule: Schedule) -> tuple[Tensor, Tensor]:
    call, shape = sharded.call, sharded.call.query.shape[:3]
    with torch.no_grad():
        out = call.query.new_zeros((*shape, call.width_v), dtype=sharded.compute_dtype)
        lse = call.query.new_full(shape, NEG_INF, dtype=sharded.compute_dtype)
        own = Rows(sharded.rows, call.query, out, lse, bias=sharded.bias)
        every = _, theirs = _exchange_rows(sharded, schedule, own)

        def own_work(tile: Rows) -> None:
            _merge(sharded, tile, call.key, call.value, sharded.own_keys)

        for _, keys, key, value in _blocks(sharded, schedule, every, own_work):
            for rows in every:
                _merge(sharded, rows, key, value, keys)
        _return_rows(sharded, schedule, [(theirs.lse, lse), (theirs.out, out)])
        if call.sink is not None:
            out, lse = add_sink(out, lse, call.sink.detach())
    return out, lse


def _merge(sharded: ShardedInputs, rows: Rows, key: Tensor, value: Tensor, keys: Range) -> None:
    """Attend to some keys and merge the results into those of the rows."""
    for tile, call, _ in _tiles(sharded, rows, key, value, keys):
        result = choose(call).run(call)
        assert result.lse is not None
        merge_into(tile.out, tile.lse, result.out, result.lse)
        del result  # frees its memory before the next one


def merge_into(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Merge a partial result into out and lse, in place; an lse of −inf is an empty part."""
    total = torch.logaddexp(lse, more_lse)
    top = torch.where(total == NEG_INF, 0.0, total)
    # An infinite value that is attended stays infinite, however small its weight: 0·∞ would be NaN.
    least = torch.finfo(out.dtype).tiny
    out.mul_(torch.exp(lse - top).clamp_min_(least).unsqueeze(-1))
    out.addcmul_(more.to(out.dtype), torch.exp(more_lse - top).clamp_min_(least).unsqueeze(-1))
    lse.copy_(total)


def _tiles(
    sharded: ShardedInputs, rows: Rows, key: Tensor, value: Tensor, keys: Range
) -> Iterator[tuple[Rows, AttentionInputs, slice]]:
    """The rows in tiles with small results, the call of each with the keys that it may attend to, and where those are;
    not those that attend to none."""
    similarity = sharded.call.similarity
    assert isinstance(similarity, Softmax)
    if similarity.sink is not None:  # added once, at the end
        similarity = Softmax(similarity.scale_for(sharded.call.width), similarity.softcap)
    for tile in rows.tiles(sharded):
        lo, hi = intersection(sharded.attended_keys(tile.positions), keys)
        if lo < hi and tile.query.numel():
            own = slice(lo - keys[0], hi - keys[0])
            mask = None if sharded.mask is None else sharded.mask.part(sharded.extent, tile.positions, (lo, hi))
            bias = tile.bias if tile.bias is None or tile.bias.shape[3] == 1 else tile.bias[..., lo:hi]
            tensors = tile.query, key[:, :, own], value[:, :, own]
            yield tile, read_inputs(*tensors, similarity, mask, bias, 0.0, sharded.call.backend, True, False), own


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
        grad_out = torch.zeros_like(out, dtype=query.dtype) if grad_out is None else grad_out
        # The gradient of a row that attends to nothing must not reach a key.
        empty = lse == NEG_INF
        grad_out = grad_out.masked_fill(empty.unsqueeze(-1), 0.0)
        if sharded.call.return_lse:  # the same on every rank, even if this one did not use its lse
            grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(empty, 0.0)
        given = query, key, value, bias
        wanted = [t is not None and needed for t, needed in zip(given, sharded.requires_grad[:4], strict=True)]
        zeros = [torch.zeros_like(t, dtype=lse.dtype) for t in (given if wanted[3] else given[:3])]
        grads: Any = _Gradients(*zeros)
        own = Rows(sharded.rows, query, out, lse, grad_out, grad_lse, grads.query, bias)
        _backward(sharded, ctx.schedule, own, grads)
        grad_sink = None
        if sharded.requires_grad[4] and sink is not None:
            shift = -(grad_out.to(lse.dtype) * out).sum(-1)
            grad_sink = sink_gradient(sink, lse, shift if grad_lse is None else shift + grad_lse)
        found = (g.to(t.dtype) if needed else None for g, t, needed in zip(grads, given, wanted, strict=True))
        return None, None, *found, grad_sink


class _Gradients(NamedTuple):
    """Sums of gradients, in the compute dtype; those of keys and values are of a rank's own or of a received block."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None = None


def _backward(sharded: ShardedInputs, schedule: Schedule, own: Rows, grads: _Gradients) -> None:
    call, axis, first, dtype = sharded.call, sharded.axis, sharded.own_keys[0], sharded.compute_dtype
    every = _, theirs = _exchange_rows(sharded, schedule, own)
    returning: list[tuple[Range, Pending, list[Tensor]]] = []

    def own_work(tile: Rows) -> None:
        _add_gradients(sharded, tile, call.key, call.value, sharded.own_keys, grads)

    def receive(keys: Range, pending: Pending, parts: list[Tensor]) -> None:
        pending.wait()
        for total, more in zip((grads.key, grads.value), parts, strict=True):
            total[:, :, max(0, keys[0] - first) : max(0, keys[1] - first)] += more

    for step, keys, key, value in _blocks(sharded, schedule, every, own_work):
        of_key, of_value = (torch.zeros_like(tensor, dtype=dtype) for tensor in (key, value))
        block = _Gradients(grads.query, of_key, of_value, grads.bias)
        for rows in every:
            _add_gradients(sharded, rows, key, value, keys, block)
        if len(returning) == 2:
            receive(*returning.pop(0))
        sent = schedule.sent(axis.rank, step)
        message, parts = _new_message(sharded, sent, dtype)
        back = Message(axis.after(-step[0]), _pack(block.key, block.value))
        pending = start(axis, [back], [Message(axis.after(step[0]), message)], RESULTS)
        returning.append((sent, pending, parts))
    for waiting in returning:
        receive(*waiting)
    assert theirs.grad_query is not None
    _return_rows(sharded, schedule, [(theirs.grad_query, grads.query)])


def _add_gradients(
    sharded: ShardedInputs, rows: Rows, key: Tensor, value: Tensor, keys: Range, grads: _Gradients
) -> None:
    """Add the contributions of these pairs to the gradients of rows, keys, values and bias."""
    for tile, call, attended in _tiles(sharded, rows, key, value, keys):
        assert tile.grad_out is not None
        assert tile.grad_query is not None
        if _flash_applies(call, tile, grads.bias):
            RUNS["parallel.flash"] += 1
            found = sdpa.partial_gradients(call, tile.grad_out, tile.out.to(call.query.dtype), tile.lse)
        else:
            RUNS["parallel.autograd"] += 1
            *found, more = _autograd_gradients(call, tile, grads.bias is not None)
            if grads.bias is not None and more is not None:
                row, column, part = tile.positions[0] - sharded.rows[0], keys[0] + attended.start, grads.bias
                part = part if part.shape[2] == 1 else part[:, :, row : row + more.shape[2]]
                part = part if part.shape[3] == 1 else part[..., column : column + more.shape[3]]
                part.add_(more)
        tile.grad_query.add_(found[0])
        grads.key[:, :, attended].add_(found[1])
        grads.value[:, :, attended].add_(found[2])


def _flash_applies(call: AttentionInputs, tile: Rows, grad_bias: Tensor | None) -> bool:
    if grad_bias is not None or sdpa.flash_reasons_against(call) or (tile.grad_lse is not None and tile.grad_lse.any()):
        return False
    finite = ops.all_finite(call.query, call.key, call.value)
    return finite and not bool((tile.lse.isnan() | (tile.lse == torch.inf)).any())


def _autograd_gradients(call: AttentionInputs, tile: Rows, with_bias: bool) -> list[Any]:
    """Of query, key, value and bias, by autograd through the block, with its weight in the merged result.

    out = Σ_c w_c out_c with w_c = exp(lse_c − lse), and so dout_c = w_c dout and
    dlse_c = w_c (dout·out_c − dout·out + dlse).
    """
    assert tile.grad_out is not None
    dtype = tile.lse.dtype
    with torch.enable_grad():
        # In the compute dtype: the difference of two rounded results would have no correct digits.
        inputs = [t.detach().to(dtype).requires_grad_() for t in (call.query, call.key, call.value)]
        bias = None if call.bias is None else call.bias.detach().to(dtype).requires_grad_(with_bias)
        query, key, value = inputs
        own = read_inputs(query, key, value, call.similarity, call.mask, bias, 0.0, "auto", True, False)
        result = choose(own).run(own)
    assert result.lse is not None
    with torch.no_grad():
        weight = torch.exp(result.lse - torch.where(tile.lse == NEG_INF, 0.0, tile.lse))
        grad_out = tile.grad_out.to(dtype)
        shift = (grad_out * result.out.to(dtype)).sum(-1) - (grad_out * tile.out.to(dtype)).sum(-1)
        if tile.grad_lse is not None:
            shift = shift + tile.grad_lse
        # A row that attends to nothing in the block has weight 0 and no gradient.
        empty = result.lse == NEG_INF
        block_grad_lse = torch.where(empty, 0.0, weight * shift)
        block_grad_out = torch.where(empty.unsqueeze(-1), 0.0, weight.unsqueeze(-1) * grad_out)
    wanted = inputs if bias is None or not with_bias else [*inputs, bias]
    results, grads = [result.out, result.lse], [block_grad_out.to(result.out.dtype), block_grad_lse]
    found = torch.autograd.grad(results, wanted, grads, allow_unused=True)
    return [*(torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)), None][:4]
