"""What a layer that was dealt out does when it is called: the ranks agree first, and whoever is gone is named."""

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

# What is called from outside: `forward`, and what `generate` calls in its place.
GUARDED_METHODS = ("forward", "states", "encode", "project")
# Arguments of which some tokens may be padding, and how the names begin that say which.
_PADDING_PREFIXES = {"x": "", "tokens": "", "source": "source_", "target": "target_", "context": "context_"}
_MAX_NUMBERS = 1 << 20  # numbers of a tensor that are looked at
_CHECKSUMS = 3  # of each
_GLOO_ERRORS = ("Timed out", "Connection closed", "unbound_buffer", "Connection reset", "Broken pipe", "gloo", "Socket")


class _ActiveAxes(threading.local):
    """The axes on which a call is under way: what it calls itself has been agreed on."""

    def __init__(self) -> None:
        self.axes: set[Any] = set()


_ACTIVE = _ActiveAxes()


class CallGuard:
    """A method of a layer that was dealt out. Who comes from outside agrees with the other ranks first.

    It stands in the layer in place of the method, since `save` asks for the class; a copy of the layer gets its own.
    """

    def __init__(self, layer: nn.Module, name: str, axis: Axis, before: Callable[..., Any] | None) -> None:
        self.layer, self.name, self.axis, self.before = layer, name, axis, before
        self.__name__, self.__signature__ = name, inspect.signature(self._method())

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGuard:
        return CallGuard(copy.deepcopy(self.layer, memo), self.name, self.axis, copy.deepcopy(self.before, memo))

    def __call__(self, *given: Any, **options: Any) -> Any:
        # A traced program has no numbers to look at.
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
        return getattr(type(self.layer), self.name).__get__(self.layer) if self.before is None else self.before

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
        looks: dict[str, tuple[float, list[int]]] = {}
        try:
            bound = self.__signature__.bind(*given, **options)
            bound.apply_defaults()
            said = self._said(bound.arguments, looks)
        except (QkvError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            agree(self.axis, error)  # raises it
            raise
        every = agree(self.axis, said, [number for _, look in looks.values() for number in look])
        found = (
            torch.tensor(every, dtype=torch.int64).view(torch.float64).view(self.axis.size, len(looks), _CHECKSUMS + 1)
        )
        for place, (argument, (far, _)) in enumerate(looks.items()):
            each = found[:, place]
            # A difference of all numbers by the share `far`: the last one is the length of them all.
            apart = ((each - each[0]).abs() > far * torch.maximum(each[:, -1:], each[0, -1])).any(1)
            if apart.any():
                others = apart.nonzero().flatten().tolist()
                which = f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
                hint = "every rank calls a layer that was dealt out with the same input"
                said = f"{argument}: other numbers on {which} than on rank 0"
                raise Disagreement(f"axis {self.axis.name!r}, rank {self.axis.rank}: {said}. Hint: {hint}.")

    def _said(self, arguments: dict[str, Any], looks: dict[str, tuple[float, list[int]]]) -> dict[str, str]:
        device, weight = self.axis.device.type, next(self.layer.parameters(), None)
        modes = [module.training for module in self.layer.modules()]
        said = {
            "call": f"{type(self.layer).__name__}.{self.name}",
            "training": f"{sum(modes)} of {len(modes)} modules",
            "gradients": str(torch.is_grad_enabled()),
            "autocast": str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off",
            "weights": "none" if weight is None else str(weight.dtype),
        }
        for argument, thing in _flatten_arguments(arguments, isinstance(self.layer, ConfiguredModule)):
            if isinstance(thing, Tensor):
                thing = _zero_padding(argument, thing, arguments)
                if thing.is_floating_point() and len(looks) < 8:  # a ticket has room for so many
                    bad, looks[argument] = _checksums(thing)
                    said[f"{argument}, what is not finite"] = bad
            said[argument] = _describe(thing)
        return said


@contextlib.contextmanager
def raising_peer_lost(axis: Axis) -> Iterator[None]:
    """Torch's own collectives do not say who is missing, nor do they tell the others."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if isinstance(error, QkvError) or not any(word in str(error) for word in _GLOO_ERRORS):
            raise
        # In a ring of blame it is the one who says nothing.
        report_lost(axis, axis.after(1))
        close_connections(axis)
        raise peer_lost(axis, [(axis.after(step), "with") for step in range(1, axis.size)], error) from error


def _flatten_arguments(arguments: dict[str, Any], ours: bool) -> Iterator[tuple[str, Any]]:
    """Arguments, and what dicts of them hold. Lists too, but for our own layers: theirs are each rank's own heads."""
    for argument, thing in arguments.items():
        if isinstance(thing, dict):
            yield from ((f"{argument}[{key!r}]", each) for key, each in thing.items())
        elif isinstance(thing, list | tuple) and not ours and any(isinstance(each, Tensor) for each in thing):
            yield from ((f"{argument}[{place}]", each) for place, each in enumerate(thing))
        else:
            yield argument, thing


def _describe(thing: Any) -> str:
    """What must be the same on every rank, in the same words in every process."""
    if isinstance(thing, Mask):
        return mask_text(thing)
    if isinstance(thing, KVCache | LinearState):
        return f"{thing!r} of lengths {thing.lengths.tolist()}"
    if is_tensor(thing) and (thing.is_floating_point() or thing.is_complex()):
        learns = ", with a gradient" * (thing.requires_grad and torch.is_grad_enabled())
        return f"{str(thing.dtype).removeprefix('torch.')} {tuple(thing.shape)}{learns}"
    if isinstance(thing, dict):
        return f"{{{', '.join(f'{key!r}: {_describe(value)}' for key, value in thing.items())}}}"
    if isinstance(thing, list | tuple):
        parts = [_describe(each) for each in thing]
        alike = len(parts) > 1 and len(set(parts)) == 1
        return f"{len(parts)} x {parts[0]}" if alike else f"[{', '.join(parts)}]"
    known = thing is None or callable(thing) or hasattr(thing, "__array__")
    if known or isinstance(thing, int | float | complex | str | bytes | torch.dtype):
        return value_text(thing)
    return type(thing).__qualname__  # others may print their address


def _zero_padding(argument: str, tensor: Tensor, given: dict[str, Any]) -> Tensor:
    """With 0 where there is padding, which may be anything. What is wrong with it the layer says itself."""
    begin = _PADDING_PREFIXES.get(argument)
    lengths, keep = (None, None) if begin is None else (given.get(f"{begin}lengths"), given.get(f"{begin}keep"))
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
    """How many are no numbers; how far two ranks may lie apart; sums with weights that tell rows and columns from each
    other, and the length. Machines differ in how they round, so that the bits say nothing."""
    far = max(1e-3, 16 * torch.finfo(tensor.dtype).eps)
    if not tensor.numel():
        return "0", (far, [0] * (_CHECKSUMS + 1))
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    rows = rows[:: -(-rows.numel() // _MAX_NUMBERS)].double()
    bad = int(rows.numel() - rows.isfinite().sum())
    rows = rows.nan_to_num(0.0, 0.0, 0.0)
    across, along = (_checksum_weights(size, rows.device) for size in rows.shape)
    numbers = torch.cat([(across * (rows @ along)).sum(0), rows.norm().reshape(1)])
    return str(bad), (far, numbers.cpu().view(torch.int64).tolist())


def _checksum_weights(size: int, device: torch.device) -> Tensor:
    """(size, sums) of which no two rows are alike."""
    turns = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, device=device).sqrt()
    return torch.cos(torch.arange(1, size + 1, dtype=torch.float64, device=device).unsqueeze(1) * turns)


def _sum_shared_gradients(layer: Attention, place: Axis) -> None:
    """What all heads read gets everybody's gradients. Here and not once for all: a copy's weights are new ones."""
    sink, features = getattr(layer, "sink", None), getattr(layer, "map", None)
    read_by_all: list[Tensor] = list(features.parameters()) if isinstance(features, nn.Module) else []
    if isinstance(sink, Tensor) and sink.numel() == 1:
        read_by_all.append(sink)

    def total(grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=place.group)
        return grad

    for weight in read_by_all:
        if weight.requires_grad and weight.is_leaf and not hasattr(weight, "_qkv_added_up"):
            weight.register_hook(total)
            weight._qkv_added_up = True  # pyright: ignore[reportAttributeAccessIssue]


def _wait_for(answer: Any) -> Any:
    """A sum that is still under way is another kind of tensor; an operator waits for it."""
    if isinstance(answer, tuple):
        return (_wait_for(answer[0]), *answer[1:])
    return answer.clone() if hasattr(answer, "trigger_wait") else answer


def _refuse_dropout(layer: nn.Module) -> None:
    dropout = getattr(layer, "dropout", 0.0)
    rate = dropout.p if isinstance(dropout, nn.Dropout) else dropout
    if layer.training and rate:
        hint = "make the model with dropout=0.0 to train it, or call eval()"
        raise OptionError(complaint("dropout", f"{rate} while training on several ranks", "0.0", hint))
