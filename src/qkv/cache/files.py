"""Saved caches and states: safetensors files, written atomically and validated before they are loaded.

A KVCache: the elements (`StorageFormat.elements`) of key (batch, heads, span, …) and value, for formats with scales
key_scale and value_scale (batch, heads, span, groups); lengths and starts (batch,). Index t of row b is the token at
position starts[b] + t; zeros follow the last token. The metadata have dtype, width, value_width, capacity, window and
sinks, and latent if the rows of `value` are latents, whose keys are empty. After an eviction, lengths and starts count
slots, and gone, counts, at and since are those of `Remaining`. importance (batch, heads, span) if it is kept.

A LinearState: lengths and summed (batch,), the sums, and key, value and keep of the recent tokens. The metadata have
the similarity's repr, the dtype and the sizes. With `state=`: lengths and summed, the state, that before the recent
tokens, and these: features of keys, values, gate and beta; the metadata also have the state's class and rollback.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..backends.recurrent import Tokens
from ..errors import OptionError, OptionTypeError, QkvError, complaint
from ..similarity import AnySimilarity
from ..states import KINDS, Decay
from .changing import StateContents
from .eviction import Policy, Remaining
from .formats import FORMATS, StorageFormat
from .pages import MOST_TOKENS, PAGE, StoredTokens
from .state import RecentTokens, StateSnapshot, WideningSums

if TYPE_CHECKING:
    from .kv import KVCache
    from .state import LinearState

_FORMAT, _VERSION = "qkv.KVCache", "1"
_STATE_FORMAT, _STATE_VERSION = "qkv.LinearState", "1"
_SAFETENSORS_DTYPES = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bfloat16: "BF16"}
_SAFETENSORS_DTYPES |= {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16"}
_SAFETENSORS_DTYPES |= {torch.int64: "I64", torch.int8: "I8", torch.uint8: "U8"}
_LIMITS = "capacity", "window", "sinks"
# Bytes. A cache has at most eleven tensors: its header needs less than 4 KiB.
_MAX_CACHE_HEADER = 1 << 16
MAX_MODEL_HEADER = 100_000_000  # bytes; safetensors itself refuses longer headers


def save(cache: KVCache, path: str | os.PathLike[str]) -> None:
    target = check_path(path)
    check_decided(cache)
    with cache.lock:
        tensors = _cache_tensors(cache)
        limits = {name: str(getattr(cache, name) or "") for name in (*_LIMITS, "width", "value_width")}
    about = {"format": _FORMAT, "version": _VERSION, "dtype": cache.format.name, "latent": "1" if cache.latent else ""}
    write_safetensors(target, tensors, about | limits)


def check_decided(cache: KVCache) -> None:
    """Refuse a cache whose storage format is not known yet."""
    if cache.bound is not None:
        hint = "the first prompt decides the format: decode it before"
        raise OptionError(complaint("cache", 'dtype="auto", undecided', "a cache with a format", hint))


def write_safetensors(target: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(target) as part:
        mode = part.stat().st_mode
        try:
            save_file(tensors, part, metadata)
        except SafetensorError as error:
            raise OSError(f"path: {target} could not be written: {error}") from error
        part.chmod(mode & 0o7777)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """An empty file next to the target; what is written to it is synced to disk, then it replaces the target."""
    # Follow links, and replace nothing but a regular file.
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise OptionError(complaint("path", str(target), "a regular file or a path that does not exist"))
    part = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)
        mode = (target if target.exists() else part).stat().st_mode  # of the old file, or as umask sets it
        part.chmod(mode & 0o7777)
        yield part
        sync_to_disk(part)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    sync_to_disk(target.parent)


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str], kind: str, version: str, longest: int = _MAX_CACHE_HEADER
) -> Iterator[tuple[Path, Any, dict[str, str]]]:
    """A file of this kind: its path, the open file and its metadata; OptionError for any other file."""
    from safetensors import SafetensorError, safe_open

    source = check_path(path)
    check_header(source, longest)
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            about = file.metadata() or {}
            if about.get("format") != kind:
                raise damaged_file(source, f"format {about.get('format')!r}, not {kind!r}")
            if about.get("version") != version:
                raise damaged_file(source, f"version {about.get('version')!r}; this qkv reads {version!r}")
            yield source, file, about
    except (SafetensorError, RuntimeError) as error:  # torch raises RuntimeError for impossible sizes
        raise damaged_file(source, str(error)) from error


def _read_tensors(source: Path, file: Any, expected: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, Tensor]:
    """Copies of the tensors, since the file may change later. expected: shapes, -1 for any size, and dtypes; they are
    all checked before a tensor is read."""
    if set(file.keys()) != set(expected):
        raise damaged_file(source, f"tensors {sorted(file.keys())}, not {sorted(expected)}")
    for name, (shape, dtype) in expected.items():
        part = file.get_slice(name)
        found = tuple(part.get_shape())
        fits = len(found) == len(shape) and all(n in (-1, m) for m, n in zip(found, shape, strict=True))
        if not fits or part.get_dtype() != dtype:
            raise damaged_file(source, f"{name} of {part.get_dtype()} and shape {found}")
    return {name: file.get_tensor(name).clone() for name in expected}


def _number(source: Path, about: dict[str, str], name: str) -> int:
    text = about.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise damaged_file(source, f"{name} {text!r}")
    return int(text)


def load(kind: type[KVCache], path: str | os.PathLike[str], eviction: Policy | None = None) -> KVCache:
    """Load a cache; raise OptionError if the file is damaged or not a cache."""
    with opened(path, _FORMAT, _VERSION) as (source, file, about):
        found = [each for each in FORMATS.values() if each.name == about.get("dtype")]
        if not found:
            raise damaged_file(source, f"dtype {about.get('dtype')!r}")
        storage = found[0]
        given = (None if about.get(name) == "" else _number(source, about, name) for name in _LIMITS)
        limits: dict[str, int | None] = dict(zip(_LIMITS, given, strict=True))
        if 0 in limits.values():
            raise damaged_file(source, ", ".join(f"{name} {limit}" for name, limit in limits.items()))
        key = tuple(file.get_slice("key").get_shape()) if "key" in file.keys() else ()  # noqa: SIM118
        if about.get("latent") not in ("", "1"):
            raise damaged_file(source, f"latent {about.get('latent')!r}")
        latent = about["latent"] == "1"
        if len(key) != 4 or min(key[0], key[1], key[3] or latent) < 1:
            raise damaged_file(source, f"key of shape {key}")
        width, value_width = (_number(source, about, name) for name in ("width", "value_width"))
        per_row = key[:1], "I64"
        expected: dict[str, tuple[tuple[int, ...], str]] = {"lengths": per_row, "starts": per_row}
        rows = (0, width) if latent else (width, value_width)
        for name, of, numbers in zip(("key", "value"), (storage, storage.of_values), rows, strict=True):
            expected[name] = (*key[:3], of.elements(numbers)), _SAFETENSORS_DTYPES[of.element]
            if of.has_scales and numbers:
                expected[f"{name}_scale"] = (*key[:3], of.scales_of(numbers)), _SAFETENSORS_DTYPES[of.scales]
        names = set(file.keys())
        if "importance" in names:
            expected["importance"] = key[:3], "F32"
        if "gone" in names:
            expected |= {"at": ((*key[:2], -1), "I64")} | dict.fromkeys(("gone", "counts", "since"), per_row)
        tensors = _read_tensors(source, file, expected)
    sizes = {"width": width, "value_width": value_width, "latent": latent}
    return _build_cache(kind, source, storage, sizes, limits, tensors, eviction)


def _cache_tensors(cache: KVCache) -> dict[str, Tensor]:
    rows = [cache.stored_row(row) for row in range(cache.batch)]
    span = max(stored.key.shape[1] for _, stored in rows)

    def stacked(tensors: list[Tensor]) -> Tensor:
        first = tensors[0]
        out = first.new_zeros(len(tensors), first.shape[0], span, *first.shape[2:])
        for row, tensor in enumerate(tensors):
            out[row, :, : tensor.shape[1]] = tensor
        return out

    names = [name for name, part in rows[0][1]._asdict().items() if part is not None]
    tensors = {name: stacked([getattr(stored, name) for _, stored in rows]) for name in names}
    starts = torch.tensor([start for start, _ in rows], dtype=torch.int64)
    if (sums := cache.importance_sums) is not None:
        tensors["importance"] = sums[:, :, :span].clone()
    if cache.evicted:
        tensors |= {name: torch.from_numpy(each.copy()) for name, each in cache.native_arrays[1]._asdict().items()}
    return tensors | {"lengths": torch.from_numpy(cache.stored_lengths.copy()), "starts": starts}


def _build_cache(
    kind: type[KVCache],
    source: Path,
    storage: StorageFormat,
    sizes: dict[str, Any],
    limits: dict[str, int | None],
    tensors: dict[str, Tensor],
    eviction: Policy | None,
) -> KVCache:
    capacity, window, sinks = limits.values()
    lengths, starts = tensors["lengths"].numpy(), tensors["starts"].numpy()
    batch, heads, span, _ = tensors["key"].shape
    counts = lengths - starts
    # With a window, at least the keys that the next query attends to are stored; without one, all.
    latest = np.zeros_like(lengths) if window is None or sinks else np.maximum(lengths - window, 0)
    in_order = (starts >= 0) & (starts <= lengths) & (lengths <= MOST_TOKENS)
    valid = (in_order & (starts % PAGE == 0) & (starts <= latest)).all() and int(counts.max()) == span
    if not valid or (capacity is not None and int(lengths.max()) > capacity):
        raise damaged_file(source, "invalid lengths or starts")
    for name, of in (("key", storage), ("value", storage.of_values)):
        if f"{name}_scale" in tensors and not of.is_valid(tensors[name], tensors[f"{name}_scale"]):
            raise damaged_file(source, f"{name} with values that quantization cannot produce")
    remaining, importance = None, tensors.get("importance")
    if "gone" in tensors:
        remaining = Remaining(*(tensors[name].numpy() for name in Remaining._fields))
        if not remaining.is_valid(lengths):
            raise damaged_file(source, "invalid positions")
    forgetting = {"window": window, "sinks": sinks or 0, "importance": importance is not None}
    try:
        cache = kind(batch, heads, dtype=storage.dtype, **sizes, **forgetting)
    except QkvError as error:
        raise damaged_file(source, str(error)) from error
    stored = StoredTokens(**{n: tensors[n] for n in StoredTokens._fields if n in tensors})
    cache.fill(starts, lengths, capacity, stored, remaining, importance, eviction)
    return cache


def check_header(path: Path, longest: int = _MAX_CACHE_HEADER) -> None:
    """Check a safetensors header: it fits into the file, its names are unique, its integers fit into 64 bits."""
    check_regular_file(path)
    with path.open("rb") as file:
        read_header(path, file, longest)


def read_header(path: Path, file: BinaryIO, longest: int) -> tuple[Any, int, int]:
    """The header of an open safetensors file, where its data begin, and its size."""
    size = os.fstat(file.fileno()).st_size
    count = int.from_bytes(file.read(8), "little")
    if size < 8 or count > min(size - 8, longest):
        raise damaged_file(path, f"a header of {count} bytes in a file of {size}")
    text = file.read(count)
    try:
        return json.loads(text, object_pairs_hook=_unique_names, parse_int=_check_int64), 8 + count, size
    except (ValueError, RecursionError) as error:
        raise damaged_file(path, f"an invalid header: {error}") from error


def check_regular_file(path: Path) -> None:
    """Refuse pipes and devices, which would block; a missing file is left to `open`."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise damaged_file(path, "no file contents: it is a pipe or a device")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a name is repeated")
    return unique


