"""One statement per text; spans, wrappers and depth of the syntax tree."""

import pytest

from qkv.errors import MathsError, Unreadable
from qkv.maths.parsing.grammar import Syntax, is_rule, is_token, only, span_of, syntax_tree, walk, without_brackets
from qkv.maths.parsing.parse import parse, tokens
from qkv.maths.tree import Delta, Relation
from qkv.maths.types import declare

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
        (r"x = 2 \text{ and } c", "words"),
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
    with pytest.raises(MathsError):
        parse(text, S)


W = {**S, "u": "vector[n]", "A": "matrix[n,n]", "i": "index[n]", "y": "scalar"}


@pytest.mark.parametrize(
    ("before", "sign", "after"),
    [
        ("x = d", "=", "n = x"),
        ("x = d", "≈", "n = x"),
        ("x = d", "+", "n = x"),
        ("x = d", "-", "n = x"),
        ("x = d", r"\pm", "n = x"),
        ("x = d", r"\cdot", "n = x"),
        ("x = d", r"\times", "n = x"),
        ("x = d", "/", "n = x"),
        ("x = d", r"\over", "n = x"),
        ("s = s", r"\odot", "u = u"),
        ("A = s", r"\otimes", "u = A"),
    ],
)
@pytest.mark.parametrize("space", [r"\quad", r"\qquad"])
def test_a_wide_space_next_to_a_sign_separates_nothing(before, sign, after, space) -> None:
    one = parse(f"{before} {sign} {after}", W)
    assert parse(f"{before} {space} {sign} {after}", W) == one
    assert parse(f"{before} {sign} {space} {after}", W) == one


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        (r"x = d \quad y = n", "these are two statements: give one", "y = n"),
        (r"x = d \qquad y = n", "these are two statements: give one", "y = n"),
        (r"x = (d) \quad y = n", "these are two statements: give one", "y = n"),
        (r"x = |d| \quad |y| = n", "these are two statements: give one", "|y| = n"),
        (r"x = \|s\| \quad \|u\| = n", "these are two statements: give one", r"\|u\| = n"),
        (r"x = s_{1} \quad y = n", "these are two statements: give one", "y = n"),
        (r"x = \sqrt[3]{d} \quad y = n", "these are two statements: give one", "y = n"),
        (r"x = \langle s, u \rangle \quad y = n", "these are two statements: give one", "y = n"),
        (r"s = \begin{pmatrix} 1 \\ 2 \end{pmatrix} \quad y = n", "these are two statements: give one", "y = n"),
        (
            r"x = d, \quad y",
            "a comma separates the entries of a vector in brackets: write 1024 for 1,024, and (1, 2) for a vector",
            ",",
        ),
        (r"x \ne d = n", "≠ in a chain leaves open what is meant", r"\ne"),
        ("x = d ≠ n", "≠ in a chain leaves open what is meant", "≠"),
        ("x != d != n", "≠ in a chain leaves open what is meant", "!="),
        ("(x = d) = n", "a relation inside an expression is not read", "x = d"),
        ("x = (d = n)", "a relation inside an expression is not read", "d = n"),
        ("2(i = j)", "a relation inside an expression is not read", "i = j"),
        ("s_i [i < j]", "a relation inside an expression is not read", "i < j"),
        ("s_i [i = j = 1]", "a relation inside an expression is not read", "i = j = 1"),
        ("s_i (i = 2)", "a relation inside an expression is not read", "i = 2"),
        ("s_i 1[i = 1.5]", "a relation inside an expression is not read", "i = 1.5"),
    ],
)
def test_what_says_more_than_one_thing_is_pointed_at(text, reason, place) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text, W)
    assert caught.value.reason == reason
    assert text[slice(*caught.value.span)] == place


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"x \quad y = n", "x y = n"),
        (r"x = n = x \quad y", "x = n = x y"),
        (r"x = (n \quad y) = n", "x = n y = n"),
        (r"x = |n \quad y| = n", "x = |n y| = n"),
        (r"x = \|n \quad s\| = n", r"x = \|n s\| = n"),
        (r"x = \sqrt[n \quad y]{d} = n", r"x = \sqrt[n y]{d} = n"),
        (r"x = \langle n \quad s, u\rangle = n", r"x = \langle n s, u\rangle = n"),
        (r"A = \begin{pmatrix} n \quad y & 1 \end{pmatrix} = A", r"A = \begin{pmatrix} n y & 1 \end{pmatrix} = A"),
        (r"x = s_{\quad 1} = n", "x = s_1 = n"),
        (r"x = \{n \quad y\} = n", "x = n y = n"),
        ("((x = d))", "x = d"),
        ("([x = d])", "x = d"),
        (r"\{(x = d)\}", "x = d"),
        ("x = {d = n}", "x = d = n"),
        ("x = {(d = n)}", "x = d = n"),
        ("[i = 1]", "i = 1"),
        ("[x = d]", "x = d"),
        ("[i = x]", "i = x"),
        ("([i = j])", r"\delta_{ij}"),
        ("[i = j]", r"\delta_{ij}"),
        ("I(i = j)", r"\delta_{ij}"),
        (r"1\{i = j\}", r"\delta_{ij}"),
        ("1(i = j)", r"\delta_{ij}"),
        (r"\mathbf{1}(i = j)", r"\delta_{ij}"),
        ("s_i [i = 2]", r"s_i \delta_{i,2}"),
        ("s_i [2 = i]", r"s_i \delta_{2,i}"),
        ("x^1[i = j]", r"x^1 \delta_{ij}"),
        ("s_1[i = j]", r"s_1 \delta_{ij}"),
        (r"\frac{1}{2}[i = j]", r"\frac{1}{2}\delta_{ij}"),
        ("s_i [i = j'] s_{j'}", r"s_i \delta_{i,j'} s_{j'}"),
    ],
)
def test_brackets_and_spaces_that_mean_nothing(text, same) -> None:
    assert parse(text, W) == parse(same, W)


