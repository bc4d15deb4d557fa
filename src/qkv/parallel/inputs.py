"""The inputs of a call that is sharded over ranks: this rank's tensors, and what all ranks agreed on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backends import linear
from ..backends.reference import Result
from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..features import feature_count, feature_maps
from ..inputs import AttentionInputs, check_bias, compute_dtype, read_inputs
from ..masks import Extent, Mask, as_mask
from ..similarity import AnySimilarity, FeatureMap, Softmax
from .consensus import agree, dtype_text, mask_text, sharing_errors, similarity_text
from .transfer import Axis

SPLITS = ("auto", "ring", "gather", "heads", "scan", "argmax")
Range = tuple[int, int]


def intersection(one: Range, other: Range) -> Range:
    """The common part of two half-open ranges; (0, 0) if there is none."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


class Shards(NamedTuple):
    """The positions of each rank: rank r has edges[r] to edges[r + 1] - 1.

    >>> Shards.of_lengths([3, 0, 2]).of(2)
    (3, 5)
    """

    edges: tuple[int, ...]

    @classmethod
    def of_lengths(cls, lengths: list[int]) -> Shards:
        return cls((0, *accumulate(lengths)))

    def of(self, rank: int) -> Range:
        return self.edges[rank], self.edges[rank + 1]

    @property
    def ranges(self) -> list[Range]:
        return list(pairwise(self.edges))

    @property
    def lengths(self) -> list[int]:
        return [stop - start for start, stop in self.ranges]

    @property
    def total(self) -> int:
        return self.edges[-1]


class ShardedInputs(NamedTuple):
    """A checked call that is sharded over the ranks of an axis.

    call: this rank's queries, keys and values in four dimensions, without mask and bias, with the extent of the shard.
    extent, mask: of the whole call, in global positions; the mask is resolved. bias: four dimensions, each full or 1,
    with this rank's queries and all keys. bias_shapes: those of all ranks. queries, keys: the positions of each rank.
    split: the requested strategy. requires_grad: of query, key, value, bias and sink, the same on every rank.
    """

    axis: Axis
    call: AttentionInputs
    mask: Mask | None
    bias: Tensor | None
    bias_shapes: list[tuple[int, ...]]
    extent: Extent
    queries: Shards
    keys: Shards
    split: str
    requires_grad: tuple[bool, ...]

    @property
    def needs_grad(self) -> bool:
        return any(self.requires_grad)

    @property
    def compute_dtype(self) -> torch.dtype:
        return compute_dtype(self.call.query.dtype)

    @property
    def rows(self) -> Range:
        """The global positions of this rank's queries."""
        return self.queries.of(self.axis.rank)

    @property
    def own_keys(self) -> Range:
        """The global positions of this rank's keys and values."""
        return self.keys.of(self.axis.rank)

    def attended_keys(self, rows: Range) -> Range:
        """The global positions of the keys that these queries may attend to; (0, 0) if none."""
        if rows[0] >= rows[1]:
            return 0, 0
        return (0, self.extent.len_k) if self.mask is None else self.mask.bounds(self.extent, rows)

    def needed_keys(self, rank: int, of: int) -> Range:
        """The global positions of the keys of rank `of` that the queries of a rank may attend to; (0, 0) if none."""
        return intersection(self.attended_keys(self.queries.of(rank)), self.keys.of(of))

    def attends(self, rank: int, of: int) -> bool:
        """Whether a query of a rank may attend to a key of rank `of`."""
        return self.needed_keys(rank, of) != (0, 0)


class Strategy(NamedTuple):
    """A way to split a call over ranks.

    reasons_against: why it cannot run a call; the same on every rank, since it depends only on what the ranks agreed
    on. run: the result for this rank's queries, in the dtype of the query, in four dimensions; lse and weights if
    requested.
    """

    name: str
    summary: str
    reasons_against: Callable[[ShardedInputs], tuple[str, ...]]
    run: Callable[[ShardedInputs], Result]


class LocalInputs(NamedTuple):
    """The arguments of a call that describe its tensors, with this rank's shards as plain tensors."""

    query: Any
    key: Any
    value: Any
    similarity: Any
    mask: Any
    bias: Any
    mesh: Any
    axis: Any


