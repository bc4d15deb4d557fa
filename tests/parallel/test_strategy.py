"""`explain` counts the bytes that are sent, the cheapest strategy runs, and links are measured."""

import itertools

import pytest
import torch

import qkv
from qkv.cost.communication import LEAST_PIECE, PIECES, Link
from qkv.parallel import ring
from tests.helpers.ranks import RankPool

ELU, POWER = qkv.FeatureMap(qkv.features.elu1), qkv.Polynomial(2)
EVEN = {2: (12, 12), 3: (8, 8, 8), 4: (6, 6, 6, 6)}
UNEVEN = {2: (19, 5), 3: (7, 0, 17), 4: (2, 5, 7, 10)}


def shards(mesh, lengths, heads=4, kv_heads=4, dtype=torch.float32, learns=False):
    length = lengths[mesh.get_local_rank()]
    sizes = ((heads, 5), (kv_heads, 5), (kv_heads, 3))
    return [torch.ones(2, h, length, w, dtype=dtype, requires_grad=learns) for h, w in sizes]


def counted(mesh, lengths, split, options, sizes):
    """(what is predicted, what this rank sent)."""
    from qkv.parallel.transfer import TRAFFIC

    learns = sizes.get("learns", False)
    own = shards(mesh, lengths, **sizes)
    choice = qkv.parallel.explain(*own, mesh=mesh, split=split, **options)
    before = TRAFFIC["data bytes"]
    out = qkv.parallel.attention(*own, mesh=mesh, split=split, **options)
    if learns:
        out.sum().backward()
    return choice.cost, TRAFFIC["data bytes"] - before


def many_counted(mesh, cases):
    return [counted(mesh, *case) for case in cases]


