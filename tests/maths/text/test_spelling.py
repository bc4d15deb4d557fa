"""Runs of letters: functions, names, products of letters, and words that are none of these."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.reading import parse
from qkv.maths.verdict import compare

S = {"n": "natural", "d": "natural", "x": "scalar", "s": "vector[n]", "c": "scalar", "i_max": "index[n]"}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("log2(n)", r"\log_2 n"),
        ("log2 n", r"\log_2 n"),
        ("n log10(n)", r"n \log_{10}(n)"),
        (r"\text{log2}(n)", r"\log_2(n)"),
        (r"\operatorname{log10} n", r"\log_{10} n"),
        ("log 2 n", r"\log(2n)"),
        ("O(n lg n)", "O(n log n)"),
        (r"O(n \lg n)", "O(n log n)"),
        ("O(bnd)", "O(b n d)"),
        ("O(bd(n+1))", "O(b d (n+1))"),
        ("O(nd_model)", "O(n d_model)"),
        ("O(seq_len^2 d)", r"O(d\,\text{seq_len}^2)"),
        ("s_{i_max}", r"s_{i_{\max}}"),
    ],
)
def test_spellings_of_one_thing(text, same) -> None:
    assert compare(same, text, S).kind == "equal"


@pytest.mark.parametrize("text", ["lg n", r"\lg n", "lg(n)"])
def test_lg_has_no_base_outside_of_an_order(text) -> None:
    with pytest.raises(Unreadable, match="base 2 to some"):
        parse(text, S)
    assert parse("lg", {"l": "scalar", "g": "scalar"}) == parse("l g", {"l": "scalar", "g": "scalar"})


@pytest.mark.parametrize("word", ["sin", "cos", "tanh", "foo", "sigmoid"])
def test_a_word_before_a_bracket_is_one_word(word) -> None:
    with pytest.raises(IllTyped, match=f"^{word} is not declared"):
        parse(f"{word}(x)", S)
    with pytest.raises(Unreadable, match=f"{word} is no function"):
        parse(f"O(n {word}(n))", S)


def test_functions_are_no_products_of_declared_letters() -> None:
    letters = dict.fromkeys("sincotaxh", "scalar")
    for text in ("sin(x)", "cos x", "tanh(x)"):
        with pytest.raises(IllTyped, match="is not declared"):
            parse(text, letters)
    assert parse("cs(x)", letters) == parse("c s (x)", letters)


def test_a_function_that_is_nearly_spelt_right_is_named() -> None:
    with pytest.raises(IllTyped, match="the function softmax is known"):
        parse("softmx(s)", S)


def test_long_words_in_an_order_are_one_name() -> None:
    names = {part.name for part in parse("O(sequence n)", S).body.factors}  # pyright: ignore[reportAttributeAccessIssue]
    assert names == {"sequence", "n"}
