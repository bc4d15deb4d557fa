"""What `check=True` compares between ranks: the numbers of tensors, and every argument of the calls of a sharded
layer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..errors import Disagreement
from ..inputs import in_transform
from ..masks import Mask
from .consensus import PORTABLE_TYPES, agree, dtype_text, list_ranks, mask_text, sharing_errors, value_text
from .transfer import Axis

# The methods that users and `generate` call.
CHECKED_METHODS = ("forward", "states", "encode", "project")
_MAX_NUMBERS = 1 << 20  # a larger tensor is compared in part
_CHECKSUMS, _MAX_TENSORS = 3, 8  # checksums of a tensor, and tensors of a call: an agreement has 32 numbers
_ACTIVE: set[Any] = set()  # the groups whose outermost call is running: inner calls need no agreement


def compare_numbers(axis: Axis, arguments: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Check that all ranks have the same arguments and, up to rounding, the same numbers."""
    with sharing_errors(axis):
        checksums = {name: _checksums(tensor) for name, tensor in tensors.items()}
        texts = {f"{name}, non-finite numbers": str(nonfinite) for name, (nonfinite, _) in checksums.items()}
    every = agree(axis, arguments | texts, [n for _, numbers in checksums.values() for n in numbers])
    found = torch.tensor(every, dtype=torch.int64).view(torch.float64)
    found = found.view(axis.size, len(checksums), _CHECKSUMS + 1)
    for index, (name, tensor) in enumerate(tensors.items()):
        each, tolerance = found[:, index], max(1e-3, 16 * torch.finfo(tensor.dtype).eps)
        # The tolerance is relative to the last number, the norm.
        differs = ((each - each[0]).abs() > tolerance * torch.maximum(each[:, -1:], each[0, -1])).any(1)
        if differs.any():
            others = list_ranks(differs.nonzero().flatten().tolist())
            hint = "give every rank the same numbers; where they are drawn, draw them with the same seed"
            where = f"axis {axis.name!r}, rank {axis.rank}"
            raise Disagreement(f"{where}: {name}: other numbers on {others} than on rank 0. Hint: {hint}.")


def _checksums(tensor: Tensor) -> tuple[int, list[int]]:
    """The number of non-finite entries; weighted sums, which depend on the order of rows and columns, and the norm, as
    the bits of float64. They are compared with a tolerance, since machines round differently."""
    if not tensor.numel():
        return 0, [0] * (_CHECKSUMS + 1)
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
    rows = rows[:: -(-rows.numel() // _MAX_NUMBERS)].double()
    nonfinite = int(rows.numel() - rows.isfinite().sum())
    rows = rows.nan_to_num(0.0, 0.0, 0.0)
    frequencies = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, device=rows.device).sqrt()
    # Without two equal rows.
    places = (torch.arange(1, size + 1, dtype=torch.float64, device=rows.device)[:, None] for size in rows.shape)
    across, along = (torch.cos(place * frequencies) for place in places)
    numbers = torch.cat([(across * (rows @ along)).sum(0), rows.norm().reshape(1)])
    return nonfinite, numbers.cpu().view(torch.int64).tolist()


class CheckedCall:
    """A method of a sharded layer that first compares its arguments with the other ranks.

    It is an attribute of the layer and not a subclass, since `save` stores the class; a copy of the layer gets its own.
    """

    def __init__(self, layer: nn.Module, name: str, axis: Axis) -> None:
        self.layer, self.name, self.axis = layer, name, axis
        self.__name__, self.__signature__ = name, inspect.signature(self._method())

    def __deepcopy__(self, memo: dict[int, Any]) -> CheckedCall:
        return CheckedCall(copy.deepcopy(self.layer, memo), self.name, self.axis)

    def _method(self) -> Callable[..., Any]:
        return getattr(type(self.layer), self.name).__get__(self.layer)

    def __call__(self, *given: Any, **options: Any) -> Any:
        # A traced program has no numbers to compare.
        if self.axis.group in _ACTIVE or torch.compiler.is_compiling() or in_transform():
            return self._method()(*given, **options)
        _ACTIVE.add(self.axis.group)
        try:
            with sharing_errors(self.axis):
                bound = self.__signature__.bind(*given, **options)
                bound.apply_defaults()
                texts, tensors = self._arguments(bound.arguments)
            compare_numbers(self.axis, texts, tensors)
            return self._method()(*given, **options)
        finally:
            _ACTIVE.discard(self.axis.group)

    def _arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What must be equal on all ranks, as texts, and floating-point tensors."""
        device, weight = self.axis.device.type, next(self.layer.parameters(), None)
        modes, tensors = [module.training for module in self.layer.modules()], dict[str, Tensor]()
        texts = {
            "call": f"{type(self.layer).__name__}.{self.name}",
            "training": f"{sum(modes)} of {len(modes)} modules",
            "gradients": str(torch.is_grad_enabled()),
            "autocast": str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off",
            "weights": "none" if weight is None else str(weight.dtype),
        }
        flat = [*arguments.items()]
        for name, thing in arguments.items():
            flat += [(f"{name}[{key!r}]", each) for key, each in thing.items()] if isinstance(thing, dict) else []
        for name, thing in flat:
            if isinstance(thing, Tensor) and thing.is_floating_point() and len(tensors) < _MAX_TENSORS:
                tensors[name] = thing
            texts[name] = _describe(thing)
        return texts, tensors


def _describe(thing: Any) -> str:
    """What must be equal on all ranks, as a text; of floating-point tensors only the shape, since they may differ by
    rounding or have the heads of a rank."""
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(_describe, thing))}]"
    if isinstance(thing, KVCache | LinearState):
        return f"{thing!r} of lengths {thing.lengths.tolist()}"
    if isinstance(thing, Tensor) and (thing.is_floating_point() or thing.is_complex()):
        gradient = ", with a gradient" * (thing.requires_grad and torch.is_grad_enabled())
        return f"{dtype_text(thing.dtype)} {tuple(thing.shape)}{gradient}"
    if isinstance(thing, Mask):
        return mask_text(thing)
    known = thing is None or callable(thing) or hasattr(thing, "__array__") or isinstance(thing, torch.dtype)
    # The repr of other objects may contain an address.
    return value_text(thing) if known or isinstance(thing, PORTABLE_TYPES) else type(thing).__qualname__
