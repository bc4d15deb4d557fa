"""`decode`: append the new tokens to a cache, then attend to all of its tokens. `attend`: without appending."""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Never, overload

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..backends.base import RUNS
from ..backends.dispatch import Candidate, Choice, choose, comparable_seconds, describe, explain_choice, pricing_machine
from ..backends.native import kernel_rule
from ..cost.price import Cost, product_flops
from ..errors import BackendRefused, DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import (
    AttentionInputs,
    check_flags,
    compute_dtype,
    fold_bias,
    in_transform,
    is_compiling,
    raise_unknown_arguments,
    read_inputs,
)
from ..masks import Causal, Dense, Mask, Padding, Window
from ..ops import library
from ..ops.kernels import NativeStep
from ..ops.loader import limit_threads_after_fork
from ..scoring import ScoreFunction, cut
from ..shapes import Float
from ..similarity import AnySimilarity, Argmax, Sigmoid, Softmax, as_similarity
from ..states import AnyState
from .choosing import choose_format, last_queries
from .formats import StorageFormat
from .inputs import (
    DecodeInputs,
    check_cache_similarity,
    check_lengths,
    check_new_tokens,
    check_no_gradient,
    check_plain_tensor,
    check_query,
    keep_under_tracing,
    read_decode_inputs,
    values_of,
)
from .kv import Bounds, KVCache, check_cache
from .pages import allocate
from .state import LinearState

_RIGHT = "right"
_PLANS: dict[tuple, Plan] = {}
_MAX_PLANS = 64
# The native library reports objects that outlive it.
atexit.register(_PLANS.clear)
_threads, _empty_like = torch.get_num_threads, torch.empty_like


@overload
def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    cache: KVCache | LinearState,
    *,
    similarity: AnySimilarity | None = ...,
    mask: Mask | None = ...,
    bias: Tensor | ScoreFunction | None = ...,
    lengths: Any = ...,
    padding: str = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...


@overload
def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    cache: KVCache | LinearState,
    *,
    similarity: AnySimilarity | None = ...,
    mask: Mask | None = ...,
    bias: Tensor | ScoreFunction | None = ...,
    lengths: Any = ...,
    padding: str = ...,
    return_weights: bool,
) -> Any: ...


