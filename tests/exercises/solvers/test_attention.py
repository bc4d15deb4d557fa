"""Attention on numbers against NumPy, by properties, and with derivations that `qkv.maths` checks."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from qkv.exercises import Asked, CannotSolve, Convention, Definition, Exercise, Given, Structure
from qkv.exercises.solving import answer
from qkv.maths import compare

RANDOM = np.random.default_rng(5)
SCALE = {"scale": Convention(value="sqrt")}
FROM_ONE = {"index_base": Convention(value=1)}


def numbers(*shape):
    return RANDOM.integers(-3, 4, shape).tolist()


def given(**roles):
    return [Given(symbol=role, role=role, value=value) for role, value in roles.items()]


def solved(givens, quantity, *, structure=None, conventions=None, definitions=(), **asked):
    record = Exercise(
        givens=givens, structure=Structure(**(structure or {})),
        conventions=SCALE if conventions is None else conventions,
        definitions=[Definition(text=text) for text in definitions], asked=[Asked(quantity=quantity, **asked)],
    )  # fmt: skip
    return answer(record, record.asked[0])


def floats(found):
    return np.array(found.value, dtype=float)


def softmax(scores, allowed=True):
    powers = np.where(allowed, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return powers / powers.sum(-1, keepdims=True)


QUERY, KEY, VALUE = numbers(5, 3), numbers(7, 3), numbers(7, 2)
QKV = given(query=QUERY, key=KEY, value=VALUE)
WEIGHTS = softmax(np.array(QUERY) @ np.array(KEY).T / np.sqrt(3))


def test_weights_and_output_are_those_of_numpy():
    assert np.allclose(floats(solved(QKV, "weights")), WEIGHTS)
    assert np.allclose(floats(solved(QKV, "output")), WEIGHTS @ VALUE)
    assert np.allclose(floats(solved(QKV, "output", row=2, conventions=SCALE | FROM_ONE)), (WEIGHTS @ VALUE)[1])


@pytest.mark.parametrize(
    "structure", [{}, {"mask": "causal"}, {"mask": "window(1, 0)"}, {"mask": "padding(2)"}, {"similarity": "argmax"},
                  {"similarity": "relu"}, {"similarity": "sigmoid"}, {"similarity": "polynomial"}, {"heads": 1}]
)  # fmt: skip
def test_derivations_hold_and_texts_are_accepted(structure):
    matrices = given(query=[[1, 2], [0, 1], [3, 1]], key=[[2, 1], [0, 1], [1, 1]], value=[[1, 0], [2, 5], [4, "1/3"]])
    for quantity in ("scores", "weights", "output"):
        found = solved(matrices, quantity, structure=structure)
        assert found.derivation.holds, [str(each) for each in found.derivation.checks if each is not None and not each]
        assert compare(found.text, found.text, found.symbols)
        assert len(found.derivation.steps) > 1


def test_scale_that_is_not_said():
    unsaid = solved(QKV, "output", conventions={})
    assert unsaid.text == solved(QKV, "output").text
    assert [each.convention for each in unsaid.also] == ["no scaling"]
    assert unsaid.also[0].text == solved(QKV, "output", conventions={"scale": Convention(value="none")}).text
    assert unsaid.assumed[0].code == "assumed"
    assert solved(QKV, "scores", conventions={}).value == tuple(map(tuple, np.array(QUERY) @ np.array(KEY).T))


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("z_{ij} = q_i^T k_j", 1),
        (r"S = Q K^\top / \sqrt{d_k}", 3**-0.5),
        ("S = Q K^T / 4", 0.25),
        ("S = QK^T/sqrt(16)", 0.25),
    ],
)
def test_definitions_settle_the_scale(text, factor):
    found = solved(QKV, "scores", conventions={}, definitions=[text])
    assert np.allclose(floats(found), factor * np.array(QUERY) @ np.array(KEY).T)
    assert not found.assumed


def test_masks():
    square = given(query=numbers(5, 3), key=numbers(5, 3), value=numbers(5, 2))
    query, key, value = (np.array(each.value) for each in square)
    places = np.arange(5)
    for text, allowed in (
        ("causal", places[:, None] >= places),
        ("window(1, 2)", (places >= places[:, None] - 1) & (places <= places[:, None] + 2)),
        ("causal & window(2, 0)", (places <= places[:, None]) & (places >= places[:, None] - 2)),
        ("padding(3)", np.broadcast_to(places < 3, (5, 5))),
        ("causal | padding(2)", (places[:, None] >= places) | (places < 2)),
    ):
        expected = softmax(query @ key.T / np.sqrt(3), allowed) @ value
        assert np.allclose(floats(solved(square, "output", structure={"mask": text})), expected), text
        additive = np.where(allowed, "0", "-inf").tolist()
        assert np.allclose(floats(solved([*square, *given(mask=additive)], "output")), expected)
        count = solved(given(length=5), "pairs_count", structure={"mask": text})
        assert count.value == allowed.sum()
        assert count.derivation.holds
        assert np.array_equal(floats(solved(given(length=5), "mask_matrix", structure={"mask": text})), allowed)


def test_nothing_to_attend_to_gives_zero():
    mask = [[0, 0], [1, 1]]
    found = solved(given(query=[[1], [2]], key=[[1], [3]], value=[[5], [7]], mask=mask), "output")
    assert found.value[0] == (0,)


def test_causal_without_alignment_is_refused():
    with pytest.raises(CannotSolve, match="aligned"):
        solved(QKV, "output", structure={"mask": "causal"})
    last = solved(QKV, "output", structure={"mask": "causal", "phase": "decode"})
    allowed = np.arange(2, 7)[:, None] >= np.arange(7)
    assert np.allclose(floats(last), softmax(np.array(QUERY) @ np.array(KEY).T / np.sqrt(3), allowed) @ VALUE)


def test_projections_from_either_side():
    tokens, weight = numbers(5, 3), numbers(3, 3)
    both = [*given(tokens=tokens), Given(symbol="W_Q", role="query_weight", value=weight)]
    right = np.array(tokens) @ np.array(weight)
    for text, expected in (
        ("Q = X W_Q", right), (r"q_i = W_Q^\top x_i", right), ("q_i = W_Q x_i", np.array(tokens) @ np.array(weight).T)
    ):  # fmt: skip
        record = [both[0].model_copy(update={"symbol": "X"}), both[1]]
        found = solved(record, "projections", object="Q", definitions=[text])
        assert np.array_equal(floats(found), expected), text
        assert found.derivation.holds


def test_columns_turn_tokens_and_outputs():
    turned = given(**{each.role: np.array(each.value).T.tolist() for each in QKV})
    found = solved(turned, "output", conventions=SCALE | {"layout": Convention(value="columns")})
    assert np.allclose(floats(found), (WEIGHTS @ VALUE).T)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 3), (6, 1)])
def test_heads_and_groups(heads, kv_heads):
    width = 2
    query, key, value = numbers(5, heads * width), numbers(7, kv_heads * width), numbers(7, kv_heads * 3)
    output_weight = numbers(heads * 3, 5)
    structure = {"heads": heads, "kv_heads": kv_heads}
    parts = given(query=query, key=key, value=value)
    expected = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        q = np.array(query)[:, head * width : (head + 1) * width]
        k = np.array(key)[:, group * width : (group + 1) * width]
        expected.append(softmax(q @ k.T / np.sqrt(width)) @ np.array(value)[:, group * 3 : (group + 1) * 3])
    assert np.allclose(floats(solved(parts, "heads_output", structure=structure)), expected)
    joined = np.concatenate(expected, 1)
    assert np.allclose(floats(solved(parts, "output", structure=structure)), joined)
    projected = solved([*parts, *given(output_weight=output_weight)], "output", structure=structure)
    assert np.allclose(floats(projected), joined @ output_weight)
    one = solved(parts, "output", structure=structure, object="head 2", conventions=SCALE | FROM_ONE)
    assert np.allclose(floats(one), expected[1])


def test_heads_given_by_their_projections():
    tokens, weights = numbers(5, 3), [numbers(3, 2) for _ in range(6)]
    roles = ("query_weight", "key_weight", "value_weight")
    parts = [Given(symbol=f"{role}_{head + 1}", role=role, value=weights[2 * place + head])
             for place, role in enumerate(roles) for head in (1, 0)]  # fmt: skip
    found = floats(solved([*given(tokens=tokens), *parts], "heads_output"))
    for head in range(2):
        q, k, v = (np.array(tokens) @ weights[2 * place + head] for place in range(3))
        assert np.allclose(found[head], softmax(q @ k.T / np.sqrt(2)) @ v)


def test_argmax_takes_the_first_of_equals():
    found = solved(given(query=[[1, 0]], key=[[2, 5], [2, 7], [1, 1]], value=[[3], [4], [5]]), "argmax")
    assert found.value == ((3,),)
    assert found.items["index"].value == (1,)
    assert found.assumed[0].code == "note"


def test_similarities():
    dots = np.array(QUERY) @ np.array(KEY).T
    none = {"scale": Convention(value="none")}
    for name, weights in (
        ("sigmoid", 1 / (1 + np.exp(-dots))),
        ("polynomial", (dots + 1.0) ** 2),
        ("exponential", np.exp(dots.astype(float))),
        ("relu", np.maximum(dots, 0).astype(float)),
    ):
        plain = solved(
            QKV, "weights", structure={"similarity": name}, conventions=none | {"normaliser": Convention(value="none")}
        )
        assert np.allclose(floats(plain), weights), name
    maps = {
        "elu(x) + 1": lambda x: np.where(x > 0, x + 1, np.exp(x)),
        "relu(x)": lambda x: np.maximum(x, 0),
        "x^2 + 1": lambda x: x**2 + 1,
    }
    for text, function in maps.items():
        found = solved([*QKV, *given(expression=text)], "similarity", structure={"similarity": "feature_map"})
        assert np.allclose(floats(found), function(np.array(QUERY, float)) @ function(np.array(KEY, float)).T)


def test_linear_state():
    found = solved([*QKV, *given(decay="1/2")], "linear_state", row=3, conventions=FROM_ONE)
    decay = 0.5 ** np.arange(2, -1, -1)[:, None]
    assert np.allclose(floats(found), (decay * KEY[:3]).T @ VALUE[:3])
    assert np.allclose(floats(found.items["z"]), (decay * KEY[:3]).sum(0))
    assert found.derivation.holds


def test_softmax_is_exact_where_weights_are_rational():
    assert solved(given(scores=["ln 1", "ln 2", "ln 3"]), "softmax").value == (
        Fraction(1, 6),
        Fraction(1, 3),
        Fraction(1, 2),
    )
    assert solved(given(scores=[4, 4, 4]), "softmax").text == "(1/3, 1/3, 1/3)"
    for quantity in ("softmax", "log_softmax", "logsumexp"):
        found = solved(given(scores=[1, 2, "-1/2"], temperature=2), quantity)
        assert found.derivation.holds
        scores = np.array([0.5, 1, -0.25])
        whole = np.log(np.exp(scores).sum())
        expected = {"softmax": np.exp(scores - whole), "log_softmax": scores - whole, "logsumexp": whole}[quantity]
        assert np.allclose(floats(found), expected)


def test_formulas_of_pairs():
    symbol = [Given(role="length", symbol="n")]
    assert solved(symbol, "pairs_count", structure={"mask": "causal"}).text == "n (n + 1)/2"
    window = solved(symbol, "pairs_count", structure={"mask": "causal & window(w, 0)"})
    numbers = solved(given(length=11), "pairs_count", structure={"mask": "causal & window(3, 0)"})
    assert compare(window.text.replace("n", "11").replace("w", "3"), str(numbers.value), {})
    assert solved(given(length=10**9), "pairs_count", structure={"mask": "causal"}).value == 10**9 * (10**9 + 1) // 2


@pytest.mark.parametrize(
    ("givens", "words"),
    [
        (given(query=[[1, 2]], key=[[1], [2]], value=[[1], [2]]), "width of the keys"),
        (given(query=[[1]], key=[[1], [2]], value=[[1], [2], [3]]), "number of values"),
        (given(query=[[1, 2], [3]], key=[[1, 2]]), "rows differ"),
        (given(query=[["a", 2]], key=[[1, 2]]), "number in place of 'a'"),
        (given(tokens=[[1, 2]], query_weight=[[1], [2]], key_weight=[[1], [2]]), "weight matrix of the values"),
    ],
)
def test_what_does_not_fit_is_refused(givens, words):
    with pytest.raises(CannotSolve, match=words):
        solved(givens, "output")


def test_a_million_entries_take_seconds():
    begun = time.perf_counter()
    tokens = RANDOM.standard_normal((1000, 1000)).tolist()
    found = solved(given(tokens=tokens), "output", row=7, conventions=SCALE | FROM_ONE)
    scores = np.array(tokens)[6] @ np.array(tokens).T / np.sqrt(1000)
    assert np.allclose(floats(found), softmax(scores) @ np.array(tokens))
    assert time.perf_counter() - begun < 20


def test_a_temperature_keeps_scores_as_they_are_typed():
    found = solved(given(scores=["ln 1", "ln 6"], temperature="1/2"), "softmax")
    assert found.value == (Fraction(1, 37), Fraction(36, 37))
    assert found.derivation.holds
