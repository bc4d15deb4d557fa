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

from .answers import Answer, answer
from .limits import Busy, Limits
from .view import Cancelled, View, Work

LONGEST_LINE = 64_000_000
PATIENCE = 2.0  # seconds that stopped work has before its process is killed

Told = Callable[[str, int, int], None]


class Broken(Exception):
    """A computation ended as no computation should."""


class Kitchen:
    """One for each server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._threads = anyio.CapacityLimiter(limits.workers)
        self._waiting = 0
        self._heavy = asyncio.Lock()
        self._heavy_waiting = 0
        self._process: Process | None = None
        self._numbers = count(1)

    async def ask(self, view: View, given: Mapping[str, str], told: Told, *, draw: bool, heavy: bool) -> Answer:
        """Raises Busy, Cancelled or Broken. When the task that waits is cancelled, so is the work."""
        seconds = min(view.seconds, self.limits.seconds)
        if heavy:
            return await self._ask_process(view, given, told, seconds, draw)
        return await self._ask_thread(view, given, seconds, draw)

    async def close(self) -> None:
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
        if self._heavy_waiting >= self.limits.heavy_waiting:
            raise Busy
        self._heavy_waiting += 1
        try:
            if self._heavy.locked():
                told("waiting for another question to be answered", 0, 0)
            async with self._heavy:
                question = {"view": view.name, "texts": dict(given), "seconds": seconds, "draw": draw}
                return await self._converse(question, told, seconds)
        finally:
            self._heavy_waiting -= 1

    async def _converse(self, question: dict[str, Any], told: Told, seconds: float) -> Answer:
        number = next(self._numbers)
        process = await self._running()
        try:
            self._send(process, question | {"number": number})
            # What cannot hear that its time is over is killed a little later.
            async with asyncio.timeout(seconds + PATIENCE):
                end = await self._end(process, told)
        except TimeoutError:
            await self._kill()
            raise Cancelled(f"stopped after {seconds:g} s, which is all that one question gets; ask for less") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._stop(process, number))
            raise
        if "cancelled" in end:
            raise Cancelled(end["cancelled"])
        if "broken" in end:
            raise Broken(end["broken"])
        return Answer(**end)

    async def _end(self, process: Process, told: Told) -> dict[str, Any]:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "end" in said:
                return said["end"]
            told(*said["told"])
        await self._kill()
        raise Broken("the process that computes it ended")

    async def _stop(self, process: Process, number: int) -> None:
        """The reader has gone: its work is asked to stop, and not asked twice."""
        self._send(process, {"stop": number})
        try:
            async with asyncio.timeout(PATIENCE):
                await self._end(process, lambda what, done, of: None)
        except (TimeoutError, Broken):
            await self._kill()

    def _send(self, process: Process, said: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(said).encode() + b"\n")

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            # A group of its own: Ctrl-C is for the server, which then ends this.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "qkv.lab.worker", stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE, process_group=0
            )
            assert self._process.stdout is not None
            # Its own start is not the question's time.
            if not await self._process.stdout.readline():
                raise Broken("the process that computes heavy things did not start")
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
