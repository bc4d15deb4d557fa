"""Decoding: the blanks run as a whole, costs are counted by another hand, and the documents' answers come out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qkv.cost import count
from qkv.problems.decoding import family as decoding
from qkv.problems.decoding.costs import cost_part
from qkv.problems.decoding.listing import KINDS, LINES, SHAPES, Setting
from tests.helpers.bank_checks import (
    as_text,
    chains_hold,
    planted_mistakes_are_named,
    right_answers_are_right,
    seeds,
    variants_differ,
    words_are_there,
)

SIZES = {"b": 2, "d": 12, "h": 6, "n": 5, "q": 2, "k": 2, "v": 2, "g": 3, "r": 2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds())
def test_every_part(seed: int | None) -> None:
    problem = decoding.make(seed)
    right_answers_are_right(problem)
    planted_mistakes_are_named(problem)
    chains_hold(problem)
    words_are_there(problem)


def test_variants_differ() -> None:
    variants_differ(decoding.make, range(40))


def test_the_documents_answers() -> None:
    solution = decoding.make(None).solve().summary
    assert solution["a"] == "[h, d, q]"
    assert solution["b"] == "[d, k]"
    assert [solution[name].split('"')[1] for name in "cde"] == ["bd,hdq->bhq", "bd,dk->bk", "bd,dv->bv"]
    problem = decoding.make(None)
    assert problem.check("f", r"O(bd^2 + bnd)")
    assert problem.check("g", r"O(d^2 + bd + \frac{bnd}{h})")
    assert problem.check("g", r"\Theta(d^2 + bd + bnk)")
    assert "per-head keys in multi-query attention" in problem.check("g", "O(d^2 + bd + bnd)").misconceptions
    for part, option in zip("abcde", ("1", "2", "2", "1", "3"), strict=True):
        assert problem.check(part, f"option {option}"), part


@pytest.mark.parametrize("kind", KINDS)
def test_the_listing_is_attention(kind: str) -> None:
    """All lines together, on random numbers, against loops over heads that know nothing of einsum."""
    on = Setting(kind)
    draw = np.random.default_rng(5)
    held = {name: draw.normal(size=[SIZES[s] for s in on.shape(name)]) for name in ("x", *SHAPES, "values")}
    run = dict(held)
    for line in ("q", "k", "v"):
        spec, operands = on.einsum(line)
        run[line] = np.einsum(spec, *(run[name] for name in operands))
    axis = len(on.of_keys) + 1
    run["keys"] = np.concatenate([run["keys"], np.expand_dims(run["k"], axis)], axis)
    run["values"] = np.concatenate([run["values"], np.expand_dims(run["v"], axis)], axis)
    scores = np.einsum(on.einsum("scores")[0], run["q"], run["keys"]) / np.sqrt(SIZES["k"])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    o = np.einsum(on.einsum("o")[0], weights, run["values"])
    y = np.einsum(on.einsum("y")[0], o, held["W_o"])

    heads, shared = SIZES["h"], {"multi-query": 6, "grouped": 2, "multi-head": 1}[kind]
    flat = {name: held[name].reshape(heads, *held[name].shape[-2:]) for name in ("W_q", "W_o")}
    for row in range(SIZES["b"]):
        wanted = np.zeros(SIZES["d"])
        for head in range(heads):
            group = head // shared

            def of(name: str, group: int = group) -> np.ndarray:
                return held[name] if kind == "multi-query" else held[name][group]

            def past(name: str, row: int = row, group: int = group) -> np.ndarray:
                return held[name][row] if kind == "multi-query" else held[name][row, group]

            x = held["x"][row]
            query = x @ flat["W_q"][head]
            keys = np.vstack([past("keys"), x @ of("W_k")])
            values = np.vstack([past("values"), x @ of("W_v")])
            score = keys @ query / np.sqrt(SIZES["k"])
            wanted += (np.exp(score) / np.exp(score).sum()) @ values @ flat["W_o"][head]
        np.testing.assert_allclose(y[row], wanted, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_options_hold_one_right_answer(kind: str) -> None:
    on = Setting(kind)
    for blank in (*SHAPES, *LINES):
        options = on.offered(blank)
        assert len(options) == 3 == len(set(options))
        assert [bool(on.answer(blank).check(option)) for option in options] == [True, False, False]


def test_bytes_are_those_of_the_cost_model() -> None:
    for seed in range(12):
        setting = Setting(KINDS[seed % 3])
        given = decoding.numbers_for(setting, random.Random(seed))
        one = np.broadcast_to(np.int8(0), (given.batch, given.key_heads, given.tokens, given.width))
        part = cost_part("d", "bytes", setting, given)
        assert part.check(str(2 * given.layers * one.size * given.size))


def test_intensity_is_flops_over_bytes() -> None:
    """Scores and weighted sum by `qkv.cost`, with the softmax left out, over the bytes of the cache."""
    counted = count((1, 32, 1, 64), (1, 4, 1000, 64), (1, 4, 1000, 64), backend="reference").flops
    assert abs(counted / (2 * 4 * 1000 * 64 * 2) - 2 * 32 / (4 * 2)) < 0.5


@pytest.mark.parametrize("seed", seeds(5))
def test_a_sheet_is_recognised(seed: int | None) -> None:
    problem = decoding.make(seed)
    found = decoding.recognised(as_text(problem))
    assert found is not None
    score, again = found
    assert score > 0.5
    assert again.structure[0] == problem.structure[0]
    for part in again.parts[:3]:
        assert problem.part(part.name).check(part.answer.text), (part.name, part.answer.text)


@pytest.mark.parametrize(("text", "answer"), [
    (("A GQA model has 32 layers, 32 query heads and 8 KV heads with head dimension 128. For a batch of 16 sequences "
     "of 4096 tokens in fp16, how many bytes does the KV cache take?"), str(2 * 16 * 32 * 8 * 4096 * 128 * 2)),
    (("An MQA decoder generates a single token with a cache of $t$ previous tokens, a batch of $B$ sequences and model "
     "dimension $D$ with $H$ heads. What is the memory access complexity?"), "O(D^2 + B D + B t D / H)"),
])  # fmt: skip
def test_own_numbers_and_letters(text: str, answer: str) -> None:
    found = decoding.recognised(text)
    assert found is not None
    assert found[1].parts[0].check(answer), found[1].parts[0].answer


@pytest.mark.parametrize("text", [
    "Compute the attention output for x_1 = (2, 3) with W_Q = [[1, 0], [0, 1]].",
    "Explain why scores are divided by the square root of d.",
    "Determine the time complexity of multi-head attention as a function of the lengths and the number of heads.",
    "Derive the feature map of the quadratic kernel and the memory of linear attention.", "", "what is a cache?",
])  # fmt: skip
def test_other_questions_are_not(text: str) -> None:
    assert decoding.recognised(text) is None
