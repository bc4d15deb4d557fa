"""Runs a campaign in batches, each in a process of its own, so that a crash is counted and not suffered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .campaign import Campaign
from .ledger import ROOT, Ledger, commit, publish

MARK = "campaign batch: "  # before the line in which a batch's process says what it did


def run_batch(name: str, seed: int, count: int, limit: int) -> dict[str, Any]:
    """{"seed", "count", "seconds"} and either {"done", "figures"} or {"words"}, the last words of what failed."""
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "campaigns",
        name,
        "--seed",
        str(seed),
        "--count",
        str(count),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "HF_HUB_OFFLINE": "1"}
    told: dict[str, Any] = {"seed": seed, "count": count}
    before = time.monotonic()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return told | {"seconds": limit, "words": f"not over after {limit} s"}
    told["seconds"] = round(time.monotonic() - before, 2)
    says = [line for line in ended.stdout.splitlines() if line.startswith(MARK)]
    if ended.returncode == 0 and says:
        return told | json.loads(says[-1].removeprefix(MARK))
    words = (ended.stdout + ended.stderr)[-4000:]
    return told | {"words": f"ended with {ended.returncode}\n{words}"}


def run_campaign(name: str, campaign: Campaign, jobs: int, until: float) -> Ledger:
    """Works off what is left of the goal, findings of before first, until it is reached or the time is over."""
    ledger, jobs = Ledger.of(name), 1 if campaign.alone else jobs
    ledger.worked_at(commit())
    again, ledger.open = ledger.open, []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task(
            f"{name} ({campaign.unit})", total=max(campaign.goal, ledger.done), completed=ledger.done
        )
        running: dict[Future[dict[str, Any]], dict[str, Any] | None] = {}

        def start() -> bool:
            if again:
                finding = again.pop(0)
                seed, count = finding["seed"], finding["count"]
            else:
                left = campaign.goal - ledger.done - sum(campaign.batch for old in running.values() if old is None)
                if left <= 0 or time.monotonic() >= until:
                    return False
                finding, seed, count = None, ledger.next_seed, min(campaign.batch, left)
                ledger.next_seed += 1
            running[pool.submit(run_batch, name, seed, count, campaign.limit)] = finding
            return True

        while True:
            while len(running) < jobs and start():
                pass
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                _enter(ledger, running.pop(future), future.result())
                ledger.save()
                progress.update(bar, completed=ledger.done)
    if ledger.done >= campaign.goal:
        publish(ledger, campaign.unit, campaign.about, campaign.gather(ledger.figures))
    return ledger


def _enter(ledger: Ledger, finding: dict[str, Any] | None, told: dict[str, Any]) -> None:
    ledger.seconds += told["seconds"]
    if "words" in told:
        ledger.open.append(told)
        return
    if finding is not None:
        ledger.mended.append({key: finding[key] for key in ("seed", "count", "words")})
    ledger.done += told["done"]
    ledger.batches += 1
    if told["figures"]:
        ledger.figures.append(told["figures"])
