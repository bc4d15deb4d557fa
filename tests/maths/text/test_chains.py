"""Whole texts: how deep one may be, and what is suggested where one makes no sense."""

import pytest

from qkv.errors import IllTyped, Unreadable
from qkv.maths.reading import parse
from qkv.maths.verdict import compare

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
