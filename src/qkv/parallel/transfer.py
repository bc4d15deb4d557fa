"""The ranks along an axis of a device mesh, and messages between them: send, receive, all-gather, all-reduce.

A transfer that fails names the lost rank. A rank that waits for a neighbour cannot know that the neighbour waits for a
third rank, so each rank that gives up writes to the process group's store which rank it was waiting for; a reported
rank that reports nothing itself is the lost one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import product
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, PeerLost, QkvError, complaint

_START_HINT = "start the program with torchrun, and call torch.distributed.init_process_group('gloo') in it"
# The torch.distributed backends for each type of device; torch itself checks other types.
_TRANSPORTS = {"cpu": ("gloo", "mpi", "ucc"), "cuda": ("nccl", "ucc", "gloo")}

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


class Axis(NamedTuple):
    """The ranks along an axis, counted from 0; `rank` is this process. name: for error messages."""

    group: Any
    rank: int
    size: int
    device: torch.device
    name: str

    def after(self, steps: int) -> int:
        """The rank that many steps further round the ring."""
        return (self.rank + steps) % self.size

    @property
    def key(self) -> str:
        """The name of the process group, the same on all its ranks."""
        return getattr(self.group, "group_name", self.name)


def read_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names; a mesh with one axis needs no name."""
    if not dist.is_initialized():
        raise OptionError(complaint("mesh", "no process group", "an initialized torch.distributed", _START_HINT))
    if not isinstance(mesh, DeviceMesh):
        hint = "torch.distributed.device_mesh.init_device_mesh('cpu', (ranks,), mesh_dim_names=('ranks',)) makes one"
        raise OptionTypeError(complaint("mesh", type(mesh).__name__, "a DeviceMesh", hint))
    index = axis_index(mesh, axis)
    if mesh.get_coordinate() is None:
        given = f"a mesh of ranks {mesh.mesh.flatten().tolist()}, called on rank {dist.get_rank()}"
        raise OptionError(complaint("mesh", given, "a mesh that this rank is part of"))
    group = mesh.get_group(index)
    _check_transport(mesh, group)
    names = mesh.mesh_dim_names
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    # The order of the group, which DTensors follow too: a mesh may list its ranks in another order.
    return Axis(group, dist.get_rank(group), mesh.size(index), device, names[index] if names else str(index))


def axis_index(mesh: DeviceMesh, axis: str | int | None) -> int:
    """The index of an axis that is given by its name or number."""
    names = mesh.mesh_dim_names or ()
    if isinstance(axis, bool) or not isinstance(axis, str | int | None):
        raise OptionTypeError(complaint("axis", repr(axis), "the name or the number of an axis of the mesh"))
    indices: dict[Any, int] = {name: index for index, name in enumerate(names)}
    indices |= {index: index % mesh.ndim for index in range(-mesh.ndim, mesh.ndim)}
    if axis not in indices and not (axis is None and mesh.ndim == 1):
        known = ", ".join(map(repr, names)) or f"0 to {mesh.ndim - 1}"
        raise OptionError(complaint("axis", repr(axis), f"one of the mesh's axes: {known}"))
    return indices.get(axis, 0)


def _check_transport(mesh: DeviceMesh, group: Any) -> None:
    backend = str(dist.get_backend(group)).lower()
    own = dict(part.split(":") for part in backend.split(",") if ":" in part).get(mesh.device_type, backend)
    supported = _TRANSPORTS.get(mesh.device_type)
    if own == "fake" or (supported is not None and own not in supported):
        wanted = f"a backend for {mesh.device_type} tensors: {', '.join(supported or ('a real one',))}"
        raise OptionError(complaint("mesh", f"backend {own!r} for {mesh.device_type}", wanted, _START_HINT))


# Bytes and messages that this process has sent: of data, and of the agreement before each call.
TRAFFIC: Counter[str] = Counter()
DATA, AGREEMENT, RESULTS = 0, 1, 2
_TRAFFIC_NAMES = {DATA: "data", AGREEMENT: "agreement", RESULTS: "data"}
_ERRORS = RuntimeError, dist.DistError


def bytes_sent() -> int:
    """Bytes that this process has sent to other ranks until now, in all calls of `qkv.parallel`.

    Returns:
        A count that only grows; the difference around a call is what the call sent.

    >>> before = bytes_sent()
    >>> bytes_sent() - before
    0
    """
    return TRAFFIC["data bytes"] + TRAFFIC["agreement bytes"]