def read_sharded_inputs(
    axis: Axis,
    local: LocalInputs,
    dropout: float,
    backend: str,
    split: str,
    returns: tuple[bool, bool],
    more: dict[str, str],
) -> ShardedInputs:
    """Check this rank's arguments, compare them and `more` with the other ranks', and check the whole call."""
    query, key, value, similarity, mask, bias, *_ = local
    with sharing_errors(axis):
        call = read_inputs(query, key, value, similarity, None, None, dropout, backend, *returns)
        _check_local_inputs(axis, call, split)
        mask, sizes = as_mask(mask), _bias_sizes(bias, call)
        gradients, features = _gradients(call, bias), 0
        if isinstance(call.similarity, FeatureMap):  # calls the map, so that the other ranks are told if it raises
            features = feature_count(call.similarity, call.width)
            gradients["map"] = linear.map_requires_grad(feature_maps(call.similarity, call.width), call)
    arguments = {
        **more,
        "dtype": dtype_text(call.query.dtype),
        "dimensions": str(call.extent.dims),
        "batch": str(call.extent.batch),
        "heads": f"{call.extent.heads} of queries, {call.heads_kv} of keys and values",
        "width": f"{call.width}, values {call.width_v}",
        "similarity": similarity_text(call.similarity),
        "features of the map": str(features),
        "mask": mask_text(mask),
        "bias": "None" if bias is None else dtype_text(bias.dtype),
        "dropout": str(call.dropout),
        "backend": backend,
        "split": split,
        "returns": f"lse {returns[0]}, weights {returns[1]}",
        "gradients": ", ".join(name for name, needed in gradients.items() if needed) or "none",
    }
    every = agree(axis, arguments, (call.extent.len_q, call.extent.len_k, *sizes))
    queries, keys = (Shards.of_lengths([numbers[index] for numbers in every]) for index in (0, 1))
    extent = call.extent._replace(len_q=queries.total, len_k=keys.total)
    if mask is not None:
        mask = mask.resolved(extent)
        mask.check_contents(extent)
    shapes = [numbers[2:] for numbers in every]
    if bias is not None:
        for rank, shape in enumerate(shapes):
            _check_bias_sizes(rank, shape, extent, queries.of(rank))
        bias = _local_bias(bias, call, extent, queries.of(axis.rank))
    requires_grad = tuple(gradients[name] for name in ("query", "key", "value", "bias", "sink"))
    return ShardedInputs(axis, call, mask, bias, shapes, extent, queries, keys, split, requires_grad)


def _check_local_inputs(axis: Axis, call: AttentionInputs, split: str) -> None:
    if call.traced:
        given = "a call under torch.compile, torch.export, torch.func or forward-mode AD"
        raise OptionError(complaint("query", given, "an eager call", "distributed calls communicate with other ranks"))
    if split not in SPLITS:
        kind = OptionError if isinstance(split, str) else OptionTypeError
        raise kind(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    check_device(axis, call.query)


def check_device(axis: Axis, query: Tensor) -> None:
    if query.device.type != axis.device.type:
        wanted = f"a tensor on the mesh's {axis.device.type}"
        raise OptionError(complaint("query", f"a tensor on {query.device}", wanted))


def _gradients(call: AttentionInputs, bias: Tensor | None) -> dict[str, bool]:
    sink = call.similarity.sink if isinstance(call.similarity, Softmax) else None
    inputs = {"query": call.query, "key": call.key, "value": call.value, "bias": bias, "sink": sink}
    enabled = torch.is_grad_enabled()
    return {name: enabled and isinstance(t, Tensor) and t.requires_grad for name, t in inputs.items()}


def _bias_sizes(bias: Tensor | None, call: AttentionInputs) -> tuple[int, ...]:
    """The sizes of the bias (batch, heads, queries, keys); nothing if there is no bias."""
    if bias is None:
        return ()
    if not isinstance(bias, Tensor):
        check_bias(bias, call.query, call.extent, call.similarity)  # raises
    dims = call.extent.dims
    if bias.dim() > dims:
        wanted = f"at most the {dims} dimensions of the scores"
        raise ShapeError(complaint("bias", f"shape {tuple(bias.shape)}", wanted))
    shape = (1,) * (dims - bias.dim()) + tuple(bias.shape)
    # Checks all but the lengths, which depend on the other ranks.
    check_bias(bias.new_zeros((*shape[:-2], 1, 1)), call.query, call.extent, call.similarity)
    return shape[0] if dims >= 3 else 1, shape[1] if dims == 4 else 1, shape[-2], shape[-1]


def _check_bias_sizes(rank: int, sizes: tuple[int, ...], extent: Extent, rows: Range) -> None:
    """Check the bias of every rank, so that all ranks raise."""
    own = rows[1] - rows[0]
    if sizes[2] not in (1, own, extent.len_q) or sizes[3] not in (1, extent.len_k):
        given = f"{sizes[2]} queries and {sizes[3]} keys on rank {rank}"
        wanted = f"{own} queries, those of the rank, or all {extent.len_q}; and all {extent.len_k} keys"
        raise ShapeError(complaint("bias", given, wanted, "a size of 1 is broadcast"))


def _local_bias(bias: Tensor, call: AttentionInputs, extent: Extent, rows: Range) -> Tensor:
    own = rows[1] - rows[0]
    if bias.dim() >= 2 and bias.shape[-2] == extent.len_q != own:
        bias = bias[..., rows[0] : rows[1], :]
    return check_bias(bias, call.query, extent._replace(len_q=own), call.similarity)


def sink_of_heads(similarity: AnySimilarity, heads: int, own: Range) -> AnySimilarity:
    """The similarity for some of the heads: a sink with a logit for each head is sliced."""
    sink = similarity.sink if isinstance(similarity, Softmax) else None
    if not isinstance(similarity, Softmax) or not isinstance(sink, Tensor) or tuple(sink.shape) != (heads,):
        return similarity
    return Softmax(similarity.scale, similarity.softcap, sink[own[0] : own[1]])