def test_a_declared_i_is_no_indicator() -> None:
    with pytest.raises(Unreadable, match="a relation inside"):
        parse("I(i = j)", {**W, "I": "scalar"})
    for text in ("s_i 1[i = j]", "1[i = j] s_i", "s_i [i = j]", "[i = j] s_i", r"s_i \mathbf{1}\{i = j\}"):
        product = parse(text, W)
        assert product.span == (0, len(text)), text
        delta = next(factor for factor in product.factors if isinstance(factor, Delta))  # pyright: ignore
        assert [text[slice(*part.span)] for part in (delta, delta.left, delta.right)] == ["i = j", "i", "j"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"\frac21[i=j] s_j", r"\frac{2}{1} \delta_{ij} s_j"),
        (r"\frac{2}1[i=j] s_j", r"\frac{2}{1} \delta_{ij} s_j"),
        (r"\frac x1[i=j] s_j", r"\frac{x}{1} \delta_{ij} s_j"),
        (r"x^\frac21[i=j] s_j", r"x^{\frac{2}{1}} \delta_{ij} s_j"),
        (r"\sqrt1[i=j] s_j", r"\sqrt{1} \delta_{ij} s_j"),
        (r"\frac12 1[i=j] s_j", r"\frac{1}{2} \delta_{ij} s_j"),
        (r"\frac{x}{2}1[i=j] s_j", r"\frac{x}{2} \delta_{ij} s_j"),
        (r"\frac{1[i=j]}2 s_j", r"\frac{\delta_{ij}}{2} s_j"),
    ],
)
def test_a_one_that_a_fraction_or_a_root_takes_is_not_that_of_an_indicator(text, same) -> None:
    assert parse(text, W) == parse(same, W)


FEW = {"x": "scalar", "n": "natural", "f": "map scalar -> scalar"}


def syntax(text: str) -> Syntax:
    declared = declare(FEW)
    return syntax_tree(tokens(text, declared.types, declared.maps), text)


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [
        (r"\sqrt ", "", 40),
        (r"\sqrt{", "}", 20),
        (r"\frac{1}{", "}", 20),
        ("f(", ")", 40),
        (r"\exp(", ")", 40),
        ("(1+", ")", 40),
        ("n^{", "}", 40),
        (r"\sum_{j=1}^{3} ", "", 39),
    ],
)
def test_how_deep_a_text_may_be(before, after, most) -> None:
    assert parse(before * most + "x" + after * most, FEW).shape == ()
    with pytest.raises(Unreadable) as caught:
        parse(before * (most + 1) + "x" + after * (most + 1), FEW)
    assert caught.value.reason == "this is nested too deeply to read"


@pytest.mark.parametrize(("before", "after"), [(r"\lvert 1+", r"\rvert"), (r"\lVert 1+", r"\rVert")])
def test_how_deep_a_tree_may_be(before, after) -> None:
    assert parse(before * 39 + "x" + after * 39, FEW).shape == ()
    with pytest.raises(Unreadable) as caught:
        parse(before * 40 + "x" + after * 40, FEW)
    assert caught.value.reason == "this is nested too deeply, definitions included"


def test_brackets_around_brackets_cost_nothing() -> None:
    assert syntax("((((x))))").depth == syntax("(x)").depth == 1
    assert syntax("[[[x]]]").depth == 3
    assert syntax("((x + 1))").depth == 1
    assert syntax("x").depth == 0
    assert syntax("(x, (x))").depth == 2


def test_wrappers_are_taken_off() -> None:
    whole = syntax("((x))")
    chain = whole[0]
    assert is_rule(chain, "chain")
    assert is_rule(only(chain), "group")
    assert is_rule(without_brackets(chain), "group")
    inner = without_brackets(chain)
    assert isinstance(inner, Syntax)
    assert inner.span == (1, 4)
    assert is_token(only(inner[1][0][0]), "NAME")
    assert is_rule(only(syntax("x + 1")[0]), "expression")
    assert is_rule(only(syntax("x n")[0]), "product")
    assert is_rule(only(syntax("x^2")[0]), "operand")
    assert is_rule(without_brackets(syntax("[x]")[0]), "group")


def test_spans_hold_all_parts() -> None:
    text = r"x + \frac{n}{2} = (n, x)"
    whole = syntax(text)
    assert whole.span == (0, len(text))
    for part in walk(whole):
        start, stop = span_of(part)
        assert 0 <= start < stop <= len(text)
        if isinstance(part, Syntax):
            assert start == min(span_of(piece)[0] for piece in part)
            assert stop == max(span_of(piece)[1] for piece in part)
            assert len(part) == len(part.parts)
            assert part[0] is part.parts[0]
    assert [str(part) for part in walk(whole) if not isinstance(part, Syntax)] == [
        "x", "+", "frac", "{", "n", "}", "{", "2", "}", "=", "(", "n", ",", "x", ")",
    ]  # fmt: skip


def test_kinds_are_told_apart() -> None:
    leaf = only(syntax("x")[0])
    assert is_token(leaf, "NAME")
    assert is_token(leaf, "NUMBER", "NAME")
    assert not is_token(leaf, "NUMBER")
    assert not is_rule(leaf, "NAME")
    assert not is_token(syntax("x"), "start")
    assert not is_token(None, "NAME")
