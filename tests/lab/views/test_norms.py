"""Norms: NumPy's definitions, which outputs move, the program and the schema, over norms, modes and edges."""

import contextlib
import io
import json
import math
import random
import re
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest

from qkv.lab.view import Work
from qkv.lab.views.norms import VIEW
from qkv.lab.worker import answer

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)
MODES = (("layer", "train"), ("layer", "eval"), ("batch", "train"), ("batch", "eval"))
GRIDS = (
    "1,2,4,9;3,-1,0,2;5,1,2,-4",
    "1/3,-0.25",
    "2;5;9",
    "0,0;0,0",
    "1000,-1000,0;1e-3,0,0",
    ";".join(["1,2,3,4,5,7"] * 6),
)


def asked(draw: bool = False, **texts: object) -> Any:
    found = answer(VIEW, {name: str(text) for name, text in texts.items()}, Work(), draw=draw)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        assert not re.search(r"<(script|style|img)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def by_hand(x: np.ndarray, stored: np.ndarray, norm: str, mode: str, eps: float, gamma: float, beta: float):
    if (norm, mode) == ("batch", "eval"):
        mean, variance = stored.mean(0), stored.var(0, ddof=1) if len(stored) > 1 else 1
    else:
        axis = int(norm == "layer")
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "mode"), MODES)
def test_outputs_are_the_definition_at_the_edges_of_every_field(norm: str, mode: str) -> None:
    draw = random.Random(norm + mode)
    for x in GRIDS:
        for delta, gamma, beta, eps in product((-3, 0, 0.1), (-3, 0, 1), (0, 3), (1e-12, 1e-5, 10)):
            if draw.random() > 0.15:
                continue
            texts = {"norm": norm, "mode": mode, "x": x, "delta": delta, "gamma": gamma, "beta": beta, "eps": eps}
            found = asked(**texts, row=draw.choice((1, 6)), column=draw.choice((1, 2, 6)))
            if (norm, mode) == ("batch", "train") and ";" not in x:
                assert "one vector" in found.problems["x"]
                continue
            assert not found.problems
            result = found.result
            start = np.array(result["x"])
            end = start.copy()
            end[result["row"] - 1, result["column"] - 1] += delta
            for name, given in (("before", start), ("after", end)):
                wanted = by_hand(given, start, norm, mode, eps, gamma, beta)
                # A constant column of large numbers has a spread that is all rounding.
                np.testing.assert_allclose(result[name], wanted, atol=1e-6, rtol=1e-9)
            assert np.array_equal(np.array(result["difference"]) != 0, result["moved"])
            assert np.sum(result["moved"]) == result["moved_count"]
            assert result["nonzero"] == np.sum(result["jacobian"]) <= result["expected"]
            for each in result["normalised"]:
                assert each["mean"] == pytest.approx(beta, abs=1e-9)
                assert each["length"] == pytest.approx(each["said"], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("norm", "mode", "moves"),
    [
        ("layer", "train", lambda i, j: i == 1),
        ("layer", "eval", lambda i, j: i == 1),
        ("batch", "train", lambda i, j: j == 2),
        ("batch", "eval", lambda i, j: (i, j) == (1, 2)),
    ],
)
def test_the_right_outputs_move(norm: str, mode: str, moves) -> None:
    result = asked(norm=norm, mode=mode).result
    wanted = [[moves(i, j) for j in range(4)] for i in range(3)]
    assert result["moved"] == result["depends"] == wanted
    assert result["nonzero"] == result["expected"] == {"layer": 48, "batch": 36 if mode == "train" else 12}[norm]
    assert asked(norm=norm, mode=mode, delta=0).result["moved_count"] == 0
    assert (result["stored"] is None) == ((norm, mode) != ("batch", "eval"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"gamma": 0}, "With γ = 0 every output is β"),
        ({"gamma": 0, "norm": "batch", "mode": "eval"}, "With γ = 0 every output is β"),
        ({"x": "5;2;3"}, "A vector of one component is its own mean"),
        ({"delta": 0}, "nothing is dragged"),
        ({"delta": 0, "norm": "batch"}, "nothing is dragged"),
    ],
)
def test_where_nothing_moves_the_page_says_so_and_why(texts: dict[str, object], words: str) -> None:
    found = asked(draw=True, **texts)
    assert found.result["moved_count"] == 0
    assert words in found.result["said"]
    plain = " ".join(re.sub("<[^>]*>", "", found.html).split())
    assert "0 of " in plain
    if found.result["nonzero"] < found.result["expected"]:
        assert f"{found.result['expected']} are between an output and an input that it is made from" in plain


def test_one_vector_in_evaluation_says_what_was_stored() -> None:
    found = asked(draw=True, norm="batch", mode="eval", x="1,2")
    assert found.result["stored"] == {"mean": [1.0, 2.0], "variance": [1.0, 1.0]}
    assert "the variance is the 1 that a new layer has stored" in found.html
    assert found.html.count('class="soft live"') == 1


def test_a_vector_without_epsilon_has_the_length_root_d() -> None:
    assert asked(eps="1e-12").result["normalised"][0]["length"] == pytest.approx(math.sqrt(4))
    assert asked(eps="1e-12", gamma=-2, beta=1).result["normalised"][0]["length"] == pytest.approx(2 * math.sqrt(4))


def test_what_cannot_be_used_is_said_at_its_field() -> None:
    assert "1000" in asked(x="1,1001;2,3").problems["x"]
    assert set(asked(eps="0").problems) == {"eps"}
    assert set(asked(x="1,a").problems) == {"x"}


@pytest.mark.parametrize(("norm", "mode"), MODES)
def test_the_program_prints_the_numbers_of_the_page(norm: str, mode: str) -> None:
    found = asked(draw=True, norm=norm, mode=mode, x="1/3,2,5;-0.5,4,1", row=1, column=2, delta="0.3", gamma="1.5")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(found.python, "program", "exec"), {})
    lines, result = said.getvalue().splitlines(), found.result
    rows = zip(result["before"], result["after"], result["difference"], strict=True)
    assert lines[:2] == [" ".join(map(str, row)) for row in rows]
    assert lines[2] == str(result["slopes"])
    for each in result["normalised"]:
        assert f"length={each['length']!r}, predicted={each['said']!r}" in lines[3]
    assert found.html.count('class="moved"') == 2 * result["moved_count"]
    assert ("stored mean" in found.html) == (result["stored"] is not None)
