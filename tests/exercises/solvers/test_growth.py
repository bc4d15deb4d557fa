"""Growth classes against the exact counts of `qkv.cost`, and the parts that lead."""

from __future__ import annotations

import pytest

from qkv.cost import counting
from qkv.exercises import Exercise, solve
from qkv.exercises.sheets import read_sheet
from qkv.exercises.solvers.growth import regime
from qkv.features import elu1
from qkv.maths import compare
from qkv.similarity import FeatureMap

from ..listing_texts import METHOD, STEP


def solved(quantity: str, target: str, terms: tuple[str, ...] = (), **fields):
    asked = {"quantity": quantity, "object": target, "in_terms_of": terms, **fields.pop("asked", {})}
    part = solve(Exercise.from_plain({"asked": [asked], **fields})).parts[0]
    assert part.answer is not None, part.refusal
    assert part.answer.derivation.holds
    return part.answer


def same(theta, found: str) -> bool:
    text = f"O({theta})".replace("Θ(", "(").replace("·", " ")
    return compare(text, found, {}).kind == "equal"


def test_softmax_attention_against_exact_counts():
    counted = counting.count("n d", "n d", "n m", backend="reference")
    given = [
        {"role": "length", "symbol": "n"},
        {"role": "head_width", "symbol": "d"},
        {"role": "value_width", "symbol": "m"},
    ]
    assert same(counted.theta(), solved("growth_time", "softmax attention", givens=given).text)
    assert same(counted.theta("space"), solved("growth_space", "softmax attention", givens=given).text)


def test_linear_attention_against_exact_counts():
    counted = counting.count("n d", "n d", "n m", similarity=FeatureMap(elu1), backend="linear")
    found = solved("growth_time", "linear attention, elu + 1", ("n", "d", "m"),
                   givens=[{"role": "value_width", "symbol": "m"}])  # fmt: skip
    assert same(counted.theta(), found.text)


@pytest.mark.parametrize(("variant", "key_heads"), [("mha", "h"), ("mqa", 1), ("gqa", "g")])
def test_a_step_of_decoding_against_exact_counts(variant: str, key_heads):
    pairs = [("h", "d"), *([("g", "h")] if variant == "gqa" else [])]
    counted = counting.step("b", "n", "d", "h", key_heads)
    terms = ("b", "n", "d", "h", *(["g"] if variant == "gqa" else []))
    structure = {"variant": variant, "phase": "decode"}
    assert same(counted.theta(at_most=pairs), solved("growth_time", "decode", terms, structure=structure).text)
    moved = solved("growth_moved", "decode", terms, structure=structure)
    assert same(counted.theta("traffic", at_most=pairs), moved.text)


def test_a_layer_against_exact_counts():
    found = solved("growth_time", "multi-head attention", ("n_t", "n_s", "d_head", "h"))
    assert same(counting.layer_listing(1, "n_t", "n_s", "h", "d_head").theta(), found.text)
    wide = solved("growth_time", "multi-head attention", ("n_t", "n_s", "d", "h"))
    assert same(counting.layer(1, "n_t", "n_s", "d", "h").theta(at_most=[("h", "d")]), wide.text)


def test_quadratic_kernel_with_values_as_wide_as_keys():
    roles = {"length": "N", "head_width": "D", "value_width": "M"}
    fields = {
        "givens": [*({"role": role, "symbol": name} for role, name in roles.items()), {"role": "degree", "value": 2}],
        "definitions": [{"text": "M = D"}],
        "structure": {"similarity": "polynomial"},
    }
    assert compare("O(N D^3)", solved("growth_time", "kernel attention", **fields).text, {}).kind == "equal"
    assert compare("O(N D^2 + D^3)", solved("growth_space", "kernel attention", **fields).text, {}).kind == "equal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("softmax(Q K^T) V", "O(n^2 d)"), ("Q (K^T V)", "O(n d^2)"), ("(Q K^T) V", "O(n^2 d)"), ("X W_Q", "O(n d^2)")],
)
def test_expressions_in_the_order_in_which_they_are_written(text: str, expected: str):
    assert compare(expected, solved("growth_time", text, ("n", "d")).text, {}).kind == "equal"


SIZES = "In multi-head attention with h heads, model width d{batch} and sequence length n, what is the"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (f"{SIZES} total time complexity over all heads of Q K^T?", "O({b} n^2 d)"),
        (f"{SIZES} time complexity of Q K^T for all heads?", "O({b} n^2 d)"),
        (f"{SIZES} time complexity of Q K^T in one head?", "O({b} n^2 d/h)"),
        (f"{SIZES} time complexity per head of Q K^T?", "O({b} n^2 d/h)"),
        (f"{SIZES} total space complexity over all heads of Q K^T?", "O({b} h n^2 + {b} n d)"),
        (f"{SIZES} time complexity of Q K^T?", None),
    ],
)
@pytest.mark.parametrize("batch", ["", "B"])
def test_an_expression_is_counted_for_the_heads_and_sequences_that_are_said(question, expected, batch):
    (reading,) = read_sheet(question.format(batch=f", batch size {batch}" if batch else "") + "\n")
    (part,) = reading.solve().parts
    if expected is None:
        assert part.answer is None
        assert part.refusal is not None
        assert "head" in part.refusal.words()
    else:
        assert part.answer is not None
        names = dict.fromkeys(("n", "d", "h", "B"), "natural")
        assert compare(expected.format(b=batch), part.answer.text, names).kind == "equal"


def test_lines_of_listings():
    sizes = [
        {"role": role, "symbol": name}
        for role, name in (("length", "n_t"), ("keys_length", "n_s"), ("head_width", "c"), ("heads", "h"))
    ]
    lines = solved("growth_lines", "", ("n_t", "n_s", "c", "h"), givens=[{"role": "listing", "value": METHOD}, *sizes])
    assert compare("O(n_t c^2 h^2)", lines.items["line 2"].text, {}).kind == "equal"
    assert compare("O(h n_t n_s c)", lines.items["line 11"].text, {}).kind == "equal"
    step = solved("growth_time", "", givens=[{"role": "listing", "value": STEP}],
                  definitions=[{"text": f"{name} = d/h"} for name in "qkv"])  # fmt: skip
    assert compare("O(b d^2 + b n d)", step.text, {}).kind == "equal"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_model is large and sequences are short", (1, -1)),
        ("long sequences, small width", (-1, 1)),
        ("n >> d", (-1, 1)),
        ("d_model ≫ n", (1, -1)),
    ],
)
def test_regimes(text: str, expected: tuple[int, int]):
    assert regime(text) == expected
    found = solved("bottleneck", text)
    assert found.value == (("projections",) if expected == (1, -1) else ("attention",))


def test_options_of_a_bottleneck():
    options = [
        {"label": "A", "text": "the query, key, value and output projections"},
        {"label": "B", "text": "scores and weighted sums"},
    ]
    assert solved("bottleneck", "long sequences, small width", asked={"options": options}).value == "B"


def test_what_is_not_understood_is_refused():
    for quantity, target in (
        ("growth_time", "the optimizer"),
        ("bottleneck", "a Tuesday"),
        ("growth_moved", "flash attention"),
    ):
        part = solve(Exercise.from_plain({"asked": [{"quantity": quantity, "object": target}]})).parts[0]
        assert part.answer is None
