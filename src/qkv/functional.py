"""`attention`, `explain` and `varlen`: check the arguments, choose a backend, run it."""

from __future__ import annotations

from typing import Literal, Never, TypedDict, Unpack, overload

import torch
from torch import Tensor

from .backends.base import Result
from .backends.dispatch import Choice, explain_choice
from .backends.run import check_document_counts, document_ranges, run_call, run_documents_as_operator
from .backends.run import empty_result as empty_result
from .cache import KVCache
from .cache.decode import explain_step
from .errors import OptionError, ShapeError, complaint
from .inputs import AttentionInputs, is_compiling, raise_unknown_arguments, read_inputs
from .masks import Mask, as_mask
from .ops.loader import limit_threads_after_fork
from .similarity import AnySimilarity, as_similarity

Answer = Tensor | tuple[Tensor, ...]


class Options(TypedDict, total=False):
    """The options that all overloads of `attention` share."""

    similarity: AnySimilarity | None
    mask: Mask | None
    bias: Tensor | None
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
    **options: Unpack[Options],
) -> Answer: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
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
        bias: numbers that broadcast to (batch, heads_q, len_q, len_k) and are added to softmax's scores, in the order
            scale → softcap → bias → mask.
        dropout: the probability that a weight is set to 0; the others are divided by 1 − dropout.
        backend: how to compute; it never changes the answer. "auto" picks one; a named one runs or is refused.
        return_lse: return log Σ_j exp(score) too, sink included; softmax only.
        return_weights: return the weights too, after dropout: out = weights @ value.

    Returns:
        (batch, heads_q, len_q, width_v), or a tuple in the order (out, lse, weights) with lse (batch, heads_q, len_q)
        and weights (batch, heads_q, len_q, len_k).

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
    call = read_inputs(query, key, value, similarity, mask, bias, dropout, backend, return_lse, return_weights)
    return restore_shape(call, run_call(call))


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    return_lse: bool = False,
    return_weights: bool = False,
    cache: KVCache | None = None,
    **unknown: Never,
) -> Choice:
    """Which backend the same call of `attention` would run, the reasons against the others, and the cost.

    Args:
        query, key, value, similarity, mask, bias, dropout, backend, return_lse, return_weights: as in `attention`.
        cache: explain the same call of `decode` with this cache instead; nothing is appended.

    Returns:
        A `Choice`; print it for a table.

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
        ):
            if given != default:
                raise OptionError(complaint(name, repr(given), f"{default!r} with a cache: decode has no {name}"))
        return explain_step(query, key, value, cache, similarity, mask, bias)
    return explain_choice(
        read_inputs(query, key, value, similarity, mask, bias, dropout, backend, return_lse, return_weights)
    )


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
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
        similarity, dropout, backend: as in `attention`.
        mask: counts positions inside each document, so that `Causal()` is causal in each. It must fit every document:
            no tensors of one length. For a mask over the packed sequence, use `Segments.from_cu_seqlens`.

    Returns:
        (total_q, heads_q, width_v). No document attends to another.

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
    edges = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    if is_compiling() and not dropout:
        packed = tuple(tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        answer = run_documents_as_operator(packed, edges, as_similarity(similarity), as_mask(mask), backend)
        if answer is not None:
            return answer[0].transpose(0, 1)
    rows = document_ranges("cu_seqlens_q", edges[0], query.shape[0])
    columns = document_ranges("cu_seqlens_k", edges[1], key.shape[0])
    check_document_counts(rows, columns)
    outs = []
    for (i0, i1), (j0, j1) in zip(rows, columns, strict=True):
        parts = (tensor.transpose(0, 1)[None] for tensor in (query[i0:i1], key[j0:j1], value[j0:j1]))
        out = attention(*parts, similarity=similarity, mask=mask, dropout=dropout, backend=backend)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs) if outs else query.new_zeros(0, query.shape[1], value.shape[2])


def restore_shape(call: AttentionInputs, result: Result) -> Answer:
    """The result in the caller's number of dimensions, and in the order (out, lse, weights)."""
    wanted = [result.out]
    if call.return_lse:
        assert result.lse is not None
        wanted.append(result.lse)
    if call.return_weights:
        assert result.weights is not None
        wanted.append(result.weights)
    if call.extent.dims == 3:
        wanted = [tensor.squeeze(1) for tensor in wanted]
    elif call.extent.dims == 2:
        wanted = [tensor[0, 0] for tensor in wanted]
    return wanted[0] if len(wanted) == 1 else tuple(wanted)
