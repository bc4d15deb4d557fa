"""What tells tokens from others without sending them: one sum with a phase for each place, and a length."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..inputs import compute_dtype
from ..masks import Mask
from ..masks.grid import is_tensor
from ..masks.joined import Joined
from ..similarity import AnySimilarity

# Of a token at place p the phase is a·p² + b·p, with other a and b for each axis: no permutation and no constant leaves
# such a sum as it is.
_PHASES = {"row": (1.9127, 0.7331), "head": (1.3177, 2.1439), "place": (0.8713, 1.6421), "width": (2.3371, 0.3919)}
_MAX_HASHED_BYTES = 1 << 24  # of a tensor that are hashed
_PORTABLE_TYPES = (int, float, complex, str, bytes)  # types whose repr is the same in every process
_FLOAT32_LIMIT = 1e30  # from which on float32 is not enough for sums


class TokenPhases(NamedTuple):
    """Where new tokens stand. turns (batch, n): a complex number of size 1 for each; real (batch, n): which of them
    count; None: all."""

    turns: np.ndarray
    real: Tensor | None


class Fingerprint(NamedTuple):
    """What tells tokens from others: Σ x e^(iφ), with a phase for each place, and ‖x‖, which is how far such a sum
    typically lies from that of other tokens. Machines may differ in how they round, so that the bits say nothing."""

    sum: complex = 0j
    size: float = 0.0

    def plus(self, other: Fingerprint, turn: complex = 1) -> Fingerprint:
        """Both as one; turned, where the two must not be exchanged or cancel each other."""
        return Fingerprint(self.sum + turn * other.sum, math.hypot(self.size, other.size))


def token_phases(past: np.ndarray, new: Tensor, counts: np.ndarray | None, left: bool) -> TokenPhases:
    """The places of new (batch, heads, n, width) behind `past` tokens of each row, however they come in chunks."""
    n = new.shape[2]
    skipped = n - counts if left and counts is not None else np.zeros_like(past)
    at = np.arange(n) - skipped[:, None]
    turns = _phasors("row", np.arange(len(past)))[:, None] * _phasors("place", past[:, None] + at)
    if counts is None:
        return TokenPhases(turns, None)
    return TokenPhases(turns, torch.from_numpy((at >= 0) & (at < counts[:, None])).to(new.device))


def fingerprint(tensor: Tensor, places: TokenPhases) -> Fingerprint:
    """What tells tensor (batch, heads, n, width) from another. What does not count is not looked at; what is not finite
    counts as much as all the rest.

    >>> key = torch.tensor([3.0, 4.0]).view(1, 1, 2, 1)
    >>> found, other = (look(each, placed(np.zeros(1), each, None, False)) for each in (key, key.flip(2)))
    >>> found.size, abs(found.sum - other.sum) > 0.1
    (5.0, True)
    """
    if tensor.numel() == 0:
        return Fingerprint()
    tensor = tensor.detach().to(compute_dtype(tensor.dtype)).contiguous()
    found = _phase_sum(tensor, places)
    if found is None:
        tensor = tensor.double()
        if places.real is not None:
            tensor = tensor.masked_fill(~places.real[:, None, :, None], 0.0)
        rest = float(torch.linalg.vector_norm(tensor.masked_fill(~tensor.isfinite(), 0.0))) or 1.0
        found = _phase_sum(torch.nan_to_num(tensor, rest, 2 * rest, -2 * rest), places)
    return found or Fingerprint(math.nan, math.inf)


def _phase_sum(tensor: Tensor, places: TokenPhases) -> Fingerprint | None:
    """None where the numbers of the dtype end."""
    sizes = torch.linalg.vector_norm(tensor, dim=-1)
    real, imaginary = _width_phasors(tensor.shape[3], tensor.dtype, tensor.device)
    sums = torch.complex(tensor @ real, tensor @ imaginary)  # a product with two columns takes five times as long
    if places.real is not None:
        away = ~places.real[:, None]
        sizes, sums = sizes.masked_fill(away, 0.0), sums.masked_fill(away, 0.0)
    size = float(torch.linalg.vector_norm(sizes))
    if not size < (_FLOAT32_LIMIT if tensor.dtype is torch.float32 else _FLOAT32_LIMIT**5):
        return None
    heads = (sums.cpu().numpy() * places.turns[:, None]).sum((0, 2))
    return Fingerprint(complex(heads @ _head_phasors(len(heads))), size)


def _phasors(axis: str, places: np.ndarray) -> np.ndarray:
    a, b = _PHASES[axis]
    at = places.astype(np.float64)
    return np.exp(1j * ((a * at + b) * at))


@lru_cache(maxsize=32)
def _head_phasors(heads: int) -> np.ndarray:
    return _phasors("head", np.arange(heads))


@lru_cache(maxsize=32)
def _width_phasors(width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of a number of size 1 for each place in a token, each (width,)."""
    turns = torch.from_numpy(_phasors("width", np.arange(width)))
    return turns.real.to(device, dtype), turns.imag.to(device, dtype)


