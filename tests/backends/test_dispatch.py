"""Dispatch: which backend runs, why the others do not, and that a refusal is never silent."""

from dataclasses import replace

import pytest
import torch

import qkv
from qkv import inputs
from qkv.backends import BACKENDS, dispatch, register
from qkv.backends.base import CHOSEN, DEMANDS, RUNS
from qkv.cost.price import Cost
from qkv.errors import BackendRefused

Q = torch.randn(1, 4, 64, 16)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({}, "sdpa"),
        ({"mask": qkv.Causal()}, "native"),
        ({"similarity": qkv.Argmax()}, "argmax"),
        ({"return_weights": True}, "reference"),
        ({"similarity": qkv.Argmax(), "return_weights": True}, "reference"),
        ({"similarity": qkv.Polynomial()}, "linear"),
    ],
)
def test_auto_chooses_the_fastest_backend_that_can_run(options: dict, backend: str) -> None:
    assert qkv.explain(Q, Q, Q, **options).backend == backend


def test_long_calls_do_not_hold_the_whole_matrix_of_scores() -> None:
    long = torch.zeros(1, 8, 8192, 16)
    assert qkv.explain(long, long, long, similarity=qkv.Polynomial()).backend == "linear"
    distance = qkv.Similarity(lambda q, k: (-torch.cdist(q, k)).exp())
    assert qkv.explain(long, long, long, similarity=distance).backend == "blockwise"


@pytest.mark.parametrize(
    ("options", "considered"),
    [
        ({}, False),
        ({"mask": qkv.Causal()}, False),
        ({"similarity": qkv.Softmax(sink=0.5), "bias": torch.zeros(64, 64)}, False),
        ({"similarity": qkv.Softmax(softcap=2.0)}, True),
        ({"dropout": 0.5}, True),
        ({"similarity": qkv.Polynomial()}, True),
    ],
)
def test_auto_does_not_consider_blockwise_where_sdpa_can_run(options: dict, considered: bool) -> None:
    candidates = {c.backend: c for c in qkv.explain(Q, Q, Q, **options).candidates}
    assert bool(candidates["sdpa"].reasons) == considered
    assert (candidates["blockwise"].cost is not None) == considered
    assert considered or any("sdpa" in reason for reason in candidates["blockwise"].reasons)
    # Given by name it runs all the same.
    assert qkv.explain(Q, Q, Q, backend="blockwise", **options).backend == "blockwise"


