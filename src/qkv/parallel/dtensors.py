"""DTensors in, DTensors out: their local parts are the shards.

Along one axis of the mesh the sequence may be spread, and then it is that axis that the call is split over. Along
others heads or rows of the batch may be, and nothing of those travels: each rank has its own, and its own part of the
mask, of the bias and of the sink.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, QkvError, ShapeError, complaint
from ..functional import Answer
from ..inputs import check_sink, check_tensors
from ..masks import Extent, Mask, as_mask
from ..similarity import AnySimilarity, Softmax, as_similarity
from .agreement import agree
from .axis import Axis, read_axis
from .heads import own_sink

_WHOLE, _BATCH, _HEADS, _SEQUENCE = "whole", "batch", "heads", "sequence"
_BOTH = "DTensor.from_local(shard, mesh, placements) makes one, and to_local() gives its shard"


class Spread(NamedTuple):
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


class Opened(NamedTuple):
    """The arguments of a call with plain tensors in them. spread: how DTensors lay; None where they were plain."""

    query: Any
    key: Any
    value: Any
    similarity: Any
    mask: Any
    bias: Any
    mesh: Any
    axis: Any
    spread: Spread | None = None

    @property
    def travels(self) -> bool:
        """Whether the sequence is spread over ranks."""
        return self.spread is None or _SEQUENCE in self.spread.roles

    def closed(self, answer: Answer) -> Answer:
        """The answer as DTensors, if the inputs were."""
        if self.spread is None:
            return answer
        if isinstance(answer, tuple):
            return tuple(_closed(tensor, self.spread) for tensor in answer)
        return _closed(answer, self.spread)


def opened(
    query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any = None, axis: Any = None
) -> Opened:
    """Local shards of DTensors, and what of the other arguments belongs to them; plain tensors stay as they are."""
    tensors = query, key, value, bias
    if not any(map(_is_spread, tensors)):
        return Opened(query, key, value, similarity, mask, bias, mesh, axis)
    try:
        found = _opened(query, key, value, similarity, mask, bias, mesh, axis)
    except (QkvError, RuntimeError, TypeError, ValueError) as error:
        waiting = _where_others_wait(tensors, axis)
        if waiting is not None:
            agree(waiting, error)  # raises it
        raise
    if found.travels:
        _agreed(read_axis(found.mesh, found.axis), found, query, key, value)
    return found


def _is_spread(thing: Any) -> bool:
    # Whoever has a DTensor has imported this; whoever has none need not wait for it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _opened(query: Any, key: Any, value: Any, similarity: Any, mask: Any, bias: Any, mesh: Any, axis: Any) -> Opened:
    three = {"query": query, "key": key, "value": value}
    plain = [name for name, tensor in three.items() if not _is_spread(tensor)]
    if plain:
        given = f"{', '.join(plain)} without a mesh, beside DTensors"
        raise DtypeError(complaint("query, key, value", given, "three DTensors or three plain shards", _BOTH))
    own = query.device_mesh
    for name, tensor in (*three.items(), ("bias", bias)):
        if _is_spread(tensor) and tensor.device_mesh != own:
            raise OptionError(complaint(name, f"a DTensor on {tensor.device_mesh}", f"the query's mesh, {own}"))
    local = [_local(tensor) for tensor in three.values()]
    check_tensors(*local)
    spread = _spread(three, _axis_of(own, mesh, axis))
    for name, tensor, whole in zip(three, local, three.values(), strict=True):
        _check_even(name, tensor, whole, spread)
    given = as_mask(mask)
    sink = getattr(similarity, "sink", None)
    if _is_spread(sink):
        raise DtypeError(complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", "full_tensor()"))
    if bias is not None:
        bias = _own_bias(bias, spread)
    if spread.cut:
        similarity, given = _own_similarity(similarity, local[0], spread), _own_mask(given, spread)
        if len(spread.shape) == 3:  # the part of a mask is for four dimensions
            local = [tensor.unsqueeze(1) for tensor in local]
            bias = bias.unsqueeze(1) if isinstance(bias, Tensor) and bias.dim() == 3 else bias
    along = spread.roles.index(_SEQUENCE) if _SEQUENCE in spread.roles else None
    return Opened(local[0], local[1], local[2], similarity, given, bias, own, along, spread)


def _axis_of(own: Any, mesh: Any, axis: Any) -> int | None:
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


def _spread(three: dict[str, Any], axis: int | None) -> Spread:
    query, key = three["query"], three["key"]
    mesh, dims = query.device_mesh, query.dim()
    every = {name: [_role(name, tensor, place) for place in range(mesh.ndim)] for name, tensor in three.items()}
    roles = every["query"]
    for name in ("key", "value"):
        for place in range(mesh.ndim):
            if every[name][place] != roles[place]:
                given = f"{three[name].placements[place]!r} along {_named(mesh, place)}"
                raise OptionError(complaint(name, given, f"{query.placements[place]!r}, as the query has"))
    along = [place for place, role in enumerate(roles) if role == _SEQUENCE]
    if len(along) > 1:
        given = f"a sequence that is split along {' and '.join(_named(mesh, place) for place in along)}"
        raise OptionError(complaint("query", given, "one axis of the mesh for the sequence"))
    if axis is None and set(roles) == {_WHOLE}:
        hint = "qkv.attention runs what every rank has whole: give it query.to_local() and so on"
        raise OptionError(
            complaint("query", "a DTensor that nothing splits", "Shard of the sequence, of heads or of the batch", hint)
        )
    if axis is not None and roles[axis] == _WHOLE:
        wanted = "Shard of the sequence or of heads along the axis of the call"
        raise OptionError(complaint("query", f"{query.placements[axis]!r} along {_named(mesh, axis)}", wanted))
    if axis is not None and along and along != [axis]:
        wanted = f"{_named(mesh, along[0])}, along which the sequence is split"
        raise OptionError(complaint("axis", _named(mesh, axis), wanted))
    shape = tuple(query.shape)
    batch, heads = (shape[0] if dims >= 3 else 1), (shape[1] if dims == 4 else 1)
    _check_heads(mesh, roles, {"query": heads, "key and value": key.shape[1] if dims == 4 else 1})
    extent = Extent(batch, heads, shape[-2], key.shape[-2], dims)
    own = [_own_run(mesh, roles, role, size) for role, size in ((_BATCH, batch), (_HEADS, heads))]
    return Spread(mesh, tuple(query.placements), tuple(roles), shape, extent, own[0], own[1])


def _role(name: str, tensor: Any, place: int) -> str:
    """What an axis of the mesh splits."""
    from torch.distributed.tensor import Replicate, Shard

    placement, dims = tensor.placements[place], tensor.dim()
    if type(placement) is Replicate:
        return _WHOLE
    if type(placement) is Shard:
        known = {dims - 2: _SEQUENCE} | ({0: _BATCH} if dims > 2 else {}) | ({1: _HEADS} if dims == 4 else {})
        if placement.dim % dims in known:
            return known[placement.dim % dims]
    given = f"{placement!r} of {dims} dimensions along {_named(tensor.device_mesh, place)}"
    wanted = f"Shard({dims - 2}), the sequence" + (", Shard(1), heads" if dims == 4 else "")
    wanted += (", Shard(0), the batch" if dims > 2 else "") + ", or Replicate()"
    raise OptionError(complaint(name, given, wanted, "redistribute() changes placements"))


def _named(mesh: Any, place: int) -> str:
    return f"axis {mesh.mesh_dim_names[place] if mesh.mesh_dim_names else place!r}"


def _check_heads(mesh: Any, roles: list[str], heads: dict[str, int]) -> None:
    ranks = math.prod(mesh.size(place) for place, role in enumerate(roles) if role == _HEADS)
    for name, number in heads.items():
        if number % ranks:
            hint = "Shard the sequence instead"
            raise ShapeError(complaint(name, f"{number} heads on {ranks} ranks", "as many heads on every rank", hint))


def _own_run(mesh: Any, roles: Sequence[str], role: str, size: int) -> tuple[int, int]:
    """The part of a dimension that this rank has: each axis that splits it cuts what the ones before left, as
    torch.chunk does."""
    lo, hi = 0, size
    for place, found in enumerate(roles):
        if found == role:
            each = -(-(hi - lo) // mesh.size(place))
            lo = min(hi, lo + each * mesh.get_local_rank(place))
            hi = min(hi, lo + each)
    return lo, hi


def _check_even(name: str, local: Tensor, whole: Any, spread: Spread) -> None:
    """Heads and batch are where DTensor says that they are: only the sequence may be cut anywhere."""
    for role in (_BATCH, _HEADS):
        if role in spread.roles:
            place = spread.dims_of(role)
            lo, hi = _own_run(spread.mesh, spread.roles, role, whole.shape[place])
            if local.shape[place] != hi - lo:
                given = f"a shard of {local.shape[place]} ({role}) of {whole.shape[place]}"
                raise ShapeError(complaint(name, given, f"{hi - lo}, as torch.chunk cuts them"))


def _own_similarity(similarity: Any, query: Tensor, spread: Spread) -> AnySimilarity:
    similarity = as_similarity(similarity)
    if isinstance(similarity, Softmax) and isinstance(similarity.sink, Tensor):
        check_sink(similarity.sink, query, spread.extent.heads)
    return own_sink(similarity, spread.extent.heads, spread.heads)


def _own_mask(mask: Mask | None, spread: Spread) -> Mask | None:
    extent = spread.extent
    if mask is None or spread.batch[0] == spread.batch[1]:
        return None
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    return mask.part(extent, (0, extent.len_q), (0, extent.len_k), spread.heads, spread.batch)


def _own_bias(bias: Any, spread: Spread) -> Any:
    """The bias of this rank's heads and rows of the batch, its queries or all, and all keys."""
    if not isinstance(bias, Tensor) or bias.dim() > len(spread.shape):
        return bias  # whoever reads the call says what is wrong with it
    missing = len(spread.shape) - bias.dim()
    cut: set[str] = set()
    if _is_spread(bias):
        bias, cut = _local_bias(bias, spread, missing)
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


