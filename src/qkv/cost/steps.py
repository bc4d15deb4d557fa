"""Sums of numbers that rise by even steps and are rounded, without going over them."""

from __future__ import annotations

from typing import NamedTuple


class Steps(NamedTuple):
    """Numbers that rise with t: ⌊(step·t + base) / by⌋, kept between lo and hi where those are given."""

    step: int
    base: int
    by: int
    lo: int | None = None
    hi: int | None = None

    def at(self, t: int) -> int:
        value = (self.step * t + self.base) // self.by
        value = value if self.lo is None else max(value, self.lo)
        return value if self.hi is None else min(value, self.hi)

    def first_from(self, value: int) -> int:
        """The first t, negative too, where ⌊(step·t + base) / by⌋ ≥ value."""
        return -(-(value * self.by - self.base) // self.step)

    def total(self, t0: int, t1: int, multiple: int, up: bool) -> int:
        """The sum from t0 to t1 - 1, each number filled up to a multiple, or cut down to one.

        >>> Steps(3, 1, 2, 2, 9).total(0, 9, 4, up=True)
        72
        >>> sum(-(-min(max((3 * t + 1) // 2, 2), 9) // 4) * 4 for t in range(9))
        72
        """
        if t0 >= t1:
            return 0
        rounded = round_up if up else round_down
        if not self.step:
            return (t1 - t0) * rounded(self.at(0), multiple)
        a = t0 if self.lo is None else min(max(self.first_from(self.lo), t0), t1)
        z = t1 if self.hi is None else min(max(self.first_from(self.hi), a), t1)
        total = (a - t0) * rounded(self.at(t0), multiple) + (t1 - z) * rounded(self.at(t1 - 1), multiple)
        more = self.by * (multiple - 1) if up else 0
        base = self.base + self.step * a + more
        return total + multiple * _floor_sum(z - a, self.by * multiple, self.step, base)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def round_down(number: int, multiple: int) -> int:
    return number // multiple * multiple


def _floor_sum(count: int, by: int, step: int, base: int) -> int:
    """Σ ⌊(step·t + base) / by⌋ over t from 0 to count - 1, by Euclid's algorithm on the slope.

    >>> _floor_sum(5, by=3, step=2, base=-1)  # -1 + 0 + 1 + 1 + 2
    3
    >>> _floor_sum(10**15, by=2, step=2, base=1) == 10**15 * (10**15 - 1) // 2
    True
    """
    total = 0
    while count > 0:
        total += base // by * count + step // by * (count * (count - 1) // 2)
        step, base = step % by, base % by
        top = step * count + base
        count, base, step, by = top // by, top % by, by, step
    return total
