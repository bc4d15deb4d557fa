"""Calls of a sharded layer: the ranks compare their arguments first, and a lost rank is named."""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..errors import Disagreement, OptionError, QkvError, complaint
from ..inputs import in_transform
from ..masks import Mask
from ..masks.grid import is_tensor
from ..nn.attention import Attention
from ..nn.block import Block, FeedForward
from ..nn.module import ConfiguredModule
from .consensus import agree
from .failure import close_connections, peer_lost, report_lost
from .fingerprint import mask_text, value_text
from .transfer import Axis

# The methods that users and `generate` call.
GUARDED_METHODS = ("forward", "states", "encode", "project")
# Arguments that may contain padding, and the prefix of the arguments `lengths` and `keep` that belong to them.
_PADDING_PREFIXES = {"x": "", "tokens": "", "source": "source_", "target": "target_", "context": "context_"}
_MAX_NUMBERS = 1 << 20  # a larger tensor is compared in part
_CHECKSUMS = 3  # of each tensor
_GLOO_ERRORS = ("Timed out", "Connection closed", "unbound_buffer", "Connection reset", "Broken pipe", "gloo", "Socket")


class _ActiveAxes(threading.local):
    """The axes on which this thread is inside of a guarded call: inner calls need no agreement."""

    def __init__(self) -> None:
        self.axes: set[Any] = set()


_ACTIVE = _ActiveAxes()


