"""Checkpoint folders of transformers: their configuration, index and tensor headers, validated without transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..cache.files import MAX_MODEL_HEADER, check_header
from ..errors import OptionError, complaint

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_ADAPTER = "adapter_config.json"
_MAX_JSON_BYTES = 64 << 20  # the index of the largest known model has a fiftieth of this
# Entries of a configuration that are numbers of modules.
_COUNT_NAMES = re.compile(r"(layers?|blocks|depths?|experts)$")
_ALWAYS_ALLOWED = 1000  # modules, which are built quickly


class TensorEntry(NamedTuple):
    """The header of a tensor; dtype is safetensors' name."""

    file: str
    dtype: str
    shape: tuple[int, ...]


class Checkpoint(NamedTuple):
    """A validated checkpoint folder."""

    folder: Path
    config: dict[str, Any]
    shards: dict[str, Any] | None  # the index; None for a single file
    files: list[str]
    tensors: dict[str, TensorEntry]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Validate a folder; read its configuration, index and tensor headers, but no tensors."""
    if not (folder / CONFIG).is_file():
        if folder.suffix in _PICKLES:
            raise _pickle_error(folder.name)
        hint = "load a GGUF file with AutoModelForCausalLM.from_pretrained(folder, gguf_file=name) first"
        raise source_error(f"{folder} without {CONFIG}", "a checkpoint folder of transformers", hint)
    single = (folder / WEIGHTS).is_file()
    if not single and not (folder / INDEX).is_file():
        if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES):
            raise _pickle_error(pickles[0])
        raise source_error(f"{folder} without weights", f"{WEIGHTS} or {INDEX}")
    config = read_json(folder / CONFIG)
    index = None if single else read_json(folder / INDEX)
    weight_map = None if index is None else _weight_map(index)
    files = [WEIGHTS] if weight_map is None else sorted(set(weight_map.values()))
    tensors: dict[str, TensorEntry] = {}
    for name in files:
        for key, entry in _headers(folder / name).items():
            if key in tensors or (weight_map is not None and weight_map.get(key) != name):
                raise damaged_file(name, f"tensor {key}, which belongs to another file")
            tensors[key] = entry
    for key in weight_map or ():
        if key not in tensors:
            raise damaged_file(INDEX, f"tensor {key}, which no file has")
    named = config.get("transformers_weights")
    if named not in (None, WEIGHTS if single else INDEX):
        raise damaged_file(CONFIG, f"weights in {named!r}, which is not a file of the checkpoint")
    if (folder / _ADAPTER).exists():
        hint = "merge it into the weights first: call merge_and_unload() of peft, then save_pretrained()"
        raise source_error(f"{folder} with an adapter", f"a folder without {_ADAPTER}", hint)
    check_counts(config, len(tensors))
    return Checkpoint(folder, config, index, files, tensors)


def check_counts(config: dict[str, Any], tensors: int) -> None:
    """Refuse more layers than tensors: every layer has tensors, and building them would exhaust time and memory."""
    most, waiting = max(tensors, _ALWAYS_ALLOWED), [config]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif isinstance(value, int) and value > most and _COUNT_NAMES.search(name):
                raise damaged_file(CONFIG, f"{name} above {most}, but {tensors} tensors")


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    """The index: from tensors to files."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise damaged_file(INDEX, "no weight_map")
    for name in weight_map.values():
        # An index must not refer to files outside its folder.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise damaged_file(INDEX, f"the file name {name!r}")
    return weight_map


def _headers(path: Path) -> dict[str, TensorEntry]:
    with _open_safetensors(path) as file:
        slices = ((key, file.get_slice(key)) for key in file.keys())  # noqa: SIM118 - safe_open is no mapping
        return {key: TensorEntry(path.name, part.get_dtype(), tuple(part.get_shape())) for key, part in slices}


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    with _open_safetensors(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        check_header(path, MAX_MODEL_HEADER)
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except FileNotFoundError as error:
        raise damaged_file(INDEX, f"{path.name}, which does not exist") from error
    except (SafetensorError, RuntimeError) as error:  # torch raises RuntimeError for impossible sizes
        raise damaged_file(path.name, one_line(error)) from error


def read_json(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > _MAX_JSON_BYTES:
        raise damaged_file(path.name, f"{size} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged_file(path.name, f"text that is not JSON: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise damaged_file(path.name, f"a {type(found).__name__} at the top")
    return found


def one_line(error: BaseException) -> str:
    """The message of an error on one line."""
    text = str(error).strip()
    return " ".join(text.split()) if text else type(error).__name__


def source_error(given: str, wanted: str, hint: str = "") -> OptionError:
    return OptionError(complaint("source", given, wanted, hint))


def damaged_file(name: str, what: str) -> OptionError:
    return source_error(f"{name} with {what}", "a valid checkpoint", "the file is damaged, or another program wrote it")


def _pickle_error(name: str) -> OptionError:
    hint = "a pickle can run code; convert it to safetensors with save_pretrained()"
    return source_error(f"{name}, a pickle", f"a folder with {WEIGHTS} or {INDEX}", hint)
