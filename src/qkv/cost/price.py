"""Work and memory of one call, counted. A leaf: no torch, ints in, ints out."""

from __future__ import annotations

from dataclasses import dataclass

# Conservative figures for one core of a recent machine. Only their ratios decide between forms.
MULTIPLY_RATE = 40e9  # floating-point operations a second in a matrix product
MEMORY_RATE = 8e9  # bytes a second read or written beyond the caches


@dataclass(frozen=True)
class Cost:
    """flops: multiplications and additions that the call asks for. traffic: bytes that pass through memory. extra:
    bytes held beside inputs and output at the worst moment. overhead: seconds that no size explains. executed: flops as
    the form does them, masked parts of its tiles included, at the rate of a good product; None: as asked for."""

    flops: int
    traffic: int
    extra: int
    overhead: float
    executed: int | None = None

    @property
    def seconds(self) -> float:
        """A rough time: it orders the forms, it does not predict."""
        return self.overhead + (self.executed or self.flops) / MULTIPLY_RATE + self.traffic / MEMORY_RATE


def product_flops(pairs: int, width: int) -> int:
    """2·width for each attended pair: one score, or one weighted value.

    >>> product_flops(pairs=10, width=64)
    1280
    """
    return 2 * pairs * width


def linear_flops(queries: int, keys: int, features: int, width: int, width_v: int, pairs: int) -> int:
    """The linear form: each key is added to features × (width_v + 1) sums, each query reads them all; and `pairs` of a
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
