"""`python -m campaigns.storm_process KIND SEED`: one storm, in this process, which then ends as the storm wants it.

With --nursery it reads lines "KIND SEED" and forks a process for each, which has all imports behind it, and says in a
line of JSON how each ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import torch

from .storm_kinds import LIMIT, storm


def nursery() -> tuple[str, int] | None:
    """The storm of this process, in a child; None in the nursery itself, when there are no more."""
    for line in iter(sys.stdin.readline, ""):
        kind, seed = line.rsplit(" ", 1)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.setsid()
                os.dup2(said.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDWR), 0)
                return kind, int(seed)
            code = _waited(child)
            said.seek(0)
            print(json.dumps({"code": code, "said": said.read().decode(errors="replace")}), flush=True)
    return None


def _waited(child: int) -> int | None:
    """The exit code of a process; None where it had to be ended."""
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
    torch.set_num_threads(1 if sys.argv[1] == "--nursery" else 3)
    asked = nursery() if sys.argv[1] == "--nursery" else (sys.argv[1], int(sys.argv[2]))
    if asked is not None:
        storm(*asked)


if __name__ == "__main__":
    main()
