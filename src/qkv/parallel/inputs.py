"""A call that is split over ranks, read once: this rank's tensors, and what all ranks agreed on."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError, complaint
from ..features import feature_count
from ..functional import Answer
from ..inputs import AttentionInputs, check_bias, check_sink, check_tensors, compute_dtype, read_inputs
from ..masks import Extent, Mask, as_mask
from ..similarity import AnySimilarity, FeatureMap, Softmax, as_similarity
from .consensus import agree
from .fingerprint import mask_text, similarity_text
from .transfer import Axis, read_axis

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


class ShardedInputs(NamedTuple):
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


def read_sharded_inputs(
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
) -> ShardedInputs:
    """Check this rank's arguments, agree with the others on what they sharded, and check what only the whole shows."""
    try:
        call = read_inputs(query, key, value, similarity, None, None, dropout, backend, return_lse, return_weights)
        _check_local_inputs(axis, call, split)
        mask = as_mask(mask)
        sizes = _bias_sizes(bias, call)
        if isinstance(call.similarity, FeatureMap):
            feature_count(call.similarity, call.width)  # a map is tried: what it raises is told, too
    except Exception as error:
        agree(axis, error)  # raises it
        raise
    learns = _needs_gradients(call, bias)
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
        _check_bias_sizes(rank, numbers[2:], extent, queries)
    bias = None if bias is None else _local_bias(bias, call, extent, queries.of(axis.rank))
    return ShardedInputs(axis, call, mask, bias, extent, queries, keys, split, learns)


def _check_local_inputs(axis: Axis, call: AttentionInputs, split: str) -> None:
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


def _needs_gradients(call: AttentionInputs, bias: Tensor | None) -> tuple[bool, bool, bool, bool, bool]:
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


def _check_bias_sizes(rank: int, sizes: tuple[int, ...], extent: Extent, queries: Shards) -> None:
    """Of every rank, so that all refuse it together."""
    if sizes[2] < 0:
        return
    start, stop = queries.of(rank)
    if sizes[2] not in (1, stop - start, extent.len_q) or sizes[3] not in (1, extent.len_k):
        given = f"{sizes[2]} queries and {sizes[3]} keys on rank {rank}"
        wanted = f"{stop - start} queries, those of the rank, or all {extent.len_q}; and all {extent.len_k} keys"
        raise ShapeError(complaint("bias", given, wanted, "1 stands for all of them"))


def _local_bias(bias: Tensor, call: AttentionInputs, extent: Extent, rows: tuple[int, int]) -> Tensor:
    whole = bias.dim() >= 2 and bias.shape[-2] == extent.len_q and extent.len_q != rows[1] - rows[0]
    if whole:
        bias = bias[..., rows[0] : rows[1], :]
    return check_bias(bias, call.query, extent._replace(len_q=rows[1] - rows[0]), call.similarity)


def compute_dtype_of(sharded: ShardedInputs) -> torch.dtype:
    return compute_dtype(sharded.call.query.dtype)


def sink_of_heads(similarity: AnySimilarity, heads: int, own: tuple[int, int]) -> AnySimilarity:
    """The similarity for some of the heads alone: a sink with a logit for each head is cut."""
    sink = similarity.sink if isinstance(similarity, Softmax) else None
    if not isinstance(similarity, Softmax) or not isinstance(sink, Tensor) or tuple(sink.shape) != (heads,):
        return similarity
    return Softmax(similarity.scale, similarity.softcap, sink[own[0] : own[1]])


_REPLICATED, _BATCH, _HEADS, _SEQUENCE = "whole", "batch", "heads", "sequence"
_FROM_LOCAL = "DTensor.from_local(shard, mesh, placements) makes one, and to_local() gives its shard"


class DTensorLayout(NamedTuple):
    """How query, key and value lie on the mesh: roles has what each of its axes splits. shape: of the whole query.
    batch, heads: the rows of the batch and the query heads that this rank has."""

    mesh: Any
    placements: tuple[Any, ...]
    roles: tuple[str, ...]
    shape: tuple[int, ...]
    extent: Extent
    batch: tuple[int, int]
    heads: tuple[int, int]

    @property
    def cut(self) -> bool:
        return self.batch != (0, self.extent.batch) or self.heads != (0, self.extent.heads)

    def dims_of(self, role: str) -> int:
        """The dimension of the scores that a role splits."""
        return {_BATCH: 0, _HEADS: 1, _SEQUENCE: len(self.shape) - 2}[role]


