"""Weight formats: numbers, and blocks of quantized numbers as they lie in a GGUF file; unpacked and packed by numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, complaint
from ..shapes import Float, Int

_CHUNK = 1 << 22  # elements that are unpacked at a time: memory beyond the result stays small


@dataclass(frozen=True)
class WeightFormat:
    """How a row of a weight is stored.

    Args:
        name: As in native/src: f32, bf16, f16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k.
        code: The type's number in a GGUF file.
        elements: Numbers in a block.
        nbytes: Bytes of a block.
        unpack: (blocks, nbytes) bytes → (blocks, elements) float32.
        scales: Offsets of the float16 scales of a block.
    """

    name: str
    code: int
    elements: int
    nbytes: int
    unpack: Callable[[np.ndarray], np.ndarray]
    scales: tuple[int, ...] = ()

    @property
    def is_quantized(self) -> bool:
        return self.elements > 1

    def row_bytes(self, columns: int) -> int:
        return columns // self.elements * self.nbytes


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A weight W (rows, columns) in its storage format, for y = Wx; data is a view of a file where it was mapped.

    data: uint8 (rows, row_bytes).
    """

    data: np.ndarray
    format: WeightFormat
    rows: int
    columns: int
    name: str = ""

    @property
    def row_bytes(self) -> int:
        return self.data.shape[1]

    def dense(self, rows: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n columns"]:
        """The matrix, or some of its rows, in float32: a copy."""
        data = self.data if rows is None else self.data[rows.numpy()]
        out = np.empty((len(data), self.columns), dtype=np.float32)
        height = max(1, _CHUNK // self.columns)
        for start in range(0, len(data), height):
            blocks = data[start : start + height].reshape(-1, self.format.nbytes)
            out[start : start + height] = self.format.unpack(blocks).reshape(-1, self.columns)
        return torch.from_numpy(out)

    def part(self, rows: slice | np.ndarray) -> PackedMatrix:
        """Some of the rows: a view of those of a slice, otherwise a copy."""
        data = self.data[rows]
        return PackedMatrix(data, self.format, len(data), self.columns, self.name)

    def transposed(self) -> PackedMatrix:
        """The transpose of a matrix of float numbers: a copy."""
        numbers = self.data.reshape(self.rows, self.columns, self.format.nbytes).swapaxes(0, 1)
        data = np.ascontiguousarray(numbers).reshape(self.columns, -1)
        return PackedMatrix(data, self.format, self.columns, self.rows, self.name)

    def is_finite(self) -> bool:
        """Whether all numbers are finite; of blocks, only their scales are read."""
        if not self.format.is_quantized:
            return bool(self.dense().isfinite().all())
        blocks = self.data.reshape(-1, self.format.nbytes)
        return all(bool(np.isfinite(_half(blocks, at)).all()) for at in self.format.scales)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 number at a byte of each block, as float32 (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(bytes_: np.ndarray) -> np.ndarray:
    """Low nibbles, then high nibbles, of each row."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _five_bits(bytes_: np.ndarray) -> np.ndarray:
    """Numbers of five bits, as float32: the highest bits of 32 numbers in four bytes, then their nibbles."""
    high = np.unpackbits(np.ascontiguousarray(bytes_[:, :4]), axis=1, bitorder="little") << 4
    return (_nibbles(bytes_[:, 4:]) | high).astype(np.float32)


def _k_blocks(blocks: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Numbers (blocks, 8, 32) times their scales less their minima, of six bits each in 12 bytes."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = _half(blocks, 0) * np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = _half(blocks, 2) * np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return numbers * scales[:, :, None] - minima[:, :, None]


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _k_blocks(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    numbers = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _k_blocks(blocks, numbers | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    numbers = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)
    return numbers * scales[:, :, None]


_ALL = (
    WeightFormat("f32", 0, 1, 4, lambda b: b.view(np.float32)),
    WeightFormat("f16", 1, 1, 2, lambda b: b.view(np.float16).astype(np.float32)),
    WeightFormat("bf16", 30, 1, 2, lambda b: (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)),
    WeightFormat("q8_0", 8, 32, 34, lambda b: b[:, 2:].view(np.int8) * _half(b, 0), (0,)),
    WeightFormat("q4_0", 2, 32, 18, lambda b: (_nibbles(b[:, 2:]).astype(np.float32) - 8) * _half(b, 0), (0,)),
    WeightFormat("q4_1", 3, 32, 20, lambda b: _nibbles(b[:, 4:]) * _half(b, 0) + _half(b, 2), (0, 2)),
    WeightFormat("q5_0", 6, 32, 22, lambda b: (_five_bits(b[:, 2:]) - 16) * _half(b, 0), (0,)),
    WeightFormat("q5_1", 7, 32, 24, lambda b: _five_bits(b[:, 4:]) * _half(b, 0) + _half(b, 2), (0, 2)),
    WeightFormat("q4_k", 12, 256, 144, _q4_k, (0, 2)),
    WeightFormat("q5_k", 13, 256, 176, _q5_k, (0, 2)),
    WeightFormat("q6_k", 14, 256, 210, _q6_k, (208,)),
)
FORMATS = {each.name: each for each in _ALL}
FORMAT_OF_CODE = {each.code: each for each in _ALL}


def _pack_q8_0(x: np.ndarray) -> list[np.ndarray]:
    scale = np.abs(x).max(1, keepdims=True) / 127
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(scale == 0, 0, x * (1 / scale))
    # Half away from zero, as in ggml.
    return [scale.astype(np.float16), (np.sign(numbers) * np.floor(np.abs(numbers) + 0.5)).astype(np.int8)]


def _pack_q4_1(x: np.ndarray) -> list[np.ndarray]:
    low = x.min(1, keepdims=True)
    scale = (x.max(1, keepdims=True) - low) / 15
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(scale == 0, 0, (x - low) * (1 / scale))
    numbers = np.clip(np.trunc(numbers + 0.5), 0, 15).astype(np.uint8)
    return [scale.astype(np.float16), low.astype(np.float16), numbers[:, :16] | numbers[:, 16:] << 4]


_PACKERS = {"q8_0": _pack_q8_0, "q4_1": _pack_q4_1}
PACKED = tuple(_PACKERS)


def pack(matrix: PackedMatrix, name: str) -> PackedMatrix:
    """Quantize a matrix of float numbers to blocks of q8_0 or q4_1, rounded as ggml does; a copy."""
    target = FORMATS[name]
    if matrix.format.is_quantized or matrix.columns % target.elements:
        given = f"{name} for {matrix.name}, {matrix.format.name} of {matrix.columns} columns"
        wanted = f"float numbers in rows of a multiple of {target.elements}"
        raise OptionError(complaint("weights", given, wanted, "leave weights= out: formats of the file are kept"))
    data = np.empty((matrix.rows, target.row_bytes(matrix.columns)), dtype=np.uint8)
    height = max(1, _CHUNK // matrix.columns)
    for start in range(0, matrix.rows, height):
        rows = torch.arange(start, min(matrix.rows, start + height))
        numbers = matrix.dense(rows).numpy()
        if not np.isfinite(numbers).all() or np.abs(numbers).max() > np.finfo(np.float16).max:
            hint = "the scale of a block is a float16"
            raise OptionError(complaint("weights", f"{matrix.name} with numbers beyond float16", "finite ones", hint))
        parts = _PACKERS[name](numbers.reshape(-1, target.elements))
        packed = np.concatenate([part.view(np.uint8) for part in parts], axis=1)
        data[start : start + height] = packed.reshape(len(rows), -1)
    return PackedMatrix(data, target, matrix.rows, matrix.columns, matrix.name)
