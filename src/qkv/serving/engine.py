"""Continuous batching: one thread runs the model, and requests join and leave between its steps."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..errors import QkvError
from ..ops.packed import FEW_ROWS
from ..runtime import Model, Row
from ..runtime.prefixes import PrefixStore
from ..runtime.rows import chunks
from .limits import Limits, Refused

CHUNK = 64  # tokens of a prompt that run between two steps of the others


class Job:
    """A request in the engine.

    Args:
        tokens: The prompt.
        row: The answer.
        told: Whether each token is an event; otherwise only the end is.
        hear: What is called with its events, in the thread that `Engine` delivers them to.

    cached: Tokens of the prompt that were not computed.
    """

    def __init__(self, tokens: list[int], row: Row, *, told: bool, hear: Callable[[Event], None] | None = None) -> None:
        self.tokens, self.row, self.told = tokens, row, told
        self.hear = hear or (lambda event: None)
        self.cached = self.done = 0
        self.cache: Any = None
        self.deadline = 0.0
        self.left = False


class Event(NamedTuple):
    """What has become certain of an answer: its text, how many tokens it has, and at the end `last` or an error."""

    text: str
    tokens: int
    last: bool = False
    error: Refused | None = None


class Figures:
    """What has happened since the start."""

    def __init__(self) -> None:
        outcomes = "answered", "left", "refused", "late", "failed", "ended"
        self.outcomes: dict[str, int] = dict.fromkeys(outcomes, 0)
        self.prompt_tokens = self.cached_tokens = self.new_tokens = self.steps = self.steps_with_prompt = 0


class Engine:
    """Runs a model for many requests at once.

    All answers are rows of one cache. A prompt runs in chunks, between their steps or as a row of them.

    Args:
        model: The model; the engine alone uses it.
        limits: Rows, queue, bytes, seconds.
        deliver: Called in the engine's thread after each step with the events of all jobs.

    >>> Engine.__name__
    'Engine'
    """

    def __init__(
        self, model: Model, limits: Limits, deliver: Callable[[list[tuple[Job, Event]]], None] | None = None
    ) -> None:
        self.model, self.limits, self.figures = model, limits, Figures()
        self.deliver = deliver or (lambda events: [job.hear(event) for job, event in events])
        self.prefixes = PrefixStore(model, limits.cache_bytes)
        self.waiting: deque[Job] = deque()
        self.filling: deque[Job] = deque()
        self.running: list[Job] = []
        self.cache: Any = None
        self._events: list[tuple[Job, Event]] = []
        self._changed = threading.Condition()
        self._end: float | None = None  # when answers under way are stopped
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="qkv engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a request; Refused if there is no place."""
        job.deadline = time.monotonic() + self.limits.seconds
        with self._changed:
            if self._end is not None or self._closed:
                self.figures.outcomes["refused"] += 1
                raise Refused(503, "ending", "the server is ending")
            free = self.limits.rows - len(self.running) - len(self.filling)
            if len(self.waiting) >= self.limits.queue + max(free, 0):
                self.figures.outcomes["refused"] += 1
                words = f"{self.limits.rows} answers are being generated and {self.limits.queue} requests wait"
                raise Refused(429, "queue_full", f"{words}, which is all that this server takes; try again later")
            self.waiting.append(job)
            self._changed.notify()

    def leave(self, job: Job) -> None:
        """The client of a request has gone: its row is free before the next step."""
        with self._changed:
            job.left = True
            self._changed.notify()

    def end(self) -> None:
        """Refuse what waits; answers under way have `limits.grace` seconds."""
        with self._changed:
            self._end = min(self._end or float("inf"), time.monotonic() + self.limits.grace)
            self._changed.notify()

    def close(self) -> None:
        """Stop everything now and wait for the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        return not self._closed

    def _run(self) -> None:
        try:
            self._loop()
        finally:  # also after a fault of the engine: no request waits for ever
            self._closed = True
            self._sweep()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self.waiting or self.filling or self.running):
                    self._changed.wait()
                if self._closed:
                    return
                self._sweep()
                while self.waiting and len(self.running) + len(self.filling) < self.limits.rows:
                    self.filling.append(self.waiting.popleft())
            # A prompt among many answers is a row of their step, so that weights are read once for both. Few answers
            # keep the bits that they have alone, and other backends compute padding.
            if self.filling and len(self.running) > FEW_ROWS and self.model.backend == "native":
                self._guarded(self._step_and_fill, [*self.running, self.filling[0]])
            else:
                if self.running:
                    self._guarded(self._step, list(self.running))
                if self.filling:
                    self._guarded(self._fill, [self.filling[0]])
            self._tell()

    def _sweep(self) -> None:
        """End the requests whose clients have left, what is late, and everything when the server ends."""
        now = time.monotonic()
        over = self._closed or (self._end is not None and now >= self._end)
        for job in [*self.waiting, *self.filling, *self.running]:
            if job.left:
                self._drop(job, "left", None)
            elif over or (self._end is not None and job in self.waiting):
                self._drop(job, "ended", Refused(503, "ending", "the server is ending"))
            elif now > job.deadline:
                words = f"the answer took longer than {self.limits.seconds:g} s, which is all that a request gets"
                self._drop(job, "late", Refused(504, "timeout", words))
        self._tell()

    def _drop(self, job: Job, outcome: str, error: Refused | None) -> None:
        if job.cache is not None:
            self.prefixes.keep(job.tokens[: job.done], job.cache)
            job.cache = None
        for queue in (self.waiting, self.filling):
            if job in queue:
                queue.remove(job)
        if job in self.running:
            self._remove([job])
        self.figures.outcomes[outcome] += 1
        if error is not None:
            self._events.append((job, Event("", len(job.row.found.tokens), True, error)))

    def _guarded(self, work: Callable[[], None], jobs: list[Job]) -> None:
        """What raises ends the requests that it was done for, and not the server."""
        try:
            work()
        except Exception as error:
            if not isinstance(error, QkvError | MemoryError):
                traceback.print_exc()
            words = str(error) if isinstance(error, QkvError) else f"the server failed: {type(error).__name__}"
            for job in jobs:
                job.cache = None
                if job in self.running or job in self.filling:
                    self._drop(job, "failed", Refused(500, "failed", words))

    def _next_part(self, job: Job) -> list[int]:
        """The next tokens of a prompt; its cache is that of its longest known prefix at first."""
        if job.cache is None:
            job.cache, job.done = self.prefixes.find(job.tokens)
            job.cached = job.done
            self.figures.cached_tokens += job.cached
        start, stop = next(chunks(job.done, len(job.tokens), CHUNK))
        return job.tokens[start:stop]

    def _add_part(self, job: Job, part: list[int], cache: Any, row: int = 0) -> bool:
        """Count what was computed of a prompt; whether that was its end. Then it is kept, and its answer begins."""
        job.done += len(part)
        self.figures.prompt_tokens += len(part)
        if job.done < len(job.tokens):
            return False
        self.prefixes.keep(job.tokens, cache, row)
        job.cache = None
        self.running.append(self.filling.popleft())
        return True

    def _fill(self) -> None:
        """Run a chunk of the oldest prompt; requests that share a prefix with it wait until it is kept."""
        job = self.filling[0]
        part = self._next_part(job)
        logits, cache = self.model.step([part], job.cache), job.cache
        if not self._add_part(job, part, cache):
            return
        if self.cache is None:
            self.cache = cache
        else:
            self.cache.extend(cache)
        self._take([job], logits)

    def _step(self) -> None:
        tokens = [job.row.found.tokens[-1:] for job in self.running]
        logits = self.model.step(tokens, self.cache)
        self.figures.steps += 1
        self._take(list(self.running), logits)

    def _step_and_fill(self) -> None:
        """A step of the answers with a chunk of the oldest prompt as the last row."""
        job, count = self.filling[0], len(self.running)
        part = self._next_part(job)
        rows = [torch.tensor(row) for row in (*(each.row.found.tokens[-1:] for each in self.running), part)]
        lengths = torch.tensor([len(row) for row in rows])
        self.cache.extend(job.cache)
        logits = self.model.step(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), self.cache, lengths=lengths)
        self.figures.steps += 1
        self.figures.steps_with_prompt += 1
        if not self._add_part(job, part, self.cache, count):
            job.cache = self.cache.fork([count])
            self.cache.reorder(range(count))
        self._take(list(self.running), logits[: len(self.running)])

    def _take(self, jobs: list[Job], logits: torch.Tensor) -> None:
        """Choose the next token of each row, and let the answers leave that are finished."""
        log_probs = self.model.log_probabilities(logits)
        finished = []
        for job, own, best in zip(jobs, log_probs, log_probs.argmax(-1).tolist(), strict=True):
            found = job.row.found
            try:
                text = job.row.take(own, best)
            except QkvError as error:  # a constraint that nothing fulfils
                self._drop(job, "failed", Refused(400, "impossible", str(error)))
                continue
            self.figures.new_tokens += 1
            if found.finish:
                finished.append(job)
                self.figures.outcomes["answered"] += 1
            if job.told or found.finish:
                self._events.append((job, Event(text, len(found.tokens), bool(found.finish))))
        for job in finished:
            # A later turn of a chat begins with this one; the last token was not computed.
            self.prefixes.keep(job.tokens + job.row.found.tokens[:-1], self.cache, self.running.index(job))
        self._remove(finished)

    def _remove(self, jobs: list[Job]) -> None:
        rows = [at for at, job in enumerate(self.running) if job not in jobs]
        if len(rows) == len(self.running):
            return
        self.running = [self.running[at] for at in rows]
        if rows:
            self.cache.reorder(rows)
        else:
            self.cache = None

    def _tell(self) -> None:
        events, self._events = self._events, []
        if events:
            self.deliver(events)
