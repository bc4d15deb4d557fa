"""Checkpoint folders of transformers: config.json and safetensors, read with care and written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from ..cache.files import MODELS_HEADER, _through_to_disk, check_header
from ..errors import OptionError, complaint

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Tokenizers, templates and generation options; no code, no weights, and no model card: it is about another model.
_COPIED = (".json", ".txt", ".model", ".jinja")
_LEGAL = ("license", "licence", "notice")
_ADAPTER = "adapter_config.json"
_MOST_BYTES = 64 << 20  # of JSON; the index of the largest known model has a fiftieth of this
# Entries of a configuration that say how many modules a model is made of.
_COUNTS = re.compile(r"(layers?|blocks|depths?|experts)$")
_FEW = 1000  # modules that nobody has to wait for


class Entry(NamedTuple):
    """What a file says of one of its tensors; dtype is safetensors' word for it."""

    file: str
    dtype: str
    shape: tuple[int, ...]


class Checkpoint(NamedTuple):
    """A folder whose files were found whole."""

    folder: Path
    config: dict[str, Any]
    shards: dict[str, Any] | None  # their index; None for one file
    files: list[str]
    tensors: dict[str, Entry]


def opened(folder: Path) -> Checkpoint:
    """The configuration, the names of the files, and the headers of all tensors; no number is read."""
    if not (folder / CONFIG).is_file():
        if folder.suffix in _PICKLES:
            raise _pickle(folder.name)
        hint = "a GGUF file is loaded first: AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)"
        raise refused(f"{folder}, which has no {CONFIG}", "a checkpoint folder of transformers", hint)
    single = (folder / WEIGHTS).is_file()
    if not single and not (folder / INDEX).is_file():
        for path in sorted(folder.iterdir()):
            if path.suffix in _PICKLES:
                raise _pickle(path.name)
        raise refused(f"{folder}, which has no weights", f"{WEIGHTS} or {INDEX}")
    config = _json(folder / CONFIG)
    index = None if single else _json(folder / INDEX)
    where = None if index is None else _where(index)
    files = [WEIGHTS] if where is None else sorted(set(where.values()))
    tensors: dict[str, Entry] = {}
    for name in files:
        for key, entry in _headers(folder / name).items():
            if key in tensors or (where is not None and where.get(key) != name):
                raise damaged(name, f"{key}, which belongs to another file")
            tensors[key] = entry
    for key in where or ():
        if key not in tensors:
            raise damaged(INDEX, f"{key}, which no file has")
    named = config.get("transformers_weights")
    if named not in (None, WEIGHTS if single else INDEX):
        raise damaged(CONFIG, f"weights in {named!r}, a file that nobody looked at")
    if (folder / _ADAPTER).exists():
        hint = "merge it into the weights first: merge_and_unload() of peft, then save_pretrained"
        raise refused(f"{folder}, with an adapter beside its weights", f"a folder without {_ADAPTER}", hint)
    check_counts(config, len(tensors))
    return Checkpoint(folder, config, index, files, tensors)


def check_counts(config: dict[str, Any], tensors: int) -> None:
    """Each layer has tensors of its own: more layers than tensors would only be a way to take up time and memory."""
    waiting: list[dict[str, Any]] = [config]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif isinstance(value, int) and value > (most := max(tensors, _FEW)) and _COUNTS.search(name):
                raise damaged(CONFIG, f"{name} beyond {most}, and {tensors} tensors")


def _where(index: dict[str, Any]) -> dict[str, str]:
    """Which file has a tensor, as the index says."""
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise damaged(INDEX, "no weight_map")
    for name in where.values():
        # A name is no path: an index may not point out of its folder.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise damaged(INDEX, f"a file {name!r}")
    return where


def _headers(path: Path) -> dict[str, Entry]:
    def look(file: Any) -> dict[str, Entry]:
        slices = ((key, file.get_slice(key)) for key in file.keys())  # noqa: SIM118 - safe_open is no mapping
        return {key: Entry(path.name, part.get_dtype(), tuple(part.get_shape())) for key, part in slices}

    return _read(path, look)


def tensors_of(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its metadata."""

    def take(file: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118

    return _read(path, take)


def _read(path: Path, look: Any) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        check_header(path, MODELS_HEADER)
        with safe_open(path, framework="pt", device="cpu") as file:
            return look(file)
    except FileNotFoundError as error:
        raise damaged(INDEX, f"{path.name}, a file that is not there") from error
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch, of sizes that no tensor can have
        raise damaged(path.name, line(error)) from error


def _json(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise damaged(path.name, f"{size} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path.name, f"text that is not JSON: {line(error)}") from error
    if not isinstance(found, dict):
        raise damaged(path.name, f"a {type(found).__name__} at the top")
    return found


def write_json(path: Path, what: dict[str, Any]) -> None:
    path.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _through_to_disk(path)


def copy_rest(folder: Path, part: Path) -> None:
    """Everything beside configuration and weights that says how the model is used."""
    for path in folder.iterdir():
        wanted = path.suffix in _COPIED or path.name.lower().startswith(_LEGAL)
        if wanted and path.is_file() and not path.name.endswith(".index.json") and not (part / path.name).exists():
            shutil.copy(path, part / path.name)
            _through_to_disk(part / path.name)


def free(target: Any) -> Path:
    """A place for a new folder."""
    place = Path(os.path.abspath(target))
    if place.is_symlink() or (place.exists() and (not place.is_dir() or any(place.iterdir()))):
        given = f"{target}, which is there already"
        raise OptionError(complaint("target", given, "a folder that is new or empty", "nothing is overwritten"))
    return place


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A hidden folder beside the target that becomes the target at the end; after an error nothing is left of it.

    It is locked while its process lives. One without a lock was left by a process that was killed, and is removed.
    """
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.qkv-????????.part"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)
    part = target.with_name(f".{target.name}.qkv-{secrets.token_hex(4)}.part")
    part.mkdir()
    handle = os.open(part, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield part
        os.fsync(handle)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(handle)
    _through_to_disk(target.parent)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' reports and progress bars: what matters in them is raised."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip()
    return " ".join(text.split()) if text else type(error).__name__


def refused(given: str, wanted: str, hint: str = "") -> OptionError:
    return OptionError(complaint("source", given, wanted, hint))


def damaged(name: str, what: str) -> OptionError:
    return refused(f"{name} with {what}", "the files of a checkpoint", "one is damaged, or something else wrote it")


def _pickle(name: str) -> OptionError:
    hint = "reading a pickle can run anything; whoever made it can write safetensors with save_pretrained"
    return refused(f"{name}, a pickle", f"a folder with {WEIGHTS} or {INDEX}", hint)
