"""Head parallelism for `qkv.nn`: every rank runs some of the heads, and some of the hidden features."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..nn.attention import Attention
from ..nn.block import Block, FeedForward
from ..nn.positions import BiasPositions, RelativeBias
from ..nn.stacks import EncoderDecoder, Stack
from .call_guard import GUARDED_METHODS, CallGuard, raising_peer_lost
from .consensus import agree, agreed_axis, sharing_errors
from .transfer import Axis

Module = TypeVar("Module", bound=nn.Module)
_COLUMN_PARALLEL, _ROW_PARALLEL = ("query", "key", "value", "up", "gate"), "out"


def parallelize(module: Module, mesh: DeviceMesh, axis: str | int | None = None) -> Module:
    """The same module, in place, with the heads and hidden features of its layers dealt out to the ranks of an axis.

    query_r, key_r, value_r, up_r: the rows of their weights that belong to rank r's heads (column parallel); out_r: the
    columns (row parallel), and Σ_r out_r(…) is the answer. So each `Attention` and `FeedForward` sends one sum of the
    size of its answer, and everything between the projections stays on its rank: `cache` holds kv_heads / R heads.
    Everything else is whole on every rank. Weights become those of rank 0 everywhere, and those that are dealt out are
    DTensors, made by `torch.distributed.tensor.parallel`.

    module: an `Attention`, `FeedForward`, `Block`, `Encoder`, `Decoder` or `EncoderDecoder`, or what holds some.
    Every rank then calls it with the same input, forward and backward, and gets the same answer; weights that
    `return_weights` gives, and what `project` gives, are those of the rank's own heads. `nn.generate` works; where it
    draws tokens, it asks for a seed, so that all ranks draw the same.
    A call begins with an agreement, one message to each rank: different arguments or modes, other tokens, or numbers
    that are not the same but for rounding, raise `Disagreement` on every rank; padding may be anything. A rank that is
    gone raises `PeerLost`. Layers inside do not ask again, and backward passes and traced programs do not ask.

        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("heads",))
        model = qkv.parallel.parallelize(qkv.nn.Decoder(64, heads=8, kv_heads=4, layers=2, vocabulary=100), mesh)
        logits = model(tokens)

    Refused: heads, key/value heads or hidden features that the ranks do not divide; projections that are no
    `torch.nn.Linear`, or are shared by layers; positions with a learned bias other than `RelativeBias`. Dropout while
    training is refused when the module is called: ranks that draw different numbers would go different ways.
    """
    place = agreed_axis(mesh, axis)
    sharing_errors(place, lambda: _check(module, place.size))
    agree(place, {"call": "parallelize", "module": type(module).__name__} | _weight_shapes(module))
    with torch.no_grad(), raising_peer_lost(place):
        _broadcast_weights(module, place)
        _shard_layers(module, _one_axis_mesh(mesh, place), place)
    return module


def _check(module: Any, ranks: int) -> None:
    if not isinstance(module, nn.Module):
        raise OptionTypeError(complaint("module", type(module).__name__, "a module of qkv.nn"))
    layers = [layer for layer in module.modules() if isinstance(layer, Attention | FeedForward)]
    if not layers:
        given = f"a {type(module).__name__} without any"
        raise OptionError(complaint("module", given, "Attention or FeedForward of qkv.nn in it"))
    seen: set[int] = set()
    for layer in layers:
        sizes = {"hidden": layer.hidden} if isinstance(layer, FeedForward) else {
            "heads": layer.heads, "kv_heads": layer.kv_heads,
        }  # fmt: skip
        for name, projection in _projections(layer):
            if type(projection) is not nn.Linear:
                given = f"a {type(projection).__name__} as {name!r}"
                raise OptionTypeError(complaint("module", given, "torch.nn.Linear for every projection"))
            for weight in projection.parameters(recurse=False):
                if hasattr(weight, "device_mesh"):
                    raise OptionError(
                        complaint("module", "weights that are spread already", "plain ones", "once is enough")
                    )
                if id(weight) in seen:
                    raise OptionError(complaint("module", f"a weight of {name!r} that layers share", "one for each"))
                seen.add(id(weight))
        for name, size in sizes.items():
            if size % ranks:
                raise ShapeError(complaint("module", f"{size} {name}", f"a number that the {ranks} ranks divide"))
        if isinstance(layer, FeedForward):
            if isinstance(layer.activation, nn.Module) and list(layer.activation.parameters()):
                given = f"the activation {type(layer.activation).__name__}, which learns"
                raise OptionError(complaint("module", given, "a function of each feature alone"))
        elif isinstance(layer.positions, BiasPositions) and not isinstance(layer.positions, RelativeBias):
            held = [*layer.positions.parameters(), *layer.positions.buffers()]
            if held:
                given = f"{type(layer.positions).__name__}, which holds tensors"
                raise OptionError(complaint("positions", given, "ALiBi, RelativeBias, Rotary or others of qkv.nn"))


def _projections(layer: nn.Module) -> list[tuple[str, Any]]:
    names = (*_COLUMN_PARALLEL, _ROW_PARALLEL)
    return [(name, child) for name, child in layer.named_children() if name in names]


def _weight_shapes(module: nn.Module) -> dict[str, str]:
    """What all ranks must have alike, by name."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in tensors}


