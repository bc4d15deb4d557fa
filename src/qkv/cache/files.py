"""A cache in a file: safetensors, written whole or not at all, and checked before it is believed.

Tensors: key (batch, heads, span, width) and value (…, value_width) in the storage dtype, for int8 key_scale and
value_scale (batch, heads, span); lengths and starts (batch,). Index t of row b is the token at starts[b] + t, and
zeros follow its last one. The metadata say the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, OptionTypeError, QkvError, complaint
from ..similarity import AnySimilarity
from .pages import PAGE, STORAGE, Stored
from .state import engine_of

if TYPE_CHECKING:
    from .kv import KVCache

_FORMAT, _VERSION = "qkv.KVCache", "1"
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STORAGE}
_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8", torch.int64: "I64"}
# Six tensors and a few numbers need less than 2 KiB.
_LONGEST_HEADER = 1 << 16
LARGEST = 1 << 48
MODELS_HEADER = 100_000_000  # bytes; no reader of safetensors takes a longer one


def save(cache: KVCache, path: str | os.PathLike[str]) -> None:
    target = checked_path(path)
    with cache._pool.lock:
        tensors, metadata = _tensors(cache), _metadata(cache)
    write(target, tensors, metadata)


def write(target: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Beside the file first, through to the disk, then in its place."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Where a link leads, and nothing but a file: what is replaced would be gone.
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise OptionError(complaint("path", str(target), "a file, or a name that is free"))
    part = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        part.touch(exist_ok=False)
        mode = (target if target.exists() else part).stat().st_mode  # that of the old file, or what umask says
        save_file(tensors, part, metadata)
        part.chmod(mode & 0o7777)
        _through_to_disk(part)
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, SafetensorError):
            raise OSError(f"path: {target} could not be written: {error}") from error
        raise
    _through_to_disk(target.parent)


def load(kind: type[KVCache], path: str | os.PathLike[str]) -> KVCache:
    """Raises OptionError for a file that is damaged or not a cache, and OSError for one that cannot be read."""
    from safetensors import SafetensorError, safe_open

    source = checked_path(path)
    check_header(source)
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            about = _Description(source, file.metadata() or {})
            about.check(file)
            # Copies: the file may change or vanish later.
            tensors = {name: file.get_tensor(name).clone() for name in about.shapes}
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch, of sizes that no tensor can have
        raise damaged(source, str(error)) from error
    return _filled(kind, about, tensors)


def _tensors(cache: KVCache) -> dict[str, Tensor]:
    rows = [cache._stored(row) for row in range(cache.batch)]
    span = max(stored.key.shape[1] for _, stored in rows)

    def stacked(tensors: list[Tensor]) -> Tensor:
        first = tensors[0]
        out = first.new_zeros(len(tensors), first.shape[0], span, *first.shape[2:])
        for row, tensor in enumerate(tensors):
            out[row, :, : tensor.shape[1]] = tensor
        return out

    names = ("key", "value", "key_scale", "value_scale") if cache.dtype is torch.int8 else ("key", "value")
    tensors = {name: stacked([getattr(stored, name) for _, stored in rows]) for name in names}
    starts = torch.tensor([start for start, _ in rows], dtype=torch.int64)
    return tensors | {"lengths": cache.lengths, "starts": starts}


def _metadata(cache: KVCache) -> dict[str, str]:
    limits = {name: "" if limit is None else str(limit) for name, limit in _limits(cache)}
    return {"format": _FORMAT, "version": _VERSION, "dtype": str(cache.dtype).removeprefix("torch.")} | limits


def _limits(cache: KVCache) -> tuple[tuple[str, int | None], ...]:
    return ("capacity", cache.capacity), ("window", cache.window)


class _Description:
    """What a file says of itself."""

    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self.path = path
        if metadata.get("format") != _FORMAT:
            raise damaged(path, f"format {metadata.get('format')!r}, not {_FORMAT!r}")
        if metadata.get("version") != _VERSION:
            raise damaged(path, f"version {metadata.get('version')!r}; this qkv reads {_VERSION!r}")
        dtype = _DTYPES.get(metadata.get("dtype", ""))
        if dtype is None:
            raise damaged(path, f"dtype {metadata.get('dtype')!r}")
        self.dtype: torch.dtype = dtype
        self.capacity, self.window = (self._limit(name, metadata.get(name)) for name in ("capacity", "window"))
        self.shapes: dict[str, tuple[int, ...]] = {}

    def _limit(self, name: str, text: str | None) -> int | None:
        if text == "":
            return None
        if text is None or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
            raise damaged(self.path, f"{name} {text!r}")
        return int(text)

    def check(self, file: Any) -> None:
        """Names, dtypes and sizes, before a number is read."""
        wanted = {"key": self.dtype, "value": self.dtype, "lengths": torch.int64, "starts": torch.int64}
        if self.dtype is torch.int8:
            wanted |= {"key_scale": torch.float32, "value_scale": torch.float32}
        names = set(file.keys())
        if names != set(wanted):
            raise damaged(self.path, f"tensors {sorted(names)}, not {sorted(wanted)}")
        for name, dtype in wanted.items():
            part = file.get_slice(name)
            if part.get_dtype() != _KINDS[dtype]:
                raise damaged(self.path, f"{name} of {part.get_dtype()}, not {_KINDS[dtype]}")
            self.shapes[name] = tuple(part.get_shape())
        key = self.shapes["key"]
        if len(key) != 4 or min(key[0], key[1], key[3]) < 1:
            raise damaged(self.path, f"key of shape {key}")
        value = self.shapes["value"]
        if len(value) != 4 or value[:3] != key[:3] or value[3] < 1:
            raise damaged(self.path, f"value of shape {value} beside key's {key}")
        for name, shape in self.shapes.items():
            if (name.endswith("scale") and shape != key[:3]) or (name in ("lengths", "starts") and shape != key[:1]):
                raise damaged(self.path, f"{name} of shape {shape} beside key's {key}")


def _filled(kind: type[KVCache], about: _Description, tensors: dict[str, Tensor]) -> KVCache:
    lengths, starts = tensors["lengths"].numpy(), tensors["starts"].numpy()
    (batch, heads, span, width), value_width = tensors["key"].shape, tensors["value"].shape[3]
    held = lengths - starts
    # A ring holds at least what a query to come may see; without one, everything.
    latest = np.zeros_like(lengths) if about.window is None else np.maximum(lengths - about.window, 0)
    sound = (
        ((starts >= 0) & (starts <= lengths) & (lengths <= LARGEST) & (starts % PAGE == 0) & (starts <= latest)).all()
        and int(held.max()) == span
        and (about.capacity is None or int(lengths.max()) <= about.capacity)
    )
    if not sound:
        raise damaged(about.path, "lengths and starts that cannot be those of a cache")
    if about.dtype is torch.int8:
        for name in ("key", "value"):
            scale = tensors[f"{name}_scale"]
            if bool((tensors[name] == -128).any()) or bool(((scale < 0) | scale.isinf()).any()):
                raise damaged(about.path, f"{name} with numbers that quantising never gives")
    try:
        cache = kind(batch, heads, width, value_width=value_width, window=about.window, dtype=about.dtype)
    except QkvError as error:
        raise damaged(about.path, str(error)) from error
    # The limit holds again; its pages come as they are needed, since a file's word is no reason to take cache.
    cache._capacity = about.capacity
    cache._lengths[:] = starts
    cache._table.first[:] = cache._table.stop[:] = starts // PAGE
    cache._reserve(0, held)
    for row in range(batch):
        new = slice(0, int(held[row]))
        parts = [tensors.get(name) for name in Stored._fields]
        stored = Stored(*(None if part is None else part[row, :, new] for part in parts))  # pyright: ignore[reportArgumentType]
        cache._write_row(row, int(starts[row]), stored)
    cache._set_rows(lengths, cache._table)
    return cache


def check_header(path: Path, longest: int = _LONGEST_HEADER) -> None:
    """The length of the header against the file, its names, each once, and its numbers, which are sizes and places."""
    check_kind(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        count = int.from_bytes(file.read(8), "little")
        if size < 8 or count > min(size - 8, longest):
            raise damaged(path, f"a header of {count} bytes in a file of {size}")
        text = file.read(count)
    try:
        json.loads(text, object_pairs_hook=_once, parse_int=_within_bounds)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"a header that is not read: {error}") from error


def check_kind(path: Path) -> None:
    """A pipe or a device has no end, and nobody is to wait for it; what is not there at all is open's to say."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise damaged(path, "no bytes of its own: it is a pipe or a device")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _within_bounds(digits: str) -> int:
    """An empty tensor may have a size that no file contradicts, and torch has no words for it."""
    if abs(int(digits)) >= 2**63:
        raise ValueError(f"a size of {digits}")
    return int(digits)


def checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise OptionTypeError(complaint("path", repr(path), "the path of a file"))
    return Path(path)


def _through_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def damaged(path: Path, what: str) -> OptionError:
    hint = "the file is damaged, or something else wrote it"
    return OptionError(complaint("path", f"{path.name} with {what}", "a file that save wrote", hint))


if TYPE_CHECKING:
    from .state import LinearState

_STATE_FORMAT, _STATE_VERSION = "qkv.LinearState", "1"
_STATE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def save_state(state: LinearState, path: str | os.PathLike[str]) -> None:
    target = checked_path(path)
    with state._lock:
        held, sums = state._held, state._sums
        tensors = {"lengths": torch.from_numpy(held.lengths.copy()), "summed": torch.from_numpy(held.summed.copy())}
        if held.folded is not None and sums is not None:
            tensors["sums"] = sums.plain(held.folded).cpu().contiguous()
        if held.columns:
            keep = held.keep
            keep = torch.ones(state.batch, held.columns, dtype=torch.bool) if keep is None else keep.cpu()
            recent = {
                "key": held.key.cpu().contiguous(),
                "value": held.value.cpu().contiguous(),
                "keep": keep.contiguous(),
            }
            tensors |= recent
        dtype = "" if state._seen is None else str(state._seen[0]).removeprefix("torch.")
    sizes = {name: str(getattr(state, name)) for name in ("batch", "heads", "width", "value_width")}
    about = {"format": _STATE_FORMAT, "version": _STATE_VERSION, "similarity": repr(state.similarity), "dtype": dtype}
    write(target, tensors, about | sizes)


