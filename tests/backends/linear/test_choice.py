"""auto: linear for long calls, and explain tells from where on sums are cheaper than scores."""

import re
from typing import Any

import pytest
import torch

import qkv
from linear_reference import close, draw, quadratic
from qkv import features

SIMILARITIES = {
    "elu1": qkv.FeatureMap(features.elu1),
    "undivided": qkv.FeatureMap(features.elu1, normalize=False),
    "monomials": qkv.FeatureMap(features.polynomial(2, 1.0)),
    "random": qkv.FeatureMap(features.positive_random(16, 64)),
    "own map": qkv.FeatureMap(lambda x: x.exp()),
    "quadratic": qkv.Polynomial(2, 1.0),
}
by_similarity = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
by_mask = pytest.mark.parametrize("mask", [None, qkv.Causal()], ids=["all", "causal"])


def explain(n: int, similarity: Any, mask: Any = None, heads: int = 2, **options: Any) -> Any:
    x = torch.zeros(1, heads, n, 16)
    return qkv.explain(x, x, x, similarity=similarity, mask=mask, **options)


@by_similarity
@by_mask
def test_long_calls_are_linear(similarity: Any, mask: Any) -> None:
    explained = explain(16384, similarity, mask)
    assert explained.backend == "linear"
    assert explained.crossover is not None
    assert explained.crossover <= 16384


@by_similarity
@by_mask
def test_what_was_linear_stays_linear_when_it_grows(similarity: Any, mask: Any) -> None:
    chosen = [explain(2**power, similarity, mask).backend for power in range(1, 16)]
    first = chosen.index("linear")
    assert set(chosen[first:]) == {"linear"}


@by_similarity
@by_mask
def test_the_crossover_is_printed(similarity: Any, mask: Any) -> None:
    for n in (3, 200, 16384):
        text = str(explain(n, similarity, mask))
        assert "N*" in text
        assert re.search(r"N\*[^\n]*\d", text), "a number beside it"


def test_the_crossover_is_printed_for_forms_asked_for_by_name() -> None:
    for backend in ("linear", "reference"):
        assert "N*" in str(explain(64, SIMILARITIES["elu1"], backend=backend))


def test_more_features_are_worth_it_later() -> None:
    def from_where_on(count: int) -> int:
        found = explain(100, qkv.FeatureMap(features.positive_random(16, count))).crossover
        assert found is not None
        return found

    assert from_where_on(16) <= from_where_on(256) < from_where_on(2048)
    assert explain(100, qkv.Polynomial(2)).crossover < explain(100, qkv.Polynomial(3)).crossover


@by_mask
def test_short_lengths_are_scored_and_long_ones_summed_with_the_same_answer(mask: Any) -> None:
    """The kernel's two ways, on both sides of N*."""
    crossover = explain(100, qkv.Polynomial(2), mask).crossover
    for n in (crossover - 7, crossover + 7):
        tensors = draw(n, batch=1, heads=(1, 1), widths=(16, 5))
        found = qkv.attention(*tensors, similarity=qkv.Polynomial(2), mask=mask, backend="linear")
        close(
            found, quadratic(*tensors, qkv.Polynomial(2), offset=None if mask is None else 0), allowed=1e-4, what=f"{n}"
        )


@pytest.mark.parametrize(
    "options",
    [{"mask": qkv.Window(left=50)}, {"return_weights": True}, {"dropout": 0.1}],
    ids=["window", "weights", "dropout"],
)
def test_what_linear_cannot_do_goes_elsewhere_with_a_reason(options: dict) -> None:
    explained = explain(2048, SIMILARITIES["elu1"], **options)
    assert explained.backend != "linear"
    assert explained.reasons["linear"]
    assert "linear" in str(explained)


def test_softmax_is_never_linear() -> None:
    explained = explain(16384, qkv.Softmax())
    assert explained.backend != "linear"
    assert explained.reasons["linear"]


@by_mask
def test_auto_gives_the_answer_of_the_equation_on_both_sides(mask: Any) -> None:
    for n in (3, 1500):
        tensors = draw(n, batch=1, heads=(1, 1), widths=(16, 5))
        for name in ("elu1", "quadratic"):
            found = qkv.attention(*tensors, similarity=SIMILARITIES[name], mask=mask)
            wanted = quadratic(*tensors, SIMILARITIES[name], offset=None if mask is None else 0)
            close(found, wanted, allowed=1e-5, what=f"{name}, {n}")
