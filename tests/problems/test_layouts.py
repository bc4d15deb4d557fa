"""Questions in other words and layouts than the bank's own are read with their own numbers, and only what they ask."""

import pytest

from qkv.problems.argmax.family import recognised as argmax_of
from qkv.problems.by_hand.family import recognised as by_hand_of
from qkv.problems.norms.family import recognised as norms_of
from qkv.problems.scaling.family import recognised as scaling_of

QUERY, KEYS, VALUES = (1, 2, -1), [(3, 0, 4), (1, 1, 0), (0, 1, -3)], [(1, 0), (2, -2), (0, 7)]
OUTPUT = "scores (-1, 3, 5), index 3, output (0, 7)"


def column(row):
    return r"\begin{bmatrix} " + r" \\ ".join(map(str, row)) + r" \end{bmatrix}"


def listed(rows, form=str):
    return ", ".join(form(row) for row in rows)


LAYOUTS = {
    "names": "q = (1, 2, -1)^T; " + "; ".join(
        f"k_{n} = {key}, v_{n} = {value}" for n, (key, value) in enumerate(zip(KEYS, VALUES, strict=True), 1)),
    "columns": f"the query ${column(QUERY)}$, the keys ${listed(KEYS, column)}$ and the values "
               f"${listed(VALUES, column)}$",
    "lists": f"Query: [1, 2, -1]. Keys: {listed(KEYS)}. Values: {listed(VALUES)}.",
    "matrices": f"q = [1, 2, -1], K = {list(map(list, KEYS))}, V = {list(map(list, VALUES))}",
    "table": "q = (1, 2, -1)\n\n  key   value\n" + "\n".join(
        f"  {key}   {value}" for key, value in zip(KEYS, VALUES, strict=True)),
    "bare table": "The query is (1, 2, -1).\n\n| key | value |\n|---|---|\n" + "\n".join(
        f"| {str(key)[1:-1]} | {str(value)[1:-1]} |" for key, value in zip(KEYS, VALUES, strict=True)),
    "pairs": "The query is (1, 2, -1). " + " ".join(
        f"The key {key} has the value {value}." for key, value in zip(KEYS, VALUES, strict=True)),
}  # fmt: skip
ASKS = (
    "What does argmax attention return?",
    "What does attention return if it picks the single best key?",
    "Attention hands back the value of the highest-scoring key, as it is. Which one is that?",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ask", ASKS)
def test_argmax_in_any_layout(layout, ask):
    found = argmax_of(f"{LAYOUTS[layout]}\n{ask}")
    assert found is not None
    assert [part.answer.text for part in found[1].parts] == [OUTPUT]
    both = argmax_of(f"{LAYOUTS[layout]}\n(a) {ask}\n(b) Can such a layer be trained by gradients?")
    assert both is not None
    assert [part.name for part in both[1].parts] == ["a", "b"]


HAND = (
    "Scaled dot-product attention. x_1 = (1, 0), x_2 = (0, 1), W_Q = [[4, 0, 0, 0], [0, 2, 0, 0]], "
    "W_K = [[1, 0, 0, 0], [1, 1, 0, 0]], W_V = [[2, 0], [0, 2]], q_i = W_Q^T x_i, k_i = W_K^T x_i, v_i = W_V^T x_i.\n"
)


def test_by_hand_asks_for_what_it_asks():
    found = by_hand_of(
        f"{HAND}(a) Find the query of the first token and the keys of all tokens.\n(b) Find the dot products of that "
        "query with the keys of both, for the first token.\n(c) Find the attention weights of the first token.\n(d) "
        "Find the output for the first token.\n(e) Which shapes do Q, K and V have?"
    )
    assert found is not None
    answers = {part.name: part.answer.text for part in found[1].parts}
    assert answers["a"] == "q_1 = (4, 0, 0, 0); k_1 = (1, 0, 0, 0); k_2 = (1, 1, 0, 0)"
    assert answers["b"] == "z_{1,1} = 4; z_{1,2} = 4"
    assert found[1].check("c", "(0.5, 0.5)").kind == "right"
    assert found[1].check("c", "(0.4, 0.6)").kind == "wrong"
    assert found[1].check("d", "(1, 1)").kind == "right"
    assert answers["e"] == "Q = [2, 4]; K = [2, 4]; V = [2, 2]"


@pytest.mark.parametrize(
    "options",
    [
        "(i) $x_{i,j}$, (ii) $x_{i',j}$ with $i' \\neq i$, (iii) $x_{i,j'}$ with $j' \\neq j$, (iv) $x_{i',j'}$",
        "(i) x_ij, (ii) the same column in other rows, (iii) the same row in other columns, (iv) the rest",
    ],
)
def test_norms_by_parts(options):
    found = norms_of(
        f"X has the shape [B, D]. On what does y_ij depend: {options}?\n(a) for layer normalisation\n(b) for batch "
        "normalisation\n(c) How long is $y - \\beta 1$ after layer normalisation with scale $\\gamma$?\n(d) What "
        "number is that for $\\gamma = 3$ and $d = 16$?"
    )
    assert found is not None
    right = {"a": "(i) and (iii)", "b": "(i) and (ii)", "c": r"\gamma \sqrt{d}", "d": "12"}
    assert {name: found[1].check(name, answer).kind for name, answer in right.items()} == dict.fromkeys("abcd", "right")
    wrong = {"a": "(i) and (ii)", "b": "(i) and (iii)", "c": r"\gamma d", "d": "48"}
    assert {name: found[1].check(name, answer).kind for name, answer in wrong.items()} == dict.fromkeys("abcd", "wrong")


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("q and k are independent with mean mu in R^d and covariance sigma^2 I. (a) What is E[q^T k]?", "mu^T mu", "d"),
        (
            "Vectors of length d whose entries are independent, mean 0, variance 1. What is the variance of q.k?",
            "d",
            "1",
        ),
        (
            "Entries of q and k, both in R^n, are independent with mean m and variance s^2. Find E[<q,k>].",
            "n m^2",
            "m^2",
        ),
        (
            "q, k in R^n independent N(mu, sigma^2 I), mu a vector.\n(a) E[q.k]\n(b) Var(q.k) for mu = 0",
            "mu^T mu",
            "mu",
        ),
    ],
)
def test_scaling_asked_in_part(text, right, wrong):
    found = scaling_of(text)
    assert found is not None
    assert found[1].check("a", right).kind == "right"
    assert found[1].check("a", wrong).kind != "right"


def test_a_standard_deviation_keeps_its_name():
    given = "q, k in R^d, independent N(m, sigma^2 I), m a vector."
    text = f"{given}\n(a) Var(q^T k) for m = 0?\n(b) The s that makes Var(q^T k / s) = 1?"
    found = scaling_of(text)
    assert found is not None
    assert found[1].check("a", r"d \sigma^4").kind == "right"
    assert found[1].check("a", "d").kind != "right"
    assert found[1].check("b", r"\sigma^2 \sqrt{d}").kind == "right"
