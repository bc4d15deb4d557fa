"""`measure_ranks`: every split that can run is measured, with the bytes of the formulas."""

import pytest

from qkv.cost.communication import wire
from qkv.errors import OptionError
from qkv.profiling import ranks


@pytest.mark.slow
def test_points():
    """1, 2, and the number that was asked for, whose shards of 21, 21 and 22 tokens are of the same call."""
    found = ranks.measure_ranks(3, tokens=64)
    by_two, by_three = [("ring", 2), ("gather", 2), ("heads", 2)], [("ring", 3), ("gather", 3)]
    assert [(point.split, point.ranks) for point in found] == [("ring", 1), *by_two, *by_three]
    for point in found:
        assert point.tokens == 64
        assert point.sizes == found[0].sizes
        assert point.seconds > 0
        if point.ranks < 3:  # the formulas' shards are equal
            assert point.bytes == wire(point.split, point.spread()).total
        assert point.link is not None
        assert (point.link.measured, point.link.ranks) == (True, point.ranks)


def test_a_process_that_ends_is_told(monkeypatch):
    import multiprocessing

    here, there = multiprocessing.Pipe(duplex=False)
    there.close()
    with pytest.raises(OptionError, match="a process that exited"):
        ranks._receive(here)
    here, there = multiprocessing.Pipe(duplex=False)
    there.send("RuntimeError: no such interface")
    with pytest.raises(OptionError, match="no such interface"):
        ranks._receive(here)
