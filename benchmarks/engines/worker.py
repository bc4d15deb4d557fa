"""`python -m benchmarks.engines.worker NAME THREADS`: one engine; commands and answers are lines of JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

from . import ENGINES, Engine, make_engine


class Commands:
    """What a worker can be asked."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self.engine: Engine | None = None

    def _make(self, path: str, context: int, options: dict[str, Any]) -> Engine:
        return make_engine(self.name, Path(path), context, self.threads, **options)

    def load(self, path: str, context: int, **options: Any) -> dict[str, Any]:
        self.engine = self._make(path, context, options)
        return {"cache": self.engine.cache_format, "bytes": self.engine.read_bytes()}

    def fill(self, rows: list[list[int]]) -> None:
        self._loaded.fill(rows)

    def steps(self, count: int) -> list[float]:
        gc.disable()
        try:
            return self._loaded.steps(count)
        finally:
            gc.enable()

    def prompt(self, tokens: list[int]) -> float:
        return self._loaded.prompt(tokens)

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        return self._loaded.greedy(tokens, count)

    def logits(self, tokens: list[int]) -> list[float] | None:
        return self._loaded.logits(tokens)

    def cache_formats(self, depth: int, rounds: int) -> dict[str, list[float]]:
        return getattr(self._loaded, "cache_formats")(depth, rounds)  # noqa: B009 - of qkv alone

    def first(self, path: str, tokens: list[int], **options: Any) -> float:
        """Seconds from opening the file to the logits of a prompt, with another instance of the engine."""
        gc.collect()
        before = time.perf_counter()
        engine = self._make(path, 512, options)
        engine.prompt(tokens)
        return time.perf_counter() - before

    @property
    def _loaded(self) -> Engine:
        assert self.engine is not None, "load comes first"
        return self.engine


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    assert name in ENGINES, name
    # Libraries print to standard output: it becomes standard error, and answers go to a copy.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = Commands(name, threads)
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = {"result": getattr(commands, message.pop("command"))(**message)}
        except Exception as error:  # every failure of a peer is an answer
            said = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            answer = {"error": f"{type(error).__name__}: {said[-1][-160:]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