class CallGuard:
    """A method of a sharded layer that first compares its arguments with the other ranks.

    It is an attribute of the layer and not a subclass, since `save` stores the class; a copy of the layer gets its own.
    """

    def __init__(self, layer: nn.Module, name: str, axis: Axis, original: Callable[..., Any] | None) -> None:
        self.layer, self.name, self.axis, self.original = layer, name, axis, original
        self.__name__, self.__signature__ = name, inspect.signature(self._method())

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGuard:
        return CallGuard(copy.deepcopy(self.layer, memo), self.name, self.axis, copy.deepcopy(self.original, memo))

    def __call__(self, *given: Any, **options: Any) -> Any:
        # A traced program has no numbers to compare.
        if self.axis.group in _ACTIVE.axes or torch.compiler.is_compiling() or in_transform():
            return self._run(given, options)
        _ACTIVE.axes.add(self.axis.group)
        try:
            self._agree(given, options)
            with raising_peer_lost(self.axis):
                return self._run(given, options)
        finally:
            _ACTIVE.axes.discard(self.axis.group)

    def _method(self) -> Callable[..., Any]:
        return getattr(type(self.layer), self.name).__get__(self.layer) if self.original is None else self.original

    def _run(self, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        layer = self.layer
        if self.name != "forward":
            return self._method()(*given, **options)
        if isinstance(layer, Attention | FeedForward | Block):
            _refuse_dropout(layer)
        if isinstance(layer, Attention):
            _sum_shared_gradients(layer, self.axis)
        answer = self._method()(*given, **options)
        return _wait_for(answer) if isinstance(layer, Attention | FeedForward) else answer

    def _agree(self, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        checksums: dict[str, tuple[float, list[int]]] = {}
        try:
            bound = self.__signature__.bind(*given, **options)
            bound.apply_defaults()
            arguments = self._arguments(bound.arguments, checksums)
        except (QkvError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            agree(self.axis, error)  # raises it
            raise
        every = agree(self.axis, arguments, [number for _, numbers in checksums.values() for number in numbers])
        found = torch.tensor(every, dtype=torch.int64).view(torch.float64)
        found = found.view(self.axis.size, len(checksums), _CHECKSUMS + 1)
        for index, (argument, (tolerance, _)) in enumerate(checksums.items()):
            each = found[:, index]
            # The tolerance is relative to the last number, the norm.
            differs = ((each - each[0]).abs() > tolerance * torch.maximum(each[:, -1:], each[0, -1])).any(1)
            if differs.any():
                others = differs.nonzero().flatten().tolist()
                which = f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
                hint = "call a sharded layer with the same input on every rank"
                difference = f"{argument}: other numbers on {which} than on rank 0"
                raise Disagreement(f"axis {self.axis.name!r}, rank {self.axis.rank}: {difference}. Hint: {hint}.")

    def _arguments(self, arguments: dict[str, Any], checksums: dict[str, tuple[float, list[int]]]) -> dict[str, str]:
        """What must be equal on all ranks, as texts; checksums of floating-point tensors are added to `checksums`."""
        device, weight = self.axis.device.type, next(self.layer.parameters(), None)
        modes = [module.training for module in self.layer.modules()]
        texts = {
            "call": f"{type(self.layer).__name__}.{self.name}",
            "training": f"{sum(modes)} of {len(modes)} modules",
            "gradients": str(torch.is_grad_enabled()),
            "autocast": str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off",
            "weights": "none" if weight is None else str(weight.dtype),
        }
        for argument, thing in _flatten_arguments(arguments, isinstance(self.layer, ConfiguredModule)):
            if isinstance(thing, Tensor):
                thing = _zero_padding(argument, thing, arguments)
                if thing.is_floating_point() and len(checksums) < 8:  # an agreement has at most 32 numbers
                    nonfinite, checksums[argument] = _checksums(thing)
                    texts[f"{argument}, non-finite numbers"] = nonfinite
            texts[argument] = _describe(thing)
        return texts


@contextlib.contextmanager
def raising_peer_lost(axis: Axis) -> Iterator[None]:
    """Turn errors of torch's collectives, which do not name the lost rank, into `PeerLost`."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if isinstance(error, QkvError) or not any(word in str(error) for word in _GLOO_ERRORS):
            raise
        # All ranks wait for all others: report the next one, so that the lost rank is the one without a report.
        report_lost(axis, axis.after(1))
        close_connections(axis)
        raise peer_lost(axis, [(axis.after(step), "with") for step in range(1, axis.size)], error) from error


def _flatten_arguments(arguments: dict[str, Any], own_layer: bool) -> Iterator[tuple[str, Any]]:
    """Arguments with dicts and lists flattened; not the lists of qkv's layers, which hold each rank's own heads."""
    for argument, thing in arguments.items():
        if isinstance(thing, dict):
            yield from ((f"{argument}[{key!r}]", each) for key, each in thing.items())
        elif isinstance(thing, list | tuple) and not own_layer and any(isinstance(each, Tensor) for each in thing):
            yield from ((f"{argument}[{place}]", each) for place, each in enumerate(thing))
        else:
            yield argument, thing


def _describe(thing: Any) -> str:
    """What must be equal on all ranks, as a text that is the same in every process."""
    if isinstance(thing, Mask):
        return mask_text(thing)
    if isinstance(thing, KVCache | LinearState):
        return f"{thing!r} of lengths {thing.lengths.tolist()}"
    if is_tensor(thing) and (thing.is_floating_point() or thing.is_complex()):
        gradient = ", with a gradient" * (thing.requires_grad and torch.is_grad_enabled())
        return f"{str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}{gradient}"
    if isinstance(thing, dict):
        return f"{{{', '.join(f'{key!r}: {_describe(value)}' for key, value in thing.items())}}}"
    if isinstance(thing, list | tuple):
        parts = [_describe(each) for each in thing]
        equal = len(parts) > 1 and len(set(parts)) == 1
        return f"{len(parts)} x {parts[0]}" if equal else f"[{', '.join(parts)}]"
    known = thing is None or callable(thing) or hasattr(thing, "__array__")
    if known or isinstance(thing, int | float | complex | str | bytes | torch.dtype):
        return value_text(thing)
    return type(thing).__qualname__  # the repr may contain an address


def _zero_padding(argument: str, tensor: Tensor, given: dict[str, Any]) -> Tensor:
    """The tensor with 0 as padding, since ranks may differ there. Wrong arguments are left to the layer."""
    prefix = _PADDING_PREFIXES.get(argument)
    lengths, keep = (None, None) if prefix is None else (given.get(f"{prefix}lengths"), given.get(f"{prefix}keep"))
    if tensor.dim() < 2 or (lengths is None and keep is None):
        return tensor
    n = tensor.shape[1]
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        real = torch.as_tensor(keep if lengths is None else lengths, device=tensor.device)
        if lengths is not None:
            places, real = torch.arange(n, device=tensor.device), real.reshape(-1, 1)
            real = places >= n - real if given.get("padding") == "left" else places < real
        if real.shape == tensor.shape[:2] and real.dtype is torch.bool:
            return tensor.masked_fill(~real.reshape(*real.shape, *[1] * (tensor.dim() - 2)), 0)
    return tensor


def _checksums(tensor: Tensor) -> tuple[str, tuple[float, list[int]]]:
    """The number of non-finite entries; the tolerance; weighted sums, which depend on the order of rows and columns,
    and the norm. They are compared with a tolerance, since machines round differently."""
    tolerance = max(1e-3, 16 * torch.finfo(tensor.dtype).eps)
    if not tensor.numel():
        return "0", (tolerance, [0] * (_CHECKSUMS + 1))
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    rows = rows[:: -(-rows.numel() // _MAX_NUMBERS)].double()
    nonfinite = int(rows.numel() - rows.isfinite().sum())
    rows = rows.nan_to_num(0.0, 0.0, 0.0)
    across, along = (_checksum_weights(size, rows.device) for size in rows.shape)
    numbers = torch.cat([(across * (rows @ along)).sum(0), rows.norm().reshape(1)])
    return str(nonfinite), (tolerance, numbers.cpu().view(torch.int64).tolist())


def _checksum_weights(size: int, device: torch.device) -> Tensor:
    """Weights (size, checksums) without two equal rows."""
    frequencies = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, device=device).sqrt()
    return torch.cos(torch.arange(1, size + 1, dtype=torch.float64, device=device).unsqueeze(1) * frequencies)


def _sum_shared_gradients(layer: Attention, axis: Axis) -> None:
    """Sum the gradients of weights that all heads use over the ranks. On every call, since a copied layer has new
    weights."""
    sink, features = getattr(layer, "sink", None), getattr(layer, "map", None)
    shared: list[Tensor] = list(features.parameters()) if isinstance(features, nn.Module) else []
    if isinstance(sink, Tensor) and sink.numel() == 1:
        shared.append(sink)

    def total(grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=axis.group)
        return grad

    for weight in shared:
        if weight.requires_grad and weight.is_leaf and not hasattr(weight, "_qkv_gradient_summed"):
            weight.register_hook(total)
            weight._qkv_gradient_summed = True  # pyright: ignore[reportAttributeAccessIssue]


def _wait_for(answer: Any) -> Any:
    """An asynchronous tensor of a collective in progress; any operator waits for it."""
    if isinstance(answer, tuple):
        return (_wait_for(answer[0]), *answer[1:])
    return answer.clone() if hasattr(answer, "trigger_wait") else answer


def _refuse_dropout(layer: nn.Module) -> None:
    dropout = getattr(layer, "dropout", 0.0)
    rate = dropout.p if isinstance(dropout, nn.Dropout) else dropout
    if layer.training and rate:
        hint = "make the model with dropout=0.0 to train it, or call eval()"
        raise OptionError(complaint("dropout", f"{rate} while training on several ranks", "0.0", hint))