def _one_axis_mesh(mesh: DeviceMesh, place: Axis) -> DeviceMesh:
    """The axis as a mesh of its own."""
    if mesh.ndim == 1:
        return mesh
    if mesh.mesh_dim_names:
        return mesh[place.name]
    return DeviceMesh.from_group(place.group, mesh.device_type)


def _broadcast_weights(module: nn.Module, place: Axis) -> None:
    """Every rank gets what rank 0 has; torch does so itself for what it deals out."""
    dealt = {id(w) for layer in module.modules() if isinstance(layer, Attention | FeedForward)
             for _, projection in _projections(layer) for w in projection.parameters()}  # fmt: skip
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in dealt and tensor.numel():
            dist.broadcast(tensor.detach(), group=place.group, group_src=0)


def _shard_layers(module: nn.Module, line: DeviceMesh, place: Axis) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    styles: tuple[type[ParallelStyle], type[ParallelStyle]] = ColwiseParallel, RowwiseParallel
    # What layers share stays shared: by identity, the old object beside the new one.
    done: dict[int, tuple[Any, Any]] = {}
    for layer in list(module.modules()):
        if isinstance(layer, Attention | FeedForward):
            parallelize_module(layer, line, {name: styles[name == _ROW_PARALLEL]() for name, _ in _projections(layer)})
        if isinstance(layer, Attention):
            _shard_heads(layer, line, place, done)
        if layer is module or isinstance(layer, Attention | FeedForward | Block | Stack | EncoderDecoder):
            for name in GUARDED_METHODS:
                if callable(getattr(layer, name, None)):
                    setattr(layer, name, CallGuard(layer, name, place, vars(layer).get(name)))
    for holder in list(module.modules()):
        if id(getattr(holder, "positions", None)) in done:
            holder.positions = done[id(holder.positions)][1]


def _shard_heads(layer: Attention, line: DeviceMesh, place: Axis, done: dict[int, tuple[Any, Any]]) -> None:
    """What a layer has for each head: numbers, positions and a sink."""
    layer.heads, layer.kv_heads = layer.heads // place.size, layer.kv_heads // place.size
    own = slice(place.rank * layer.heads, (place.rank + 1) * layer.heads)
    positions = layer.positions
    if isinstance(positions, BiasPositions) and id(positions) not in done:
        if isinstance(positions, RelativeBias):
            positions.weight, positions.heads = _shard_weight(positions.weight, line, 1), layer.heads
            done[id(positions)] = positions, positions
        else:
            done[id(positions)] = positions, BiasOfHeads(positions, own)
    sink = getattr(layer, "sink", None)
    if isinstance(sink, Tensor) and sink.numel() > 1:
        if id(sink) not in done:
            done[id(sink)] = sink, _shard_weight(sink, line, 0)
        layer.sink = done[id(sink)][1]


def _shard_weight(weight: Tensor, line: DeviceMesh, dim: int) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    spread = distribute_tensor(weight.detach(), line, [Shard(dim)])
    return nn.Parameter(spread, requires_grad=weight.requires_grad) if isinstance(weight, nn.Parameter) else spread


class BiasOfHeads(BiasPositions):
    """Some heads of positions that add to the scores."""

    def __init__(self, whole: BiasPositions, own: slice) -> None:
        super().__init__(own.stop - own.start)
        self.whole, self.own = whole, own

    def distance_bias(self, steps: Tensor, dtype: torch.dtype) -> Tensor:
        return self.whole.distance_bias(steps, dtype)[..., self.own, :]
