"""A claim is supported by its quote where it adds nothing and leaves nothing out, however it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.reading.support import glyphs, located, supported

WRITTEN_OTHERWISE = [
    (r"\frac{1}{\sqrt{d}}", "the scale is 1/√d"),
    ("1/sqrt(d)", "1\n√d"),
    (r"\mu^T\mu", "E[q⊤k] = μ⊤μ"),
    (r"\|\mu\|^2", "‖μ‖²"),
    ("O(N^2 D)", r"\mathcal{O}(N^2 D)"),
    ("O(N^2 D)", "O(N²·D)"),
    ("time = O(N^2 D); space = O(N^2)", "time O(N^2 D) and space O(N^2)"),
    ("d_model/h", "dmodel / h"),
    ("d_{model}", "d_model"),
    ("sqrt(d)", "the square root of d"),
    ("d sigma^4", r"$d\,\sigma^4$"),
    ("[[1, 0], [0, 1]]", r"\begin{bmatrix}1 & 0\\0 & 1\end{bmatrix}"),
    ("O(b d^2 + b n d)", "O(bd2 + bnd)"),
    ("1024", "1,024 bytes"),
    ("(q^T k + 1)^2", "(qT k + 1)2"),
    ("q^T k", "q>k"),
    (r"\sum_{j=1}^n a_j v_j", "∑_{j=1}^{n} a_j v_j"),
    ("-1/2", "−1/2"),
    ("2 d", "twice d"),
    ("x^{-1}", "x⁻¹"),
    ("d", "so the answer is **d**."),
    (r"softmax(Q K^T/\sqrt{d}) V", "softmax(QKᵀ/√d)V"),
    ("O(n_t n_s d_head h)", "O(n_t · n_s · d_head · h)"),
    ("phi(Q)(phi(K)^T V)", "φ(Q)(φ(K)^T V)"),
    ("E[q^T k] = mu^T mu", r"\mathbb{E}[q^\top k] = \mu^\top\mu"),
    ("[0.5, 0.25]", "(0.5, 0.25)"),
    ("0", "zero"),
    ("O(b d^2 + b d n)", "O(bd + bdn)\n2"),
    ("(q^T k)^2", "(q k)\n⊤\n2"),
    ("[1, 4, 3]", "V =\n1\n4\n3"),
    (r"q \otimes q", "q⊗q"),
]
ADDED = [("d^2", "d"), ("d^2", "2d"), ("b d^2", "b^2 d"), ("sqrt(d)", "d"), ("sqrt(2) d", "d"), ("2 d", "d"),
         ("-1", "1"), ("1/d", "d"), ("d mu^2", "d mu"), ("q^T k", "q k"), ("0.5", "1/2"), ("n d", "d"), ("d d", "d"),
         ("64", "d"), ("mu", "the mean is d"), ("O(b^2 d^2 + b d n)", "O(bd + bdn)\n2")]  # fmt: skip
LEFT_OUT = [("d", "2d"), ("d", "√d"), ("d", "d^2"), ("d", "d/2"), ("O(b d + b d n)", "O(bd + bdn)\n2"), ("d", "E = 2d")]


@pytest.mark.parametrize(("claim", "quote"), WRITTEN_OTHERWISE)
def test_another_way_to_write_a_formula_is_supported(claim, quote):
    assert supported(claim, quote)


@pytest.mark.parametrize(("claim", "quote"), [*ADDED, *LEFT_OUT])
def test_what_is_added_or_left_out_is_not_supported(claim, quote):
    assert not supported(claim, quote)


FACTORS = st.sampled_from(["d", "n", "b", "2", "3", r"\sqrt{d}", "d^2", r"\sigma^4", "n_s"])


@given(st.lists(FACTORS, min_size=1, max_size=4), FACTORS)
def test_a_product_supports_itself_and_no_product_with_a_factor_more(factors, more):
    quote = r" \cdot ".join(factors)
    assert supported(" ".join(factors), quote)
    assert not supported(" ".join([*factors, more]), quote)
    assert glyphs(quote) == glyphs(" ".join(factors))


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_answered(claim, quote):
    assert isinstance(supported(claim, quote), bool)
    assert supported(claim, claim) in (True, False)


@given(st.text("ab \n", max_size=30), st.text("ab \n[.]", max_size=12))
def test_a_quote_is_found_where_it_stands(text, quote):
    span = located(quote, text)
    if span is None:
        assert not quote.strip() or quote not in text
    elif "[...]" not in quote:
        assert text[slice(*span)].split() == quote.split()


def test_a_quote_may_have_other_spaces_and_leave_out_its_middle():
    assert located("a b", "x a\n  b") == (2, 7)
    assert located("a [...] c", "a b c c") == (0, 5)
    assert located("d", "d d", [(0, 1)]) == (2, 3)
    assert located("d", "d", [(0, 1)]) == (0, 1)
    assert located("e", "d") is None
