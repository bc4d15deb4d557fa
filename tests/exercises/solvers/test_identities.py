"""Proofs, kernels and feature maps against numbers, and refusals of what is not so."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from qkv.exercises import Exercise, solve
from qkv.maths import compare

MATRICES = [
    {"symbol": "X", "role": "tokens", "value": [[1, 2], [3, 5], [7, 11]]},
    {"symbol": "W_Q", "role": "query_weight", "value": [[1, 0, 2, 5], [0, 1, 3, 7]]},
    {"symbol": "W_K", "role": "key_weight", "value": [[2, 0, 1, 1], [1, 1, 3, 0]]},
    {"symbol": "W_V", "role": "value_weight", "value": [[1, 2, 0, 1, 4], [0, 1, 1, 3, 5]]},
]


def solved(quantity: str, target: str = "", **fields):
    return solve(Exercise.from_plain({"asked": [{"quantity": quantity, "object": target}], **fields})).parts[0]


def ask(quantity: str, target: str = "", **fields):
    part = solved(quantity, target, **fields)
    assert part.answer is not None, part.refusal
    assert part.answer.derivation.holds
    return part.answer


@pytest.mark.parametrize(
    "claim",
    [
        "(Q K^T)_{ij} = q_i^T k_j",
        "q_i^T k_j = x_i^T W_Q W_K^T x_j",
        r"(A V)_i = \sum_{j=1}^N a_{ij} v_j",
        "A V = (A X) W_V",
        r"\sum_{j=1}^N a_{ij} = 1",
    ],
)
def test_entries_and_rows(claim: str):
    answer = ask("identity", claim, givens=MATRICES)
    assert answer.value is True
    assert answer.derivation.proved


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "fields"),
    [
        (r"\|y - \beta 1\| = \gamma \sqrt{d}", {"structure": {"norm": "layer"}}),
        (r"\|y\| = \gamma \sqrt{d}", {"structure": {"norm": "rms"}}),
        ("permutation equivariance", {}),
        ("associativity", {}),
        ("softmax is invariant to a shift", {}),
        (r"(Q^T K)_{ij} = q_i^T k_j", {"conventions": {"layout": {"value": "columns"}}}),
    ],
)
def test_other_claims(claim: str, fields: dict):
    answer = ask("identity", claim, **fields)
    assert answer.value is True
    assert len(answer.derivation.steps) >= 2


def test_false_claims_are_refuted_and_nonsense_is_refused():
    false = ask("identity", "(Q K^T)_{ij} = q_j^T k_i", givens=MATRICES)
    assert false.value is False
    assert ask("identity", r"\|y - \beta 1\| = \gamma d", structure={"norm": "layer"}).value is False
    assert solved("identity", "the weather").answer is None
    assert solved("identity", "(Q K)_{ij} = 1", givens=MATRICES).answer is None


def test_products_of_matrices_have_their_sizes():
    answer = ask("matrix_form", givens=MATRICES)
    assert {name: item.text for name, item in answer.items.items()} == {"Q": "X W_Q", "K": "X W_K", "V": "X W_V"}
    assert "Q is 3 by 4" in [note.words() for note in answer.assumed]
    columns = ask("matrix_form", "Q", givens=MATRICES[1:], conventions={"layout": {"value": "columns"}})
    assert columns.text == "W_Q^T X"


def kernel(degree: int, offset: int, width: int | str = "D") -> dict:
    size = {"value": width} if isinstance(width, int) else {"symbol": width}
    givens = [{"role": "degree", "value": degree}, {"role": "offset", "value": offset}, {"role": "head_width", **size}]
    return {"givens": givens, "structure": {"similarity": "polynomial"}}


@pytest.mark.parametrize(("degree", "offset", "width"), [*product((1, 2), (0, 5), (1, 2)), (3, 1, 2), (2, 1, 3)])
def test_feature_maps_against_numbers(degree: int, offset: int, width: int):
    found = ask("feature_map", **kernel(degree, offset, width))
    count = ask("feature_map", "count", **kernel(degree, offset, width))
    assert len(found.text.split(",")) == count.value
    q, k = [2, 3, 5][:width], [7, -1, 4][:width]
    texts = {name: found.text.replace("q_", f"{name}_") for name in ("q", "k")}
    kinds = {"q": f"vector[{width}] = ({', '.join(map(str, q))})", "k": f"vector[{width}] = ({', '.join(map(str, k))})"}
    expected = (sum(a * b for a, b in zip(q, k, strict=True)) + offset) ** degree
    if width == 1:  # a list of one number is no vector
        return
    assert compare(str(expected), f"({texts['q']})^T ({texts['k']})", kinds).kind == "equal"
    assert compare(str(expected), ask("kernel", **kernel(degree, offset, width)).text, kinds).kind == "equal"


def test_the_map_for_any_width_and_its_count():
    assert ask("feature_map", **kernel(2, 1)).derivation.proved
    assert (
        compare("(D + 1)(D + 2)/2", ask("feature_map", "count", **kernel(2, 1)).text, {"D": "natural"}).kind == "equal"
    )
    open_constant = ask("kernel", givens=[{"role": "degree", "value": 2}], structure={"similarity": "polynomial"})
    assert (open_constant.text, open_constant.also[0].text) == ("(q^T k + 1)^2", "(q^T k)^2")
    assert solved("kernel", structure={"similarity": "polynomial"}).answer is None


@pytest.mark.parametrize("target", ["exponential", "Gaussian"])
def test_random_features_have_the_kernel_as_their_mean(target: str):
    assert ask("feature_map", target, structure={"similarity": "exponential"}).derivation.proved


@pytest.mark.parametrize("target", ["", "linear", "causal", "causal, linear"])
def test_attention_with_a_feature_map(target: str):
    answer = ask("kernel_form", target)
    assert compare(answer.text, answer.also[0].text, answer.symbols).kind == "equal"


def test_ridge_attention():
    formula = ask("ridge")
    assert compare(formula.text, formula.also[0].text, formula.symbols).kind == "equal"
    numbers = [
        {"role": "query", "value": [1, 2]},
        {"role": "key", "value": [[1, 0], [0, 1], [1, 1]]},
        {"role": "value", "value": [[2], [3], [5]]},
        {"role": "ridge", "value": "1/2"},
    ]
    # K^T K + I/2 is [[5/2, 1], [1, 5/2]]; its inverse times q is (2/21, 16/21).
    assert ask("ridge", givens=numbers).value == (Fraction(2 * 2 + 16 * 3 + 18 * 5, 21),)


def test_the_norm_of_the_jacobian():
    assert ask("jacobian_norm").derivation.proved
    weights = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    expected = sum(((weights[i] if i == j else 0) - weights[i] * weights[j]) ** 2 for i in range(3) for j in range(3))
    given = [{"role": "weights", "symbol": "a", "value": [str(each) for each in weights]}]
    assert ask("jacobian_norm", givens=given).value == expected
    logs = [{"role": "scores", "value": ["ln(3)", "ln(2)", "ln(1)"]}]
    assert ask("jacobian_norm", givens=logs).value == expected
    assert ask("jacobian_norm", "bound").text == "n^2 epsilon^2"


def test_the_condition_is_said():
    assert "positive" in ask("condition").text
