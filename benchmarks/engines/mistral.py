"""mistral.rs by its Python interface, which takes text and shows no steps.

A step is what mistral.rs itself reports: the time after the first new token, divided by the tokens after it. Each
sample computes the prompt again. A batch cannot be timed this way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mistralrs

import qkv

from . import Engine, Rows

_STEPS = 16  # of a sample: its clock has milliseconds


class MistralRs(Engine):
    cache_format = "float16"

    def __init__(self, path: Path, context: int, threads: int) -> None:
        kind = mistralrs.Which.GGUF(str(path.parent), path.name)
        self.runner = mistralrs.Runner(kind, max_seqs=1, token_source="none", prefix_cache_n=0)
        self.path, self.text = path, ""

    def _as_text(self, tokens: Sequence[int]) -> str:
        tokenizer = qkv.runtime.load(self.path).tokenizer
        text = tokenizer.decode(tokens)
        if abs(len(tokenizer.encode(text, bare=True)) - len(tokens)) > 2:  # a word that was cut may differ
            raise ValueError("the tokens are not those of their text")
        return text

    def _request(self, text: str, new: int) -> Any:
        found = self.runner.send_completion_request(
            mistralrs.CompletionRequest(prompt=text, model="default", max_tokens=new, temperature=0.0, ignore_eos=True)
        )
        if found.usage.completion_tokens != new:
            raise ValueError(f"{found.usage.completion_tokens} tokens where {new} were asked for")
        return found

    def fill(self, rows: Rows) -> None:
        if len(rows) > 1:
            raise ValueError("its interface shows no time of several rows")
        self.text = self._as_text(rows[0])

    def steps(self, count: int) -> list[float]:
        taken = self._request(self.text, 1 + _STEPS).usage.total_completion_time_sec
        return [taken / _STEPS] * count

    def prompt(self, tokens: Sequence[int]) -> float:
        text = self._as_text(tokens)
        before = time.perf_counter()
        self._request(text, 1)
        return time.perf_counter() - before

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        text = self._request(self._as_text(tokens), count).choices[0].text
        return qkv.runtime.load(self.path).tokenizer.encode(text, bare=True)


ENGINE = MistralRs
