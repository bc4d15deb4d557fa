"""How much work an algebraic question may cost: counted, so that a verdict does not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

WORK = 20_000


class TooLarge(ValueError):
    """The normal form would take more work than it is allowed."""


class NotNormal(ValueError):
    """A tree that has no normal form: two values, a class of growth, a relation, a division by zero."""


class NoValue(NotNormal):
    """What has no value anywhere: a division by zero, the inverse or the logarithm of zero."""


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)
_rooted: ContextVar[set[Any] | None] = ContextVar("rooted", default=None)


@contextmanager
def budget(units: int = WORK) -> Iterator[None]:
    """At most `units` of work inside; a budget inside another one counts on its own."""
    left, rooted = _left.set([units]), _rooted.set(set())
    try:
        yield
    finally:
        _left.reset(left)
        _rooted.reset(rooted)


def note_root(head: Any, slots: tuple[Any, ...]) -> None:
    """Remember that an even root or a logarithm was taken of this: wherever all is defined, it is not negative."""
    seen = _rooted.get()
    if seen is not None and all(kind in "cfov" for kind, _ in slots):
        seen.add((head, slots))


def has_root(head: Any, slots: tuple[Any, ...]) -> bool:
    """Whether this is known to stand under a root: at these indices, which says nothing of others."""
    return (head, slots) in (_rooted.get() or ())


def roots() -> int:
    """How much is known to stand under a root, but for what has an index that is called anew each time."""
    return sum(all(kind != "o" for kind, _ in slots) for _, slots in _rooted.get() or ())


def spend(units: int = 1) -> None:
    """Take `units` from the budget that is open, if there is one."""
    left = _left.get()
    if left is None:
        return
    left[0] -= units
    if left[0] < 0:
        raise TooLarge("this expression is too large to be brought to its normal form")
