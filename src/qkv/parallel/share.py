"""A call that is split over ranks, read once: this rank's tensors, and what all ranks agreed on."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..features import feature_count
from ..inputs import AttentionInputs, check_bias, compute_dtype, read_inputs
from ..masks import Extent, Mask, as_mask
from ..similarity import AnySimilarity, FeatureMap, Softmax
from .agreement import agree, mask_text, similarity_text
from .axis import Axis

SPLITS = ("auto", "ring", "gather", "heads", "scan", "best")


class Shards(NamedTuple):
    """Where the positions of a sequence are: rank r has edges[r] to edges[r + 1] - 1.

    >>> Shards.of_lengths([3, 0, 2]).of(2)
    (3, 5)
    """

    edges: tuple[int, ...]

    @classmethod
    def of_lengths(cls, lengths: list[int]) -> Shards:
        return cls((0, *accumulate(lengths)))

    def of(self, rank: int) -> tuple[int, int]:
        return self.edges[rank], self.edges[rank + 1]

    @property
    def total(self) -> int:
        return self.edges[-1]


class Share(NamedTuple):
    """call: this rank's own queries, keys and values in four dimensions, without mask and bias, and with an extent of
    its own. extent, mask: of the whole, in global positions; the mask is resolved. bias: four dimensions, each full
    or 1, with this rank's queries and all keys. queries, keys: which rank has which positions. split: as asked for.
    learns: whether query, key, value, bias and sink want gradients, on every rank alike."""

    axis: Axis
    call: AttentionInputs
    mask: Mask | None
    bias: Tensor | None
    extent: Extent
    queries: Shards
    keys: Shards
    split: str
    learns: tuple[bool, bool, bool, bool, bool]

    @property
    def needs_grad(self) -> bool:
        return any(self.learns)

    @property
    def rows(self) -> tuple[int, int]:
        """The queries that this rank has, in global positions."""
        return self.queries.of(self.axis.rank)

    @property
    def own_keys(self) -> tuple[int, int]:
        """The keys and values that this rank has."""
        return self.keys.of(self.axis.rank)

    def sees(self, rank: int, rows: tuple[int, int]) -> tuple[int, int]:
        """The keys of a rank that some of these queries may see, in global positions; (0, 0): none."""
        start, stop = self.keys.of(rank)
        if rows[0] >= rows[1]:
            return 0, 0
        lo, hi = (0, self.extent.len_k) if self.mask is None else self.mask.bounds(self.extent, rows)
        lo, hi = max(lo, start), min(hi, stop)
        return (lo, hi) if lo < hi else (0, 0)


def read_share(
    axis: Axis,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | None,
    dropout: float,
    backend: str,
    split: str,
    return_lse: bool,
    return_weights: bool,
    call_name: str = "attention",
) -> Share:
    """Check this rank's arguments, agree with the others on what they share, and check what only the whole shows."""
    try:
        call = read_inputs(query, key, value, similarity, None, None, dropout, backend, return_lse, return_weights)
        _check_here(axis, call, split)
        mask = as_mask(mask)
        sizes = _bias_sizes(bias, call)
        if isinstance(call.similarity, FeatureMap):
            feature_count(call.similarity, call.width)  # a map is tried: what it raises is told, too
    except Exception as error:
        agree(axis, error)  # raises it
        raise
    learns = _learns(call, bias)
    said = {
        "call": call_name,
        "dtype": str(call.query.dtype).removeprefix("torch."),
        "dimensions": str(call.extent.dims),
        "batch": str(call.extent.batch),
        "heads": f"{call.extent.heads} of queries, {call.heads_kv} of keys and values",
        "width": f"{call.width}, values {call.width_v}",
        "similarity": similarity_text(call.similarity),
        "mask": mask_text(mask),
        "bias": "None" if bias is None else str(bias.dtype).removeprefix("torch."),
        "dropout": str(call.dropout),
        "backend": backend,
        "split": split,
        "returns": f"lse {return_lse}, weights {return_weights}",
        "gradients": ", ".join(n for n, w in zip(("query", "key", "value", "bias", "sink"), learns, strict=True) if w)
        or "none",
    }
    every = agree(axis, said, (call.extent.len_q, call.extent.len_k, *sizes))
    queries, keys = (Shards.of_lengths([numbers[place] for numbers in every]) for place in (0, 1))
    extent = call.extent._replace(len_q=queries.total, len_k=keys.total)
    if mask is not None:
        mask = mask.resolved(extent)
        mask.check_contents(extent)
    for rank, numbers in enumerate(every):
        _check_bias_of(rank, numbers[2:], extent, queries)
    bias = None if bias is None else _own_bias(bias, call, extent, queries.of(axis.rank))
    return Share(axis, call, mask, bias, extent, queries, keys, split, learns)


