"""How a step is computed: by the native kernel on the pages themselves, or by torch on tensors made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import kernels
from .call import Call, arithmetic, read_call
from .choice import Candidate, Choice, choose, describe, explain_choice, seconds_of
from .cost.machine import active
from .cost.price import Cost, Work, product_flops
from .errors import OptionTypeError, complaint
from .forms.work import memory as on_memory
from .kernels.dtypes import CODE, NOTHING
from .kernels.memory import NativeStep, memory_attend
from .masks import Causal, Dense, Mask, Window
from .memory import KVCache, LinearState
from .memory.layout import PAGE, numbers
from .similarity import AnySimilarity, Argmax, Softmax
from .sizes import Sizes
from .step import Step, check_memory, read_step

# Scores up to which torch computes the equation as it stands, and no faster form of it.
FEW = 1 << 22
# Cells of a mask that are made at a time; positions take eight bytes each on the way.
TILE = 1 << 23
_FAR = 1 << 62


class Plan(NamedTuple):
    """A call that was checked and that the native kernel serves. Whatever looks the same need not be checked again."""

    similarity: AnySimilarity | None
    n: int
    dtype: torch.dtype
    out: tuple[int, ...]
    alike: bool  # whether an answer has the sizes of a query
    numbers: tuple[int, int, int, int]
    code: int
    window: int
    scale: float
    softcap: float
    sink: Tensor | None
    sink_at: int
    hard: bool
    step: Any  # the library's own check of what looks the same, and its way to run it


def explain_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    memory: KVCache,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
) -> Choice:
    """What the same call of `decode` would run; nothing is appended."""
    if isinstance(memory, LinearState):
        hint = "a LinearState has one way to be read; explain the call without it to see what its form costs"
        raise OptionTypeError(complaint("memory", "a LinearState", "a qkv.KVCache", hint))
    memory = check_memory(memory)
    with memory._pool.lock:
        step = read_step(query, key, value, memory, similarity, mask, bias, None, "right")
        extent, size = step.extent, arithmetic(query.dtype).itemsize
        pairs = extent.cells
        tokens = extent.batch * memory.heads * extent.len_k
        held = memory.nbytes
        reasons = native_reasons_against(step)
        work = product_flops(pairs, memory.width + (0 if step.hard else memory.value_width))
        cost = Cost(work, held, 0, 8e-6, work=partial(_work, step, memory, held))
        native = Candidate("decode", reasons, None if reasons else cost, seconds_of([cost])[0])
        # What torch needs: every token in one tensor, in the arithmetic's dtype.
        copied = tokens * (memory.width + memory.value_width) * size
        call = _stand_in(step, memory)
        through_torch = explain_choice(call)
        few = call.form == "dense"
        # The form of the same name would run the same kernel on a copy.
        forms = [c for c in through_torch.candidates if c.form != "decode"]
        others = [c if c.cost is None else _after_gathering(c, held, copied, few) for c in forms]
    text = describe(call._replace(mask=step.mask, query=query))
    form = through_torch.form if reasons else "decode"
    machine = active()
    machine = None if reasons or machine is None or machine.seconds(_work(step, memory, held)) is None else machine
    said = f"decode after {int(step.past.max())} tokens: {text}"
    return Choice(form, "auto", (native, *others), said, machine=machine)


def _work(step: Step, memory: KVCache, held: int) -> Work:
    extent, heads = step.extent, memory.heads
    sizes = Sizes(extent.batch, extent.heads, heads, extent.len_q, extent.len_k, memory.width, memory.value_width)
    softcap = isinstance(step.similarity, Softmax) and step.similarity.softcap is not None
    storage = str(memory.dtype).removeprefix("torch.")
    return on_memory(sizes, step.past.tolist(), storage, held, softcap, step.hard)


def _after_gathering(candidate: Candidate, held: int, copied: int, few: bool) -> Candidate:
    """The cost of a form of `attention`, and of making a tensor of the pages first."""
    cost = candidate.cost
    assert cost is not None
    if few and candidate.form != "dense":
        return Candidate(candidate.form, (f"up to {FEW} scores torch computes the equation as it stands",), None)
    traffic, extra = cost.traffic + held + 2 * copied, cost.extra + copied
    whole = Cost(cost.flops, traffic, extra, cost.overhead + 50e-6)
    return Candidate(candidate.form, (), whole, candidate.seconds + whole.seconds - cost.seconds)


def _stand_in(step: Step, memory: KVCache) -> Call:
    """The call of `attention` that the torch path comes to, with keys and values that hold nothing."""
    extent, dtype = step.extent, arithmetic(step.query.dtype)
    nothing = step.query.new_zeros((), dtype=dtype)
    key = nothing.expand(extent.batch, memory.heads, extent.len_k, memory.width)
    value = nothing.expand(extent.batch, memory.heads, extent.len_k, memory.value_width)
    bias = None if step.bias is None else step.bias.to(dtype)
    causal = Causal(offset=extent.len_k - extent.len_q)
    form = _form(extent.cells)
    return read_call(step.query.to(dtype), key, value, step.similarity, causal, bias, 0.0, form, False, False)


def _form(scores: int) -> str:
    return "dense" if scores <= FEW else "auto"


def native_reasons_against(step: Step) -> tuple[str, ...]:
    reasons = list(kernels.reasons())
    if not step.query.is_cpu:
        reasons.append(f"the kernel runs on the CPU, not on {step.query.device.type}")
    if step.query.dtype is torch.float64:
        reasons.append("the kernel computes in float32, and float64 queries ask for more")
    return tuple(reasons)


def plan_of(step: Step, memory: KVCache, similarity: AnySimilarity | None) -> Plan:
    query, chosen = step.query, step.similarity
    scale, softcap, sink = 1.0, 0.0, None
    if isinstance(chosen, Softmax):
        scale, softcap = chosen.scale_for(memory.width), chosen.softcap or 0.0
        if chosen.sink is not None:
            heads = query.shape[1]
            sink = torch.as_tensor(chosen.sink, dtype=torch.float32, device="cpu").detach()
            sink = sink.resolve_neg().reshape(-1).expand(heads).contiguous()
    assert NativeStep is not None
    code, window = CODE[query.dtype], memory.window or 0
    sink_at, hard = 0 if sink is None else sink.data_ptr(), isinstance(chosen, Argmax)
    layout, shapes = memory._layout.numbers, (query.shape, step.key.shape, step.value.shape)
    return Plan(
        similarity,
        query.shape[2],
        query.dtype,
        (*query.shape[:3], memory.value_width),
        memory.width == memory.value_width,
        layout,
        code,
        window,
        scale,
        softcap,
        sink,
        sink_at,
        hard,
        NativeStep(Tensor, layout, code, *shapes, window, scale, softcap, sink_at, hard),
    )


def answer(step: Step, memory: KVCache) -> Tensor:
    """A tensor for the answer; what is in it is nobody's business yet."""
    shape = (*step.query.shape[:3], memory.value_width)
    try:
        return step.query.new_empty(shape)
    except RuntimeError as error:  # what torch's allocator says when there is no more
        raise MemoryError(f"decode: no room for an answer of {math.prod(shape) * step.query.itemsize} bytes") from error


