"""`explain`: bytes are those that really travel, every rank says the same, and the cheapest of what can run runs."""

import itertools

import pytest
import torch

import qkv
from qkv.cost.communication import LEAST_PIECE, PIECES, Link, Spread, wire
from qkv.parallel import ring
from qkv.parallel.strategy import MAX_COUNTED_RANKS
from ranks import Crew

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
    said = qkv.parallel.explain(*own, mesh=mesh, split=split, **options)
    before = TRAFFIC["data bytes"]
    out = qkv.parallel.attention(*own, mesh=mesh, split=split, **options)
    if learns:
        out.sum().backward()
    return said.wire, TRAFFIC["data bytes"] - before


def many_counted(mesh, cases):
    return [counted(mesh, *case) for case in cases]


MASKS = [None, qkv.Causal(), qkv.Causal() & qkv.Window(left=4), qkv.Padding([24, 11])]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bytes_that_are_told_are_those_that_are_sent(crew: Crew, ranks: int) -> None:
    cases = []
    for lengths, mask, learns in itertools.product((EVEN[ranks], UNEVEN[ranks]), MASKS, (False, True)):
        for split in ("ring", "gather", "heads"):
            heads = 4 * ranks
            sizes = {"heads": heads, "kv_heads": ranks if ranks < 4 else 2, "learns": learns, "dtype": torch.bfloat16}
            cases.append((lengths, split, {"mask": mask}, sizes))
        for similarity in (ELU, POWER):
            if mask is None or mask is MASKS[1]:
                cases.append((lengths, "scan", {"mask": mask, "similarity": similarity}, {"learns": learns}))
    found = crew.run(many_counted, ranks, cases=cases)
    for at, case in enumerate(cases):
        told = [answers[at][0] for answers in found]
        assert len(set(told)) == 1, case
        assert told[0].total == sum(answers[at][1] for answers in found), case


@pytest.mark.parametrize("ranks", [2, 4])
def test_with_equal_shards_they_are_the_formulas(crew: Crew, ranks: int) -> None:
    cases = [
        (EVEN[ranks], split, {"mask": mask, "similarity": similarity}, {"learns": learns, "kv_heads": 2})
        for mask in MASKS[:2]
        for learns in (False, True)
        for split, similarity in (("ring", None), ("gather", None), ("heads", None), ("scan", ELU))
    ]
    found = crew.run(many_counted, ranks, cases=cases)[0]
    for (_, split, options, sizes), (told, _) in zip(cases, found, strict=True):
        call = Spread(2, 4, 2, 5, 3, 24, ranks, 4, options["mask"] is not None, None, sizes["learns"], 5)
        want = wire(split, call)
        assert (told.total, told.sent, told.flops) == (want.total, want.sent, want.flops), (split, options, sizes)
        assert (told.peak_bytes, told.messages) == (want.peak_bytes, want.messages), (split, options, sizes)


def test_best_tells_at_least_what_it_sends(crew: Crew) -> None:
    """Which values travel depends on the numbers: all of them may."""
    cases = [(EVEN[3], "best", {"mask": mask, "similarity": qkv.Argmax()}, {}) for mask in MASKS[:3]]
    found = crew.run(many_counted, 3, cases=cases)
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
        said = qkv.parallel.explain(*shards(mesh, lengths, **sizes), mesh=mesh, **options)
        return said, str(said), said._repr_html_()
    finally:
        strategy._MEASURED.pop(group, None)


WIDE_WIRE = Link(1e15, 0.0, 1e6)
NARROW_WIRE = Link(1e3, 0.0, 1e15)


