"""The machine's limits: bytes read and float32 operations in a second.

A kernel that has to read `bytes` and to do `flops` cannot be faster than max(bytes / bandwidth, flops / rate).
Reading is measured with torch (a dot product of two halves, a matrix times a vector, a sum), over more than four times
the last-level cache, in small and in huge pages; the fastest counts.
"""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from qkv.cost.machine import free_memory, last_level_cache

MEBI = 1 << 20
HUGE = 2 * MEBI


@dataclass(frozen=True)
class Roof:
    """Bytes a second and float32 operations a second (a multiplication and an addition are two)."""

    bandwidth: float
    rate: float

    def seconds(self, size: int, flops: int) -> float:
        return max(size / self.bandwidth, flops / self.rate)

    def bound(self, size: int, flops: int) -> str:
        return "bytes" if size / self.bandwidth >= flops / self.rate else "flops"


class Roofs:
    """Measures several times during a run, since the speed of a shared machine changes."""

    def __init__(self) -> None:
        size = min(4 * last_level_cache() + 64 * MEBI, free_memory() // 8) // HUGE * HUGE
        self.size = size
        self.square = torch.randn(2048, 2048)
        self.taken: list[Roof] = []
        ways = {}
        for pages, buffer in (("small pages", _small(size)), ("huge pages", _huge(size))):
            ways |= {f"{name}, {pages}": read for name, read in _reads(buffer).items()}
        self.seen = {name: size / min(_times(read, 3)) for name, read in ways.items()}
        self.way = max(self.seen, key=lambda name: self.seen[name])
        self._read = ways[self.way]

    def read(self) -> float:
        """Bytes a second: the median of three readings."""
        return self.size / statistics.median(_times(self._read, 3))

    def measure(self) -> Roof:
        """The median of a few readings and multiplications, a quarter of a second."""
        reading = self.read()
        rate = 2 * self.square.shape[0] ** 3 / statistics.median(_times(lambda: self.square @ self.square, 3))
        self.taken.append(Roof(reading, rate))
        return self.taken[-1]

    def best_since(self, first: int) -> Roof:
        """The highest of the measurements from number `first` on."""
        return Roof(max(roof.bandwidth for roof in self.taken[first:]), max(roof.rate for roof in self.taken[first:]))


def _times(run: Callable[[], object], count: int) -> list[float]:
    run()
    times = []
    for _ in range(count):
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return times


def _small(size: int) -> torch.Tensor:
    return torch.ones(size // 4)


def _huge(size: int) -> torch.Tensor:
    pages = mmap.mmap(-1, size + HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw = torch.frombuffer(pages, dtype=torch.uint8)
    start = -raw.data_ptr() % HUGE
    return raw[start : start + size].view(torch.float32).fill_(1.0)


def _reads(buffer: torch.Tensor) -> dict[str, Callable[[], object]]:
    left, right = buffer.chunk(2)
    matrix, vector = buffer.view(-1, 4096), torch.ones(4096)
    return {"dot": lambda: torch.dot(left, right), "matrix-vector": lambda: matrix @ vector, "sum": buffer.sum}


def describe(roofs: Roofs) -> str:
    low, high = (f([roof.bandwidth for roof in roofs.taken]) / 1e9 for f in (min, max))
    slow, fast = (f([roof.rate for roof in roofs.taken]) / 1e9 for f in (min, max))
    return (
        f"roofs: read {low:.1f} to {high:.1f} GB/s ({roofs.way}, {roofs.size / MEBI:.0f} MiB)\n"
        f"       multiply {slow:.0f} to {fast:.0f} GFLOP/s"
    )
