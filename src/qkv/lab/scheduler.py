"""Where computations run: light ones in a few threads, heavy ones in a process that can be stopped and killed."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import anyio
import anyio.to_thread

from .guard import Busy, Limits
from .view import Cancelled, View, Work
from .worker import Answer, answer

LONGEST_LINE = 64_000_000
PATIENCE = 2.0  # seconds that stopped work has before its process is killed

Told = Callable[[str, int, int], None]


class Broken(Exception):
    """A computation ended as no computation should."""


class Scheduler:
    """One for each server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._threads = anyio.CapacityLimiter(limits.workers)
        self._waiting = 0
        self._heavy = asyncio.Lock()
        self._turns: set[asyncio.Task[Answer]] = set()
        self._process: Process | None = None
        self._numbers = count(1)

    async def ask(self, view: View, given: Mapping[str, str], told: Told, *, draw: bool, heavy: bool) -> Answer:
        """Raises Busy, Cancelled or Broken. When the task that waits is cancelled, so is the work."""
        seconds = min(view.seconds, self.limits.seconds)
        if heavy:
            return await self._ask_process(view, given, told, seconds, draw)
        return await self._ask_thread(view, given, seconds, draw)

    async def close(self) -> None:
        for turn in self._turns:
            turn.cancel()
        await self._kill()

    async def _ask_thread(self, view: View, given: Mapping[str, str], seconds: float, draw: bool) -> Answer:
        if self._waiting >= self.limits.waiting:
            raise Busy
        self._waiting += 1
        gone = False
        work = Work(stopped=lambda: gone, seconds=seconds)

        def run() -> Answer:
            work.restart()
            return answer(view, given, work, draw=draw)

        try:
            return await anyio.to_thread.run_sync(run, limiter=self._threads, abandon_on_cancel=True)
        finally:
            gone = True
            self._waiting -= 1

    async def _ask_process(
        self, view: View, given: Mapping[str, str], told: Told, seconds: float, draw: bool
    ) -> Answer:
        if len(self._turns) >= self.limits.heavy_waiting:
            raise Busy
        question = {"view": view.name, "texts": dict(given), "seconds": seconds, "draw": draw}
        left = asyncio.Event()
        # A separate task, so that a reader who leaves cannot cut a conversation in the middle.
        turn = asyncio.create_task(self._turn(question, told, seconds, left))
        self._turns.add(turn)
        turn.add_done_callback(self._turned)
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            left.set()
            raise

    def _turned(self, turn: asyncio.Task[Answer]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()  # there may be no listener

    async def _turn(self, question: dict[str, Any], told: Told, seconds: float, left: asyncio.Event) -> Answer:
        if self._heavy.locked():
            told("waiting for another question to be answered", 0, 0)
        async with self._heavy:
            if left.is_set():
                raise Cancelled("stopped")
            process = await self._running()
            try:
                end = await self._converse(process, question, told, seconds, left)
            except BaseException:
                # Whatever was still to be said must not be heard by the next question.
                await self._kill()
                raise
        if "cancelled" in end:
            raise Cancelled(end["cancelled"])
        if "broken" in end:
            raise Broken(end["broken"])
        return Answer(**end)

    async def _converse(
        self, process: Process, question: dict[str, Any], told: Told, seconds: float, left: asyncio.Event
    ) -> dict[str, Any]:
        number = next(self._numbers)
        self._send(process, question | {"number": number})
        ending = asyncio.create_task(self._end(process, number, told))
        leaving = asyncio.create_task(left.wait())
        try:
            # What cannot hear that its time is over is given up a little later.
            await asyncio.wait({ending, leaving}, timeout=seconds + PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and left.is_set():
                self._send(process, {"stop": number})
                await asyncio.wait({ending}, timeout=PATIENCE)
            if not ending.done():
                raise Cancelled(f"stopped after {seconds:g} s, which is all that one question gets; ask for less")
            return ending.result()
        finally:
            ending.cancel()
            leaving.cancel()

    async def _end(self, process: Process, number: int, told: Told) -> dict[str, Any]:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            if said["number"] != number:
                raise Broken("an answer to another question")
            if "end" in said:
                return said["end"]
            told(*said["told"])
        raise Broken("the process that computes it ended")

    def _send(self, process: Process, said: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(said).encode() + b"\n")

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            # A separate group: Ctrl-C is for the server, which then ends this.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "qkv.lab.worker", stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE, process_group=0
            )
            self._process = process
            assert process.stdout is not None
            try:
                # Its own start is not the question's time.
                started = await process.stdout.readline()
            except BaseException:
                await self._kill()
                raise
            if not started:
                await self._kill()
                raise Broken("the process that computes heavy things did not start")
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
