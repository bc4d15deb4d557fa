"""Checkpoint folders of transformers: validated, written atomically, and loaded with `load`."""

from __future__ import annotations

import contextlib
import copy
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
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging

from ..cache.files import MAX_MODEL_HEADER, check_header, sync_to_disk
from ..errors import DtypeError, OptionError, OptionTypeError, QkvError, complaint
from ..inputs import _DTYPE_SET
from .interface import NAME, register

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Tokenizers, templates and generation options, but no code, no weights and no model card.
_COPIED = (".json", ".txt", ".model", ".jinja")
_LICENCE_FILES = ("license", "licence", "notice")
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
        for path in sorted(folder.iterdir()):
            if path.suffix in _PICKLES:
                raise _pickle_error(path.name)
        raise source_error(f"{folder} without weights", f"{WEIGHTS} or {INDEX}")
    config = _read_json(folder / CONFIG)
    index = None if single else _read_json(folder / INDEX)
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
    waiting: list[dict[str, Any]] = [config]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif (
                isinstance(value, int) and value > (most := max(tensors, _ALWAYS_ALLOWED)) and _COUNT_NAMES.search(name)
            ):
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
    def read_headers(file: Any) -> dict[str, TensorEntry]:
        slices = ((key, file.get_slice(key)) for key in file.keys())  # noqa: SIM118 - safe_open is no mapping
        return {key: TensorEntry(path.name, part.get_dtype(), tuple(part.get_shape())) for key, part in slices}

    return _read_safetensors(path, read_headers)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""

    def read_all(file: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118

    return _read_safetensors(path, read_all)


def _read_safetensors(path: Path, read: Any) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        check_header(path, MAX_MODEL_HEADER)
        with safe_open(path, framework="pt", device="cpu") as file:
            return read(file)
    except FileNotFoundError as error:
        raise damaged_file(INDEX, f"{path.name}, which does not exist") from error
    except (SafetensorError, RuntimeError) as error:  # torch raises RuntimeError for impossible sizes
        raise damaged_file(path.name, one_line(error)) from error


def _read_json(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > _MAX_JSON_BYTES:
        raise damaged_file(path.name, f"{size} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged_file(path.name, f"text that is not JSON: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise damaged_file(path.name, f"a {type(found).__name__} at the top")
    return found


def write_json(path: Path, what: dict[str, Any]) -> None:
    path.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sync_to_disk(path)


def copy_other_files(folder: Path, part: Path) -> None:
    """Copy tokenizer files, generation options and licences."""
    for path in folder.iterdir():
        wanted = path.suffix in _COPIED or path.name.lower().startswith(_LICENCE_FILES)
        if wanted and path.is_file() and not path.name.endswith(".index.json") and not (part / path.name).exists():
            shutil.copy(path, part / path.name)
            sync_to_disk(part / path.name)


def check_target(target: Any) -> Path:
    """Check that the target does not exist or is an empty folder."""
    location = Path(os.path.abspath(target))
    if location.is_symlink() or (location.exists() and (not location.is_dir() or any(location.iterdir()))):
        given = f"{target}, which exists"
        raise OptionError(complaint("target", given, "a new or empty folder", "nothing is overwritten"))
    return location


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A hidden folder next to the target, renamed to the target at the end and removed after an error.

    It is locked while its process runs. Unlocked ones are left over from killed processes and are removed.
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
    sync_to_disk(target.parent)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' reports and progress bars; errors are raised instead."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


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


_GGUF_MAGIC = b"GGUF"
_MIN_TENSOR_HEADER = 32  # bytes that a tensor takes in a header


class Loaded(NamedTuple):
    """A model in eval mode and its tokenizer."""

    model: PreTrainedModel
    tokenizer: Any


def load(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    implementation: str = NAME,
    generates: bool = True,
) -> Loaded:
    """Load a model and its tokenizer from local files; nothing is downloaded, and pickles are refused.

    Args:
        path: A folder with config.json and safetensors, a .gguf file, or a folder with one.
        dtype: The dtype that the model computes in.
        implementation: "qkv", or "sdpa" or "eager" for comparison.
        generates: Whether to load the model with its language-model head; if False, only its layers, also of encoders.

    Returns:
        A `Loaded`: the model in eval mode and the tokenizer.

    Raises:
        OptionError: A file is damaged, weights are missing, unexpected, NaN or of another shape, or an option is wrong.
        OptionTypeError, DtypeError: An argument has a wrong type.
    """
    register()
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionTypeError(complaint("model", repr(path), "the path of a folder or of a GGUF file"))
    if dtype not in _DTYPE_SET:
        raise DtypeError(
            complaint("dtype", dtype, "torch.float32, float64, bfloat16 or float16", "the model computes in it")
        )
    if implementation not in (NAME, "sdpa", "eager"):
        raise OptionError(complaint("implementation", repr(implementation), f"{NAME!r}, 'sdpa' or 'eager'"))
    location = Path(path)
    if not location.exists():
        hint = "qkv downloads nothing; save_pretrained() writes such a folder"
        raise _model_error(f"{str(path)!r}, which does not exist", hint)
    gguf = _find_gguf(location)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf is None:
        folder, files = location, [location / name for name in open_checkpoint(location).files]
    else:
        _check_gguf_arrays(gguf)
        folder, files, options["gguf_file"] = gguf.parent, [gguf], gguf.name
    with quiet():
        config = _one_line_errors(
            f"{location}: its configuration", lambda: AutoConfig.from_pretrained(folder, **options)
        )
        if gguf is not None:
            check_counts(config.to_dict(), tensors := _gguf_tensor_count(gguf))
            # transformers builds a table of all layers for each module: hours for a header with a false count.
            if isinstance(layers := getattr(config, "num_hidden_layers", 0), int) and layers > tensors:
                raise _model_error(f"{location} with {layers} layers and {tensors} tensors", "its header is damaged")
        with_head = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind = with_head if generates else AutoModel
        stored = sum(file.stat().st_size for file in files)
        _one_line_errors(f"{location}: its {CONFIG}", lambda: _check_size(kind, config, implementation, stored))
        # Passed on, since reading the configuration of a GGUF file again would take most of the time.
        options["config"] = config
        tokenizer = _one_line_errors(
            f"{location}: its tokenizer", lambda: AutoTokenizer.from_pretrained(folder, **options)
        )
        more = {**options, "dtype": dtype, "attn_implementation": implementation, "output_loading_info": True}
        if gguf is None:
            more["use_safetensors"] = True
        model, info = _one_line_errors(f"{location}: its weights", lambda: kind.from_pretrained(folder, **more))
    # Encoders that were trained without a pooler have no weights for it.
    missing = {key for key in info["missing_keys"] if generates or not key.startswith("pooler.")}
    if missing or info["mismatched_keys"]:
        invalid = sorted(missing) + sorted(str(entry[0]) for entry in info["mismatched_keys"])
        given = f"{location}, in which {len(invalid)} weights are missing or of another shape ({invalid[0]} …)"
        raise _model_error(given, f"its {CONFIG} and its weights are of different models")
    # Without a head, the head's weights are unexpected.
    if generates and (unexpected := sorted(info["unexpected_keys"])):
        given = f"{location} with {len(unexpected)} weights that the model does not have ({unexpected[0]} …)"
        raise _model_error(given, f"its {CONFIG} and its weights are of different models")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and bool(weight.isnan().any()):
            raise _model_error(f"{location} with NaN in {name}", "the download is damaged, or training diverged")
    return Loaded(model.eval(), tokenizer)


def _find_gguf(location: Path) -> Path | None:
    """The GGUF file at a path or in a folder, or None."""
    if location.is_file():
        found = [location]
    elif (location / CONFIG).is_file():
        return None
    else:
        found = sorted(path for path in location.glob("*.gguf") if path.is_file())
        if not found:
            return None
        if len(found) > 1:
            raise _model_error(
                f"{location} with {len(found)} GGUF files", f"name one of them, for example {found[0].name}"
            )
    with found[0].open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise _model_error(f"{found[0]}, which is not a GGUF file", "pickles are never read")
    return found[0]


def _gguf_tensor_count(gguf: Path) -> int:
    """The header's number of tensors, at most as many as the file can describe."""
    with gguf.open("rb") as file:
        head = file.read(16)
    return min(int.from_bytes(head[8:], "little"), gguf.stat().st_size // _MIN_TENSOR_HEADER)


_GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of an element, by type
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_ARRAY_ELEMENTS = 1 << 18  # of a small file; a vocabulary of 262,144 has a few times as many in a file of its size
_BYTES_PER_ELEMENT = 64


def _check_gguf_arrays(gguf: Path) -> None:
    """Refuse arrays that are large for their file: gguf reads one element in about 14 µs, into about 1 kB."""
    size = gguf.stat().st_size
    most = _ARRAY_ELEMENTS + size // _BYTES_PER_ELEMENT

    def number(count: int) -> int:
        data = file.read(count)
        if len(data) < count:
            raise _model_error(f"{gguf}, which ends in its header", "it is truncated")
        return int.from_bytes(data, "little")

    def skip(kind: int, count: int = 1) -> None:
        if kind != _GGUF_STRING and kind not in _GGUF_BYTES:
            raise _model_error(f"{gguf} with a value of type {kind}", "its header is damaged")
        for _ in range(count if kind == _GGUF_STRING else 1):
            file.seek(number(8) if kind == _GGUF_STRING else _GGUF_BYTES[kind] * count, os.SEEK_CUR)

    with gguf.open("rb") as file:
        file.seek(len(_GGUF_MAGIC))
        if (version := number(4)) not in (2, 3):
            raise _model_error(f"{gguf} of GGUF version {version}", "versions 2 and 3, little-endian, are read")
        number(8)
        for _ in range(number(8)):
            skip(_GGUF_STRING)
            if (kind := number(4)) != _GGUF_ARRAY:
                skip(kind)
                continue
            kind, count = number(4), number(8)
            most -= count
            if most < 0:
                given = f"{gguf} with arrays of more than {_ARRAY_ELEMENTS + size // _BYTES_PER_ELEMENT} elements"
                raise _model_error(given, f"too many for a file of {size} bytes")
            skip(kind, count)


_SPARE_ELEMENTS = 1 << 24  # of tables that are computed, not stored
_BITS = 8


def _check_size(kind: Any, config: Any, implementation: str, stored: int) -> None:
    """Refuse a configuration that needs more numbers than the files have bits, before any memory is taken."""
    with torch.device("meta"):
        model = kind.from_config(copy.deepcopy(config), attn_implementation=implementation)
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > _BITS * stored + _SPARE_ELEMENTS:
        sizes = f"a {CONFIG} of {needed} numbers and weights of {stored} bytes"
        raise _model_error(sizes, f"its {CONFIG} and its weights are of different models")


def _one_line_errors(what: str, read: Any) -> Any:
    """Convert any error of transformers to an OptionError with a one-line message."""
    try:
        return read()
    except (QkvError, MemoryError):
        raise
    except BaseException as error:
        # A panic of the tokenizers' Rust code is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _model_error(
            f"{what} cannot be read ({one_line(error)[:300]})", "the file may be truncated or of another format"
        ) from error


def _model_error(given: str, hint: str) -> OptionError:
    return OptionError(complaint("model", given, "a folder of transformers with safetensors, or a GGUF file", hint))
