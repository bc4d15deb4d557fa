"""The base class of the modules, and checks of their arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import DTYPES


class ConfiguredModule(nn.Module):
    """A module that keeps the arguments of its constructor as `init_options`, so that `save` can write them."""

    init_options: dict[str, Any]

    # copy and pickle call this without arguments and restore init_options themselves.
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        module = super().__new__(cls)
        try:
            given = inspect.signature(cls.__init__).bind_partial(module, *args, **kwargs).arguments
        except TypeError:  # __init__ is called next and raises
            given = {}
        named = {name: value for name, value in given.items() if name not in ("self", "options")}
        object.__setattr__(module, "init_options", {**named, **given.get("options", {})})
        return module


def local_part(tensor: Any) -> Any:
    """This rank's shard of a tensor that `qkv.parallel.parallelize` has sharded; other tensors unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def gathered(tensor: Any) -> Any:
    """A sharded tensor gathered from all ranks, each of which must call this; other tensors unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def check_features(argument: str, x: Tensor, width: int, projection: nn.Module) -> None:
    """Check that x is (batch, n, width) in the dtype of the projection; under autocast, in any supported dtype.

    The dtype is not checked for a projection without a weight, such as an adapter or a quantized layer.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(complaint(argument, type(x).__name__, "a torch.Tensor"))
    if x.dim() != 3 or x.shape[2] != width:
        raise ShapeError(complaint(argument, f"shape {tuple(x.shape)}", f"(batch, n, {width})"))
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if x.dtype not in DTYPES or (x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type)):
        hint = f"convert with .to({weight.dtype}), or the module with module.to(dtype)"
        wanted = f"{weight.dtype}, the dtype of the module's weights"
        raise DtypeError(complaint(argument, f"dtype {x.dtype}", wanted, hint))


def check_choice(argument: str, given: object, table: Mapping[str, Any]) -> Any:
    """The table's entry of this name."""
    if not isinstance(given, str) or given not in table:
        raise OptionError(complaint(argument, repr(given), "one of " + ", ".join(map(repr, table))))
    return table[given]


def check_flag(argument: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise OptionTypeError(complaint(argument, repr(given), "True or False"))
    return given


def check_number(argument: str, given: object, wanted: str, low: float = 0.0, high: float = math.inf) -> float:
    """Check that `given` is a finite number with low < number ≤ high."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise OptionTypeError(complaint(argument, repr(given), wanted))
    value = float(given)
    if not (math.isfinite(value) and low < value <= high):
        raise OptionError(complaint(argument, given, wanted))
    return value
