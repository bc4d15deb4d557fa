"""`attention`, `explain` and `varlen`: check the arguments, choose a backend, run it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal, Never, TypedDict, Unpack, overload

import torch
from torch import Tensor

from .backends.base import Result
from .backends.dispatch import Choice, explain_choice
from .backends.run import check_document_counts, document_ranges, run_call, run_documents_as_operator
from .backends.run import empty_result as empty_result
from .cache import KVCache
from .cache.decode import explain_step
from .errors import MaskError, OptionError, ShapeError, complaint
from .forgetting import check_log_decay
from .inputs import AttentionInputs, is_compiling, raise_unknown_arguments, read_inputs
from .masks import Causal, Mask, Segments, as_mask
from .ops.loader import limit_threads_after_fork
from .scoring import ScoreFunction
from .similarity import AnySimilarity, Softmax, as_similarity
from .states import AnyState, as_state

Answer = Tensor | tuple[Tensor, ...]


class Options(TypedDict, total=False):
    """The options that all overloads of `attention` share."""

    similarity: AnySimilarity | None
    mask: Mask | None
    bias: Tensor | ScoreFunction | None
    state: AnyState | None
    initial_state: Tensor | None
    dropout: float
    backend: str


@overload
def attention(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_lse: Literal[True],
    return_weights: bool = ...,
    return_state: bool = ...,
    **options: Unpack[Options],
) -> tuple[Tensor, ...]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_lse: bool = ...,
    return_weights: Literal[True],
    return_state: bool = ...,
    **options: Unpack[Options],
) -> tuple[Tensor, ...]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_lse: bool = ...,
    return_weights: bool = ...,
    return_state: Literal[True],
    **options: Unpack[Options],
) -> tuple[Tensor, ...]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_lse: bool,
    return_weights: bool = ...,
    return_state: bool = ...,
    **options: Unpack[Options],
) -> Answer: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | ScoreFunction | None = None,
    state: AnyState | None = None,
    initial_state: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
    return_state: bool = False,
    **unknown: Never,
) -> Answer:
    """V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j), over the keys j that the mask allows for query i.

    Args:
        query: (batch, heads_q, len_q, width). All three may instead be (batch, length, width) or (length, width);
            mask and bias then broadcast to (batch, len_q, len_k) and (len_q, len_k).
        key: (batch, heads_kv, len_k, width). Query head h reads key/value head h // (heads_q // heads_kv).
        value: (batch, heads_kv, len_k, width_v).
        similarity: `Softmax()` when None; `Argmax`, `Polynomial`, `FeatureMap` or `Similarity`.
        mask: a mask of `qkv.masks`; True attends.
        bias: numbers that broadcast to (batch, heads_q, len_q, len_k) and are added to the scores of `Softmax` and
            `Sigmoid`, in the order scale → softcap → log_decay → bias → mask. Or a function(scores, batch, head, query,
            key) that returns the scores which replace a block of them: scores (batch, heads, queries, keys) in float32
            or, for float64 inputs, float64, 0 where the mask does not attend; then the indices as integer tensors that
            broadcast to it. It must compute each pair on its own; what it uses may be learned.
        state: for similarities with features: what the sums Σ_j φ(k_j) v_jᵀ do before a token is added (`Decay`,
            `Gated`, `Delta`, `GatedDelta`, `KDA` of qkv.states). Such a call is causal; mask may be None, `Causal()`,
            `Padding` and `Segments`.
        initial_state: the state before the first token, (batch, heads_kv, features, width_v), one column wider where
            the similarity normalizes: the last column is Σ_j φ(k_j).
        dropout: the probability that a weight is set to 0; the others are divided by 1 − dropout.
        backend: how to compute; it never changes the answer. "auto" picks one; a named one runs or is refused.
        return_lse: return log Σ_j exp(score) too, sink included; softmax only.
        return_weights: return the weights too, after dropout: out = weights @ value.
        return_state: return the state after the last token too, float32 or, for float64 inputs, float64.

    Returns:
        (batch, heads_q, len_q, width_v), or a tuple in the order (out, lse, weights, state) with lse (batch, heads_q,
        len_q) and weights (batch, heads_q, len_q, len_k).

    Raises:
        ShapeError, DtypeError, MaskError, OptionError: arguments that do not fit; the message says what to do.
        BackendRefused: the named backend cannot run this call; `reasons` says why.

    >>> import torch, qkv
    >>> q, k, v = torch.eye(3), torch.eye(3), torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    >>> qkv.attention(q, k, v, similarity=qkv.Argmax())
    tensor([[1., 0.],
            [0., 1.],
            [2., 2.]])

    A query with nothing to attend to gets exactly 0, lse −inf and gradient 0. Masked keys and values cannot matter,
    NaN and infinity included; NaN that is attended to is never hidden. A score of +inf makes its row NaN; a score of
    −inf has weight 0.
    """
    if unknown:
        raise_unknown_arguments(attention, unknown)
    limit_threads_after_fork()
    returns = return_lse, return_weights
    states = state, initial_state, return_state
    call = read_inputs(query, key, value, similarity, mask, bias, dropout, backend, *returns, *states)
    return restore_shape(call, run_call(call))


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | ScoreFunction | None = None,
    state: AnyState | None = None,
    initial_state: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
    return_state: bool = False,
    cache: KVCache | None = None,
    **unknown: Never,
) -> Choice:
    """Which backend the same call of `attention` would run, the reasons against the others, and the cost.

    Args:
        query, key, value, similarity, mask, bias, state, initial_state, dropout, backend, return_lse, return_weights,
            return_state: as in `attention`.
        cache: explain the same call of `decode` with this cache instead; nothing is appended.

    Returns:
        A `Choice`; print it for a table.

    Raises:
        OptionError, ShapeError, DtypeError, MaskError: an argument that does not fit; the message names it.

    >>> import torch, qkv
    >>> q = torch.zeros(1, 4, 64, 16)
    >>> qkv.explain(q, q, q, similarity=qkv.Argmax()).backend
    'argmax'
    """
    if unknown:
        raise_unknown_arguments(explain, unknown)
    if cache is not None:
        for name, given, default in (
            ("dropout", dropout, 0.0),
            ("backend", backend, "auto"),
            ("return_lse", return_lse, False),
            ("return_weights", return_weights, False),
            ("state", state, None),
            ("initial_state", initial_state, None),
            ("return_state", return_state, False),
        ):
            if given is not default and given != default:
                raise OptionError(complaint(name, repr(given), f"{default!r} with a cache: decode has no {name}"))
        return explain_step(query, key, value, cache, similarity, mask, bias)
    returns = return_lse, return_weights
    states = state, initial_state, return_state
    return explain_choice(read_inputs(query, key, value, similarity, mask, bias, dropout, backend, *returns, *states))


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    state: AnyState | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    **unknown: Never,
) -> Tensor:
    """Attention over packed documents: document n is the rows cu_seqlens[n] to cu_seqlens[n + 1] − 1.

    Args:
        query: (total_q, heads_q, width).
        key: (total_k, heads_kv, width).
        value: (total_k, heads_kv, width_v).
        cu_seqlens_q: integers (documents + 1,), the cumulative lengths, from 0. Documents may be empty.
        cu_seqlens_k: the same for keys; `cu_seqlens_q` when left out.
        similarity, dropout, backend: as in `attention`; `log_decay` of `Softmax` has shape (total_k, heads_q).
        mask: counts positions inside each document, so that `Causal()` is causal in each. It must fit every document:
            no tensors of one length. For a mask over the packed sequence, use `Segments.from_cu_seqlens`.
        state: as in `attention`, with gates (total, heads_kv) or (total, heads_kv, features) and beta (total,
            heads_kv); every document starts from 0. All documents run as one call.

    Returns:
        (total_q, heads_q, width_v). No document attends to another.

    Raises:
        OptionError, ShapeError, DtypeError, MaskError: an argument that does not fit; the message names it.

    >>> import torch, qkv
    >>> x = torch.randn(5, 2, 4)
    >>> packed = qkv.varlen(x, x, x, torch.tensor([0, 2, 5]), mask=qkv.Causal())
    >>> alone = x[2:].transpose(0, 1)[None]
    >>> torch.allclose(packed[2:], qkv.attention(alone, alone, alone, mask=qkv.Causal())[0].transpose(0, 1))
    True
    """
    if unknown:
        raise_unknown_arguments(varlen, unknown)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ShapeError(complaint(name, shape, "a packed tensor (total, heads, width)"))
    if (change := as_state(state)) is not None:
        return _state_over_documents(
            (query, key, value), (cu_seqlens_q, cu_seqlens_k), similarity, mask, change, backend
        )
    edges = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    if is_compiling() and not dropout and getattr(similarity, "log_decay", None) is None:
        packed = tuple(tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        answer = run_documents_as_operator(packed, edges, as_similarity(similarity), as_mask(mask), backend)
        if answer is not None:
            return answer[0].transpose(0, 1)
    rows = document_ranges("cu_seqlens_q", edges[0], query.shape[0])
    columns = document_ranges("cu_seqlens_k", edges[1], key.shape[0])
    check_document_counts(rows, columns)
    outs, gates = [], similarity.log_decay if isinstance(similarity, Softmax) else None
    if gates is not None:
        check_log_decay(gates, query, (key.shape[0], query.shape[1]), "packed keys, query heads")
    for (i0, i1), (j0, j1) in zip(rows, columns, strict=True):
        parts = (tensor.transpose(0, 1)[None] for tensor in (query[i0:i1], key[j0:j1], value[j0:j1]))
        if gates is not None and isinstance(similarity, Softmax):
            similarity = replace(similarity, log_decay=gates[j0:j1].T[None])
        out = attention(*parts, similarity=similarity, mask=mask, dropout=dropout, backend=backend)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs) if outs else query.new_zeros(0, query.shape[1], value.shape[2])


def _state_over_documents(
    packed: tuple[Tensor, Tensor, Tensor],
    edges: tuple[Tensor, Tensor | None],
    similarity: AnySimilarity | None,
    mask: Mask | None,
    state: AnyState,
    backend: str,
) -> Tensor:
    """`varlen` with `state=`: one call, whose state is reset at each document."""
    if edges[1] is not None and not torch.equal(edges[0], edges[1]):
        raise MaskError(
            complaint("cu_seqlens_k", "other documents than cu_seqlens_q", "the same, or None, with state=")
        )
    if not isinstance(as_mask(mask), Causal | None):
        raise MaskError(complaint("mask", repr(mask), "None or Causal() with state=, which is causal"))
    document_ranges("cu_seqlens_q", edges[0], packed[0].shape[0])
    named = {f.name: getattr(state, f.name) for f in fields(state)}
    gates = {n: t.transpose(0, 1)[None] for n, t in named.items() if isinstance(t, Tensor) and t.dim() > 1}
    tensors = (tensor.transpose(0, 1)[None] for tensor in packed)
    documents, state = Segments.from_cu_seqlens(edges[0]), replace(state, **gates)
    out = attention(*tensors, similarity=similarity, mask=documents, state=state, backend=backend)
    return out[0].transpose(0, 1)


def restore_shape(call: AttentionInputs, result: Result) -> Answer:
    """The result in the caller's number of dimensions, and in the order (out, lse, weights, state)."""
    wanted = [result.out]
    if call.return_lse:
        assert result.lse is not None
        wanted.append(result.lse)
    if call.return_weights:
        assert result.weights is not None
        wanted.append(result.weights)
    if call.return_state:
        assert result.state is not None
        wanted.append(result.state)
    if call.extent.dims == 3:
        wanted = [tensor.squeeze(1) for tensor in wanted]
    elif call.extent.dims == 2:
        wanted = [tensor[0, 0] for tensor in wanted]
    return wanted[0] if len(wanted) == 1 else tuple(wanted)
