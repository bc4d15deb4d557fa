"""Ranks of this machine: every split that can run is a point, with bytes as the formulas have them."""

import pytest

from qkv.cost.wire import wire
from qkv.errors import OptionError
from qkv.measure import ranks


def test_points():
    found = ranks.measure_ranks(2, tokens=64)
    assert [(point.split, point.ranks) for point in found] == [("ring", 1), ("ring", 2), ("gather", 2), ("heads", 2)]
    for point in found:
        assert point.tokens == 64
        assert point.seconds > 0
        assert point.bytes == wire(point.split, point.spread()).total
        assert point.link is not None
        assert (point.link.measured, point.link.ranks) == (True, point.ranks)


def test_a_process_that_ends_is_told(monkeypatch):
    import multiprocessing

    here, there = multiprocessing.Pipe(duplex=False)
    there.close()
    with pytest.raises(OptionError, match="a process ended"):
        ranks._answer(here)
    here, there = multiprocessing.Pipe(duplex=False)
    there.send("RuntimeError: no such interface")
    with pytest.raises(OptionError, match="no such interface"):
        ranks._answer(here)
