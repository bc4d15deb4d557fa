"""Estimated cost of a call: its flops, bytes and memory, and its time at the prices of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

# Conservative rates of one core of a recent machine. Only their ratio matters for the choice of a backend.
MULTIPLY_RATE = 40e9  # floating-point operations a second in a matrix product
MEMORY_RATE = 8e9  # bytes a second read or written beyond the caches


class Work(NamedTuple):
    """The work of a call, in the units that a machine has prices for.

    Attributes:
        engine: the code that runs ("native", "sdpa.64.float32", …); each engine has its own prices.
        executed: flops of all products, masked parts of tiles included.
        steps: operators, pieces, tiles or chunks; this and the rest are those of the busiest thread.
        products: flops of products.
        pairs: scores turned into weights, or cells of a mask.
        rows: numbers of queries and outputs.
        near: bytes of keys, values and scores that move.
        far: those of them that do not fit into the processor's caches.
        overlaps: whether reading and multiplying overlap, as in a roofline; otherwise one follows the other.
    """

    engine: str
    executed: int
    steps: float = 0.0
    products: float = 0.0
    pairs: float = 0.0
    rows: float = 0.0
    near: float = 0.0
    far: float = 0.0
    overlaps: bool = False


class Price(NamedTuple):
    """Seconds per call, and per unit of each kind of work."""

    call: float
    step: float
    product: float
    pair: float
    row: float
    near: float
    far: float

    def seconds(self, work: Work) -> float:
        """Time of a call; with `overlaps`, the longer of computing and reading counts (the roofline)."""
        computing, reading = self.product * work.products + self.pair * work.pairs, self.far * work.far
        last = max(computing, reading) if work.overlaps else computing + reading
        return self.call + self.step * work.steps + self.row * work.rows + self.near * work.near + last


@dataclass(frozen=True)
class Cost:
    """Estimated cost of a call on one backend.

    Attributes:
        flops: multiplications and additions that the call needs.
        traffic: bytes read and written.
        extra: peak bytes of memory beyond inputs and output.
        overhead: seconds that do not depend on sizes.
        charged: flops of a fast matrix product that would take as long; None: `flops`.
        work: returns the executed work, in the units that a calibrated machine has prices for.
    """

    flops: int
    traffic: int
    extra: int
    overhead: float
    charged: int | None = None
    work: Callable[[], Work] | None = field(default=None, repr=False, compare=False)

    @property
    def executed(self) -> int:
        """Flops of the products that the backend executes, masked parts of tiles included."""
        return self.flops if self.work is None else self.work().executed

    @property
    def seconds(self) -> float:
        """A rough time from built-in rates, good enough to rank backends."""
        return self.overhead + (self.charged or self.flops) / MULTIPLY_RATE + self.traffic / MEMORY_RATE


def busiest_share(tasks: int, threads: int) -> float:
    """The share of equal tasks that the busiest thread gets.

    >>> busiest_share(3, 2), busiest_share(8, 2), busiest_share(1, 2)
    (0.6666666666666666, 0.5, 1.0)
    """
    return -(-tasks // max(1, threads)) / max(1, tasks)


def product_flops(pairs: int, width: int) -> int:
    """2·width for each attended pair: one score, or one weighted value.

    >>> product_flops(pairs=10, width=64)
    1280
    """
    return 2 * pairs * width


def linear_flops(queries: int, keys: int, features: int, width: int, width_v: int, pairs: int) -> int:
    """Flops of the linear backend: each key is added to features × (width_v + 1) sums, each query reads all sums, and
    `pairs` of a query and a key in the same chunk are scored one by one.

    >>> linear_flops(queries=10, keys=10, features=4, width=4, width_v=4, pairs=45)
    1520
    """
    return product_flops(queries + keys, features * (width_v + 1)) + product_flops(pairs, width + width_v)


def readable_bytes(count: int) -> str:
    """
    >>> readable_bytes(3 * 2**20), readable_bytes(17)
    ('3.0 MiB', '17 B')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