def decode(
    query: Float[Tensor, "batch heads_q n width"],
    key: Float[Tensor, "batch heads_kv n width"],
    value: Float[Tensor, "batch heads_kv n value_width"] | None,
    cache: KVCache | LinearState,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | ScoreFunction | None = None,
    state: AnyState | None = None,
    lengths: Any = None,
    padding: str = _RIGHT,
    return_weights: bool = False,
    **unknown: Never,
) -> Any:
    """Append n tokens to the cache and attend from them: V'_i = Σ_{j ≤ i} sim(q_i, k_j) v_j / Σ_{j ≤ i} sim(q_i, k_j).

    The result equals the last n rows of `attention` over the whole sequence with the mask `Causal() & mask`, whether
    the tokens are decoded one by one, in chunks or at once. Query head h reads key/value head
    h // (heads_q // heads_kv). If the call raises, the cache is unchanged. With n = 0 nothing is appended.

    float64 queries are computed by torch, others by the native kernel, whose bits do not depend on the number of
    threads, the other rows of the batch, the memory layout or, until something is evicted from between, the chunking.
    `qkv.explain(..., cache=cache)` says which one runs.

    Args:
        query: (batch, heads_q, n, width).
        key: (batch, heads_kv, n, width).
        value: (batch, heads_kv, n, value_width); None for a cache of latents.
        cache: A `KVCache`, or a `LinearState`, which has its own similarity and takes neither mask nor bias.
        similarity: `Softmax` (if None), `Sigmoid`, `Argmax` or `Similarity`.
        mask: In absolute positions of queries and keys. The query axis of a tensor is the whole sequence, or the n new
            tokens.
        bias: Added to the scores; broadcasts to (batch, heads_q, n, total). Or a function of scores as of `attention`,
            which is given absolute positions of queries and keys; torch computes it.
        state: The gates of the new tokens, for a `LinearState` that was made with `state=`.
        lengths: How many of the n tokens are real in each row; all if None. Padding is not stored, and its output is 0.
        padding: Where the padding of a shorter row is: "right" or "left" of its real tokens.
        return_weights: Return the weights too: sim(q_i, k_j) / Σ_j sim(q_i, k_j), of which a sink takes its share.

    Returns:
        (batch, heads_q, n, value_width), or that and the weights, float32 (batch, heads_q, n, keys), exactly 0 for keys
        that are not attended. Key j is the token at position j; after an eviction, what was stored at index j when the
        call attended: `cache.positions()`, before what this call evicted.

    Raises:
        ShapeError, DtypeError, MaskError, OptionError, OptionTypeError: An argument is invalid; gradients are refused.
        BackendRefused: The cache does not support the mask, the bias, the weights or compilation.

    >>> import torch, qkv
    >>> cache = qkv.KVCache(batch=1, heads=2, width=8, dtype=torch.bfloat16)
    >>> for _ in range(3):
    ...     q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8)
    ...     out = qkv.decode(q, k, v, cache)
    >>> out.shape, cache.length
    (torch.Size([1, 4, 1, 8]), 3)
    """
    if unknown:
        raise_unknown_arguments(decode, unknown)
    limit_threads_after_fork()
    if isinstance(cache, LinearState):
        check_flags(return_weights=return_weights)
        if return_weights:
            reason = "its sums are shared by all queries and have no single keys"
            wanted = f"False with a LinearState: {reason}; use a KVCache"
            raise BackendRefused(complaint("return_weights", "True", wanted), (reason,))
        return _decode_state(query, key, value, cache, _Options(similarity, mask, bias, lengths, padding), state)
    if state is not None:
        wanted = "None with a KVCache, which keeps keys and values and no state"
        raise OptionTypeError(complaint("state", repr(state), wanted, "make a qkv.LinearState(..., state=...)"))
    if is_compiling():
        if return_weights:
            reason = "a compiled step returns the output alone"
            raise BackendRefused(complaint("return_weights", "True", "False under torch.compile", reason), (reason,))
        return _decode_in_graph(query, key, value, cache, _Options(similarity, mask, bias, lengths, padding))
    if type(cache) is not KVCache:
        cache = check_cache(cache)
    if value is None or cache._layout.latent:
        value = values_of(cache, key, value)
    with cache._pool.lock:
        plan: Plan | None = cache._plan
        if plan is None:
            plan = _find_plan(query, key, value, cache, similarity)
        if (
            plan is not None
            and similarity is plan.similarity
            and mask is None
            and bias is None
            and lengths is None
            and padding is _RIGHT
            and return_weights is False
            and not in_transform()
            and type(query) is Tensor
            and (out := _run_plan(plan, query, key, value, cache)) is not None
        ):
            return out
        check_flags(return_weights=return_weights)
        step = read_decode_inputs(query, key, value, cache, similarity, mask, bias, lengths, padding)
        found = _run(step, cache, similarity, return_weights=return_weights)
        return (found.out, found.weights) if return_weights else found.out


def attend(
    query: Float[Tensor, "batch heads_q n width"],
    cache: KVCache,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | ScoreFunction | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    **unknown: Never,
) -> Any:
    """Attend to the tokens of a cache without appending: V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j).

    For cross attention, and to look at what a query would read. The cache does not change, its importance neither.
    The result is that of `attention` with the stored keys and values: every query attends to all tokens of its row
    unless a mask says otherwise. To a mask, query i is number i of n, and key j is at its position in the cache; so
    `Causal` must say its offset, `Causal(offset=p)` for queries from position p on. A cache with a window is attended
    to as by its last token: the last `window` tokens, and the sinks.

    Args:
        query: (batch, heads_q, n, width).
        cache: A `KVCache`.
        similarity: `Softmax` (if None), `Sigmoid`, `Argmax` or `Similarity`.
        mask: Over (n, positions); a tensor's axis of keys is all positions, evicted ones included.
        bias: Added to the scores; broadcasts to (batch, heads_q, n, positions). Or a function of scores, for query i of
            n and the positions of keys.
        return_lse: Return log Σ_j exp(score) too, sink included; softmax only.
        return_weights: Return the weights too, as `decode` does.

    Returns:
        (batch, heads_q, n, value_width), or a tuple in the order (out, lse, weights).

    Raises:
        ShapeError, DtypeError, MaskError, OptionError, OptionTypeError: As `decode`.
        BackendRefused: The cache is a `LinearState`, or the call is compiled.

    >>> import torch, qkv
    >>> cache = qkv.KVCache(batch=1, heads=2, width=8)
    >>> cache.append(torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8))
    >>> out, weights = qkv.attend(torch.randn(1, 4, 3, 8), cache, return_weights=True)
    >>> out.shape, weights.shape, cache.length
    (torch.Size([1, 4, 3, 8]), torch.Size([1, 4, 3, 7]), 7)
    """
    if unknown:
        raise_unknown_arguments(attend, unknown)
    limit_threads_after_fork()
    for given, reason in (
        (isinstance(cache, LinearState), "a LinearState has sums in place of single keys"),
        (is_compiling(), "attend cannot be compiled"),
    ):
        if given:
            raise BackendRefused(complaint("cache", type(cache).__name__, "a KVCache, uncompiled", reason), (reason,))
    cache = check_cache(cache)
    check_flags(return_lse=return_lse, return_weights=return_weights)
    with cache._pool.lock:
        step = read_decode_inputs(query, None, None, cache, similarity, mask, bias, None, _RIGHT)
        if return_lse and not step.similarity.has_lse:
            given = f"True with {step.similarity!r}"
            raise OptionError(complaint("return_lse", given, "False", "only Softmax has a log-sum-exp of scores"))
        found = _run(step, cache, similarity, return_lse=return_lse, return_weights=return_weights)
    every = tuple(each for each in found if each is not None)
    return every if len(every) > 1 else found.out


