"""Which rank is lost: ranks that time out write to the process group's store which rank they were waiting for.

A rank that waits for a neighbour cannot know that the neighbour waits for a third rank. Each reports the rank that it
gave up on; a reported rank that reports nothing itself is the lost one.
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

_MAX_WAIT = 1.0  # seconds to wait for the reports of other ranks
_MIN_WAIT = 0.25
_UNUSED_TAG = 3  # a tag that is never sent
# Buffers of failed transfers, kept alive because the transport may still write to them.
ABANDONED: list[Any] = []


def report_lost(axis: Axis, peer: int) -> None:
    """Tell the other ranks which rank this one was waiting for; only the first report counts."""
    store = _store()
    if store is not None:
        _run_with_timeout(lambda: store.compare_set(_report_key(axis, axis.rank), "", json.dumps([peer])), _MIN_WAIT)


def lost_reports(axis: Axis) -> dict[int, list[int]]:
    """Which ranks each rank gave up on, including this one. Waits briefly for the reports of all ranks but one. Empty
    when the store does not work."""
    store = _store()
    if store is None:
        return {}
    reports: dict[int, list[int]] = {}
    timeout = timeout_of(axis)
    grace = _MAX_WAIT if timeout is None else max(_MIN_WAIT, min(_MAX_WAIT, timeout.total_seconds() / 4))

    def collect() -> None:
        end = time.monotonic() + grace
        while True:
            for rank in range(axis.size):
                if rank not in reports and store.check([_report_key(axis, rank)]):
                    reports[rank] = json.loads(store.get(_report_key(axis, rank)))
            if len(reports) >= axis.size - 1 or time.monotonic() > end:
                return
            time.sleep(0.01)

    _run_with_timeout(collect, grace + _MIN_WAIT)
    found = dict(reports)
    return found if axis.rank in found else {}


def silent_ranks(here: int, reports: dict[int, list[int]], suspects: Sequence[int]) -> list[int]:
    """Follow the reports from the suspects of rank `here` to the ranks that reported nothing.

    >>> silent_ranks(0, {0: [3], 3: [2]}, [3])
    [2]
    """
    seen, silent, queue = {here}, set(), list(suspects)
    while reports and queue:
        rank = queue.pop()
        if rank not in seen:
            seen.add(rank)
            silent |= set() if rank in reports else {rank}
            queue += reports.get(rank, [])
    return sorted(silent)


def _report_key(axis: Axis, rank: int) -> str:
    return f"qkv.parallel/gave up/{getattr(axis.group, 'group_name', axis.name)}/{rank}"


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except (RuntimeError, ValueError, AttributeError):
        return None


def _run_with_timeout(action: Callable[[], Any], seconds: float) -> None:
    """Give up after some seconds: the lost process may be the one that serves the store."""

    def run() -> None:
        with suppress(Exception):  # must not hide the error that is being raised
            action()

    thread = Thread(target=run, daemon=True, name="qkv failure report")
    thread.start()
    thread.join(seconds)


def close_connections(axis: Axis) -> None:
    """Close the connections of a failed group, so that ranks that wait for this one fail now. A receive without a
    sender closes its connection when it times out."""
    if axis.device.type != "cpu":
        return
    for step in range(1, axis.size):
        buffer = torch.empty(1)
        with suppress(RuntimeError, dist.DistError):
            work = dist.irecv(buffer, group=axis.group, tag=_UNUSED_TAG, group_src=axis.after(step))
            ABANDONED.append((work, buffer))
            assert work is not None
            work.wait(timedelta(milliseconds=1))


def peer_lost(axis: Axis, transfers: Sequence[tuple[int, str]], error: BaseException) -> PeerLost:
    """The error for transfers that did not complete."""
    suspects = sorted({peer for peer, _ in transfers})
    reports = lost_reports(axis)
    silent = silent_ranks(axis.rank, reports, [transfers[0][0]]) or silent_ranks(axis.rank, reports, suspects)
    waiting = [rank for rank, lost in reports.items() if axis.rank in lost]
    peers = silent or suspects
    reason = " ".join(str(error).split())
    reason = reason[reason.find("]") + 1 :].strip() if reason.startswith("[") else reason
    reason = reason.split(". ")[0]
    which = f"rank {peers[0]}" if len(peers) == 1 else f"one of ranks {', '.join(map(str, peers))}"
    message = f"{which} of axis {axis.name!r} ({axis.size} ranks) "
    timeout = timeout_of(axis)
    within = "" if timeout is None else f" within the timeout of {timeout.total_seconds():g} s"
    if waiting and not silent:
        peers = waiting
        each = f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))}"
        message = f"{each} of axis {axis.name!r} gave up: this rank did not respond{within}"
    elif any(word in reason for word in ("closed", "reset", "refused", "Broken pipe")):
        message += "closed the connection: its process ended, or it gave up on a call"
    else:
        message += f"did not respond{within}"
    hint = (
        "see the output of that rank; every rank has to make the same calls, backward passes too; "
        "set the time to wait by init_process_group(timeout=)"
    )
    return PeerLost(f"axis {axis.name!r}, rank {axis.rank}: {message}. Hint: {hint}. ({reason[:200]})", peers)


def _group_timeout(group: Any) -> timedelta | None:
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (RuntimeError, AttributeError):
            continue
    return None


def timeout_of(axis: Axis) -> timedelta | None:
    """How long a rank waits for another: the timeout of its group, but at most that of the default process group, since
    torch gives the groups of a mesh half an hour."""
    world = dist.group.WORLD
    known = [_group_timeout(group) for group in (axis.group, world) if group is not None]
    return min((each for each in known if each is not None), default=None)
