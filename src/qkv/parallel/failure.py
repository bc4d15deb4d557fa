"""Which rank is lost: ranks that give up write to the process group's store which rank they were waiting for.

A rank that waits for a neighbour cannot know that the neighbour waits for a third rank. Each reports the rank that it
gave up on; a reported rank that reports nothing itself is the lost one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import PeerLost, QkvError

if TYPE_CHECKING:
    from .transfer import Axis

_MAX_WAIT = 1.0  # seconds to wait for the reports of other ranks
_MIN_WAIT = 0.25
_UNUSED_TAG = 3  # a tag that is never sent
# Buffers of failed transfers, kept alive because the transport may still write to them.
ABANDONED: list[Any] = []
# The call that each group is in, for messages.
CALLS: dict[str, str] = {}
_GLOO_ERRORS = ("Timed out", "Connection closed", "unbound_buffer", "Connection reset", "Broken pipe", "gloo", "Socket")
_HINT = (
    "see the output of that rank; every rank has to make the same calls, backward passes too; "
    "set the time to wait by init_process_group(timeout=)"
)


def give_up(axis: Axis, suspects: Sequence[int], error: BaseException) -> PeerLost:
    """The error for a transfer that failed, after the other ranks were told. suspects: the ranks that this one may have
    waited for, the most likely one first."""
    store, reports = _store(), dict[int, int]()
    if store is not None:  # before the connections are closed, so that ranks that fail by it can read the report
        _run_for(_MIN_WAIT, lambda: store.compare_set(_report_key(axis, axis.rank), "", str(suspects[0])))
    _close_connections(axis)
    timeout = timeout_of(axis)
    if store is not None:
        grace = _MAX_WAIT if timeout is None else max(_MIN_WAIT, min(_MAX_WAIT, timeout.total_seconds() / 4))
        _run_for(grace + _MIN_WAIT, lambda: _collect_reports(axis, store, reports, grace))
    reports = dict(reports) if axis.rank in reports else {}  # empty: the store does not work
    lost, seen = suspects[0], {axis.rank}
    while lost in reports and lost not in seen:
        seen.add(lost)
        lost = reports[lost]
    waiting = [rank for rank, waits_for in reports.items() if waits_for == axis.rank]
    peers = [lost] if reports and lost not in seen else waiting or sorted(suspects)
    reason = " ".join(str(error).split())
    reason = reason[reason.find("]") + 1 :].strip() if reason.startswith("[") else reason
    reason = reason.split(". ")[0]
    within = "" if timeout is None else f" within the timeout of {timeout.total_seconds():g} s"
    which = f"rank{'s' * (len(peers) > 1)} {', '.join(map(str, peers))} of axis {axis.name!r} ({axis.size} ranks)"
    if peers is waiting:
        message = f"{which} gave up: this rank did not respond{within}"
    elif any(word in reason for word in ("closed", "reset", "refused", "Broken pipe")):
        message = (
            f"{'one of ' * (len(peers) > 1)}{which} closed the connection: its process ended, or it gave up on a call"
        )
    else:
        message = f"{'one of ' * (len(peers) > 1)}{which} did not respond{within}"
    where = f"axis {axis.name!r}, rank {axis.rank}, in {CALLS.get(axis.key, 'its first call')}"
    return PeerLost(f"{where}: {message}. Hint: {_HINT}. ({reason[:200]})", peers)


@contextmanager
def raising_peer_lost(axis: Axis) -> Iterator[None]:
    """Turn errors of torch's collectives, which do not name the lost rank, into `PeerLost`."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if isinstance(error, QkvError) or not any(word in str(error) for word in _GLOO_ERRORS):
            raise
        # All ranks wait for all others: each reports the next one, and the lost rank is the one without a report.
        raise give_up(axis, [axis.after(step) for step in range(1, axis.size)], error) from error


def timeout_of(axis: Axis) -> timedelta | None:
    """How long a rank waits for another: the timeout of its group, but at most that of the default process group, since
    torch gives the groups of a mesh half an hour."""
    known = [_group_timeout(group) for group in (axis.group, dist.group.WORLD) if group is not None]
    return min((each for each in known if each is not None), default=None)


def _group_timeout(group: Any) -> timedelta | None:
    for device in ("cpu", "cuda"):
        with suppress(RuntimeError, AttributeError):
            return group._get_backend(torch.device(device)).options._timeout
    return None


def _collect_reports(axis: Axis, store: Any, reports: dict[int, int], seconds: float) -> None:
    """Add to `reports` which rank each rank gave up on, until all but one have reported."""
    end = time.monotonic() + seconds
    while len(reports) < axis.size - 1 and time.monotonic() <= end:
        for rank in range(axis.size):
            if rank not in reports and store.check([_report_key(axis, rank)]):
                reports[rank] = int(store.get(_report_key(axis, rank)))
        time.sleep(0.01)


def _report_key(axis: Axis, rank: int) -> str:
    return f"qkv.parallel/gave up/{axis.key}/{rank}"


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except (RuntimeError, ValueError, AttributeError):
        return None


def _run_for(seconds: float, action: Callable[[], Any]) -> None:
    """Run an action, but no longer than that: the lost process may be the one that serves the store."""

    def run() -> None:
        with suppress(Exception):  # must not hide the error that is being raised
            action()

    thread = Thread(target=run, daemon=True, name="qkv failure report")
    thread.start()
    thread.join(seconds)


def _close_connections(axis: Axis) -> None:
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
