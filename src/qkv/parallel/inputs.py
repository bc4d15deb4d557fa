"""The inputs of a call that is sharded over ranks: this rank's tensors, and what all ranks agreed on.

DTensors are replaced by their local shards. Along one axis of their mesh the sequence may be sharded, and the call is
split over that axis. Along others heads or the batch may be sharded, and nothing of those is sent: each rank has its
own part of the mask, the bias and the sink.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backends import linear
from ..errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError, complaint
from ..features import feature_count, feature_maps
from ..inputs import AttentionInputs, check_bias, check_sink, check_tensors, compute_dtype, read_inputs
from ..masks import Extent, Mask, as_mask
from ..similarity import AnySimilarity, FeatureMap, Sigmoid, Softmax, as_similarity
from .consensus import agree, dtype_text, mask_text, sharing_errors, similarity_text
from .transfer import Axis, axis_index, read_axis

SPLITS = ("auto", "ring", "gather", "heads", "scan", "argmax")
Range = tuple[int, int]
Options = tuple[float, str, str, tuple[bool, bool]]  # dropout, backend, split; whether lse and weights are returned
_REPLICATED, _BATCH, _HEADS, SEQUENCE = "replicated", "batch", "heads", "sequence"


def intersection(one: Range, other: Range) -> Range:
    """The common part of two half-open ranges; (0, 0) if there is none."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


class Shards(NamedTuple):
    """How many positions each rank has.

    >>> Shards([3, 0, 2]).of(2)
    (3, 5)
    """

    lengths: list[int]

    def of(self, rank: int) -> Range:
        start = sum(self.lengths[:rank])
        return start, start + self.lengths[rank]

    @property
    def ranges(self) -> list[Range]:
        return [self.of(rank) for rank in range(len(self.lengths))]


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