class LocalInputs(NamedTuple):
    """The arguments of a call with plain tensors in them. spread: how DTensors lay; None where they were plain."""

    query: Any
    key: Any
    value: Any
    similarity: Any
    mask: Any
    bias: Any
    mesh: Any
    axis: Any
    spread: DTensorLayout | None = None

    @property
    def travels(self) -> bool:
        """Whether the sequence is spread over ranks."""
        return self.spread is None or _SEQUENCE in self.spread.roles

    def closed(self, answer: Answer) -> Answer:
        """The answer as DTensors, if the inputs were."""
        if self.spread is None:
            return answer
        if isinstance(answer, tuple):
            return tuple(_wrap(tensor, self.spread) for tensor in answer)
        return _wrap(answer, self.spread)


def unwrap_dtensors(
    query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any = None, axis: Any = None
) -> LocalInputs:
    """Local shards of DTensors, and what of the other arguments belongs to them; plain tensors stay as they are."""
    tensors = query, key, value, bias
    if not any(map(_is_dtensor, tensors)):
        return LocalInputs(query, key, value, similarity, mask, bias, mesh, axis)
    try:
        found = _unwrap(query, key, value, similarity, mask, bias, mesh, axis)
    except (QkvError, RuntimeError, TypeError, ValueError) as error:
        waiting = _waiting_axis(tensors, axis)
        if waiting is not None:
            agree(waiting, error)  # raises it
        raise
    if found.travels:
        _agree_on_layout(read_axis(found.mesh, found.axis), found, query, key, value)
    return found