def _plan_key(query: Tensor, key: Tensor, value: Tensor, cache: KVCache, similarity: AnySimilarity | None) -> tuple:
    """What a plan depends on, apart from what `NativeStep` checks itself."""
    shapes = query.shape, key.shape, value.shape
    limits = cache._window, cache._sinks, len(cache._lengths)
    return similarity, cache._layout.native_args, limits, query.dtype, shapes


def _make_plan(step: DecodeInputs, cache: KVCache, similarity: AnySimilarity | None, options: dict[str, Any]) -> Plan:
    assert NativeStep is not None
    tensors = step.query, step.key, step.value
    native = NativeStep(*tensors, layout=cache._layout.native_args, window=cache.window, sinks=cache.sinks, **options)
    plan = Plan(similarity, step.extent.len_q, cache.width == cache.value_width, native)
    if len(_PLANS) >= _MAX_PLANS:
        _PLANS.clear()
    _PLANS[_plan_key(*tensors, cache, similarity)] = plan
    return plan


def _find_plan(query: Any, key: Any, value: Any, cache: KVCache, similarity: AnySimilarity | None) -> Plan | None:
    """The plan of the same call on another cache, such as another layer of a model."""
    if (
        cache.token_type is not None
        or cache.bound is not None
        or not (type(query) is type(key) is type(value) is Tensor)
    ):
        return None
    if not isinstance(similarity, AnySimilarity | None):  # refused later, with a message
        return None
    plan = _PLANS.get(_plan_key(query, key, value, cache, similarity))
    if plan is not None and (key.dtype, key.device) == (query.dtype, query.device):
        return plan
    return None


def _run_plan(plan: Plan, query: Tensor, key: Tensor, value: Any, cache: KVCache) -> Tensor | None:
    """Run the planned call. Return None, without any effect, if the tensors do not match the plan."""
    step, n, importance = plan.step, plan.n, cache._importance_at
    end, columns = cache._lengths.item(0) + n, 0
    if cache._eviction is not None:
        # What is evicted after this call is prepared in it, and what counts only at the end of prompts is set there.
        if int(cache._lengths.max()) + n >= cache._most or (cache._eviction.observe is not None and n > 1):
            return None
        importance = 0 if cache._eviction.observe is not None else importance
    if end > cache._writable_end:
        if not step.fits(query, key, value):
            return None
        cache.reserve(n, None)
    if importance:
        importance, columns = cache._importance_at, cache._importance.shape[2]  # pyright: ignore[reportOptionalMemberAccess]
    table = cache._table
    lengths_at = cache._lengths_at, cache._handle_lengths_at
    addresses = table.address, table.slots, *lengths_at, _threads(), importance, columns
    # empty_like is the fastest allocation but keeps strides; `run` returns False if they are not contiguous.
    if not (plan.out_like_query and step.run(query, key, value, out := _empty_like(query), *addresses)):
        out = torch.empty((*query.shape[:3], cache.value_width), dtype=query.dtype, device="cpu")
        if not step.run(query, key, value, out, *addresses):
            return None
    RUNS["decode.native"] += 1
    if cache._plan is None:
        cache._plan, cache.token_type = plan, (key.dtype, key.device)
    if end >= cache._evict_from and cache._window is not None:
        cache._evict()
    if n == 1 and not end & 7:
        cache._populate_ahead(end)
    return out


