"""The ranks along an axis of a device mesh, and messages between them: send, receive, all-gather, all-reduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, complaint
from .failure import ABANDONED, give_up, timeout_of

_START_HINT = "start the program with torchrun, and call torch.distributed.init_process_group('gloo') in it"
# The torch.distributed backends for each type of device; torch itself checks other types.
_TRANSPORTS = {"cpu": ("gloo", "mpi", "ucc"), "cuda": ("nccl", "ucc", "gloo")}


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


def all_to_all(
    axis: Axis, outgoing: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Sequence[int]]], tag: int = DATA
) -> list[list[Tensor]]:
    """Send outgoing[t][r] to rank r; return for each t what every rank sent, in rank order. shapes[t][r]: of what rank
    r sends; a rank's part for itself is not sent."""
    found, pending = start_all_to_all(axis, outgoing, shapes, tag)
    pending.wait()
    return found


def start_all_to_all(
    axis: Axis, outgoing: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Sequence[int]]], tag: int = DATA
) -> tuple[list[list[Tensor]], Pending]:
    """Start an `all_to_all`; the tensors are complete after `wait`."""
    found = [
        [part.new_empty(shape) for part, shape in zip(*each, strict=True)]
        for each in zip(outgoing, shapes, strict=True)
    ]
    for received, parts in zip(found, outgoing, strict=True):
        received[axis.rank] = parts[axis.rank]
    others = [axis.after(step) for step in range(1, axis.size)]
    sends = [Message(rank, parts[rank].contiguous()) for rank in others for parts in outgoing]
    receives = [Message(rank, parts[rank]) for rank in reversed(others) for parts in found]
    return found, start(axis, sends, receives, tag)


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
