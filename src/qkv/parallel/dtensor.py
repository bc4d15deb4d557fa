"""DTensors as inputs: they are replaced by their local shards, and results are DTensors again.

Along one axis of their mesh the sequence may be sharded, and the call is split over that axis. Along others heads or
the batch may be sharded, and nothing of those is sent: each rank has its own part of the mask, the bias and the sink.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, QkvError, ShapeError, complaint
from ..functional import Answer
from ..inputs import check_sink, check_tensors
from ..masks import Extent, as_mask
from ..similarity import Softmax, as_similarity
from .consensus import agree
from .inputs import Range, ShardedInputs, sink_of_heads
from .transfer import Axis, read_axis

_REPLICATED, _BATCH, _HEADS, _SEQUENCE = "replicated", "batch", "heads", "sequence"


class Layout(NamedTuple):
    """How query, key and value are distributed over the mesh. roles: what is sharded along each axis of the mesh.
    shapes: of the global query, key and value. batch, heads: the ranges of this rank's batch rows and query heads."""

    mesh: Any
    placements: tuple[Any, ...]
    roles: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    extent: Extent
    batch: Range
    heads: Range

    @property
    def has_part(self) -> bool:
        """Whether this rank has only some of the heads or batch rows."""
        return self.batch != (0, self.extent.batch) or self.heads != (0, self.extent.heads)

    def dim_of(self, role: str) -> int:
        """The dimension of the scores that a role shards."""
        return {_BATCH: 0, _HEADS: 1, _SEQUENCE: self.extent.dims - 2}[role]


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
    layout: Layout | None = None

    @property
    def sequence_is_sharded(self) -> bool:
        return self.layout is None or _SEQUENCE in self.layout.roles

    @property
    def arguments(self) -> dict[str, str]:
        """What must be equal on all ranks: the global shapes and placements."""
        if self.layout is None:
            return {}
        return {name: f"{shape} as {self.layout.placements}" for name, shape in self.layout.shapes.items()}

    def check_lengths(self, sharded: ShardedInputs) -> None:
        """Check that the lengths of the shards add up to those of the DTensors."""
        if self.layout is None:
            return
        for name, shards in (("query", sharded.queries), ("key", sharded.keys), ("value", sharded.keys)):
            length = self.layout.shapes[name][-2]
            if shards.total != length:
                given = f"a DTensor of length {length} whose shards have {', '.join(map(str, shards.lengths))}"
                hint = "give DTensor.from_local shape= and stride= where shards are uneven"
                raise ShapeError(complaint(name, given, f"{shards.total}, the sum of the lengths", hint))

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
    found = LocalInputs(query, key, value, similarity, mask, bias, mesh, axis)
    if not any(map(_is_dtensor, (query, key, value, bias))):
        return found
    try:
        return _unwrap(found)
    except (QkvError, RuntimeError, TypeError, ValueError) as error:
        waiting = _waiting_axis((query, key, value), axis)
        if waiting is not None:
            agree(waiting, error)  # raises it
        raise


