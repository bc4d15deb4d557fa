"""Where a model's weights come from: a GGUF file, or a folder with config.json and safetensors; both are mapped."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError, OptionTypeError, complaint
from ..hf.folders import open_checkpoint
from .blocks import FORMATS, PackedMatrix
from .gguf import GgufFile

_FORMAT_OF_DTYPE = {"F32": FORMATS["f32"], "F16": FORMATS["f16"], "BF16": FORMATS["bf16"]}
_WANTED = "a GGUF file, or a folder with config.json and safetensors"


class SafetensorsFolder:
    """A checkpoint folder of transformers: its configuration, and tensors as matrices that are views of mapped files.

    Raises:
        OptionError: The folder is not a checkpoint, or a file is damaged.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        self._checkpoint = open_checkpoint(path)
        self.config: dict[str, Any] = self._checkpoint.config
        self._opened = functools.cache(lambda file: safe_open(path / file, framework="pt", device="cpu"))

    def names(self) -> list[str]:
        return list(self._checkpoint.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.tensors[name].shape

    def matrix(self, name: str) -> PackedMatrix:
        """A view of a tensor; a vector has one row."""
        entry = self._checkpoint.tensors[name]
        if entry.dtype not in _FORMAT_OF_DTYPE or 0 in entry.shape or not entry.shape:
            given = f"{entry.file} with tensor {name} of {entry.dtype} and shape {entry.shape}"
            raise OptionError(complaint("path", given, "numbers in float32, float16 or bfloat16"))
        tensor = self._opened(entry.file).get_tensor(name).reshape(-1, entry.shape[-1])
        layout = _FORMAT_OF_DTYPE[entry.dtype]
        return PackedMatrix(tensor.view(torch.uint8).numpy(), layout, len(tensor), entry.shape[-1], name)


Source = GgufFile | SafetensorsFolder


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a GGUF file, a folder with one, or a folder of safetensors; no weights are read."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionTypeError(complaint("path", repr(path), _WANTED))
    location = Path(path)
    if not location.exists():
        hint = "qkv downloads nothing"
        raise OptionError(complaint("path", f"{str(path)!r}, which does not exist", _WANTED, hint))
    if (location / "config.json").is_file():
        return SafetensorsFolder(location)
    if location.is_dir():
        found = sorted(each for each in location.glob("*.gguf") if each.is_file())
        if len(found) != 1:
            hint = f"name one of them, for example {found[0].name}" if found else "pickles are never read"
            raise OptionError(complaint("path", f"{location} with {len(found)} GGUF files", _WANTED, hint))
        location = found[0]
    return GgufFile(location)
