"""Norms: dependence by moving one input at a time, numbers against NumPy, and the documents' answers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qkv.problems.norms import family as norms
from qkv.problems.norms.axes import NORMS, depends, differing
from qkv.problems.norms.claims import CLAIMS, claim_part
from qkv.problems.norms.numbers import KINDS, drawn, numeric_part
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
@pytest.mark.parametrize("seed", seeds(4))
def test_every_part(seed: int | None) -> None:
    problem = norms.make(seed)
    right_answers_are_right(problem)
    planted_mistakes_are_named(problem)
    words_are_there(problem)
    chains_hold(problem)


def test_variants_differ() -> None:
    variants_differ(norms.make, range(120))


def test_the_documents_answers() -> None:
    problem = norms.make(None)
    assert problem.check("a", "Layer normalization: (i), (iii). Batch normalization: (i), (ii).")
    swapped = problem.check("a", "Layer normalization: (i), (ii). Batch normalization: (i), (iii).")
    assert swapped.misconceptions == ("layer norm over the batch", "batch norm over the features")
    proof = r"\|\mathbf{y} - \beta \mathbf{1}\|_2 = \|\gamma \mathbf{z}\|_2 = \gamma \sqrt{d}"
    assert problem.check("b", proof)
    assert problem.check("b", proof.replace(r"\|\gamma \mathbf{z}\|_2 = ", "")).kind == "incomplete"


def test_the_documents_claim_needs_a_scale_that_is_not_negative() -> None:
    """The document states it for any scale; with a negative one a length would be negative."""
    part = claim_part("c", CLAIMS["length"])
    assert part.check(r"|\gamma| \sqrt{d}")
    outcome = part.check(r"\gamma \sqrt{d}")
    assert outcome.kind == "conditional"
    assert outcome.misconceptions == ("sign of the scale",)


def normalised(kind: str, x: np.ndarray) -> np.ndarray:
    """The norms by their formulas, on [B, D] or [B, T, D]."""
    if kind == "stored":
        return (x - 0.25) / 1.5
    if kind == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True))
    batch = tuple(range(x.ndim - 1))
    axes = {"layer": (-1,), "batch": batch, "instance": (1,), "example": (1, 2)}[kind]
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in NORMS for shape in NORMS[kind].over])
def test_dependence_by_moving_one_input(kind: str, shape: str) -> None:
    sizes = [{"B": 4, "T": 5, "D": 6}[axis] for axis in shape]
    x = np.random.default_rng(3).normal(size=sizes)
    here = (1,) * len(sizes)
    for axes in differing(shape):
        there = tuple(2 if axis in axes else 1 for axis in shape)
        moved = x.copy()
        moved[there] += 0.7
        changed = abs(normalised(kind, moved)[here] - normalised(kind, x)[here]) > 1e-9
        assert changed == depends(NORMS[kind], shape, axes), axes


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_against_numpy(kind: str) -> None:
    for seed in range(10):
        numbers = drawn(kind, random.Random(seed))
        x = np.array(numbers.x, dtype=float)
        centre, spread = {
            "layer": (x.mean(), x.std()),
            "batch": (x.mean(), x.std()),
            "rms": (0.0, np.sqrt((x**2).mean())),
            "stored": (numbers.mean, numbers.deviation),
        }[kind]
        wanted = numbers.gamma * (x - centre) / spread + numbers.beta
        assert all(value.denominator == 1 for value in numbers.result)
        np.testing.assert_allclose([float(value) for value in numbers.result], wanted, rtol=1e-12)
    assert numeric_part("b", numbers).check(", ".join(f"{value:.4g}" for value in wanted).join("()"))


@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "proof"])
def test_claims_against_numpy(name: str) -> None:
    draw = np.random.default_rng(11)
    d, gamma, beta, c, b, epsilon = 7, -1.7, 0.6, 2.3, 1.9, 0.4
    x = draw.normal(size=d)

    def layer(x: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        return gamma * (x - x.mean()) / np.sqrt(x.var() + epsilon) + beta

    y = layer(x)
    root = np.sqrt(d)
    pairs = {
        "length": (np.linalg.norm(y - beta), abs(gamma) * root),
        "epsilon": (np.linalg.norm(layer(x, epsilon) - beta),
                    abs(gamma) * root * x.std() / np.sqrt(x.var() + epsilon)),
        "sum": (y.sum(), d * beta),
        "scaled": (layer(c * x), y),
        "shifted": (layer(x + b), y),
        "turned": (layer(-c * x), 2 * beta - y),
        "root mean square": (np.linalg.norm(gamma * x / np.sqrt((x**2).mean())), abs(gamma) * root),
    }  # fmt: skip
    np.testing.assert_allclose(*pairs[name], rtol=1e-12)
    part = claim_part("c", CLAIMS[name])
    right = {"length": r"\sqrt{d}\,|\gamma|", "epsilon": r"|\gamma|\sigma\sqrt{\frac{d}{\sigma^2+\epsilon}}",
             "sum": r"\beta d", "scaled": "y", "shifted": "y", "turned": r"2\beta\mathbf{1} - y",
             "root mean square": r"|\gamma| d^{1/2}"}[name]  # fmt: skip
    assert part.check(right), part.check(right)


@pytest.mark.parametrize("seed", seeds(5))
def test_a_sheet_is_recognised(seed: int | None) -> None:
    problem = norms.make(seed)
    found = norms.recognised(as_text(problem))
    assert found is not None
    assert found[0] >= 0.5
    again = {part.name: part for part in found[1].parts}
    assert set(again) == {part.name for part in problem.parts}
    for part in problem.parts:
        assert part.check(again[part.name].answer.text), (part.name, part.ask, again[part.name].answer.text)


@pytest.mark.parametrize("text", [
    "Which masks does a Transformer decoder need?", "What is the norm of q?", "",
    "Derive the variance of q^T k for d components.",
    "Normalise the scores by the square root of d and take a softmax.",
])  # fmt: skip
def test_other_questions_are_not(text: str) -> None:
    assert norms.recognised(text) is None
