"""The walk: its numbers against NumPy by hand, in every state that its fields allow."""

from __future__ import annotations

import io
import json
import math
import re
from contextlib import redirect_stdout
from itertools import product
from typing import Any

import numpy as np
import pytest

from qkv.lab import checkpoints
from qkv.lab.fields import WrongField, typed
from qkv.lab.numbers import at
from qkv.lab.view import Work
from qkv.lab.views.walk import FIELDS, VIEW
from qkv.lab.worker import answer

SHAPES = {
    "example": {},
    "more keys than queries": {"source": "qkv", "q": "1,1/2;0,-2", "k": "1,0;-1,1;2,1/3", "v": "3;0;-1"},
    "two heads": {
        "source": "qkv", "q": "1,0,2,1;0,1,1,0;1,1,0,2", "k": "1,1,0,1;0,2,1,0;1,0,1,1", "v": "4,0;0,4;2,2",
        "heads": "2", "kvheads": "2",
    },
    "shared keys": {
        "source": "qkv", "q": "1,0,2,1;0,1,1,0", "k": "1,2;0,1", "v": "4,0;0.25,4", "heads": "4", "kvheads": "2",
    },
    "one of each": {"source": "qkv", "q": "0", "k": "0", "v": "7"},
}  # fmt: skip
SIMILARITIES = ("softmax", "argmax", "polynomial", "elu1", "relu")
MASKS = ("none", "causal", "window", "padding", "causal-padding", "causal-window")


def asked(**texts: str) -> tuple[dict[str, Any], dict[str, Any]]:
    read = typed(FIELDS, texts)
    assert read.state is not None, read.problems
    return dict(read.state), VIEW.compute(read.state, Work())


