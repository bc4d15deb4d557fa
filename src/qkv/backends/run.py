"""Runs a call: at once, or as one operator of a program that torch.compile or torch.export traces.

The operator is opaque to the compiler. When it runs, sizes and contents are known, and the call is checked, dispatched
and computed as outside the program. Calls with functions of the caller (other than a mask's), with dropout, or that
return weights are traced instead as the torch operators of `reference`, and so are calls under torch.func.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..errors import MaskError, complaint
from ..inputs import AttentionInputs, compute_dtype, fold_bias, in_transform, is_compiling, read_inputs
from ..masks import Mask
from ..masks.segments import boundaries
from ..ops import library
from ..similarity import AnySimilarity, Softmax
from . import argmax, linear, sdpa
from .base import NEG_INF, Backend, OutputGradients, Result
from .description import describe_mask, describe_similarity, mask_from_description, similarity_from_description
from .dispatch import choose
from .recurrent import start
from .reference import gather_best


def run_call(call: AttentionInputs, chosen: Backend | None = None) -> Result:
    """Run a backend, that which dispatch chooses if none is given; in a compiled program, call the operator."""
    if call.traced and (answer := run_as_operator(call)) is not None:
        return answer
    chosen = choose(call) if chosen is None else chosen
    extent = call.extent
    if not (extent.len_k and extent.len_q and extent.heads and extent.batch):
        return empty_result(call)
    if torch.is_autocast_enabled(call.query.device.type):
        # The inputs' dtype decides the arithmetic, not the caller's autocast.
        with torch.autocast(call.query.device.type, enabled=False):
            return run_call(call, chosen)
    try:
        return chosen.run(call)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # on CPUs torch has no exception type for it
            raise
        size = " ".join(str(error).split()).rpartition("you tried to allocate ")[2].partition(" bytes")[0]
        raise MemoryError(f"attention: could not allocate {size} bytes in the backend {chosen.name}") from error


def empty_result(call: AttentionInputs) -> Result:
    """Zeros for a call without keys or without queries, still part of the autograd graph."""
    query, key, value, extent = call.query, call.key, call.value, call.extent
    zero = query[..., :0].sum(-1, keepdim=True) + key[:, :, :0].sum() + value[:, :, :0].sum()
    for tensor in (call.bias, call.sink):
        zero = zero if tensor is None else zero + tensor.flatten()[:0].sum().to(query.dtype)
    if call.forgetting is not None:
        zero = zero + call.forgetting.query.flatten()[:0].sum().to(query.dtype)
    out = zero.expand(*query.shape[:3], call.width_v)
    lse = zero[..., 0].to(compute_dtype(query.dtype)) + NEG_INF if call.return_lse else None
    weights = zero.expand(*query.shape[:3], extent.len_k).clone() if call.return_weights else None
    return Result(out.clone(), lse, weights, start(call) + zero.sum() if call.return_state else None)


def _transform_is_active() -> bool:
    return in_transform()


# Evaluated while tracing: the operator has no rule for vmap and no forward derivative.
_transform_is_active._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def run_as_operator(call: AttentionInputs) -> Result | None:
    """The call as one operator of a compiled program; None if it has to be traced."""
    if call.backend == "reference" or call.dropout or call.return_weights or call.state or not _in_program():
        return None
    if call.forgetting is not None or call.score_rule is not None:
        return None
    similarity, mask = describe_similarity(call.similarity), describe_mask(call.mask, call.extent, call.query.device)
    if similarity is None or mask is None:
        return None
    out, lse = library.attention(
        call.query, call.key, call.value, call.bias, _sink_tensor(call.similarity), None, None, *similarity, *mask,
        call.backend, call.needs_grad, call.return_lse,
    )  # fmt: skip
    return Result(out, lse if call.return_lse else None, None)


def run_documents_as_operator(
    tensors: tuple[Tensor, ...],
    edges: tuple[Tensor, Tensor],
    similarity: AnySimilarity,
    mask: Mask | None,
    backend: str,
) -> Tensor | None:
    """Packed documents, (1, heads, total, width), as one operator of a compiled program; None if it cannot be."""
    described, rule = describe_similarity(similarity), describe_mask(mask, None, tensors[0].device)
    if backend == "reference" or described is None or rule is None or not _in_program():
        return None
    sink, (similarity, bias) = _sink_tensor(similarity), fold_bias(similarity, None, tensors[0], tensors[0].shape[1])
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*tensors, bias, sink))
    out, _ = library.attention(*tensors, bias, sink, *edges, *described, *rule, backend, needs_grad, False)
    return out


def _in_program() -> bool:
    return is_compiling() and not _transform_is_active()


def _sink_tensor(similarity: AnySimilarity) -> Tensor | None:
    sink = similarity.sink if isinstance(similarity, Softmax) else None
    return sink if isinstance(sink, Tensor) else None


class _Arguments(NamedTuple):
    """The arguments of the operator."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sink: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    similarity: str
    numbers: list[float]
    mask: str
    mask_numbers: list[int]
    mask_tensors: list[Tensor]
    backend: str
    needs_grad: bool
    return_lse: bool

    def documents(self) -> Iterator[tuple[slice, slice]]:
        """The rows and keys of each document; all of them without `cu_seqlens`."""
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            return iter([(slice(None), slice(None))])
        rows = document_ranges("cu_seqlens_q", self.cu_seqlens_q, self.query.shape[2])
        columns = document_ranges("cu_seqlens_k", self.cu_seqlens_k, self.key.shape[2])
        check_document_counts(rows, columns)
        return ((slice(*i), slice(*j)) for i, j in zip(rows, columns, strict=True))

    def call(self, rows: slice, keys: slice, needs_grad: list[bool] | None = None) -> AttentionInputs:
        """The call for a document, with new leaves of autograd if the program is differentiated."""
        needed = [self.needs_grad] * 3 + [self.needs_grad and t is not None for t in (self.bias, self.sink)]
        needed = needed if needs_grad is None else needs_grad
        query, key, value = (
            tensor[:, :, part].detach().requires_grad_(need)
            for tensor, part, need in zip(self[:3], (rows, keys, keys), needed, strict=False)
        )
        bias, sink = (
            None if tensor is None else tensor.detach().requires_grad_(need)
            for tensor, need in zip((self.bias, self.sink), needed[3:], strict=True)
        )
        similarity = similarity_from_description(self.similarity, self.numbers, sink)
        mask = mask_from_description(self.mask, self.mask_numbers, self.mask_tensors)
        with torch.set_grad_enabled(self.needs_grad):
            return read_inputs(query, key, value, similarity, mask, bias, 0.0, self.backend, self.return_lse, False)