def _is_dtensor(thing: Any) -> bool:
    # Whoever has a DTensor has imported this; whoever has none need not wait for it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _unwrap(
    query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any, axis: Any
) -> LocalInputs:
    three = {"query": query, "key": key, "value": value}
    plain = [name for name, tensor in three.items() if not _is_dtensor(tensor)]
    if plain:
        given = f"{', '.join(plain)} without a mesh, beside DTensors"
        raise DtypeError(complaint("query, key, value", given, "three DTensors or three plain shards", _FROM_LOCAL))
    own = query.device_mesh
    for name, tensor in (*three.items(), ("bias", bias)):
        if _is_dtensor(tensor) and tensor.device_mesh != own:
            raise OptionError(complaint(name, f"a DTensor on {tensor.device_mesh}", f"the query's mesh, {own}"))
    local = [_to_local(tensor) for tensor in three.values()]
    check_tensors(*local)
    spread = _read_layout(three, _requested_axis(own, mesh, axis))
    for name, tensor, whole in zip(three, local, three.values(), strict=True):
        _check_chunks(name, tensor, whole, spread)
    given = as_mask(mask)
    sink = getattr(similarity, "sink", None)
    if _is_dtensor(sink):
        raise DtypeError(complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", "full_tensor()"))
    if bias is not None:
        bias = _bias_of_heads(bias, spread)
    if spread.cut:
        similarity, given = _similarity_of_heads(similarity, local[0], spread), _mask_of_rows(given, spread)
        if len(spread.shape) == 3:  # the part of a mask is for four dimensions
            local = [tensor.unsqueeze(1) for tensor in local]
            bias = bias.unsqueeze(1) if isinstance(bias, Tensor) and bias.dim() == 3 else bias
    along = spread.roles.index(_SEQUENCE) if _SEQUENCE in spread.roles else None
    return LocalInputs(local[0], local[1], local[2], similarity, given, bias, own, along, spread)


def _requested_axis(own: Any, mesh: Any, axis: Any) -> int | None:
    """The number of the axis that the caller names, in the mesh of the DTensors."""
    names = own.mesh_dim_names or ()
    if mesh is not None and mesh != own:
        name = (getattr(mesh, "mesh_dim_names", None) or (None,))[0]
        if getattr(mesh, "ndim", 0) != 1 or name not in names or own[name] != mesh or axis not in (None, name, 0):
            raise OptionError(complaint("mesh", mesh, f"the DTensors' own, {own}, or None", "they bring their mesh"))
        return names.index(name)
    if axis is None:
        return None
    found = read_axis(own, axis).name
    return names.index(found) if names else int(found)


def _read_layout(three: dict[str, Any], axis: int | None) -> DTensorLayout:
    query, key = three["query"], three["key"]
    mesh, dims = query.device_mesh, query.dim()
    every = {name: [_role(name, tensor, place) for place in range(mesh.ndim)] for name, tensor in three.items()}
    roles = every["query"]
    for name in ("key", "value"):
        for place in range(mesh.ndim):
            if every[name][place] != roles[place]:
                given = f"{three[name].placements[place]!r} along {_axis_name(mesh, place)}"
                raise OptionError(complaint(name, given, f"{query.placements[place]!r}, as the query has"))
    along = [place for place, role in enumerate(roles) if role == _SEQUENCE]
    if len(along) > 1:
        given = f"a sequence that is split along {' and '.join(_axis_name(mesh, place) for place in along)}"
        raise OptionError(complaint("query", given, "one axis of the mesh for the sequence"))
    if axis is None and set(roles) == {_REPLICATED}:
        hint = "qkv.attention runs what every rank has whole: give it query.to_local() and so on"
        raise OptionError(
            complaint("query", "a DTensor that nothing splits", "Shard of the sequence, of heads or of the batch", hint)
        )
    if axis is not None and roles[axis] == _REPLICATED:
        wanted = "Shard of the sequence or of heads along the axis of the call"
        raise OptionError(complaint("query", f"{query.placements[axis]!r} along {_axis_name(mesh, axis)}", wanted))
    if axis is not None and along and along != [axis]:
        wanted = f"{_axis_name(mesh, along[0])}, along which the sequence is split"
        raise OptionError(complaint("axis", _axis_name(mesh, axis), wanted))
    shape = tuple(query.shape)
    batch, heads = (shape[0] if dims >= 3 else 1), (shape[1] if dims == 4 else 1)
    _check_heads(mesh, roles, {"query": heads, "key and value": key.shape[1] if dims == 4 else 1})
    extent = Extent(batch, heads, shape[-2], key.shape[-2], dims)
    own = [_own_range(mesh, roles, role, size) for role, size in ((_BATCH, batch), (_HEADS, heads))]
    return DTensorLayout(mesh, tuple(query.placements), tuple(roles), shape, extent, own[0], own[1])


def _role(name: str, tensor: Any, place: int) -> str:
    """What an axis of the mesh splits."""
    from torch.distributed.tensor import Replicate, Shard

    placement, dims = tensor.placements[place], tensor.dim()
    if type(placement) is Replicate:
        return _REPLICATED
    if type(placement) is Shard:
        known = {dims - 2: _SEQUENCE} | ({0: _BATCH} if dims > 2 else {}) | ({1: _HEADS} if dims == 4 else {})
        if placement.dim % dims in known:
            return known[placement.dim % dims]
    given = f"{placement!r} of {dims} dimensions along {_axis_name(tensor.device_mesh, place)}"
    wanted = f"Shard({dims - 2}), the sequence" + (", Shard(1), heads" if dims == 4 else "")
    wanted += (", Shard(0), the batch" if dims > 2 else "") + ", or Replicate()"
    raise OptionError(complaint(name, given, wanted, "redistribute() changes placements"))


def _axis_name(mesh: Any, place: int) -> str:
    return f"axis {mesh.mesh_dim_names[place] if mesh.mesh_dim_names else place!r}"


def _check_heads(mesh: Any, roles: list[str], heads: dict[str, int]) -> None:
    ranks = math.prod(mesh.size(place) for place, role in enumerate(roles) if role == _HEADS)
    for name, number in heads.items():
        if number % ranks:
            hint = "Shard the sequence instead"
            raise ShapeError(complaint(name, f"{number} heads on {ranks} ranks", "as many heads on every rank", hint))


def _own_range(mesh: Any, roles: Sequence[str], role: str, size: int) -> tuple[int, int]:
    """The part of a dimension that this rank has: each axis that splits it cuts what the ones before left, as
    torch.chunk does."""
    lo, hi = 0, size
    for place, found in enumerate(roles):
        if found == role:
            each = -(-(hi - lo) // mesh.size(place))
            lo = min(hi, lo + each * mesh.get_local_rank(place))
            hi = min(hi, lo + each)
    return lo, hi


def _check_chunks(name: str, local: Tensor, whole: Any, spread: DTensorLayout) -> None:
    """Heads and batch are where DTensor says that they are: only the sequence may be cut anywhere."""
    for role in (_BATCH, _HEADS):
        if role in spread.roles:
            place = spread.dims_of(role)
            lo, hi = _own_range(spread.mesh, spread.roles, role, whole.shape[place])
            if local.shape[place] != hi - lo:
                given = f"a shard of {local.shape[place]} ({role}) of {whole.shape[place]}"
                raise ShapeError(complaint(name, given, f"{hi - lo}, as torch.chunk cuts them"))


def _similarity_of_heads(similarity: Any, query: Tensor, spread: DTensorLayout) -> AnySimilarity:
    similarity = as_similarity(similarity)
    if isinstance(similarity, Softmax) and isinstance(similarity.sink, Tensor):
        check_sink(similarity.sink, query, spread.extent.heads)
    return sink_of_heads(similarity, spread.extent.heads, spread.heads)


def _mask_of_rows(mask: Mask | None, spread: DTensorLayout) -> Mask | None:
    extent = spread.extent
    if mask is None or spread.batch[0] == spread.batch[1]:
        return None
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    return mask.part(extent, (0, extent.len_q), (0, extent.len_k), spread.heads, spread.batch)


def _bias_of_heads(bias: Any, spread: DTensorLayout) -> Any:
    """The bias of this rank's heads and rows of the batch, its queries or all, and all keys."""
    if not isinstance(bias, Tensor) or bias.dim() > len(spread.shape):
        return bias  # whoever reads the call says what is wrong with it
    missing = len(spread.shape) - bias.dim()
    cut: set[str] = set()
    if _is_dtensor(bias):
        bias, cut = _local_dtensor_bias(bias, spread, missing)
    for role, (lo, hi), size in (
        (_BATCH, spread.batch, spread.extent.batch),
        (_HEADS, spread.heads, spread.extent.heads),
    ):
        place = spread.dims_of(role) - missing
        if role in cut or role not in spread.roles or place < 0 or bias.shape[place] == 1:
            continue
        if bias.shape[place] != size:
            given, wanted = f"shape {tuple(bias.shape)}", f"all {size} or 1 in dimension {place} ({role})"
            raise ShapeError(complaint("bias", given, wanted, "a plain bias is that of the whole"))
        bias = bias.narrow(place, lo, hi - lo)
    return bias


def _local_dtensor_bias(bias: Any, spread: DTensorLayout, missing: int) -> tuple[Tensor, set[str]]:
    """The local part of a DTensor, and which roles are cut in it. Where it is whole, and queries are not, a rank's
    gradient is its own part of the sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    cut, grads = set(), []
    for place, (placement, role) in enumerate(zip(bias.placements, spread.roles, strict=True)):
        if type(placement) is Replicate:
            grads.append(placement if role == _REPLICATED else Partial())
            continue
        fits = type(placement) is Shard and role != _REPLICATED
        if not fits or placement.dim % bias.dim() + missing != spread.dims_of(role):
            where = _axis_name(spread.mesh, place)
            wanted = f"Replicate(), or a Shard of what splits the query along {where}"
            raise OptionError(complaint("bias", f"{placement!r} of {bias.dim()} dimensions along {where}", wanted))
        cut.add(role)
        grads.append(placement)
    for role in cut:
        along = [place for place, found in enumerate(spread.roles) if found == role]
        size = spread.shape[spread.dims_of(role)]
        if bias.shape[spread.dims_of(role) - missing] != size or len({bias.placements[p] for p in along}) > 1:
            given = f"shape {tuple(bias.shape)} as {bias.placements}"
            raise OptionError(complaint("bias", given, f"{size} ({role}) that are split as the query's"))
    return _to_local(bias, grads), cut


def _to_local(tensor: Any, grad_placements: Any = None) -> Tensor:
    local = tensor.to_local(grad_placements=grad_placements)
    # What is still under way is another kind of tensor; an operator waits for it.
    return local.clone() if hasattr(local, "trigger_wait") else local


def _wrap(local: Tensor, spread: DTensorLayout) -> Tensor:
    from torch.distributed.tensor import DTensor

    dims = len(spread.shape)
    if dims == 3 and spread.cut:
        local = local.squeeze(1)
    shape = torch.Size((*spread.shape[:-1], *local.shape[dims - 1 :]))
    stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return DTensor.from_local(local.contiguous(), spread.mesh, spread.placements, shape=shape, stride=stride)


def _waiting_axis(tensors: Sequence[Any], axis: Any) -> Axis | None:
    """The axis along which other ranks would wait for this one, as far as its own arguments tell."""
    for tensor in filter(_is_dtensor, tensors[:3]):
        try:
            along = [place for place in range(tensor.device_mesh.ndim) if _role("", tensor, place) == _SEQUENCE]
            return read_axis(tensor.device_mesh, along[0] if len(along) == 1 else axis) if along else None
        except (QkvError, RuntimeError):
            continue
    return None


def _agree_on_layout(place: Axis, found: LocalInputs, query: Any, key: Any, value: Any) -> None:
    """All ranks mean the same whole, and their shards add up to it."""
    tensors = {"query": query, "key": key, "value": value}
    said = {"call": "attention of DTensors"}
    said |= {name: f"{tuple(tensor.shape)} as {tensor.placements}" for name, tensor in tensors.items()}
    along = -2 if found.query.dim() >= 2 else 0
    every = agree(place, said, (found.query.shape[along], found.key.shape[along], found.value.shape[along]))
    for number, (name, tensor) in enumerate(tensors.items()):
        lengths = [numbers[number] for numbers in every]
        if sum(lengths) != tensor.shape[-2]:
            given = f"a DTensor of length {tensor.shape[-2]} whose shards have {', '.join(map(str, lengths))}"
            hint = "where shards are uneven, DTensor.from_local has to be told shape= and stride="
            raise ShapeError(complaint(name, given, f"{sum(lengths)}, what they have together", hint))
