"""One axis of a device mesh: the ranks between which a call is split."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OptionError, OptionTypeError, complaint

_START = "start the program with torchrun, and call torch.distributed.init_process_group('gloo') in it"
# What moves tensors of each kind of device. Others are let through: torch knows them, or says so itself.
_BACKENDS = {"cpu": ("gloo", "mpi", "ucc"), "cuda": ("nccl", "ucc", "gloo")}


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
        raise OptionError(complaint("mesh", "no process group", "torch.distributed to be running", _START))
    if not isinstance(mesh, DeviceMesh):
        hint = "torch.distributed.device_mesh.init_device_mesh('cpu', (ranks,), mesh_dim_names=('ranks',)) makes one"
        raise OptionTypeError(complaint("mesh", type(mesh).__name__, "a DeviceMesh", hint))
    place = _place(mesh, axis)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        given = f"a mesh of ranks {mesh.mesh.flatten().tolist()}, called on rank {dist.get_rank()}"
        raise OptionError(complaint("mesh", given, "a mesh that this rank is part of"))
    group = mesh.get_group(place)
    _check_backend(mesh, group)
    names = mesh.mesh_dim_names
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    # The group's own order, which DTensors follow too: a mesh may name its ranks in another.
    return Axis(group, dist.get_rank(group), mesh.size(place), device, names[place] if names else str(place))


def _place(mesh: DeviceMesh, axis: str | int | None) -> int:
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


def _check_backend(mesh: DeviceMesh, group: Any) -> None:
    backend = str(dist.get_backend(group)).lower()
    own = dict(part.split(":") for part in backend.split(",") if ":" in part).get(mesh.device_type, backend)
    good = _BACKENDS.get(mesh.device_type)
    if own == "fake" or (good is not None and own not in good):
        wanted = f"one that moves {mesh.device_type} tensors: {', '.join(good or ('a real one',))}"
        raise OptionError(complaint("mesh", f"backend {own!r} for {mesh.device_type}", wanted, _START))


def _timeout(group: Any) -> timedelta | None:
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (RuntimeError, AttributeError):
            continue
    return None


def patience(axis: Axis) -> timedelta | None:
    """How long a rank waits for another before it gives up: as long as its group, and no longer than the process group
    that it was made from, for torch gives the groups of a mesh half an hour."""
    world = dist.group.WORLD
    known = [_timeout(group) for group in (axis.group, world) if group is not None]
    return min((each for each in known if each is not None), default=None)
