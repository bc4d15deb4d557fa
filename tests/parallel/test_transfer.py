"""Meshes and axes, messages, lost ranks and all-reduce."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import qkv
from qkv.cost.communication import DOUBLING_RANKS
from qkv.errors import OptionError, OptionTypeError, PeerLost, QkvError
from qkv.parallel import transfer
from qkv.parallel.transfer import (
    ABANDONED,
    AGREEMENT,
    CALLS,
    DATA,
    RESULTS,
    TRAFFIC,
    Axis,
    Message,
    all_gather,
    give_up,
    read_axis,
    start,
    timeout_of,
)
from tests.helpers.ranks import SIZE, RankPool

pytestmark = pytest.mark.slow


def attend(mesh, **options):
    tensor = torch.ones(1, 1, 3, 2)
    return qkv.parallel.attention(tensor, tensor, tensor, mesh=mesh, **options)


def test_no_process_group() -> None:
    with pytest.raises(
        OptionError, match=r"mesh: got no process group, wanted an initialized torch.distributed.*torchrun"
    ):
        attend(None)


def messages(mesh, meshes):
    """The axis or the error for every kind of mesh and axis, on this rank."""
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
            found[name] = place.rank, place.size, place.name, timeout_of(place)
    return found


def test_meshes_and_axes(pool: RankPool) -> None:
    for rank, found in enumerate(pool.run(messages, SIZE, meshes=("square",))):
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
        assert waits.total_seconds() == 30.0  # that of the default process group, not torch's half an hour


def test_a_fake_backend_is_refused() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = DeviceMesh("cpu", [0, 1], mesh_dim_names=("ranks",))
        with pytest.raises(OptionError, match=r"mesh: got backend 'fake' for cpu, wanted a backend for cpu.*gloo"):
            attend(mesh)
    finally:
        dist.destroy_process_group()


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def exchange(mesh):
    axis = read_axis(mesh, None)
    transfer.TRAFFIC.clear()
    found = [all_gather(axis, torch.full((3, 2), axis.rank, dtype=dtype)) for dtype in DTYPES]
    return found, dict(transfer.TRAFFIC), qkv.parallel.bytes_sent()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_gather(pool: RankPool, ranks: int) -> None:
    for found, traffic, sent in pool.run(exchange, ranks):
        for dtype, tensors in zip(DTYPES, found, strict=True):
            assert [t.dtype for t in tensors] == [dtype] * ranks
            assert [t.tolist() for t in tensors] == [[[rank] * 2] * 3 for rank in range(ranks)]
        assert sent == traffic.get("data bytes", 0)
        if ranks > 1:
            assert traffic["data messages"] == len(DTYPES) * (ranks - 1)
            assert traffic["data bytes"] == 6 * sum(dtype.itemsize for dtype in DTYPES) * (ranks - 1)
        else:
            assert traffic == {}


def in_order(mesh):
    """Messages of a tag arrive in order; tags do not mix; empty tensors are not sent."""
    axis = read_axis(mesh, None)
    to, of = axis.after(1), axis.after(-1)
    buffers = {tag: [torch.zeros(1), torch.zeros(1)] for tag in (DATA, RESULTS)}
    transfer.TRAFFIC.clear()
    pending = [
        start(axis, [], [Message(of, buffer) for buffer in buffers[RESULTS]], RESULTS),
        start(axis, [Message(to, torch.tensor([1.0])), Message(to, torch.tensor([2.0]))], [], DATA),
        start(axis, [Message(to, torch.tensor([3.0])), Message(to, torch.tensor([4.0]))], [], RESULTS),
        start(axis, [], [Message(of, buffer) for buffer in buffers[DATA]], DATA),
        start(axis, [Message(to, torch.zeros(0, 5))], [Message(of, torch.zeros(5, 0))], AGREEMENT),
    ]
    for each in pending:
        each.wait()
        each.wait()  # a second wait does nothing
    return [float(buffer) for tag in (DATA, RESULTS) for buffer in buffers[tag]], dict(transfer.TRAFFIC)


def test_order_and_tags(pool: RankPool) -> None:
    for found, traffic in pool.run(in_order, SIZE):
        assert found == [1.0, 2.0, 3.0, 4.0]
        assert traffic == {"data messages": 4, "data bytes": 16}


class Late:
    """A transfer that fails."""

    def wait(self, timeout: Any = None) -> None:
        raise RuntimeError("[file.cc:1] Timed out waiting 3000ms. More is known.")


def alone(rank: int = 0, size: int = 4) -> Axis:
    options = SimpleNamespace(_timeout=timedelta(seconds=3))
    backend = SimpleNamespace(options=options)
    group = SimpleNamespace(_get_backend=lambda device: backend, recv=lambda *_: Late(), group_name="none")
    return Axis(group, rank, size, torch.device("cpu"), "ranks")


def test_buffers_of_a_failed_transfer_are_kept() -> None:
    """The transport may still write into them."""
    buffer, before = torch.zeros(3), len(ABANDONED)
    pending = transfer.Pending(alone(), [(2, Late()), (1, Late())], [buffer])
    with pytest.raises(PeerLost, match="did not respond within the timeout of 3 s") as caught:
        pending.wait()
    assert any(buffers[0] is buffer for _, buffers in ABANDONED[before:])
    assert caught.value.peers == [2]
    assert str(caught.value).endswith("(Timed out waiting 3000ms)")
    before = len(ABANDONED)
    pending = transfer.Pending(alone(), [(2, Late())], [buffer])
    del pending  # without wait, after an error
    assert any(buffers[0] is buffer for _, buffers in ABANDONED[before:])


class Store:
    """A store of torch.distributed."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def check(self, names: list[str]) -> bool:
        return all(name in self.held for name in names)

    def get(self, name: str) -> str:
        return self.held[name]

    def compare_set(self, name: str, expected: str, wanted: str) -> None:
        self.held.setdefault(name, wanted)


