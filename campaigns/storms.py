"""Forks, threads, interruptions and ends of processes while kernels run: nothing hangs, nothing crashes, no wrong bit.

Most storms run in processes that are forked off a quiet one, where kernels have one thread; a few in new ones, where
they have several. `python -m campaigns.storm_process KIND SEED` runs one of them again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import Any

from .campaign import Batch, Campaign
from .ledger import ROOT
from .storm_kinds import LIMIT, WAYS, way_of

# How often each kind comes in a batch of 50, and how many of those are in a new process.
SHARES = {
    "exit": (20, 3),
    "fork": (8, 1),
    "threads": (8, 2),
    "interrupt": (10, 1),
    "pool of forks": (2, 0),
    "pool of a fork server": (1, 1),
    "pool of spawned": (1, 1),
}
ALARMING = (
    "terminate called",
    "double free",
    "corrupted",
    "Fatal Python error",
    "Segmentation fault",
    "nanobind: leaked",
    "pure virtual",
    "Exception ignored",
)
WORDS_OF = {"raises": "RuntimeError: this storm ends with an error", "SIGINT": "KeyboardInterrupt"}


def judge(kind: str, seed: int, code: int | None, said: str) -> None:
    """Raises where a process of a storm did not end as it should, or said what nobody should have to read."""
    again = f"python -m campaigns.storm_process {kind!r} {seed}"
    way = way_of(seed) if kind == "exit" else None
    wanted = WAYS[way] if way else 0
    if code is None:
        raise AssertionError(f"{kind} ({way}): not over after {LIMIT} s; {again}\n{said}")
    if code != wanted:
        raise AssertionError(f"{kind} ({way}): ended with {code} instead of {wanted}; {again}\n{said}")
    alarming = [words for words in ALARMING if words in said]
    last = WORDS_OF.get(way or "")
    if alarming or (last is None and said.strip()) or (last is not None and not said.strip().endswith(last)):
        raise AssertionError(f"{kind} ({way}): said what it should not; {again}\n{said}")


def drawn(seed: int, count: int) -> list[tuple[str, int, bool]]:
    """(kind, seed, whether in a new process), in any order: the shares of a batch, as far as count goes."""
    draw, storms = random.Random(seed), []
    for kind, (times, fresh) in SHARES.items():
        storms += [(kind, draw.randrange(1 << 30), at < fresh) for at in range(times)]
    draw.shuffle(storms)
    while len(storms) < count:
        kind = draw.choice(("exit", "fork", "threads", "interrupt"))
        storms.append((kind, draw.randrange(1 << 30), False))
    return storms[:count]


def run(seed: int, count: int) -> Batch:
    environment = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-X", "faulthandler", "-m", "campaigns.storm_process"]
    counts: Counter[str] = Counter()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--nursery"], cwd=ROOT, env=environment, **pipes) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for kind, number, fresh in drawn(seed, count):
            if fresh:
                judge(kind, number, *_in_new_process([*command, kind, str(number)], environment))
            else:
                print(kind, number, file=nursery.stdin, flush=True)
                told = json.loads(nursery.stdout.readline())
                judge(kind, number, told["code"], told["said"])
            counts[f"exit: {way_of(number)}" if kind == "exit" else kind] += 1
            counts["in a new process"] += fresh
        nursery.stdin.close()
    return Batch(count, dict(sorted(counts.items())))


def _in_new_process(command: list[str], environment: dict[str, str]) -> tuple[int | None, str]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, errors="replace"
        )
    except subprocess.TimeoutExpired as late:
        return None, str(late.stderr or "")
    return done.returncode, done.stderr


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Storms of each kind, in all batches."""
    counts: Counter[str] = Counter()
    for batch in figures:
        counts.update(batch)
    return dict(sorted(counts.items()))


CAMPAIGN = Campaign(
    about="forks, threads, interrupts, pools and process exits while kernels run",
    unit="storms",
    goal=500,
    batch=50,
    run=run,
    gather=gather,
)
