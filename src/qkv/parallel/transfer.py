"""One axis of a device mesh: the ranks between which a call is split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, complaint
from .failure import ABANDONED, close_connections, peer_lost, report_lost, timeout_of

_START_HINT = "start the program with torchrun, and call torch.distributed.init_process_group('gloo') in it"
# What moves tensors of each kind of device. Others are let through: torch knows them, or says so itself.
_TRANSPORTS = {"cpu": ("gloo", "mpi", "ucc"), "cuda": ("nccl", "ucc", "gloo")}


class Axis(NamedTuple):
    """The ranks along an axis, counted from 0; `rank` is this one. name: for messages."""

    group: Any
    rank: int
    size: int
    device: torch.device
    name: str

    def after(self, steps: int) -> int:
        """The rank so many places further on, round the ring."""
        return (self.rank + steps) % self.size


def read_axis(mesh: DeviceMesh | None, axis: str | int | None) -> Axis:
    """The axis that a call names; with one axis in the mesh the name can be left out."""
    if not dist.is_available():
        raise OptionError(complaint("mesh", "a build of torch without distributed", "one with it"))
    if not dist.is_initialized():
        raise OptionError(complaint("mesh", "no process group", "torch.distributed to be running", _START_HINT))
    if not isinstance(mesh, DeviceMesh):
        hint = "torch.distributed.device_mesh.init_device_mesh('cpu', (ranks,), mesh_dim_names=('ranks',)) makes one"
        raise OptionTypeError(complaint("mesh", type(mesh).__name__, "a DeviceMesh", hint))
    place = _axis_index(mesh, axis)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        given = f"a mesh of ranks {mesh.mesh.flatten().tolist()}, called on rank {dist.get_rank()}"
        raise OptionError(complaint("mesh", given, "a mesh that this rank is part of"))
    group = mesh.get_group(place)
    _check_transport(mesh, group)
    names = mesh.mesh_dim_names
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    # The group's own order, which DTensors follow too: a mesh may name its ranks in another.
    return Axis(group, dist.get_rank(group), mesh.size(place), device, names[place] if names else str(place))


def _axis_index(mesh: DeviceMesh, axis: str | int | None) -> int:
    names = mesh.mesh_dim_names or ()
    known = ", ".join(map(repr, names)) or f"0 to {mesh.ndim - 1}"
    if axis is None:
        if mesh.ndim == 1:
            return 0
        raise OptionError(complaint("axis", "None", f"one of the mesh's axes: {known}"))
    if isinstance(axis, str):
        if axis in names:
            return names.index(axis)
        raise OptionError(complaint("axis", repr(axis), f"one of the mesh's axes: {known}"))
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise OptionTypeError(complaint("axis", repr(axis), "the name or the number of an axis of the mesh"))
    if not -mesh.ndim <= axis < mesh.ndim:
        raise OptionError(complaint("axis", axis, f"one of the mesh's axes: {known}"))
    return axis % mesh.ndim


def _check_transport(mesh: DeviceMesh, group: Any) -> None:
    backend = str(dist.get_backend(group)).lower()
    own = dict(part.split(":") for part in backend.split(",") if ":" in part).get(mesh.device_type, backend)
    good = _TRANSPORTS.get(mesh.device_type)
    if own == "fake" or (good is not None and own not in good):
        wanted = f"one that moves {mesh.device_type} tensors: {', '.join(good or ('a real one',))}"
        raise OptionError(complaint("mesh", f"backend {own!r} for {mesh.device_type}", wanted, _START_HINT))


# Bytes and messages that this process has sent, of tickets (what ranks say of their calls) and of data.
TRAFFIC: Counter[str] = Counter()
DATA, AGREEMENT, RESULTS = 0, 1, 2
_TRAFFIC_NAMES = {DATA: "data", AGREEMENT: "tickets", RESULTS: "data"}


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
        limit = timeout_of(self._axis) if works and self._axis.device.type == "cpu" else None
        for place, (peer, doing, work) in enumerate(works):
            try:
                work.wait() if limit is None else work.wait(limit)
            except (RuntimeError, dist.DistError) as error:
                ABANDONED.append((works, self._held))
                # The cause is told before the other transfers are given up, which closes their connections.
                report_lost(self._axis, peer)
                others = [(p, d) for p, d, w in works[place + 1 :] if not _completes(w)]
                close_connections(self._axis)
                raise peer_lost(self._axis, [(peer, doing), *others], error) from error
        self._held = []

    def __del__(self) -> None:
        if self._works:  # an error came between: the transport still has the buffers
            ABANDONED.append((self._works, self._held))


def _completes(work: Any) -> bool:
    """Whether a transfer ends too, now that one has failed."""
    try:
        work.wait(timedelta(milliseconds=50))
    except (RuntimeError, dist.DistError):
        return False
    return True


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
            TRAFFIC[f"{_TRAFFIC_NAMES[tag]} bytes"] += message.tensor.numel() * message.tensor.element_size()
            TRAFFIC[f"{_TRAFFIC_NAMES[tag]} messages"] += 1
    if not operations:
        return Pending(axis, [], [])
    held, begun = [operation.tensor for operation in operations], []
    # One by one on the CPU, where nothing is gained by a batch: it would not tell whose connection is closed.
    batches = [[each] for each in operations] if axis.device.type == "cpu" else [operations]
    try:
        for batch in batches:
            begun += dist.batch_isend_irecv(batch)
    except (RuntimeError, dist.DistError) as error:
        ABANDONED.append((begun, held))
        closed = works[len(begun) :]
        report_lost(axis, closed[0][0])
        close_connections(axis)
        raise peer_lost(axis, closed, error) from error
    if len(begun) != len(works):  # some backends give one for all
        return Pending(axis, [(peer, way, begun[0]) for peer, way in works[:1]], held)
    return Pending(axis, [(peer, way, work) for (peer, way), work in zip(works, begun, strict=True)], held)


def all_gather(axis: Axis, tensor: Tensor, tag: int = DATA) -> list[Tensor]:
    """The tensors of all ranks, in rank order; all have the same shape and dtype."""
    found, pending = start_all_gather(axis, tensor, tag)
    pending.wait()
    return found


def start_all_gather(axis: Axis, tensor: Tensor, tag: int = DATA) -> tuple[list[Tensor], Pending]:
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


DOUBLING_RANKS = 8  # ranks from which on a message to each costs more than a few rounds


def all_reduce(axis: Axis, mine: Tensor, join: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """join of what all ranks have, one shape for all and for the result: the same bits on every rank, whoever is late.

    Few ranks send theirs to all others. Of many, rank r joins with r ^ 1, r ^ 2, r ^ 4, …, so that it sends and
    receives log₂ of their number; those behind the largest power of two give theirs to another first, and hear the
    end from it. The order depends on the number of ranks alone, so join must not mind it.
    """
    if axis.size < DOUBLING_RANKS:
        return join(all_gather(axis, mine, RESULTS))
    power = 1 << (axis.size.bit_length() - 1)
    beside = axis.rank - power if axis.rank >= power else axis.rank + power
    found = mine.contiguous()
    if axis.rank >= power:
        start(axis, [Message(beside, found)], [], RESULTS).wait()
        return _receive(axis, beside, found)
    if beside < axis.size:
        found = join([found, _receive(axis, beside, found)])
    step = 1
    while step < power:
        peer, other = axis.rank ^ step, torch.empty_like(found)
        start(axis, [Message(peer, found)], [Message(peer, other)], RESULTS).wait()
        found = join([found, other] if axis.rank < peer else [other, found]).contiguous()
        step *= 2
    if beside < axis.size:
        start(axis, [Message(beside, found)], [], RESULTS).wait()
    return found


def _receive(axis: Axis, peer: int, like: Tensor) -> Tensor:
    other = torch.empty_like(like)
    start(axis, [], [Message(peer, other)], RESULTS).wait()
    return other
