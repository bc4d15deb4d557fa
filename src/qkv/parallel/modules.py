"""Tensor parallelism for `qkv.nn`: every rank runs some of the heads and some of the hidden features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, ShapeError, complaint
from ..nn.attention import LOGITS, Attention
from ..nn.block import Block, FeedForward
from ..nn.positions import BiasPositions, RelativeBias
from ..nn.stacks import EncoderDecoder, Stack
from .consensus import CHECKED_METHODS, CheckedCall, agree, agreed_axis, dtype_text, sharing_errors
from .transfer import CALLS, Axis, raising_peer_lost

Module = TypeVar("Module", bound=nn.Module)
_COLUMN_PARALLEL, _ROW_PARALLEL = ("query", "key", "value", "up", "gate"), "out"


def parallelize(module: Module, mesh: DeviceMesh, axis: str | int | None = None, *, check: bool = False) -> Module:
    """Shard the heads and hidden features of a module's layers over the ranks of an axis, in place.

    The projections query, key, value, up and gate are column parallel, and out is row parallel, so that each
    `Attention` and `FeedForward` needs one all-reduce of its output. Caches hold kv_heads / R heads on each of R ranks.
    All other weights are replicated. Every rank gets the weights of rank 0; sharded weights are DTensors, made by
    `torch.distributed.tensor.parallel`.

    Every rank then calls the module with the same input, forward and backward, and gets the same output; the weights
    of `return_weights` and the results of `project` are those of the rank's own heads. `nn.generate` works, and needs a
    seed where it samples, so that all ranks draw the same tokens.

    Calls are not compared: give every rank the same input. With `check`, a call begins with one message to each rank:
    arguments, modes or tokens that differ, and numbers that differ by more than rounding, raise `Disagreement` on every
    rank; padding may differ. Inner layers, backward passes and traced programs are not compared. A rank that is lost in
    a forward pass raises `PeerLost`.

    Args:
        module: an `Attention`, `FeedForward`, `Block`, `Encoder`, `Decoder` or `EncoderDecoder`, or a module that
            contains some.
        mesh: a `DeviceMesh`.
        axis: the name or number of an axis of the mesh; a mesh with one axis needs none.
        check: compare the arguments of every call between ranks.

    Returns:
        The same module.

    Raises:
        ShapeError: for heads, key/value heads or hidden features that are not divisible by the number of ranks.
        OptionTypeError: for projections other than `torch.nn.Linear`.
        OptionError: for weights that layers share, for positions with a learned bias other than `RelativeBias`, and,
            when the module is called, for dropout in training, which would differ between ranks.
        Disagreement: if modules differ between ranks.

    Example:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("heads",))
        model = qkv.parallel.parallelize(qkv.nn.Decoder(64, heads=8, kv_heads=4, layers=2, vocabulary=100), mesh)
        logits = model(tokens)
    """
    ranks = agreed_axis(mesh, axis)
    with sharing_errors(ranks):
        _check(module, ranks.size)
    weights = {name: f"{dtype_text(t.dtype)} {tuple(t.shape)}" for name, t in module.state_dict(keep_vars=True).items()}
    agree(ranks, {"call": "parallelize", "module": type(module).__name__} | weights)
    with torch.no_grad(), raising_peer_lost(ranks):
        _broadcast_weights(module, ranks)
        if mesh.ndim > 1:  # the mesh that consists of this axis alone
            named = mesh.mesh_dim_names is not None
            mesh = mesh[ranks.name] if named else DeviceMesh.from_group(ranks.group, mesh.device_type)
        _shard_layers(module, mesh, ranks)
    if check:
        _check_calls(module, ranks)
    return module


def _check(module: Any, ranks: int) -> None:
    if not isinstance(module, nn.Module):
        raise OptionTypeError(complaint("module", type(module).__name__, "a module of qkv.nn"))
    layers, seen = _layers(module), set[int]()
    if not layers:
        given = f"a {type(module).__name__} without layers of qkv.nn"
        raise OptionError(complaint("module", given, "a module that contains an Attention or a FeedForward"))
    for layer in layers:
        for name, projection in _projections(layer):
            if type(projection) is not nn.Linear:
                given = f"a {type(projection).__name__} as {name!r}"
                raise OptionTypeError(complaint("module", given, "torch.nn.Linear for every projection"))
            weights = list(projection.parameters(recurse=False))
            if any(hasattr(weight, "device_mesh") for weight in weights):
                hint = "parallelize a module only once"
                raise OptionError(complaint("module", "sharded weights", "plain weights", hint))
            if seen & {*map(id, weights)}:
                given = f"a weight of {name!r} that layers share"
                raise OptionError(complaint("module", given, "a weight for each layer"))
            seen |= {*map(id, weights)}
        for name in ("hidden",) if isinstance(layer, FeedForward) else ("heads", "kv_heads"):
            if getattr(layer, name) % ranks:
                given = f"{getattr(layer, name)} {name}"
                raise ShapeError(complaint("module", given, f"a multiple of the {ranks} ranks"))
        # Heads of other ranks would be missing in what these compute.
        inner: Any = layer.activation if isinstance(layer, FeedForward) else layer.positions
        shared = isinstance(inner, nn.Module) and (isinstance(layer, FeedForward) or isinstance(inner, BiasPositions))
        if shared and not isinstance(inner, RelativeBias) and [*inner.parameters(), *inner.buffers()]:
            given = f"{type(inner).__name__}, which has parameters or buffers"
            wanted = "a function of each feature alone as activation, and ALiBi, RelativeBias or Rotary as positions"
            raise OptionError(complaint("module", given, wanted))


def _layers(module: nn.Module) -> list[Attention | FeedForward]:
    return [layer for layer in module.modules() if isinstance(layer, Attention | FeedForward)]


def _projections(layer: nn.Module) -> list[tuple[str, Any]]:
    names = (*_COLUMN_PARALLEL, _ROW_PARALLEL)
    return [(name, child) for name, child in layer.named_children() if name in names]


def _broadcast_weights(module: nn.Module, axis: Axis) -> None:
    """Broadcast the weights of rank 0; torch itself does so for those that it shards."""
    projections = [projection for layer in _layers(module) for _, projection in _projections(layer)]
    sharded = {id(weight) for projection in projections for weight in projection.parameters()}
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in sharded and tensor.numel():
            dist.broadcast(tensor.detach(), group=axis.group, group_src=0)


def _shard_layers(module: nn.Module, mesh: DeviceMesh, axis: Axis) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class NamingRowwiseParallel(RowwiseParallel):
        """Names the rank that is lost in the all-reduce of the output."""

        @staticmethod
        def _prepare_output_fn(layouts: Any, local: bool, module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Tensor:  # pyright: ignore
            with raising_peer_lost(axis):
                answer = RowwiseParallel._prepare_output_fn(layouts, local, module, outputs, mesh)
                # An asynchronous tensor of a collective in progress; any operator waits for it.
                return answer.clone() if hasattr(answer, "trigger_wait") else answer

    # Objects that layers share stay shared: by id, the old object (kept alive) and the new one.
    done: dict[int, tuple[Any, Any]] = {}
    for layer in _layers(module):
        styles: dict[str, Any] = {name: ColwiseParallel() for name, _ in _projections(layer)}
        styles[_ROW_PARALLEL] = NamingRowwiseParallel()
        parallelize_module(layer, mesh, styles)
        if isinstance(layer, Attention):
            _shard_heads(layer, mesh, axis, done)
    for layer in list(module.modules()):
        if isinstance(layer, Attention | FeedForward | Block):
            layer.register_forward_pre_hook(_before_forward(axis))
        if id(getattr(layer, "positions", None)) in done:
            layer.positions = done[id(layer.positions)][1]


def _before_forward(axis: Axis) -> Callable[[nn.Module, Any], None]:
    """A hook of a layer; a function and not an object, so that copies of the layer share it."""

    def total(grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=axis.group)
        return grad

    def hook(layer: nn.Module, given: Any) -> None:
        dropout = getattr(layer, "dropout", 0.0)
        rate = dropout.p if isinstance(dropout, nn.Dropout) else dropout
        if layer.training and rate:
            hint = "make the model with dropout=0.0 to train it, or call eval()"
            raise OptionError(complaint("dropout", f"{rate} while training on several ranks", "0.0", hint))
        CALLS[axis.key] = f"{type(layer).__name__}.forward"
        # The gradients of weights that all heads use are summed. On every call, since a copied layer has new weights.
        for weight in _shared_weights(layer) if isinstance(layer, Attention) else ():
            if weight.requires_grad and weight.is_leaf and not hasattr(weight, "_qkv_gradient_summed"):
                weight.register_hook(total)
                weight._qkv_gradient_summed = True  # pyright: ignore[reportAttributeAccessIssue]

    return hook


def _shared_weights(layer: Attention) -> list[Tensor]:
    """The weights that all heads of a layer use."""
    features = getattr(layer, "map", None)
    shared: list[Tensor] = list(features.parameters()) if isinstance(features, nn.Module) else []
    logits = (getattr(layer, name, None) for name in LOGITS)
    return [*shared, *(each for each in logits if isinstance(each, Tensor) and each.numel() == 1)]


def _check_calls(module: nn.Module, axis: Axis) -> None:
    for layer in list(module.modules()):
        if layer is module or isinstance(layer, Attention | FeedForward | Block | Stack | EncoderDecoder):
            for name in CHECKED_METHODS:
                if callable(getattr(layer, name, None)):
                    setattr(layer, name, CheckedCall(layer, name, axis))


def _shard_heads(layer: Attention, mesh: DeviceMesh, axis: Axis, done: dict[int, tuple[Any, Any]]) -> None:
    """Shard what a layer has for each head: the numbers of heads, positions and the logits of its similarity."""
    layer.heads, layer.kv_heads = layer.heads // axis.size, layer.kv_heads // axis.size
    own = slice(axis.rank * layer.heads, (axis.rank + 1) * layer.heads)
    positions = layer.positions
    if isinstance(positions, BiasPositions) and id(positions) not in done:
        if isinstance(positions, RelativeBias):
            positions.weight, positions.heads = _shard_weight(positions.weight, mesh, 1), layer.heads
            done[id(positions)] = positions, positions
        else:
            done[id(positions)] = positions, BiasOfHeads(positions, own)
    for name in LOGITS:
        logits = getattr(layer, name, None)
        if isinstance(logits, Tensor) and logits.numel() > 1:
            if id(logits) not in done:
                done[id(logits)] = logits, _shard_weight(logits, mesh, 0)
            setattr(layer, name, done[id(logits)][1])


def _shard_weight(weight: Tensor, mesh: DeviceMesh, dim: int) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    sharded = distribute_tensor(weight.detach(), mesh, [Shard(dim)])
    return nn.Parameter(sharded, requires_grad=weight.requires_grad) if isinstance(weight, nn.Parameter) else sharded


class BiasOfHeads(BiasPositions):
    """Positions that add a bias to the scores, restricted to the heads of one rank."""

    def __init__(self, whole: BiasPositions, own: slice) -> None:
        super().__init__(own.stop - own.start)
        self.whole, self.own = whole, own

    def distance_bias(self, offsets: Tensor, dtype: torch.dtype) -> Tensor:
        return self.whole.distance_bias(offsets, dtype)[..., self.own, :]
