import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.figures.axis import PREFIXED, binary_tick, exponent_of, readable, tick

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
    ("value", "unit", "said"),
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
def test_readable(value, unit, said):
    assert readable(value, unit) == said


def test_units_with_prefixes_have_none_already():
    assert not PREFIXED & {"ms", "GB", "tokens", "flop/byte", ""}


@given(st.integers(-300, 300))
def test_exponents_are_exact_at_powers_of_ten(power):
    assert exponent_of(float(f"1e{power}")) == power