def _check_int64(digits: str) -> int:
    """An empty tensor may claim any size; torch fails without a clear message beyond 64 bits."""
    if abs(int(digits)) >= 2**63:
        raise ValueError(f"a size of {digits}")
    return int(digits)


def check_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise OptionTypeError(complaint("path", repr(path), "the path of a file"))
    return Path(path)


def sync_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def damaged_file(path: Path, what: str) -> OptionError:
    hint = "the file is damaged, or another program wrote it"
    return OptionError(complaint("path", printable(f"{path.name} with {what}"), "a file written by save", hint))


def printable(text: str) -> str:
    r"""Text from a file for a message: control characters, which a terminal obeys, are written as escapes.

    >>> printable("red \x1b[31m")
    'red \\x1b[31m'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def save_state(state: LinearState, path: str | os.PathLike[str]) -> None:
    target = check_path(path)
    with state.lock:
        contents, sums = state._contents, state._sums
        tensors = {name: torch.from_numpy(getattr(contents, name).copy()) for name in ("lengths", "summed")}
        more = {"rollback": str(state._rollback)}
        if isinstance(contents, StateContents):
            change = state._change
            more["state"] = (change if isinstance(change, type) else type(change)).__name__
            parts = {"state": contents.state, "rate": _rate_tensor(change, state.heads)}
            if contents.recent is not None:
                parts |= {"before": contents.before, "keep": contents.kept(), **contents.recent._asdict()}
                del parts["query"]  # the features of the keys
            tensors |= {name: tensor for name, tensor in parts.items() if tensor is not None}
        elif contents.sums is not None and sums is not None:
            tensors["sums"] = sums.unpack(contents.sums)
        if isinstance(contents, StateSnapshot) and contents.columns:
            keep = torch.ones(state.batch, contents.columns, dtype=torch.bool)
            keep = keep if contents.keep is None else contents.keep
            tensors |= {"key": contents.key, "value": contents.value, "keep": keep}
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        dtype = "" if state.token_type is None else str(state.token_type[0]).removeprefix("torch.")
    sizes = {name: str(getattr(state, name)) for name in ("batch", "heads", "width", "value_width")}
    about = {"format": _STATE_FORMAT, "version": _STATE_VERSION, "similarity": repr(state.similarity), "dtype": dtype}
    write_safetensors(target, tensors, about | sizes | (more if "state" in more else {}))


def _rate_tensor(change: Any, heads: int) -> Tensor | None:
    rate = getattr(change, "rate", None)
    return None if rate is None else torch.as_tensor(rate, dtype=torch.float64).detach().expand(heads)


def load_state(kind: type[LinearState], path: str | os.PathLike[str], similarity: AnySimilarity) -> LinearState:
    """Load a state; raise OptionError if the file is damaged, not a state, or of another similarity."""
    with opened(path, _STATE_FORMAT, _STATE_VERSION) as (source, file, about):
        if about.get("similarity") != repr(similarity):
            saved = printable(str(about.get("similarity")))
            raise OptionError(complaint("similarity", repr(similarity), f"{saved}, as saved"))
        sizes = [_number(source, about, name) for name in ("batch", "heads", "width", "value_width")]
        # A state allocates memory per row: check that the file has as many rows.
        if "lengths" not in file.keys() or tuple(file.get_slice("lengths").get_shape()) != (sizes[0],):  # noqa: SIM118
            raise damaged_file(source, f"batch {sizes[0]} and another number of lengths")
        try:
            change, rollback = None, 0
            if "state" in about:
                kinds = {kind.__name__: kind for kind in KINDS} | {"Decay": Decay(0.0)}  # its rate is read below
                if about["state"] not in kinds:
                    raise OptionError(f"state {about['state']!r}")
                change, rollback = kinds[about["state"]], _number(source, about, "rollback")
            state = kind(similarity, *sizes[:3], value_width=sizes[3], state=change, rollback=rollback)
        except QkvError as error:
            raise damaged_file(source, str(error)) from error
        dtype = about.get("dtype")
        if dtype not in ("", "float32", "float16", "bfloat16", "float64"):
            raise damaged_file(source, f"dtype {dtype!r}")
        token_dtype = getattr(torch, dtype) if dtype else None
        names = set(file.keys())
        if change is not None:
            axes = len(file.get_slice("gate").get_shape()) - 2 if "gate" in names else 1
            tensors = _read_tensors(source, file, _expected_of_change(state, names, token_dtype, axes))
            return _build_changing(state, source, tensors, token_dtype)
        # Sums that overflow float32 are float64.
        wide = token_dtype is torch.float64 or ("sums" in names and file.get_slice("sums").get_dtype() == "F64")
        tensors = _read_tensors(source, file, _expected_tensors(state, names, token_dtype, "F64" if wide else "F32"))
    return _build_state(state, source, tensors, token_dtype)


def _expected_of_change(
    state: LinearState, names: set[str], token_dtype: torch.dtype | None, gate_axes: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes (-1: any size) and dtypes of the tensors of a state that changes. gate_axes: those of the saved gates."""
    batch, heads, features = state.batch, state.heads, state._maps.features
    columns = state.value_width + state.similarity.normalizes
    kind = "F64" if token_dtype is torch.float64 else "F32"
    expected: dict[str, tuple[tuple[int, ...], str]] = {"lengths": ((batch,), "I64"), "summed": ((batch,), "I64")}
    shapes = {
        "state": (batch, heads, features, columns),
        "before": (batch, heads, features, columns),
        "key": (batch, heads, -1, features),
        "value": (batch, heads, -1, columns),
        "gate": (batch, heads, -1, *((features,) if gate_axes == 2 else ())),
        "beta": (batch, heads, -1),
    }
    expected |= {name: (shape, kind) for name, shape in shapes.items() if name in names}
    others: dict[str, tuple[tuple[int, ...], str]] = {"keep": ((batch, -1), "BOOL"), "rate": ((heads,), "F64")}
    needed = names | ({"rate"} if isinstance(state._change, Decay) else set())
    return expected | {name: other for name, other in others.items() if name in needed}


