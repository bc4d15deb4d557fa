"""Messages: what arrives, what is counted, what is not sent, and what is said of those who do not come."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.errors import PeerLost
from qkv.parallel import failure, transfer
from qkv.parallel.transfer import AGREEMENT, DATA, RESULTS, Axis, Message, all_gather, lost, read_axis, start
from ranks import SIZE, Crew

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def exchange(mesh):
    axis = read_axis(mesh, None)
    transfer.TRAFFIC.clear()
    found = [all_gather(axis, torch.full((3, 2), axis.rank, dtype=dtype)) for dtype in DTYPES]
    return found, dict(transfer.TRAFFIC)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_everybodys(crew: Crew, ranks: int) -> None:
    for found, traffic in crew.run(exchange, ranks):
        for dtype, tensors in zip(DTYPES, found, strict=True):
            assert [t.dtype for t in tensors] == [dtype] * ranks
            assert [t.tolist() for t in tensors] == [[[rank] * 2] * 3 for rank in range(ranks)]
        if ranks > 1:
            assert traffic["data messages"] == len(DTYPES) * (ranks - 1)
            assert traffic["data bytes"] == 6 * sum(dtype.itemsize for dtype in DTYPES) * (ranks - 1)
        else:
            assert traffic == {}


def in_order(mesh):
    """Two messages of a tag arrive as they were sent; tags do not mix; nothing is sent for nothing."""
    axis = read_axis(mesh, None)
    to, of = axis.after(1), axis.after(-1)
    rooms = {tag: [torch.zeros(1), torch.zeros(1)] for tag in (DATA, RESULTS)}
    transfer.TRAFFIC.clear()
    pending = [
        start(axis, [], [Message(of, room) for room in rooms[RESULTS]], RESULTS),
        start(axis, [Message(to, torch.tensor([1.0])), Message(to, torch.tensor([2.0]))], [], DATA),
        start(axis, [Message(to, torch.tensor([3.0])), Message(to, torch.tensor([4.0]))], [], RESULTS),
        start(axis, [], [Message(of, room) for room in rooms[DATA]], DATA),
        start(axis, [Message(to, torch.zeros(0, 5))], [Message(of, torch.zeros(5, 0))], AGREEMENT),
    ]
    for each in pending:
        each.wait()
        each.wait()  # once more is nothing
    return [float(room) for tag in (DATA, RESULTS) for room in rooms[tag]], dict(transfer.TRAFFIC)


def test_order_and_tags(crew: Crew) -> None:
    for found, traffic in crew.run(in_order, SIZE):
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
    room, before = torch.zeros(3), len(transfer._ABANDONED)
    pending = transfer.Pending(alone(), [(2, "from", Late()), (1, "from", Late())], [room])
    with pytest.raises(PeerLost, match="did not come within the timeout of 3 s") as caught:
        pending.wait()
    assert any(held[0] is room for _, held in transfer._ABANDONED[before:])
    assert caught.value.peers == [1, 2]
    assert str(caught.value).endswith("(Timed out waiting 3000ms)")
    before = len(transfer._ABANDONED)
    pending = transfer.Pending(alone(), [(2, "from", Late())], [room])
    del pending  # an error came before anybody waited
    assert any(held[0] is room for _, held in transfer._ABANDONED[before:])


class Words:
    """A store."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def check(self, names: list[str]) -> bool:
        return all(name in self.held for name in names)

    def get(self, name: str) -> str:
        return self.held[name]

    def compare_set(self, name: str, expected: str, wanted: str) -> None:
        self.held.setdefault(name, wanted)


@pytest.mark.parametrize(
    ("blames", "rank", "waits_for", "named"),
    [
        ({0: 3, 3: 2, 1: 2}, 0, 3, [2]),  # a neighbour that waited for a third
        ({0: 3, 1: 0, 3: 0}, 0, 3, [3, 1]),  # nobody is silent but the one who asks last: it was late itself
        ({0: 1}, 0, 1, [1]),
        ({0: 1, 1: 0, 2: 0, 3: 1}, 0, 1, [1, 2]),
    ],
)
def test_the_one_that_is_blamed_and_silent_is_named(monkeypatch, blames, rank: int, waits_for: int, named) -> None:
    store = Words()
    monkeypatch.setattr(failure, "_store", lambda: store)
    for each, blamed in blames.items():
        failure.report_lost(alone(each), blamed)
    failure.report_lost(alone(rank), 99)  # the first word counts
    error = lost(alone(rank), [(waits_for, "from")], RuntimeError("Connection closed by peer"))
    assert sorted(error.peers) == sorted(named)


def test_a_store_that_is_gone_too(monkeypatch) -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no store")

    monkeypatch.setattr(failure, "_store", Gone)
    failure.report_lost(alone(), 1)
    error = lost(alone(), [(1, "from"), (3, "to")], RuntimeError("Connection closed by peer"))
    assert error.peers == [1, 3]
    assert "one of ranks 1, 3 of axis 'ranks' (4 ranks) has gone away" in str(error)