# For each tensor, one for each rank.
Parts = Sequence[Sequence[Tensor]]
Shapes = Sequence[Sequence[Sequence[int]]]


class Message(NamedTuple):
    """A contiguous tensor to or from a rank of the axis."""

    peer: int
    tensor: Tensor


class Pending:
    """Transfers in progress. `wait` before reading or overwriting the tensors."""

    def __init__(self, axis: Axis, works: list[tuple[int, Any]], buffers: list[Tensor]) -> None:
        self._axis, self._works, self._buffers = axis, works, buffers

    def wait(self) -> None:
        works, self._works = self._works, []
        # Passed to each wait, since connections keep the timeout that they were made with. On other devices than the
        # CPU, `wait` only enqueues.
        limit = timeout_of(self._axis) if works and self._axis.device.type == "cpu" else None
        for peer, work in works:
            try:
                work.wait() if limit is None else work.wait(limit)
            except _ERRORS as error:
                ABANDONED.append((works, self._buffers))
                raise give_up(self._axis, [peer], error) from error
        self._buffers = []

    def __del__(self) -> None:
        if self._works:  # after an error the transport may still use the buffers
            ABANDONED.append((self._works, self._buffers))


def start(axis: Axis, sends: Sequence[Message], receives: Sequence[Message], tag: int = DATA) -> Pending:
    """Start sending and receiving. Empty tensors are skipped on both sides. Messages with the same tag between the same
    two ranks arrive in the order in which they were sent."""
    operations, peers = [], []
    for action, messages in ((dist.irecv, receives), (dist.isend, sends)):
        for peer, tensor in messages:
            if tensor.numel():
                operations.append(dist.P2POp(action, tensor, group=axis.group, tag=tag, group_peer=peer))
                peers.append(peer)
                if action is dist.isend:
                    TRAFFIC[f"{_TRAFFIC_NAMES[tag]} bytes"] += tensor.numel() * tensor.element_size()
                    TRAFFIC[f"{_TRAFFIC_NAMES[tag]} messages"] += 1
    if not operations:
        return Pending(axis, [], [])
    buffers, works = [operation.tensor for operation in operations], []
    # One by one on the CPU, where a batch is not faster and would hide which connection is closed.
    batches = [[each] for each in operations] if axis.device.type == "cpu" else [operations]
    try:
        for batch in batches:
            works += dist.batch_isend_irecv(batch)
    except _ERRORS as error:
        ABANDONED.append((works, buffers))
        raise give_up(axis, [peers[len(works)]], error) from error
    return Pending(axis, list(zip(peers, works, strict=False)), buffers)  # some backends return one handle for all


def all_gather(axis: Axis, tensor: Tensor, tag: int = DATA) -> list[Tensor]:
    """The tensors of all ranks, in rank order; all have the same shape and dtype."""
    return all_to_all(axis, [[tensor] * axis.size], [[tensor.shape] * axis.size], tag)[0]


def all_to_all(axis: Axis, outgoing: Parts, shapes: Shapes, tag: int = DATA) -> list[list[Tensor]]:
    """Send outgoing[t][r] to rank r; return for each t what every rank sent, in rank order. shapes[t][r]: of what rank
    r sends; a rank's part for itself is not sent."""
    found, pending = start_all_to_all(axis, outgoing, shapes, tag)
    pending.wait()
    return found


def start_all_to_all(
    axis: Axis, outgoing: Parts, shapes: Shapes, tag: int = DATA
) -> tuple[list[list[Tensor]], Pending]:
    """Start an `all_to_all`; the tensors are complete after `wait`."""
    found = []
    for parts, sizes in zip(outgoing, shapes, strict=True):
        found.append([part.new_empty(size) for part, size in zip(parts, sizes, strict=True)])
        found[-1][axis.rank] = parts[axis.rank]
    others = [axis.after(step) for step in range(1, axis.size)]
    sends = [Message(rank, parts[rank].contiguous()) for rank in others for parts in outgoing]
    receives = [Message(rank, parts[rank]) for rank in reversed(others) for parts in found]
    return found, start(axis, sends, receives, tag)


