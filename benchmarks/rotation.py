"""Races over many caches in turn, so that each visit finds its cache out of the processor's caches.

In use, the rest of a model runs between two steps of one layer; a cache that is visited again and again lies in
the last-level cache and shows another machine. Cold figures rotate over more than four times that cache, warm
ones stay on one cache.
"""

from __future__ import annotations

import gc
import math
import statistics
import time

from qkv.cost.machine import free_memory, last_level_cache

from .harness import Timings
from .peers import TimedCall

# OpenMP's threads spin for about 7 ms after their work; a entry with threads of its own must not share its
# cores with them.
QUIET = 0.012
SAMPLE = 6e-3  # a turn visits caches for about so long
MOST = 1200  # caches in a rotation
FEW = 128  # where not even that many are cold, as at past 1 and 17; the tables call these "cache"
COPIES = 6  # of each cache, at most: two for torch, JAX's, qkv's, and what steps make


def caches(size: int) -> int:
    """How many caches of `size` bytes make a cold rotation, as far as there is room."""
    wanted = math.ceil(4.2 * last_level_cache() / size)
    room = int(0.75 * free_memory() / (COPIES * size))
    return max(2, min(wanted if wanted <= MOST else FEW, room))


def compare(entries: dict[str, list[TimedCall]], *, seconds: float = 2.0, rounds: int = 7) -> Timings:
    """All in turns, one after the other in each round, at least `rounds` rounds and `seconds` long.

    A entry's turn: silence, one visit that is not timed, then visits that are; their median is the sample.
    One counter leads all of them from memory to cache, for they may share the same ones.
    """
    visits = {name: _visits(turns) for name, turns in entries.items()}
    times: dict[str, list[float]] = {name: [] for name in entries}
    names, step, done = list(entries), 0, 0
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        while done < rounds or time.perf_counter() - started < seconds:
            for name in names[done % len(names) :] + names[: done % len(names)]:
                time.sleep(QUIET)
                turns, samples = entries[name], []
                for _ in range(visits[name] + 1):
                    samples.append(visit(turns[step % len(turns)]))
                    step += 1
                times[name].append(statistics.median(samples[1:]))
            done += 1
    finally:
        gc.enable()
    return Timings(times)


def visit(turn: TimedCall) -> float:
    """Seconds of one step; bringing the cache back is not counted."""
    before = time.perf_counter()
    out = turn.run()
    after = time.perf_counter()
    del out
    if turn.undo is not None:
        turn.undo()
    return after - before


def _visits(turns: list[TimedCall]) -> int:
    visit(turns[0])
    once = max(visit(turns[-1]), 1e-7)
    return max(1, min(300, round(SAMPLE / once)))
