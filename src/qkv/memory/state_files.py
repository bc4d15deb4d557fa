"""A LinearState in a file: safetensors, written whole or not at all, and checked before it is believed.

Tensors: lengths and summed (batch,); sums (batch, heads, features, value_width + 1), the last column Σ φ(k), where
there are any; key and value (batch, heads, recent, width) and keep (batch, recent), where there are recent tokens.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, QkvError, complaint
from ..similarity import AnySimilarity
from .files import LARGEST, check_header, checked_path, damaged, write
from .sums import engine_of

if TYPE_CHECKING:
    from .state import LinearState

_FORMAT, _VERSION = "qkv.LinearState", "1"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def save(state: LinearState, path: str | os.PathLike[str]) -> None:
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
    about = {"format": _FORMAT, "version": _VERSION, "similarity": repr(state.similarity), "dtype": dtype}
    write(target, tensors, about | sizes)


def load(kind: type[LinearState], path: str | os.PathLike[str], similarity: AnySimilarity) -> LinearState:
    """Raises OptionError for a file that is damaged, not a state, or one of another similarity."""
    from safetensors import SafetensorError, safe_open

    source = checked_path(path)
    check_header(source)
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT or about.get("version") != _VERSION:
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
    return _filled(state, source, tensors, seen)


def _size(source, about: dict[str, str], name: str) -> int:
    text = about.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise damaged(source, f"{name} {text!r}")
    return int(text)


def _wanted(state: LinearState, names: set[str], seen: torch.dtype | None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes, with -1 for what may be any size, and dtypes."""
    kinds = {dtype: name for name, dtype in _DTYPES.items()}
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


def _filled(state: LinearState, source, tensors: dict[str, Tensor], seen: torch.dtype | None) -> LinearState:
    from .state import Held, Recent

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
    state._held = Held(folded, recent, columns, keep, lengths, summed)
    return state
