"""Work and memory of one call, counted. A leaf: no torch, ints in, ints out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

# Conservative figures for one core of a recent machine. Only their ratios decide between backends.
MULTIPLY_RATE = 40e9  # floating-point operations a second in a matrix product
MEMORY_RATE = 8e9  # bytes a second read or written beyond the caches


class Work(NamedTuple):
    """What a call comes to, in units that a machine has a price for. engine: the code that runs, for each has prices of
    its own. executed: flops of all products, masked parts of tiles included. The rest is of the thread that has most to
    do. steps: operators, pieces, tiles or chunks. products: flops. pairs: weights made of scores, or cells of a
    mask. rows: numbers of queries and answers. near, far: bytes of keys, values and scores that move, and those that do
    not fit into the caches. overlaps: whether bytes come in while some are multiplied, as in a roofline; otherwise one
    follows the other."""

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
    """Seconds for a call, and for each unit of its work."""

    call: float
    step: float
    product: float
    pair: float
    row: float
    near: float
    far: float

    def seconds(self, work: Work) -> float:
        """The roofline: what is multiplied and what comes from memory meanwhile, or one after the other."""
        made, moved = self.product * work.products + self.pair * work.pairs, self.far * work.far
        last = max(made, moved) if work.overlaps else made + moved
        return self.call + self.step * work.steps + self.row * work.rows + self.near * work.near + last


@dataclass(frozen=True)
class Cost:
    """flops: multiplications and additions that the call asks for. traffic: bytes that pass through memory. extra:
    bytes held beside inputs and output at the worst moment. overhead: seconds that no size explains. charged: flops
    that the backend takes as long for, at the rate of a good product; None: as asked for. work: asks what is executed, in
    the units of a machine that was measured."""

    flops: int
    traffic: int
    extra: int
    overhead: float
    charged: int | None = None
    work: Callable[[], Work] | None = field(default=None, repr=False, compare=False)

    @property
    def executed(self) -> int:
        """Flops of products as the backend does them, masked parts of its tiles included."""
        return self.flops if self.work is None else self.work().executed

    @property
    def seconds(self) -> float:
        """A rough time from built-in figures: it orders the backends, it does not predict."""
        return self.overhead + (self.charged or self.flops) / MULTIPLY_RATE + self.traffic / MEMORY_RATE


def share(tasks: int, threads: int) -> float:
    """The part of some equal tasks that falls to the thread with most of them.

    >>> share(3, 2), share(8, 2), share(1, 2)
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
    """The linear backend: each key is added to features × (width_v + 1) sums, each query reads them all; and `pairs` of a
    query and a key in the same chunk are scored and weighed one by one.

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