def _is_dtensor(thing: Any) -> bool:
    # Does not import the module: without it there are no DTensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _unwrap(given: LocalInputs) -> LocalInputs:
    inputs = {"query": given.query, "key": given.key, "value": given.value}
    plain = [name for name, tensor in inputs.items() if not _is_dtensor(tensor)]
    if plain:
        got = f"plain tensors for {', '.join(plain)}, DTensors for the others"
        hint = "DTensor.from_local(shard, mesh, placements) makes one, and to_local() gives its shard"
        raise DtypeError(complaint("query, key, value", got, "three DTensors or three plain shards", hint))
    own = given.query.device_mesh
    for name, tensor in (*inputs.items(), ("bias", given.bias)):
        if _is_dtensor(tensor) and tensor.device_mesh != own:
            raise OptionError(complaint(name, f"a DTensor on {tensor.device_mesh}", f"the query's mesh, {own}"))
    local = [_to_local(tensor) for tensor in inputs.values()]
    check_tensors(*local)
    layout = _read_layout(inputs, _requested_axis(own, given.mesh, given.axis))
    for (name, whole), tensor in zip(inputs.items(), local, strict=True):
        _check_chunks(name, tensor, whole, layout)
    similarity, mask, bias = given.similarity, as_mask(given.mask), given.bias
    if _is_dtensor(getattr(similarity, "sink", None)):
        hint = "full_tensor() makes one"
        raise DtypeError(complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", hint))
    if isinstance(bias, Tensor) and bias.dim() <= layout.extent.dims:  # others are refused with the other arguments
        bias = _local_bias(bias, layout)
    if layout.has_part:
        extent, similarity = layout.extent, as_similarity(similarity)
        if isinstance(similarity, Softmax) and isinstance(similarity.sink, Tensor):
            check_sink(similarity.sink, local[0], extent.heads)
        similarity = sink_of_heads(similarity, extent.heads, layout.heads)
        if mask is not None and layout.batch[0] < layout.batch[1]:
            mask = mask.resolved(extent)
            mask.check_contents(extent)
            mask = mask.part(extent, (0, extent.len_q), (0, extent.len_k), layout.heads, layout.batch)
        if extent.dims == 3:  # parts of masks have four dimensions
            local = [tensor.unsqueeze(1) for tensor in local]
            bias = bias.unsqueeze(1) if isinstance(bias, Tensor) and bias.dim() == 3 else bias
    along = layout.roles.index(_SEQUENCE) if _SEQUENCE in layout.roles else None
    return LocalInputs(local[0], local[1], local[2], similarity, mask, bias, own, along, layout)


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


def _read_layout(inputs: dict[str, Any], axis: int | None) -> Layout:
    query, key = inputs["query"], inputs["key"]
    mesh, dims = query.device_mesh, query.dim()
    roles = tuple(_role("query", query, index) for index in range(mesh.ndim))
    for name, index in ((name, index) for name in ("key", "value") for index in range(mesh.ndim)):
        if _role(name, inputs[name], index) != roles[index]:
            given = f"{inputs[name].placements[index]!r} along {_axis_name(mesh, index)}"
            raise OptionError(complaint(name, given, f"{query.placements[index]!r}, as the query"))
    along = [index for index, role in enumerate(roles) if role == _SEQUENCE]
    if len(along) > 1:
        given = f"a sequence that is sharded along {' and '.join(_axis_name(mesh, index) for index in along)}"
        raise OptionError(complaint("query", given, "one axis of the mesh for the sequence"))
    if axis is None and set(roles) == {_REPLICATED}:
        hint = "call qkv.attention with query.to_local(), key.to_local(), value.to_local()"
        wanted = "Shard of the sequence, of heads or of the batch"
        raise OptionError(complaint("query", "a replicated DTensor", wanted, hint))
    if axis is not None and roles[axis] == _REPLICATED:
        wanted = "Shard of the sequence or of heads along the axis of the call"
        raise OptionError(complaint("query", f"{query.placements[axis]!r} along {_axis_name(mesh, axis)}", wanted))
    if axis is not None and along and along != [axis]:
        wanted = f"{_axis_name(mesh, along[0])}, along which the sequence is sharded"
        raise OptionError(complaint("axis", _axis_name(mesh, axis), wanted))
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    batch, heads = (query.shape[0] if dims >= 3 else 1), (query.shape[1] if dims == 4 else 1)
    ranks = math.prod(mesh.size(index) for index, role in enumerate(roles) if role == _HEADS)
    for name, number in (("query", heads), ("key and value", key.shape[1] if dims == 4 else 1)):
        if number % ranks:
            given, wanted = f"{number} heads on {ranks} ranks", "the same number of heads on every rank"
            raise ShapeError(complaint(name, given, wanted, "shard the sequence instead"))
    extent = Extent(batch, heads, query.shape[-2], key.shape[-2], dims)
    own = [_own_range(mesh, roles, role, size) for role, size in ((_BATCH, batch), (_HEADS, heads))]
    return Layout(mesh, tuple(query.placements), roles, shapes, extent, own[0], own[1])


def _role(name: str, tensor: Any, index: int) -> str:
    """What is sharded along an axis of the mesh."""
    from torch.distributed.tensor import Replicate, Shard

    placement, dims = tensor.placements[index], tensor.dim()
    if type(placement) is Replicate:
        return _REPLICATED
    known = {dims - 2: _SEQUENCE} | ({0: _BATCH} if dims > 2 else {}) | ({1: _HEADS} if dims == 4 else {})
    if type(placement) is Shard and placement.dim % dims in known:
        return known[placement.dim % dims]
    given = f"{placement!r} of {dims} dimensions along {_axis_name(tensor.device_mesh, index)}"
    wanted = ", ".join(f"Shard({dim}), the {role}" for dim, role in known.items())
    raise OptionError(complaint(name, given, f"{wanted}, or Replicate()", "redistribute() changes placements"))


def _axis_name(mesh: Any, index: int) -> str:
    return f"axis {mesh.mesh_dim_names[index] if mesh.mesh_dim_names else index!r}"


def _own_range(mesh: Any, roles: tuple[str, ...], role: str, size: int) -> Range:
    """This rank's part of a dimension: each axis of the mesh divides what the axes before it left, as torch.chunk
    does."""
    lo, hi = 0, size
    for index, found in enumerate(roles):
        if found == role:
            each = -(-(hi - lo) // mesh.size(index))
            lo = min(hi, lo + each * mesh.get_local_rank(index))
            hi = min(hi, lo + each)
    return lo, hi


def _check_chunks(name: str, local: Tensor, whole: Any, layout: Layout) -> None:
    """Check that heads and batch are divided as by torch.chunk; only shards of the sequence may have any length."""
    for role in {_BATCH, _HEADS} & {*layout.roles}:
        index = layout.dim_of(role)
        lo, hi = _own_range(layout.mesh, layout.roles, role, whole.shape[index])
        if local.shape[index] != hi - lo:
            given = f"a shard of {local.shape[index]} ({role}) of {whole.shape[index]}"
            raise ShapeError(complaint(name, given, f"{hi - lo}, as torch.chunk divides them"))


def _local_bias(bias: Any, layout: Layout) -> Tensor:
    """The bias of this rank's heads and batch rows, its queries or all queries, and all keys."""
    missing, cut = layout.extent.dims - bias.dim(), set[str]()
    if _is_dtensor(bias):
        bias, cut = _local_dtensor_bias(bias, layout, missing)
    for role, (lo, hi), size in (
        (_BATCH, layout.batch, layout.extent.batch),
        (_HEADS, layout.heads, layout.extent.heads),
    ):
        index = layout.dim_of(role) - missing
        if role in cut or role not in layout.roles or index < 0 or bias.shape[index] == 1:
            continue
        if bias.shape[index] != size:
            given, wanted = f"shape {tuple(bias.shape)}", f"all {size} or 1 in dimension {index} ({role})"
            raise ShapeError(complaint("bias", given, wanted, "a plain bias is that of the whole call"))
        bias = bias.narrow(index, lo, hi - lo)
    return bias


def _local_dtensor_bias(bias: Any, layout: Layout, missing: int) -> tuple[Tensor, set[str]]:
    """The local shard of a DTensor, and which roles are sharded in it. Where it is replicated and the query is not, a
    rank's gradient is a partial sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    cut, grads = set(), []
    for index, (placement, role) in enumerate(zip(bias.placements, layout.roles, strict=True)):
        if type(placement) is Replicate:
            grads.append(placement if role == _REPLICATED else Partial())
            continue
        dim = None if role == _REPLICATED else layout.dim_of(role) - missing
        sharded = type(placement) is Shard and placement.dim % bias.dim() == dim
        if not sharded or bias.shape[dim] != layout.shapes["query"][layout.dim_of(role)]:
            where = _axis_name(layout.mesh, index)
            wanted = f"Replicate(), or Shard of the dimension that is sharded in the query along {where}"
            raise OptionError(complaint("bias", f"{placement!r} of shape {tuple(bias.shape)} along {where}", wanted))
        cut.add(role)
        grads.append(placement)
    return _to_local(bias, grads), cut


def _to_local(tensor: Any, grad_placements: Any = None) -> Tensor:
    local = tensor.to_local(grad_placements=grad_placements)
    # An asynchronous tensor of a collective in progress; any operator waits for it.
    return local.clone() if hasattr(local, "trigger_wait") else local


def _wrap(local: Tensor, layout: Layout) -> Tensor:
    from torch.distributed.tensor import DTensor

    dims = layout.extent.dims
    if dims == 3 and layout.has_part:
        local = local.squeeze(1)
    shape = torch.Size((*layout.shapes["query"][:-1], *local.shape[dims - 1 :]))
    stride = tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
    return DTensor.from_local(local.contiguous(), layout.mesh, layout.placements, shape=shape, stride=stride)


def _waiting_axis(tensors: tuple[Any, ...], axis: Any) -> Axis | None:
    """The axis along which other ranks wait for this one, as far as its own arguments show."""
    for tensor in filter(_is_dtensor, tensors):
        try:
            along = [index for index in range(tensor.device_mesh.ndim) if _role("", tensor, index) == _SEQUENCE]
            return read_axis(tensor.device_mesh, along[0] if len(along) == 1 else axis) if along else None
        except (QkvError, RuntimeError):
            continue
    return None
