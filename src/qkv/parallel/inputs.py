"""The inputs of a call that is sharded over ranks: this rank's tensors, and what all ranks agreed on.

DTensors are replaced by their local shards. Along one axis of their mesh the sequence may be sharded, and the call is
split over that axis. Along others heads or the batch may be sharded, and nothing of those is sent: each rank has its
own part of the mask, the bias and the sink.
"""

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

SPLITS = ("auto", "ring", "gather", "heads", "scan", "argmax")


class Shards(NamedTuple):
    """The positions of each rank: rank r has edges[r] to edges[r + 1] - 1.

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
    """A checked call that is sharded over the ranks of an axis.

    call: this rank's queries, keys and values in four dimensions, without mask and bias, with the extent of the shard.
    extent, mask: of the whole call, in global positions; the mask is resolved. bias: four dimensions, each full or 1,
    with this rank's queries and all keys. queries, keys: the positions of each rank. split: the requested strategy.
    requires_grad: of query, key, value, bias and sink, the same on every rank.
    """

    axis: Axis
    call: AttentionInputs
    mask: Mask | None
    bias: Tensor | None
    extent: Extent
    queries: Shards
    keys: Shards
    split: str
    requires_grad: tuple[bool, bool, bool, bool, bool]

    @property
    def needs_grad(self) -> bool:
        return any(self.requires_grad)

    @property
    def rows(self) -> tuple[int, int]:
        """The global positions of this rank's queries."""
        return self.queries.of(self.axis.rank)

    @property
    def own_keys(self) -> tuple[int, int]:
        """The global positions of this rank's keys and values."""
        return self.keys.of(self.axis.rank)

    def attended_keys(self, rank: int, rows: tuple[int, int]) -> tuple[int, int]:
        """The global positions of a rank's keys that these queries may attend to; (0, 0) if none."""
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
    """Check this rank's arguments, compare them with the other ranks', and check the whole call."""
    try:
        call = read_inputs(query, key, value, similarity, None, None, dropout, backend, return_lse, return_weights)
        _check_local_inputs(axis, call, split)
        mask = as_mask(mask)
        sizes = _bias_sizes(bias, call)
        if isinstance(call.similarity, FeatureMap):
            feature_count(call.similarity, call.width)  # calls the map, so that the other ranks are told if it raises
    except Exception as error:
        agree(axis, error)  # raises it
        raise
    requires_grad = _needs_gradients(call, bias)
    arguments = {
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
        "gradients": ", ".join(
            n for n, w in zip(("query", "key", "value", "bias", "sink"), requires_grad, strict=True) if w
        )
        or "none",
    }
    every = agree(axis, arguments, (call.extent.len_q, call.extent.len_k, *sizes))
    queries, keys = (Shards.of_lengths([numbers[index] for numbers in every]) for index in (0, 1))
    extent = call.extent._replace(len_q=queries.total, len_k=keys.total)
    if mask is not None:
        mask = mask.resolved(extent)
        mask.check_contents(extent)
    for rank, numbers in enumerate(every):
        _check_bias_sizes(rank, numbers[2:], extent, queries)
    bias = None if bias is None else _local_bias(bias, call, extent, queries.of(axis.rank))
    return ShardedInputs(axis, call, mask, bias, extent, queries, keys, split, requires_grad)


