"""Who is missing: ranks that gave up tell the others through the process group's store whom they were waiting for.

A rank that waits for a neighbour cannot know that the neighbour waits for a third. Each writes down whom it gave up on;
whoever is blamed and wrote nothing is the one that is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import PeerLost

if TYPE_CHECKING:
    from .transfer import Axis

_MAX_WAIT = 1.0  # seconds that the others get to write, once one rank has given up
_MIN_WAIT = 0.25
_UNUSED_TAG = 3  # a tag that is never sent
# Buffers of transfers that failed: the transport may still write into them.
ABANDONED: list[Any] = []


def report_lost(axis: Axis, peer: int) -> None:
    """Tell the others whom this rank was waiting for; the first word counts."""
    store = _store()
    if store is not None:
        _run_with_timeout(lambda: store.compare_set(_report_key(axis, axis.rank), "", json.dumps([peer])), _MIN_WAIT)


def lost_reports(axis: Axis) -> dict[int, list[int]]:
    """Whom each rank gave up on, this one included. It waits for the others' words for a moment, and not for the last
    one. Nothing when the store does not work."""
    store = _store()
    if store is None:
        return {}
    said: dict[int, list[int]] = {}
    waited = timeout_of(axis)
    grace = _MAX_WAIT if waited is None else max(_MIN_WAIT, min(_MAX_WAIT, waited.total_seconds() / 4))

    def listen() -> None:
        end = time.monotonic() + grace
        while True:
            for rank in range(axis.size):
                if rank not in said and store.check([_report_key(axis, rank)]):
                    said[rank] = json.loads(store.get(_report_key(axis, rank)))
            if len(said) >= axis.size - 1 or time.monotonic() > end:
                return
            time.sleep(0.01)

    _run_with_timeout(listen, grace + _MIN_WAIT)
    found = dict(said)
    return found if axis.rank in found else {}


def silent_ranks(here: int, said: dict[int, list[int]], suspects: Sequence[int]) -> list[int]:
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


def _report_key(axis: Axis, rank: int) -> str:
    return f"qkv.parallel/gave up/{getattr(axis.group, 'group_name', axis.name)}/{rank}"


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except (RuntimeError, ValueError, AttributeError):
        return None


def _run_with_timeout(action: Callable[[], Any], seconds: float) -> None:
    """The store may be in the very process that is gone: nobody waits for it for long."""

    def run() -> None:
        with suppress(Exception):  # the error that is being raised matters more
            action()

    thread = Thread(target=run, daemon=True, name="qkv witness")
    thread.start()
    thread.join(seconds)


def close_connections(axis: Axis) -> None:
    """Close the connections of a group that is lost, so that those who wait for this rank hear of it now. A transfer
    that nobody answers does so when it times out."""
    if axis.device.type != "cpu":
        return
    for step in range(1, axis.size):
        room = torch.empty(1)
        with suppress(RuntimeError, dist.DistError):
            work = dist.irecv(room, group=axis.group, tag=_UNUSED_TAG, group_src=axis.after(step))
            ABANDONED.append((work, room))
            assert work is not None
            work.wait(timedelta(milliseconds=1))


def peer_lost(axis: Axis, transfers: Sequence[tuple[int, str]], error: BaseException) -> PeerLost:
    """What to say of transfers that did not end."""
    suspects = sorted({peer for peer, _ in transfers})
    heard = lost_reports(axis)
    silent = silent_ranks(axis.rank, heard, [transfers[0][0]]) or silent_ranks(axis.rank, heard, suspects)
    impatient = [rank for rank, blamed in heard.items() if axis.rank in blamed]
    peers = silent or suspects
    reason = " ".join(str(error).split())
    reason = reason[reason.find("]") + 1 :].strip() if reason.startswith("[") else reason
    reason = reason.split(". ")[0]
    which = f"rank {peers[0]}" if len(peers) == 1 else f"one of ranks {', '.join(map(str, peers))}"
    said = f"{which} of axis {axis.name!r} ({axis.size} ranks) "
    waited = timeout_of(axis)
    within = "" if waited is None else f" within the timeout of {waited.total_seconds():g} s"
    if impatient and not silent:
        peers = impatient
        each = f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}"
        said = f"{each} of axis {axis.name!r} gave up: this rank did not come{within}"
    elif any(word in reason for word in ("closed", "reset", "refused", "Broken pipe")):
        said += "has gone away: its process ended, or it gave up on a call"
    else:
        said += f"did not come{within}"
    hint = (
        "see that rank's own output; every rank has to make the same calls, backward passes too; "
        "init_process_group(timeout=) says how long to wait"
    )
    return PeerLost(f"axis {axis.name!r}, rank {axis.rank}: {said}. Hint: {hint}. ({reason[:200]})", peers)


def _group_timeout(group: Any) -> timedelta | None:
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (RuntimeError, AttributeError):
            continue
    return None


def timeout_of(axis: Axis) -> timedelta | None:
    """How long a rank waits for another before it gives up: as long as its group, and no longer than the process group
    that it was made from, for torch gives the groups of a mesh half an hour."""
    world = dist.group.WORLD
    known = [_group_timeout(group) for group in (axis.group, world) if group is not None]
    return min((each for each in known if each is not None), default=None)
