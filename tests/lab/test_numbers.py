"""Numbers on a page keep their exact value with what is shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.lab.numbers import at, heat, marked, shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_exact_value_is_kept(value: float) -> None:
    markup = marked({"rows": [[value]]})("rows.0.0")
    found = re.fullmatch(r'<data class="n" value="([^"]*)" data-path="rows.0.0">([^<]+)</data>', markup)
    assert found is not None
    assert float(found[1]) == value


@given(st.floats(min_value=1e-4, max_value=9e6))
def test_four_digits_are_shown(value: float) -> None:
    read = float(shown(value).replace(",", ""))
    assert read == pytest.approx(value, rel=6e-4)
    assert shown(-value) == f"−{shown(value)}"


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0.0, "", "0"),
        (-0.0, "", "0"),
        (1e-9, "", "10⁻⁹"),
        (-2.5e-7, "", "−2.5·10⁻⁷"),
        (12345.678, "", "12,346"),
        (1234567, "", "1,234,567"),
        (1.2e9, "", "1.2·10⁹"),
        (None, "", "–"),
        (True, "", "yes"),
        ("-1/3", "", "−1/3"),
        ("a-b", "", "a-b"),
        (0.25, "%", "25 %"),
        (0.0012, "s", "1.2 ms"),
        (0.0, "s", "0 s"),
        (3e9, "FLOP/s", "3 GFLOP/s"),
        (-0.00001, "3f", "0.000"),
        (2.0, "flop/byte", "2 flop/byte"),
    ],
)
def test_styles(value: object, style: str, text: str) -> None:
    assert shown(value, style) == text


def test_markup_in_texts_is_escaped() -> None:
    assert "<b>" not in marked({"a": '<b>"'})("a")


@pytest.mark.parametrize("path", ["b", "a.x", "a.9", "a.0.0.0", ""])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(OptionError):
        at({"a": [[1]]}, path)


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(OptionError, match="style"):
        shown(1.0, "stones")


def test_shades() -> None:
    assert [heat(x, -1, 1) for x in (-5, -1, 0, 1, 9)] == ["heat-0", "heat-0", "heat-10", "heat-20", "heat-20"]
    assert heat(1.0, 2.0, 2.0) == "heat-0"
    assert heat(float("nan")) == "heat-none"
