"""Damaged copies of valid files: wrong headers, changed bytes, missing ends."""

from __future__ import annotations

import json
import pickle
import random
import struct
from typing import Any

from .chats import other_value

NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 16, 64, 127, 255, 256, -1, -8, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 48,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 0.5, 1e308, -0.0,
)  # fmt: skip
KINDS = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64", "f32", "")
WORDS = (
    "", "0", "1", "2", "-1", "64", "1e3", "٣", " 1", "9" * 18, "9" * 19, "9" * 5000, "float32", "float16", "bfloat16",
    "int8", "float64", "qkv.KVCache", "qkv.LinearState", "qkv.nn", "Softmax()", "key", "value", "sums", "keep", "\x00",
    "../x", "Decoder", "Attention", "Rotary", "polynomial", "positive_random", "function", "sink", "elu1", "{}", "[]",
)  # fmt: skip
NAMES = (
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "key",
    "value",
    "class",
    "options",
    "layers",
    "heads",
    "width",
)
SAME_SIZE = {"F32": "I32", "F16": "BF16", "BF16": "I16", "I64": "F64", "I8": "U8", "BOOL": "I8", "F64": "I64"}


class _Trap:
    """Code that a pickle reader would run."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pickle was run')",)


TRAP = pickle.dumps(_Trap())


def leaf(chance: random.Random) -> Any:
    return chance.choice(
        (*chance.choices(NUMBERS, k=3), chance.choice(WORDS), chance.choice(KINDS), None, True, [], {})
    )


def changed_json(chance: random.Random, data: Any) -> Any:
    return other_value(chance, data, leaf, NAMES)


def broken(chance: random.Random, data: bytes) -> bytes:
    """A damaged copy of a safetensors file, a GGUF file or JSON."""
    how = chance.random()
    if how < 0.2:
        return spoiled(chance, data)
    if data[:4] == b"GGUF":
        return broken_gguf(chance, data)
    if data[:1] == b"{":
        return broken_json(chance, data)
    return broken_safetensors(chance, data)


def spoiled(chance: random.Random, data: bytes) -> bytes:
    """Damage that ignores the format."""
    match chance.randrange(6):
        case 0:
            return data[: chance.randint(0, len(data))]
        case 1:
            return data + chance.choice((b"\0", b"x", bytes(4096), data))
        case 2:
            at = chance.randint(0, len(data))
            return data[:at] + data[at + chance.choice((1, 2, 8)) :]
        case 3:
            return chance.choice((TRAP, b"", b"PK\x03\x04" + data, b"\x80\x02" + data, bytes(8) + data, data[8:]))
        case _:
            changed = bytearray(data)
            for _ in range(chance.choice((1, 1, 2, 5))):
                if changed:
                    changed[chance.randrange(len(changed))] = chance.choice((0, 0xFF, 0x7F, chance.randrange(256)))
            return bytes(changed)


def broken_json(chance: random.Random, data: bytes) -> bytes:
    found = json.loads(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        found = changed_json(chance, found)
    text = json.dumps(found)
    if chance.random() < 0.05:
        text = '{"a":' * 3000 + text + "}" * 3000
    return text.encode("utf-8", "replace")


def broken_safetensors(chance: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    tensors = [name for name in header if name != "__metadata__"]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name = chance.choice(tensors)
        entry = header.get(name)
        match chance.randrange(9):
            case 0:
                header = changed_json(chance, header)
            case 1 if isinstance(entry, dict) and isinstance(entry.get("shape"), list):
                # Another shape with the same number of elements.
                header[name] = {**entry, "shape": chance.choice((entry["shape"][::-1], [1, *entry["shape"]]))}
            case 2 if isinstance(entry, dict):
                header[name] = {**entry, "dtype": SAME_SIZE.get(str(entry.get("dtype")), "U8")}
            case 3:
                header["__metadata__"] = changed_json(chance, header.get("__metadata__"))
            case 4 if isinstance(header.get("__metadata__"), dict):
                _in_metadata(chance, header["__metadata__"])
            case 5:
                other = chance.choice(tensors)
                header[name], header[other] = header.get(other), entry
            case 6 if body:
                # A number in the middle of a tensor: a length, a start or a weight.
                at = chance.randrange(0, len(body), 8)
                body = body[:at] + struct.pack("<q", chance.choice((-1, 1, 3, 64, 1 << 20, 1 << 62))) + body[at + 8 :]
            case 7:
                header = {key: value for key, value in header.items() if key != name}
            case _:
                header[chance.choice(WORDS)] = entry
        if not isinstance(header, dict):
            break
    text = json.dumps(header).encode("utf-8", "replace")
    match chance.randrange(12):
        case 0:
            text = text[:-1] + b", " + text[1:]  # every name twice
        case 1:
            text += b" " * chance.choice((1, 7, 8, 70_000))
        case 2:
            return struct.pack("<Q", chance.choice((0, 1, size + 1, 1 << 20, 1 << 40, 1 << 63))) + text + body
        case 3:
            text = text.replace(b"[", b"[" * chance.choice((2, 200, 20_000)), 1)
    return struct.pack("<Q", len(text)) + text + body


def _in_metadata(chance: random.Random, metadata: dict[str, Any]) -> None:
    """Change an entry of the metadata: a number, a word, or a model's JSON."""
    name = chance.choice([*metadata, "format"])
    try:
        inner = json.loads(metadata.get(name, ""))
    except (ValueError, TypeError):
        inner = None
    if isinstance(inner, dict):
        metadata[name] = json.dumps(changed_json(chance, inner))
    else:
        metadata[name] = chance.choice(WORDS)


def broken_gguf(chance: random.Random, data: bytes) -> bytes:
    """Change lengths and counts in the header, eight bytes each."""
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(4, min(len(data) - 8, 600))
        new = chance.choice(
            (
                struct.pack("<Q", chance.choice((0, 1, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 62, (1 << 64) - 1))),
                struct.pack("<I", chance.choice((0, 1, 4, 8, 9, 12, 13, 1 << 31))),
                bytes([chance.randrange(256)]),
            )
        )
        data = data[:at] + new + data[at + len(new) :]
    return data
