"""Storage formats of a cache: how keys and values are rounded when they are appended, and widened when they are read.

A format is one record. Layout, files, models, the command line and the probes of a machine read it; the native kernels
have the same formats in native/src/formats.h, under the same codes.

int4 stores 16 numbers, ±1/2, ±3/2, … ±15/2 times a scale for each 32 channels, of keys and values that are rotated
before they are rounded (native/src/rotation.h): no channel then is much larger than the others. Queries and outputs are
rotated instead of what is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import DtypeError, OptionError, complaint
from ..shapes import Float, Int

INT8_MAX = 127
INT4_MAX = 7.5
INT4: torch.dtype = torch.int4  # pyright: ignore[reportAttributeAccessIssue]
GROUP = 32  # channels of int4 that share a scale


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


def dequantize(
    q: Int[Tensor, "*tokens width"], scale: Float[Tensor, "*tokens"], width: int | None = None
) -> Float[Tensor, "*tokens width"]:
    """scale · q in float32.

    >>> dequantize(torch.tensor([[127, -2]], dtype=torch.int8), torch.tensor([2.0]))
    tensor([[254.,  -4.]])
    """
    return q.to(torch.float32) * scale.unsqueeze(-1)


def _is_quantized(q: Tensor, scale: Tensor) -> bool:
    return not bool((q == -128).any()) and _are_scales(q, scale)


def _are_scales(q: Tensor, scale: Tensor) -> bool:
    return not bool(((scale < 0) | scale.isinf()).any())


@lru_cache(maxsize=32)
def _signs(block: int) -> Tensor:
    """Rudin and Shapiro's: the parity of the number of adjacent ones in a channel's index."""
    return torch.tensor([-1.0 if (c & c >> 1).bit_count() % 2 else 1.0 for c in range(block)])


def _multiply_hadamard(x: Float[Tensor, "*tokens blocks block"]) -> Float[Tensor, "*tokens blocks block"]:
    """H·x of each block, in the native library's order of operations."""
    shape, apart = x.shape, 1
    while apart < shape[-1]:
        one, other = x.unflatten(-1, (shape[-1] // (2 * apart), 2, apart)).unbind(-2)
        x = torch.stack([one + other, one - other], dim=-2).reshape(shape)
        apart *= 2
    return x


def rotate(x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
    """H·s·x / n in blocks of n channels, the largest power of two that divides the width."""
    block = x.shape[-1] & -x.shape[-1]
    signs = _signs(block).to(x.device) * (1.0 / block)
    return _multiply_hadamard(x.unflatten(-1, (-1, block)) * signs).flatten(-2)


def rotate_back(x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
    """s·H·x, the inverse of `rotate`. Sums near the largest number may overflow before they cancel: rows are shrunk.

    >>> rotate_back(rotate(torch.tensor([1.0, 2.0, 3.0, 4.0])))
    tensor([1., 2., 3., 4.])
    """
    block, largest = x.shape[-1] & -x.shape[-1], torch.finfo(x.dtype).max
    most = x.abs().amax(-1, keepdim=True)
    shrinks = (most >= 2.0**96) & (most <= largest)
    rotated = _multiply_hadamard(torch.where(shrinks, x * 2.0**-32, x).unflatten(-1, (-1, block)))
    back = (rotated * _signs(block).to(x.device)).flatten(-2)
    return torch.where(shrinks, (back / 2.0**-32).clamp(-largest, largest), back)


def quantize_int4(
    x: Float[Tensor, "*tokens width"],
) -> tuple[Int[Tensor, "*tokens bytes"], Float[Tensor, "*tokens groups"]]:
    """Rotate and quantize to int4: a scale max|x| / 7.5 for each 32 channels, rounded to bfloat16.

    Byte i of the 16 bytes of a group has ⌊x / scale⌋ + 8 of channel i in its low half, and that of channel 16 + i in
    its high half. A token with a non-finite element has NaN as scales.

    >>> numbers, scales = quantize_int4(torch.full((1, 64), 3.0))
    >>> numbers.shape, scales.shape
    (torch.Size([1, 32]), torch.Size([1, 2]))
    """
    x = x.to(torch.float32)
    finite = torch.isfinite(x).all(-1, keepdim=True)
    x = rotate(torch.where(finite, x, 0.0))
    width = x.shape[-1]
    x = torch.nn.functional.pad(x, (0, -width % GROUP)).unflatten(-1, (-1, GROUP))
    scales = torch.where(finite, x.abs().amax(-1) / INT4_MAX, torch.nan).to(torch.bfloat16)
    wide = scales.to(torch.float32).unsqueeze(-1)
    steps = torch.where(wide > 0, (x / torch.where(wide > 0, wide, 1.0)).floor() + 8, 0.0).clamp(0, 15)
    steps.flatten(-2)[..., width:] = 0
    low, high = steps.to(torch.uint8).unflatten(-1, (2, GROUP // 2)).unbind(-2)
    return (low | high << 4).flatten(-2), scales


def dequantize_int4(
    numbers: Int[Tensor, "*tokens bytes"], scales: Float[Tensor, "*tokens groups"], width: int | None = None
) -> Float[Tensor, "*tokens width"]:
    """The inverse of `quantize_int4` in float32."""
    groups = numbers.unflatten(-1, (-1, GROUP // 2))
    steps = torch.stack([groups & 15, groups >> 4], dim=-2).flatten(-2).to(torch.float32) - INT4_MAX
    return rotate_back((steps * scales.to(torch.float32).unsqueeze(-1)).flatten(-2)[..., :width])


@dataclass(frozen=True)
class StorageFormat:
    """How a cache stores its numbers.

    Args:
        dtype: What `KVCache(dtype=...)` takes: the dtype of the numbers, or the name of a format without one.
        short: The name on the command line.
        code: The number of the format in the native library; None if torch alone reads it.
        pair: Elements of a key that are stored next to each other.
        numbers: The dtype of the elements that hold the numbers; `dtype` if None.
        quantize: For a format with scales: (…, width) → elements and scales (…), or (…, groups) with `group`. Without
            it, numbers are converted to `dtype`.
        dequantize: Its inverse, in float32; it is also given the width.
        is_valid: Whether elements and scales of a file can come from `quantize`.
        group: Channels that share a scale and, two to an element, are stored together; 0: a scale is for a whole token
            and head, and an element is a number.
        scales: The dtype of the scales.
        largest: The stored number of the largest magnitude of a group.
        values: The format of the values, if they have another one than the keys.
    """

    dtype: torch.dtype | str
    short: str
    code: int | None = None
    pair: int = 1
    numbers: torch.dtype | None = None
    quantize: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    dequantize: Callable[[Tensor, Tensor, int], Tensor] = dequantize
    is_valid: Callable[[Tensor, Tensor], bool] = lambda numbers, scales: True
    group: int = 0
    scales: torch.dtype = torch.float32
    largest: float = INT8_MAX
    values: StorageFormat | None = None

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def of_values(self) -> StorageFormat:
        return self if self.values is None else self.values

    @property
    def native_code(self) -> int | None:
        """The code of keys and values together, as the native functions take it."""
        if self.values is None or self.code is None or self.values.code is None:
            return self.code if self.values is None else None
        return self.code + 16 * self.values.code

    @property
    def element(self) -> torch.dtype:
        """The dtype of the elements that hold the numbers."""
        found = self.dtype if self.numbers is None else self.numbers
        assert isinstance(found, torch.dtype)
        return found

    @property
    def has_scales(self) -> bool:
        return self.quantize is not None

    @property
    def read_dtype(self) -> torch.dtype:
        """The dtype of the numbers that are read."""
        return torch.float32 if self.has_scales or self.of_values.has_scales else self.element

    def elements(self, width: int) -> int:
        """How many elements hold a row."""
        return -(-width // self.group) * self.group // 2 if self.group else width

    def scales_of(self, width: int) -> int:
        """How many scales a row has."""
        return 0 if not self.has_scales else -(-width // self.group) if self.group else 1

    def row_bytes(self, width: int) -> int:
        """Bytes of one key (or value), with its scales."""
        return self.elements(width) * self.element.itemsize + self.scales_of(width) * self.scales.itemsize

    def token_bytes(self, width: int, value_width: int | None = None) -> int:
        """Bytes of a key and a value."""
        return self.row_bytes(width) + self.of_values.row_bytes(width if value_width is None else value_width)

    def store(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Elements and scales (…, groups) of rows; the only place where they are rounded."""
        if self.quantize is None:
            return x.to(self.element), None
        numbers, scales = self.quantize(x)
        return numbers, scales if self.group else scales.unsqueeze(-1)

    def read(self, numbers: Tensor, scales: Tensor | None, width: int) -> Tensor:
        if scales is None:
            return numbers
        return self.dequantize(numbers, scales if self.group else scales.squeeze(-1), width)


FORMATS: dict[torch.dtype | str, StorageFormat] = {}


def register(new: StorageFormat) -> StorageFormat:
    """Add a format: `KVCache(dtype=new.dtype)` then uses it."""
    if any(new.short == old.short or new.dtype == old.dtype for old in FORMATS.values()):
        wanted = "a dtype and a name that no other format has"
        raise OptionError(complaint("format", f"{new.name}, {new.short}", wanted))
    FORMATS[new.dtype] = new
    return new


def storage_format(dtype: object) -> StorageFormat:
    """The format of a dtype, or of a name: "int4" and torch.int4, "int8/int4" (keys/values); DtypeError if there is
    none."""
    found = FORMATS.get(dtype) if isinstance(dtype, torch.dtype | str) else None
    if found is None and isinstance(dtype, str):
        found = next((each for each in FORMATS.values() if dtype in (each.name, each.short)), None)
    if found is None:
        *names, last = (each.name for each in FORMATS.values())
        hint = "this is the storage format; queries may have another dtype"
        raise DtypeError(complaint("dtype", dtype, f"torch.{', '.join(names)} or {last}", hint))
    return found


register(StorageFormat(torch.float32, "f32", code=1))
register(StorageFormat(torch.float16, "f16", code=2))
# bfloat16 stores two coordinates of a token together: one shift and one mask widen both.
register(StorageFormat(torch.bfloat16, "bf16", code=3, pair=2))
_INT8 = StorageFormat(torch.int8, "int8", code=4, quantize=quantize, is_valid=_is_quantized)
_INT4 = StorageFormat(
    INT4, "int4", code=5, pair=4, numbers=torch.uint8, quantize=quantize_int4, dequantize=dequantize_int4,
    is_valid=_are_scales, group=GROUP, scales=torch.bfloat16, largest=INT4_MAX,
)  # fmt: skip
register(_INT8)
register(_INT4)
register(replace(_INT8, dtype="int8/int4", short="int8/int4", numbers=torch.int8, values=_INT4))
