"""Links are measured together: every rank ends with the same figures, and only a whole measurement is remembered."""

import pytest

import qkv
from qkv.cost.communication import Link
from ranks import Crew


def measured(mesh):
    from qkv.parallel import strategy
    from qkv.parallel.transfer import read_axis

    axis = read_axis(mesh, None)
    before = strategy.link_of(axis)
    found = qkv.parallel.measure(mesh)
    after = strategy.link_of(axis)
    strategy._MEASURED.pop(axis.group)
    return before, found, after


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_have_the_same_figures(crew: Crew, ranks: int) -> None:
    found = crew.run(measured, ranks)
    assert len({link for _, link, _ in found}) == 1
    before, link, after = found[0]
    assert isinstance(link, Link)
    assert after == link
    assert (before.measured, link.measured, link.ranks) == (False, True, ranks)
    assert link.name == "axis ranks"
    assert 1e7 < link.rate < 1e15
    if ranks > 1:
        assert 1e6 < link.bandwidth < 1e13
        assert 1e-7 < link.latency < 1
    else:
        assert (link.bandwidth, link.latency) == (before.bandwidth, before.latency)


def slow_one(mesh, slow):
    """One rank's clock runs fast, as if it were slow."""
    import time

    from qkv.parallel import strategy

    scale = 1000.0 if mesh.get_local_rank() == slow else 1.0
    clock = time.perf_counter
    strategy.time = type("Clock", (), {"perf_counter": staticmethod(lambda: clock() * scale)})
    try:
        return measured(mesh)[1]
    finally:
        strategy.time = time


def test_the_slowest_counts(crew: Crew) -> None:
    usual = crew.run(measured, 2)[0][1]
    one, other = crew.run(slow_one, 2, slow=1)
    assert one == other
    assert one.rate < usual.rate / 20
    assert one.bandwidth < usual.bandwidth / 20


def not_all(mesh):
    if mesh.get_local_rank():
        return qkv.parallel.measure(mesh)
    import torch

    one = torch.ones(1, 1, 2, 3)
    return qkv.parallel.attention(one, one, one, mesh=mesh)


def test_ranks_that_do_something_else_are_named(crew: Crew) -> None:
    for answer in crew.tried(not_all, 2):
        assert "Disagreement" in answer.kinds
        assert "measure" in answer.message
