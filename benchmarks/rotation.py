"""Comparisons over many KV caches in rotation, so that each is out of the processor's caches when it is used.

In a model, the other layers run between two steps of one layer; a KV cache that is used again and again stays in the
last-level cache, which is not what a user sees. Cold figures rotate over more than four times that cache, warm ones use
one KV cache.
"""

from __future__ import annotations

import gc
import math
import statistics
import time

from qkv.cost.machine import free_memory, last_level_cache

from .harness import Timings
from .peers import TimedCall

# OpenMP's threads spin for about 7 ms after their work, and would share the cores with an entry that has other threads.
QUIET = 0.012
SAMPLE = 6e-3  # seconds of a sample
MOST = 1200  # caches in a rotation, at most
FEW = 128  # if not even that many are cold, as at past 1 and 17; the tables call these "cache"
COPIES = 6  # of each cache, at most: two for torch, JAX's, qkv's, and temporaries of steps


def caches(size: int) -> int:
    """How many caches of `size` bytes make a cold rotation, as far as memory allows."""
    wanted = math.ceil(4.2 * last_level_cache() / size)
    possible = int(0.75 * free_memory() / (COPIES * size))
    return max(2, min(wanted if wanted <= MOST else FEW, possible))


def compare(entries: dict[str, list[TimedCall]], *, seconds: float = 2.0, rounds: int = 7) -> Timings:
    """Run each entry once a round, for at least `rounds` rounds and `seconds` seconds.

    An entry waits, makes one call that is not timed, then timed calls; their median is the sample. One counter rotates
    the caches of all entries, since they may share memory.
    """
    counts = {name: _count(calls) for name, calls in entries.items()}
    times: dict[str, list[float]] = {name: [] for name in entries}
    names, step, done = list(entries), 0, 0
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        while done < rounds or time.perf_counter() - started < seconds:
            for name in names[done % len(names) :] + names[: done % len(names)]:
                time.sleep(QUIET)
                calls, samples = entries[name], []
                for _ in range(counts[name] + 1):
                    samples.append(time_call(calls[step % len(calls)]))
                    step += 1
                times[name].append(statistics.median(samples[1:]))
            done += 1
    finally:
        gc.enable()
    return Timings(times)


def time_call(call: TimedCall) -> float:
    """Seconds of one call; restoring the cache is not counted."""
    before = time.perf_counter()
    out = call.run()
    after = time.perf_counter()
    del out
    if call.undo is not None:
        call.undo()
    return after - before


def _count(calls: list[TimedCall]) -> int:
    time_call(calls[0])
    once = max(time_call(calls[-1]), 1e-7)
    return max(1, min(300, round(SAMPLE / once)))
