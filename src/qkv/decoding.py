"""`decode`: append the new tokens to a memory, then attend to all that it holds."""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .call import is_compiling, transforming
from .engines import Plan, answer, attend, gathered, native_reasons_against, plan_of
from .errors import DtypeError, FormRefused, OptionError, ShapeError, complaint
from .forms.base import RUNS
from .kernels import ops
from .kernels.forked import settle_after_fork
from .masks import Dense, Mask
from .memory import KVCache, LinearState
from .memory.checks import check_kind, check_no_gradient, check_tokens, counted
from .shapes import Float
from .similarity import AnySimilarity, Argmax, Softmax, as_similarity
from .step import Step, check_memory, check_query, check_similarity, read_step, traced_keep

_RIGHT = "right"
_PLANS: dict[tuple, Plan] = {}
_MOST_PLANS = 64
# The library complains of objects that outlive it.
atexit.register(_PLANS.clear)
_threads, _empty_like = torch.get_num_threads, torch.empty_like


def decode(
    query: Float[Tensor, "batch heads_q n width"],
    key: Float[Tensor, "batch heads_kv n width"],
    value: Float[Tensor, "batch heads_kv n value_width"],
    memory: KVCache | LinearState,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    lengths: Any = None,
    padding: str = _RIGHT,
) -> Float[Tensor, "batch heads_q n value_width"]:
    """Append n tokens to the memory and attend from them: V'_i = Σ_{j ≤ i} sim(q_i, k_j) v_j / Σ_{j ≤ i} sim(q_i, k_j).

    The same answer as rows past … past + n − 1 of `attention` over the whole sequence with the mask `Causal() & mask`,
    whether the tokens come one by one, in chunks or all at once. Query head h reads key/value head
    h // (heads_q // heads_kv).
    memory: a `KVCache`, or a `LinearState`, which brings its own similarity and takes neither mask nor bias.
    similarity: `Softmax` (when None) or `Argmax`. mask: in absolute positions, for keys and for queries; a tensor's
    axis of queries is the whole sequence's, or the n new ones'. bias: broadcasts to (batch, heads_q, n, total).
    lengths: how many of the n new tokens of each row count, the first ones, or the last ones with padding="left". The
    others are not kept, and the answer is 0 there.

    >>> import torch, qkv
    >>> memory = qkv.KVCache(batch=1, heads=2, width=8, dtype=torch.bfloat16)
    >>> for _ in range(3):
    ...     q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)
    ...     out = qkv.decode(q, k, v, memory)
    >>> out.shape, memory.length
    (torch.Size([1, 4, 1, 8]), 3)

    At the edges: n = 0 gives an empty answer and appends nothing. An error leaves the memory as it was. Inputs that
    require grad are refused. float64 queries run on torch, the others on the native kernel, which keeps the same bits
    for any number of threads, any batch companions, any layout and any chunking: `qkv.explain(..., memory=memory)` says
    which.
    """
    settle_after_fork()
    if isinstance(memory, LinearState):
        return _from_state(query, key, value, memory, similarity, mask, bias, lengths, padding)
    if is_compiling():
        return _in_graph(query, key, value, memory, similarity, mask, bias, lengths, padding)
    if type(memory) is not KVCache:
        memory = check_memory(memory)
    with memory._pool.lock:
        plan: Plan | None = memory._plan
        if plan is None:
            plan = _known_for(query, key, value, memory, similarity)
        if (
            plan is not None
            and similarity is plan.similarity
            and mask is None
            and bias is None
            and lengths is None
            and padding is _RIGHT
            and not transforming()
            and type(query) is Tensor
            and (out := _next(plan, query, key, value, memory)) is not None
        ):
            return out
        step = read_step(query, key, value, memory, similarity, mask, bias, lengths, padding)
        return _run(step, memory, similarity)


def _kind(query: Tensor, key: Tensor, value: Tensor, memory: KVCache, similarity: AnySimilarity | None) -> tuple:
    """What a plan depends on, beside what the step itself looks at."""
    shapes = query.shape, key.shape, value.shape
    return similarity, memory._layout.numbers, memory._window, len(memory._lengths), query.dtype, shapes


def _known_for(query: Any, key: Any, value: Any, memory: KVCache, similarity: AnySimilarity | None) -> Plan | None:
    """The plan of another memory's call that looked the same: a model's layers do."""
    if memory._seen is not None or not (type(query) is type(key) is type(value) is Tensor):
        return None
    if not isinstance(similarity, AnySimilarity | None):  # what is wrong is said elsewhere
        return None
    plan = _PLANS.get(_kind(query, key, value, memory, similarity))
    if plan is not None and (key.dtype, key.device) == (query.dtype, query.device):
        return plan
    return None


def _next(plan: Plan, query: Tensor, key: Tensor, value: Tensor, memory: KVCache) -> Tensor | None:
    """A step like the last one; None, and nothing has happened, where the tensors are not like the last ones."""
    step, n = plan.step, plan.n
    end = memory._lengths.item(0) + n
    if end > memory._ready:
        if not step.fits(query, key, value):
            return None
        memory._reserve(n, None)
    table = memory._table
    where = table.address, table.slots, memory._lengths_at, memory._copy_at, _threads()
    # empty_like is the quickest way to a tensor, but keeps the strides: what is not in plain order, `run` leaves alone.
    if not (plan.alike and step.run(query, key, value, out := _empty_like(query), *where)):
        out = torch.empty(plan.out, dtype=plan.dtype, device="cpu")
        if not step.run(query, key, value, out, *where):
            return None
    RUNS["decode.native"] += 1
    if memory._plan is None:
        memory._plan, memory._seen = plan, (key.dtype, key.device)
    if end >= memory._full and plan.window:
        memory._evict()
    if n == 1 and not end & 7:
        memory._clear_ahead(end)
    return out


