"""Recent prompts and answers whose keys and values are kept: one that begins alike computes the rest only."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.mapped import PagesFile
from ..cache.prefixes import fingerprint
from ..errors import OptionError, QkvError, complaint
from ..inputs import check_size
from .model import Model, ModelCache

_LEAST = 32  # tokens below which computing them costs no more than the fork
_REST = 4  # tokens that are computed in any case: fewer would be rounded in another way than a whole prompt


def _alone(method: Any) -> Any:
    """One thread at a time."""

    @functools.wraps(method)
    def run(self: PrefixStore, *args: Any, **options: Any) -> Any:
        with self._lock:
            return method(self, *args, **options)

    return run


class PrefixStore:
    """Finds the longest known prefix of a list of tokens. Threads may share it, and take turns.

    Prefixes are the rows of one cache, each with its tokens; pages that several share are stored once. With a folder,
    a prefix that leaves memory, or `save()`, goes to a file there, which later calls map, also in other processes.

    Args:
        model: The model.
        limit: Bytes of pages that are kept in memory; the least recently used prefix is dropped first.
        folder: Where prefixes go that are dropped; it is created. Its files hold tokens in the clear.
        folder_limit: Bytes of this model's files there; the least recently used file is removed first.
        **options: Of `model.cache`, without `batch` and `bound`.

    hits: How many prefixes were found.

    Raises:
        OptionError: A limit is below 0, or the format is not known before the first prompt.
    """

    def __init__(
        self,
        model: Model,
        limit: int,
        *,
        folder: str | os.PathLike[str] | None = None,
        folder_limit: int = 1 << 33,
        **options: Any,
    ) -> None:
        if options.get("bound") is not None:
            wanted = "None: prefixes are rows of one cache, whose format is known"
            raise OptionError(complaint("bound", options["bound"], wanted))
        self.model, self.limit, self.hits = model, check_size("limit", limit, least=0), 0
        self._lock = threading.RLock()
        self.folder_limit = check_size("folder_limit", folder_limit, least=0)
        self._empty = model.cache(**options)
        self._cache: Any = None
        self._tokens: list[np.ndarray] = []
        self._used: list[int] = []
        self._time = count()
        # What was evicted is gone: such a row cannot be cropped, and a longer one does not replace it.
        layers = self._empty.layers if isinstance(self._empty, ModelCache) else ()
        self._cropped = bool(layers) and all(layer.window is None and layer.eviction is None for layer in layers)
        self.folder = None if folder is None else Path(folder)
        self._files: dict[Path, np.ndarray] = {}
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._kind = fingerprint(model.identity, {name: repr(each) for name, each in sorted(options.items())})[:16]

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in memory, mapped ones included."""
        cache = self._cache
        return 0 if cache is None else cache.nbytes

    @_alone
    def find(self, tokens: Sequence[int]) -> tuple[Any, int]:
        """A cache of one row for a prompt, and how many of its tokens it has; 0 if no known prefix is worth a fork.

        The last four tokens of the prompt are never among them, and fewer than 32 are not worth one.
        """
        given = _array(tokens)
        self._map_longer(given)
        shared = [_shared(given, each) for each in self._tokens]
        best = int(np.argmax(shared)) if shared else 0
        kept = min(shared[best], len(given) - _REST) if shared else 0
        if kept >= _LEAST:
            found = self._cache.fork([best])
            try:
                found.crop(kept)
            except OptionError:  # evicted from a window
                return self._empty.fork(), 0
            self._used[best] = next(self._time)
            self.hits += 1
            return found, kept
        return self._empty.fork(), 0

    @_alone
    def keep(self, tokens: Sequence[int], cache: Any, row: int = 0) -> None:
        """Keep the tokens of a row of a cache, of `find`; no page is copied."""
        given = _array(tokens)
        if len(given) < _LEAST or not self.limit:
            return
        rows = range(len(self._tokens))
        shared = [_shared(given, each) for each in self._tokens]
        for at in rows:
            if shared[at] == len(given) and (self._cropped or len(self._tokens[at]) == len(given)):
                self._used[at] = next(self._time)
                return
        if self._cropped:
            self._take([at for at in rows if shared[at] < len(self._tokens[at])])
        is_first = self._cache is None
        every = self._empty.fork() if is_first else self._cache
        try:
            every.extend(cache.fork([row]))
        except (AttributeError, QkvError) as error:
            wanted = "a cache that `find` returned, or a fork of one"
            raise OptionError(complaint("cache", type(cache).__name__, wanted)) from error
        if is_first:
            every.reorder([1])  # without the empty row
        self._cache = every
        self._tokens.append(given)
        self._used.append(next(self._time))
        while self.nbytes > self.limit:
            oldest = int(np.argmin(self._used))
            self._write(oldest)
            self._take([row for row in range(len(self._tokens)) if row != oldest])

    @_alone
    def save(self) -> None:
        """Write the prefixes in memory to the folder, for the next process."""
        for row in np.argsort(self._used).tolist():
            self._write(row)

    def _take(self, rows: list[int]) -> None:
        if len(rows) == len(self._tokens):
            return
        if rows:
            self._cache.reorder(rows)
        else:
            self._cache = None
        self._tokens, self._used = [self._tokens[row] for row in rows], [self._used[row] for row in rows]

    def _map_longer(self, given: np.ndarray) -> None:
        """Take the prefix of a file into memory that has more of these tokens than those in memory."""
        known = max([_LEAST - 1, *(_shared(given, each) for each in self._tokens)])
        if known >= len(given) - _REST or not self.limit or not self._read_folder():
            return
        shared = {path: _shared(given, tokens) for path, tokens in self._files.items()}
        path = max(
            shared, key=lambda each: shared[each] if self._cropped or shared[each] == len(self._files[each]) else 0
        )
        if shared[path] > known:
            tokens = self._files[path]
            try:
                found = self.model.load_cache(path, tokens=tokens, like=self._empty)
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            except (QkvError, OSError) as error:
                self._forget(path, error)
                return
            self.keep(tokens.tolist(), found)

    def _read_folder(self) -> bool:
        """Read the tokens of new files; whether there are files."""
        paths = set() if self.folder is None else set(self.folder.glob(f"{self._kind}-*.prefix"))
        self._files = {path: tokens for path, tokens in self._files.items() if path in paths}
        for path in sorted(paths - set(self._files)):
            try:
                with contextlib.closing(PagesFile(path)) as file:
                    self._files[path] = file.arrays["tokens"].numpy()
            except (QkvError, OSError, KeyError) as error:
                self._forget(path, error)
        return bool(self._files)

    def _forget(self, path: Path, error: Exception) -> None:
        """Remove a file that is of no use."""
        if not isinstance(error, FileNotFoundError):  # another process has removed it
            warnings.warn(f"{path.name} is removed from the prefixes: {error}", stacklevel=4)
        self._remove(path)

    def _write(self, row: int) -> None:
        """Write a prefix to the folder, unless a file has it; remove files until those left are within the limit."""
        if self.folder is None:
            return
        self._read_folder()
        tokens = self._tokens[row]
        shared = {path: _shared(tokens, each) for path, each in self._files.items()}
        if any(n == len(tokens) and (self._cropped or len(self._files[path]) == n) for path, n in shared.items()):
            return
        path = self.folder / f"{self._kind}-{hashlib.sha256(tokens.tobytes()).hexdigest()[:24]}.prefix"
        cache = self._cache.fork([row])
        if cache.nbytes > self.limit:  # it would not come back
            return
        try:
            self.model.save_cache(cache, path, tokens=tokens)
        except OSError as error:
            warnings.warn(f"{path.name} is not written: {error}", stacklevel=3)
            return
        self._files[path] = tokens
        for each, n in shared.items():
            if self._cropped and n == len(self._files[each]):
                self._remove(each)
        with contextlib.suppress(FileNotFoundError):  # of what another process removes now
            oldest = sorted(self._files, key=lambda each: each.stat().st_atime_ns)
            while sum(each.stat().st_size for each in self._files) > self.folder_limit:
                self._remove(oldest.pop(0))

    def _remove(self, path: Path) -> None:
        self._files.pop(path, None)
        with contextlib.suppress(OSError):
            path.unlink()


def _array(tokens: Sequence[int]) -> np.ndarray:
    given = np.asarray(tokens)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
        raise OptionError(complaint("tokens", repr(tokens)[:60], "a list of token numbers"))
    return given.astype(np.int64)


def _shared(one: np.ndarray, two: np.ndarray) -> int:
    """How many tokens two sequences begin with in common."""
    n = min(len(one), len(two))
    same = one[:n] == two[:n]
    return n if same.all() else int(same.argmin())
