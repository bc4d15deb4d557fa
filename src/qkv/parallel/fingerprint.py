"""Fingerprints by which ranks compare tokens and arguments without sending them.

Tokens: a sum with a phase for each position, and a norm. Arguments: a text, with a hash of tensors and functions.
"""

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

# The phase at index p of an axis is a·p² + b·p, with different a and b for each axis: permutations and constants change
# such a sum.
_PHASES = {"row": (1.9127, 0.7331), "head": (1.3177, 2.1439), "place": (0.8713, 1.6421), "width": (2.3371, 0.3919)}
_MAX_HASHED_BYTES = 1 << 24  # a larger tensor is hashed in part
_PORTABLE_TYPES = (int, float, complex, str, bytes)  # types whose repr is the same in every process
_FLOAT32_LIMIT = 1e30  # beyond it float32 sums may overflow


class TokenPhases(NamedTuple):
    """The phases of new tokens. phasors (batch, n): a complex number of modulus 1 for each; keep (batch, n): which
    tokens are not padding; None: all."""

    phasors: np.ndarray
    keep: Tensor | None


class Fingerprint(NamedTuple):
    """Σ x e^(iφ), with a phase for each number, and ‖x‖, the typical difference of such sums of different tokens. They
    are compared with a tolerance, since machines round differently."""

    sum: complex = 0j
    norm: float = 0.0

    def plus(self, other: Fingerprint, factor: complex = 1) -> Fingerprint:
        """The fingerprint of both; a factor tells which is which and prevents that they cancel."""
        return Fingerprint(self.sum + factor * other.sum, math.hypot(self.norm, other.norm))


def token_phases(past: np.ndarray, new: Tensor, counts: np.ndarray | None, left: bool) -> TokenPhases:
    """The phases of new tokens (batch, heads, n, width) after `past` tokens of each row; chunks do not change them."""
    n = new.shape[2]
    skipped = n - counts if left and counts is not None else np.zeros_like(past)
    at = np.arange(n) - skipped[:, None]
    phasors = _phasors("row", np.arange(len(past)))[:, None] * _phasors("place", past[:, None] + at)
    if counts is None:
        return TokenPhases(phasors, None)
    return TokenPhases(phasors, torch.from_numpy((at >= 0) & (at < counts[:, None])).to(new.device))


def fingerprint(tensor: Tensor, phases: TokenPhases) -> Fingerprint:
    """The fingerprint of a tensor (batch, heads, n, width). Padding is ignored; a non-finite number counts as much as
    all the others together.

    >>> key = torch.tensor([3.0, 4.0]).view(1, 1, 2, 1)
    >>> found, other = (fingerprint(each, token_phases(np.zeros(1), each, None, False)) for each in (key, key.flip(2)))
    >>> found.norm, abs(found.sum - other.sum) > 0.1
    (5.0, True)
    """
    if tensor.numel() == 0:
        return Fingerprint()
    tensor = tensor.detach().to(compute_dtype(tensor.dtype)).contiguous()
    found = _phase_sum(tensor, phases)
    if found is None:
        tensor = tensor.double()
        if phases.keep is not None:
            tensor = tensor.masked_fill(~phases.keep[:, None, :, None], 0.0)
        rest = float(torch.linalg.vector_norm(tensor.masked_fill(~tensor.isfinite(), 0.0))) or 1.0
        found = _phase_sum(torch.nan_to_num(tensor, rest, 2 * rest, -2 * rest), phases)
    return found or Fingerprint(math.nan, math.inf)


def _phase_sum(tensor: Tensor, phases: TokenPhases) -> Fingerprint | None:
    """The fingerprint, or None if sums overflow."""
    norms = torch.linalg.vector_norm(tensor, dim=-1)
    real, imaginary = _width_phasors(tensor.shape[3], tensor.dtype, tensor.device)
    sums = torch.complex(tensor @ real, tensor @ imaginary)  # one product with two columns is five times slower
    if phases.keep is not None:
        padding = ~phases.keep[:, None]
        norms, sums = norms.masked_fill(padding, 0.0), sums.masked_fill(padding, 0.0)
    norm = float(torch.linalg.vector_norm(norms))
    if not norm < (_FLOAT32_LIMIT if tensor.dtype is torch.float32 else _FLOAT32_LIMIT**5):
        return None
    heads = (sums.cpu().numpy() * phases.phasors[:, None]).sum((0, 2))
    return Fingerprint(complex(heads @ _head_phasors(len(heads))), norm)


def _phasors(axis: str, indices: np.ndarray) -> np.ndarray:
    a, b = _PHASES[axis]
    p = indices.astype(np.float64)
    return np.exp(1j * ((a * p + b) * p))


@lru_cache(maxsize=32)
def _head_phasors(heads: int) -> np.ndarray:
    return _phasors("head", np.arange(heads))


@lru_cache(maxsize=32)
def _width_phasors(width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The real and the imaginary part of the phasors along the width, each (width,)."""
    phasors = torch.from_numpy(_phasors("width", np.arange(width)))
    return phasors.real.to(device, dtype), phasors.imag.to(device, dtype)


def mask_text(mask: Mask | None) -> str:
    """The mask as a text that is the same in every process, with hashes of its tensors."""
    if mask is None:
        return "None"
    if isinstance(mask, Joined):
        return f" {mask._sign} ".join(f"({mask_text(part)})" for part in mask.masks)
    values = [getattr(mask, name, None) for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ())
            if not name.startswith("_")]  # fmt: skip
    texts = [value_text(value) for value in values if value is not None]
    return f"{type(mask).__name__}({', '.join(texts)})"


def similarity_text(similarity: AnySimilarity) -> str:
    """The similarity as a text that is the same in every process."""
    fields = {name: value for name, value in vars(similarity).items() if name not in ("signature", "kind")}
    return f"{type(similarity).__name__}({', '.join(f'{k}={value_text(v)}' for k, v in fields.items())})"


def value_text(thing: Any) -> str:
    """A value as a text that is the same in every process: tensors by shape and hash, functions by name and hash."""
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
    """A callable object by its class and its public attributes that are numbers or strings."""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
    options = [f"{k}={v!r}" for k, v in public.items() if isinstance(v, (int, float, str))]
    return f"{name}({', '.join(options)})" if options and name == type(thing).__qualname__ else name


def _describe_function(function: FunctionType) -> str:
    """The code of a function with its constants and the numbers, strings and tensors that it closes over: the same in
    every process that runs the same Python, without addresses."""
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
    except ValueError:  # an unbound name
        return False


def _describe_code(code: CodeType) -> str:
    constants = [
        _describe_code(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if isinstance(each, (CodeType, *_PORTABLE_TYPES))
    ]
    return "|".join([code.co_code.hex(), *code.co_names, *constants])


def _hash(tensor: Tensor) -> str:
    """A hash of the contents; of a large tensor, of every n-th number."""
    flat = tensor.flatten()
    if flat.numel() * flat.element_size() > _MAX_HASHED_BYTES:
        flat = flat[:: -(-flat.numel() * flat.element_size() // _MAX_HASHED_BYTES)]
    data = flat.contiguous().cpu()
    data = data.to(torch.uint8) if data.dtype is torch.bool else data
    return hashlib.blake2b(data.view(torch.uint8).numpy().tobytes(), digest_size=4).hexdigest()
