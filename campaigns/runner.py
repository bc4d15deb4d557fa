"""Runs a campaign in batches, each in a separate process, so that a crash is a finding."""

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

MARK = "campaign batch: "  # starts the line with the result of a batch's process
MOST_OPEN = 10  # open findings after which no batch starts: it would find the same fault again
MOST_OUTPUT = 4000  # characters of a failed batch that are kept

Command = Callable[[str, int, int], list[str]]


def batch_command(name: str, seed: int, count: int) -> list[str]:
    """The command of one batch."""
    options = ["--seed", str(seed), "--count", str(count)]
    return [sys.executable, "-X", "faulthandler", "-m", "campaigns", name, *options]


class Batches:
    """The running processes. Each leads a process group that is killed with it, since a batch may start others."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.processes: set[subprocess.Popen[bytes]] = set()

    def run(self, name: str, seed: int, count: int, limit: float) -> dict[str, Any]:
        """{"seed", "count", "seconds"} and either {"done", "figures"} or {"words"}, the end of its output."""
        result: dict[str, Any] = {"seed": seed, "count": count}
        # Waiting threads must not spin: several batches share the cores.
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "OMP_WAIT_POLICY": "passive"}
        before = time.monotonic()
        # A file, not a pipe, which a process that a batch left behind could keep open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                self.command(name, seed, count),
                cwd=ROOT,
                env=os.environ | threads | {"HF_HUB_OFFLINE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes.add(process)
            try:
                process.wait(limit)
                how = _ending(process.returncode)
            except subprocess.TimeoutExpired:
                how = f"still running after {limit:g} s"
            finally:
                _end(process)
                self.processes.discard(process)
            output.seek(0)
            words = output.read()
        result["seconds"] = round(time.monotonic() - before, 2)
        lines = [line for line in words.splitlines() if line.startswith(MARK)]
        if process.returncode == 0 and lines:
            return result | json.loads(lines[-1].removeprefix(MARK))
        return result | {"words": f"{how}\n{words[-MOST_OUTPUT:]}"}

    def end(self) -> None:
        for process in tuple(self.processes):
            _end(process)


def _ending(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_campaign(
    name: str,
    campaign: Campaign,
    jobs: int,
    until: float,
    *,
    command: Command = batch_command,
    state: Path = STATE,
    record: Path = RECORD,
) -> Ledger:
    """Run open findings again, then new batches, until the goal or the time limit is reached."""
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
                # A full batch even if less is left: some batches do a little less than `count`.
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
            batches.end()  # if this was stopped: an unfinished batch does not count
    if ledger.done >= campaign.goal:
        publish(ledger, campaign.unit, campaign.about, campaign.gather(ledger.figures), record)
    return ledger
