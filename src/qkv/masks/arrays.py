"""What masks may hold: numbers and booleans from torch, numpy or plain lists, checked at the door.

Lists and numpy arrays are copied, so that nobody can change a mask behind its back. A torch tensor is
kept as it is (it may be large, or traced by a compiler), and what was read from it is remembered only
as long as its version stays the same.
"""

from __future__ import annotations

import sys
from typing import Any

from qkv.errors import MaskError, MaskTypeError, complaint

BOOLEANS_ONLY = "masks are bool; use bias= for additive"


def is_tensor(thing: object) -> bool:
    """Whether this is a tensor of torch. It cannot be one unless somebody has loaded torch."""
    if "torch" not in sys.modules:
        return False
    import torch

    return isinstance(thing, torch.Tensor)


def shape_of(values: Any) -> tuple[int, ...]:
    """The sizes of an array, a tensor or a flat tuple."""
    return (len(values),) if isinstance(values, tuple) else tuple(values.shape)


def version(values: Any) -> int | None:
    """A number that changes when a tensor is written to; None when torch does not keep one."""
    if not is_tensor(values):
        return 0
    try:
        return values._version
    except RuntimeError:  # inference tensors: what is read from them can never be remembered
        return None


def to_numpy(values: Any) -> Any:
    """The contents as a numpy array."""
    import numpy as np

    return values.detach().cpu().numpy() if is_tensor(values) else np.asarray(values)


def described(values: Any) -> str:
    """A few words for an error message.

    >>> described([[1, 0], [1, 1]])
    'int64 values of shape (2, 2)'
    """
    if is_tensor(values):
        return f"a {values.dtype} tensor of shape {tuple(values.shape)}"
    if hasattr(values, "dtype") and hasattr(values, "shape"):
        return f"{_dtype_name(values)} values of shape {tuple(values.shape)}"
    if isinstance(values, (list, tuple)):
        import numpy as np

        try:
            return described(np.asarray(values))
        except ValueError:
            return f"a {type(values).__name__} whose rows have different lengths"
    text = repr(values)
    return text if len(text) <= 60 else f"{text[:57]}..."


def brief(values: Any) -> str:
    """How a mask's repr shows what it holds: short lists in full, the rest by dtype and shape.

    >>> brief((3, 5))
    '[3, 5]'
    """
    if isinstance(values, tuple):
        return str(list(values)) if len(values) <= 8 else f"<{len(values)} integers>"
    return f"<{_dtype_name(values)} {tuple(values.shape)}>"


def booleans(argument: str, values: Any, shape: str) -> Any:
    """A boolean tensor, or a boolean numpy array of one's own.

    >>> booleans("keep", [1, 0], "(len_k,)")
    Traceback (most recent call last):
    qkv.errors.MaskTypeError: keep: got int64 values of shape (2,), wanted booleans of shape (len_k,), \
True where a query may attend. Hint: masks are bool; use bias= for additive; x != 0 makes booleans of 0 and 1.
    """
    meaning = "True where a key is ignored" if argument.startswith("drop") else "True where a query may attend"
    wanted = f"booleans of shape {shape}, {meaning}"
    hint = f"{BOOLEANS_ONLY}; x != 0 makes booleans of 0 and 1"
    if is_tensor(values):
        import torch

        _refuse_odd_layouts(argument, values)
        if values.dtype is not torch.bool:
            raise MaskTypeError(complaint(argument, described(values), wanted, hint))
        return values
    array = _own_array(argument, values, wanted, hint)
    if array.dtype.kind != "b" and not _empty_list(values, array):
        raise MaskTypeError(complaint(argument, described(values), wanted, hint))
    return array.astype(bool)


def integers(argument: str, values: Any, shape: str, hint: str = "") -> Any:
    """An integer tensor, or an int64 numpy array of one's own; booleans are no integers here."""
    wanted = f"integers of shape {shape}"
    if is_tensor(values):
        import torch

        _refuse_odd_layouts(argument, values)
        if values.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            hint = hint or "convert with .to(torch.int64)"
            raise MaskTypeError(complaint(argument, described(values), wanted, hint))
        return values
    array = _own_array(argument, values, wanted, hint)
    # uint64 does not fit into int64: its large values would come out negative.
    fits = array.dtype.kind in "iu" and array.dtype.name != "uint64"
    if not fits and not _empty_list(values, array):
        raise MaskTypeError(complaint(argument, described(values), wanted, hint))
    return array.astype("int64")


def _own_array(argument: str, values: Any, wanted: str, hint: str) -> Any:
    import numpy as np

    try:
        return np.array(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(complaint(argument, described(values), wanted, hint)) from error


def _empty_list(values: Any, array: Any) -> bool:
    # numpy calls an empty list float64; it holds nothing that could be of a wrong kind.
    return isinstance(values, (list, tuple)) and array.size == 0


def _refuse_odd_layouts(argument: str, tensor: Any) -> None:
    import torch

    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise MaskTypeError(complaint(argument, f"a {layout} tensor", "an ordinary (strided) tensor"))
    if tensor.is_meta:
        raise MaskTypeError(complaint(argument, "a meta tensor", "a tensor with contents"))


def _dtype_name(values: Any) -> str:
    return str(values.dtype).removeprefix("torch.")