def read_sharded_inputs(
    name: str, axis: Axis, local: dict[str, Any], layout: Layout | None, options: Options
) -> ShardedInputs:
    """Check this rank's arguments of a call, compare them with the other ranks', and check the whole call.

    local: query, key, value, similarity, mask and bias, with this rank's shards as plain tensors.
    """
    (query, key, value, similarity, mask, bias), (dropout, backend, split, returns) = local.values(), options
    with sharing_errors(axis):
        _check_score_terms(similarity)
        call = read_inputs(query, key, value, similarity, None, None, dropout, backend, *returns)
        _check_local_inputs(axis, call, split)
        mask, sizes = as_mask(mask), _bias_sizes(bias, call)
        gradients, features = _gradients(call, bias), 0
        if isinstance(call.similarity, FeatureMap):  # calls the map, so that the other ranks are told if it raises
            features = feature_count(call.similarity, call.width)
            gradients["map"] = linear.map_requires_grad(feature_maps(call.similarity, call.width), call)
    arguments = {
        "call": name,
        **({} if layout is None else layout.arguments),
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
    queries, keys = (Shards([numbers[index] for numbers in every]) for index in (0, 1))
    extent = call.extent._replace(len_q=sum(queries.lengths), len_k=sum(keys.lengths))
    if mask is not None:
        mask = mask.resolved(extent)
        mask.check_contents(extent)
    shapes = [numbers[2:] for numbers in every]
    if bias is not None:
        for rank, shape in enumerate(shapes):
            _check_bias_sizes(rank, shape, extent, queries.of(rank))
        bias = _local_bias(bias, call, extent, queries.of(axis.rank))
    requires_grad = tuple(gradients[each] for each in ("query", "key", "value", "bias", "sink"))
    sharded = ShardedInputs(axis, call, mask, bias, shapes, extent, queries, keys, split, requires_grad)
    if layout is not None:
        layout.check_lengths(sharded)
    return sharded


def _check_local_inputs(axis: Axis, call: AttentionInputs, split: str) -> None:
    if call.traced:
        given = "a call under torch.compile, torch.export, torch.func or forward-mode AD"
        raise OptionError(complaint("query", given, "an eager call", "distributed calls communicate with other ranks"))
    if split not in SPLITS:
        kind = OptionError if isinstance(split, str) else OptionTypeError
        raise kind(complaint("split", repr(split), "one of " + ", ".join(SPLITS)))
    check_device(axis, call.query)


def _check_score_terms(similarity: AnySimilarity | None) -> None:
    """Refuse what is added to the scores and is no bias= that each rank cuts to its queries."""
    if isinstance(similarity, Sigmoid) and isinstance(similarity.bias, Tensor):
        hint = "give the tensor as bias=, with shape (heads, 1, 1)"
        raise OptionError(complaint("similarity", repr(similarity), "a number as its bias", hint))
    if isinstance(similarity, Softmax) and similarity.log_decay is not None:
        hint = "a rank does not have the gates of the others; qkv.attention on one rank takes them"
        raise OptionError(complaint("similarity", repr(similarity), "no log_decay in qkv.parallel", hint))


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
    if not isinstance(similarity, Softmax) or getattr(similarity.sink, "shape", None) != (heads,):
        return similarity
    return replace(similarity, sink=similarity.sink[own[0] : own[1]])  # pyright: ignore


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
            length, total = self.shapes[name][-2], sum(shards.lengths)
            if total != length:
                given = f"a DTensor of length {length} whose shards have {', '.join(map(str, shards.lengths))}"
                hint = "give DTensor.from_local shape= and stride= where shards are uneven"
                raise ShapeError(complaint(name, given, f"{total}, the sum of the lengths", hint))

    def wrap(self, local: Tensor) -> Tensor:
        """A part of the answer as a DTensor."""
        from torch.distributed.tensor import DTensor

        dims = self.extent.dims
        if dims == 3 and self.has_part:
            local = local.squeeze(1)
        shape = torch.Size((*self.shapes["query"][:-1], *local.shape[dims - 1 :]))
        stride = tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
        return DTensor.from_local(local.contiguous(), self.mesh, self.placements, shape=shape, stride=stride)


def unwrap_dtensors(given: dict[str, Any], mesh: Any, axis: Any) -> tuple[dict[str, Any], Any, Any, Layout | None]:
    """The local shards of DTensors, with the part of the other arguments that belongs to them; plain tensors
    unchanged. Then the mesh, the axis of the sequence, and the layout of the DTensors."""
    tensors = [given[name] for name in ("query", "key", "value", "bias")]
    if not any(map(_is_dtensor, tensors)):
        return given, mesh, axis, None
    try:
        return _unwrap(given, mesh, axis)
    except (QkvError, RuntimeError, TypeError, ValueError) as error:
        for tensor in filter(_is_dtensor, tensors[:3]):  # the ranks along which the sequence is sharded wait for this
            for index, placement in enumerate(tensor.placements):
                if placement.is_shard(tensor.dim() - 2) or placement.is_shard(-2):
                    agree(read_axis(tensor.device_mesh, index), error)  # raises it
        raise


def _is_dtensor(thing: Any) -> bool:
    # Does not import the module: without it there are no DTensors.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def _unwrap(given: dict[str, Any], mesh: Any, axis: Any) -> tuple[dict[str, Any], Any, Any, Layout]:
    inputs = {name: given[name] for name in ("query", "key", "value")}
    plain = [name for name, tensor in inputs.items() if not _is_dtensor(tensor)]
    if plain:
        got = f"plain tensors for {', '.join(plain)}, DTensors for the others"
        hint = "DTensor.from_local(shard, mesh, placements) makes one, and to_local() gives its shard"
        raise DtypeError(complaint("query, key, value", got, "three DTensors or three plain shards", hint))
    own, similarity, mask, bias = (
        inputs["query"].device_mesh,
        given["similarity"],
        as_mask(given["mask"]),
        given["bias"],
    )
    for name, tensor in given.items():
        if _is_dtensor(tensor) and tensor.device_mesh != own:
            raise OptionError(complaint(name, f"a DTensor on {tensor.device_mesh}", f"the query's mesh, {own}"))
    if _is_dtensor(getattr(similarity, "sink", None)):
        hint = "full_tensor() makes one"
        raise DtypeError(complaint("sink", "a DTensor", "a plain tensor with the logits of all heads", hint))
    local = [_to_local(tensor) for tensor in inputs.values()]
    check_tensors(*local)
    layout = _read_layout(inputs, _requested_axis(own, mesh, axis))
    extent = layout.extent
    if isinstance(bias, Tensor) and bias.dim() <= extent.dims:  # others are refused with the other arguments
        bias = _bias_of_part(bias, layout)
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
    part = dict(zip(inputs, local, strict=True)) | {"similarity": similarity, "mask": mask, "bias": bias}
    return part, own, along, layout


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
    wrong_axis = axis is not None and (roles[axis] == _REPLICATED or along not in ([], [axis]))
    if len(along) > 1 or wrong_axis or set(roles) == {_REPLICATED}:
        given = ", ".join(f"{p!r} along {_axis_name(mesh, index)}" for index, p in enumerate(query.placements))
        given += "" if axis is None else f" in a call along {_axis_name(mesh, axis)}"
        wanted = "Shard of the sequence along one axis, that of the call, or of heads or the batch"
        hint = "of replicated DTensors give query.to_local(), key.to_local(), value.to_local() to qkv.attention"
        raise OptionError(complaint("query", given, wanted, hint))
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
    own = range(size)
    for index, found in enumerate(roles):
        if found == role:
            each = -(-len(own) // mesh.size(index))
            own = own[each * mesh.get_local_rank(index) :][:each]
    return own.start, own.stop


def _bias_of_part(bias: Any, layout: Layout) -> Tensor:
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
