"""Forks, threads, interrupts and process exits while kernels run: no hang, no crash, no wrong bit.

Most faults run in processes that are forked from an idle server, where kernels have one thread; a few in new processes,
where they have several. `python -m campaigns.process_fault_worker KIND SEED` runs one of them again.
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
from .process_fault_kinds import EXIT_CODES, LIMIT, exit_kind

# Of a batch of 50: how often each kind comes, and how many of those are in a new process.
SHARES = {
    "exit": (20, 3),
    "fork": (8, 1),
    "threads": (8, 2),
    "interrupt": (10, 1),
    "pool of forks": (2, 0),
    "pool of a fork server": (1, 1),
    "pool of spawned": (1, 1),
}
FORBIDDEN = (
    "terminate called",
    "double free",
    "corrupted",
    "Fatal Python error",
    "Segmentation fault",
    "nanobind: leaked",
    "pure virtual",
    "Exception ignored",
)
LAST_LINE = {"raises": "RuntimeError: this process ends with an error", "SIGINT": "KeyboardInterrupt"}


def judge(kind: str, seed: int, code: int | None, stderr: str) -> None:
    """Raise AssertionError if a process did not end as it should, or printed an unexpected error."""
    again = f"python -m campaigns.process_fault_worker {kind!r} {seed}"
    way = exit_kind(seed) if kind == "exit" else None
    expected = EXIT_CODES[way] if way else 0
    if code is None:
        raise AssertionError(f"{kind} ({way}): still running after {LIMIT} s; {again}\n{stderr}")
    if code != expected:
        raise AssertionError(f"{kind} ({way}): ended with {code} instead of {expected}; {again}\n{stderr}")
    forbidden = any(text in stderr for text in FORBIDDEN)
    last = LAST_LINE.get(way or "")
    if forbidden or (last is None and stderr.strip()) or (last is not None and not stderr.strip().endswith(last)):
        raise AssertionError(f"{kind} ({way}): unexpected text on stderr; {again}\n{stderr}")


def drawn(seed: int, count: int) -> list[tuple[str, int, bool]]:
    """`count` tuples (kind, seed, whether in a new process), in random order and with the shares of a batch."""
    draw, faults = random.Random(seed), []
    for kind, (times, fresh) in SHARES.items():
        faults += [(kind, draw.randrange(1 << 30), at < fresh) for at in range(times)]
    draw.shuffle(faults)
    while len(faults) < count:
        kind = draw.choice(("exit", "fork", "threads", "interrupt"))
        faults.append((kind, draw.randrange(1 << 30), False))
    return faults[:count]


def run(seed: int, count: int) -> Batch:
    environment = os.environ | {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-X", "faulthandler", "-m", "campaigns.process_fault_worker"]
    counts: Counter[str] = Counter()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--server"], cwd=ROOT, env=environment, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for kind, number, fresh in drawn(seed, count):
            if fresh:
                judge(kind, number, *_in_new_process([*command, kind, str(number)], environment))
            else:
                print(kind, number, file=server.stdin, flush=True)
                ended = json.loads(server.stdout.readline())
                judge(kind, number, ended["code"], ended["stderr"])
            counts[f"exit: {exit_kind(number)}" if kind == "exit" else kind] += 1
            counts["in a new process"] += fresh
        server.stdin.close()
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
    """How many faults of each kind, in all batches."""
    counts: Counter[str] = Counter()
    for batch in figures:
        counts.update(batch)
    return dict(sorted(counts.items()))


CAMPAIGN = Campaign(
    about="forks, threads, interrupts, pools and process exits while kernels run",
    unit="processes",
    goal=500,
    batch=50,
    run=run,
    gather=gather,
)
