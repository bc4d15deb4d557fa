"""Whole texts: how deep one may be, and what is suggested where one makes no sense."""

import pytest

from qkv.errors import IllTyped, MathsError, Unreadable
from qkv.maths.comparison.verdict import compare
from qkv.maths.parsing.parse import parse
from qkv.maths.tree import Relation

S = {"q": "vector[d]", "k": "vector[d]", "a": "vector[n]", "x": "scalar"}


@pytest.mark.parametrize("text", ["q" + "ᵀ" * 1000, "q" + "^T" * 500, "2" + "/x" * 900, "x" + r"/x" * 400 + "= x"])
def test_what_is_too_deep_is_refused_before_anything_recurses(text) -> None:
    with pytest.raises(Unreadable, match="nested too deeply"):
        parse(text, S)
    assert compare("x", text, S).kind == "unreadable"


def test_a_suggestion_is_one_expression_and_the_expected_shape_comes_first() -> None:
    verdict = compare("k q^T", "q k", S)
    assert "did you mean q kᵀ or qᵀk?" in verdict.reason
    assert verdict.suggestion == "q kᵀ"
    assert compare("q^T k", "q k", S).suggestion == "qᵀk"


@pytest.mark.parametrize("text", ["a^T q", "q a", "q^T a", "a q", "a + q"])
def test_only_what_makes_sense_is_suggested(text) -> None:
    with pytest.raises(IllTyped) as caught:
        parse(text, S)
    for option in filter(None, caught.value.suggestion.split(" or ")):
        parse(option, S)


C = {**S, "n": "natural", "y": "scalar", "f": "map vector[d] -> scalar", "A": "matrix[d,d]"}


@pytest.mark.parametrize(
    "head",
    [
        "t",
        "(t)",
        "t_i",
        "t^2",
        "(t_1)^2",
        "t(x)",
        "t(x, y)",
        "t_1(x)",
        "t(x)_2",
        r"\text{loss}",
        r"\text{loss}(x)",
        "q^T t",
        r"f(t)",
        r"\exp(t)",
        r"\exp t",
        "|t|",
        r"\|t\|",
        r"\frac{\partial L}{\partial x}",
        r"\frac{dL}{dt}",
        r"\frac{\partial L}{\partial t}",
        r"f(x)",
    ],
)
def test_heads_that_may_go_unread(head) -> None:
    if head == "q^T t":  # no name with brackets
        with pytest.raises(IllTyped):
            parse(f"{head} = y", C)
        return
    assert parse(f"{head} = y", C) == parse("y", C)
    assert parse(f"{head} ≈ 2.5", C) == parse("≈ 2.5", C)
    assert parse(f"{head} = y = n", C) == parse("y = n", C)
    with pytest.raises(MathsError):
        parse(head, C)
    with pytest.raises(IllTyped):
        parse(f"y = {head}", C)
    with pytest.raises(IllTyped):
        parse(rf"{head} \le y", C)


@pytest.mark.parametrize(
    "head", ["2 t", "t t", "t + 1", "-t", "t (x) y", "(t, x)", r"\frac{t}{x}", "[t; x]", r"\sqrt t"]
)
def test_what_is_no_head_must_make_sense(head) -> None:
    with pytest.raises(IllTyped, match="t is not declared"):
        parse(f"{head} = y", C)


@pytest.mark.parametrize(
    ("text", "rounded"),
    [
        ("≈ 2.5", [True]),
        (r"\approx 2.5", [True]),
        ("= 2.5", [False]),
        ("x = 2.5", [None, False]),
        ("x ≈ 2.5", [None, True]),
        ("x = 1.5 ≈ 2.5", [None, False, True]),
        ("x ≈ 1.5 = 2.5", [None, False, False]),
        ("≈ (2.5, 1)", [None]),
    ],
)
def test_what_is_rounded(text, rounded) -> None:
    tree = parse(text, C)
    members = tree.members if isinstance(tree, Relation) else (tree,)
    assert [getattr(member, "rounded", None) for member in members] == rounded
    if text == "≈ (2.5, 1)":
        assert [entry.rounded for entry in tree.entries] == [True, True]  # pyright: ignore
        assert [text[slice(*entry.span)] for entry in tree.entries] == ["2.5", "1"]  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "signs", "shape"),
    [
        ("x = y", ("=",), ()),
        ("q = k", ("=",), ("d",)),
        ("x = y ≈ n", ("=", "≈"), ()),
        (r"x \le y < n", ("<=", "<"), ()),
        ("t = x = y", ("=",), ()),
        ("= x", None, ()),
        ("x = y = n = 2", ("=", "=", "="), ()),
    ],
)
def test_signs_between_members(text, signs, shape) -> None:
    tree = parse(text, C)
    assert tree.shape == shape
    assert getattr(tree, "signs", None) == signs


def test_a_member_in_the_middle_may_go_unread_as_well() -> None:
    assert parse("x = t = y", C) == parse("x = y", C)
    assert parse("t = z = y", C) == parse("y", C)


@pytest.mark.parametrize(
    ("text", "expected", "shape"),
    [
        ("0", ("d",), ("d",)),
        ("0", ("d", "d"), ("d", "d")),
        (r"\mathbf{0}", ("n", "d"), ("n", "d")),
        (r"\mathbf{1}", ("d",), ("d",)),
        ("[1, 2]^T", (2,), (2,)),
        ("[1, 2]^T", None, (2,)),
        ("[1, 2]^T", (1, 2), (2,)),
        ("2 I", ("d", "d"), ("d", "d")),
        ("x", ("d",), ()),
        ("q", ("n",), ("d",)),
        ("0", (), ()),
        ("x = 0", ("d",), ("d",)),
    ],
)
def test_what_is_expected_settles_what_is_open(text, expected, shape) -> None:
    assert parse(text, C, expected=expected).shape == shape


def test_how_deep_definitions_may_go() -> None:
    chain = {"a_0": "scalar"} | {f"a_{i}": f"scalar = a_{i - 1} + 1" for i in range(1, 20)}
    with pytest.raises(Unreadable, match="nested too deeply, definitions included"):
        parse("-(1+" * 21 + "a_19" + ")" * 21, chain)
    assert parse("-(1+" * 10 + "a_19" + ")" * 10, chain).shape == ()