def by_hand(state: dict[str, Any], head: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(what is seen, weights, sums) of one head, row by row."""
    q, k, v = (np.array(head[name]) for name in "qkv")
    i, j = np.arange(len(q))[:, None], np.arange(len(k))[None]
    kinds, shift = state["mask"].split("-"), state["shift"]
    seen = np.ones((len(q), len(k)), bool)
    if "causal" in kinds:
        seen &= j <= i + shift
    if "window" in kinds:
        seen &= j >= i + shift - state["left"]
        if "causal" not in kinds:
            seen &= j <= i + shift + state["right"]
    if "padding" in kinds:
        seen &= j < state["lengths"]
    scores = q @ k.T
    weights = np.zeros_like(scores)
    phi = {"elu1": lambda x: np.where(x > 0, x + 1, np.exp(x)), "relu": lambda x: np.maximum(x, 0)}
    for row, (may, score) in enumerate(zip(seen, scores, strict=True)):
        if not may.any():
            continue
        match state["similarity"]:
            case "softmax":
                logits = score[may] / (math.sqrt(q.shape[1]) if state["scale"] == "root" else 1)
                sims = np.exp(logits - logits.max())
            case "argmax":
                sims = np.eye(may.sum())[score[may].argmax()]
            case "polynomial":
                sims = (score[may] + state["offset"]) ** state["degree"]
            case name:
                sims = (phi[name](q[row]) * phi[name](k)).sum(-1)[may]
        if sims.sum():
            weights[row, may] = sims / sims.sum()
    return seen, weights, weights @ v


def agrees(state: dict[str, Any], result: dict[str, Any]) -> None:
    joined = []
    for head in result["heads"]:
        seen, weights, sums = by_hand(state, head)
        assert np.array(head["masked"]).tolist() == (~seen).tolist()
        assert head["empty"] == (~seen.any(1)).tolist()
        assert np.array(head["scores"]) == pytest.approx(np.array(head["q"]) @ np.array(head["k"]).T)
        assert np.array(head["weights"]) == pytest.approx(weights, abs=1e-12)
        assert np.array(head["output"]) == pytest.approx(sums, abs=1e-11)
        assert all(row == [0.0] * len(row) for row, none in zip(head["output"], head["empty"], strict=True) if none)
        joined.append(np.array(head["output"]))
    assert np.array(result["output"]) == pytest.approx(np.concatenate(joined, axis=1), abs=0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_state_is_what_numpy_makes_of_it(shape: str) -> None:
    for number, (similarity, mask) in enumerate(product(SIMILARITIES, MASKS)):
        texts = {"similarity": similarity, "mask": mask, "lengths": "1", **SHAPES[shape]}
        texts |= {"numbers": ("exact", "decimal")[number % 2], "scale": ("none", "root")[number % 2]}
        state, result = asked(**texts)
        agrees(state, result)
        assert set(result) == set(VIEW.schema)
        json.dumps(result, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["-8", "-1", "0", "1", "8"])
@pytest.mark.parametrize("edge", [{"left": "0", "right": "0"}, {"left": "8", "right": "8"}, {"mask": "causal"}])
def test_edges_of_masks_and_powers(shift: str, edge: dict[str, str]) -> None:
    for degree, offset in (("0", "-10"), ("1", "0"), ("5", "10"), ("3", "0.5")):
        texts = {"mask": "window", "shift": shift, "similarity": "polynomial", "degree": degree, "offset": offset}
        agrees(*asked(**texts | edge))


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_largest_and_the_smallest_entries(similarity: str) -> None:
    for numbers, scale in product(("exact", "decimal"), ("none", "root")):
        texts = {"source": "qkv", "q": "1000000,0.000001;-1,1/3", "k": "1000000,7/9;-0.000001,2", "v": "1e6;-1e-6"}
        texts |= {"similarity": similarity, "degree": "5", "numbers": numbers, "scale": scale}
        found = answer(VIEW, texts, Work(), draw=True)
        assert found.result is not None, found.problems
        json.dumps(found.result, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("offset", ["0", "-0.0", "1e-9", "-10", "0.123456789012", "2.5"])
def test_any_constant_has_a_formula(offset: str) -> None:
    for degree in ("0", "1", "5"):
        found = answer(VIEW, {"similarity": "polynomial", "degree": degree, "offset": offset}, Work(), draw=True)
        assert not found.problems
        assert found.html.count("<math") == 7


def test_it_starts_with_the_documents_example() -> None:
    _, result = asked()
    head = result["heads"][0]
    assert result["q"] == [[2, 3, -5], [-1, 0, -2], [1, -2, 8]]
    assert result["k"] == [[-6, 0, 1], [0, 0, 1], [4, 0, -3]]
    assert result["v"] == [[16, 27], [-8, 0], [8, -18]]
    assert head["scores"][2] == [2, 8, -20]
    assert head["weights"][2] == pytest.approx([0.00247, 0.99753, 6.90e-13], rel=2e-3)
    assert result["output"][2] == pytest.approx([-7.94, 0.067], rel=5e-3)
    assert head["exact"]["weights"][2] == ["e²/Σ₃", "e⁸/Σ₃", "e⁻²⁰/Σ₃"]
    assert head["why"]["scores"][1][0] == "q₂·k₁ = (−1)·(−6) + 0·0 + (−2)·1 = 4"
    assert result["why"]["q"][0][2] == "q₁, entry 3 = x₁ · column 3 of W_Q = 2·2 + 3·(−3) = −5"
    assert head["why"]["weights"][2][1] == "weight of v₂ for q₃ = e⁸ / (e² + e⁸ + e⁻²⁰) ≈ 0.9975"
    assert head["why"]["output"][1][0] == "entry 1 of o₂ ≈ 0.8789·16 + 0.002179·(−8) + 0.1189·8 ≈ 15.00"
    assert result["why"]["output"][0][0].endswith("in head 1 ≈ 8.000")


def test_fractions_stay_fractions() -> None:
    _, result = asked(similarity="polynomial", mask="causal", x="1/2,3;-1,0;1,-2")
    head = result["heads"][0]
    for name in ("scores", "weights", "output"):
        for texts, numbers in zip(head["exact"][name], head[name], strict=True):
            for text, number in zip(texts, numbers, strict=True):
                top, _, below = text.partition("/")
                assert int(top) / int(below or 1) == pytest.approx(number)
    assert any("/" in text for row in head["exact"]["weights"] for text in row)
    _, scaled = asked(scale="root")
    assert scaled["heads"][0]["exact"]["scaled"][2] == ["2/√3", "8/√3", "-20/√3"]
    _, rounded = asked(numbers="decimal")
    assert rounded["exact"] is None
    assert rounded["heads"][0]["exact"] is None


def test_rows_without_weights_are_told() -> None:
    _, blind = asked(mask="causal", shift="-1")
    assert blind["output"][0] == [0.0, 0.0]
    assert blind["notes"] == ["q₁ may see nothing: the output of such a row is exactly 0."]
    _, lost = asked(source="qkv", q="1,0", k="1,0;-1,0", v="3;5", similarity="polynomial", degree="1", offset="0")
    assert lost["heads"][0]["cancelled"] == [True]
    assert lost["output"] == [[0.0]]
    assert "sum to exactly 0" in lost["notes"][0]
    _, signed = asked(source="qkv", q="1", k="3;-1", v="3;5", similarity="polynomial", degree="1", offset="0")
    assert "negative" in signed["notes"][0]


CANCELS = {"source": "qkv", "q": "0.1", "k": "0.1;-0.3", "v": "0.99996;1.00004", "similarity": "polynomial",
           "degree": "1", "offset": "0.01"}  # fmt: skip


@pytest.mark.parametrize("numbers", ["exact", "decimal"])
def test_a_sum_that_cancels_only_without_rounding_is_one_story(numbers: str) -> None:
    found = answer(VIEW, {**CANCELS, "numbers": numbers}, Work(), draw=True)
    assert found.result is not None
    head, notes = found.result["heads"][0], found.result["notes"]
    assert abs(head["weights"][0][0]) > 1e12
    none = "weight of v₁ for q₁: none, as the similarities of this row sum to exactly 0: nothing to divide by; float64 "
    assert head["why"]["weights"][0][0] == none + "gives 2.88·10¹⁵"
    zero = "= 0: q₁ has no weights, and such a row is 0; float64 gives −2.31·10¹¹"
    assert head["why"]["output"][0][0] == f"entry 1 of o₁ {zero}"
    assert found.result["why"]["output"][0][0].endswith(f"in head 1 {zero}")
    assert "no weights exist" in notes[0]
    assert "not quite 0" in notes[1]
    assert len(notes) == 2
    if numbers == "exact":
        assert (head["exact"]["weights"], head["exact"]["output"]) == ([["–", "–"]], [["0"]])
        assert head["exact"]["normaliser"] == ["Σ₁ = (1/50) + (−1/50) = 0"]
        assert 'class="bar"' not in found.html
    shown = dict(re.findall(r'data-path="(heads.0.\S*(?:weights|output).0.0)">([^<]*)<', found.html))
    exact = {"heads.0.exact.weights.0.0": "–", "heads.0.exact.output.0.0": "0"}
    floats = {"heads.0.weights.0.0": "2.88·10¹⁵", "heads.0.output.0.0": "−2.31·10¹¹"}
    assert shown == (exact if numbers == "exact" else floats)


def test_what_float64_loses_is_told_with_what_is_exact() -> None:
    tie = {"source": "qkv", "q": "0.1,0.2,0.3", "k": "0,0,1;1,1,0", "v": "1;2", "similarity": "argmax"}
    for numbers in ("exact", "decimal"):
        _, found = asked(**tie, numbers=numbers)
        first, second = found["heads"][0]["why"]["weights"][0]
        assert re.search(r"₁ = 1: (\S+) is the largest of \1, \1", first)
        assert second.split(";")[0].endswith("but an earlier key has it too")
        assert found["heads"][0]["weights"] == [[0.0, 1.0]]
        assert first.endswith("; float64 gives 0")
        assert "come out otherwise than they are" in found["notes"][0]
    _, near = asked(**CANCELS | {"k": "0.1;-0.30000000001"})
    head = near["heads"][0]
    assert float(head["exact"]["weights"][0][0].replace(",", "")) == pytest.approx(-2e10, rel=1e-9)
    assert head["why"]["weights"][0][0].endswith("≈ −20,000,000,000; float64 gives −2·10¹⁰")
    _, small = asked(source="qkv", q="-1000", k="-1000;-2000", v="1;2", similarity="elu1")
    assert small["output"] == [[0.0]]
    assert "smaller than float64 can hold" in small["notes"][0]
    assert "smaller than it can hold" in small["why"]["output"][0][0]


@pytest.mark.parametrize(
    ("texts", "grid", "said"),
    [
        ({"q": "99999,7", "k": "-99999,7", "v": "1", "numbers": "decimal"}, "scores",
         "q₁·k₁ = 99,999·(−99,999) + 7·7 = −9,999,799,952"),
        ({"q": "1/3", "k": "3", "v": "1", "numbers": "decimal"}, "scores", "q₁·k₁ ≈ 0.3333·3 ≈ 1"),
        ({"q": "1", "k": "1", "v": "1", "similarity": "polynomial", "degree": "3", "offset": "-1"}, "scaled",
         "(q₁·k₁ − 1)³ = (1 − 1)³ = 0"),
        ({"q": "1/2", "k": "1", "v": "1", "similarity": "polynomial", "degree": "1", "offset": "1"}, "scaled",
         "(q₁·k₁ + 1)¹ = (1/2 + 1)¹ = 3/2"),
        ({"q": "1", "k": "1;1;1", "v": "1;2;4"}, "weights", "weight of v₁ for q₁ = e¹ / (e¹ + e¹ + e¹) = 1/3 ≈ 0.3333"),
        ({"q": "1", "k": "1;1;1", "v": "1;2;4"}, "output", "entry 1 of o₁ = (1/3)·1 + (1/3)·2 + (1/3)·4 = 7/3 ≈ 2.333"),
        ({"q": "1", "k": "0.5;-1", "v": "1;2", "similarity": "elu1"}, "scaled", "φ(q₁)·φ(k₁) ≈ 2·1.5 ≈ 3"),
        ({"q": "1", "k": "1;-1", "v": "1;2", "similarity": "elu1"}, "scaled", "φ(q₁)·φ(k₁) = 2·2 = 4"),
        ({"q": "0,1", "k": "1,0", "v": "1", "scale": "root"}, "scaled", "q₁·k₁/√2 = 0/√2 = 0"),
        ({"q": "10", "k": "1;0", "v": "1;2"}, "weights", "weight of v₁ for q₁ = e¹⁰ / (e¹⁰ + e⁰) ≈ 1.000"),
    ],
)  # fmt: skip
def test_only_what_is_equal_is_called_so(texts: dict[str, str], grid: str, said: str) -> None:
    assert asked(source="qkv", **texts)[1]["heads"][0]["why"][grid][0][0] == said


@pytest.mark.parametrize(
    ("field", "texts"),
    [
        ("heads", {"heads": "2"}),
        ("kvheads", {**SHAPES["two heads"], "kvheads": "1"}),
        ("wq", {"x": "1,2,3"}),
        ("wk", {"wk": "1,2;3,4"}),
        ("v", {"source": "qkv", "v": "1;2"}),
        ("k", {"source": "qkv", "k": "1;2;3"}),
        ("lengths", {"mask": "padding", "lengths": "4"}),
        ("x", {"x": "2000000,1"}),
        ("wv", {"wv": "0.0000001;1"}),
    ],
)
def test_what_does_not_fit_is_said_at_its_field(field: str, texts: dict[str, str]) -> None:
    with pytest.raises(WrongField) as found:
        asked(**texts)
    assert found.value.field == field
    assert str(found.value).startswith(f"{field}: got ")


def test_refusals_name_the_heads_that_fit() -> None:
    with pytest.raises(WrongField, match=r"wanted heads and kvheads 1 and 1 or 2 and 2\."):
        asked(**{**SHAPES["two heads"], "heads": "3"})


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_page_shows_the_result_and_the_program_prints_it(shape: str, similarity: str) -> None:
    for mask, numbers in (("none", "exact"), ("causal-padding", "decimal")):
        texts = {"similarity": similarity, "mask": mask, "numbers": numbers, "lengths": "1", **SHAPES[shape]}
        found = answer(VIEW, texts, Work(), draw=True)
        assert found.result is not None, found.problems
        shown = re.findall(r'<data class="n" value="([^"]*)" data-path="([^"]*)">', found.html)
        assert len(shown) > 8
        for value, path in shown:
            wanted = at(found.result, path)
            assert value == (repr(wanted) if isinstance(wanted, float) else str(wanted))
        assert "style=" not in found.html
        with redirect_stdout(io.StringIO()) as said:
            exec(found.python, {})
        printed = [np.array(json.loads(line)) for line in said.getvalue().splitlines()]
        for numbers_printed, name in zip(printed, ("scores", "weights", "output"), strict=True):
            wanted = np.array([head[name] for head in found.result["heads"]])
            assert numbers_printed.reshape(wanted.shape) == pytest.approx(wanted, abs=1e-12)


def test_a_text_is_walked_with_the_models_own_scale_and_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = checkpoints.Checkpoint("toy", "Toy", "decoder", 1, 1, 1, checkpoints.Path("."), 'Path("toy")')
    rows = np.random.default_rng(3).normal(size=(3, 5, 11))
    told = {"tokens": list("abcde"), "scale": 0.25, "causal": True}
    told |= {name: each.tolist() for name, each in zip("qkv", rows, strict=True)}
    monkeypatch.setattr(checkpoints, "available", lambda: [model])
    monkeypatch.setattr(checkpoints, "heads_of", lambda *_, **__: told)
    monkeypatch.setattr(checkpoints, "maps", lambda *_, **__: checkpoints.Pass(told["tokens"], 2, []))
    found = answer(VIEW, {"source": "text", "heads": "3"}, Work(), draw=True)
    assert found.result is not None, found.problems
    q, k, v = rows
    logits = np.where(np.tril(np.ones((5, 5))) > 0, q @ k.T / 4, -np.inf)
    weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.array(found.result["heads"][0]["weights"]) == pytest.approx(weights)
    assert np.array(found.result["output"]) == pytest.approx(weights @ v)
    assert found.result["notes"] == ["The text is longer: 2 tokens at its end are left out."]
    assert "(7 more)" in found.result["heads"][0]["why"]["scores"][0][0]
    compile(found.python, "program", "exec")
    monkeypatch.setattr(checkpoints, "available", list)
    assert "make weights" in answer(VIEW, {"source": "text"}, Work(), draw=True).problems["source"]
