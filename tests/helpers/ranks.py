"""Processes in a gloo group that run one job after another."""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import os
import pickle
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

SIZE = 4
TIMEOUT = 60.0  # seconds to wait for the result of a rank


class JobFailed(Exception):
    """The error of a job on a rank; `kinds` are the names of the error's classes."""

    def __init__(self, rank: int, kinds: list[str], message: str, trace: str) -> None:
        super().__init__(f"rank {rank}: {kinds[0]}: {message}\n{trace}")
        self.rank, self.kinds, self.message = rank, kinds, message


class RankPool:
    """Ranks 0 to size - 1. `run(job, ranks=3, x=…)` calls job(mesh, x=…) on the first three, with a mesh of one axis
    "ranks", and returns the results in rank order. job is a function of a module, which each rank loads by its file."""

    def __init__(self, size: int = SIZE, timeout: float = 30.0) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["qkv.parallel", "qkv.nn", "torch.distributed.tensor", "torch._dynamo"])
        self.size = size
        self._folder = tempfile.mkdtemp()
        store = str(Path(self._folder) / "store")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, store, timeout), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def start(self, job: Callable[..., Any], ranks: int, **options: Any) -> None:
        for pipe in self._pipes[:ranks]:
            pipe.send_bytes(pickle.dumps((inspect.getfile(job), job.__name__, ranks, options)))

    def results(self, ranks: int) -> list[Any]:
        """The result of each rank, or its `JobFailed`."""
        found = []
        for rank, pipe in enumerate(self._pipes[:ranks]):
            if not pipe.poll(TIMEOUT):
                self.close()
                raise TimeoutError(f"rank {rank} did not result within {TIMEOUT:g} s")
            good, result = pickle.loads(pipe.recv_bytes())
            found.append(result if good else JobFailed(rank, *result))
        return found

    def run(self, job: Callable[..., Any], ranks: int, **options: Any) -> list[Any]:
        results = self.run_or_errors(job, ranks, **options)
        for result in results:
            if isinstance(result, JobFailed):
                raise result
        return results

    def run_or_errors(self, job: Callable[..., Any], ranks: int, **options: Any) -> list[Any]:
        self.start(job, ranks, **options)
        return self.results(ranks)

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()

    def close(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join(10)
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _serve(pipe: Any, rank: int, size: int, store: str, timeout: float) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=FileStore(store, size), rank=rank, world_size=size, timeout=limit)
    meshes: dict[int, DeviceMesh] = {}
    groups = {ranks: dist.new_group(list(range(ranks)), timeout=limit) for ranks in range(1, size + 1)}
    modules: dict[str, Any] = {}
    while True:
        try:
            file, name, ranks, options = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            if ranks not in meshes:
                meshes[ranks] = DeviceMesh.from_group(groups[ranks], "cpu", mesh_dim_names=("ranks",))  # pyright: ignore[reportArgumentType]
            if file not in modules:
                modules[file] = _load(file)
            torch.manual_seed(0)
            result = True, getattr(modules[file], name)(meshes[ranks], **options)
        except BaseException as error:  # every error is sent to the test
            kinds = [kind.__name__ for kind in type(error).__mro__]
            result = False, (kinds, str(error), traceback.format_exc())
        pipe.send_bytes(pickle.dumps(result))


def _load(file: str) -> Any:
    name = f"job_{abs(hash(file))}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