def document_ranges(argument: str, cu_seqlens: Tensor, total: int) -> list[tuple[int, int]]:
    """The range of each document in a packed sequence."""
    edges = boundaries(argument, cu_seqlens)
    if edges[-1] != total:
        raise MaskError(complaint(argument, f"{edges[-1]} as the last number", f"{total}, the number of packed rows"))
    return list(pairwise(edges))


def check_document_counts(rows: list[Any], columns: list[Any]) -> None:
    """Refuse queries and keys of different numbers of documents."""
    if len(rows) != len(columns):
        raise MaskError(complaint("cu_seqlens_k", f"{len(columns)} documents", f"{len(rows)}, as cu_seqlens_q has"))


def _attention(*given: Any) -> tuple[Tensor, Tensor]:
    """The operator `qkv::attention`."""
    arguments = _Arguments(*given)
    out, state = library.empty_outputs(
        arguments.query, arguments.value, arguments.similarity, arguments.needs_grad, arguments.return_lse
    )
    with torch.no_grad():
        for rows, keys in arguments.documents():
            document_out, document_state = _run_document(arguments.call(rows, keys), state)
            whole = rows == slice(None)
            out = _written(out, document_out, rows, whole)
            state = state if document_state is None else _written(state, document_state, rows, whole)
    return out, state