class _Options(NamedTuple):
    """The options of `decode`."""

    similarity: AnySimilarity | None
    mask: Mask | None
    bias: Tensor | ScoreFunction | None
    lengths: Any
    padding: str


def _decode_state(
    query: Tensor, key: Tensor, value: Any, state: LinearState, options: _Options, change: AnyState | None
) -> Tensor:
    """`decode` with a `LinearState`."""
    similarity, mask, bias, lengths, padding = options
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None:
            reason = "its sums are shared by all queries and have no single keys"
            hint = "leave tokens out with lengths= when they are appended, or use a KVCache"
            text = f"a tensor {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
            raise BackendRefused(complaint(name, text, "None with a LinearState", f"{reason}; {hint}"), (reason,))
    if is_compiling():
        reason = "torch.compile cannot trace a LinearState"
        raise BackendRefused(complaint("cache", "a LinearState in a compiled program", "a KVCache", reason), (reason,))
    if similarity is not None and not state.has_similarity(as_similarity(similarity)):
        wanted = f"{state.similarity!r} with the state's own map, or None"
        raise OptionError(complaint("similarity", repr(similarity), wanted, "the sums contain its features"))
    with state.lock:
        check_plain_tensor("query", query)
        check_new_tokens(state, key, value)
        if (query.dtype, query.device) != (key.dtype, key.device):
            given = f"{query.dtype} on {query.device}, and key {key.dtype} on {key.device}"
            raise DtypeError(complaint("query", given, "one dtype and device for query, key and value"))
        if query.dim() != 4:
            raise ShapeError(complaint("query", f"shape {tuple(query.shape)}", "(batch, heads, n, width)"))
        check_query(query, key, state)
        counts, left = check_lengths(lengths, padding, state.batch, key.shape[2])
        out = state.advance(query, key, value, counts, left, change)
    assert out is not None
    RUNS["decode.state"] += 1
    return out


class Found(NamedTuple):
    """What a call computes: out (batch, heads_q, n, value_width), lse (batch, heads_q, n) and weights (…, n, slots)."""

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


