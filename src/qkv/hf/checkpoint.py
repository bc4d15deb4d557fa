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
# Tokenizers, templates and generation options; no code, no weights, and no model card: it is about another model.
_COPIED = (".json", ".txt", ".model", ".jinja")
_LICENCE_FILES = ("license", "licence", "notice")
_ADAPTER = "adapter_config.json"
_MAX_JSON_BYTES = 64 << 20  # of JSON; the index of the largest known model has a fiftieth of this
# Entries of a configuration that say how many modules a model is made of.
_COUNT_NAMES = re.compile(r"(layers?|blocks|depths?|experts)$")
_ALWAYS_ALLOWED = 1000  # modules that nobody has to wait for


class TensorEntry(NamedTuple):
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
    tensors: dict[str, TensorEntry]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The configuration, the names of the files, and the headers of all tensors; no number is read."""
    if not (folder / CONFIG).is_file():
        if folder.suffix in _PICKLES:
            raise _pickle_error(folder.name)
        hint = "a GGUF file is loaded first: AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)"
        raise source_error(f"{folder}, which has no {CONFIG}", "a checkpoint folder of transformers", hint)
    single = (folder / WEIGHTS).is_file()
    if not single and not (folder / INDEX).is_file():
        for path in sorted(folder.iterdir()):
            if path.suffix in _PICKLES:
                raise _pickle_error(path.name)
        raise source_error(f"{folder}, which has no weights", f"{WEIGHTS} or {INDEX}")
    config = _read_json(folder / CONFIG)
    index = None if single else _read_json(folder / INDEX)
    where = None if index is None else _weight_map(index)
    files = [WEIGHTS] if where is None else sorted(set(where.values()))
    tensors: dict[str, TensorEntry] = {}
    for name in files:
        for key, entry in _headers(folder / name).items():
            if key in tensors or (where is not None and where.get(key) != name):
                raise damaged_file(name, f"{key}, which belongs to another file")
            tensors[key] = entry
    for key in where or ():
        if key not in tensors:
            raise damaged_file(INDEX, f"{key}, which no file has")
    named = config.get("transformers_weights")
    if named not in (None, WEIGHTS if single else INDEX):
        raise damaged_file(CONFIG, f"weights in {named!r}, a file that nobody looked at")
    if (folder / _ADAPTER).exists():
        hint = "merge it into the weights first: merge_and_unload() of peft, then save_pretrained"
        raise source_error(f"{folder}, with an adapter beside its weights", f"a folder without {_ADAPTER}", hint)
    check_counts(config, len(tensors))
    return Checkpoint(folder, config, index, files, tensors)


def check_counts(config: dict[str, Any], tensors: int) -> None:
    """Each layer has tensors of its own: more layers than tensors would only be a way to take up time and memory."""
    waiting: list[dict[str, Any]] = [config]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif (
                isinstance(value, int) and value > (most := max(tensors, _ALWAYS_ALLOWED)) and _COUNT_NAMES.search(name)
            ):
                raise damaged_file(CONFIG, f"{name} beyond {most}, and {tensors} tensors")


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    """Which file has a tensor, as the index says."""
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise damaged_file(INDEX, "no weight_map")
    for name in where.values():
        # A name is no path: an index may not point out of its folder.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise damaged_file(INDEX, f"a file {name!r}")
    return where


def _headers(path: Path) -> dict[str, TensorEntry]:
    def look(file: Any) -> dict[str, TensorEntry]:
        slices = ((key, file.get_slice(key)) for key in file.keys())  # noqa: SIM118 - safe_open is no mapping
        return {key: TensorEntry(path.name, part.get_dtype(), tuple(part.get_shape())) for key, part in slices}

    return _read_safetensors(path, look)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, and its metadata."""

    def take(file: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118

    return _read_safetensors(path, take)


def _read_safetensors(path: Path, look: Any) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        check_header(path, MAX_MODEL_HEADER)
        with safe_open(path, framework="pt", device="cpu") as file:
            return look(file)
    except FileNotFoundError as error:
        raise damaged_file(INDEX, f"{path.name}, a file that is not there") from error
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch, of sizes that no tensor can have
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
    """Everything beside configuration and weights that says how the model is used."""
    for path in folder.iterdir():
        wanted = path.suffix in _COPIED or path.name.lower().startswith(_LICENCE_FILES)
        if wanted and path.is_file() and not path.name.endswith(".index.json") and not (part / path.name).exists():
            shutil.copy(path, part / path.name)
            sync_to_disk(part / path.name)


def check_target(target: Any) -> Path:
    """A place for a new folder."""
    place = Path(os.path.abspath(target))
    if place.is_symlink() or (place.exists() and (not place.is_dir() or any(place.iterdir()))):
        given = f"{target}, which is there already"
        raise OptionError(complaint("target", given, "a folder that is new or empty", "nothing is overwritten"))
    return place


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
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
    sync_to_disk(target.parent)


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


def one_line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip()
    return " ".join(text.split()) if text else type(error).__name__


def source_error(given: str, wanted: str, hint: str = "") -> OptionError:
    return OptionError(complaint("source", given, wanted, hint))


def damaged_file(name: str, what: str) -> OptionError:
    return source_error(
        f"{name} with {what}", "the files of a checkpoint", "one is damaged, or something else wrote it"
    )


def _pickle_error(name: str) -> OptionError:
    hint = "reading a pickle can run anything; whoever made it can write safetensors with save_pretrained"
    return source_error(f"{name}, a pickle", f"a folder with {WEIGHTS} or {INDEX}", hint)


_GGUF_MAGIC = b"GGUF"
_MIN_TENSOR_HEADER = 32  # bytes that a tensor takes in a header


class Loaded(NamedTuple):
    """A model in eval mode, and what turns text into its tokens."""

    model: PreTrainedModel
    tokenizer: Any


def load(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    implementation: str = NAME,
    generates: bool = True,
) -> Loaded:
    """A model that generates, from a folder of transformers or a GGUF file on this machine; nothing is fetched.

    path: a folder with config.json and safetensors, a .gguf file, or a folder with one. dtype: what it computes in.
    implementation: "qkv", or what transformers has, to compare with. generates=False: the layers alone,
    of encoders too.

    Everything is checked before a model is returned: pickles are refused, and so are files that are damaged, that lack
    weights the model needs, hold others or hold them in other shapes, and weights that are NaN.
    """
    register()
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionTypeError(complaint("model", repr(path), "the path of a folder or of a GGUF file"))
    if dtype not in _DTYPE_SET:
        raise DtypeError(
            complaint("dtype", dtype, "torch.float32, float64, bfloat16 or float16", "what it computes in")
        )
    if implementation not in (NAME, "sdpa", "eager"):
        raise OptionError(complaint("implementation", repr(implementation), f"{NAME!r}, 'sdpa' or 'eager'"))
    place = Path(path)
    if not place.exists():
        hint = "qkv fetches nothing; save_pretrained() writes such a folder"
        raise _model_error(f"{str(path)!r}, which is not there", hint)
    gguf = _find_gguf(place)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf is None:
        open_checkpoint(place)
        folder = place
    else:
        folder, options["gguf_file"] = gguf.parent, gguf.name
    with quiet():
        config = _one_line_errors(f"{place}: its configuration", lambda: AutoConfig.from_pretrained(folder, **options))
        if gguf is not None:
            check_counts(config.to_dict(), tensors := _gguf_tensor_count(gguf))
            # For each module transformers makes a table of all layers: of a few hundred that nobody wrote, for hours.
            if isinstance(layers := getattr(config, "num_hidden_layers", 0), int) and layers > tensors:
                raise _model_error(f"{place}, of {layers} layers and {tensors} tensors", "its header is damaged")
        # With the configuration, which would be read again: of a GGUF file that is most of the time.
        options["config"] = config
        tokenizer = _one_line_errors(
            f"{place}: its tokenizer", lambda: AutoTokenizer.from_pretrained(folder, **options)
        )
        with_head = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind = with_head if generates else AutoModel
        more = {**options, "dtype": dtype, "attn_implementation": implementation, "output_loading_info": True}
        if gguf is None:
            more["use_safetensors"] = True
        model, info = _one_line_errors(f"{place}: its weights", lambda: kind.from_pretrained(folder, **more))
    # A pooler is behind all layers: encoders that were trained without one do without.
    missing = {key for key in info["missing_keys"] if generates or not key.startswith("pooler.")}
    if missing or info["mismatched_keys"]:
        lacking = sorted(missing) + sorted(str(entry[0]) for entry in info["mismatched_keys"])
        given = f"{place}, in which {len(lacking)} weights are missing or of another shape ({lacking[0]} …)"
        raise _model_error(given, f"its {CONFIG} and its weights are not of one model")
    # Layers without a head leave the head's weights over.
    if generates and (spare := sorted(info["unexpected_keys"])):
        given = f"{place}, with {len(spare)} weights that the model does not have ({spare[0]} …)"
        raise _model_error(given, f"its {CONFIG} and its weights are not of one model")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and bool(weight.isnan().any()):
            raise _model_error(f"{place}, with NaN in {name}", "a download may be damaged, or training had diverged")
    return Loaded(model.eval(), tokenizer)


def _find_gguf(place: Path) -> Path | None:
    """The GGUF file that is meant, if one is."""
    if place.is_file():
        found = [place]
    elif (place / CONFIG).is_file():
        return None
    else:
        found = sorted(path for path in place.glob("*.gguf") if path.is_file())
        if not found:
            return None
        if len(found) > 1:
            raise _model_error(
                f"{place} with {len(found)} GGUF files", f"name one of them, for example {found[0].name}"
            )
    with found[0].open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise _model_error(f"{found[0]}, which does not begin as GGUF files do", "pickles are never read")
    return found[0]


def _gguf_tensor_count(gguf: Path) -> int:
    """How many tensors the file says that it has, and has room to describe."""
    with gguf.open("rb") as file:
        head = file.read(16)
    return min(int.from_bytes(head[8:], "little"), gguf.stat().st_size // _MIN_TENSOR_HEADER)


def _one_line_errors(what: str, read: Any) -> Any:
    """transformers says what is wrong in many ways and on many lines; here it is one error of one line."""
    try:
        return read()
    except QkvError:
        raise
    except MemoryError:
        raise
    except Exception as error:
        raise _model_error(
            f"{what} cannot be read ({one_line(error)[:300]})", "it may be cut short, or not what its name says"
        ) from error


def _model_error(given: str, hint: str) -> OptionError:
    return OptionError(complaint("model", given, "a folder of transformers with safetensors, or a GGUF file", hint))
