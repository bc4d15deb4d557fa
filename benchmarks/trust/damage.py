"""Ways to damage a safetensors file."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """(header, the bytes after it)."""
    blob = path.read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    return json.loads(blob[8 : 8 + size]), blob[8 + size :]


def put(path: Path, header: dict[str, Any] | str, body: bytes) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _tensors(header: dict[str, Any]) -> list[str]:
    names = [name for name in header if name != "__metadata__"]
    return sorted(names, key=lambda name: header[name]["data_offsets"])


def truncated(path: Path) -> None:
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) * 3 // 4])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])


def overlapping(path: Path) -> None:
    """The second tensor starts one number too early."""
    header, body = parts(path)
    second = header[_tensors(header)[1]]["data_offsets"]
    second[0], second[1] = second[0] - 4, second[1] - 4
    put(path, header, body)


def twice(path: Path) -> None:
    """A name that occurs twice with the same entry."""
    header, body = parts(path)
    first = _tensors(header)[0]
    text = json.dumps(header)
    put(path, f"{text[:-1]}, {json.dumps(first)}: {json.dumps(header[first])}}}", body)


def extra_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 64)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": [1.0] * 100}))


def missing(path: Path) -> None:
    """Remove the last tensor and its bytes."""
    header, body = parts(path)
    last = _tensors(header)[-1]
    start, _ = header.pop(last)["data_offsets"]
    put(path, header, body[:start])


def too_many(path: Path) -> None:
    header, body = parts(path)
    header["unknown.weight"] = {"dtype": "F32", "shape": [2], "data_offsets": [len(body), len(body) + 8]}
    put(path, header, body + b"\0" * 8)


def not_a_number(path: Path) -> None:
    header, body = parts(path)
    at = next(header[name]["data_offsets"][0] for name in _tensors(header) if header[name]["dtype"] == "F32")
    put(path, header, body[:at] + struct.pack("<f", float("nan")) + body[at + 4 :])


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere.safetensors"))


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    """A link to a pipe without a writer."""
    path.unlink()
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to(path.with_name("pipe"))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": truncated, "empty": empty, "a header of 2^63": huge_header, "overlapping offsets": overlapping,
    "a name twice": twice, "bytes after the end": extra_bytes, "a pickle": pickled, "a tensor missing": missing,
    "a tensor too many": too_many, "NaN in the weights": not_a_number, "a link to nowhere": dangling_link,
    "a link to itself": link_to_itself, "a link to /dev/zero": endless_link, "a link to a pipe": pipe,
}  # fmt: skip
