"""Feature maps and attention with one: any name, order and convention of vectors is right; what is open is unread."""

import pytest

from qkv.exercises import Asked, Exercise, Given
from qkv.exercises.checking import check
from qkv.exercises.record import Structure

KERNEL = Exercise(
    givens=(Given(role="degree", value=2), Given(role="offset", value=1), Given(symbol="D", role="width")),
    structure=Structure(similarity="polynomial"),
    asked=(Asked(label="a", quantity="feature_map"),),
)
FORM = Exercise(
    givens=(
        Given(symbol="N", role="length"),
        Given(symbol="D", role="width"),
        Given(symbol="M", role="value_width"),
    ),
    asked=(Asked(label="a", quantity="kernel_form"),),
)
LINEAR, SQUARES, CROSS = (
    r"\sqrt2 {x}_1, \dots, \sqrt2 {x}_D",
    r"{x}_1^2, \dots, {x}_D^2",
    r"\sqrt{{2}} {x}_1 {x}_2, \dots, \sqrt{{2}} {x}_{{D-1}} {x}_D",
)


@pytest.mark.parametrize("name", ["q", "x", "z"])
@pytest.mark.parametrize("order", [("1", LINEAR, SQUARES, CROSS), (SQUARES, CROSS, LINEAR, "1")])
def test_a_feature_map_by_any_name_and_in_any_order(name: str, order: tuple[str, ...]) -> None:
    listed = ", ".join(each.format(x=name) for each in order)
    assert check(KERNEL, "a", rf"\phi({name}) = \left[{listed}\right]^T").kind == "right"
    column = listed.replace(", ", r" \\ ").replace(r"\dots", r"\vdots")
    assert check(KERNEL, "a", rf"\phi({name}) = \begin{{bmatrix}} {column} \end{{bmatrix}}").kind == "right"


@pytest.mark.parametrize("left_out", [0, 1, 2, 3])
def test_a_feature_that_is_missing_is_wrong(left_out: int) -> None:
    listed = [each.format(x="x") for at, each in enumerate(("1", LINEAR, SQUARES, CROSS)) if at != left_out]
    assert check(KERNEL, "a", rf"\phi(x) = [{', '.join(listed)}]").kind == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        r"\phi(x) = (1, \sqrt2 x_i, x_i^2, \sqrt2 x_i x_j)",  # a running index
        r"\phi(x) = [1, \sqrt2 x_1, \sqrt2 x_2, x_1^2, x_2^2, \sqrt2 x_1 x_2]",  # one width alone
        r"\phi(x) = [1, \sqrt2 x_1, \dots, x_1^2, \dots, \sqrt2 x_1 x_2, \dots]",  # ends are left out
    ],
)
def test_a_list_that_is_not_written_out_is_unread(text: str) -> None:
    assert check(KERNEL, "a", text).kind == "unread"


SUM = r"\sum_{j=1}^N"


@pytest.mark.parametrize("prime", ["V'_i", "V_i'", r"V_i^{\prime}", r"V'_{i\cdot}"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(("features", "value"), [("columns", "V_j"), ("columns", "V_j^T"), ("rows", "V_j")])
def test_attention_by_rows_and_by_columns(prime: str, once: bool, features: str, value: str) -> None:
    query, key = (r"\phi(Q_i)^T", r"\phi(K_j)") if features == "columns" else (r"\phi(Q_i)", r"\phi(K_j)^T")
    top, bottom = (f"{query} {SUM} {key} {value}", f"{query} {SUM} {key}") if once else (
        f"{SUM} {query} {key} {value}", f"{SUM} {query} {key}")  # fmt: skip
    assert check(FORM, "a", rf"{prime} = \frac{{{top}}}{{{bottom}}}").kind == "right"


@pytest.mark.parametrize(
    ("top", "bottom"),
    [
        (r"\phi(Q_i)^T \phi(K_i) V_j", r"\phi(Q_i)^T \phi(K_j)"),
        (r"\phi(Q_i)^T \phi(K_j) V_j", r"\phi(Q_i)^T \phi(K_i)"),
        (r"\phi(Q_i) V_j", r"\phi(Q_i)^T \phi(K_j)"),
    ],
)
def test_other_sums_are_not_passed(top: str, bottom: str) -> None:
    assert not check(FORM, "a", rf"V'_i = \frac{{{SUM} {top}}}{{{SUM} {bottom}}}")