def _run(
    step: DecodeInputs,
    cache: KVCache,
    similarity: AnySimilarity | None,
    *,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Found:
    """Reserve pages, write the tokens, attend, then publish the new lengths. `attend` attends only."""
    extent, device = step.extent, step.query.device
    no_tokens = extent.len_q == 0 or (step.counts is not None and not step.counts.any())
    shape = step.query.shape[:3]
    out = allocate((*shape, cache.value_width), step.query.dtype, device)
    lse = torch.full(shape, -math.inf, dtype=compute_dtype(step.query.dtype), device=device) if return_lse else None
    weights = allocate((*shape, step.stored_end), torch.float32, device).zero_() if return_weights else None
    found = Found(out, lse, weights)
    if no_tokens:
        out.zero_()
        return found
    if step.cross:
        if _native_reasons(step, cache, return_weights):
            RUNS["attend.torch"] += 1
            attend_gathered(step, cache, found)
        else:
            RUNS["attend.native"] += 1
            attend_native(step, cache, found, kernel_options(step))
        return found
    deciding = None if cache.bound is None else last_queries(step)
    before, ready = None if cache._importance is None else cache._importance.clone(), None
    try:
        cache.reserve(extent.len_q, step.counts)
        cache.write(step.key, step.value, step.counts, step.left)
        counted = cache.count_from(extent.len_q, step.counts)
        if _native_reasons(step, cache, return_weights):
            RUNS["decode.torch"] += 1
            attend_gathered(step, cache, found, *counted)
        else:
            RUNS["decode.native"] += 1
            options = kernel_options(step)
            attend_native(step, cache, found, options, *counted)
            sink_varies = isinstance(step.similarity, Softmax) and isinstance(step.similarity.sink, Tensor)
            varies = sink_varies or step.forgetting is not None or step.score_rule is not None
            if not varies and step.mask is None and step.bias is None and step.counts is None:
                cache._plan = _make_plan(step, cache, similarity, options)
        ready = cache.prepare(extent.len_q, step.counts)
    except BaseException:
        cache.cancel(before)
        raise
    cache.commit(step.key, step.counts, ready)
    if deciding is not None:
        # The keys' part in the scores decides; what is made of the scores does not.
        chosen = step.similarity if isinstance(step.similarity, Softmax | Sigmoid) else Softmax()
        choose_format(cache, *deciding, chosen.scale_for(cache.width))
    return found


def _decode_in_graph(query: Tensor, key: Tensor, value: Any, cache: KVCache, options: _Options) -> Tensor:
    """Call the operator that torch.compile traces; it finds the cache through its handle at run time."""
    similarity, mask, bias, lengths, padding = options
    chosen, value = check_cache_similarity(similarity), values_of(check_cache(cache), key, value)
    if callable(bias):
        reason = "a compiled step calls no function of scores"
        raise BackendRefused(complaint("bias", "a function", "a tensor under torch.compile", reason), (reason,))
    if isinstance(chosen, Softmax) and chosen.log_decay is not None:
        reason = "a compiled step does not know how many tokens there are gates for"
        wanted = "no log_decay under torch.compile"
        raise BackendRefused(complaint("similarity", repr(chosen), wanted, reason), (reason,))
    if type(chosen) not in (Softmax, Sigmoid, Argmax):
        reason = f"a compiled step calls no function, as {type(chosen).__name__} may do"
        wanted = "Softmax, Sigmoid or Argmax under torch.compile"
        raise BackendRefused(complaint("similarity", repr(chosen), wanted, reason), (reason,))
    chosen, own = fold_bias(chosen, None, query, query.shape[1])
    soft = chosen if isinstance(chosen, Softmax) else Softmax()
    sigmoid = chosen if isinstance(chosen, Sigmoid) else None
    if sigmoid is not None and isinstance(sigmoid.bias, float):
        own = query.new_full((1,), sigmoid.bias, dtype=compute_dtype(query.dtype))
    bias = bias if own is None else own if bias is None else bias + own
    scale, sink = soft.scale if sigmoid is None else sigmoid.scale, soft.sink
    if sink is not None and not isinstance(sink, Tensor):
        sink = query.new_full((1,), sink, dtype=torch.float32)
    for name, tensor in (("query", query), ("key", key), ("value", value), ("bias", bias), ("sink", sink)):
        if tensor is not None:
            check_no_gradient(name, tensor)
    check_lengths(None, padding, 0, 0)
    if lengths is not None and not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths)
    keep = keep_under_tracing(mask, query.shape[2])
    left, argmax = padding == "left", isinstance(chosen, Argmax)
    return library.decode(
        query, key, value, cache.handle, scale, soft.softcap, sink, bias, keep, argmax, lengths, left,
        sigmoid is not None,
    )  # fmt: skip


@lru_cache
def _similarity(scale: float | None, softcap: float | None, argmax: bool, sigmoid: bool) -> AnySimilarity:
    """Cached, so that the plan of an earlier step, which compares by identity, is found."""
    return Argmax() if argmax else Sigmoid(scale) if sigmoid else Softmax(scale, softcap)


def _decode_from_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    handle: Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    argmax: bool = False,
    lengths: Tensor | None = None,
    left: bool = False,
    sigmoid: bool = False,
) -> Tensor:
    """The operator: crop the cache to the handle's lengths, decode, write the new lengths into the handle."""
    cache: KVCache = library.cache_of(handle)
    similarity = Softmax(scale, softcap, sink)
    if sink is None:
        similarity = _similarity(scale, softcap, argmax, sigmoid)
    if cache.evicted or cache._importance is not None or cache.sinks:
        reason = "its handle has no sinks, positions and importance"
        wanted = "a KVCache without sinks, importance and eviction"
        raise BackendRefused(complaint("cache", f"{cache!r} in a compiled program", wanted, reason), (reason,))
    with cache._pool.lock:
        # Only the given handle is written: it may be a copy of the cache's own handle.
        own, before = cache.handle, cache.handle.clone()
        cache._rewind(library.requested_lengths(handle, cache._lengths))
        mask = None if keep is None else Padding(keep=keep) if keep.dim() == 2 else Dense(keep)
        given = None if cache.latent else value
        out = decode(
            query, key, given, cache, similarity=similarity, mask=mask, bias=bias, lengths=lengths,
            padding="left" if left else _RIGHT,
        )  # fmt: skip
        now = own.clone()
        own.copy_(before)
        handle.copy_(now)
    return out


library.set_implementation(_decode_from_graph)


# Number of scores up to which the torch path uses the reference backend.
FEW_SCORES = 1 << 22
FEW_ROWS = 16  # up to this many rows of queries for a key head, the kernel uses no tile
# Mask cells that are materialized at a time; computing one takes eight bytes.
MAX_MASK_CELLS = 1 << 23
_UNLIMITED = 1 << 62