MASKS = [None, qkv.Causal(), qkv.Causal() & qkv.Window(left=4)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_of_equal_shards_the_predicted_bytes_are_sent(pool: RankPool, ranks: int) -> None:
    cases = []
    for mask, learns in itertools.product(MASKS, (False, True)):
        for split in ("ring", "gather", "heads"):
            heads = 4 * ranks
            sizes = {"heads": heads, "kv_heads": ranks if ranks < 4 else 2, "learns": learns, "dtype": torch.bfloat16}
            cases.append((EVEN[ranks], split, {"mask": mask}, sizes))
        for similarity in (ELU, POWER):
            if mask is None or mask is MASKS[1]:
                cases.append((EVEN[ranks], "scan", {"mask": mask, "similarity": similarity}, {"learns": learns}))
    found = pool.run(many_counted, ranks, cases=cases)
    for at, case in enumerate(cases):
        predicted = [answers[at][0] for answers in found]
        assert len(set(predicted)) == 1, case
        assert predicted[0].total == sum(answers[at][1] for answers in found), case


@pytest.mark.slow
def test_argmax_sends_at_most_what_is_predicted(pool: RankPool) -> None:
    """Which values are sent depends on the numbers."""
    cases = [(EVEN[3], "argmax", {"mask": mask, "similarity": qkv.Argmax()}, {}) for mask in MASKS]
    found = pool.run(many_counted, 3, cases=cases)
    values = 2 * 4 * 24 * 3 * 4
    for at, case in enumerate(cases):
        sent = sum(answers[at][1] for answers in found)
        assert found[0][at][0].total - values <= sent <= found[0][at][0].total, case


def chosen(mesh, lengths, options, sizes, link):
    from qkv.parallel import strategy
    from qkv.parallel.transfer import read_axis

    group = read_axis(mesh, None).group
    if link is not None:
        strategy._MEASURED[group] = link
    try:
        choice = qkv.parallel.explain(*shards(mesh, lengths, **sizes), mesh=mesh, **options)
        return choice, str(choice), choice._repr_html_()
    finally:
        strategy._MEASURED.pop(group, None)


WIDE_WIRE = Link(1e15, 0.0, 1e6)
NARROW_WIRE = Link(1e3, 0.0, 1e15)


@pytest.mark.parametrize(
    ("options", "sizes", "link", "want"),
    [
        ({}, {}, None, "ring"),
        ({}, {}, WIDE_WIRE, "ring"),  # as fast as the others, with the least memory
        ({"mask": qkv.Causal()}, {}, WIDE_WIRE, "ring"),
        ({}, {"heads": 4, "kv_heads": 4}, NARROW_WIRE, "heads"),
        ({}, {"heads": 4, "kv_heads": 1}, NARROW_WIRE, "ring"),  # few keys are sent instead of many queries
        ({"return_weights": True}, {"heads": 5, "kv_heads": 5}, None, "gather"),
        ({"similarity": ELU}, {}, None, "scan"),
        ({"similarity": POWER}, {}, NARROW_WIRE, "heads"),  # 21 features a head are more than 6 short keys
        ({"similarity": qkv.Argmax()}, {}, WIDE_WIRE, "argmax"),
        ({"split": "gather"}, {}, None, "gather"),
    ],
)
def test_what_auto_chooses(pool: RankPool, options, sizes, link, want) -> None:
    found = pool.run(chosen, 4, lengths=EVEN[4], options=options, sizes=sizes, link=link)
    assert len({text for _, text, _ in found}) == 1
    choice, text, table = found[0]
    assert choice.split == want, text
    assert choice.chosen.cost is choice.cost
    assert set(choice.reasons) == {"ring", "gather", "heads", "scan", "argmax"} - {want}
    assert max(map(len, text.splitlines())) <= 80
    assert f"-> {want}: " in text
    assert all(f"not {split}: " in text for split in choice.reasons)
    assert table.count("<tr>") == 6
    assert "<td>chosen</td>" in table
    seconds = [each.seconds for each in choice.candidates if each.cost is not None]
    if "split" not in options:
        assert choice.seconds <= max(min(seconds) / 0.95, min(seconds) + 5e-4)


def ran(mesh, lengths, options, sizes):
    from qkv.backends.base import RUNS

    own = shards(mesh, lengths, **sizes)
    before = RUNS["parallel.scan"], RUNS["parallel.ring"]
    qkv.parallel.attention(*own, mesh=mesh, **options)
    return RUNS["parallel.scan"] - before[0], RUNS["parallel.ring"] - before[1]


def test_auto_runs_what_explain_predicts(pool: RankPool) -> None:
    assert pool.run(ran, 3, lengths=UNEVEN[3], options={"similarity": ELU}, sizes={}) == [(1, 0)] * 3
    assert pool.run(ran, 3, lengths=UNEVEN[3], options={}, sizes={}) == [(0, 1)] * 3


def test_a_split_that_cannot_run_is_refused_with_its_reasons(pool: RankPool) -> None:
    options = {"split": "heads"}
    for answer in pool.run_or_errors(chosen, 3, lengths=EVEN[3], options=options, sizes={}, link=None):
        assert "BackendRefused" in answer.kinds
        assert "4 query heads" in answer.message
        assert "chooses among: ring, gather" in answer.message


def test_ranks_without_anything(pool: RankPool) -> None:
    for lengths in ((0, 0), (0, 3)):
        choice = pool.run(chosen, 2, lengths=lengths, options={"mask": qkv.Causal()}, sizes={}, link=None)[0][0]
        assert choice.split == "ring"


def test_messages_of_the_formula_are_as_long_as_those_of_the_schedule() -> None:
    assert (LEAST_PIECE, PIECES) == (ring.MIN_PIECE, ring.MAX_PIECES)


def measured(mesh):
    from qkv.parallel import strategy
    from qkv.parallel.transfer import read_axis

    axis = read_axis(mesh, None)
    before = strategy.link_of(axis)
    found = qkv.parallel.measure(mesh)
    after = strategy.link_of(axis)
    strategy._MEASURED.pop(axis.group)
    return before, found, after


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_have_the_same_figures(pool: RankPool, ranks: int) -> None:
    found = pool.run(measured, ranks)
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
    """One rank's clock is fast, so that it seems slow."""
    import time

    from qkv.parallel import strategy

    scale = 1000.0 if mesh.get_local_rank() == slow else 1.0
    clock = time.perf_counter
    strategy.time = type("Clock", (), {"perf_counter": staticmethod(lambda: clock() * scale)})
    try:
        return measured(mesh)[1]
    finally:
        strategy.time = time


def test_the_slowest_counts(pool: RankPool) -> None:
    usual = pool.run(measured, 2)[0][1]
    one, other = pool.run(slow_one, 2, slow=1)
    assert one == other
    assert one.rate < usual.rate / 20
    assert one.bandwidth < usual.bandwidth / 20


def not_all(mesh):
    if mesh.get_local_rank():
        return qkv.parallel.measure(mesh)
    import torch

    one = torch.ones(1, 1, 2, 3)
    return qkv.parallel.attention(one, one, one, mesh=mesh)


def test_ranks_that_do_something_else_are_named(pool: RankPool) -> None:
    for answer in pool.run_or_errors(not_all, 2):
        assert "Disagreement" in answer.kinds
        assert "measure" in answer.message
