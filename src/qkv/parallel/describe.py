"""Arguments as texts that are the same in every process, with hashes of tensors and functions, so that ranks can
compare them without sending them."""

from __future__ import annotations

import hashlib
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..masks import Mask
from ..masks.grid import is_tensor
from ..masks.joined import Joined
from ..similarity import AnySimilarity

_MAX_HASHED_BYTES = 1 << 24  # a larger tensor is hashed in part


def mask_text(mask: Mask | None) -> str:
    """The mask as a text that is the same in every process, with hashes of its tensors."""
    if mask is None:
        return "None"
    if isinstance(mask, Joined):
        return f" {mask._sign} ".join(f"({mask_text(part)})" for part in mask.masks)
    names = [name for cls in type(mask).__mro__ for name in getattr(cls, "__slots__", ()) if not name.startswith("_")]
    values = [getattr(mask, name, None) for name in names]
    return f"{type(mask).__name__}({', '.join(value_text(value) for value in values if value is not None)})"


def similarity_text(similarity: AnySimilarity) -> str:
    """The similarity as a text that is the same in every process."""
    fields = {name: value for name, value in vars(similarity).items() if name not in ("signature", "kind")}
    return f"{type(similarity).__name__}({', '.join(f'{k}={value_text(v)}' for k, v in fields.items())})"


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def value_text(thing: Any) -> str:
    """A value as a text that is the same in every process: tensors by shape and hash, functions by name and hash,
    other callable objects by their class and their public numbers and strings."""
    if isinstance(thing, torch.nn.Module):
        return type(thing).__qualname__
    if isinstance(thing, FunctionType):
        code = thing.__code__
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        kept = [
            value_text(each) for each in (*code.co_consts, *(thing.__defaults__ or ()), *cells) if _is_portable(each)
        ]
        return f"{thing.__qualname__} #{_hash('|'.join([code.co_code.hex(), *code.co_names, *kept]).encode())}"
    if callable(thing):
        if hasattr(thing, "__qualname__"):
            return thing.__qualname__
        public = {k: v for k, v in getattr(thing, "__dict__", {}).items() if not k.startswith("_")}
        options = [f"{k}={v!r}" for k, v in public.items() if isinstance(v, (int, float, str))]
        return f"{type(thing).__qualname__}({', '.join(options)})"
    if is_tensor(thing) or hasattr(thing, "__array__"):
        tensor = torch.as_tensor(thing).detach()
        return f"<{dtype_text(tensor.dtype)} {tuple(tensor.shape)} #{_hash(_bytes(tensor))}>"
    return repr(thing)


def _is_portable(thing: Any) -> bool:
    """Whether the text of a value is the same in every process."""
    return isinstance(thing, (int, float, complex, str, bytes)) or is_tensor(thing)


def _bytes(tensor: Tensor) -> bytes:
    """The contents; of a large tensor, every n-th number."""
    flat = tensor.flatten()
    if flat.nbytes > _MAX_HASHED_BYTES:
        flat = flat[:: -(-flat.nbytes // _MAX_HASHED_BYTES)]
    data = flat.contiguous().cpu()
    return (data.to(torch.uint8) if data.dtype is torch.bool else data).view(torch.uint8).numpy().tobytes()


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()
