"""What a call's mesh and axis may be, and what is said of the others."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import qkv
from qkv.errors import OptionError, OptionTypeError, QkvError
from qkv.parallel.transfer import patience, read_axis
from ranks import SIZE, Crew


def ask(mesh, **options):
    tensor = torch.ones(1, 1, 3, 2)
    return qkv.parallel.attention(tensor, tensor, tensor, mesh=mesh, **options)


def test_no_process_group() -> None:
    with pytest.raises(
        OptionError, match=r"mesh: got no process group, wanted torch.distributed to be running.*torchrun"
    ):
        ask(None)


def messages(mesh, meshes):
    """What every kind of mesh and axis is answered with on this rank."""
    made = {
        "None": (None, None),
        "a list": ([0, 1], None),
        "unknown": (mesh, "sequence"),
        "too far": (mesh, 1),
        "a bool": (mesh, True),
        "a float": (mesh, 0.0),
    }
    if "square" in meshes:
        square = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("rows", "columns"))
        nameless = DeviceMesh("cpu", torch.arange(4).view(2, 2))
        part = DeviceMesh("cpu", [1, 3], mesh_dim_names=("ranks",))
        made |= {"no axis": (square, None), "no name": (nameless, "rows"), "part": (part, None)}
        made |= {"back": (square, -1)}
    found = {}
    for name, (each, axis) in made.items():
        try:
            place = read_axis(each, axis)
        except QkvError as error:
            found[name] = type(error).__name__, str(error)
        else:
            found[name] = place.rank, place.size, place.name, patience(place)
    return found


def test_meshes_and_axes(crew: Crew) -> None:
    for rank, found in enumerate(crew.run(messages, SIZE, meshes=("square",))):
        kinds = {name: answer[0] for name, answer in found.items()}
        for name in ("None", "a list", "a bool", "a float"):
            assert kinds[name] == OptionTypeError.__name__
        assert "wanted a DeviceMesh. Hint: torch.distributed.device_mesh.init_device_mesh" in found["a list"][1]
        assert found["unknown"] == ("OptionError", "axis: got 'sequence', wanted one of the mesh's axes: 'ranks'.")
        assert found["too far"] == ("OptionError", "axis: got 1, wanted one of the mesh's axes: 'ranks'.")
        assert found["no axis"] == ("OptionError", "axis: got None, wanted one of the mesh's axes: 'rows', 'columns'.")
        assert found["no name"] == ("OptionError", "axis: got 'rows', wanted one of the mesh's axes: 0 to 1.")
        if rank in (1, 3):
            assert found["part"][:3] == (rank // 2, 2, "ranks")
        else:
            given = f"a mesh of ranks [1, 3], called on rank {rank}"
            assert found["part"] == ("OptionError", f"mesh: got {given}, wanted a mesh that this rank is part of.")
        place, size, name, waits = found["back"]
        assert (place, size, name) == (rank % 2, 2, "columns")
        assert waits.total_seconds() == 30.0  # the world's, not torch's half an hour


def test_a_backend_that_moves_nothing() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("ranks",))
        with pytest.raises(OptionError, match=r"mesh: got backend 'fake' for cpu, wanted one that moves cpu.*gloo"):
            ask(mesh)
    finally:
        dist.destroy_process_group()
