"""Measure attention over ranks of this machine: processes with one thread each, connected by gloo."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh

from .. import parallel
from ..cost.communication import Point
from ..errors import OptionError, complaint
from ..functional import attention
from ..masks import Causal
from ..parallel.transfer import TRAFFIC

TOKENS, HEADS, KV_HEADS, WIDTH = 4096, 4, 4, 64
SPLITS = ("ring", "gather", "heads")
CALLS = 3
TIMEOUT = timedelta(minutes=2)


def measure_ranks(most: int = 4, tokens: int = TOKENS) -> list[Point]:
    """Time causal attention over 1, 2, 4, … and `most` ranks with every split that supports it; about 30 seconds."""
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        try:
            for rank in range(counts[-1]):
                here, there = context.Pipe(duplex=False)
                work = str(Path(folder) / "store"), rank, counts, tokens, there
                process = context.Process(target=_run_rank, args=work, daemon=True)
                process.start()
                there.close()
                pipes.append(here)
                processes.append(process)
            return _receive(pipes[0])
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()


def _receive(pipe: Any) -> list[Point]:
    wait = TIMEOUT.total_seconds() * 3
    try:
        found = pipe.recv() if pipe.poll(wait) else "no answer"
    except EOFError:
        found = "a process that exited"
    if isinstance(found, str):
        hint = "gloo uses the loopback interface; set GLOO_SOCKET_IFNAME to use another"
        raise OptionError(complaint("--ranks", found, "processes that can connect to each other", hint))
    return found


def _run_rank(store: str, rank: int, counts: list[int], tokens: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        size = counts[-1]
        dist.init_process_group("gloo", store=FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT)
        groups = {count: dist.new_group(list(range(count)), timeout=TIMEOUT) for count in counts}
        points = []
        for count in counts:
            dist.barrier()
            if rank < count:
                points += _measure_splits(groups[count], count, tokens)
        dist.barrier()
        pipe.send(points)
        dist.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        pipe.send(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _measure_splits(group: Any, count: int, tokens: int) -> list[Point]:
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("ranks",))
    rank = dist.get_rank(group)
    own = (rank + 1) * tokens // count - rank * tokens // count
    shapes = ((1, heads, own, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
    query, key, value = (torch.randn(shape) for shape in shapes)
    sizes: dict[str, Any] = {"heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "value_width": WIDTH, "causal": True}
    sizes["taken"] = datetime.now(UTC).isoformat(timespec="seconds")
    link = parallel.measure(mesh)
    found = []
    for split in SPLITS if count > 1 else SPLITS[:1]:
        if split == "heads" and HEADS % count:
            continue
        times, sent = [], 0
        for _ in range(CALLS + 1):
            before, begin = TRAFFIC["data bytes"], time.perf_counter()
            with torch.no_grad():
                if count == 1:
                    attention(query, key, value, mask=Causal())
                else:
                    parallel.attention(query, key, value, mesh=mesh, mask=Causal(), split=split)
            times.append(time.perf_counter() - begin)
            sent = TRAFFIC["data bytes"] - before
        mine = torch.tensor([statistics.median(times[1:]), float(sent)], dtype=torch.float64)
        slowest, total = mine.clone(), mine.clone()
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
        dist.all_reduce(total, dist.ReduceOp.SUM, group=group)
        found.append(Point(split, count, tokens, slowest[0].item(), int(total[1].item()), link=link, **sizes))
    return found
