"""Processes in a gloo group on this machine, one thread each, that run functions one after the other."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

LOOPBACK = Path("/proc/net/dev")
TIMEOUT = 600.0


class Ranks:
    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    def run(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run job(mesh, *arguments) on every rank; returns the results."""
        for pipe in self._pipes:
            pipe.send((job, arguments))
        found = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(TIMEOUT):
                raise TimeoutError(f"rank {rank} did not answer within {TIMEOUT:g} s")
            good, answer = pipe.recv()
            if not good:
                raise RuntimeError(f"rank {rank}: {answer}")
            found.append(answer)
        return found


@contextmanager
def ranks(size: int) -> Iterator[Ranks]:
    """`size` processes, ended on exit."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, f"{folder}/store"), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        try:
            yield Ranks(pipes)
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join(20)
                if process.is_alive():
                    process.kill()


def _serve(pipe: Any, rank: int, size: int, store: str) -> None:
    import os
    import traceback

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    wait = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=wait)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("ranks",))
    while True:
        try:
            job, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = True, job(mesh, *arguments)
        except Exception:
            answer = False, traceback.format_exc()
        pipe.send(answer)
    dist.destroy_process_group()


def on_the_wire() -> int:
    """Bytes that the loopback device has carried, headers included."""
    for line in LOOPBACK.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise OSError("no loopback device")
