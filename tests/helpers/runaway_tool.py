"""A tool that never ends, for the limits of `qkv mcp`: the process that computes imports it from here."""

import os
from pathlib import Path


def runaway(file: str) -> str:
    """Write the number of this process into a file and never end."""
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


def greedy(file: str) -> str:
    """Take memory until there is none."""
    taken = [file]
    while True:
        taken.append("0" * 2**28)
