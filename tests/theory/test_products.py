"""Products: the worked example, the shapes, and a real call; each can be refuted."""

import pytest
import torch

import qkv
from qkv.maths import compare
from qkv.theory.products import (
    CORRECTIONS,
    PRINTED_QUERY,
    TO_QUERIES,
    TOKENS,
    entry_by_entry,
    example,
    figure,
    random_integers,
    shapes,
    times,
    weighted_sums,
)

X = random_integers(0, 7, 5)
WEIGHTS = [random_integers(n, 5, width) for n, width in ((1, 3), (2, 3), (3, 2))]


@pytest.fixture(scope="module")
def claim(made):
    return made("products")


@pytest.mark.slow
def test_every_line_that_has_no_decimals_is_proved(claim) -> None:
    for line, verdict in zip(claim.derivation.steps, claim.checks, strict=True):
        assert verdict is None or verdict.evidence == "proved" or "0." in line.text, line.text


def test_the_printed_query_is_refuted() -> None:
    assert times(TOKENS, TO_QUERIES)[1] == [-1, 0, -2]
    assert example().kind == "proved"
    assert example(PRINTED_QUERY).kind == "refuted"
    assert any("(-1, 0, -2)" in correction.right for correction in CORRECTIONS)


def test_a_line_with_the_printed_query_is_refuted(claim) -> None:
    steps = enumerate(claim.derivation.steps)
    place = 1 + next(n for n, step in steps if step.text == "X W_Q" and "X" in (step.symbols or {}))
    printed = claim.derivation.steps[place].text.replace("-1&0&-2", "-1&0&2")
    assert printed != claim.derivation.steps[place].text
    verdict = compare(claim.derivation.steps[place - 1].text, printed, claim.derivation.steps[place - 1].symbols)
    assert verdict.kind == "different"
    assert verdict.evidence == "refuted"


@pytest.mark.parametrize(
    "wrong", [("X W_Q", ("D_k", "N")), ("Q K^T", ("D_k", "D_k")), ("Q K^T", None), ("Q K", ("N", "N"))]
)
def test_wrong_shapes_are_refuted(wrong) -> None:
    assert shapes()[0].kind == "proved"
    assert shapes([wrong])[0].kind == "refuted"


def test_a_wrong_product_is_refuted() -> None:
    assert entry_by_entry(X, *WEIGHTS).kind == "tested"
    assert entry_by_entry(X, *WEIGHTS, product=lambda a, b: a @ b.flip(0)).kind == "refuted"


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: qkv.attention(q, k, v),  # with 1/√3, which this example leaves out
        lambda q, k, v: (q @ k.T).softmax(0) @ v,  # over queries
        lambda q, k, v: torch.full((7, 2), torch.nan),
    ],
)
def test_other_attention_is_refuted(attend) -> None:
    assert weighted_sums(X, *WEIGHTS).kind == "tested"
    assert weighted_sums(X, *WEIGHTS, attend=attend).kind == "refuted"


def test_figure_names_its_axes() -> None:
    svg = figure()
    assert svg.startswith("<svg")
    assert "attends to token" in svg
    assert "as printed" in svg