def _from_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearState,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    lengths: Any,
    padding: str,
) -> Tensor:
    """The sums of a `LinearState` instead of a memory's tokens."""
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None:
            reason = "a sum of features is the same for every query, and single keys are no longer there"
            hint = "leave tokens out with lengths= when they are appended, or use a KVCache"
            said = f"a tensor {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
            raise FormRefused(complaint(name, said, "None beside a LinearState", f"{reason}; {hint}"), (reason,))
    if is_compiling():
        reason = "a LinearState is no tensor that torch.compile could follow"
        raise FormRefused(complaint("memory", "a LinearState in a compiled program", "a KVCache", reason), (reason,))
    if similarity is not None and as_similarity(similarity).signature != state.similarity.signature:
        wanted = f"{state.similarity!r}, which the state was made for, or None"
        raise OptionError(complaint("similarity", repr(similarity), wanted, "the sums hold its features"))
    with state._lock:
        check_kind("query", query)
        check_tokens(state, key, value)
        if (query.dtype, query.device) != (key.dtype, key.device):
            given = f"{query.dtype} on {query.device} beside key's {key.dtype} on {key.device}"
            raise DtypeError(complaint("query", given, "one dtype and device for query, key and value"))
        if query.dim() != 4:
            raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", "(batch, heads, n, width)"))
        check_query(query, key, state)
        counts, left = counted(lengths, padding, state.batch, key.shape[2])
        out = state._advance(query.detach().resolve_neg(), key, value, counts, left)
    assert out is not None
    RUNS["decode.state"] += 1
    return out


def _run(step: Step, memory: KVCache, similarity: AnySimilarity | None = None) -> Tensor:
    """Reserve, write, attend, and only then say that the tokens are there."""
    extent = step.extent
    nothing = extent.len_q == 0 or (step.counts is not None and not step.counts.any())
    out = answer(step, memory)
    if nothing:
        return out.zero_()
    memory._reserve(extent.len_q, step.counts)
    try:
        memory._write(step.key, step.value, step.counts, step.left)
        if native_reasons_against(step):
            RUNS["decode.torch"] += 1
            gathered(step, memory, out)
        else:
            RUNS["decode.native"] += 1
            plan = plan_of(step, memory, similarity)
            attend(step, memory, plan, out)
            sink_varies = isinstance(step.similarity, Softmax) and isinstance(step.similarity.sink, Tensor)
            if not sink_varies and step.mask is None and step.bias is None and step.counts is None:
                memory._plan = plan
                if len(_PLANS) >= _MOST_PLANS:
                    _PLANS.clear()
                _PLANS[_kind(step.query, step.key, step.value, memory, similarity)] = plan
    except BaseException:
        memory._unreserve()
        raise
    memory._publish(step.key, step.counts)
    return out


def _in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    memory: KVCache,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    lengths: Any,
    padding: str,
) -> Tensor:
    """The operator that torch.compile sees; it reads the memory through its handle when the program runs."""
    chosen = check_similarity(similarity)
    soft = chosen if isinstance(chosen, Softmax) else Softmax()
    sink = soft.sink
    if sink is not None and not isinstance(sink, Tensor):
        sink = query.new_full((1,), sink, dtype=torch.float32)
    for name, tensor in (("query", query), ("key", key), ("value", value), ("bias", bias), ("sink", sink)):
        if tensor is not None:
            check_no_gradient(name, tensor)
    counted(None, padding, 0, 0)
    if lengths is not None and not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths)
    keep = traced_keep(mask, query.shape[2])
    left, hard = padding == "left", isinstance(chosen, Argmax)
    return ops.decode(
        query, key, value, memory.handle, soft.scale, soft.softcap, sink, bias, keep, hard, lengths, left
    )  # fmt: skip


@lru_cache
def _similarity(scale: float | None, softcap: float | None, hard: bool) -> Softmax | Argmax:
    """The same object for the same numbers, so that a step is known again."""
    return Argmax() if hard else Softmax(scale, softcap)


def _from_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    handle: Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    hard: bool = False,
    lengths: Tensor | None = None,
    left: bool = False,
) -> Tensor:
    """What the operator does: back to the lengths of the handle, one step, and the new lengths into the handle."""
    memory: KVCache = ops.memory_of(handle)
    similarity = _similarity(scale, softcap, hard) if sink is None else Softmax(scale, softcap, sink)
    with memory._pool.lock:
        # Only the handle that was given is written to: it may be a copy of the memory's own.
        own, before = memory.handle, memory.handle.clone()
        memory._rewind(ops.lengths_of(handle, memory._lengths))
        mask = None if keep is None else Dense(keep)
        out = decode(
            query, key, value, memory, similarity=similarity, mask=mask, bias=bias, lengths=lengths,
            padding="left" if left else _RIGHT,
        )  # fmt: skip
        now = own.clone()
        own.copy_(before)
        handle.copy_(now)
    return out


ops.serve(_from_graph)
