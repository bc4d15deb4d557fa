"""llama.cpp by its low-level functions: no sampling, no copies of logits in Python, any number of sequences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np

from . import Engine, Rows

_BATCH = 2048  # tokens of a call, llama.cpp's default; it computes 512 at a time


class LlamaCpp(Engine):
    """Steps are taken back by `llama_memory_seq_rm`, so that all are at the same depth. The cache is in f16."""

    cache_format = "float16"

    def __init__(self, path: Path, context: int, threads: int, flash: bool) -> None:
        self.context_size, self.threads, self.flash = context, threads, flash
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model: Any = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise OSError(f"llama.cpp cannot load {path.name}")
        vocabulary = llama.llama_model_get_vocab(self.model)
        self.vocabulary = llama.llama_vocab_n_tokens(vocabulary)
        self.batch = llama.llama_batch_init(_BATCH, 0, 1)
        self.context: Any = None
        self.lengths: list[int] = []

    def _open(self, rows: int, size: int) -> None:
        """A context with this many sequences, for `size` tokens each."""
        if self.context is not None and len(self.lengths) == rows:
            return
        if self.context is not None:
            llama.llama_free(self.context)
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.n_batch = size * rows, rows, _BATCH
        parameters.n_threads = parameters.n_threads_batch = self.threads
        enabled, disabled = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = enabled if self.flash else disabled
        self.context = llama.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise MemoryError("llama_init_from_model")
        self.lengths = [0] * rows

    def _crop(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            llama.llama_memory_seq_rm(llama.llama_get_memory(self.context), row, length, -1)
        self.lengths = list(lengths)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Tokens as (number, row, position, whether its logits are wanted)."""
        batch = self.batch
        for at, (token, row, position, wanted) in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
            batch.seq_id[at][0], batch.logits[at] = row, wanted
        batch.n_tokens = len(tokens)
        if code := llama.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def _append(self, rows: Rows) -> None:
        for row, tokens in enumerate(rows):
            for start in range(0, len(tokens), _BATCH):
                part, past = tokens[start : start + _BATCH], self.lengths[row]
                last = start + len(part) == len(tokens)
                self._decode([(t, row, past + n, last and n == len(part) - 1) for n, t in enumerate(part)])
                self.lengths[row] += len(part)
        self._last(-1)

    def _last(self, at: int) -> Any:
        """The address of logits; this waits until they are computed."""
        return llama.llama_get_logits_ith(self.context, at)

    def fill(self, rows: Rows) -> None:
        self._open(len(rows), self.context_size if len(rows) == 1 else max(map(len, rows)) + 64)
        if any(len(row) < n for row, n in zip(rows, self.lengths, strict=True)):
            self._crop([0] * len(rows))
        self._append([row[n:] for row, n in zip(rows, self.lengths, strict=True)])

    def steps(self, count: int) -> list[float]:
        lengths, times = list(self.lengths), []
        for _ in range(count):
            before = time.perf_counter()
            self._decode([(7, row, length, True) for row, length in enumerate(self.lengths)])
            self._last(-1)
            times.append(time.perf_counter() - before)
            self.lengths = [length + 1 for length in self.lengths]
        self._crop(lengths)
        return times

    def prompt(self, tokens: Sequence[int]) -> float:
        before = time.perf_counter()
        self._open(1, self.context_size)
        self._crop([0])
        self._append([tokens])
        return time.perf_counter() - before

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        self.prompt(tokens)
        found = [int(self._logits().argmax())]
        while len(found) < count:
            self._append([[found[-1]]])
            found.append(int(self._logits().argmax()))
        self._crop([0])
        return found

    def _logits(self) -> np.ndarray:
        return np.ctypeslib.as_array(self._last(-1), (self.vocabulary,))

    def logits(self, tokens: Sequence[int]) -> list[float]:
        self.prompt(tokens)
        found = self._logits().tolist()
        self._crop([0])
        return found

    def __del__(self) -> None:
        if getattr(self, "context", None):
            llama.llama_free(self.context)
        if getattr(self, "model", None):
            llama.llama_batch_free(self.batch)
            llama.llama_model_free(self.model)


ENGINE = LlamaCpp