def _check_here(axis: Axis, call: AttentionInputs, split: str) -> None:
    if call.traced:
        given = "a call under torch.compile, torch.export, torch.func or forward-mode AD"
        raise OptionError(complaint("query", given, "one that runs as it stands", "split calls talk to other ranks"))
    if not isinstance(split, str):
        raise OptionTypeError(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    if split not in SPLITS:
        raise OptionError(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    if call.query.device.type != axis.device.type:
        raise OptionError(
            complaint("query", f"a tensor on {call.query.device}", f"one on the mesh's {axis.device.type}")
        )


def _learns(call: AttentionInputs, bias: Tensor | None) -> tuple[bool, bool, bool, bool, bool]:
    if not torch.is_grad_enabled():
        return False, False, False, False, False
    sink = call.similarity.sink if isinstance(call.similarity, Softmax) else None
    inputs = call.query, call.key, call.value, bias, sink
    wants = [isinstance(tensor, Tensor) and tensor.requires_grad for tensor in inputs]
    return wants[0], wants[1], wants[2], wants[3], wants[4]


def _bias_sizes(bias: Tensor | None, call: AttentionInputs) -> tuple[int, int, int, int]:
    """The bias's axes as (batch, heads, queries, keys), -1 for each where there is none."""
    if bias is None:
        return -1, -1, -1, -1
    if isinstance(bias, Tensor):
        dims = call.extent.dims
        if bias.dim() > dims:
            wanted = f"at most the {dims} dimensions of the scores"
            raise ShapeError(complaint("bias", f"shape {tuple(bias.shape)}", wanted))
        shape = (1,) * (dims - bias.dim()) + tuple(bias.shape)
        batch, heads = (shape[0] if dims >= 3 else 1), (shape[1] if dims == 4 else 1)
        # Everything but the lengths, which only the whole call knows.
        check_bias(bias.new_zeros((*shape[:-2], 1, 1)), call.query, call.extent, call.similarity)
        return batch, heads, shape[-2], shape[-1]
    check_bias(bias, call.query, call.extent, call.similarity)  # says what is wrong with it
    raise AssertionError("unreachable")


def _check_bias_of(rank: int, sizes: tuple[int, ...], extent: Extent, queries: Shards) -> None:
    """Of every rank, so that all refuse it together."""
    if sizes[2] < 0:
        return
    start, stop = queries.of(rank)
    if sizes[2] not in (1, stop - start, extent.len_q) or sizes[3] not in (1, extent.len_k):
        given = f"{sizes[2]} queries and {sizes[3]} keys on rank {rank}"
        wanted = f"{stop - start} queries, those of the rank, or all {extent.len_q}; and all {extent.len_k} keys"
        raise ShapeError(complaint("bias", given, wanted, "1 stands for all of them"))


def _own_bias(bias: Tensor, call: AttentionInputs, extent: Extent, rows: tuple[int, int]) -> Tensor:
    whole = bias.dim() >= 2 and bias.shape[-2] == extent.len_q and extent.len_q != rows[1] - rows[0]
    if whole:
        bias = bias[..., rows[0] : rows[1], :]
    return check_bias(bias, call.query, extent._replace(len_q=rows[1] - rows[0]), call.similarity)


def scores_dtype(share: Share) -> torch.dtype:
    return compute_dtype(share.call.query.dtype)
