"""Mistakes in counts: each gives its own wrong figure where it applies, and nothing where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.exercises import Asked, Exercise, Given, Structure
from qkv.exercises.mistakes import MISTAKES
from qkv.exercises.solving import answer

CACHE = {"layers": 3, "width": 35, "heads": 5, "kv_heads": 1, "length": 17}
MODEL = {"layers": 3, "width": 35, "heads": 5, "ff_width": 11, "vocabulary": 13}


def record(quantity: str, structure: dict[str, Any], **givens: Any) -> tuple[Exercise, Asked]:
    asked = Asked(quantity=quantity)
    made = tuple(Given(role=role, value=value) for role, value in givens.items())  # pyright: ignore
    return Exercise(givens=made, structure=Structure(**structure), asked=(asked,)), asked


@pytest.mark.parametrize(
    ("name", "quantity", "structure", "givens", "ratio"),
    [
        ("keys counted, values not", "cache_bytes", {}, CACHE, 1 / 2),
        ("query heads counted in the cache", "cache_bytes", {"variant": "gqa"}, CACHE, 5),
        ("one layer counted", "cache_bytes", {}, CACHE, 1 / 3),
        ("bits for bytes", "cache_bytes", {}, CACHE, 8),
        ("GiB for GB", "weight_bytes", {}, {"parameters": "7B", "dtype": "bf16"}, 1000**3 / 1024**3),
        ("multiply-adds counted once", "flops", {"gated": False}, {**MODEL, "length": 7}, 1 / 2),
        ("multiply-adds counted once", "training_flops", {}, {"parameters": 7, "training_tokens": 11}, 1 / 2),
        ("backward left out", "training_flops", {}, {"parameters": 7, "training_tokens": 11}, 1 / 3),
        ("backward left out", "flops", {"phase": "training", "gated": False}, {**MODEL, "length": 7}, 1 / 3),
    ],
)
def test_a_mistake_has_its_ratio(name: str, quantity: str, structure: Any, givens: Any, ratio: float) -> None:
    exercise, asked = record(quantity, structure, **givens)
    wrong = MISTAKES[name](exercise, asked)
    assert wrong is not None
    assert float(wrong.value) == pytest.approx(ratio * float(answer(exercise, asked).value))


def test_a_tied_embedding_counted_twice() -> None:
    exercise, asked = record("parameters", {"tied": True, "gated": False}, **MODEL)
    wrong = MISTAKES["embedding counted twice"](exercise, asked)
    assert wrong is not None
    assert wrong.value - answer(exercise, asked).value == 13 * 35


@pytest.mark.parametrize(
    ("name", "quantity", "givens"),
    [
        ("keys counted, values not", "cache_bytes", {"layers": 3, "latent_width": 7, "length": 5}),
        ("query heads counted in the cache", "cache_bytes", {"layers": 3, "width": 35, "heads": 5, "length": 17}),
        ("one layer counted", "parameters", {"width": 35}),
        ("embedding counted twice", "parameters", MODEL),
        ("bits for bytes", "parameters", MODEL),
        ("backward left out", "flops", {**MODEL, "length": 7}),
    ],
)
def test_where_it_does_not_apply(name: str, quantity: str, givens: Any) -> None:
    assert MISTAKES[name](*record(quantity, {}, **givens)) is None