class Plan(NamedTuple):
    """A checked call for the native kernel, which `step` compares with the next call and runs."""

    similarity: AnySimilarity | None
    n: int
    out_like_query: bool  # whether the output has the shape of the query
    step: Any  # ops.NativeStep


def explain_step(query: Tensor, key: Tensor, value: Tensor, cache: KVCache, *options: Any) -> Choice:
    """Explain which backend `decode` would run for these arguments; nothing is appended.

    options: similarity, mask and bias.
    """
    if isinstance(cache, LinearState):
        hint = "a LinearState always uses the linear backend; call explain without cache= to see its cost"
        raise OptionTypeError(complaint("cache", "a LinearState", "a qkv.KVCache", hint))
    cache = check_cache(cache)
    value = values_of(cache, key, value)
    with cache._pool.lock:
        step = read_decode_inputs(query, key, value, cache, *options, lengths=None, padding="right")
        extent, size = step.extent, compute_dtype(query.dtype).itemsize
        pairs = extent.cells
        tokens = extent.batch * cache.heads * step.stored_end
        cache_bytes = cache.nbytes
        reasons = native_reasons_against(step, cache.format)
        work = product_flops(pairs, cache.width + (0 if step.is_argmax else cache.value_width))
        cost = Cost(work, cache_bytes, 0, 8e-6)
        rows = extent.len_q * extent.heads // cache.heads
        engine = f"cache.{'few' if rows <= FEW_ROWS else 'many'}.{cache.format.name}"
        seconds = comparable_seconds({engine: cost})[0]
        native = Candidate("native", reasons, None if reasons else cost, seconds, engine)
        # The torch path gathers all tokens into tensors of the compute dtype.
        copied = tokens * (cache.width + cache.value_width) * size
        call = _gathered_inputs(step, cache)
        through_torch = explain_choice(call)
        few = call.backend == "reference"
        # `attention`'s native backend would run the same kernel on a copy.
        backends = [c for c in through_torch.candidates if c.backend != "native"]
        others = [c if c.cost is None else _with_gathering_cost(c, cache_bytes, copied, few) for c in backends]
    text = describe(call._replace(mask=step.mask, query=query))
    backend = through_torch.backend if reasons else "native"
    machine = None if reasons else pricing_machine([engine])
    summary = f"decode after {int(step.past.max())} tokens: {text}"
    return Choice(backend, "auto", (native, *others), summary, machine=machine)


def _with_gathering_cost(candidate: Candidate, cache_bytes: int, copied: int, few: bool) -> Candidate:
    """Add the cost of gathering pages into tensors to the cost of a backend."""
    cost = candidate.cost
    assert cost is not None
    if few and candidate.backend != "reference":
        return Candidate(candidate.backend, (f"up to {FEW_SCORES} scores the reference backend is used",), None)
    traffic, extra = cost.traffic + cache_bytes + 2 * copied, cost.extra + copied
    whole = Cost(cost.flops, traffic, extra, cost.overhead + 50e-6)
    return Candidate(candidate.backend, (), whole, candidate.seconds + whole.seconds - cost.seconds)


def _gathered_inputs(step: DecodeInputs, cache: KVCache) -> AttentionInputs:
    """The `attention` call of the torch path, with zero keys and values of the right shape."""
    extent, dtype = step.extent, compute_dtype(step.query.dtype)
    zero, keys = step.query.new_zeros((), dtype=dtype), step.stored_end
    key = zero.expand(extent.batch, cache.heads, keys, cache.width)
    value = zero.expand(extent.batch, cache.heads, keys, cache.value_width)
    bias = None if step.bias is None else step.bias.to(dtype)
    causal = Causal(offset=keys - extent.len_q)
    backend = _gathered_backend(extent.cells)
    returns, gates = (False, False), {"forgetting": step.forgetting, "score_rule": step.score_rule}
    return read_inputs(step.query.to(dtype), key, value, step.similarity, causal, bias, 0.0, backend, *returns, **gates)


def _gathered_backend(scores: int) -> str:
    return "reference" if scores <= FEW_SCORES else "auto"


