"""Checkpoint folders of transformers: written atomically, and loaded with `load`."""

from __future__ import annotations

import contextlib
import copy
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging

from ..cache.files import sync_to_disk
from ..errors import DtypeError, OptionError, OptionTypeError, QkvError, complaint
from ..inputs import DTYPE_SET
from .folders import CONFIG, check_counts, one_line, open_checkpoint
from .interface import NAME, register

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Tokenizers, templates and generation options, but no code, no weights and no model card.
_COPIED = (".json", ".txt", ".model", ".jinja")
_LICENCE_FILES = ("license", "licence", "notice")


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
    if dtype not in DTYPE_SET:
        wanted = "torch.float32, float64, bfloat16 or float16"
        raise DtypeError(complaint("dtype", dtype, wanted, "the model computes in it"))
    if implementation not in (NAME, "sdpa", "eager"):
        raise OptionError(complaint("implementation", repr(implementation), f"{NAME!r}, 'sdpa' or 'eager'"))
    location = Path(path)
    if not location.exists():
        hint = "qkv downloads nothing; save_pretrained() writes such a folder"
        raise _model_error(f"{str(path)!r}, which does not exist", hint)
    gguf = _find_gguf(location)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    tensors = None
    if gguf is None:
        folder, files = location, [location / name for name in open_checkpoint(location).files]
    else:
        tensors = _check_gguf_arrays(gguf)
        folder, files, options["gguf_file"] = gguf.parent, [gguf], gguf.name
    with quiet():
        config = _one_line_errors(location, "configuration", lambda: AutoConfig.from_pretrained(folder, **options))
        if tensors is not None:
            check_counts(config.to_dict(), tensors)
            # transformers builds a table of all layers for each module: hours for a header with a false count.
            if isinstance(layers := getattr(config, "num_hidden_layers", 0), int) and layers > tensors:
                raise _model_error(f"{location} with {layers} layers and {tensors} tensors", "its header is damaged")
        with_head = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind = with_head if generates else AutoModel
        stored = sum(file.stat().st_size for file in files)
        _one_line_errors(location, CONFIG, lambda: _check_size(kind, config, implementation, stored))
        # Passed on, since reading the configuration of a GGUF file again would take most of the time.
        options["config"] = config
        tokenizer = _one_line_errors(location, "tokenizer", lambda: AutoTokenizer.from_pretrained(folder, **options))
        options |= {"dtype": dtype, "attn_implementation": implementation, "output_loading_info": True}
        options |= {"use_safetensors": True} if gguf is None else {}
        model, info = _one_line_errors(location, "weights", lambda: kind.from_pretrained(folder, **options))
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
    if (location / CONFIG).is_file():
        return None
    inside = sorted(path for path in location.glob("*.gguf") if path.is_file())
    found = [location] if location.is_file() else inside
    if not found:
        return None
    if len(found) > 1:
        hint = f"name one of them, for example {found[0].name}"
        raise _model_error(f"{location} with {len(found)} GGUF files", hint)
    with found[0].open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise _model_error(f"{found[0]}, which is not a GGUF file", "pickles are never read")
    return found[0]


_GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of an element, by type
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_ARRAY_ELEMENTS = 1 << 18  # of a small file; a vocabulary of 262,144 has a few times as many in a file of its size
_BYTES_PER_ELEMENT = 64


def _check_gguf_arrays(gguf: Path) -> int:
    """Refuse arrays that are large for their file: gguf reads one element in about 14 µs, into about 1 kB.

    Returns:
        The header's number of tensors, at most as many as the file can describe.
    """
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
        tensors = min(number(8), size // _MIN_TENSOR_HEADER)
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
    return tensors


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


def _one_line_errors(location: Path, part: str, read: Any) -> Any:
    """Convert any error of transformers to an OptionError with a one-line message."""
    try:
        return read()
    except (QkvError, MemoryError):
        raise
    except BaseException as error:
        # A panic of the tokenizers' Rust code is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        given, hint = f"{location}: its {part} cannot be read", "the file may be truncated or of another format"
        raise _model_error(f"{given} ({one_line(error)[:300]})", hint) from error


def _model_error(given: str, hint: str) -> OptionError:
    return OptionError(complaint("model", given, "a folder of transformers with safetensors, or a GGUF file", hint))
