"""Links as people type them, and measured points as they are kept."""

import json
from dataclasses import asdict, replace

import pytest

from qkv.cost.communication import (
    DEFAULT_LATENCY,
    Link,
    Point,
    as_link,
    links,
    points_path,
    read_points,
    wire,
    write_points,
)
from qkv.errors import OptionError, OptionTypeError

POINT = Point("ring", 2, 4096, 0.25, 1048576, heads=6, kv_heads=3, width=32, value_width=16, causal=True)


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("10GBps", 10e9), ("10 GB/s", 10e9), ("10GB", 10e9), ("10 gbyte/s", 10e9), ("1.5 TB/s", 1.5e12),
        ("100Gbit", 12.5e9), ("100 Gbit/s", 12.5e9), ("100Gbps", 12.5e9), ("800 Mbps", 0.1e9), ("800Mb/s", 0.1e9),
        ("10", 10e9), ("0.5", 0.5e9), (".5", 0.5e9), (25, 25e9), (2.5, 2.5e9), ("120 MB/s", 0.12e9),
        ("10gbe", 1.18e9), ("100 GbE", 11.8e9), ("Loopback", 1.5e9),
    ],
)  # fmt: skip
def test_rates(text, bandwidth):
    assert as_link(text).bandwidth == pytest.approx(bandwidth, rel=1e-12)


def test_a_latency_may_follow():
    assert as_link("10GBps").latency == DEFAULT_LATENCY
    assert as_link("10GBps, 5us").latency == pytest.approx(5e-6)
    assert as_link("10,2ms").latency == 2e-3
    assert as_link("25gbe").latency == links()["25gbe"].latency


@pytest.mark.parametrize(
    "text", ["", "fast", "10 apples", "-3", "0", "0GBps", "1e400", "10GBps,soon", "9" * 400, "10GB per s"]
)
def test_wrong_rates_are_named(text):
    with pytest.raises(OptionError, match="link: got"):
        as_link(text)


@pytest.mark.parametrize("thing", [None, True, [10], b"10"])
def test_other_things_are_refused(thing):
    with pytest.raises(OptionTypeError, match="link: got"):
        as_link(thing)


@pytest.mark.parametrize("change", [{"bandwidth": 0}, {"latency": -1.0}, {"rate": float("nan")}, {"rate": "fast"}])
def test_figures_of_a_link_are_checked(change):
    with pytest.raises(OptionError, match=next(iter(change))):
        Link(**{"bandwidth": 1e9, **change})


def test_a_link_prints():
    assert str(Link(1.5e9, 4e-5, 3e10, "mine", True)) == "mine: 1.5 GB/s, 40 µs a message, 30 GFLOP/s a rank, measured"


@pytest.mark.parametrize("text", ["0", "-1", "-2.5GBps", "1e99", "1e999", "-1e-3 Gbit", -1, 1e99])
def test_a_rate_out_of_range_is_called_that(text):
    with pytest.raises(OptionError, match="wanted a rate above 0 that a link can have"):
        as_link(text)


@pytest.mark.parametrize("text", ["10GBps,-5us", "10GBps,1e99s"])
def test_a_latency_out_of_range_is_called_that(text):
    with pytest.raises(OptionError, match="a latency of 0 or more"):
        as_link(text)


def test_small_rates_may_be_floats():
    assert as_link(1e-7).bandwidth == pytest.approx(100)
    assert as_link("2.5e1").bandwidth == pytest.approx(25e9)


def test_one_rank_has_no_link_to_print():
    alone = Link(1.5e9, 4e-5, 3e10, "mine", True, ranks=1)
    assert str(alone) == "mine: no link, 30 GFLOP/s a rank, measured"


def test_points_come_back_as_they_were():
    assert read_points() == []
    link = Link(2e9, 3e-5, 5e10, "here", True, 2)
    some = [replace(POINT, ranks=4, link=link), POINT, replace(POINT, split="heads", ranks=3)]
    file = write_points(some)
    assert file == points_path()
    assert set(read_points()) == set(some)
    assert [point.ranks for point in read_points() if point.split == "ring"] == [2, 4]
    write_points([replace(POINT, seconds=0.125), replace(POINT, tokens=8192)])
    assert len(read_points()) == 4
    assert replace(POINT, seconds=0.125) in read_points()
    assert POINT not in read_points()


def test_a_file_of_another_machine_is_not_of_this_one(tmp_path):
    file = write_points([POINT])
    plain = json.loads(file.read_text())
    file.write_text(json.dumps({**plain, "machine": "another"}))
    assert read_points() == []
    assert read_points(file) == [POINT]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"format": 9, "points": []}', "[" * 5000]
    + [json.dumps({"format": 1, "machine": "", "points": [{**asdict(POINT), **change}]})
       for change in ({"seconds": 0}, {"seconds": "1"}, {"ranks": 0}, {"split": "star"}, {"tokens": 1.5},
                      {"dtype": "x"}, {"bytes": -1}, {"link": {"bandwidth": -1}}, {"link": 3},
                      {"window": 3, "causal": False})],
)  # fmt: skip
def test_damaged_files_hold_nothing(text, tmp_path):
    points_path().write_text(text)
    assert read_points() == []
    with pytest.raises(OptionError, match=r"parallel\.json"):
        read_points(points_path())
    write_points([POINT])
    assert read_points() == [POINT]


def test_prediction_is_that_of_the_wire():
    link = Link(2e9, 3e-5, 5e10)
    assert POINT.predicted(link) == link.seconds(wire("ring", POINT.spread()))
    assert replace(POINT, link=link).predicted() == POINT.predicted(link)
    assert POINT.spread(8).ranks == 8
    with pytest.raises(OptionError, match="link"):
        POINT.predicted()