BY_NAME = {
    "reference": {},
    "sdpa": {},
    "blockwise": {},
    "native": {},
    "linear": {"similarity": qkv.Polynomial()},
    "argmax": {"similarity": qkv.Argmax()},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_can_be_given_by_name(backend: str) -> None:
    options = BY_NAME[backend]
    choice = qkv.explain(Q, Q, Q, backend=backend, **options)
    assert choice.backend == choice.requested == backend
    RUNS.clear()
    out = qkv.attention(Q, Q, Q, backend=backend, **options)
    assert {name.partition(".")[0] for name in RUNS} == ({backend} if backend != "reference" else set())
    torch.testing.assert_close(out, qkv.attention(Q, Q, Q, backend="reference", **options), rtol=1e-4, atol=1e-5)
    assert {"the call says backend=" + repr(backend)} == {
        reason
        for c in choice.candidates
        if c.cost is not None and c.backend != backend
        for reason in choice.reasons[c.backend]
    }


def test_every_other_backend_has_a_reason() -> None:
    explained = qkv.explain(Q, Q, Q)
    assert set(explained.reasons) == set(BACKENDS) - {explained.backend}
    assert all(reasons and all(reasons) for reasons in explained.reasons.values())


@pytest.mark.parametrize(
    ("backend", "options", "reason"),
    [
        ("argmax", {}, "only Argmax"),
        ("blockwise", {"similarity": qkv.Argmax()}, "no sum over the keys"),
        ("sdpa", {"similarity": qkv.Argmax()}, "computes Softmax, not Argmax"),
        ("sdpa", {"similarity": qkv.Softmax(softcap=2.0)}, "no softcap"),
        ("sdpa", {"dropout": 0.5}, "no dropout"),
        ("sdpa", {"return_weights": True}, "never forms"),
        ("blockwise", {"return_weights": True}, "never forms"),
        ("argmax", {"similarity": qkv.Argmax(), "return_weights": True}, "never forms"),
        ("linear", {}, "no product of features"),
    ],
)
def test_a_backend_given_by_name_runs_or_is_refused(backend: str, options: dict, reason: str) -> None:
    for call in (qkv.attention, qkv.explain):
        with pytest.raises(BackendRefused, match=reason) as refused:
            call(Q, Q, Q, backend=backend, **options)
        assert any(reason in r for r in refused.value.reasons)
        assert isinstance(refused.value, ValueError)


def test_the_choice_is_remembered_by_signature(monkeypatch) -> None:
    dispatch.CHOSEN.clear()
    computed = []
    real = dispatch._candidates
    monkeypatch.setattr(dispatch, "_candidates", lambda call: computed.append(1) or real(call))
    for _ in range(3):
        qkv.attention(Q, Q, Q)
    qkv.attention(Q[:, :2], Q[:, :2], Q[:, :2])
    assert len(computed) == 2


def test_the_number_of_remembered_choices_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_MAX_CHOSEN", 5)
    dispatch.CHOSEN.clear()
    for n in range(1, 20):
        qkv.attention(Q[:, :, :n], Q, Q)
    assert len(dispatch.CHOSEN) <= 5


def test_explain_as_text_and_html() -> None:
    explained = qkv.explain(Q, Q[:, :2], Q[:, :2], mask=qkv.Causal(), bias=torch.zeros(64, 64), backend="sdpa")
    text = str(explained)
    assert "4/2 heads" in text
    assert "-> sdpa: PyTorch's flash kernel" in text
    assert "not argmax: only Argmax()" in text
    assert "not native: the call says backend='sdpa'" in text
    assert "Causal(offset=0)" in text
    assert explained.cost.flops == 2 * 4 * (64 * 65 // 2) * 32
    assert "not reference: slower: about" in str(qkv.explain(Q, Q, Q))
    page = qkv.explain(Q, Q, Q, similarity=qkv.FeatureMap(lambda x: x))._repr_html_()
    assert "<table>" in page
    assert "&lt;lambda&gt;" in page


def test_explain_counts_the_pairs_that_the_mask_keeps() -> None:
    """The contents of a mask do not change the choice, but the cost that is shown."""
    q = torch.randn(2, 4, 300, 16)
    for mask in (
        qkv.Padding(lengths=[46, 44]),
        qkv.Causal() & qkv.Padding(lengths=[7, 290]),
        qkv.Segments([i // 60 for i in range(300)], [i // 60 for i in range(300)]),
    ):
        for backend in ("sdpa", "native", "reference"):
            cost = qkv.explain(q, q, q, mask=mask, backend=backend).cost
            if backend != "native":  # its flops include transposing the keys
                assert cost.flops == qkv.cost.count(q, q, q, mask=mask).products, (mask, backend)


def test_one_query_runs_on_native() -> None:
    q, k = torch.zeros(8, 32, 1, 64), torch.zeros(8, 1, 1024, 64)
    assert qkv.explain(q, k, k, mask=qkv.Padding(lengths=[100] * 8)).backend == "native"
    q, k = torch.zeros(1, 32, 1, 128), torch.zeros(1, 8, 4096, 128)
    assert qkv.explain(q.bfloat16(), k.bfloat16(), k.bfloat16()).backend == "native"


@pytest.mark.parametrize("shape", [(2, 0, 5, 8), (0, 3, 5, 8), (2, 3, 0, 8)])
@pytest.mark.parametrize("similarity", [None, qkv.Argmax(), qkv.Polynomial(2), qkv.FeatureMap(qkv.features.elu1)])
def test_empty_calls_are_explained_and_cost_nothing(shape, similarity) -> None:
    query, key = torch.zeros(shape), torch.zeros(shape[0], shape[1], 7, 8)
    choice = qkv.explain(query, key, key, similarity=similarity, mask=qkv.Causal(offset=3))
    assert str(choice)
    assert choice.cost.flops == 0 or choice.backend in ("native", "linear")


def test_each_entry_of_the_table_of_demands_is_what_some_backend_lacks() -> None:
    assert {name for backend in BACKENDS.values() for name in backend.lacks} == DEMANDS.keys()
    assert BACKENDS["reference"].lacks == ()


def test_a_registered_backend_takes_part_at_once() -> None:
    qkv.attention(Q, Q, Q)  # a choice that is remembered
    free = replace(BACKENDS["reference"], name="free", cost=lambda call: Cost(0, 0, 0, 0.0), lacks=("weights",))
    register(free)
    try:
        assert ["auto", *BACKENDS] == inputs.BACKEND_NAMES
        assert qkv.explain(Q, Q, Q).backend == "free"
        assert dispatch.choose(inputs.read_inputs(Q, Q, Q, None, None, None, 0.0, "auto", False, False)) is free
        assert "never forms" in qkv.explain(Q, Q, Q, return_weights=True).reasons["free"][0]
        torch.testing.assert_close(qkv.attention(Q, Q, Q, backend="free"), qkv.attention(Q, Q, Q, backend="reference"))
    finally:
        del BACKENDS["free"]
        inputs.BACKEND_NAMES.remove("free")
        CHOSEN.clear()
