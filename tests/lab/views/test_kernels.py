"""The numbers of Kernels against NumPy and against the library called another way; every state can be shown."""

import contextlib
import io
import json
import math
import random
from itertools import product

import numpy as np
import pytest

from qkv.lab.fields import Choice, Flag, Number, typed
from qkv.lab.view import Work
from qkv.lab.views.kernels import FIELDS, SCHEMA, VIEW
from qkv.lab.worker import answer
from qkv.theory import similarities


def patient():
    return Work(seconds=60)  # a busy machine loads torch slowly


def state_of(**given):
    found = typed(FIELDS, {name: str(value) for name, value in given.items()})
    assert not found.problems
    return found.state


def result_of(**given):
    return VIEW.compute(state_of(**given), patient())


def softmax(scores):
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def test_weights_are_those_of_the_equation():
    found = result_of(n=6, d=3, seed=2, temperature=0.5, degree=3, offset=0.25, causal="yes")
    query, key, value = (x.numpy() for x in similarities.sample("random", 6, 3, seed=2))
    seen, scores = np.tri(6, dtype=bool), query @ key.T

    def elu1(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    ratios = {"polynomial": (scores + 0.25) ** 3, "elu1": elu1(query) @ elu1(key).T}
    wanted = {name: np.where(seen, each, 0) for name, each in ratios.items()}
    wanted = {name: each / each.sum(-1, keepdims=True) for name, each in wanted.items()}
    wanted["softmax"] = softmax(np.where(seen, scores / (0.5 * math.sqrt(3)), -np.inf))
    wanted["argmax"] = np.eye(6)[np.where(seen, scores, -np.inf).argmax(-1)]
    for name, weights in wanted.items():
        each = found["maps"][name]
        np.testing.assert_allclose(each["weights"], weights, rtol=1e-9, atol=1e-12)
        assert each["weights_apart"] == pytest.approx(np.abs(weights - wanted["softmax"]).max(), abs=1e-12)
        assert each["out_apart"] == pytest.approx(np.abs((weights - wanted["softmax"]) @ value).max(), abs=1e-12)
    np.testing.assert_allclose(found["even_entropy"], np.log(np.arange(1, 7)), atol=1e-12)
    assert found["maps"]["polynomial"]["negative"] == int((wanted["polynomial"] < 0).sum())
    apart = np.abs(wanted["softmax"] - wanted["argmax"]).max(-1)
    assert found["cooling"]["now"]["apart"] == pytest.approx(apart.max(), abs=1e-12)


def test_what_is_said_now_lies_on_the_curves():
    found = result_of(features=64, temperature=0.1, draw=5)
    assert found["cooling"]["now"] in found["cooling"]["curve"]
    assert found["random"]["now"] in found["random"]["curve"]
    assert found["random"]["now"]["apart"] == pytest.approx(found["maps"]["random"]["weights_apart"], abs=1e-12)
    assert result_of(features=100)["random"]["now"]["features"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("causal", ["no", "yes"])
@pytest.mark.parametrize(("width", "degree", "offset"), [(2, 1, 0), (64, 2, 1), (256, 4, 4)])
def test_sums_pay_where_the_formula_on_the_page_says(width, degree, offset, causal):
    found = result_of(width=width, degree=degree, offset=offset, features=32, causal=causal, n=2)["cost"]
    features = {"polynomial": math.comb(width + degree - (not offset), degree), "elu1": width, "random": 32}
    for name, count in features.items():
        assert found["pays"][name]["features"] == count
        projected = 4 * width * count if name == "random" else 0  # products of a query and a key with the directions
        equal = (2 * count * (2 * width + 3) + width + projected) / (2 * (2 * width + 3))
        equal = 2 * equal - 1 if causal == "yes" else equal
        assert found["pays"][name]["from"] == math.floor(equal) + 1
        assert found["lengths"][-1] > 2 * found["pays"][name]["from"]
        for n, flops in zip(found["lengths"], found["flops"][name], strict=True):
            assert flops == 2 * n * count * (2 * width + 3) + n * (width + projected)
    for n, flops in zip(found["lengths"], found["flops"]["softmax"], strict=True):
        pairs = n * (n + 1) // 2 if causal == "yes" else n * n
        assert flops == 2 * pairs * (2 * width + 3)


def test_the_page_says_which_mask_is_counted():
    pages = {causal: answer(VIEW, {"causal": causal, "n": "4"}, patient(), draw=True).html for causal in ("yes", "no")}
    assert "with the causal mask</caption>" in pages["yes"]
    assert "at least twice as many tokens as features" in pages["yes"]
    assert "without a mask</caption>" in pages["no"]
    assert "<code>" not in pages["yes"], "a formula that was not read"


def edges(field):
    if isinstance(field, Choice):
        return list(field.options)
    if isinstance(field, Flag):
        return ["yes", "no"]
    assert isinstance(field, Number)
    return [field.write(field.low), field.write(field.high)]


@pytest.mark.slow
def test_every_state_can_be_computed_and_shown():
    """All shapes of data with both masks, and every other field at one of its ends."""
    draw = random.Random(5)
    for data, causal, tokens in product(("random", "clustered", "repeated"), ("yes", "no"), ("2", "5")):
        given = {field.name: draw.choice(edges(field)) for field in FIELDS}
        given |= {"data": data, "causal": causal, "n": tokens}
        found = answer(VIEW, given, patient(), draw=True)
        assert not found.problems, given
        json.dumps(found.result, allow_nan=False)
        assert set(found.result) == set(SCHEMA)
        assert "style=" not in found.html
        compile(found.python, "python", "exec")
    largest = answer(VIEW, {"n": "32", "d": "16", "temperature": "0.01", "features": "512"}, patient(), draw=True)
    assert largest.html.count("<title>query 32, key 32: ") == 5


def test_sums_that_vanish_are_said():
    given = {"data": "clustered", "seed": "50", "n": "32", "d": "16", "temperature": "0.01", "features": "4"}
    cold = answer(VIEW, given | {"causal": "yes"}, patient(), draw=True)
    assert cold.result["maps"]["random"]["empty"] > 0
    assert cold.result["maps"]["random"]["mean_entropy"] is None
    assert "Rows that add to 0" in cold.html
    assert (cold.result["random"]["standard_error"] is None) == ("beyond any number" in cold.html)
    tied = answer(VIEW, {"data": "repeated"}, patient(), draw=True)
    assert tied.result["cooling"]["tied"] == 12
    assert "takes the first" in tied.html


def test_medians_of_even_numbers_lie_in_the_middle():
    found = result_of(n=4, d=3, temperature=0.5)
    query, key, _ = (x.numpy() for x in similarities.sample("random", 4, 3, seed=0))
    scores = query @ key.T
    rows = np.abs(softmax(scores / (0.5 * math.sqrt(3))) - np.eye(4)[scores.argmax(-1)]).max(-1)
    assert found["cooling"]["now"]["median"] == pytest.approx(np.sort(rows)[1:3].mean(), abs=1e-12)
    error = np.sqrt(np.expm1(((query[:, None] + key[None]) ** 2).sum(-1) / (0.5 * math.sqrt(3))) / 128)
    assert found["random"]["standard_error"] == pytest.approx(np.sort(error.ravel())[7:9].mean())


def test_the_program_prints_the_numbers():
    given = {"n": 5, "d": 4, "seed": 3, "causal": "yes", "temperature": 0.3, "degree": 3, "features": 16, "width": 16}
    found = result_of(**given)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(VIEW.python(state_of(**given)), {})
    lines = printed.getvalue().splitlines()

    def line(start):
        return next(each for each in lines if each.startswith(start)).removeprefix(start).replace(",", "").split()

    for name, each in found["maps"].items():
        entropy = float(line(f"{name} mean entropy")[0])
        assert entropy == each["mean_entropy"] or (math.isnan(entropy) and each["mean_entropy"] is None)
        words = line(f"{name} from softmax")
        assert (float(words[0]), float(words[3])) == (each["weights_apart"], each["out_apart"])
    assert float(line("softmax from argmax")[0]) == found["cooling"]["now"]["apart"]
    for name, each in found["cost"]["pays"].items():
        assert int(line(f"{name} pays from")[0]) == each["from"]
    assert float(line("16 random features")[0]) == found["random"]["now"]["apart"]
    error = found["random"]["standard_error"]
    assert float(line("standard error of a random similarity")[0]) == error
    query, key, _ = (x.numpy() for x in similarities.sample("random", 5, 4, seed=3))
    squares = ((query[:, None] + key[None]) ** 2).sum(-1) / (0.3 * 2)
    assert error == pytest.approx(np.median(np.sqrt(np.expm1(squares) / 16)))