def native_reasons_against(step: DecodeInputs, storage: StorageFormat) -> tuple[str, ...]:
    reasons = list(ops.reasons())
    if not (step.similarity.has_scores or step.is_argmax):
        reasons.append(f"the kernel computes Softmax, Sigmoid and Argmax, not {type(step.similarity).__name__}")
    if step.score_rule is not None:
        reasons.append("the kernel takes a tensor as bias, not a function of scores")
    if step.forgetting is not None and step.positions is not None:
        reasons.append("the kernel finds gates by position, and tokens were evicted from between")
    if step.forgetting is not None and bool((step.forgetting.odd > 0).any()):
        reasons.append("a gate is NaN")
    if storage.native_code is None:
        reasons.append(f"the kernel does not read the storage format {storage.name}")
    if not step.query.is_cpu:
        reasons.append(f"the kernel runs on the CPU, not on {step.query.device.type}")
    if step.query.dtype is torch.float64:
        reasons.append("the kernel computes in float32, not in float64")
    return tuple(reasons)


def _native_reasons(step: DecodeInputs, cache: KVCache, return_weights: bool) -> tuple[str, ...]:
    counts = cache._importance is not None and not step.cross
    more = ("the kernel for Argmax returns no weights",) if step.is_argmax and (return_weights or counts) else ()
    return native_reasons_against(step, cache.format) + more


def kernel_options(step: DecodeInputs) -> dict[str, Any]:
    """How the native kernel makes weights of scores."""
    chosen = step.similarity
    if not chosen.has_scores:
        return {"argmax": True}
    options = kernel_rule(chosen, step.query.shape[3])
    if isinstance(chosen, Softmax) and chosen.sink is not None:
        sink = torch.as_tensor(chosen.sink, dtype=torch.float32, device="cpu").detach()
        options["sink"] = sink.resolve_neg().reshape(-1).expand(step.query.shape[1]).contiguous()
    return options


def attend_native(
    step: DecodeInputs,
    cache: KVCache,
    found: Found,
    options: dict[str, Any],
    importance: Tensor | None = None,
    importance_from: np.ndarray | None = None,
) -> None:
    """Run the native kernel over all queries, or over blocks of queries if the mask has to be materialized."""
    n, band, view = step.extent.len_q, step.band, cache.view()
    start, bias, bounds = int(view.starts.min()), step.bias, None
    if band is not None:
        bounds = Bounds(*(_clamped(bound) for bound in (band.starts, band.stops, band.lower, band.upper)))
    if bias is not None:
        bias = (bias if bias.shape[3] == 1 else bias[..., start:]).to(torch.float32).resolve_neg()
    for i0, i1 in [(0, n)] if band is not None else _query_blocks(step, (0, n), start):
        query = step.query.detach().resolve_neg()[:, :, i0:i1]
        answers = [None if each is None else each[:, :, i0:i1] for each in found]
        target, lse, weights = (None if each is None else each.contiguous() for each in answers)
        assert target is not None
        positions, counts = step.slots + (0 if step.cross else i0), None
        if step.counts is not None:  # padding is after the real queries of a row, or before them
            skipped = n - step.counts if step.left else np.zeros_like(step.past)
            counts = np.clip(np.minimum(skipped + step.counts, i1) - np.maximum(skipped, i0), 0, None)
            positions = step.slots + np.maximum(i0 - skipped, 0)
        scores = (*query.shape[:3], step.stored_end - start)
        part = bias if bias is None or bias.shape[2] == 1 else bias[:, :, i0:i1]
        keep = None if band is not None else step.keep((i0, i1), (start, step.stored_end)).expand(scores)
        part = None if part is None else part.expand(scores)
        rules = {"left": step.left, "keep": keep, "bias": part, "first_key": start, "lse": lse, **options}
        if step.forgetting is not None:
            every = slice(None)
            rules |= step.forgetting.part(every, every, slice(i0, i1), every).kernel_rule()
        rules |= {"weights": weights, "importance": importance, "cross": step.cross}
        rules["importance_from"] = None if importance_from is None else importance_from.tolist()
        view.attend(query, target, positions, counts=counts, bounds=bounds, **rules)
        for answer, computed in zip(answers, (target, lse, weights), strict=True):
            if answer is not None and computed is not None and answer is not computed:
                answer.copy_(computed)


def _clamped(bound: Any) -> Any:
    """A bound, or one for each row, that the kernel can add to a position."""
    if isinstance(bound, tuple):
        return [_clamped(limit) for limit in bound]
    return None if bound is None else max(-_UNLIMITED, min(_UNLIMITED, bound))


