"""A reader of GGUF files: the header is parsed with bounds, and tensors are views of the mapped file.

Layout, little-endian: "GGUF", version, number of tensors, number of metadata; each metadata a name, a type and a value;
each tensor a name, sizes (fastest first), a type and an offset; then, aligned, the numbers.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError, complaint
from .blocks import FORMAT_OF_CODE, PackedMatrix, WeightFormat
from .program import NotCovered

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_NAME = 1 << 10  # bytes; ggml allows 64 for a tensor
_MAX_TEXT = 1 << 24  # bytes of one string; chat templates have some thousands
_MAX_ENTRIES = 1 << 16  # metadata, tensors
_MAX_STRINGS = 1 << 22  # in all arrays together; the largest vocabularies and their merges have less than a quarter
_MIN_ALIGNMENT, _MAX_ALIGNMENT = 8, 1 << 16
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufArray:
    """An array of metadata, read when it is asked for."""

    file: memoryview
    kind: int
    count: int
    start: int

    def numbers(self) -> np.ndarray:
        """The elements, a view of the file; none of an array of text."""
        code, count = ("B", 0) if self.kind == _STRING else (_SCALARS[self.kind], self.count)
        return np.frombuffer(self.file, np.dtype("<" + code), count, self.start)

    def texts(self) -> list[str]:
        """The elements as text; none of an array of numbers."""
        found, data, unpack, at = [], self.file, _LENGTH.unpack_from, self.start
        for _ in range(self.count if self.kind == _STRING else 0):
            stop = at + 8 + unpack(data, at)[0]
            found.append(str(data[at + 8 : stop], "utf-8", "replace"))
            at = stop
        return found


class _Cursor:
    """Reads a mapped file from the start; nothing beyond its end."""

    def __init__(self, name: str, data: memoryview) -> None:
        self.name, self.data, self.at, self.strings = name, data, 0, 0

    def take(self, count: int) -> int:
        """Pass over some bytes; returns where they start."""
        start = self.at
        if count > len(self.data) - start:
            raise damaged(self.name, f"a header that needs {count} bytes at byte {start} of {len(self.data)}")
        self.at = start + count
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code)))[0]

    def text(self, longest: int) -> str:
        length = self.number("Q")
        if length > longest:
            raise damaged(self.name, f"a text of {length} bytes at byte {self.at}")
        start = self.take(length)
        try:
            return bytes(self.data[start : self.at]).decode()
        except UnicodeDecodeError:
            raise damaged(self.name, f"a text at byte {start} that is not UTF-8") from None

    def count(self, what: str) -> int:
        found = self.number("Q")
        if found > _MAX_ENTRIES:
            raise damaged(self.name, f"{found} {what}")
        return found

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _STRING:
            return self.text(_MAX_TEXT)
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise damaged(self.name, f"a value of type {kind} at byte {self.at}")
        return self.number(_SCALARS[kind])

    def array(self) -> GgufArray:
        kind, count = self.number("I"), self.number("Q")
        found = GgufArray(self.data, kind, count, self.at)
        if kind in _SCALARS:
            self.take(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            self.strings += count
            if self.strings > _MAX_STRINGS:
                raise damaged(self.name, f"arrays of {self.strings} texts")
            at, unpack = self.at, _LENGTH.unpack_from
            try:
                for _ in range(count):
                    at += 8 + unpack(self.data, at)[0]
            except (struct.error, OverflowError):
                at = len(self.data) + 1
            self.take(at - self.at)
        else:
            raise damaged(self.name, f"an array of type {kind} at byte {self.at}")
        return found


class _TensorEntry(NamedTuple):
    shape: tuple[int, ...]  # as in torch: rows first
    format: WeightFormat
    start: int
    stop: int


class GgufFile:
    """A mapped GGUF file, versions 2 and 3: metadata, and tensors as matrices.

    The file must not be changed while it is in use: a mapped file that another program truncates ends the process.

    Args:
        path: A regular file.

    Raises:
        OptionError: The file is not a GGUF file, is damaged, or has blocks that are not read here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or path.stat().st_size < 24:
            raise damaged(path.name, "no header: it is empty, truncated or not a regular file")
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._bytes, cursor = np.frombuffer(mapped, np.uint8), _Cursor(path.name, mapped)
        if bytes(cursor.data[: cursor.take(4) + 4]) != _MAGIC:
            raise OptionError(
                complaint("path", f"{path.name}, which is not a GGUF file", "one", "pickles are never read")
            )
        if (version := cursor.number("I")) not in (2, 3):
            raise damaged(path.name, f"version {version}; versions 2 and 3, little-endian, are read")
        tensors = cursor.count("tensors")
        self.metadata: dict[str, Any] = {}
        for _ in range(cursor.count("metadata")):
            key = cursor.text(_MAX_NAME)
            if key in self.metadata:
                raise damaged(path.name, f"{key} twice")
            self.metadata[key] = cursor.value()
        self._tensors = _tensor_entries(cursor, tensors, self.metadata.get("general.alignment", 32))

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def matrix(self, name: str) -> PackedMatrix:
        """A view of a tensor; a vector has one row."""
        entry = self._tensors[name]
        rows, columns = math.prod(entry.shape[:-1]), entry.shape[-1]
        data = self._bytes[entry.start : entry.stop].reshape(rows, -1)
        return PackedMatrix(data, entry.format, rows, columns, name)


def _tensor_entries(cursor: _Cursor, count: int, alignment: Any) -> dict[str, _TensorEntry]:
    """The tensors' headers, checked: known blocks, inside the file, not overlapping."""
    name = cursor.name
    if type(alignment) is not int or not _MIN_ALIGNMENT <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise damaged(name, f"an alignment of {alignment}")
    headers: dict[str, tuple[tuple[int, ...], WeightFormat, int]] = {}
    for _ in range(count):
        key = cursor.text(_MAX_NAME)
        if key in headers:
            raise damaged(name, f"tensor {key} twice")
        dimensions = cursor.number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise damaged(name, f"tensor {key} of {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
        code, offset = cursor.number("I"), cursor.number("Q")
        if code not in FORMAT_OF_CODE:
            read = ", ".join(each.name for each in FORMAT_OF_CODE.values())
            hint = "qkv.hf.load reads more formats and runs the model in transformers"
            raise NotCovered(complaint("path", f"{name} with tensor {key} in blocks of type {code}", read, hint))
        if 0 in shape or math.prod(shape) >= 1 << 62 or shape[-1] % FORMAT_OF_CODE[code].elements:
            raise damaged(name, f"tensor {key} of shape {shape} in {FORMAT_OF_CODE[code].name}")
        if offset % alignment:
            raise damaged(name, f"tensor {key} at offset {offset}, which is not aligned")
        headers[key] = shape, FORMAT_OF_CODE[code], offset
    first = -(-cursor.at // alignment) * alignment
    entries, end = {}, 0
    for key, (shape, layout, offset) in sorted(headers.items(), key=lambda item: item[1][2]):
        stop = offset + math.prod(shape[:-1]) * layout.row_bytes(shape[-1])
        if stop > len(cursor.data) - first:
            raise damaged(name, f"tensor {key} that ends {stop - len(cursor.data) + first} bytes after the file")
        if offset < end:
            raise damaged(name, f"tensor {key} that overlaps another one")
        entries[key], end = _TensorEntry(shape, layout, first + offset, first + stop), stop
    return entries


def damaged(name: str, what: str) -> OptionError:
    hint = "the file is truncated or damaged, or another program wrote it"
    return OptionError(complaint("path", f"{name} with {what}", "a valid file", hint))
