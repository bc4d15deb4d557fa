"""Prefix: tokens of a cache that stay as they are, from which caches fork; in this process, or from a file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..raw import as_bytes
from ..shapes import Int
from .eviction import Policy

if TYPE_CHECKING:
    from .kv import KVCache

_SAMPLES, _SAMPLE = 8, 4096


class Prefix:
    """Tokens that no longer change, from `KVCache.freeze` or `KVCache.map`.

    Caches that fork share its pages. A page is copied when one of them is about to write to it, that is the last one of
    a row if it is not full. The pages stay as long as the prefix or a fork uses them.

    >>> import torch, qkv
    >>> cache = qkv.KVCache(batch=1, heads=1, width=2)
    >>> cache.append(torch.ones(1, 1, 70, 2), torch.ones(1, 1, 70, 2))
    >>> prefix = cache.freeze()
    >>> one, other = prefix.fork(), prefix.fork()
    >>> one.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    >>> prefix.length, one.length, other.length
    (70, 73, 70)
    """

    __slots__ = ("_cache", "_file")

    def __init__(self, cache: KVCache, file: Any = None) -> None:
        self._cache, self._file = cache.fork(), file

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: str | None = None,
        tokens: Any = None,
        check: bool | None = None,
        eviction: Policy | None = None,
    ) -> Prefix:
        """As `KVCache.map`."""
        from .mapped import PagesFile

        file = PagesFile(path)
        file.expect(model, tokens)
        caches = file.caches(check=check, eviction=eviction)
        if len(caches) != 1 or caches[0] is None:
            raise file.damaged(f"{len(caches)} caches: a model's, which model.load_cache or qkv.hf.load_cache reads")
        return cls(caches[0], file)

    @property
    def batch(self) -> int:
        return self._cache.batch

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return self._cache.length

    @property
    def lengths(self) -> Int[torch.Tensor, " batch"]:
        """Tokens of each row, a copy."""
        return self._cache.lengths

    @property
    def dtype(self) -> torch.dtype | str:
        """The storage format."""
        return self._cache.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its pages."""
        return self._cache.nbytes

    def fork(self) -> KVCache:
        """Return a cache with these tokens, which are not copied.

        Raises:
            OptionError: The prefix is mapped from a file that another program has cut off or changed since.
        """
        if self._file is not None:
            self._file.check()
        return self._cache.fork()

    def save(self, path: str | os.PathLike[str], *, model: str | None = None, tokens: Any = None) -> None:
        """Write the pages to a file for `KVCache.map`, whole or not at all. A file of that name is replaced; those who
        have mapped it keep the old one.

        Args:
            path: The file. It holds the tokens in the clear, and keys and values from which text can be guessed.
            model: A name of the model, which `map` can ask for.
            tokens: The tokens of all rows, one row after another, which `map` can ask for.
        """
        from .mapped import write_pages

        write_pages(path, [self.fork()], count=int(self.lengths.sum()), model=model, tokens=tokens)

    def __repr__(self) -> str:
        return f"Prefix({self._cache!r})"


def fingerprint(*parts: Any) -> str:
    """A name of a model for files of its caches: a hash of its record, its sizes and samples of its weights.

    Of an array of more than 32 KiB, 8 samples of 4 KiB count: training a model, or quantizing it, gives another name,
    and changing a single number may not.

    >>> fingerprint({"layers": 2}, torch.zeros(3)) == fingerprint({"layers": 2}, torch.zeros(3))
    True
    >>> fingerprint({"layers": 2}, torch.zeros(3)) == fingerprint({"layers": 2}, torch.ones(3))
    False
    """
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, torch.Tensor | np.ndarray):
            digest.update(f"{part.dtype} {tuple(part.shape)};".encode())
            if isinstance(part, torch.Tensor):
                part = as_bytes(part.detach().cpu()).numpy()
            flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            step = max(_SAMPLE, (len(flat) - _SAMPLE) // (_SAMPLES - 1))
            for start in range(0, len(flat), step):
                digest.update(flat[start : start + _SAMPLE].data)
        elif isinstance(part, dict | list | tuple) or is_dataclass(part):
            if is_dataclass(part):
                pairs = ((each.name, getattr(part, each.name)) for each in fields(part))
            else:
                pairs = part.items() if isinstance(part, dict) else enumerate(part)
            digest.update(b"(")
            for name, each in pairs:
                digest.update(f"{name}=".encode())
                add(each)
            digest.update(b")")
        elif not callable(part):
            digest.update(f"{part!r};".encode())

    add(parts)
    return digest.hexdigest()
