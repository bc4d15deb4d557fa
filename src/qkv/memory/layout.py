"""The bytes of a page: 64 tokens of one batch row, for all key/value heads.

A page is heads × slab. The slab of a head, every part 64-byte aligned:

    header  64 bytes; byte 0 is 1 when a value in the slab may be NaN or infinite
    scales  int8 only: 64 float32 for the keys, then 64 for the values
    keys    [⌈width / n⌉][64 tokens][n], n = 2 for bfloat16 and 1 otherwise: a run of 64 tokens for each coordinate
    values  [64 tokens][value_width rounded up to a multiple of 16], the rest zero

The native kernels read and write the same bytes; what is here does it with torch alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..shapes import Float
from ..sizes import PAGE
from .quantized import dequantized, quantized

# How the native library numbers what a memory can hold.
STORAGE = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 4}
_LINE = 64


class Stored(NamedTuple):
    """Tokens as they are kept: key (heads, tokens, width), value (heads, tokens, value_width), both in the storage
    dtype; the scales (heads, tokens) are there for int8 only."""

    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None


class Layout(NamedTuple):
    """Where everything is in a page; made by `layout_of`."""

    dtype: torch.dtype
    heads: int
    width: int
    value_width: int
    pair: int  # n above
    row: int  # elements of a value with its padding
    keys_at: int
    values_at: int
    head_bytes: int
    page_bytes: int

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What the native functions want to know of it: storage, heads, width, value_width."""
        return STORAGE[self.dtype], self.heads, self.width, self.value_width


def layout_of(dtype: torch.dtype, heads: int, width: int, value_width: int) -> Layout:
    """The layout of a page.

    >>> layout_of(torch.bfloat16, heads=2, width=5, value_width=17).page_bytes
    9856
    """
    size, pair = dtype.itemsize, 2 if dtype is torch.bfloat16 else 1
    row = -(-value_width // 16) * 16
    keys_at = _LINE + (2 * 4 * PAGE if dtype is torch.int8 else 0)
    values_at = keys_at + size * PAGE * pair * -(-width // pair)
    head_bytes = values_at + size * PAGE * row
    return Layout(dtype, heads, width, value_width, pair, row, keys_at, values_at, head_bytes, heads * head_bytes)


def rounded(layout: Layout, key: Float[Tensor, "h n d"], value: Float[Tensor, "h n dv"]) -> Stored:
    """The tokens in the memory's own format; the only time that they are rounded."""
    if layout.dtype is torch.int8:
        (key, key_scale), (value, value_scale) = quantized(key), quantized(value)
        return Stored(key, value, key_scale, value_scale)
    return Stored(key.to(layout.dtype), value.to(layout.dtype), None, None)


def numbers(stored: Stored) -> tuple[Tensor, Tensor]:
    """Keys and values to compute with: float32 for int8, the storage dtype otherwise."""
    if stored.key_scale is None or stored.value_scale is None:
        return stored.key, stored.value
    return dequantized(stored.key, stored.key_scale), dequantized(stored.value, stored.value_scale)


def write(layout: Layout, page: Tensor, slot: int, stored: Stored) -> None:
    """Put tokens into a page (bytes, page_bytes), from `slot` on."""
    count = stored.key.shape[1]
    to = slice(slot, slot + count)
    slabs = page.view(layout.heads, layout.head_bytes)
    keys, values, scales = _parts(layout, slabs)
    key = stored.key
    if layout.width % layout.pair:
        key = torch.nn.functional.pad(key, (0, layout.pair - layout.width % layout.pair))
    keys[:, :, to] = key.view(layout.heads, count, -1, layout.pair).transpose(1, 2)
    values[:, to, : layout.value_width] = stored.value
    values[:, to, layout.value_width :] = 0
    loose = stored.value
    if scales is not None:
        assert stored.key_scale is not None
        assert stored.value_scale is not None
        scales[:, 0, to], scales[:, 1, to] = stored.key_scale, stored.value_scale
        loose = stored.value_scale
    if slot == 0:
        slabs[:, 0] = 0
    slabs[:, 0] |= (~torch.isfinite(loose)).flatten(1).any(1).to(torch.uint8)


def read(layout: Layout, pages: Tensor) -> Stored:
    """The tokens of pages (count, page_bytes) that follow one another: count × 64 of them."""
    count = pages.shape[0]
    keys, values, scales = _parts(layout, pages.view(count * layout.heads, layout.head_bytes))

    def in_order(part: Tensor) -> Tensor:
        return part.unflatten(0, (count, layout.heads)).transpose(0, 1).flatten(1, 2)

    key = in_order(keys.transpose(1, 2).flatten(2))[..., : layout.width]
    value = in_order(values)[..., : layout.value_width]
    if scales is None:
        return Stored(key, value, None, None)
    return Stored(key, value, in_order(scales[:, 0]), in_order(scales[:, 1]))


def _parts(layout: Layout, slabs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Views of slabs (s, head_bytes): keys (s, ⌈width/n⌉, 64, n), values (s, 64, row), scales (s, 2, 64)."""
    keys = slabs[:, layout.keys_at : layout.values_at].view(layout.dtype)
    values = slabs[:, layout.values_at :].view(layout.dtype)
    scales = None
    if layout.dtype is torch.int8:
        scales = slabs[:, _LINE : layout.keys_at].view(torch.float32).unflatten(1, (2, PAGE))
    return keys.unflatten(1, (-1, PAGE, layout.pair)), values.unflatten(1, (PAGE, layout.row)), scales
