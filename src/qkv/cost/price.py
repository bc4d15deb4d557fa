"""Estimated cost of a call: its flops, bytes and memory, and its time at built-in or measured prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

# Conservative rates of one core of a recent machine. Only their ratio matters for the choice of a backend.
MULTIPLY_RATE = 40e9  # floating-point operations a second in a matrix product
MEMORY_RATE = 8e9  # bytes a second read or written beyond the caches


class Price(NamedTuple):
    """Measured seconds of an engine: of a call, of a flop and of a byte."""

    call: float
    flop: float
    byte: float

    def seconds(self, cost: Cost) -> float:
        return self.call + self.flop * cost.compared_flops + self.byte * cost.traffic


@dataclass(frozen=True)
class Cost:
    """Estimated cost of a call on one backend.

    Attributes:
        flops: multiplications and additions that the call needs.
        traffic: bytes read and written.
        extra: peak bytes of memory beyond inputs and output.
        overhead: seconds that do not depend on sizes.
        charged: flops of a fast matrix product that would take as long; None: `flops`.
        mode: how the backend runs the call, where its prices depend on that.
        note: what else `explain` says about it.
    """

    flops: int
    traffic: int
    extra: int
    overhead: float
    charged: int | None = None
    mode: str = ""
    note: str = ""

    @property
    def compared_flops(self) -> int:
        """Flops that backends are compared by."""
        return self.charged or self.flops

    @property
    def seconds(self) -> float:
        """A rough time from built-in rates, good enough to rank backends."""
        return self.overhead + self.compared_flops / MULTIPLY_RATE + self.traffic / MEMORY_RATE


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


def latent_flops(
    heads: Any, rank: Any, *, plain: Any, rope: Any, value: Any, queries: Any, keys: Any, pairs: Any
) -> tuple[Any, Any]:
    """Flops of latent attention: absorbed, where queries and outputs are projected, and expanded, where keys and values
    of all heads are computed from `keys` latents. What both do is left out.

    Args:
        heads, rank: query heads, and the width of a latent.
        plain, rope, value: widths of a head: of queries without and with rotary positions, and of values.
        queries, keys, pairs: new tokens, all attended tokens, and attended pairs of both, over the batch.

    >>> latent_flops(16, 512, plain=128, rope=64, value=128, queries=1, keys=4097, pairs=4097)
    (146835456, 17226016768)
    """
    wide = rank * (plain + value)
    absorbed = queries * wide + pairs * (2 * rank + rope)
    expanded = keys * wide + pairs * (plain + rope + value)
    return 2 * heads * absorbed, 2 * heads * expanded


def state_flops(queries: Any, keys: Any, features: Any, columns: Any, rule: str, gated: bool) -> dict[str, Any]:
    """Flops of a state, features × columns, that is changed by every key and read by every query, line by line.

    Args:
        queries, keys, features, columns: integers or symbols; queries and keys over all heads and rows of the batch.
        rule: "linear", or "delta", which reads the state for each key too.
        gated: whether the state is multiplied by gates.

    >>> state_flops(queries=10, keys=10, features=4, columns=5, rule="delta", gated=True)
    {'gates': 200, 'corrections': 500, 'sums over the keys': 400, 'answers from the state': 400}
    """
    size = features * columns
    lines = {"gates": keys * size} if gated else {}
    if rule == "delta":  # the state's answer to the key, subtracted from the value, times beta
        lines["corrections"] = keys * (2 * size + 2 * columns)
    return lines | {"sums over the keys": 2 * keys * size, "answers from the state": 2 * queries * size}


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
