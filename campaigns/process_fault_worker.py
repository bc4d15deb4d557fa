"""`python -m campaigns.process_fault_worker KIND SEED`: cause one process fault, in this process.

With --server it reads lines "KIND SEED", forks a process for each, which needs no imports, and prints how each ended
as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import torch

from .process_fault_kinds import LIMIT, cause_fault


def serve() -> tuple[str, int] | None:
    """In a forked child, the fault that it has to cause; None in the server, after the last line."""
    for line in iter(sys.stdin.readline, ""):
        kind, seed = line.rsplit(" ", 1)
        with tempfile.TemporaryFile() as errors:
            child = os.fork()
            if child == 0:
                os.setsid()
                os.dup2(errors.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                return kind, int(seed)
            code = _wait(child)
            errors.seek(0)
            print(json.dumps({"code": code, "stderr": errors.read().decode(errors="replace")}), flush=True)
    return None


def _wait(child: int) -> int | None:
    """The exit code of a process; None if it had to be killed."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def main() -> None:
    torch.set_num_threads(1 if sys.argv[1] == "--server" else 3)
    fault = serve() if sys.argv[1] == "--server" else (sys.argv[1], int(sys.argv[2]))
    if fault is not None:
        cause_fault(*fault)


if __name__ == "__main__":
    main()
