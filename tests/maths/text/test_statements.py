"""One statement: what stands in brackets around it, indicators, and texts that say two things."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.reading import parse
from qkv.maths.tree import Relation

S = {"x": "scalar", "d": "natural", "n": "natural", "s": "vector[n]", "c": "scalar", "mu": "scalar", "sigma": "scalar"}


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{x = \sqrt{d}}",
        "[x = √d]",
        "(x = √d)",
        r"\{x = \sqrt d\}",
        r"{x = \sqrt d}",
        r"\boxed{\left[x = \sqrt{d}\right]}",
        r"\fbox{$x = \sqrt{d}$}",
    ],
)
def test_brackets_around_a_whole_chain_fall_away(text) -> None:
    assert parse(text, S) == parse(r"x = \sqrt d", S)


def test_a_box_at_the_end_of_a_chain() -> None:
    assert parse(r"x = \boxed{c = d}", S) == parse("x = c = d", S)
    assert isinstance(parse(r"\boxed{1=2}", S), Relation)


DELTAS = [
    r"1[i=j]",
    r"\mathbf 1[i=j]",
    r"\mathbb{1}\{i=j\}",
    r"\mathbb{I}(i=j)",
    "[i=j]",
    r"\mathbf{1}_{i=j}",
    "𝟏[i=j]",
]


@pytest.mark.parametrize("written", DELTAS)
def test_indicators(written) -> None:
    assert parse(f"s_i({written} - s_j)", S) == parse(r"s_i(\delta_{ij} - s_j)", S)
    one = written.replace("j", "1")
    assert parse(f"s_i {one}", S) == parse(r"s_i \delta_{i1}", S)


@pytest.mark.parametrize(
    "text", ["(x = d) d", "2[x = d]", r"1[x = d]", "s_i (i = j)", r"\sqrt{x = d}", r"\mathbf 1_{x = d}"]
)
def test_no_other_equation_is_a_factor(text) -> None:
    with pytest.raises(Unreadable):
        parse(text, S)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"2\sqrt{d} \text{ where } c = \sqrt d", "words"),
        (r"x = -\sqrt d \text{ or } t = \sqrt d", "words"),
        (r"x = 2 \text{ and } c = 3", "words"),
        (r"\mu = 0 \quad \sigma = 1", "two statements"),
        (r"\mu = 0 \qquad \sigma = 1", "two statements"),
        (r"x \neq d = \sqrt d", "≠ in a chain"),
        (r"x = 2 \ne d", "≠ in a chain"),
    ],
)
def test_two_statements_are_refused(text, said) -> None:
    with pytest.raises(Unreadable, match=said):
        parse(text, S)


def test_a_wide_space_inside_one_statement() -> None:
    assert parse(r"x = \quad d \quad = n", S) == parse("x = d = n", S)
    assert parse(r"x \ne d", S).signs == ("!=",)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "head",
    ["y", r"\text{Output}", "z_{3,1}", "E[y]", r"\text{Attention}(Q,K,V)", "f(x)", r"\hat y", r"y^2", r"\|v\|", "y^T",
     r"\frac{\partial L}{\partial s_i}", r"\frac{dL}{dy}", r"\text{head}_i", r"\boxed{y}", "f_1(x)"],
)  # fmt: skip
def test_what_a_value_is_called_may_go_unread(head) -> None:
    assert parse(rf"{head} = \sqrt d", S) == parse(r"\sqrt d", S)


@pytest.mark.parametrize("text", ["t t = 3", r"\frac{y}{2} = x", "2 y = x", "y + 1 = x", "s x + 1 = d"])
def test_what_is_no_name_must_make_sense(text) -> None:
    with pytest.raises(IllTyped):
        parse(text, S)
