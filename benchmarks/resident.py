"""Peak memory that one call takes in addition to its inputs and its output, in a separate process.

Linux keeps the peak of the resident pages of a process (VmHWM), and can reset it. getrusage's ru_maxrss is not usable:
exec passes a parent's peak on to its child.

`python -m benchmarks.resident elu1 8192` prints bytes for 1x8x8192x64.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SHAPE = (1, 8, 64)  # batch, heads, width
NAMES = ("elu1", "quadratic")


def absent() -> str | None:
    """Why nothing can be measured here, or None."""
    return None if CLEAR.exists() else "only Linux can reset the peak of resident memory"


def extra(name: str, length: int) -> int:
    """Bytes, measured in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.resident", name, str(length)]
    root = Path(__file__).parents[1]
    return int(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def _kilobytes(field: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))


def measure(name: str, length: int) -> int:
    """Bytes, in this process; a short call first loads and allocates what all calls share."""
    import torch

    from .peers.linear import ELU1, QUADRATIC, Qkv

    peer = Qkv({"elu1": ELU1, "quadratic": QUADRATIC}[name])
    batch, heads, width = SHAPE
    q, k, v = (torch.randn(batch, heads, length, width) for _ in range(3))
    peer.attend(*(tensor[:, :, :512].contiguous() for tensor in (q, k, v)))
    CLEAR.write_text("5")
    before = _kilobytes("VmRSS")
    out = peer.attend(q, k, v)
    return ((_kilobytes("VmHWM") - before) << 10) - out.numel() * out.element_size()


if __name__ == "__main__":
    print(measure(sys.argv[1], int(sys.argv[2])))