@pytest.mark.parametrize(
    ("reports", "rank", "waits_for", "lost"),
    [
        ({0: 3, 3: 2, 1: 2}, 0, 3, [2]),  # a neighbour that waited for a third rank
        ({0: 3, 1: 0, 3: 0}, 0, 3, [3, 1]),  # all others reported: this rank was late itself
        ({}, 0, 1, [1]),
        ({0: 1, 1: 0, 2: 0, 3: 1}, 0, 1, [1, 2]),
    ],
)
def test_the_lost_rank_is_the_one_without_a_report(monkeypatch, reports, rank: int, waits_for: int, lost) -> None:
    store = Store()
    monkeypatch.setattr(transfer, "_store", lambda: store)
    for each, peer in reports.items():
        store.compare_set(transfer._report_key(alone(each), each), "", str(peer))
    monkeypatch.setitem(CALLS, "none", "attention (call 7)")
    error = give_up(alone(rank), [waits_for], RuntimeError("Connection closed by peer"))
    assert sorted(error.peers) == sorted(lost)
    assert "axis 'ranks', rank 0, in attention (call 7): " in str(error)


def test_a_lost_store(monkeypatch) -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no store")

    monkeypatch.setattr(transfer, "_store", Gone)
    error = give_up(alone(), [1, 3], RuntimeError("Connection closed by peer"))
    assert error.peers == [1, 3]
    assert "one of ranks 1, 3 of axis 'ranks' (4 ranks) closed the connection" in str(error)


def test_the_cost_model_has_the_same_threshold() -> None:
    assert transfer.DOUBLING_RANKS == DOUBLING_RANKS


def adding(mesh, many):
    axis, before = read_axis(mesh, None), transfer.DOUBLING_RANKS
    transfer.DOUBLING_RANKS = many
    try:
        TRAFFIC.clear()
        found = transfer.all_reduce(axis, torch.tensor([10.0**axis.rank, 1.0]), lambda every: torch.stack(every).sum(0))
        return found.tolist(), TRAFFIC["data messages"]
    finally:
        transfer.DOUBLING_RANKS = before


@pytest.mark.parametrize(("ranks", "messages"), [(1, [0]), (2, [1, 1]), (3, [2, 1, 1]), (4, [2, 2, 2, 2])])
def test_all_reduce_counts_every_rank_once(pool: RankPool, ranks: int, messages: list[int]) -> None:
    found = pool.run(adding, ranks, many=1)
    assert [answer for answer, _ in found] == [[float("1" * ranks), ranks]] * ranks
    assert [sent for _, sent in found] == messages


def decoding(mesh, query, key, value, similarity, many):
    before, transfer.DOUBLING_RANKS = transfer.DOUBLING_RANKS, many
    try:
        cache = qkv.parallel.KVCache(2, 3, 5, mesh=mesh, dtype=torch.float32)
        steps = [slice(0, 6), slice(6, 7), slice(7, 8), slice(8, 11)]
        return [
            qkv.parallel.decode(query[:, :, s], key[:, :, s], value[:, :, s], cache, similarity=similarity)
            for s in steps
        ]
    finally:
        transfer.DOUBLING_RANKS = before


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("similarity", [qkv.Softmax(), qkv.Softmax(sink=0.4), qkv.Argmax()], ids=repr)
def test_decoding_by_recursive_doubling_equals_one_process(pool: RankPool, ranks: int, similarity) -> None:
    draw = torch.Generator().manual_seed(7)
    query, key, value = (torch.randn(2, heads, 11, 5, generator=draw) for heads in (6, 3, 3))
    key[:, :, 4] = key[:, :, 2]  # equals: the first of them counts
    found = pool.run(decoding, ranks, query=query, key=key, value=value, similarity=similarity, many=1)
    want = qkv.attention(query.double(), key.double(), value.double(), similarity=similarity, mask=qkv.Causal())
    for answers in found:
        got = torch.cat(answers, dim=2)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(one, other) for one, other in zip(answers, found[0], strict=True))