def mask_text(mask: Mask | None) -> str:
    """The mask in words that are the same in every process, with a mark that tells contents apart."""
    if mask is None:
        return "None"
    if isinstance(mask, Joined):
        return f" {mask._sign} ".join(f"({mask_text(part)})" for part in mask.masks)
    held = [getattr(mask, name, None) for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ())
            if not name.startswith("_")]  # fmt: skip
    marks = [value_text(thing) for thing in held if thing is not None]
    return f"{type(mask).__name__}({', '.join(marks)})"


def similarity_text(similarity: AnySimilarity) -> str:
    """The similarity likewise."""
    fields = {name: value for name, value in vars(similarity).items() if name not in ("signature", "kind")}
    return f"{type(similarity).__name__}({', '.join(f'{k}={value_text(v)}' for k, v in fields.items())})"


def value_text(thing: Any) -> str:
    """Numbers as they are, tensors by shape and a mark of the contents, functions by name and a mark of their code."""
    if isinstance(thing, torch.nn.Module):
        return type(thing).__qualname__
    if isinstance(thing, FunctionType):
        return f"{thing.__qualname__} #{hashlib.blake2b(_describe_function(thing).encode(), digest_size=4).hexdigest()}"
    if callable(thing):
        return _describe_object(thing)
    if is_tensor(thing) or hasattr(thing, "__array__"):
        tensor = torch.as_tensor(thing).detach()
        kind = str(tensor.dtype).removeprefix("torch.")
        return f"<{kind} {tuple(tensor.shape)} #{_hash(tensor)}>"
    return repr(thing)


def _describe_object(thing: Any) -> str:
    """A callable object by its class and what it was made with."""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    held = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    plain = [f"{k}={v!r}" for k, v in held.items() if isinstance(v, (int, float, str))]
    return f"{name}({', '.join(plain)})" if plain and name == type(thing).__qualname__ else name


def _describe_function(function: FunctionType) -> str:
    """The code of a function with its constants and the plain values that it closes over: the same in every process
    that runs the same Python, without the address of anything."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _has_value(cell)]
    kept = [
        each
        for each in (*cells, *(function.__defaults__ or ()))
        if isinstance(each, _PORTABLE_TYPES) or is_tensor(each)
    ]
    return "|".join([_describe_code(function.__code__), *map(value_text, kept)])


def _has_value(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that was not given a value yet
        return False


def _describe_code(code: CodeType) -> str:
    constants = [
        _describe_code(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if isinstance(each, (CodeType, *_PORTABLE_TYPES))
    ]
    return "|".join([code.co_code.hex(), *code.co_names, *constants])


def _hash(tensor: Tensor) -> str:
    """A few signs that differ when the contents do; of a large tensor, when parts of it do."""
    flat = tensor.flatten()
    if flat.numel() * flat.element_size() > _MAX_HASHED_BYTES:
        flat = flat[:: -(-flat.numel() * flat.element_size() // _MAX_HASHED_BYTES)]
    plain = flat.contiguous().cpu()
    plain = plain.to(torch.uint8) if plain.dtype is torch.bool else plain
    return hashlib.blake2b(plain.view(torch.uint8).numpy().tobytes(), digest_size=4).hexdigest()
