"""Work runs where it can be stopped, and what is stopped does not run on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.lab.fields import Number, WrongField
from qkv.lab.guard import Busy, Limits
from qkv.lab.scheduler import Broken, Scheduler
from qkv.lab.view import Cancelled, View, Work
from qkv.lab.views import view
from qkv.lab.worker import answer


def quiet(what: str, done: int, of: int) -> None:
    pass


def toy(compute, seconds: float = 5.0) -> View:
    field = Number(name="a", label="a", low=0, high=9, default=1)
    return View(
        name="toy",
        title="Toy",
        verb="compute",
        lead="",
        fields=(field,),
        compute=compute,
        python=lambda s: "",
        seconds=seconds,
    )


def asked(scheduler: Scheduler, view: View, **given: str):
    return scheduler.ask(view, given, quiet, draw=False, heavy=False)


def test_problems_are_told_by_field() -> None:
    def compute(state, work):
        if state["a"] == 2:
            raise WrongField("a", "a: not two")
        if state["a"] == 3:
            raise OptionError("whole: not three")
        return {"double": 2 * state["a"]}

    view = toy(compute)
    assert answer(view, {"a": "4"}, Work(), draw=False).result == {"double": 8}
    assert answer(view, {"a": "2"}, Work(), draw=False).problems == {"a": "a: not two"}
    assert answer(view, {"a": "3"}, Work(), draw=False).problems == {"": "whole: not three"}
    assert "a" in answer(view, {"a": "x"}, Work(), draw=False).problems


def test_light_work_hears_that_the_reader_has_left() -> None:
    ended = []

    def compute(state, work):
        try:
            while True:
                work.say("going on")
                time.sleep(0.005)
        except Cancelled:
            ended.append(time.monotonic())
            raise

    async def scene() -> None:
        task = asyncio.create_task(asked(Scheduler(Limits()), toy(compute)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)

    asyncio.run(scene())
    assert ended


def test_time_is_capped() -> None:
    def compute(state, work):
        while True:
            work.say("going on")
            time.sleep(0.005)

    with pytest.raises(Cancelled, match=r"0.1 s"):
        asyncio.run(asked(Scheduler(Limits()), toy(compute, seconds=0.1)))


@pytest.mark.slow
def test_more_than_may_wait_is_refused() -> None:
    def compute(state, work):
        time.sleep(0.2)
        return {}

    async def scene() -> list:
        scheduler = Scheduler(Limits(workers=1, waiting=3))
        return await asyncio.gather(*(asked(scheduler, toy(compute)) for _ in range(5)), return_exceptions=True)

    found = asyncio.run(scene())
    assert sum(isinstance(each, Busy) for each in found) == 2


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


def heavy(scheduler: Scheduler, seed: int):
    """Work in the other process that needs no torch there, told by its seed."""
    given = {"exercise": "argmax", "numbers": "fresh", "seed": str(seed)}
    return scheduler.ask(view("practice"), given, quiet, draw=False, heavy=True)


@pytest.mark.slow
def test_heavy_work_runs_elsewhere_and_ends_with_the_scheduler() -> None:
    async def scene() -> int:
        scheduler = Scheduler(Limits())
        assert (await heavy(scheduler, 7)).result["seed"] == 7
        assert scheduler._process is not None
        pid = scheduler._process.pid
        assert pid != os.getpid()
        assert alive(pid)
        await scheduler.close()
        return pid

    assert not alive(asyncio.run(scene()))


@pytest.mark.slow
def test_every_question_gets_only_its_answer() -> None:
    """Whenever a reader leaves, before the process has started or in the middle of an answer."""

    async def scene() -> None:
        scheduler = Scheduler(Limits())
        for seed, delay in enumerate((0.0, 0.05, 0.2, 0.001, 0.003, 0.01)):
            if seed == 2:
                await scheduler.close()  # the next one starts it again
            leaver = asyncio.create_task(heavy(scheduler, 1000 + seed))
            await asyncio.sleep(delay)
            leaver.cancel()
            leaver.cancel()
            found = await asyncio.gather(*(heavy(scheduler, 10 * seed + n) for n in range(3)))
            assert [each.result["seed"] for each in found] == [10 * seed, 10 * seed + 1, 10 * seed + 2]
        await scheduler.close()

    asyncio.run(scene())


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced() -> None:
    async def scene() -> None:
        scheduler = Scheduler(Limits())
        process = await scheduler._running()
        process.kill()
        await process.wait()
        assert (await heavy(scheduler, 1)).result["seed"] == 1
        task = asyncio.create_task(scheduler.ask(view("transcript"), {}, quiet, draw=False, heavy=True))
        await asyncio.sleep(0.05)
        assert scheduler._process is not None
        scheduler._process.kill()
        with pytest.raises(Broken):
            await task
        assert (await heavy(scheduler, 2)).result["seed"] == 2
        await scheduler.close()

    asyncio.run(scene())


@pytest.mark.slow
def test_more_heavy_work_than_may_wait_is_refused() -> None:
    async def scene() -> list:
        scheduler = Scheduler(Limits(heavy_waiting=2))
        found = await asyncio.gather(*(heavy(scheduler, n) for n in range(4)), return_exceptions=True)
        await scheduler.close()
        return found

    assert sum(isinstance(each, Busy) for each in asyncio.run(scene())) == 2
