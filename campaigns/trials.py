"""The loop of a campaign over inputs: each is drawn, run within limits of time and memory, and read or refused."""

from __future__ import annotations

import heapq
import random
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .campaign import Batch
from .reached import Reached

MEBI = 1 << 20
SECONDS = 2.0  # processor time that an input may take
GROWTH = 128 * MEBI  # by which an input may raise the peak resident memory
TRACED = 50  # one in this many of a kind runs under the tracer, and all of the first ones
FIRST, SLOWER = 50, 30  # how many those are, and how much slower the tracer may make an input
MOST_FINDINGS, SHOWN, SLOWEST = 5, 3000, 3


class Trial(NamedTuple):
    """kind: the reader; given: the input, whose repr is enough to run it again."""

    kind: str
    given: Any


class TooLong(BaseException):
    """Not an Exception, so that no handler takes it for a refused input."""


class TooLarge(Exception):
    pass


Draw = Callable[[random.Random, list[Any]], Trial]
Check = Callable[[Trial], bool]


def try_all(
    seed: int,
    count: int,
    draw: Draw,
    check: Check,
    folders: tuple[str, ...],
    seconds: float = SECONDS,
    untraced: tuple[str, ...] = (),
) -> Batch:
    """Run `count` trials.

    Args:
        draw: makes a trial from a random source and the pool of inputs that reached new lines.
        check: whether the input was read, not refused; an exception is a finding.
        folders: of the package, where lines are counted.
        seconds: processor time that an input may take.
        untraced: kinds that are too slow for the tracer.

    Continues after a finding, so that a batch reports several faults, and raises them all at the end with their inputs:
    the pool depends on the code, so another version of it gets other inputs from the same seed.
    """
    chance, pool, reached = random.Random(seed), [], Reached(folders)
    outcomes: Counter[str] = Counter()
    slowest: list[tuple[float, str]] = []
    findings: dict[str, str] = {}
    begun = time.process_time()
    kinds: Counter[str] = Counter()
    for _ in range(count):
        trial = draw(chance, pool)
        traced = trial.kind not in untraced and (kinds[trial.kind] < FIRST or kinds[trial.kind] % TRACED == 0)
        kinds[trial.kind] += 1
        before = time.thread_time()
        try:
            with within(seconds * (SLOWER if traced else 1)), small():
                if traced:
                    with reached:
                        read = check(trial)
                    if reached.new:
                        pool.append(trial.given)
                else:
                    read = check(trial)
        except (Exception, TooLong) as error:
            frames = traceback.extract_tb(error.__traceback__)
            findings.setdefault(f"{type(error).__name__} in {frames[-1].name}", _described(trial, error))
            if len(findings) == MOST_FINDINGS:
                break
            continue
        took = time.thread_time() - before
        outcomes[f"{trial.kind}, {'read' if read else 'refused'}"] += 1
        if not traced and (len(slowest) < SLOWEST or took > slowest[0][0]):
            push = heapq.heappush if len(slowest) < SLOWEST else heapq.heappushpop
            push(slowest, (round(took, 4), f"{trial.kind}: {trial.given!r}"[:200]))
    if findings:
        raise AssertionError("\n\n".join(findings.values()))
    took = time.process_time() - begun
    return Batch(
        count,
        {
            "inputs": count,
            "cpu_seconds": round(took, 2),
            "outcomes": dict(sorted(outcomes.items())),
            "slowest": sorted(slowest, reverse=True),
            "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "lines": len(reached.lines),
            "lines_of_the_files": reached.lines_of_files(),
            "pool": len(pool),
        },
    )


def _described(trial: Trial, error: BaseException) -> str:
    given = repr(trial.given)
    given = given if len(given) <= SHOWN else f"{given[:SHOWN]} … {len(given)} characters"
    return f"{trial.kind}: {given}\n{''.join(traceback.format_exception(error, limit=-6))}"


def gathered(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all batches as one."""
    outcomes: Counter[str] = Counter()
    for each in figures:
        outcomes.update(each["outcomes"])
    inputs, seconds = (sum(each[name] for each in figures) for name in ("inputs", "cpu_seconds"))
    slowest = sorted((tuple(one) for each in figures for one in each["slowest"]), reverse=True)[:SLOWEST]
    refused = sum(number for kind, number in outcomes.items() if kind.endswith("refused"))
    return {
        "inputs": inputs,
        "inputs_a_cpu_second": round(inputs / seconds) if seconds else 0,
        "refused_share": round(refused / inputs, 4) if inputs else 0,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest": slowest,
        "peak_mebibytes": max(each["peak_mebibytes"] for each in figures),
        # The best of one batch: each starts with an empty pool.
        "lines": max(each["lines"] for each in figures),
        "lines_of_the_files": max(each["lines_of_the_files"] for each in figures),
    }


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLong after this much processor time: a busy machine is not a finding."""

    def stop(number: int, frame: Any) -> None:
        raise TooLong(f"still running after {seconds:g} s of processor time")

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


@contextmanager
def small() -> Iterator[None]:
    """Raise TooLarge if the peak memory of this process rises by more than GROWTH."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before << 10
    if more > GROWTH:
        raise TooLarge(f"{more / MEBI:.0f} MiB more than before it")


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """Limit the address space to `more` bytes than now: to allocate what a file claims is then a MemoryError."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