def attend(step: Step, memory: KVCache, plan: Plan, out: Tensor) -> None:
    """The native kernel over all new queries, or over blocks of them where the mask has to be made cell by cell."""
    n, band = step.extent.len_q, step.band
    limits: tuple[Any, ...] = (None, None, None, None)
    if band is not None:
        limits = _clamped_rows(band.starts), _clamped_rows(band.stops), _clamped(band.lower), _clamped(band.upper)
    bias = None if step.bias is None else step.bias.to(torch.float32).resolve_neg()
    for i0, i1 in [(0, n)] if band is not None else _blocks(step, (0, n)):
        keep = None if band is not None else step.keep((i0, i1), (0, step.extent.len_k))
        part = bias if bias is None or bias.shape[2] == 1 else bias[:, :, i0:i1]
        _attend_block(step, memory, plan, out, (i0, i1), limits, keep, part)


def _attend_block(
    step: Step,
    memory: KVCache,
    plan: Plan,
    out: Tensor,
    rows: tuple[int, int],
    limits: tuple[Any, ...],
    keep: Tensor | None,
    bias: Tensor | None,
) -> None:
    assert memory_attend is not None
    i0, i1 = rows
    n = step.extent.len_q
    query, answer = step.query.detach().resolve_neg()[:, :, i0:i1], out[:, :, i0:i1]
    target = answer if answer.is_contiguous() else torch.empty_like(answer, memory_format=torch.contiguous_format)
    # What does not count stands behind the queries of a row, or before them.
    skipped = np.zeros_like(step.past) if step.counts is None or not step.left else n - step.counts
    stop = np.full_like(step.past, n) if step.counts is None else skipped + step.counts
    counts = np.clip(np.minimum(stop, i1) - np.maximum(skipped, i0), 0, None)
    positions = step.past + np.maximum(i0 - skipped, 0)
    scores = (*query.shape[:3], step.extent.len_k)
    keep = None if keep is None else keep.expand(scores)
    bias = None if bias is None else bias.expand(scores)
    starts, stops, lower, upper = limits
    memory_attend(
        *plan.numbers,
        memory._table.address,
        memory._table.slots,
        plan.code,
        query.shape,
        query.data_ptr(),
        query.stride(),
        target.data_ptr(),
        0,
        positions.ctypes.data,
        0 if step.counts is None else counts.ctypes.data,
        step.left,
        plan.window,
        0 if starts is None else starts.ctypes.data,
        0 if stops is None else stops.ctypes.data,
        lower,
        upper,
        0 if keep is None else keep.data_ptr(),
        NOTHING if keep is None else keep.stride(),
        0 if bias is None else bias.data_ptr(),
        NOTHING if bias is None else bias.stride(),
        plan.scale,
        plan.softcap,
        plan.sink_at,
        plan.hard,
        torch.get_num_threads(),
    )
    if target is not answer:
        answer.copy_(target)


