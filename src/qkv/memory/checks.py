"""What a memory is given, looked at before anything is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from ..errors import DtypeError, FormRefused, OptionError, OptionTypeError, ShapeError, complaint
from ..masks.grid import integer

if TYPE_CHECKING:
    from .kv import KVCache
    from .state import LinearState

DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def size(argument: str, given: Any, least: int = 1) -> int:
    """An integer that is large enough."""
    number = integer(argument, given)
    if number < least:
        raise OptionError(complaint(argument, given, f"an integer, {least} or more"))
    return number


def check_tokens(memory: KVCache | LinearState, key: Tensor, value: Tensor) -> None:
    """Refuse keys and values that do not fit the memory."""
    for name, tensor in (("key", key), ("value", value)):
        check_kind(name, tensor)
    check_fit(memory, key, value)


def check_fit(memory: KVCache | LinearState, key: Tensor, value: Tensor) -> None:
    """The same for tensors of which only sizes, dtypes and devices can be wrong."""
    if key.dtype is not value.dtype or key.device != value.device:
        given = f"{value.dtype} on {value.device} beside key's {key.dtype} on {key.device}"
        raise DtypeError(complaint("value", given, "key's dtype and device", "convert with .to(...)"))
    for name, tensor, width in (("key", key, memory.width), ("value", value, memory.value_width)):
        if tensor.dim() != 4 or (tensor.shape[0], tensor.shape[1], tensor.shape[3]) != (
            memory.batch,
            memory.heads,
            width,
        ):
            held = f"({memory.batch}, {memory.heads}, n, {width}): batch, heads, new tokens and width of the memory"
            raise ShapeError(complaint(name, f"shape {tuple(tensor.shape)}", held))
    if key.shape[2] != value.shape[2]:
        given = f"{value.shape[2]} tokens beside {key.shape[2]} keys"
        raise ShapeError(complaint("value", given, "one value for each key"))
    if memory._seen is not None and memory._seen != (key.dtype, key.device):
        dtype, device = memory._seen
        hint = f"make it .to({str(device)!r}, {dtype}), or reset() the memory"
        given = f"{key.dtype} on {key.device}"
        raise DtypeError(complaint("key", given, f"{dtype} on {device}, as what the memory was given before", hint))


def check_kind(name: str, tensor: Any) -> None:
    """An ordinary tensor of numbers that nobody differentiates or traces."""
    if not isinstance(tensor, Tensor):
        hint = "torch.as_tensor turns arrays and lists into one"
        raise DtypeError(complaint(name, type(tensor).__name__, "a torch.Tensor", hint))
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta:
        kind = "a nested tensor" if tensor.is_nested else "a meta tensor" if tensor.is_meta else str(tensor.layout)
        raise DtypeError(complaint(name, kind, "an ordinary dense tensor that holds numbers"))
    if tensor.dtype not in DTYPES:
        wanted = "float32, float64, bfloat16 or float16"
        raise DtypeError(complaint(name, f"dtype {tensor.dtype}", wanted, f"{name}.float() converts"))
    if type(tensor) not in _PLAIN or _functorch.maybe_current_level() is not None:
        reason = "torch.func and subclasses of tensors hide the numbers that a memory keeps"
        raise FormRefused(complaint(name, type(tensor).__name__, "an ordinary tensor", reason), (reason,))
    check_no_gradient(name, tensor)


def check_no_gradient(name: str, tensor: Tensor) -> None:
    """A memory outlives the graph that its tokens came from."""
    if tensor.requires_grad and torch.is_grad_enabled():
        reason = f"{name} requires grad, and a memory is not differentiated"
        hint = "decode under torch.no_grad(), or train with qkv.attention over the whole sequence"
        raise FormRefused(
            complaint(name, "a tensor that requires grad", "one that does not", f"{reason}; {hint}"), (reason,)
        )


def counted(lengths: Any, padding: Any, batch: int, n: int) -> tuple[np.ndarray | None, bool]:
    """How many of the n new tokens of each row count (None: all), and whether they are the last ones."""
    if not isinstance(padding, str) or padding not in ("right", "left"):
        raise OptionError(complaint("padding", repr(padding), "'right' or 'left': where what does not count stands"))
    if lengths is None:
        return None, False
    counts = _integers("lengths", lengths)
    if counts.shape != (batch,):
        raise ShapeError(complaint("lengths", f"shape {counts.shape}", f"({batch},): one for each row"))
    wrong = np.flatnonzero((counts < 0) | (counts > n))
    if len(wrong):
        row = int(wrong[0])
        raise OptionError(complaint(f"lengths[{row}]", int(counts[row]), f"0 to {n}, the number of new tokens"))
    return counts, padding == "left"


def rows_of(index: Any, batch: int) -> np.ndarray:
    """Numbers of rows, at least one."""
    rows = _integers("index", index)
    if rows.ndim != 1 or len(rows) == 0:
        raise ShapeError(complaint("index", f"shape {rows.shape}", "one dimension, of at least one row"))
    wrong = np.flatnonzero((rows < 0) | (rows >= batch))
    if len(wrong):
        place = int(wrong[0])
        raise OptionError(complaint(f"index[{place}]", int(rows[place]), f"0 to {batch - 1}, a row of the memory"))
    return rows


def _integers(argument: str, given: Any) -> np.ndarray:
    """A copy as int64."""
    wanted = "integers"
    if isinstance(given, Tensor):
        if given.dtype not in _INTEGERS or given.is_nested or given.layout is not torch.strided or given.is_meta:
            raise OptionTypeError(complaint(argument, f"a tensor of {given.dtype}", wanted))
        return given.detach().to("cpu", torch.int64, copy=True).contiguous().numpy()
    try:
        array = np.array(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionTypeError(complaint(argument, repr(given), wanted)) from error
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        if array.size == 0 and array.ndim == 1:
            return array.astype(np.int64)
        raise OptionTypeError(complaint(argument, repr(given), wanted))
    return array.astype(np.int64)
