"""The runner of campaigns: a failure is kept with its seed, finished work is not repeated, no process is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from campaigns.campaign import Batch, Campaign
from campaigns.ledger import ROOT, Ledger
from campaigns.runner import MARK, MOST_OPEN, run_campaign

FOREVER = float("inf")
# A batch as a process: it logs its seed, and does what the file named by its seed says.
PROGRAM = f"""
import os, pathlib, signal, subprocess, sys, time
folder, seed, count = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with (folder / "started").open("a") as log:
    print(seed, os.getpid(), file=log)
action = folder / seed
what = action.read_text() if action.exists() else ""
if what == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
if what == "raises":
    sys.exit("a promise is broken")
if what == "hangs":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)
if what == "says nothing":
    sys.exit(0)
print({MARK!r} + '{{"done": %s, "figures": {{"seed": %s}}}}' % (count, seed))
"""
# The runner as a process that can be stopped.
RUNNER = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import signal, pathlib
from tests.campaigns.test_runner import ran
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
ran(pathlib.Path(sys.argv[3]))
"""


def fake(**options) -> Campaign:
    def run(seed: int, count: int) -> Batch:
        raise AssertionError("batches run in separate processes")

    given = {"goal": 30, "batch": 10, "limit": 60, "gather": lambda figures: {"seeds": [e["seed"] for e in figures]}}
    return Campaign("what it is about", "things", run=run, **given | options)


def ran(folder: Path, jobs: int = 1, until: float = FOREVER, **options) -> Ledger:
    program = folder / "program.py"
    program.write_text(PROGRAM)

    def command(name: str, seed: int, count: int) -> list[str]:
        return [sys.executable, "-S", str(program), str(folder), str(seed), str(count)]

    places = {"state": folder / "state", "record": folder / "record.json"}
    return run_campaign("fake", fake(**options), jobs, until, command=command, **places)


def started(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "started").read_text().splitlines()]


def alive(group: int) -> list[str]:
    """The running processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            about = path.read_text().rsplit(")", 1)[1].split()
            if int(about[2]) == group and about[0] != "Z":
                found.append(path.parent.name)
    return found


def test_a_goal_that_is_reached_is_published_and_nothing_more_is_run(tmp_path):
    ledger = ran(tmp_path, goal=25)
    assert (ledger.done, ledger.batches, ledger.open) == (30, 3, [])  # the last batch is a whole one too
    published = json.loads((tmp_path / "record.json").read_text())["fake"]
    assert published["done"] == 30
    assert published["figures"] == {"seeds": [0, 1, 2]}
    assert published["about"] == "what it is about"
    assert ran(tmp_path, goal=25).done == 30
    assert started(tmp_path) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("action", "words"), [("dies", "ended by SIGSEGV"), ("raises", "a promise is broken"),
                                             ("says nothing", "ended with 0")])  # fmt: skip
def test_what_breaks_is_open_under_its_seed_until_it_passes(tmp_path, action, words):
    (tmp_path / "1").write_text(action)
    ledger = ran(tmp_path)
    assert ledger.done == 30
    assert [finding["seed"] for finding in ledger.open] == [1]
    assert words in ledger.open[0]["words"]
    assert len(ran(tmp_path).open) == 1
    (tmp_path / "1").unlink()
    mended = ran(tmp_path)
    assert mended.open == []
    assert [finding["seed"] for finding in mended.mended] == [1]
    assert words in mended.mended[0]["words"]
    assert started(tmp_path) == [0, 1, 2, 3, 1, 1]


@pytest.mark.slow
def test_a_batch_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    (tmp_path / "0").write_text("hangs")
    before = time.monotonic()
    ledger = ran(tmp_path, goal=10, limit=3)
    assert time.monotonic() - before < 60
    assert "still running after 3 s" in ledger.open[0]["words"]
    assert ledger.done == 10
    assert not alive(int((tmp_path / "started").read_text().split()[1]))


@pytest.mark.slow
def test_where_everything_breaks_it_stops(tmp_path):
    for seed in range(MOST_OPEN + 5):
        (tmp_path / str(seed)).write_text("raises")
    assert len(ran(tmp_path).open) == MOST_OPEN
    assert not (tmp_path / "record.json").exists()


def test_no_batch_starts_when_the_time_is_over(tmp_path):
    assert ran(tmp_path, until=time.monotonic()).done == 0
    assert not (tmp_path / "started").exists()


def test_several_at_once_reach_the_goal_and_no_batch_more(tmp_path):
    ledger = ran(tmp_path, jobs=3, goal=45)
    assert ledger.done == 50
    assert sorted(started(tmp_path)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_after_a_stop_it_goes_on_where_it_was(tmp_path):
    (tmp_path / "0").write_text("raises")
    (tmp_path / "2").write_text("hangs")
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parent), str(tmp_path)]
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, *paths], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not (tmp_path / "started").exists() or started(tmp_path)[-1] != 2:
        assert runner.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(60) == 128 + signal.SIGTERM
    assert not alive(int((tmp_path / "started").read_text().split()[-1]))
    kept = Ledger.of("fake", tmp_path / "state")
    assert (kept.done, [finding["seed"] for finding in kept.open]) == (10, [0])
    (tmp_path / "2").unlink()
    ledger = ran(tmp_path)
    assert ledger.done == 30
    assert [finding["seed"] for finding in ledger.open] == [0]
    assert started(tmp_path) == [0, 1, 2, 0, 2, 3]


@pytest.mark.slow
def test_a_finding_is_not_forgotten_by_a_stop_before_it_is_tried_again(tmp_path):
    for seed in (0, 1):
        (tmp_path / str(seed)).write_text("raises")
    ran(tmp_path)
    assert [finding["seed"] for finding in ran(tmp_path, until=time.monotonic()).open] == [0, 1]


def test_another_machine_goes_on_with_what_is_not_over(tmp_path):
    found = {"seed": 3, "count": 10, "words": f"Traceback\n  File {ROOT}/campaigns/x.py\nAssertionError: in {ROOT}/src"}
    ledger = Ledger("fake", done=20, batches=2, next_seed=4, open=[found], figures=[{"seed": 0}])
    ledger.keep(30, tmp_path)
    again = Ledger.of("fake", tmp_path / "nothing", tmp_path)
    assert again.open == [found | {"words": "AssertionError: in ./src"}]
    assert (again.done, again.next_seed, again.figures) == (20, 4, [{"seed": 0}])
    assert str(ROOT) not in (tmp_path / "fake.json").read_text()
    Ledger("fake", done=30, batches=3).keep(30, tmp_path)
    assert Ledger.of("fake", tmp_path / "nothing", tmp_path) == Ledger("fake")
