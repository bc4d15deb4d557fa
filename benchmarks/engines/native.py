"""qkv.runtime: one native call a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.runtime.program import Rotary

from . import Engine, Rows

_CHUNK = 512
FORMATS = ("float32", "float16", "bfloat16", "int8")


class Native(Engine):
    """Steps are taken back by `crop`, so that all are at the same depth."""

    def __init__(self, path: Path, context: int, threads: int, activations: str, cache: str = "float16") -> None:
        torch.set_num_threads(threads)
        self.model = qkv.runtime.load(path, activations=activations, backend="native")
        self.cache_format, self.dtype = cache, getattr(torch, cache)
        self.cache = self.model.cache(1, dtype=self.dtype)

    def fill(self, rows: Rows) -> None:
        if len(rows) != self.cache.batch or any(len(row) < n for row, n in zip(rows, self.lengths, strict=True)):
            self.cache = self.model.cache(len(rows), dtype=self.dtype)
        self._append([row[n:] for row, n in zip(rows, self.lengths, strict=True)])

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths.tolist()

    def _append(self, rows: Rows) -> torch.Tensor:
        tokens = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True
        )
        lengths = torch.tensor([len(row) for row in rows])
        logits = torch.empty(0)
        for start in range(0, tokens.shape[1], _CHUNK):
            part = tokens[:, start : start + _CHUNK]
            counts = (lengths - start).clamp(0, part.shape[1])
            logits = self.model.step(
                part, self.cache, lengths=None if bool((counts == part.shape[1]).all()) else counts
            )
        return logits

    def steps(self, count: int) -> list[float]:
        lengths, times = self.lengths, []
        tokens = torch.full((self.cache.batch, 1), 7)
        for _ in range(count):
            before = time.perf_counter()
            self.model.step(tokens, self.cache)
            times.append(time.perf_counter() - before)
        self.cache.crop(lengths)
        return times

    def prompt(self, tokens: Sequence[int]) -> float:
        given = torch.tensor([tokens])
        before = time.perf_counter()
        self.cache = self.model.cache(1, dtype=self.dtype)
        self.model.step(given, self.cache)
        return time.perf_counter() - before

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        cache, found = self.model.cache(1, dtype=self.dtype), []
        logits = self.model.step(torch.tensor([tokens]), cache)
        while True:
            found.append(int(logits[0].argmax()))
            if len(found) == count:
                return found
            logits = self.model.step([[found[-1]]], cache)

    def logits(self, tokens: Sequence[int]) -> list[float]:
        return self.model.step(torch.tensor([tokens]), self.model.cache(1)).flatten().tolist()

    def cache_formats(self, depth: int, rounds: int) -> dict[str, list[float]]:
        """Seconds of a step on caches of random numbers in each storage format, interleaved."""
        caches = {name: self.model.cache(1, dtype=getattr(torch, name)) for name in FORMATS}
        times: dict[str, list[float]] = {name: [] for name in FORMATS}
        for cache in caches.values():
            for layer, part in zip(cache.layers, self.model.program.layers, strict=True):
                shape = (1, part.attention.kv_heads, depth, part.attention.width)
                layer.append(torch.randn(shape), torch.randn(shape))
        for _ in range(rounds):
            for name, cache in caches.items():
                self.cache = cache
                times[name].append(statistics.median(self.steps(4)[1:]))
        return times

    def read_bytes(self) -> int:
        """Every matrix once, norms and biases too; of an embedding that is not tied to the logits, one row."""
        parts: dict[int, int] = {}

        def visit(part: Any) -> None:
            if hasattr(part, "row_bytes"):
                parts[part.data.ctypes.data] = part.data.nbytes
            elif isinstance(part, torch.Tensor):
                parts[part.data_ptr()] = part.nbytes
            elif isinstance(part, tuple):
                for each in part:
                    visit(each)
            elif isinstance(part, Rotary):
                return
            elif hasattr(part, "__dataclass_fields__"):
                for name in part.__dataclass_fields__:
                    visit(getattr(part, name))

        program = self.model.program
        visit(program)
        embedding = program.embedding.data
        if program.logits.weight.data.ctypes.data != embedding.ctypes.data:
            parts[embedding.ctypes.data] = program.embedding.row_bytes
        return sum(parts.values())


ENGINE = Native