@pytest.mark.parametrize(
    ("options", "sizes", "link", "want"),
    [
        ({}, {}, None, "ring"),
        ({}, {}, WIDE_WIRE, "ring"),  # as fast as the others, and it holds least
        ({"mask": qkv.Causal()}, {}, WIDE_WIRE, "ring"),
        ({}, {"heads": 4, "kv_heads": 4}, NARROW_WIRE, "heads"),
        ({}, {"heads": 4, "kv_heads": 1}, NARROW_WIRE, "ring"),  # few keys travel, and many queries would
        ({"return_weights": True}, {"heads": 5, "kv_heads": 5}, None, "gather"),
        ({"similarity": ELU}, {}, None, "scan"),
        ({"similarity": POWER}, {}, NARROW_WIRE, "heads"),  # 21 features a head are more than 6 short keys
        ({"similarity": qkv.Argmax()}, {}, WIDE_WIRE, "best"),
        ({"split": "gather"}, {}, None, "gather"),
    ],
)
def test_what_auto_takes(crew: Crew, options, sizes, link, want) -> None:
    found = crew.run(chosen, 4, lengths=EVEN[4], options=options, sizes=sizes, link=link)
    assert len({text for _, text, _ in found}) == 1
    said, text, table = found[0]
    assert said.split == want, text
    assert said.taken.wire is said.wire
    assert set(said.reasons) == {"ring", "gather", "heads", "scan", "best"} - {want}
    assert max(map(len, text.splitlines())) <= 80
    assert f"-> {want}: " in text
    assert all(f"not {split}: " in text for split in said.reasons)
    assert table.count("<tr>") == 6
    assert "<td>taken</td>" in table
    priced = [each.seconds for each in said.candidates if each.wire is not None]
    if "split" not in options:
        assert said.seconds <= max(min(priced) / 0.95, min(priced) + 5e-4)


def ran(mesh, lengths, options, sizes):
    from qkv.backends.base import RUNS

    own = shards(mesh, lengths, **sizes)
    before = RUNS["parallel.scan"], RUNS["parallel.ring"]
    qkv.parallel.attention(*own, mesh=mesh, **options)
    return RUNS["parallel.scan"] - before[0], RUNS["parallel.ring"] - before[1]


def test_auto_runs_what_explain_tells(crew: Crew) -> None:
    assert crew.run(ran, 3, lengths=UNEVEN[3], options={"similarity": ELU}, sizes={}) == [(1, 0)] * 3
    assert crew.run(ran, 3, lengths=UNEVEN[3], options={}, sizes={}) == [(0, 1)] * 3


def test_a_split_that_cannot_run_is_refused_with_its_reasons(crew: Crew) -> None:
    options = {"split": "heads"}
    for answer in crew.tried(chosen, 3, lengths=EVEN[3], options=options, sizes={}, link=None):
        assert "BackendRefused" in answer.kinds
        assert "4 query heads" in answer.message
        assert "chooses among: ring, gather" in answer.message


def test_ranks_without_anything(crew: Crew) -> None:
    for lengths in ((0, 0), (0, 3)):
        said = crew.run(chosen, 2, lengths=lengths, options={"mask": qkv.Causal()}, sizes={}, link=None)[0][0]
        assert said.split == "ring"


def many_ranks(mesh):
    """As if there were many: nothing travels."""
    from qkv.parallel.inputs import Shards, read_sharded_inputs
    from qkv.parallel.strategy import _candidates
    from qkv.parallel.transfer import read_axis

    own = shards(mesh, (2,))
    share = read_sharded_inputs(
        read_axis(mesh, None), *own, None, qkv.Causal(), None, 0.0, "auto", "auto", False, False
    )
    size = 2 * MAX_COUNTED_RANKS
    edges = Shards.of_lengths([2] * size)
    extent = share.extent._replace(len_q=2 * size, len_k=2 * size)
    far = share._replace(axis=share.axis._replace(size=size), queries=edges, keys=edges, extent=extent)
    return _candidates(far)


def test_many_ranks_are_priced_by_formulas(crew: Crew) -> None:
    found = {each.split: each for each in crew.run(many_ranks, 1)[0]}
    call = Spread(2, 4, 4, 5, 3, 4 * MAX_COUNTED_RANKS, 2 * MAX_COUNTED_RANKS, 4, features=1)
    assert found["ring"].wire == wire("ring", call)
    assert found["heads"].wire is None


def test_messages_of_the_formula_are_as_long_as_those_of_the_schedule() -> None:
    assert (LEAST_PIECE, PIECES) == (ring.MIN_PIECE, ring.MAX_PIECES)
