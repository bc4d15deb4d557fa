"""What was written before anybody asks what it means: spans, wrappers, depths."""

import pytest

from qkv.errors import Unreadable
from qkv.maths.parsing.grammar import Syntax, is_rule, is_token, only, span_of, syntax_tree, walk, without_brackets
from qkv.maths.parsing.parse import parse, tokens
from qkv.maths.types import declare

S = {"x": "scalar", "n": "natural", "f": "map scalar -> scalar"}


def syntax(text: str) -> Syntax:
    declared = declare(S)
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
    assert parse(before * most + "x" + after * most, S).shape == ()
    with pytest.raises(Unreadable) as caught:
        parse(before * (most + 1) + "x" + after * (most + 1), S)
    assert caught.value.reason == "this is nested too deeply to read"


@pytest.mark.parametrize(("before", "after"), [(r"\lvert 1+", r"\rvert"), (r"\lVert 1+", r"\rVert")])
def test_how_deep_a_tree_may_be(before, after) -> None:
    assert parse(before * 39 + "x" + after * 39, S).shape == ()
    with pytest.raises(Unreadable) as caught:
        parse(before * 40 + "x" + after * 40, S)
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
