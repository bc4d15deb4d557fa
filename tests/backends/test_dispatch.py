"""Which backend runs, why not the others, and that nothing falls back in silence."""

import pytest
import torch

import qkv
from qkv.backends import BACKENDS, dispatch
from qkv.errors import BackendRefused

Q = torch.randn(1, 4, 64, 16)


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ({}, "sdpa"),
        ({"mask": qkv.Causal()}, "decode"),
        ({"similarity": qkv.Argmax()}, "argmax"),
        ({"return_weights": True}, "dense"),
        ({"similarity": qkv.Argmax(), "return_weights": True}, "dense"),
        ({"similarity": qkv.Polynomial()}, "linear"),
    ],
)
def test_auto_takes_the_cheapest_that_can(options: dict, backend: str) -> None:
    assert qkv.explain(Q, Q, Q, **options).backend == backend


def test_long_sequences_of_any_similarity_are_not_held_whole() -> None:
    long = torch.zeros(1, 8, 8192, 16)
    assert qkv.explain(long, long, long, similarity=qkv.Polynomial()).backend == "linear"
    near = qkv.Similarity(lambda q, k: (-torch.cdist(q, k)).exp())
    assert qkv.explain(long, long, long, similarity=near).backend == "sdpa"


def test_every_other_form_has_a_reason() -> None:
    explained = qkv.explain(Q, Q, Q)
    assert set(explained.reasons) == set(BACKENDS) - {explained.backend}
    assert all(reasons and all(reasons) for reasons in explained.reasons.values())


@pytest.mark.parametrize(
    ("backend", "options", "reason"),
    [
        ("argmax", {}, "only Argmax"),
        ("sdpa", {"similarity": qkv.Argmax()}, "running best"),
        ("sdpa", {"return_weights": True}, "never makes"),
        ("argmax", {"similarity": qkv.Argmax(), "return_weights": True}, "never makes"),
    ],
)
def test_a_form_asked_for_by_name_runs_or_is_refused(backend: str, options: dict, reason: str) -> None:
    for call in (qkv.attention, qkv.explain):
        with pytest.raises(BackendRefused, match=reason) as refused:
            call(Q, Q, Q, backend=backend, **options)
        assert any(reason in r for r in refused.value.reasons)
        assert isinstance(refused.value, ValueError)


def test_the_choice_is_remembered_by_signature(monkeypatch) -> None:
    dispatch._CHOSEN.clear()
    asked = []
    real = dispatch._candidates
    monkeypatch.setattr(dispatch, "_candidates", lambda call: asked.append(1) or real(call))
    for _ in range(3):
        qkv.attention(Q, Q, Q)
    qkv.attention(Q[:, :2], Q[:, :2], Q[:, :2])
    assert len(asked) == 2


def test_the_memory_of_choices_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_MOST_REMEMBERED", 5)
    dispatch._CHOSEN.clear()
    for n in range(1, 20):
        qkv.attention(Q[:, :, :n], Q, Q)
    assert len(dispatch._CHOSEN) <= 5


def test_it_reads_well() -> None:
    explained = qkv.explain(Q, Q[:, :2], Q[:, :2], mask=qkv.Causal(), bias=torch.zeros(64, 64), backend="sdpa")
    text = str(explained)
    assert "4/2 heads" in text
    assert "-> streaming" in text
    assert "not hard: only Argmax()" in text
    assert "Causal(offset=0)" in text
    assert explained.cost.flops == 2 * 4 * (64 * 65 // 2) * 32
    page = qkv.explain(Q, Q, Q, similarity=qkv.FeatureMap(lambda x: x))._repr_html_()
    assert "<table>" in page
    assert "&lt;lambda&gt;" in page


def test_explain_counts_what_this_mask_lets_through() -> None:
    """Contents of a mask do not decide which backend runs, but they are in what it is said to cost."""
    q = torch.randn(2, 4, 300, 16)
    for mask in (
        qkv.Padding(lengths=[46, 44]),
        qkv.Causal() & qkv.Padding(lengths=[7, 290]),
        qkv.Segments([i // 60 for i in range(300)], [i // 60 for i in range(300)]),
    ):
        for backend in ("sdpa", "native", "reference"):
            cost = qkv.explain(q, q, q, mask=mask, backend=backend).cost
            with torch.no_grad(), qkv.cost.watch() as seen:
                qkv.attention(q, q, q, mask=mask, backend=backend)
            assert cost.executed == seen.products + seen.native, (mask, backend)
            if backend != "native":  # which also counts the turning of its keys
                assert cost.flops == qkv.cost.count(q, q, q, mask=mask).products, (mask, backend)


def test_one_query_is_not_for_dense() -> None:
    q, k = torch.zeros(8, 32, 1, 64), torch.zeros(8, 1, 1024, 64)
    assert qkv.explain(q, k, k, mask=qkv.Padding(lengths=[100] * 8)).backend == "native"
    q, k = torch.zeros(1, 32, 1, 128), torch.zeros(1, 8, 4096, 128)
    assert qkv.explain(q.bfloat16(), k.bfloat16(), k.bfloat16()).backend == "native"


@pytest.mark.parametrize("shape", [(2, 0, 5, 8), (0, 3, 5, 8), (2, 3, 0, 8)])
@pytest.mark.parametrize("similarity", [None, qkv.Argmax(), qkv.Polynomial(2), qkv.FeatureMap(qkv.features.elu1)])
def test_calls_with_nothing_in_them_are_explained_and_cost_nothing(shape, similarity) -> None:
    query, key = torch.zeros(shape), torch.zeros(shape[0], shape[1], 7, 8)
    choice = qkv.explain(query, key, key, similarity=similarity, mask=qkv.Causal(offset=3))
    assert str(choice)
    assert choice.cost.flops == choice.cost.executed == 0 or choice.backend in ("native", "linear")
    assert all(c.cost.work() is not None for c in choice.candidates if c.cost is not None and c.cost.work is not None)