def _clamped(limit: int | None) -> int | None:
    return None if limit is None else max(-_FAR, min(_FAR, limit))


def _clamped_rows(limits: tuple[int, ...] | None) -> np.ndarray | None:
    return None if limits is None else np.array([_clamped(limit) for limit in limits], dtype=np.int64)


def _blocks(step: Step, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Queries in blocks whose part of the mask stays small."""
    i0, i1 = rows
    extent = step.extent
    cells = extent.batch * extent.heads * extent.len_k
    if (i1 - i0) * cells > TILE:
        # Most masks are alike for all heads, or for all rows of the batch: one query shows it.
        cells = max(extent.len_k, step.keep((i0, i0 + 1), (0, extent.len_k)).numel())
    height = max(1, TILE // cells)
    for start in range(i0, i1, height):
        yield start, min(i1, start + height)


def gathered(step: Step, memory: KVCache, out: Tensor) -> None:
    """Torch alone: what the memory holds as tensors, row by row where rows differ, and a form of `attention`."""
    dtype, device = arithmetic(step.query.dtype), step.query.device
    out.zero_()
    window, band = memory.window, step.band
    # A mask along the diagonal need not be made cell by cell.
    cells = band is None or band.starts is not None or band.stops is not None
    lower, upper = (None, 1) if cells or band is None else (band.lower, 1 if band.upper is None else band.upper)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for rows, i0, i1 in _alike(step, memory):
            past = int(step.past[rows.start])
            start, stop = int(memory._table.first[rows.start]) * PAGE, past + i1 - i0
            pairs = [numbers(memory._read(row, start, stop)) for row in range(rows.start, rows.stop)]
            key, value = (torch.stack(tensors).to(device, dtype) for tensors in zip(*pairs, strict=True))
            for j0, j1 in _blocks(step, (i0, i1)) if cells else [(i0, i1)]:
                offset = past - start + j0 - i0
                mask = Causal(offset=offset + min(1, upper) - 1)
                if window is not None:
                    mask = mask & Window(left=window - 1, offset=offset)
                if lower is not None:
                    mask = mask & Window(left=0, offset=offset + lower)
                if cells:
                    mask = mask & Dense(_part(step.keep((j0, j1), (start, stop)), rows))
                bias = None if step.bias is None else _part(step.bias, rows).to(dtype)
                if bias is not None:
                    bias = bias if bias.shape[2] == 1 else bias[:, :, j0:j1]
                    bias = bias if bias.shape[3] == 1 else bias[..., start:stop]
                query = step.query.detach()[rows, :, j0:j1].to(dtype)
                form = _form(math.prod(query.shape[:3]) * (stop - start))
                call = read_call(query, key, value, step.similarity, mask, bias, 0.0, form, False, False)
                out[rows, :, j0:j1] = choose(call).run(call).out


def _alike(step: Step, memory: KVCache) -> Iterator[tuple[slice, int, int]]:
    """Batch rows that can be computed together, and their queries that count."""
    n, batch = step.extent.len_q, step.extent.batch
    first = memory._table.first
    if step.counts is None and (step.past == step.past[0]).all() and (first == first[0]).all():
        yield slice(0, batch), 0, n
        return
    for row in range(batch):
        count = n if step.counts is None else int(step.counts[row])
        if count:
            yield slice(row, row + 1), n - count if step.left else 0, n if step.left else count


def _part(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[rows]
