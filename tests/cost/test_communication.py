"""Communication: splits against a count of the keys that each rank needs; parsing of links; measurements in files."""

import itertools
import json
import math
from dataclasses import asdict, replace

import pytest
import sympy

from qkv.cost.communication import (
    DEFAULT_LATENCY,
    INDEX_BYTES,
    SPLITS,
    SUM_BYTES,
    Link,
    Phase,
    Point,
    Spread,
    Wire,
    as_link,
    links,
    merged_step,
    pair_flops,
    points_path,
    read_points,
    wire,
    write_points,
)
from qkv.errors import OptionError, OptionTypeError

B, H, G, W, V, ITEM = 2, 12, 4, 5, 3, 2
CASES = list(
    itertools.product([1, 2, 3, 4, 7], [(False, None), (True, None), (True, 1), (True, 5), (True, 9), (True, 40)])
)


def spread_over(ranks, causal=True, window=None, *, each=6, **more):
    sizes = {"batch": B, "heads": H, "kv_heads": G, "width": W, "value_width": V, "item": ITEM, "features": 11}
    return Spread(**{**sizes, "tokens": each * ranks, "ranks": ranks, "causal": causal, "window": window, **more})


def attended(spread, query):
    if not spread.causal:
        return set(range(spread.tokens))
    return set(range(max(0, query + 1 - (spread.window or spread.tokens)), query + 1))


