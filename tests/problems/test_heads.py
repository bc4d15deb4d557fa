"""Many heads: reach by walking masks, costs by counting loops, masks by scenario, and the documents' answers."""

from __future__ import annotations

import random
from itertools import product

import pytest

from qkv.problems.heads import family as heads
from qkv.problems.heads.costs import LETTER_SETS, Sizes, cost_part, crossing_part, growth
from qkv.problems.heads.reach import REACHES, number_part, seen_part
from qkv.theory.reach import apart, fields, shifted
from tests.helpers.bank_checks import (
    as_text,
    chains_hold,
    planted_mistakes_are_named,
    right_answers_are_right,
    seeds,
    variants_differ,
    words_are_there,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds())
def test_every_part(seed: int | None) -> None:
    problem = heads.make(seed)
    right_answers_are_right(problem)
    planted_mistakes_are_named(problem)
    chains_hold(problem)
    words_are_there(problem)


def test_variants_differ() -> None:
    variants_differ(heads.make, range(120))


def test_the_documents_answers() -> None:
    problem = heads.make(None)
    for part, answer in {"a(i)": "2^n", "a(ii)": "3^n", "a(iii)": "(k+1)^n"}.items():
        assert problem.check(part, answer)
    model = r"\Theta(n_t d_{\text{model}}^2 + n_s d_{\text{model}}^2 + n_t n_s d_{\text{model}})"
    head = r"\Theta(n_t d_{\text{head}}^2 h^2 + n_s d_{\text{head}}^2 h^2 + n_t n_s d_{\text{head}} h)"
    assert problem.check("c", model)
    assert problem.check("c", head)
    assert problem.check("c", model.replace(r"\Theta", "O"))
    assert problem.check("b(i)", "Only the key padding mask, on the encoder's self-attention.")
    assert problem.check(
        "b(ii)", "A causal mask on self-attention; with padding on the right no padding mask is needed."
    )
    assert problem.check("d(i)", "the query, key, value and output projections")
    assert problem.check("d(ii)", "computing the scores and the linear combination of the values")
    assert problem.check("d(ii)", "the projections").misconceptions == ("bottleneck mixed up",)


@pytest.mark.parametrize("seed", range(20))
def test_reach_by_masks(seed: int) -> None:
    """What a walk over masks finds, position by position."""
    draw = random.Random(seed)
    count, layers, window = draw.randint(1, 3), draw.randint(1, 4), draw.randint(2, 5)
    length = draw.randint(5, 40)
    long = 400
    patterns = {
        "plain": apart(long, count, layers),
        "agreeing": [[layer[0]] * count for layer in apart(long, 1, layers)],
        "capped": apart(length, count, layers),
        "neighbours": shifted(long, range(1, count + 1), layers),
        "window": shifted(long, range(1, window), layers),
    }
    for kind in REACHES:
        part = number_part("a", kind, count, layers, length, window)
        assert part.check(str(fields(patterns[kind])[-1].bit_count())), kind


@pytest.mark.parametrize("kind", ["past", "prefix"])
def test_keys_that_are_seen(kind: str) -> None:
    for queries, past, prefix in product((2, 3, 5), (1, 4), (1, 2, 3)):
        keys = queries + past
        if kind == "past":
            mask = [[j <= i + past for j in range(keys)] for i in range(queries)]
        else:
            mask = [[j <= i or (j < prefix) for j in range(keys)] for i in range(keys)]
        for place, row in enumerate(mask, 1):
            assert seen_part("e", kind, queries, keys, place, prefix).check(str(sum(row)))


def test_costs_by_counting() -> None:
    """Products of every loop, at sizes that grow one by one: the rate's terms bound the count from both sides."""
    for t, s, w, h in product((1, 7, 50), (1, 9, 60), (1, 8), (1, 4)):
        d = w * h
        counted = 2 * t * d * d + 2 * s * d * d + 2 * h * t * s * w
        rate = eval_growth(growth(Sizes()), {"n_t": t, "n_s": s, "d_model": d})
        assert rate <= counted <= 2 * rate


def eval_growth(text: str, values: dict[str, int]) -> int:
    total = 0
    for term in text.split(" + "):
        product_of = 1
        for factor in term.split():
            name, _, power = factor.partition("^")
            product_of *= values[name] ** int(power or 1)
        total += product_of
    return total


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_the_crossing(shared: int) -> None:
    width = 64
    part = crossing_part("d", width, shared)
    equal = [n for n in range(1, 400) if 2 * n * width**2 + 2 * n * width**2 // shared == 2 * n * n * width]
    assert equal
    assert part.check(str(equal[0]))


@pytest.mark.parametrize("sizes", LETTER_SETS)
def test_both_writings_of_the_width(sizes: Sizes) -> None:
    part = cost_part("c", sizes)
    spelt = growth(sizes).replace(f"{sizes.model}^2", f"{sizes.head_width}^2 {sizes.heads}^2")
    spelt = spelt.replace(sizes.model, f"{sizes.head_width} {sizes.heads}") if len(sizes.model) > 1 else spelt
    assert part.check(f"O({spelt})")


@pytest.mark.parametrize("seed", seeds(8))
def test_a_sheet_is_recognised(seed: int | None) -> None:
    problem = heads.make(seed)
    found = heads.recognised(as_text(problem))
    assert found is not None
    assert found[0] > 0.5
    again = {part.name: part for part in found[1].parts}
    assert set(again) == {part.name for part in problem.parts}
    for part in problem.parts:
        assert part.check(again[part.name].answer.text), (part.name, part.ask, again[part.name].answer.text)


@pytest.mark.parametrize("text", [
    "Fill in the blanks of multi-query attention: what is the shape of W_k with a KV cache of n tokens?",
    "Prove that layer normalisation gives vectors of length sqrt(d).", "What is a mask?", "",
    "Compute the mean of q^T k for independent normal vectors.",
])  # fmt: skip
def test_other_questions_are_not(text: str) -> None:
    assert heads.recognised(text) is None
