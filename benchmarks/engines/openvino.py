"""OpenVINO GenAI's continuous batching pipeline: `step()` computes one token of every request, and is timed.

A step includes its sampler (the largest logit). Keys and values are 8-bit, its default on CPUs. Requests cannot be
cropped, so the depth grows by the steps that were timed. GGUF weights become OpenVINO's compressed weights at load.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from . import Engine, Rows

_BLOCK = 32  # tokens of a block of its cache
_MOST_STEPS = 512  # that are timed after one filling


class OpenVino(Engine):
    cache_format = "u8"

    def __init__(self, path: Path, context: int, threads: int) -> None:
        config = genai.SchedulerConfig()
        config.max_num_batched_tokens, config.max_num_seqs = 1 << 16, 8
        config.num_kv_blocks = 8 * (min(context, 2048) // _BLOCK + 2) + context // _BLOCK + 2
        config.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(path, config, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.handles: list[Any] = []
        self.requests = 0

    def _clear(self) -> None:
        for handle in self.handles:
            handle.cancel()
        self.handles = []
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()

    def _add(self, tokens: Sequence[int], new: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        self.requests += 1
        self.handles.append(
            self.pipeline.add_request(self.requests, openvino.Tensor(np.array([tokens], dtype=np.int64)), config)
        )
        return self.handles[-1]

    def _until_first(self) -> None:
        """Steps until every request has a token."""
        while not all(handle.can_read() for handle in self.handles):
            self.pipeline.step()

    def fill(self, rows: Rows) -> None:
        self._clear()
        for row in rows:
            self._add(row, _MOST_STEPS)
        self._until_first()

    def steps(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            before = time.perf_counter()
            self.pipeline.step()
            times.append(time.perf_counter() - before)
        return times

    def prompt(self, tokens: Sequence[int]) -> float:
        self._clear()
        before = time.perf_counter()
        self._add(tokens, 1)
        self._until_first()
        seconds = time.perf_counter() - before
        self._clear()
        return seconds

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        self._clear()
        handle = self._add(tokens, count)
        found: list[int] = []
        while len(found) < count:
            self.pipeline.step()
            while handle.can_read():
                found += [token for output in handle.read().values() for token in output.generated_ids]
        self._clear()
        return found[:count]


ENGINE = OpenVino
