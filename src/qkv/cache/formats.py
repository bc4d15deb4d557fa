"""Storage formats of a cache: how keys and values are rounded when they are appended, and widened when they are read.

A format is one record. Layout, files, models, the command line and the probes of a machine read it; the native kernels
have the same formats in native/src/formats.h, under the same codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, complaint
from ..shapes import Float, Int

INT8_MAX = 127


def quantize(x: Float[Tensor, "*tokens width"]) -> tuple[Int[Tensor, "*tokens width"], Float[Tensor, "*tokens"]]:
    """Quantize to int8: scale = max|x| / 127 and q = x / scale, rounded half to even, computed in float32.

    A token of zeros has scale 0. A token with a non-finite element has scale NaN, so all of it becomes NaN.

    >>> q, scale = quantize(torch.tensor([[254.0, -3.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()
    ([[127, -2, 0], [0, 0, 0]], [2.0, 0.0])
    """
    x = x.to(torch.float32)
    scale = x.abs().amax(-1) / INT8_MAX
    scale = torch.where(torch.isfinite(x).all(-1), scale, torch.nan)
    # Scales 0 and NaN define the token alone; q is 0 there.
    usable = (scale > 0).unsqueeze(-1)
    quotient = torch.where(usable, x / torch.where(usable, scale.unsqueeze(-1), 1.0), 0.0)
    return quotient.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def dequantize(q: Int[Tensor, "*tokens width"], scale: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens width"]:
    """scale · q in float32.

    >>> dequantize(torch.tensor([[127, -2]], dtype=torch.int8), torch.tensor([2.0]))
    tensor([[254.,  -4.]])
    """
    return q.to(torch.float32) * scale.unsqueeze(-1)


def _is_quantized(q: Tensor, scale: Tensor) -> bool:
    return not bool((q == -128).any()) and not bool(((scale < 0) | scale.isinf()).any())


@dataclass(frozen=True)
class StorageFormat:
    """How a cache stores its numbers.

    Args:
        dtype: Of the stored numbers.
        short: The name on the command line.
        code: The number of the format in the native library; None if torch alone reads it.
        pair: Coordinates of a key that are stored next to each other.
        quantize: For a format with a scale for each token and head: (…, width) → numbers and scales (…). Without it,
            numbers are converted to `dtype`.
        dequantize: Its inverse, in float32.
        is_valid: Whether numbers and scales of a file can come from `quantize`.
    """

    dtype: torch.dtype
    short: str
    code: int | None = None
    pair: int = 1
    quantize: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    dequantize: Callable[[Tensor, Tensor], Tensor] = dequantize
    is_valid: Callable[[Tensor, Tensor], bool] = lambda numbers, scales: True

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def has_scales(self) -> bool:
        return self.quantize is not None

    @property
    def read_dtype(self) -> torch.dtype:
        """The dtype of the numbers that are read."""
        return torch.float32 if self.has_scales else self.dtype

    def token_bytes(self, width: int) -> int:
        """Bytes of one key or value, with its scale."""
        return width * self.dtype.itemsize + 4 * self.has_scales

    def store(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Numbers and scales of tokens; the only place where they are rounded."""
        return (x.to(self.dtype), None) if self.quantize is None else self.quantize(x)

    def read(self, numbers: Tensor, scales: Tensor | None) -> Tensor:
        return numbers if scales is None else self.dequantize(numbers, scales)


FORMATS: dict[torch.dtype, StorageFormat] = {}


def register(new: StorageFormat) -> StorageFormat:
    """Add a format: `KVCache(dtype=new.dtype)` then uses it."""
    if any(new.short == old.short or new.dtype is old.dtype for old in FORMATS.values()):
        wanted = "a dtype and a name that no other format has"
        raise OptionError(complaint("format", f"{new.name}, {new.short}", wanted))
    FORMATS[new.dtype] = new
    return new


def storage_format(dtype: object) -> StorageFormat:
    """The format of a dtype; DtypeError if there is none."""
    found = FORMATS.get(dtype) if isinstance(dtype, torch.dtype) else None
    if found is None:
        *names, last = (each.name for each in FORMATS.values())
        hint = "this is the storage format; queries may have another dtype"
        raise DtypeError(complaint("dtype", dtype, f"torch.{', '.join(names)} or {last}", hint))
    return found


register(StorageFormat(torch.float32, "f32", code=1))
register(StorageFormat(torch.float16, "f16", code=2))
# bfloat16 stores two coordinates of a token together: one shift and one mask widen both.
register(StorageFormat(torch.bfloat16, "bf16", code=3, pair=2))
register(StorageFormat(torch.int8, "int8", code=4, quantize=quantize, is_valid=_is_quantized))