def _written(target: Tensor, source: Tensor, rows: slice, whole: bool) -> Tensor:
    """`target` with `source` in these rows; the source itself if it is a whole tensor of the same memory layout."""
    if whole and source.stride() == target.stride():
        return source
    target[:, :, rows] = source
    return target


def _run_document(call: AttentionInputs, state: Tensor) -> tuple[Tensor, Tensor | None]:
    """The answer, and the state for the backward pass if there is one."""
    keeps_lse = call.similarity.has_lse and state.dim() == 3
    plain = call._replace(needs_grad=False, return_lse=keeps_lse)
    if not (call.similarity.picks_one_key and call.needs_grad):
        result = run_call(plain, choose(call))
        return result.out, result.lse if keeps_lse else None
    if choose(call).name != "argmax" or 0 in call.extent.shape:
        return run_call(plain, choose(call)).out, state.new_full(call.query.shape[:3], argmax.NOT_KEPT)
    best = argmax.best_keys(plain)
    return gather_best(plain.query, plain.key, plain.value, *best, traced=True), best.code()


def _attention_backward(
    grad_out: Tensor | None, grad_lse: Tensor | None, needed: list[bool], *given: Any
) -> tuple[Tensor, ...]:
    """The operator `qkv::attention_backward`."""
    arguments, out, state = _Arguments(*given[:-2]), given[-2], given[-1]
    query, key, value, bias, sink = library.empty_gradients(*arguments[:5], needed)
    by_sink, packed = sink.zero_(), arguments.cu_seqlens_q is not None
    bias = bias.zero_() if packed else bias
    for rows, keys in arguments.documents():
        call = arguments.call(rows, keys, needed)
        by_out, by_lse = (None if grad is None else grad[:, :, rows] for grad in (grad_out, grad_lse))
        kept = state[:, :, rows] if state.dim() == 3 else state
        grads = _document_gradients(call, needed, (by_out, by_lse), (out[:, :, rows], kept))
        whole = rows == slice(None)
        parts = zip((query, key, value), grads, (rows, keys, keys), strict=False)
        query, key, value = (old if new is None else _written(old, new, part, whole) for old, new, part in parts)
        bias = bias if grads[3] is None else bias.add_(grads[3]) if packed else bias.copy_(grads[3])
        by_sink = by_sink if grads[4] is None else by_sink.add_(grads[4])
    return query, key, value, bias, by_sink


def _document_gradients(
    call: AttentionInputs, needed: list[bool], grads: OutputGradients, answer: tuple[Tensor, Tensor]
) -> Sequence[Tensor | None]:
    """The gradients of query, key, value, bias and sink: by the chosen backend, or by computing the answer again.

    answer: the output, and the state that `_run_document` has returned.
    """
    chosen, found, (out, state) = choose(call), None, answer
    with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
        if 0 in call.extent.shape:
            pass
        elif chosen.name == "sdpa":
            found = sdpa.gradients_from_lse(call, needed, grads, answer)
        elif chosen.name == "argmax" and grads[0] is not None:
            found = argmax.gradients(call, state, grads[0])
        elif chosen.name == "linear" and grads[0] is not None and ops.all_finite(out):
            found = linear.gradients_of_call(call, grads[0])
    if found is not None:
        return found
    with torch.enable_grad():
        result = run_call(call, chosen)
    inputs = call.query, call.key, call.value, call.bias, _sink_tensor(call.similarity)
    found = sdpa.needed_gradients(inputs, needed, zip((result.out, result.lse), grads, strict=True))
    triples = zip(found, inputs, needed, strict=True)
    return [torch.zeros_like(t) if g is None and t is not None and need else g for g, t, need in triples]


library.set_implementation(_attention, "attention")
library.set_implementation(_attention_backward, "attention_backward")
