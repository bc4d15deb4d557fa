"""Recent prompts and answers whose keys and values are kept: one that begins alike computes the rest only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from ..errors import OptionError
from .model import Model, ModelCache

_LEAST = 32  # tokens below which computing them costs no more than the fork
_REST = 4  # tokens that are computed in any case: fewer would be rounded in another way than a whole prompt


class Prefixes:
    """The rows of one cache, each with its tokens; pages that several share are stored once.

    Args:
        model: The model.
        limit: Bytes of pages that may be kept; the least recently used row is dropped first.
        **options: Of `model.cache`.
    """

    def __init__(self, model: Model, limit: int, **options: Any) -> None:
        self.limit, self.hits = limit, 0
        self._empty = model.cache(**options)
        self._cache: Any = None
        self._tokens: list[np.ndarray] = []
        self._used: list[int] = []
        self._time = count()
        # What has left a window is evicted: such a row cannot be cropped, and a longer one does not replace it.
        layers = self._empty.layers if isinstance(self._empty, ModelCache) else ()
        self._cropped = bool(layers) and all(layer.window is None for layer in layers)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def nbytes(self) -> int:
        cache = self._cache
        return 0 if cache is None else cache.nbytes

    def start(self, tokens: Sequence[int]) -> tuple[Any, int]:
        """A cache of one row for a prompt, and how many of its tokens it has."""
        given = np.array(tokens)
        shared = [_shared(given, each) for each in self._tokens]
        best = int(np.argmax(shared)) if shared else 0
        kept = min(shared[best], len(given) - _REST) if shared else 0
        if kept >= _LEAST:
            found = self._cache.fork()
            found.reorder([best])
            try:
                found.crop(kept)
            except OptionError:  # evicted from a window
                return self._empty.fork(), 0
            self._used[best] = next(self._time)
            self.hits += 1
            return found, kept
        return self._empty.fork(), 0

    def keep(self, tokens: Sequence[int], cache: Any) -> None:
        """Keep the tokens of a cache of one row; no page is copied."""
        given = np.array(tokens)
        if len(given) < _LEAST or not self.limit:
            return
        rows = range(len(self._tokens))
        shared = [_shared(given, each) for each in self._tokens]
        for row in rows:
            if shared[row] == len(given) and (self._cropped or len(self._tokens[row]) == len(given)):
                self._used[row] = next(self._time)
                return
        if self._cropped:
            self._take([row for row in rows if shared[row] < len(self._tokens[row])])
        if self._cache is None:
            self._cache = cache.fork()
        else:
            self._cache.extend(cache)
        self._tokens.append(given)
        self._used.append(next(self._time))
        while self.nbytes > self.limit:
            oldest = int(np.argmin(self._used))
            self._take([row for row in range(len(self._tokens)) if row != oldest])

    def _take(self, rows: list[int]) -> None:
        if len(rows) == len(self._tokens):
            return
        if rows:
            self._cache.reorder(rows)
        else:
            self._cache = None
        self._tokens, self._used = [self._tokens[row] for row in rows], [self._used[row] for row in rows]


def _shared(one: np.ndarray, two: np.ndarray) -> int:
    """How many tokens two sequences begin with in common."""
    n = min(len(one), len(two))
    same = one[:n] == two[:n]
    return n if same.all() else int(same.argmin())