def _build_changing(
    state: LinearState, source: Path, tensors: dict[str, Tensor], token_dtype: torch.dtype | None
) -> LinearState:
    lengths, summed = tensors["lengths"].numpy().copy(), tensors["summed"].numpy().copy()
    counts, recent = np.zeros_like(lengths), None
    names = {"before", "key", "value", "keep"} & tensors.keys()
    if names:
        parts = [tensors.get(name) for name in ("key", "value", "gate", "beta", "keep")]
        columns = {t.shape[1 if t.dim() == 2 else 2] for t in parts if t is not None}
        if len(names) != 4 or len(columns) != 1:
            raise damaged_file(source, "key, value, gate, beta and keep of different lengths")
        counts = tensors["keep"].sum(1).numpy()
        recent = Tokens(tensors["key"], *parts[:4])  # pyright: ignore[reportArgumentType]
    valid = (summed >= 0).all() and (lengths <= MOST_TOKENS).all() and np.array_equal(lengths - summed, counts)
    if not valid or (token_dtype is None) != ("state" not in tensors) or (token_dtype is None and lengths.any()):
        raise damaged_file(source, "invalid lengths")
    if "rate" in tensors:
        state._change = Decay(tensors["rate"])
    if token_dtype is not None:
        state.token_type = token_dtype, torch.device("cpu")
        last, before = tensors["state"], tensors.get("before")
        state._contents = StateContents(last, before, recent, tensors.get("keep"), lengths, summed)
    return state


