"""Fields read what they write, keep what was typed, and say what is wrong in the library's words."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.lab.fields import Choice, Flag, Matrix, Number, Words, WrongField, entry, from_json, shortened, typed

WIDTH = Number(name="d", label="width", low=1, high=1024, default=64, whole=True, doubling=True)
MEAN = Number(name="mu", label="mean", low=-2, high=2, default=0.5, step=0.25)
KIND = Choice(name="kind", label="kind", options={"a": "first", "b": "second"}, default="a")
LOUD = Flag(name="loud", label="loud", default=True)
TEXT = Words(name="text", label="text", longest=7)
GRID = Matrix(name="x", label="X", default="1,0;0,1", most_rows=3, most_columns=5)
ALL = (WIDTH, MEAN, KIND, LOUD, TEXT, GRID)


@given(st.integers(1, 1024), st.floats(-2, 2), st.sampled_from("ab"), st.booleans(), st.text(max_size=7))
def test_what_is_written_is_read_again(d: int, mu: float, kind: str, loud: bool, text: str) -> None:
    values = {"d": d, "mu": mu, "kind": kind, "loud": loud}
    for field in (WIDTH, MEAN, KIND, LOUD):
        assert field.read(field.write(values[field.name])) == values[field.name]
    assert TEXT.read(text) == text.replace("\r\n", "\n")


@given(st.integers(1, 3), st.integers(1, 5), st.data())
def test_matrices_are_exact(rows: int, columns: int, data) -> None:
    cell = st.fractions(min_value=-999, max_value=999, max_denominator=997)
    value = tuple(tuple(data.draw(cell) for _ in range(columns)) for _ in range(rows))
    assert GRID.read(GRID.write(value)) == value
    assert typed([GRID], from_json([GRID], {"x": [[str(each) for each in row] for row in value]})).state == {"x": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/3", Fraction(1, 3)),
        (" -0.25", Fraction(-1, 4)),
        ("−2", -2),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
    ],
)
def test_entries(text: str, value: Fraction) -> None:
    assert entry(text, "x") == value


@pytest.mark.parametrize(
    "text", ["", "a", "1/0", "1//2", "nan", "inf", "١", "1e9999", "9" * 25, "__import__('os')", "0x1"]
)
def test_what_is_no_number_is_refused_with_words(text: str) -> None:
    with pytest.raises(QkvError, match="x: got"):
        entry(text, "x")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (WIDTH, "0"),
        (WIDTH, "1.5"),
        (WIDTH, "1025"),
        (MEAN, "2.01"),
        (KIND, "c"),
        (LOUD, "true"),
        (TEXT, "12345678"),
        (GRID, "1;2;3;4"),
        (GRID, "1,2,3,4,5,6"),
        (GRID, "1,2;3"),
        (GRID, "1,;2,3"),
        (GRID, "1e13"),
        (GRID, "1e-300"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_kept(field, text: str) -> None:
    found = typed(ALL, {field.name: text})
    assert found.state is None
    assert set(found.problems) == {field.name}
    assert found.problems[field.name].startswith(field.name)
    assert found.texts[field.name] == text


def test_nothing_given_is_the_defaults_and_needs_no_address() -> None:
    found = typed(ALL, {})
    assert found.state == {"d": 64, "mu": 0.5, "kind": "a", "loud": True, "text": "", "x": ((1, 0), (0, 1))}
    assert shortened(ALL, found.texts) == {}
    assert shortened(ALL, {**found.texts, "d": "7"}) == {"d": "7"}


@given(st.floats(-3, 3), st.floats(0, 3))
def test_the_ends_of_a_range_are_in_it(low: float, wide: float) -> None:
    field = Number(name="a", label="a", low=low, high=low + wide, default=low)
    for end in (field.low, field.high):
        assert field.read(field.write(end)) == end


def test_unknown_names_are_named() -> None:
    assert "colour" in typed(ALL, {"colour": "red"}).problems[""]
    with pytest.raises(WrongField, match="colour"):
        from_json(ALL, {"colour": "red"})


@pytest.mark.parametrize(
    "body",
    [[], "d", 3, None, {"d": None}, {"d": True}, {"x": [[]]}, {"x": [[None]]}, {"mu": {}}, {"text": "\ud800 x"}],
)
def test_bodies_of_another_kind_are_refused(body: object) -> None:
    with pytest.raises(WrongField):
        from_json(ALL, body)


def test_json_of_any_number_is_read_or_refused() -> None:
    for value in (1, 2.0, 5e-324, -0.0, 1.7e308, 10**400):
        texts = from_json(ALL, json.loads(json.dumps({"mu": value})))
        assert isinstance(typed(ALL, texts).texts["mu"], str)
    with pytest.raises(WrongField):
        from_json(ALL, {"mu": math.nan})


def test_sliders_of_doubling_numbers_stand_at_powers_of_two() -> None:
    assert WIDTH.exponents == (0, 10)
    assert [WIDTH.slider_text(text) for text in ("64", "100", "nonsense")] == ["6", "7", "6"]
    assert MEAN.slider_text("1.25") == "1.25"


def test_what_was_typed_into_a_grid_stays_in_its_cells() -> None:
    assert GRID.cells("1,oops;,2") == [["1", "oops"], ["", "2"]]


def test_schemas_hold_the_defaults() -> None:
    for field in ALL:
        schema = field.schema()
        assert json.loads(json.dumps(schema)) == schema
