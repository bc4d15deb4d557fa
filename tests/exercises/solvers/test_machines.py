"""Solvers on machines against plain arithmetic and `qkv.cost.plan`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from qkv.cost import Hardware, hardware, plan
from qkv.exercises import Given
from qkv.exercises.findings import CannotSolve
from qkv.maths import compare
from tests.helpers.exercise_sizes import also, solved

CHIP = {"rate": "3 TFLOP/s", "bandwidth": "7 GB/s", "memory": "11 GB"}


def test_reading_and_computing() -> None:
    read = solved("time", "reading the weights", parameters="5B", dtype="int8", chips="2x4", **CHIP)
    assert read.value == Fraction(5, 7 * 8)
    assert solved("time", "", flops="6e12", chips=2, utilisation="50%", **CHIP).value == 2
    step = {"parameters": "5B", "dtype": "bf16", "batch": 13}
    found = solved("time", "step", **step, **CHIP)
    reading, computing = Fraction(10, 7), Fraction(2 * 5 * 13, 3000)
    assert found.value == max(reading, computing)
    assert also(found, "after the other") == reading + computing
    summed = solved("time", "step", conventions={"overlap": "sum"}, **step, **CHIP)
    assert summed.value == reading + computing
    assert solved("throughput", "", **step, **CHIP).value == 13 / reading
    assert solved("throughput", "tokens per day", **step, **CHIP).value == 86400 * 13 / reading


def test_training_time_in_the_unit_that_is_asked() -> None:
    train = {"parameters": "2B", "training_tokens": "1T", "rate": "300 TFLOP/s", "chips": 64, "utilisation": 0.5}
    seconds = Fraction(6 * 2 * 10**21, 300 * 10**12 * 32)
    found = solved("time", "training", unit="days", **train)
    assert (found.value, found.unit) == (seconds, "days")
    assert compare(found.text, f"{float(seconds / 86400):.5g} days", {}).kind == "equal"
    assert found.text.endswith(" days")
    assert solved("time", "training", unit="hours", **train).value == seconds
    assert solved("throughput", "training", **train).value == Fraction(10**12) / seconds
    del train["utilisation"]
    assert solved("utilisation", seconds=float(2 * seconds), **train).value == Fraction(1, 4)


def test_training_without_a_number_of_chips_is_on_one() -> None:
    train = {"parameters": "2B", "training_tokens": "1T", "rate": "300 TFLOP/s", "utilisation": 0.5}
    found = solved("time", "training", **train)
    assert found.value == Fraction(6 * 2 * 10**21, 150 * 10**12)
    assert ("the number of chips", "1") in [tuple(each.data.values()) for each in found.assumed]
    for chips in ({"chips": 1}, {"machine": "8x H100"}):
        assert "chips" not in str([each.data for each in solved("time", "training", **train, **chips).assumed])


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "h100-sxm", "a100-80gb"])
def test_presets(name: str) -> None:
    preset = hardware()[name]
    for dtype, size in (("bf16", 2), ("int8", 1)):
        found = solved("time", "weights", parameters="8B", dtype=dtype, machine=name.replace("-", " ").upper())
        assert found.value == Fraction(size * 8 * 10**9) / Fraction(preset.bandwidth)
        ridge = solved("compute_bound_from", "batch", dtype=dtype, machine=name)
        assert ridge.value == pytest.approx(
            preset.rates["int8" if size == 1 else "bfloat16"] / preset.bandwidth * size / 2
        )
    given = solved("time", "weights", parameters="8B", dtype="bf16", machine=name, bandwidth="1 GB/s")
    assert given.value == 16


def test_slices_in_names() -> None:
    wide = solved("time", "weights", parameters="8B", dtype="int8", machine="TPUv5e 4x4 slice")
    assert wide.value * 16 == solved("time", "weights", parameters="8B", dtype="int8", machine="tpu v5e").value
    cards = solved("time", "weights", parameters="8B", dtype="int8", machine="8x H100")
    assert cards.value * 8 == solved("time", "weights", parameters="8B", dtype="int8", machine="h100-sxm").value


def test_what_fits_is_what_plan_says() -> None:
    model: dict[str, Any] = {"model": "llama-3-8b", "dtype": "bf16", "memory": "40 GB"}
    machine = Hardware("card", {"bfloat16": 1e12}, 1e11, 40 * 10**9)
    expected = plan("llama-3-8b", machine, context=5000, batch=3)
    assert solved("fits", "batch", length=5000, **model).value == expected.largest_batch
    assert solved("fits", "context", batch=3, **model).value == expected.largest_context
    assert (
        solved("fits", "batch", length=5000, chips=2, **model).value
        == plan("llama-3-8b", machine.chips(2), context=5000).largest_batch
    )
    left = solved("free_memory", length=5000, batch=3, chips=2, **model).value
    assert left == 40 * 10**9 - Fraction(expected.held_bytes, 2)
    assert solved("fits", "", length=5000, batch=3, **model).value is expected.fits is True
    assert solved("fits", "", parameters="21B", dtype="bf16", memory="40 GB").value is False
    assert solved("fits", "parameters", dtype="bf16", memory="40 GB").value == 20 * 10**9


def test_chips_needed() -> None:
    found = solved("chips_needed", "weights", parameters="100B", dtype="bf16", memory="16 GB")
    assert found.value == 13
    assert also(found, "power of two") == 16
    assert solved("chips_needed", "weights", parameters="8B", dtype="int8", memory="8 GB").value == 1


def test_compute_bound_with_experts() -> None:
    dense = solved("compute_bound_from", "batch", dtype="bf16", **CHIP)
    assert dense.value == Fraction(3000, 7)
    sparse = solved("compute_bound_from", "batch", dtype="bf16", experts=16, active_experts=2, **CHIP)
    assert sparse.value == 8 * dense.value
    assert solved("compute_bound_from", "intensity", **CHIP).value == Fraction(3000, 7)


@pytest.mark.parametrize(
    ("terms", "givens", "answer"),
    [
        ("n^2 d = n d^2", {}, "d"),
        ("4 n^2 d = 8 n d^2", {}, "2 d"),
        ("2 n^2 d = 3 n d^2 + 5 n d f", {"in": ("d", "f")}, "(3 d + 5 f)/2"),
        ("attention = projections", {"width": "d", "length": "n"}, "2 d"),
        ("attention = feed-forward", {"width": 8, "length": "n"}, "32"),
        ("attention = projections", {"width": 64, "structure": {"mask": "causal"}}, "255"),
        (
            "cache = weights",
            {"parameters": 6400, "layers": 2, "width": 8, "heads": 2, "batch": 5, "dtype": "bf16"},
            "40",
        ),
    ],
)
def test_crossings(terms: str, givens: dict[str, Any], answer: str) -> None:
    givens = dict(givens)
    found = solved("crossing", terms, terms=givens.pop("in", ()), **givens)
    assert compare(answer, found.text, found.symbols or {"d": "positive", "f": "positive"}).kind == "equal"


@pytest.mark.parametrize(
    ("quantity", "of", "givens", "said"),
    [
        ("time", "weights", {"parameters": "8B"}, "bandwidth"),
        ("time", "training", {"parameters": "8B", "rate": "1 TFLOP/s"}, "tokens"),
        ("time", "weights", {"parameters": "8B", "machine": "Zorg 3000"}, "not known"),
        ("time", "weights", {"parameters": "8B", "bandwidth": "7 GB"}, "bytes a second"),
        ("fits", "batch", {"model": "llama-3-8b", "memory": "40 GB"}, "context"),
        ("fits", "batch", {"model": "llama-3-8b", "memory": "4 GB", "length": 5}, "larger than the memory"),
        ("free_memory", "", {"parameters": "8B", "memory": "4 GB"}, "larger than the memory"),
        ("crossing", "n^2 = n^4 + n", {}, "not clear"),
        ("crossing", "the sky", {}, "not clear"),
        ("time", "weights", {"parameters": "7B", "dtype": "bf16", "bytes": "20 GB", **CHIP}, "differs"),
        ("utilisation", "", {"parameters": "8B", "seconds": 3, "rate": "1 TFLOP/s"}, "tokens"),
    ],
)
def test_what_is_missing_is_refused(quantity: str, of: str, givens: dict[str, Any], said: str) -> None:
    with pytest.raises(CannotSolve, match=said):
        solved(quantity, of, **givens)


def test_symbols_stay() -> None:
    found = solved("throughput", "training", parameters="N", rate=Given(role="rate", symbol="R").symbol, chips="c")
    assert found.text == "R c/(6 N)"