def _expected_tensors(
    state: LinearState, names: set[str], token_dtype: torch.dtype | None, sums: str
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes (-1: any size) and dtypes of the tensors that the file should have."""
    batch, heads = state.batch, state.heads
    expected: dict[str, tuple[tuple[int, ...], str]] = {"lengths": ((batch,), "I64"), "summed": ((batch,), "I64")}
    if "sums" in names:
        expected["sums"] = (batch, heads, state._maps.features, state.value_width + 1), sums
    if "key" in names and token_dtype is not None:
        expected["key"] = (batch, heads, -1, state.width), _SAFETENSORS_DTYPES[token_dtype]
        expected["value"] = (batch, heads, -1, state.value_width), _SAFETENSORS_DTYPES[token_dtype]
        expected["keep"] = (batch, -1), "BOOL"
    return expected


def _build_state(
    state: LinearState, source: Path, tensors: dict[str, Tensor], token_dtype: torch.dtype | None
) -> LinearState:
    lengths, summed = tensors["lengths"].numpy().copy(), tensors["summed"].numpy().copy()
    counts = np.zeros_like(lengths)
    if "key" in tensors:
        columns = tensors["key"].shape[2]
        if not columns == tensors["value"].shape[2] == tensors["keep"].shape[1] > 0:
            raise damaged_file(source, "key, value and keep of different lengths")
        counts = tensors["keep"].sum(1).numpy()
    valid = (summed >= 0).all() and (lengths <= MOST_TOKENS).all() and np.array_equal(lengths - summed, counts)
    if not valid or (token_dtype is None and (lengths > 0).any()) or ("sums" not in tensors and (summed > 0).any()):
        raise damaged_file(source, "invalid lengths")
    if token_dtype is None:
        return state
    state.token_type = token_dtype, torch.device("cpu")
    state._sums = WideningSums(*state.token_type, state._maps, state.value_width)
    recent, columns, keep = None, 0, tensors.get("keep")
    if keep is not None:
        columns, keep = keep.shape[1], None if bool(keep.all()) else keep
        recent = RecentTokens(tensors["key"], tensors["value"], columns)
        recent.write(tensors["key"], tensors["value"])
    sums = state._sums.pack(tensors["sums"]) if "sums" in tensors else None
    state._contents = StateSnapshot(sums, recent, columns, keep, lengths, summed)
    return state