def _query_blocks(step: DecodeInputs, rows: tuple[int, int], start: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries whose mask, from key `start` on, has at most MAX_MASK_CELLS cells."""
    i0, i1 = rows
    extent = step.extent
    keys = step.stored_end - start
    cells = extent.batch * extent.heads * keys
    if (i1 - i0) * cells > MAX_MASK_CELLS:
        # Most masks broadcast over heads or batch rows: measure the mask of one query.
        cells = max(keys, step.keep((i0, i0 + 1), (start, step.stored_end)).numel())
    height = max(1, MAX_MASK_CELLS // max(1, cells))
    for start in range(i0, i1, height):
        yield start, min(i1, start + height)


def attend_gathered(
    step: DecodeInputs,
    cache: KVCache,
    found: Found,
    importance: Tensor | None = None,
    importance_from: np.ndarray | None = None,
) -> None:
    """The torch path: gather tokens into tensors, row by row if rows differ, and run a backend of `attention`."""
    dtype, device = compute_dtype(step.query.dtype), step.query.device
    found.out.zero_()
    return_lse, return_weights = found.lse is not None, found.weights is not None or importance is not None
    window, sinks, band, view = cache.window, cache.sinks, step.band, cache.view()
    # A band mask need not be materialized.
    cells = band is None or band.starts is not None or band.stops is not None or (step.cross and step.mask is not None)
    lower, upper = (None, 1) if cells or band is None else (band.lower, 1 if band.upper is None else band.upper)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for rows, i0, i1 in _equal_row_groups(step, view.starts):
            past = int(step.slots[rows.start])
            start, stop = int(view.starts[rows.start]), past + (0 if step.cross else i1 - i0)
            if stop <= start:
                continue
            key, value = (tensor.to(device, dtype) for tensor in view.read(rows, start, stop))
            for j0, j1 in _query_blocks(step, (i0, i1), start) if cells else [(i0, i1)]:
                offset = past - start + j0 - i0
                mask = None if step.cross else Causal(offset=offset + min(1, upper) - 1)
                if window is not None:
                    slots = torch.arange(start, stop, device=device)
                    recent = Dense(slots >= stop - window) if step.cross else Window(left=window - 1, offset=offset)
                    recent = recent | Dense(slots < sinks) if sinks else recent
                    mask = recent if mask is None else mask & recent
                if lower is not None and mask is not None:
                    mask = mask & Window(left=0, offset=offset + lower)
                if cells:
                    keep = Dense(cut(step.keep((j0, j1), (start, stop)), rows, *(slice(None),) * 3))
                    mask = keep if mask is None else mask & keep
                bias = step.bias
                if bias is not None:
                    bias = cut(bias, rows, slice(None), slice(j0, j1), slice(start, stop)).to(dtype)
                query = step.query.detach()[rows, :, j0:j1].to(dtype)
                backend = _gathered_backend(0 if return_weights else math.prod(query.shape[:3]) * (stop - start))
                returns = return_lse, return_weights
                pairs = rows, slice(None), slice(j0, j1), slice(start, stop)
                given = {"forgetting": step.forgetting, "score_rule": step.score_rule}
                terms: dict[str, Any] = {
                    name: None if term is None else term.part(*pairs) for name, term in given.items()
                }
                call = read_inputs(query, key, value, step.similarity, mask, bias, 0.0, backend, *returns, **terms)
                result = choose(call).run(call)
                found.out[rows, :, j0:j1] = result.out
                if found.lse is not None and result.lse is not None:
                    found.lse[rows, :, j0:j1] = result.lse
                if result.weights is not None and found.weights is not None:
                    found.weights[rows, :, j0:j1, start:stop] = result.weights.to(torch.float32)
                if result.weights is not None and importance is not None:
                    first = 0 if importance_from is None else int(importance_from[rows.start]) - past - (j0 - i0)
                    counted = result.weights[:, :, max(first, 0) :].unflatten(1, (cache.heads, -1)).sum((2, 3))
                    importance[rows, :, start:stop] += counted.to("cpu", torch.float32)


def _equal_row_groups(step: DecodeInputs, first: np.ndarray) -> Iterator[tuple[slice, int, int]]:
    """Slices of batch rows that can be computed together, each with the range of their real queries."""
    n, batch = step.extent.len_q, step.extent.batch
    if step.counts is None and (step.slots == step.slots[0]).all() and (first == first[0]).all():
        yield slice(0, batch), 0, n
        return
    for row in range(batch):
        count = n if step.counts is None else int(step.counts[row])
        if count:
            yield slice(row, row + 1), n - count if step.left else 0, n if step.left else count