def load_state(kind: type[LinearState], path: str | os.PathLike[str], similarity: AnySimilarity) -> LinearState:
    """Raises OptionError for a file that is damaged, not a state, or one of another similarity."""
    from safetensors import SafetensorError, safe_open

    source = checked_path(path)
    check_header(source)
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            about = file.metadata() or {}
            if about.get("format") != _STATE_FORMAT or about.get("version") != _STATE_VERSION:
                raise damaged(source, f"format {about.get('format')!r}, version {about.get('version')!r}")
            if about.get("similarity") != repr(similarity):
                raise OptionError(complaint("similarity", repr(similarity), f"{about.get('similarity')}, as was saved"))
            sizes = [_size(source, about, name) for name in ("batch", "heads", "width", "value_width")]
            # A state takes memory for each row: only for those that the file has.
            if "lengths" not in file.keys() or tuple(file.get_slice("lengths").get_shape()) != (sizes[0],):  # noqa: SIM118
                raise damaged(source, f"batch {sizes[0]}, and not as many lengths")
            try:
                state = kind(similarity, *sizes[:3], value_width=sizes[3])
            except QkvError as error:
                raise damaged(source, str(error)) from error
            dtype = about.get("dtype")
            if dtype not in ("", "float32", "float16", "bfloat16", "float64"):
                raise damaged(source, f"dtype {dtype!r}")
            seen = getattr(torch, dtype) if dtype else None
            wanted = _wanted(state, set(file.keys()), seen)
            for name, (shape, kind_of) in wanted.items():
                part = file.get_slice(name)
                found = tuple(part.get_shape())
                if not _fits(found, shape) or part.get_dtype() != kind_of:
                    raise damaged(source, f"{name} of {part.get_dtype()} and shape {found}")
            if set(wanted) != set(file.keys()):
                raise damaged(source, f"tensors {sorted(file.keys())}")
            tensors = {name: file.get_tensor(name).clone() for name in wanted}
    except (SafetensorError, RuntimeError) as error:
        raise damaged(source, str(error)) from error
    return _filled_state(state, source, tensors, seen)


def _size(source, about: dict[str, str], name: str) -> int:
    text = about.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise damaged(source, f"{name} {text!r}")
    return int(text)


def _wanted(state: LinearState, names: set[str], seen: torch.dtype | None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes, with -1 for what may be any size, and dtypes."""
    kinds = {dtype: name for name, dtype in _STATE_DTYPES.items()}
    sums = "F64" if seen is torch.float64 else "F32"
    batch, heads = state.batch, state.heads
    wanted: dict[str, tuple[tuple[int, ...], str]] = {"lengths": ((batch,), "I64"), "summed": ((batch,), "I64")}
    if "sums" in names:
        wanted["sums"] = (batch, heads, state._maps.features, state.value_width + 1), sums
    if "key" in names and seen is not None:
        wanted["key"] = (batch, heads, -1, state.width), kinds[seen]
        wanted["value"] = (batch, heads, -1, state.value_width), kinds[seen]
        wanted["keep"] = (batch, -1), "BOOL"
    return wanted


def _fits(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(found) == len(shape) and all(n in (-1, m) for m, n in zip(found, shape, strict=True))


def _filled_state(state: LinearState, source, tensors: dict[str, Tensor], seen: torch.dtype | None) -> LinearState:
    from .state import Recent, StateSnapshot

    lengths, summed = tensors["lengths"].numpy().copy(), tensors["summed"].numpy().copy()
    counts = np.zeros_like(lengths)
    if "key" in tensors:
        columns = tensors["key"].shape[2]
        if not columns == tensors["value"].shape[2] == tensors["keep"].shape[1] > 0:
            raise damaged(source, "recent tokens of several lengths")
        counts = tensors["keep"].sum(1).numpy()
    sound = (summed >= 0).all() and (lengths <= LARGEST).all() and np.array_equal(lengths - summed, counts)
    if not sound or (seen is None and (lengths > 0).any()) or ("sums" not in tensors and (summed > 0).any()):
        raise damaged(source, "lengths that cannot be those of a state")
    if seen is None:
        return state
    cpu = torch.device("cpu")
    state._seen = seen, cpu
    state._sums = engine_of(seen, cpu, state._maps, state.value_width)
    recent, columns, keep = None, 0, None
    if "key" in tensors:
        columns, keep = tensors["key"].shape[2], tensors["keep"]
        recent = Recent(tensors["key"], tensors["value"], columns)
        recent.write(tensors["key"], tensors["value"])
        keep = None if bool(keep.all()) else keep
    folded = state._sums.packed(tensors["sums"]) if "sums" in tensors else None
    state._held = StateSnapshot(folded, recent, columns, keep, lengths, summed)
    return state