def _check_local_inputs(axis: Axis, call: AttentionInputs, split: str) -> None:
    if call.traced:
        given = "a call under torch.compile, torch.export, torch.func or forward-mode AD"
        raise OptionError(complaint("query", given, "an eager call", "distributed calls communicate with other ranks"))
    if not isinstance(split, str):
        raise OptionTypeError(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    if split not in SPLITS:
        raise OptionError(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    if call.query.device.type != axis.device.type:
        raise OptionError(
            complaint("query", f"a tensor on {call.query.device}", f"a tensor on the mesh's {axis.device.type}")
        )


def _needs_gradients(call: AttentionInputs, bias: Tensor | None) -> tuple[bool, bool, bool, bool, bool]:
    if not torch.is_grad_enabled():
        return False, False, False, False, False
    sink = call.similarity.sink if isinstance(call.similarity, Softmax) else None
    inputs = call.query, call.key, call.value, bias, sink
    flags = [isinstance(tensor, Tensor) and tensor.requires_grad for tensor in inputs]
    return flags[0], flags[1], flags[2], flags[3], flags[4]


def _bias_sizes(bias: Tensor | None, call: AttentionInputs) -> tuple[int, int, int, int]:
    """The sizes of the bias (batch, heads, queries, keys); -1 for each if there is no bias."""
    if bias is None:
        return -1, -1, -1, -1
    if isinstance(bias, Tensor):
        dims = call.extent.dims
        if bias.dim() > dims:
            wanted = f"at most the {dims} dimensions of the scores"
            raise ShapeError(complaint("bias", f"shape {tuple(bias.shape)}", wanted))
        shape = (1,) * (dims - bias.dim()) + tuple(bias.shape)
        batch, heads = (shape[0] if dims >= 3 else 1), (shape[1] if dims == 4 else 1)
        # Checks all but the lengths, which depend on the other ranks.
        check_bias(bias.new_zeros((*shape[:-2], 1, 1)), call.query, call.extent, call.similarity)
        return batch, heads, shape[-2], shape[-1]
    check_bias(bias, call.query, call.extent, call.similarity)  # raises
    raise AssertionError("unreachable")


def _check_bias_sizes(rank: int, sizes: tuple[int, ...], extent: Extent, queries: Shards) -> None:
    """Check the bias of every rank, so that all ranks raise."""
    if sizes[2] < 0:
        return
    start, stop = queries.of(rank)
    if sizes[2] not in (1, stop - start, extent.len_q) or sizes[3] not in (1, extent.len_k):
        given = f"{sizes[2]} queries and {sizes[3]} keys on rank {rank}"
        wanted = f"{stop - start} queries, those of the rank, or all {extent.len_q}; and all {extent.len_k} keys"
        raise ShapeError(complaint("bias", given, wanted, "a size of 1 is broadcast"))


def _local_bias(bias: Tensor, call: AttentionInputs, extent: Extent, rows: tuple[int, int]) -> Tensor:
    whole = bias.dim() >= 2 and bias.shape[-2] == extent.len_q and extent.len_q != rows[1] - rows[0]
    if whole:
        bias = bias[..., rows[0] : rows[1], :]
    return check_bias(bias, call.query, extent._replace(len_q=rows[1] - rows[0]), call.similarity)


def compute_dtype_of(sharded: ShardedInputs) -> torch.dtype:
    return compute_dtype(sharded.call.query.dtype)


def sink_of_heads(similarity: AnySimilarity, heads: int, own: tuple[int, int]) -> AnySimilarity:
    """The similarity for some of the heads: a sink with a logit for each head is sliced."""
    sink = similarity.sink if isinstance(similarity, Softmax) else None
    if not isinstance(similarity, Softmax) or not isinstance(sink, Tensor) or tuple(sink.shape) != (heads,):
        return similarity
    return Softmax(similarity.scale, similarity.softcap, sink[own[0] : own[1]])


_REPLICATED, _BATCH, _HEADS, _SEQUENCE = "replicated", "batch", "heads", "sequence"
_FROM_LOCAL = "DTensor.from_local(shard, mesh, placements) makes one, and to_local() gives its shard"


class DTensorLayout(NamedTuple):
    """How query, key and value are distributed over the mesh. roles: what is sharded along each axis of the mesh.
    shape: of the global query. batch, heads: the ranges of this rank's batch rows and query heads."""

    mesh: Any
    placements: tuple[Any, ...]
    roles: tuple[str, ...]
    shape: tuple[int, ...]
    extent: Extent
    batch: tuple[int, int]
    heads: tuple[int, int]

    @property
    def has_part(self) -> bool:
        """Whether this rank has only some of the heads or batch rows."""
        return self.batch != (0, self.extent.batch) or self.heads != (0, self.extent.heads)

    def dims_of(self, role: str) -> int:
        """The dimension of the scores that a role shards."""
        return {_BATCH: 0, _HEADS: 1, _SEQUENCE: len(self.shape) - 2}[role]


class LocalInputs(NamedTuple):
    """The arguments of a call with plain tensors. layout: that of the DTensors; None if the tensors were plain."""

    query: Any
    key: Any
    value: Any
    similarity: Any
    mask: Any
    bias: Any
    mesh: Any
    axis: Any
    layout: DTensorLayout | None = None

    @property
    def sequence_is_sharded(self) -> bool:
        return self.layout is None or _SEQUENCE in self.layout.roles

    def wrap(self, answer: Answer) -> Answer:
        """The answer as DTensors, if the inputs were DTensors."""
        if self.layout is None:
            return answer
        if isinstance(answer, tuple):
            return tuple(_wrap(tensor, self.layout) for tensor in answer)
        return _wrap(answer, self.layout)


def unwrap_dtensors(
    query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any = None, axis: Any = None
) -> LocalInputs:
    """The local shards of DTensors, with the part of the other arguments that belongs to them; plain tensors
    unchanged."""
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
    if found.sequence_is_sharded:
        _agree_on_layout(read_axis(found.mesh, found.axis), found, query, key, value)
    return found


def _is_dtensor(thing: Any) -> bool:
    # Does not import the module: without it there are no DTensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _unwrap(
    query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any, axis: Any
) -> LocalInputs:
    inputs = {"query": query, "key": key, "value": value}
    plain = [name for name, tensor in inputs.items() if not _is_dtensor(tensor)]
    if plain:
        given = f"plain tensors for {', '.join(plain)}, DTensors for the others"
        raise DtypeError(complaint("query, key, value", given, "three DTensors or three plain shards", _FROM_LOCAL))
    own = query.device_mesh
    for name, tensor in (*inputs.items(), ("bias", bias)):
        if _is_dtensor(tensor) and tensor.device_mesh != own:
            raise OptionError(complaint(name, f"a DTensor on {tensor.device_mesh}", f"the query's mesh, {own}"))
    local = [_to_local(tensor) for tensor in inputs.values()]
    check_tensors(*local)
    layout = _read_layout(inputs, _requested_axis(own, mesh, axis))
    for name, tensor, whole in zip(inputs, local, inputs.values(), strict=True):
        _check_chunks(name, tensor, whole, layout)
    given = as_mask(mask)
    sink = getattr(similarity, "sink", None)
    if _is_dtensor(sink):
        raise DtypeError(
            complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", "full_tensor() makes one")
        )
    if bias is not None:
        bias = _bias_of_heads(bias, layout)
    if layout.has_part:
        similarity, given = _similarity_of_heads(similarity, local[0], layout), _mask_of_rows(given, layout)
        if len(layout.shape) == 3:  # parts of masks have four dimensions
            local = [tensor.unsqueeze(1) for tensor in local]
            bias = bias.unsqueeze(1) if isinstance(bias, Tensor) and bias.dim() == 3 else bias
    along = layout.roles.index(_SEQUENCE) if _SEQUENCE in layout.roles else None
    return LocalInputs(local[0], local[1], local[2], similarity, given, bias, own, along, layout)


def _requested_axis(own: Any, mesh: Any, axis: Any) -> int | None:
    """The index of the requested axis in the mesh of the DTensors."""
    names = own.mesh_dim_names or ()
    if mesh is not None and mesh != own:
        name = (getattr(mesh, "mesh_dim_names", None) or (None,))[0]
        if getattr(mesh, "ndim", 0) != 1 or name not in names or own[name] != mesh or axis not in (None, name, 0):
            raise OptionError(complaint("mesh", mesh, f"the mesh of the DTensors, {own}, or None"))
        return names.index(name)
    if axis is None:
        return None
    found = read_axis(own, axis).name
    return names.index(found) if names else int(found)


def _read_layout(inputs: dict[str, Any], axis: int | None) -> DTensorLayout:
    query, key = inputs["query"], inputs["key"]
    mesh, dims = query.device_mesh, query.dim()
    every = {name: [_role(name, tensor, index) for index in range(mesh.ndim)] for name, tensor in inputs.items()}
    roles = every["query"]
    for name in ("key", "value"):
        for index in range(mesh.ndim):
            if every[name][index] != roles[index]:
                given = f"{inputs[name].placements[index]!r} along {_axis_name(mesh, index)}"
                raise OptionError(complaint(name, given, f"{query.placements[index]!r}, as the query"))
    along = [index for index, role in enumerate(roles) if role == _SEQUENCE]
    if len(along) > 1:
        given = f"a sequence that is sharded along {' and '.join(_axis_name(mesh, index) for index in along)}"
        raise OptionError(complaint("query", given, "one axis of the mesh for the sequence"))
    if axis is None and set(roles) == {_REPLICATED}:
        hint = "call qkv.attention with query.to_local(), key.to_local(), value.to_local()"
        raise OptionError(
            complaint("query", "a replicated DTensor", "Shard of the sequence, of heads or of the batch", hint)
        )
    if axis is not None and roles[axis] == _REPLICATED:
        wanted = "Shard of the sequence or of heads along the axis of the call"
        raise OptionError(complaint("query", f"{query.placements[axis]!r} along {_axis_name(mesh, axis)}", wanted))
    if axis is not None and along and along != [axis]:
        wanted = f"{_axis_name(mesh, along[0])}, along which the sequence is sharded"
        raise OptionError(complaint("axis", _axis_name(mesh, axis), wanted))
    shape = tuple(query.shape)
    batch, heads = (shape[0] if dims >= 3 else 1), (shape[1] if dims == 4 else 1)
    _check_heads(mesh, roles, {"query": heads, "key and value": key.shape[1] if dims == 4 else 1})
    extent = Extent(batch, heads, shape[-2], key.shape[-2], dims)
    own = [_own_range(mesh, roles, role, size) for role, size in ((_BATCH, batch), (_HEADS, heads))]
    return DTensorLayout(mesh, tuple(query.placements), tuple(roles), shape, extent, own[0], own[1])


def _role(name: str, tensor: Any, index: int) -> str:
    """What is sharded along an axis of the mesh."""
    from torch.distributed.tensor import Replicate, Shard

    placement, dims = tensor.placements[index], tensor.dim()
    if type(placement) is Replicate:
        return _REPLICATED
    if type(placement) is Shard:
        known = {dims - 2: _SEQUENCE} | ({0: _BATCH} if dims > 2 else {}) | ({1: _HEADS} if dims == 4 else {})
        if placement.dim % dims in known:
            return known[placement.dim % dims]
    given = f"{placement!r} of {dims} dimensions along {_axis_name(tensor.device_mesh, index)}"
    wanted = f"Shard({dims - 2}), the sequence" + (", Shard(1), heads" if dims == 4 else "")
    wanted += (", Shard(0), the batch" if dims > 2 else "") + ", or Replicate()"
    raise OptionError(complaint(name, given, wanted, "redistribute() changes placements"))


def _axis_name(mesh: Any, index: int) -> str:
    return f"axis {mesh.mesh_dim_names[index] if mesh.mesh_dim_names else index!r}"


def _check_heads(mesh: Any, roles: list[str], heads: dict[str, int]) -> None:
    ranks = math.prod(mesh.size(index) for index, role in enumerate(roles) if role == _HEADS)
    for name, number in heads.items():
        if number % ranks:
            hint = "shard the sequence instead"
            raise ShapeError(
                complaint(name, f"{number} heads on {ranks} ranks", "the same number of heads on every rank", hint)
            )


def _own_range(mesh: Any, roles: Sequence[str], role: str, size: int) -> tuple[int, int]:
    """This rank's part of a dimension: each axis of the mesh divides what the axes before it left, as torch.chunk
    does."""
    lo, hi = 0, size
    for index, found in enumerate(roles):
        if found == role:
            each = -(-(hi - lo) // mesh.size(index))
            lo = min(hi, lo + each * mesh.get_local_rank(index))
            hi = min(hi, lo + each)
    return lo, hi


def _check_chunks(name: str, local: Tensor, whole: Any, layout: DTensorLayout) -> None:
    """Check that heads and batch are divided as by torch.chunk; only shards of the sequence may have any length."""
    for role in (_BATCH, _HEADS):
        if role in layout.roles:
            index = layout.dims_of(role)
            lo, hi = _own_range(layout.mesh, layout.roles, role, whole.shape[index])
            if local.shape[index] != hi - lo:
                given = f"a shard of {local.shape[index]} ({role}) of {whole.shape[index]}"
                raise ShapeError(complaint(name, given, f"{hi - lo}, as torch.chunk divides them"))


def _similarity_of_heads(similarity: Any, query: Tensor, layout: DTensorLayout) -> AnySimilarity:
    similarity = as_similarity(similarity)
    if isinstance(similarity, Softmax) and isinstance(similarity.sink, Tensor):
        check_sink(similarity.sink, query, layout.extent.heads)
    return sink_of_heads(similarity, layout.extent.heads, layout.heads)


def _mask_of_rows(mask: Mask | None, layout: DTensorLayout) -> Mask | None:
    extent = layout.extent
    if mask is None or layout.batch[0] == layout.batch[1]:
        return None
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    return mask.part(extent, (0, extent.len_q), (0, extent.len_k), layout.heads, layout.batch)


def _bias_of_heads(bias: Any, layout: DTensorLayout) -> Any:
    """The bias of this rank's heads and batch rows, its queries or all queries, and all keys."""
    if not isinstance(bias, Tensor) or bias.dim() > len(layout.shape):
        return bias  # refused later, with the other arguments
    missing = len(layout.shape) - bias.dim()
    cut: set[str] = set()
    if _is_dtensor(bias):
        bias, cut = _local_dtensor_bias(bias, layout, missing)
    for role, (lo, hi), size in (
        (_BATCH, layout.batch, layout.extent.batch),
        (_HEADS, layout.heads, layout.extent.heads),
    ):
        index = layout.dims_of(role) - missing
        if role in cut or role not in layout.roles or index < 0 or bias.shape[index] == 1:
            continue
        if bias.shape[index] != size:
            given, wanted = f"shape {tuple(bias.shape)}", f"all {size} or 1 in dimension {index} ({role})"
            raise ShapeError(complaint("bias", given, wanted, "a plain bias is that of the whole call"))
        bias = bias.narrow(index, lo, hi - lo)
    return bias


def _local_dtensor_bias(bias: Any, layout: DTensorLayout, missing: int) -> tuple[Tensor, set[str]]:
    """The local shard of a DTensor, and which roles are sharded in it. Where it is replicated and the query is not, a
    rank's gradient is a partial sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    cut, grads = set(), []
    for index, (placement, role) in enumerate(zip(bias.placements, layout.roles, strict=True)):
        if type(placement) is Replicate:
            grads.append(placement if role == _REPLICATED else Partial())
            continue
        shards = type(placement) is Shard and role != _REPLICATED
        if not shards or placement.dim % bias.dim() + missing != layout.dims_of(role):
            where = _axis_name(layout.mesh, index)
            wanted = f"Replicate(), or Shard of the dimension that is sharded in the query along {where}"
            raise OptionError(complaint("bias", f"{placement!r} of {bias.dim()} dimensions along {where}", wanted))
        cut.add(role)
        grads.append(placement)
    for role in cut:
        along = [index for index, found in enumerate(layout.roles) if found == role]
        size = layout.shape[layout.dims_of(role)]
        if bias.shape[layout.dims_of(role) - missing] != size or len({bias.placements[p] for p in along}) > 1:
            given = f"shape {tuple(bias.shape)} as {bias.placements}"
            raise OptionError(complaint("bias", given, f"{size} ({role}), sharded as in the query"))
    return _to_local(bias, grads), cut


def _to_local(tensor: Any, grad_placements: Any = None) -> Tensor:
    local = tensor.to_local(grad_placements=grad_placements)
    # An asynchronous tensor of a collective in progress; any operator waits for it.
    return local.clone() if hasattr(local, "trigger_wait") else local


def _wrap(local: Tensor, layout: DTensorLayout) -> Tensor:
    from torch.distributed.tensor import DTensor

    dims = len(layout.shape)
    if dims == 3 and layout.has_part:
        local = local.squeeze(1)
    shape = torch.Size((*layout.shape[:-1], *local.shape[dims - 1 :]))
    stride = tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
    return DTensor.from_local(local.contiguous(), layout.mesh, layout.placements, shape=shape, stride=stride)


def _waiting_axis(tensors: Sequence[Any], axis: Any) -> Axis | None:
    """The axis along which other ranks wait for this one, as far as its own arguments show."""
    for tensor in filter(_is_dtensor, tensors[:3]):
        try:
            along = [index for index in range(tensor.device_mesh.ndim) if _role("", tensor, index) == _SEQUENCE]
            return read_axis(tensor.device_mesh, along[0] if len(along) == 1 else axis) if along else None
        except (QkvError, RuntimeError):
            continue
    return None


def _agree_on_layout(axis: Axis, local: LocalInputs, query: Any, key: Any, value: Any) -> None:
    """Check that all ranks have the same global shapes, and that the lengths of their shards add up to them."""
    tensors = {"query": query, "key": key, "value": value}
    arguments = {"call": "attention of DTensors"}
    arguments |= {name: f"{tuple(tensor.shape)} as {tensor.placements}" for name, tensor in tensors.items()}
    along = -2 if local.query.dim() >= 2 else 0
    every = agree(axis, arguments, (local.query.shape[along], local.key.shape[along], local.value.shape[along]))
    for number, (name, tensor) in enumerate(tensors.items()):
        lengths = [numbers[number] for numbers in every]
        if sum(lengths) != tensor.shape[-2]:
            given = f"a DTensor of length {tensor.shape[-2]} whose shards have {', '.join(map(str, lengths))}"
            hint = "give DTensor.from_local shape= and stride= where shards are uneven"
            raise ShapeError(complaint(name, given, f"{sum(lengths)}, the sum of the lengths", hint))