class _Exchange(torch.autograd.Function):
    """The parts of each tensor follow one another; gradients of tensors that need none are not sent."""

    @staticmethod
    def forward(ctx, axis: Axis, shapes: Shapes, tag: int, *parts: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axis, ctx.tag, ctx.shapes = axis, tag, [part.shape for part in parts]
        groups = [parts[first : first + axis.size] for first in range(0, len(parts), axis.size)]
        found = [part for received in all_to_all(axis, groups, shapes, tag) for part in received]
        needed = ctx.needs_input_grad[3:]
        ctx.mark_non_differentiable(*(part for part, learns in zip(found, needed, strict=True) if not learns))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        size, back = ctx.axis.size, list[Any]([None]) * len(grads)
        groups = [slice(at, at + size) for at in range(0, len(grads), size) if ctx.needs_input_grad[3 + at]]
        found = all_to_all(ctx.axis, [grads[own] for own in groups], [ctx.shapes[own] for own in groups], ctx.tag)
        for own, parts in zip(groups, found, strict=True):
            back[own] = parts
        return None, None, None, *back


def exchange(axis: Axis, outgoing: Parts, shapes: Shapes, tag: int = DATA) -> list[tuple[Tensor, ...]]:
    """`all_to_all`, differentiable: in the backward pass gradients are sent back to the ranks of the tensors."""
    found: Any = _Exchange.apply(axis, shapes, tag, *(part for parts in outgoing for part in parts))
    return [found[first : first + axis.size] for first in range(0, len(found), axis.size)]


DOUBLING_RANKS = 8  # from this number of ranks on, recursive doubling is faster than a message to each rank


def all_reduce(axis: Axis, own: Tensor, reduce: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """reduce([…]) over the tensors of all ranks, with the same bits on every rank.

    All tensors and the result have the same shape. Few ranks all-gather. Many ranks use recursive doubling: rank r
    exchanges with r ^ 1, r ^ 2, r ^ 4, …, so log₂ of their number; ranks beyond the largest power of two send theirs
    to a partner first and receive the result from it. The order depends only on the number of ranks; reduce must not
    depend on it.
    """
    if axis.size < DOUBLING_RANKS:
        return reduce(all_gather(axis, own, RESULTS))

    def exchange(peer: int, sends: bool = True, receives: bool = True) -> Tensor:
        other = torch.empty_like(result)
        start(axis, [Message(peer, result)] * sends, [Message(peer, other)] * receives, RESULTS).wait()
        return other

    power, result = 1 << (axis.size.bit_length() - 1), own.contiguous()
    partner = axis.rank - power if axis.rank >= power else axis.rank + power
    if axis.rank >= power:
        exchange(partner, receives=False)
        return exchange(partner, sends=False)
    if partner < axis.size:
        result = reduce([result, exchange(partner, sends=False)]).contiguous()
    for step in (1 << bit for bit in range(power.bit_length() - 1)):
        peer = axis.rank ^ step
        other = exchange(peer)
        result = reduce([result, other] if axis.rank < peer else [other, result]).contiguous()
    if partner < axis.size:
        exchange(partner, receives=False)
    return result


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
    which_of = f"{'one of ' * (len(peers) > 1)}{which}"
    if peers is waiting:
        message = f"{which} gave up: this rank did not respond{within}"
    elif any(word in reason for word in ("closed", "reset", "refused", "Broken pipe")):
        message = f"{which_of} closed the connection: its process ended, or it gave up on a call"
    else:
        message = f"{which_of} did not respond{within}"
    where = f"axis {axis.name!r}, rank {axis.rank}, in {CALLS.get(axis.key, 'its first call')}"
    return PeerLost(f"{where}: {message}. Hint: {_HINT}. ({reason[:200]})", peers)


@contextmanager
def raising_peer_lost(axis: Axis) -> Iterator[None]:
    """Turn errors of torch's collectives, which do not name the lost rank, into `PeerLost`."""
    try:
        yield
    except _ERRORS as error:
        if isinstance(error, QkvError) or not any(word in str(error) for word in _GLOO_ERRORS):
            raise
        # All ranks wait for all others: each reports the next one, and the lost rank is the one without a report.
        raise give_up(axis, [axis.after(step) for step in range(1, axis.size)], error) from error


def timeout_of(axis: Axis) -> timedelta | None:
    """How long a rank waits for another: the timeout of its group, but at most that of the default process group, since
    torch gives the groups of a mesh half an hour."""
    known = []
    groups: tuple[Any, Any] = axis.group, dist.group.WORLD
    for group, device in product(groups, ("cpu", "cuda")):
        with suppress(RuntimeError, AttributeError):
            known.append(group._get_backend(torch.device(device)).options._timeout)
    return min(known, default=None)


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
        with suppress(*_ERRORS):
            work = dist.irecv(buffer, group=axis.group, tag=_UNUSED_TAG, group_src=axis.after(step))
            ABANDONED.append((work, buffer))
            assert work is not None
            work.wait(timedelta(milliseconds=1))
