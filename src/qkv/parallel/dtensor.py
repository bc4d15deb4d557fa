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
from ..inputs import check_sink, check_tensors
from ..masks import Extent, as_mask
from ..similarity import Softmax, as_similarity
from .consensus import agree
from .inputs import LocalInputs, Range, ShardedInputs, sink_of_heads
from .transfer import axis_index, read_axis

_REPLICATED, _BATCH, _HEADS, SEQUENCE = "replicated", "batch", "heads", "sequence"


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

    @property
    def arguments(self) -> dict[str, str]:
        """What must be equal on all ranks: the global shapes and placements."""
        return {name: f"{shape} as {self.placements}" for name, shape in self.shapes.items()}

    def check_lengths(self, sharded: ShardedInputs) -> None:
        """Check that the lengths of the shards add up to those of the DTensors."""
        for name, shards in (("query", sharded.queries), ("key", sharded.keys), ("value", sharded.keys)):
            length = self.shapes[name][-2]
            if shards.total != length:
                given = f"a DTensor of length {length} whose shards have {', '.join(map(str, shards.lengths))}"
                hint = "give DTensor.from_local shape= and stride= where shards are uneven"
                raise ShapeError(complaint(name, given, f"{shards.total}, the sum of the lengths", hint))

    def wrap(self, local: Tensor) -> Tensor:
        """A part of the answer as a DTensor."""
        from torch.distributed.tensor import DTensor

        dims = self.extent.dims
        if dims == 3 and self.has_part:
            local = local.squeeze(1)
        shape = torch.Size((*self.shapes["query"][:-1], *local.shape[dims - 1 :]))
        stride = tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
        return DTensor.from_local(local.contiguous(), self.mesh, self.placements, shape=shape, stride=stride)


def unwrap_dtensors(given: LocalInputs) -> tuple[LocalInputs, Layout | None]:
    """The local shards of DTensors, with the part of the other arguments that belongs to them; plain tensors
    unchanged. And the layout of the DTensors."""
    if not any(map(_is_dtensor, (given.query, given.key, given.value, given.bias))):
        return given, None
    try:
        return _unwrap(given)
    except (QkvError, RuntimeError, TypeError, ValueError) as error:
        for tensor in filter(_is_dtensor, given[:3]):  # the ranks along which the sequence is sharded wait for this one
            for index, placement in enumerate(tensor.placements):
                if placement.is_shard(tensor.dim() - 2) or placement.is_shard(-2):
                    agree(read_axis(tensor.device_mesh, index), error)  # raises it
        raise


def _is_dtensor(thing: Any) -> bool:
    # Does not import the module: without it there are no DTensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _unwrap(given: LocalInputs) -> tuple[LocalInputs, Layout]:
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
    if _is_dtensor(getattr(given.similarity, "sink", None)):
        hint = "full_tensor() makes one"
        raise DtypeError(complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", hint))
    local = [_to_local(tensor) for tensor in inputs.values()]
    check_tensors(*local)
    layout = _read_layout(inputs, _requested_axis(own, given.mesh, given.axis))
    similarity, mask, bias, extent = given.similarity, as_mask(given.mask), given.bias, layout.extent
    if isinstance(bias, Tensor) and bias.dim() <= extent.dims:  # others are refused with the other arguments
        bias = _local_bias(bias, layout)
    if layout.has_part:
        similarity = as_similarity(similarity)
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
    along = layout.roles.index(SEQUENCE) if SEQUENCE in layout.roles else None
    return LocalInputs(*local, similarity, mask, bias, own, along), layout


def _requested_axis(own: Any, mesh: Any, axis: Any) -> int | None:
    """The index of the requested axis in the mesh of the DTensors, of which `mesh` may be a part."""
    if mesh is None or mesh == own:
        return None if axis is None else axis_index(own, axis)
    for index, name in enumerate(own.mesh_dim_names or ()):
        if own[name] == mesh and axis in (None, name, 0):
            return index
    raise OptionError(complaint("mesh", mesh, f"the mesh of the DTensors, {own}, or None"))


def _read_layout(inputs: dict[str, Any], axis: int | None) -> Layout:
    query, key = inputs["query"], inputs["key"]
    mesh, dims = query.device_mesh, query.dim()
    roles = tuple(_role("query", query, index) for index in range(mesh.ndim))
    for name, index in ((name, index) for name in ("key", "value") for index in range(mesh.ndim)):
        if _role(name, inputs[name], index) != roles[index]:
            given = f"{inputs[name].placements[index]!r} along {_axis_name(mesh, index)}"
            raise OptionError(complaint(name, given, f"{query.placements[index]!r}, as the query"))
    along = [index for index, role in enumerate(roles) if role == SEQUENCE]
    if len(along) > 1:
        given = f"a sequence that is sharded along {' and '.join(_axis_name(mesh, index) for index in along)}"
        raise OptionError(complaint("query", given, "one axis of the mesh for the sequence"))
    if set(roles) == {_REPLICATED} or (axis is not None and roles[axis] == _REPLICATED):
        given = "a replicated DTensor" if axis is None else f"{query.placements[axis]!r} along {_axis_name(mesh, axis)}"
        hint = "call qkv.attention with query.to_local(), key.to_local(), value.to_local()"
        raise OptionError(complaint("query", given, "Shard of the sequence, of heads or of the batch", hint))
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
    known = {dims - 2: SEQUENCE} | ({0: _BATCH} if dims > 2 else {}) | ({1: _HEADS} if dims == 4 else {})
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


def _local_bias(bias: Any, layout: Layout) -> Tensor:
    """The bias of this rank's heads and batch rows, and all queries and keys. A DTensor is gathered; where the query is
    sharded, a rank's gradient of it is a partial sum."""
    if _is_dtensor(bias):
        from torch.distributed.tensor import Partial, Replicate

        bias = bias.full_tensor(grad_placements=[Replicate() if r == _REPLICATED else Partial() for r in layout.roles])
    own = {_BATCH: (layout.batch, layout.extent.batch), _HEADS: (layout.heads, layout.extent.heads)}
    for role in own.keys() & {*layout.roles}:
        (lo, hi), size = own[role]
        index = (role == _HEADS) - layout.extent.dims + bias.dim()
        if index < 0 or bias.shape[index] == 1:
            continue
        if bias.shape[index] != size:
            given, wanted = f"shape {tuple(bias.shape)}", f"all {size} or 1 in dimension {index} ({role})"
            raise ShapeError(complaint("bias", given, wanted, "a plain bias is that of the whole call"))
        bias = bias.narrow(index, lo, hi - lo)
    return bias


def _to_local(tensor: Any) -> Tensor:
    local = tensor.to_local()
    # An asynchronous tensor of a collective in progress; any operator waits for it.
    return local.clone() if hasattr(local, "trigger_wait") else local
