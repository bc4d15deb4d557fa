"""Which variant a seed is: structures are numbered and taken in an order in which neighbours have little in common."""

from __future__ import annotations

from math import gcd, prod


def digits(seed: int, *sizes: int) -> tuple[int, ...]:
    """A place in a table of these sizes: the first prod(sizes) seeds have each place once, neighbours never the same.

    >>> len({digits(seed, 3, 5, 7) for seed in range(105)}), digits(0, 3, 5), digits(1, 3, 5)
    (105, (0, 0), (2, 1))
    """
    total = prod(sizes)
    stride = round(total * 0.618)
    while gcd(stride, total) != 1:
        stride += 1
    place = seed * stride % total
    found = []
    for size in reversed(sizes):
        place, digit = divmod(place, size)
        found.append(digit)
    return tuple(reversed(found))
