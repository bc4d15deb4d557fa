"""Who is missing: ranks that gave up tell the others through the process group's store whom they were waiting for.

A rank that waits for a neighbour cannot know that the neighbour waits for a third. Each writes down whom it gave up on;
whoever is blamed and wrote nothing is the one that is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

import torch.distributed as dist

from .axis import Axis, patience

_LONGEST = 1.0  # seconds that the others get to write, once one rank has given up
_SHORTEST = 0.25


def give_up_on(axis: Axis, peer: int) -> None:
    """Tell the others whom this rank was waiting for; the first word counts."""
    store = _store()
    if store is not None:
        _briefly(lambda: store.compare_set(_key(axis, axis.rank), "", json.dumps([peer])), _SHORTEST)


def words(axis: Axis) -> dict[int, list[int]]:
    """Whom each rank gave up on, this one included. It waits for the others' words for a moment, and not for the last
    one. Nothing when the store does not work."""
    store = _store()
    if store is None:
        return {}
    said: dict[int, list[int]] = {}
    waited = patience(axis)
    grace = _LONGEST if waited is None else max(_SHORTEST, min(_LONGEST, waited.total_seconds() / 4))

    def listen() -> None:
        end = time.monotonic() + grace
        while True:
            for rank in range(axis.size):
                if rank not in said and store.check([_key(axis, rank)]):
                    said[rank] = json.loads(store.get(_key(axis, rank)))
            if len(said) >= axis.size - 1 or time.monotonic() > end:
                return
            time.sleep(0.01)

    _briefly(listen, grace + _SHORTEST)
    found = dict(said)
    return found if axis.rank in found else {}


def missing(here: int, said: dict[int, list[int]], suspects: Sequence[int]) -> list[int]:
    """From the suspects of rank `here` along the blame to those who said nothing.

    >>> missing(0, {0: [3], 3: [2]}, [3])
    [2]
    """
    seen, ends, ahead = {here}, set(), list(suspects)
    while said and ahead:
        rank = ahead.pop()
        if rank not in seen:
            seen.add(rank)
            ends |= set() if rank in said else {rank}
            ahead += said.get(rank, [])
    return sorted(ends)


def _key(axis: Axis, rank: int) -> str:
    return f"qkv.parallel/gave up/{getattr(axis.group, 'group_name', axis.name)}/{rank}"


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except (RuntimeError, ValueError, AttributeError):
        return None


def _briefly(action: Callable[[], Any], seconds: float) -> None:
    """The store may be in the very process that is gone: nobody waits for it for long."""

    def run() -> None:
        with suppress(Exception):  # the error that is being raised matters more
            action()

    thread = Thread(target=run, daemon=True, name="qkv witness")
    thread.start()
    thread.join(seconds)
