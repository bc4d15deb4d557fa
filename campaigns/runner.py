"""Runs a campaign in batches, each in a process of its own, so that a crash is counted and not suffered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .campaign import Campaign
from .ledger import RECORD, ROOT, STATE, Ledger, commit, publish

MARK = "campaign batch: "  # before the line in which a batch's process says what it did
MOST_OPEN = 10  # findings, after which no new batch starts: the same fault would only be found again
LAST_WORDS = 4000

Command = Callable[[str, int, int], list[str]]


def of_campaigns(name: str, seed: int, count: int) -> list[str]:
    """The command of one batch."""
    options = ["--seed", str(seed), "--count", str(count)]
    return [sys.executable, "-X", "faulthandler", "-m", "campaigns", name, *options]


class Batches:
    """The processes that run now. Each leads a group of its own, which ends with it: a batch may start others."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.processes: set[subprocess.Popen[str]] = set()

    def run(self, name: str, seed: int, count: int, limit: float) -> dict[str, Any]:
        """{"seed", "count", "seconds"} and either {"done", "figures"} or {"words"}, the last words of what failed."""
        told: dict[str, Any] = {"seed": seed, "count": count}
        # Threads that wait do not spin: several batches share the cores.
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "OMP_WAIT_POLICY": "passive"}
        before = time.monotonic()
        # A file, not a pipe: whoever a batch left behind could hold that open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = subprocess.Popen(
                self.command(name, seed, count),
                cwd=ROOT,
                env=os.environ | threads | {"HF_HUB_OFFLINE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes.add(process)
            try:
                process.wait(limit)
                how = _ending(process.returncode)
            except subprocess.TimeoutExpired:
                how = f"not over after {limit:g} s"
            finally:
                _end(process)
                self.processes.discard(process)
            said.seek(0)
            words = said.read()
        told["seconds"] = round(time.monotonic() - before, 2)
        lines = [line for line in words.splitlines() if line.startswith(MARK)]
        if process.returncode == 0 and lines:
            return told | json.loads(lines[-1].removeprefix(MARK))
        return told | {"words": f"{how}\n{words[-LAST_WORDS:]}"}

    def end(self) -> None:
        for process in tuple(self.processes):
            _end(process)


def _ending(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_campaign(
    name: str,
    campaign: Campaign,
    jobs: int,
    until: float,
    *,
    command: Command = of_campaigns,
    state: Path = STATE,
    record: Path = RECORD,
) -> Ledger:
    """Works off what is left of the goal, findings of before first, until it is reached or the time is over."""
    ledger, jobs = Ledger.of(name, state), 1 if campaign.alone else jobs
    ledger.worked_at(commit())
    again, batches = list(ledger.open), Batches(command)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task(
            f"{name} ({campaign.unit})", total=max(campaign.goal, ledger.done), completed=ledger.done
        )
        running: dict[Future[dict[str, Any]], dict[str, Any] | None] = {}

        def start() -> bool:
            if time.monotonic() >= until:
                return False
            if again:
                finding = again.pop(0)
                seed, count = finding["seed"], finding["count"]
            else:
                left = campaign.goal - ledger.done - sum(campaign.batch for old in running.values() if old is None)
                if left <= 0 or len(ledger.open) >= MOST_OPEN:
                    return False
                # A whole batch, be it more than is left: some do a little less than they are asked.
                finding, seed, count = None, ledger.next_seed, campaign.batch
                ledger.next_seed += 1
            running[pool.submit(batches.run, name, seed, count, campaign.limit)] = finding
            return True

        try:
            while True:
                while len(running) < jobs and start():
                    pass
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    ledger.enter(running.pop(future), future.result())
                    ledger.save(state)
                    progress.update(bar, completed=ledger.done)
        finally:
            batches.end()  # where this was stopped: a batch that is not over counts for nothing
    if ledger.done >= campaign.goal:
        publish(ledger, campaign.unit, campaign.about, campaign.gather(ledger.figures), record)
    return ledger
