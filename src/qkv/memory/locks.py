"""Locks that a forked child can take: the thread that held one in the parent is not there to let it go."""

from __future__ import annotations

import os
import threading
import weakref


class Locked:
    """Has a `lock`, which is held by whoever changes something. In a forked child it is a new one.

    >>> shared = Locked()
    >>> with shared.lock:
    ...     pass
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _ALL.add(self)


_ALL: weakref.WeakSet[Locked] = weakref.WeakSet()


def _unlock_in_child() -> None:
    for one in list(_ALL):
        one.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)