def rows(spread, *, swapped):
    """The queries that each rank works on."""
    each, ranks = spread.tokens // spread.ranks, spread.ranks
    own = [list(range(rank * each, (rank + 1) * each)) for rank in range(ranks)]
    if not swapped:
        return own
    kept = [all_[: each // 2] if rank != ranks - 1 - rank else all_ for rank, all_ in enumerate(own)]
    given = [all_[each // 2 :] if rank != ranks - 1 - rank else [] for rank, all_ in enumerate(own)]
    return [kept[rank] + given[ranks - 1 - rank] for rank in range(ranks)]


def tokens_moved(spread, *, swapped):
    """needs[r][s]: how many keys of rank s rank r needs."""
    each = spread.tokens // spread.ranks
    found = []
    for mine in rows(spread, swapped=swapped):
        needed = set().union(*(attended(spread, query) for query in mine))
        found.append([sum(key // each == owner for key in needed) for owner in range(spread.ranks)])
    return [[0 if r == s else n for s, n in enumerate(line)] for r, line in enumerate(found)]


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_ring_and_gather_send_the_attended_keys(ranks, kind):
    spread = spread_over(ranks, *kind)
    for split in ("ring", "gather"):
        swapped = split == "ring" and kind == (True, None)
        moved, found = tokens_moved(spread, swapped=swapped), wire(split, spread)
        a_key, half = B * G * (W + V) * ITEM, B * H * (spread.tokens // ranks // 2)
        exchanged = half * (W * ITEM + (V + 1) * SUM_BYTES) if swapped and ranks > 1 else 0
        assert found.total == sum(map(sum, moved)) * a_key + (ranks - ranks % 2) * exchanged
        sent = [sum(line[s] for line in moved) for s in range(ranks)]
        got = [sum(line) for line in moved]
        assert found.sent == max(*sent, *got, 0) * a_key + exchanged
        pairs = [sum(len(attended(spread, query)) for query in mine) for mine in rows(spread, swapped=swapped)]
        assert found.flops == 2 * B * H * max(pairs) * (W + V)
        if swapped:
            assert len(set(pairs)) == 1 or ranks % 2


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_argmax_sends_queries_to_ranks_with_their_keys(ranks, kind):
    spread = spread_over(ranks, *kind)
    moved = tokens_moved(spread, swapped=False)
    goes = [[bool(n) for n in line] for line in moved]
    found = wire("argmax", spread)
    each = B * H * 6
    values = ranks * each * V * ITEM * (ranks > 1)
    assert found.total == sum(map(sum, goes)) * each * (2 * W * ITEM + 2 * INDEX_BYTES) + values
    most = max(map(sum, goes))
    assert found.sent == most * each * (2 * W * ITEM + 2 * INDEX_BYTES) + (each * V * ITEM if ranks > 1 else 0)


@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
def test_heads_send_all_but_the_own_part(ranks):
    """Number by number: every token of every head goes to the rank that has the head."""
    spread = spread_over(ranks, False)
    each, own = 6, H // ranks
    kv = [{head // (H // G) for head in range(rank * own, (rank + 1) * own)} for rank in range(ranks)]
    there = sum(each * B * (own * W + len(kv[to]) * (W + V)) for at in range(ranks) for to in range(ranks) if at != to)
    back = sum(each * B * own * V for at in range(ranks) for to in range(ranks) if at != to)
    found = wire("heads", spread)
    assert found.total == (there + back) * ITEM
    assert found.sent * ranks == found.total
    assert found.flops == 2 * B * own * (6 * ranks) ** 2 * (W + V)
    assert wire("heads", spread_over(ranks, False, learns=True)).total == 2 * found.total


def test_scan_sends_the_same_at_any_length():
    near, far = (wire("scan", spread_over(4, each=each, learns=learns)) for each, learns in ((1, False), (1000, True)))
    state = B * G * 11 * (V + 1) * SUM_BYTES
    assert (near.sent, far.sent, near.messages) == (2 * state, 4 * state, 2)
    assert [wire("scan", spread_over(ranks)).messages for ranks in (1, 2, 3, 5, 8, 4096)] == [0, 1, 2, 3, 3, 12]
    assert far.flops > near.flops
    for ranks in (1, 2, 3, 5, 8, 13):
        steps = [sum(2**power < ranks - rank for power in range(9)) for rank in range(ranks)]
        assert wire("scan", spread_over(ranks)).total == sum(steps) * state
        full = wire("scan", spread_over(ranks, False))
        assert full.total == 2 * (ranks - 1) * state  # all-reduce: a piece to every rank, and the sums back
        assert full.sent == math.ceil(full.total / ranks)
    with pytest.raises(OptionError, match="features"):
        wire("scan", spread_over(2, features=None))


@pytest.mark.parametrize("split", SPLITS)
def test_one_rank_sends_nothing(split):
    for kind in ((False, None), (True, None), (True, 5)):
        found = wire(split, spread_over(1, *kind, learns=True))
        assert (found.total, found.sent, found.messages) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", [(False, None), (True, None), (True, 5)])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("ranks", [4, 16])  # fewer than key/value heads, and more
def test_numbers_equal_symbols(split, kind, learns, ranks):
    from qkv.cost.symbolic import symbols

    names = dict(zip(Spread.__dataclass_fields__, symbols("b h g w v n R c"), strict=False))
    m = symbols("m")
    window = None if kind[1] is None else m
    formula = wire(split, Spread(**names, causal=kind[0], window=window, learns=learns, features=symbols("f")))
    # Long shards, so that messages are whole pieces; the window reaches one rank back.
    sizes = {"b": B, "h": 32, "g": 8, "w": W, "v": V, "n": ranks * 2**16, "R": ranks, "c": ITEM, "f": 11, "m": 5}
    number = wire(split, spread_over(ranks, *kind, each=2**16, learns=learns, heads=32, kv_heads=8))
    values = {symbols(name): size for name, size in sizes.items()}

    def valued(thing):
        return int(sympy.sympify(thing).subs(values))

    for name in ("total", "sent", "messages", "flops", "peak_bytes"):
        assert valued(getattr(formula, name)) == getattr(number, name), name
        assert isinstance(getattr(number, name), int)


def test_backward_of_ring():
    spread = spread_over(4, learns=True)
    found, forward = wire("ring", spread), wire("ring", spread_over(4))
    assert found.forward == forward.forward
    a_key, half = B * G * (W + V), B * H * 3
    keys = 3 * 6 * a_key * (ITEM + SUM_BYTES)
    rows_ = half * ((W + 2 * V) * ITEM + SUM_BYTES + W * SUM_BYTES)
    assert found.backward is not None
    assert found.backward.sent == keys + rows_
    assert found.total - forward.total == 10 * 6 * a_key * (ITEM + SUM_BYTES) + 4 * rows_  # R (3 R - 2) / 4 shards
    assert found.backward.flops * (W + V) == forward.flops * (3 * W + 2 * V)


def test_double_precision_keeps_its_sums_in_double_precision():
    assert spread_over(2, item=8).sums == 8
    assert spread_over(2, item=2).sums == 4


def test_time_overlaps_where_the_split_does():
    phase = Phase(before=300, during=500, after=200, messages=4, flops=70)
    assert phase.seconds(100.0, 0.25, 10.0) == 3 + max(7, 5 + 1) + 2
    assert phase.seconds(100.0, 2.0, 10.0) == 3 + max(7, 5 + 8) + 2
    assert Phase(300, 0, 200, 4, 70).seconds(100.0, 2.0, 10.0) == 3 + 8 + 7 + 2
    assert Wire("x", 0, phase, phase, 0).seconds(100.0, 0.25, 10.0) == 24
    spread = spread_over(4, False)
    ring, gather = wire("ring", spread), wire("gather", spread)
    assert ring.sent == gather.sent
    assert ring.seconds(1e6, 0.0, 1e6) < gather.seconds(1e6, 0.0, 1e6)


def test_uneven_lengths_are_rounded_up_once():
    found = wire("gather", spread_over(3, False, tokens=10))
    assert found.total == 2 * 10 * B * G * (W + V) * ITEM
    assert found.sent == math.ceil(20 / 3 * B * G * (W + V) * ITEM)


def test_a_token_of_a_split_cache():
    assert merged_step(B, H, V, 5) == (4 * B * H * (V + 1) * 4, 4)


def test_pair_flops():
    spread = spread_over(2)
    assert pair_flops(spread, 7) == 2 * B * 7 * (W + V)
    assert pair_flops(spread, 7, backward=True) == 2 * B * 7 * (3 * W + 2 * V)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ranks": 0}, OptionError),
        ({"tokens": -1}, OptionError),
        ({"heads": 1.5}, OptionTypeError),
        ({"causal": False, "window": 3}, OptionError),
    ],
)
def test_refusals(change, error):
    with pytest.raises(error):
        spread_over(**{"ranks": 2, **change})


def test_an_unknown_split():
    with pytest.raises(OptionError, match="one of ring, gather"):
        wire("star", spread_over(2))


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
def test_a_rate_out_of_range_is_refused(text):
    with pytest.raises(OptionError, match="wanted a rate above 0 and below"):
        as_link(text)


@pytest.mark.parametrize("text", ["10GBps,-5us", "10GBps,1e99s"])
def test_a_latency_out_of_range_is_refused(text):
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
def test_damaged_files_have_no_points(text, tmp_path):
    points_path().write_text(text)
    assert read_points() == []
    with pytest.raises(OptionError, match=r"parallel\.json"):
        read_points(points_path())
    write_points([POINT])
    assert read_points() == [POINT]


def test_the_old_name_of_a_split_is_read():
    file = write_points([replace(POINT, split="argmax")])
    file.write_text(file.read_text().replace('"argmax"', '"best"'))
    assert [point.split for point in read_points()] == ["argmax"]


def test_prediction_is_that_of_the_wire():
    link = Link(2e9, 3e-5, 5e10)
    assert POINT.predicted(link) == link.seconds(wire("ring", POINT.spread()))
    assert replace(POINT, link=link).predicted() == POINT.predicted(link)
    assert POINT.spread(8).ranks == 8
    with pytest.raises(OptionError, match="link"):
        POINT.predicted()
