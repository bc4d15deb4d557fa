"""Messages between ranks: what is sent is counted, and whoever is not there is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PeerLost
from .axis import Axis, patience
from .witness import give_up_on, missing, words

# Bytes and messages that this process has sent, of tickets (what ranks say of their calls) and of data.
TRAFFIC: Counter[str] = Counter()
DATA, TICKETS, ANSWERS = 0, 1, 2
_NOBODY = 3  # a tag that is never sent
_NAMES = {DATA: "data", TICKETS: "tickets", ANSWERS: "data"}
# Buffers of transfers that failed: the transport may still write into them.
_ABANDONED: list[Any] = []


class Message(NamedTuple):
    """A contiguous tensor to or from a rank of the axis."""

    peer: int
    tensor: Tensor


class Pending:
    """Transfers that are under way. `wait` before the tensors are read, or written to again."""

    def __init__(self, axis: Axis, works: list[tuple[int, str, Any]], held: list[Tensor]) -> None:
        self._axis, self._works, self._held = axis, works, held

    def wait(self) -> None:
        works, self._works = self._works, []
        # Told to each, since a group's connections keep the timeout that they were made with. Elsewhere than on the CPU
        # transfers are put in line, and nobody waits for them here.
        limit = patience(self._axis) if works and self._axis.device.type == "cpu" else None
        for place, (peer, doing, work) in enumerate(works):
            try:
                work.wait() if limit is None else work.wait(limit)
            except (RuntimeError, dist.DistError) as error:
                _ABANDONED.append((works, self._held))
                # The cause is told before the other transfers are given up, which closes their connections.
                give_up_on(self._axis, peer)
                others = [(p, d) for p, d, w in works[place + 1 :] if not _arrives(w)]
                hang_up(self._axis)
                raise lost(self._axis, [(peer, doing), *others], error) from error
        self._held = []

    def __del__(self) -> None:
        if self._works:  # an error came between: the transport still has the buffers
            _ABANDONED.append((self._works, self._held))


def _arrives(work: Any) -> bool:
    """Whether a transfer ends too, now that one has failed."""
    try:
        work.wait(timedelta(milliseconds=50))
    except (RuntimeError, dist.DistError):
        return False
    return True


def hang_up(axis: Axis) -> None:
    """Close the connections of a group that is lost, so that those who wait for this rank hear of it now. A transfer
    that nobody answers does so when it times out."""
    if axis.device.type != "cpu":
        return
    for step in range(1, axis.size):
        room = torch.empty(1)
        with suppress(RuntimeError, dist.DistError):
            work = dist.irecv(room, group=axis.group, tag=_NOBODY, group_src=axis.after(step))
            _ABANDONED.append((work, room))
            assert work is not None
            work.wait(timedelta(milliseconds=1))


def start(axis: Axis, sends: Sequence[Message], receives: Sequence[Message], tag: int = DATA) -> Pending:
    """Begin to send and to receive; empty tensors are not sent, and both sides know it. Messages of a tag between two
    ranks arrive in the order in which they were sent."""
    operations, works = [], []
    for message in receives:
        if message.tensor.numel():
            operations.append(
                dist.P2POp(dist.irecv, message.tensor, group=axis.group, tag=tag, group_peer=message.peer)
            )
            works.append((message.peer, "from"))
    for message in sends:
        if message.tensor.numel():
            operations.append(
                dist.P2POp(dist.isend, message.tensor, group=axis.group, tag=tag, group_peer=message.peer)
            )
            works.append((message.peer, "to"))
            TRAFFIC[f"{_NAMES[tag]} bytes"] += message.tensor.numel() * message.tensor.element_size()
            TRAFFIC[f"{_NAMES[tag]} messages"] += 1
    if not operations:
        return Pending(axis, [], [])
    held, begun = [operation.tensor for operation in operations], []
    # One by one on the CPU, where nothing is gained by a batch: it would not tell whose connection is closed.
    batches = [[each] for each in operations] if axis.device.type == "cpu" else [operations]
    try:
        for batch in batches:
            begun += dist.batch_isend_irecv(batch)
    except (RuntimeError, dist.DistError) as error:
        _ABANDONED.append((begun, held))
        closed = works[len(begun) :]
        give_up_on(axis, closed[0][0])
        hang_up(axis)
        raise lost(axis, closed, error) from error
    if len(begun) != len(works):  # some backends give one for all
        return Pending(axis, [(peer, way, begun[0]) for peer, way in works[:1]], held)
    return Pending(axis, [(peer, way, work) for (peer, way), work in zip(works, begun, strict=True)], held)


def everybodys(axis: Axis, tensor: Tensor, tag: int = DATA) -> list[Tensor]:
    """The tensors of all ranks, in rank order; all have the same shape and dtype."""
    found, pending = gathering(axis, tensor, tag)
    pending.wait()
    return found


def gathering(axis: Axis, tensor: Tensor, tag: int = DATA) -> tuple[list[Tensor], Pending]:
    """The same, under way."""
    tensor = tensor.contiguous()
    found = [tensor if rank == axis.rank else torch.empty_like(tensor) for rank in range(axis.size)]
    others = [axis.after(step) for step in range(1, axis.size)]
    pending = start(
        axis,
        [Message(rank, tensor) for rank in others],
        [Message(rank, found[rank]) for rank in reversed(others)],
        tag,
    )
    return found, pending


def lost(axis: Axis, transfers: Sequence[tuple[int, str]], error: BaseException) -> PeerLost:
    """What to say of transfers that did not end."""
    suspects = sorted({peer for peer, _ in transfers})
    heard = words(axis)
    silent = missing(axis.rank, heard, [transfers[0][0]]) or missing(axis.rank, heard, suspects)
    impatient = [rank for rank, blamed in heard.items() if axis.rank in blamed]
    peers = silent or suspects
    reason = " ".join(str(error).split())
    reason = reason[reason.find("]") + 1 :].strip() if reason.startswith("[") else reason
    reason = reason.split(". ")[0]
    which = f"rank {peers[0]}" if len(peers) == 1 else f"one of ranks {', '.join(map(str, peers))}"
    said = f"{which} of axis {axis.name!r} ({axis.size} ranks) "
    waited = patience(axis)
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