def _local_bias(bias: Any, spread: Spread, missing: int) -> tuple[Tensor, set[str]]:
    """The local part of a DTensor, and which roles are cut in it. Where it is whole, and queries are not, a rank's
    gradient is its own part of the sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    cut, grads = set(), []
    for place, (placement, role) in enumerate(zip(bias.placements, spread.roles, strict=True)):
        if type(placement) is Replicate:
            grads.append(placement if role == _WHOLE else Partial())
            continue
        fits = type(placement) is Shard and role != _WHOLE
        if not fits or placement.dim % bias.dim() + missing != spread.dims_of(role):
            where = _named(spread.mesh, place)
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
    return _local(bias, grads), cut


def _local(tensor: Any, grad_placements: Any = None) -> Tensor:
    local = tensor.to_local(grad_placements=grad_placements)
    # What is still under way is another kind of tensor; an operator waits for it.
    return local.clone() if hasattr(local, "trigger_wait") else local


def _closed(local: Tensor, spread: Spread) -> Tensor:
    from torch.distributed.tensor import DTensor

    dims = len(spread.shape)
    if dims == 3 and spread.cut:
        local = local.squeeze(1)
    shape = torch.Size((*spread.shape[:-1], *local.shape[dims - 1 :]))
    stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return DTensor.from_local(local.contiguous(), spread.mesh, spread.placements, shape=shape, stride=stride)


def _where_others_wait(tensors: Sequence[Any], axis: Any) -> Axis | None:
    """The axis along which other ranks would wait for this one, as far as its own arguments tell."""
    for tensor in filter(_is_spread, tensors[:3]):
        try:
            along = [place for place in range(tensor.device_mesh.ndim) if _role("", tensor, place) == _SEQUENCE]
            return read_axis(tensor.device_mesh, along[0] if len(along) == 1 else axis) if along else None
        except (QkvError, RuntimeError):
            continue
    return None


def _agreed(place: Axis, found: Opened, query: Any, key: Any, value: Any) -> None:
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
