"""Ticks are round numbers, close enough and inside the axis; numbers are formatted."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.errors import OptionError, OptionTypeError
from qkv.figures import Axis
from qkv.figures.axis import PREFIXED, as_number, binary_tick, exponent_of, readable, ruler, tick

positive = st.floats(1e-100, 1e100)
real = st.one_of(positive, positive.map(lambda v: -v), st.just(0.0), st.floats(-10, 10))


def check(scale):
    sets = list(scale.tick_sets())
    assert sets
    for ticks in sets:
        values = [value for value, _ in ticks]
        assert all(a < b for a, b in pairwise(values))
        assert all(scale.low <= v <= scale.high for v in values)
        assert len({text for _, text in ticks}) == len(ticks)
        assert all(-1e-9 <= scale.share(v) <= 1 + 1e-9 for v in values)


@given(st.lists(real, max_size=7), st.sampled_from(["s", "tokens", ""]))
@example([1e15, 1e15 + 1], "")
@example([-1e100, 1e100], "s")
@example([5e-324], "")
@example([0.0, 1e-310], "")
def test_linear_axes_hold_their_values_and_ticks(values, unit):
    scale = ruler(Axis("n", unit), values)
    assert all(scale.holds(v) for v in values)
    check(scale)


@given(st.lists(positive, max_size=7), st.sampled_from(["s", "tokens", "B", ""]))
@example([1e-100, 1e100], "")
@example([1e-9, 1e15], "s")
@example([3.0, 3.1], "")
@example([1.0, 1.0 + 1e-15], "s")
def test_log_axes_hold_their_values_and_ticks(values, unit):
    scale = ruler(Axis("n", unit, "log"), values)
    assert all(scale.holds(v) for v in values)
    check(scale)


@pytest.mark.slow
@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.lists(real, max_size=5))
def test_given_ends_are_kept(low, width, values):
    if low + width - low <= 1e-5 * max(-low, low + width):
        return
    scale = ruler(Axis("n", low=low, high=low + width), values)
    assert (scale.low, scale.high) == (low, low + width)
    check(scale)


@given(positive, st.lists(positive, max_size=5))
def test_one_given_end_is_kept(end, values):
    for scale in ("linear", "log"):
        assert ruler(Axis("n", scale=scale, low=end), values).low == end
        assert ruler(Axis("n", scale=scale, high=end), values).high == end
        check(ruler(Axis("n", scale=scale, low=end), values))
        check(ruler(Axis("n", scale=scale, high=end), values))


def texts(values, *about, **ends):
    return [text for _, text in next(ruler(Axis("n", *about, **ends), values).tick_sets())]


def test_context_lengths_get_powers_of_two():
    assert texts([1024, 8192, 131072], "tokens", "log") == ["1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k"]
    assert texts([2**10, 2**13], "B", "log") == ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]


def test_others_get_powers_of_ten_or_one_two_five():
    assert texts([1e-5, 0.2], "s", "log") == ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]
    assert texts([1e9, 4e10], "FLOP/s", "log") == ["1 G", "2 G", "5 G", "10 G", "20 G"]
    assert texts([0.5, 300], "flop/byte", "log")[:4] == ["0.5", "1", "2", "5"]


def test_linear_axes_share_one_prefix():
    scale = ruler(Axis("time", "s"), [0.001, 0.0042])
    assert scale.caption == "time (ms)"
    assert [text for _, text in next(scale.tick_sets())][-1] == "5.0"
    assert texts([0, 120_000], "tokens")[-1] == "120k"
    assert ruler(Axis("p"), [0, 2e-7]).caption == "p (10⁻⁹)"


def test_long_units_stand_in_the_caption():
    assert ruler(Axis("speed", "FLOP/s", "log"), [1e9, 1e12]).caption == "speed (FLOP/s)"
    assert ruler(Axis("time", "s", "log"), [1e-3, 1]).caption == "time"


@given(positive, positive, positive)
def test_a_scale_is_monotone(a, b, c):
    low, middle, high = sorted((a, b, c))
    for kind in ("linear", "log"):
        scale = ruler(Axis("n", scale=kind), [low, high])
        assert 0 <= scale.share(low) <= scale.share(middle) <= scale.share(high) <= 1


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "logarithmic"},
        {"low": math.nan},
        {"high": math.inf},
        {"scale": "log", "low": 0},
        {"scale": "log", "high": -3},
        {"low": 5, "high": 5},
        {"low": 7, "high": 3},
        {"low": 1e15, "high": 1e15 + 1},
        {"low": 0, "high": 1e-310},
    ],
)
def test_ends_that_cannot_be(options):
    with pytest.raises(OptionError, match="wanted"):
        Axis("n", **options)


def test_types():
    with pytest.raises(OptionTypeError, match="low: got '3'"):
        Axis("n", low="3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionTypeError, match="label"):
        Axis(3)  # pyright: ignore[reportArgumentType]


def test_numbers_of_any_library():
    assert [as_number("x", v) for v in (3, np.float32(0.5), torch.tensor(7), 10**400)] == [3.0, 0.5, 7.0, math.inf]
    for bad in ("3", None, 1j, torch.zeros(2), [1]):
        with pytest.raises(OptionTypeError, match="wanted a number"):
            as_number("x", bad)


@pytest.mark.parametrize(("low", "high"), [(1.9, 12.0), (0.03, 0.2), (7e6, 4e7), (1.0, 2.3)])
def test_a_short_logarithmic_axis_has_ticks_all_along(low: float, high: float) -> None:
    measured = ruler(Axis("time", "s", "log"), [low, high])
    first = next(measured.tick_sets())
    shares = [measured.share(value) for value, _ in first]
    assert len(first) >= 4
    assert shares[0] < 0.3
    assert shares[-1] > 0.7


POWERS = {"f": -15, "p": -12, "n": -9, "µ": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")


def read_back(text, unit):
    """The value that a reader would take from the text."""
    text = text.removesuffix(unit).strip()
    lead, ten, raised = re.fullmatch(r"(.*?)(?:·?(10)([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", text).groups()
    if ten:
        lead = lead.translate(LOWERED)
        return float(lead + "1" if lead in ("", "-") else lead) * 10.0 ** int(raised.translate(LOWERED))
    prefix = text[-1] if text[-1] in POWERS else ""
    return float(text.removesuffix(prefix).translate(LOWERED)) * 10.0 ** POWERS[prefix]


@given(
    value=st.one_of(st.floats(1e-25, 1e25), st.floats(-1e25, -1e-25), st.integers(-(10**9), 10**9).map(float)),
    unit=st.sampled_from(["s", "FLOP/s", "tokens", ""]),
)
def test_what_is_said_is_the_value(value, unit):
    assert read_back(readable(value, unit), unit) == pytest.approx(value, rel=5.1e-4)


@given(st.integers(-25, 25), st.sampled_from([1, 2, 5]), st.sampled_from(["s", "B", "tokens", ""]))
def test_ticks_lose_nothing(power, lead, unit):
    value = float(f"{lead}e{power}")
    assert read_back(tick(value, unit), unit) == pytest.approx(value, rel=1e-9)


@given(st.integers(0, 69))
def test_powers_of_two_are_spoken_in_thousands_of_1024(exponent):
    text = binary_tick(exponent, "tokens")
    prefix = text[-1] if text[-1] in POWERS else ""
    assert int(text.removesuffix(prefix)) * 1024 ** (POWERS[prefix] // 3) == 2**exponent


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (999.96e-6, "s", "1 ms"),
        (8e9, "B/s", "8 GB/s"),
        (1e30, "s", "10³⁰ s"),
        (-1.5, "", "−1.5"),
        (12_345_678, "tokens", "12.35M tokens"),
        (5e-324, "", "5·10⁻³²⁴"),
    ],
)
def test_readable(value, unit, text):
    assert readable(value, unit) == text


def test_units_with_prefixes_have_none_already():
    assert not PREFIXED & {"ms", "GB", "tokens", "flop/byte", ""}


@given(st.integers(-300, 300))
def test_exponents_are_exact_at_powers_of_ten(power):
    assert exponent_of(float(f"1e{power}")) == power
