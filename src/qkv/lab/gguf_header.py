"""The sizes of a model in a GGUF file, from its first bytes: nothing of the weights is read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import OptionError, complaint

_MAGIC = b"GGUF"
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
# What no honest header exceeds before its tokenizer: a damaged length must not fill the memory.
_LONGEST_TEXT, _LONGEST_LIST, _MOST_ENTRIES = 1 << 16, 1 << 12, 1 << 10


def read_header(path: Path) -> dict[str, Any]:
    """The entries that stand before the tokenizer's, by name: "general.architecture", "llama.block_count" and so on."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise OptionError(complaint(path.name, "another beginning", "a GGUF file"))
            version, _, count = _unpacked(file, "<IQQ")
            if version not in (2, 3):
                raise OptionError(complaint(path.name, f"version {version}", "GGUF of version 2 or 3"))
            found: dict[str, Any] = {}
            for _ in range(min(count, _MOST_ENTRIES)):
                name = _text(file)
                if name.startswith("tokenizer."):
                    break
                found[name] = _value(file, *_unpacked(file, "<I"))
            return found
    except (OSError, struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(complaint(path.name, "a header that cannot be read", "a GGUF file")) from error


def _unpacked(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _text(file: BinaryIO) -> str:
    (length,) = _unpacked(file, "<Q")
    if length > _LONGEST_TEXT:
        raise ValueError(length)
    return file.read(length).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        of, length = _unpacked(file, "<IQ")
        if length > _LONGEST_LIST or of == _LIST:
            raise ValueError(length)
        return [_value(file, of) for _ in range(length)]
    return _unpacked(file, _NUMBERS[kind])[0]
