"""What travels: against counting by hand of who needs which keys, and numbers against symbols."""

import itertools
import math

import pytest
import sympy

from qkv.cost.communication import INDEX_BYTES, SPLITS, SUM_BYTES, Phase, Spread, Wire, merged_step, pair_flops, wire
from qkv.errors import OptionError, OptionTypeError

B, H, G, W, V, ITEM = 2, 12, 4, 5, 3, 2
CASES = list(
    itertools.product([1, 2, 3, 4, 7], [(False, None), (True, None), (True, 1), (True, 5), (True, 9), (True, 40)])
)


def of(ranks, causal=True, window=None, *, each=6, **more):
    sizes = {"batch": B, "heads": H, "kv_heads": G, "width": W, "value_width": V, "item": ITEM, "features": 11}
    return Spread(**{**sizes, "tokens": each * ranks, "ranks": ranks, "causal": causal, "window": window, **more})


def seen(spread, query):
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
        needed = set().union(*(seen(spread, query) for query in mine))
        found.append([sum(key // each == owner for key in needed) for owner in range(spread.ranks)])
    return [[0 if r == s else n for s, n in enumerate(line)] for r, line in enumerate(found)]


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_ring_and_gather_move_the_keys_that_are_seen(ranks, kind):
    spread = of(ranks, *kind)
    for split in ("ring", "gather"):
        swapped = split == "ring" and kind == (True, None)
        moved, found = tokens_moved(spread, swapped=swapped), wire(split, spread)
        a_key, half = B * G * (W + V) * ITEM, B * H * (spread.tokens // ranks // 2)
        exchanged = half * (W * ITEM + (V + 1) * SUM_BYTES) if swapped and ranks > 1 else 0
        assert found.total == sum(map(sum, moved)) * a_key + (ranks - ranks % 2) * exchanged
        sent = [sum(line[s] for line in moved) for s in range(ranks)]
        got = [sum(line) for line in moved]
        assert found.sent == max(*sent, *got, 0) * a_key + exchanged
        pairs = [sum(len(seen(spread, query)) for query in mine) for mine in rows(spread, swapped=swapped)]
        assert found.flops == 2 * B * H * max(pairs) * (W + V)
        if swapped:
            assert len(set(pairs)) == 1 or ranks % 2


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_best_sends_queries_to_ranks_that_have_what_they_see(ranks, kind):
    spread = of(ranks, *kind)
    moved = tokens_moved(spread, swapped=False)
    goes = [[bool(n) for n in line] for line in moved]
    found = wire("best", spread)
    each = B * H * 6
    values = ranks * each * V * ITEM * (ranks > 1)
    assert found.total == sum(map(sum, goes)) * each * (2 * W * ITEM + 2 * INDEX_BYTES) + values
    most = max(map(sum, goes))
    assert found.sent == most * each * (2 * W * ITEM + 2 * INDEX_BYTES) + (each * V * ITEM if ranks > 1 else 0)


@pytest.mark.parametrize("ranks", [1, 2, 4, 12])
def test_heads_send_all_but_the_own_part(ranks):
    """Number by number: every token of every head goes to the rank that has the head."""
    spread = of(ranks, False)
    each, own = 6, H // ranks
    kv = [{head // (H // G) for head in range(rank * own, (rank + 1) * own)} for rank in range(ranks)]
    there = sum(each * B * (own * W + len(kv[to]) * (W + V)) for at in range(ranks) for to in range(ranks) if at != to)
    back = sum(each * B * own * V for at in range(ranks) for to in range(ranks) if at != to)
    found = wire("heads", spread)
    assert found.total == (there + back) * ITEM
    assert found.sent * ranks == found.total
    assert found.flops == 2 * B * own * (6 * ranks) ** 2 * (W + V)
    assert wire("heads", of(ranks, False, learns=True)).total == 2 * found.total


def test_scan_does_not_know_the_length():
    near, far = (wire("scan", of(4, each=each, learns=learns)) for each, learns in ((1, False), (1000, True)))
    state = B * G * 11 * (V + 1) * SUM_BYTES
    assert (near.sent, far.sent, near.messages) == (2 * state, 4 * state, 2)
    assert [wire("scan", of(ranks)).messages for ranks in (1, 2, 3, 5, 8, 4096)] == [0, 1, 2, 3, 3, 12]
    assert far.flops > near.flops
    for ranks in (1, 2, 3, 5, 8, 13):
        steps = [sum(2**power < ranks - rank for power in range(9)) for rank in range(ranks)]
        assert wire("scan", of(ranks)).total == sum(steps) * state
        full = wire("scan", of(ranks, False))
        assert full.total == 2 * (ranks - 1) * state  # a piece to every rank, and the sum of the pieces back
        assert full.sent == math.ceil(full.total / ranks)
    with pytest.raises(OptionError, match="features"):
        wire("scan", of(2, features=None))


@pytest.mark.parametrize("split", SPLITS)
def test_one_rank_sends_nothing(split):
    for kind in ((False, None), (True, None), (True, 5)):
        found = wire(split, of(1, *kind, learns=True))
        assert (found.total, found.sent, found.messages) == (0, 0, 0)


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
    number = wire(split, of(ranks, *kind, each=2**16, learns=learns, heads=32, kv_heads=8))
    values = {symbols(name): size for name, size in sizes.items()}

    def valued(thing):
        return int(sympy.sympify(thing).subs(values))

    for name in ("total", "sent", "messages", "flops", "held"):
        assert valued(getattr(formula, name)) == getattr(number, name), name
        assert isinstance(getattr(number, name), int)


def test_backward_of_ring():
    spread = of(4, learns=True)
    found, forward = wire("ring", spread), wire("ring", of(4))
    assert found.forward == forward.forward
    a_key, half = B * G * (W + V), B * H * 3
    keys = 3 * 6 * a_key * (ITEM + SUM_BYTES)
    rows_ = half * ((W + 2 * V) * ITEM + SUM_BYTES + W * SUM_BYTES)
    assert found.backward is not None
    assert found.backward.sent == keys + rows_
    assert found.total - forward.total == 10 * 6 * a_key * (ITEM + SUM_BYTES) + 4 * rows_  # R (3 R - 2) / 4 shards
    assert found.backward.flops * (W + V) == forward.flops * (3 * W + 2 * V)


def test_double_precision_keeps_its_sums_in_double_precision():
    assert of(2, item=8).sums == 8
    assert of(2, item=2).sums == 4


def test_time_overlaps_where_the_split_does():
    phase = Phase(before=300, during=500, after=200, messages=4, flops=70)
    assert phase.seconds(100.0, 0.25, 10.0) == 3 + max(7, 5 + 1) + 2
    assert phase.seconds(100.0, 2.0, 10.0) == 3 + max(7, 5 + 8) + 2
    assert Phase(300, 0, 200, 4, 70).seconds(100.0, 2.0, 10.0) == 3 + 8 + 7 + 2
    assert Wire("x", 0, phase, phase, 0).seconds(100.0, 0.25, 10.0) == 24
    spread = of(4, False)
    ring, gather = wire("ring", spread), wire("gather", spread)
    assert ring.sent == gather.sent
    assert ring.seconds(1e6, 0.0, 1e6) < gather.seconds(1e6, 0.0, 1e6)


def test_uneven_lengths_are_rounded_up_once():
    found = wire("gather", of(3, False, tokens=10))
    assert found.total == 2 * 10 * B * G * (W + V) * ITEM
    assert found.sent == math.ceil(20 / 3 * B * G * (W + V) * ITEM)


def test_a_token_of_a_spread_cache():
    assert merged_step(B, H, V, 5) == (4 * B * H * (V + 1) * 4, 4)


def test_pair_flops():
    spread = of(2)
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
        of(**{"ranks": 2, **change})


def test_an_unknown_split():
    with pytest.raises(OptionError, match="one of ring, gather"):
        wire("star", of(2))
