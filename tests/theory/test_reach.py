"""Reach: masks against sets, stacks against masks, and wrong statements refuted."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.theory.reach import (
    any_key_can_win,
    anywhere,
    apart,
    attained,
    bound,
    causal,
    fields,
    figure,
    one_layer,
    overlapping,
    paths,
    same_in_every_layer,
    shifted,
    softmax_reaches_all,
    spread,
    stack,
)


@st.composite
def patterns(draw):
    length, heads, layers = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    looks = st.lists(st.integers(0, length - 1), min_size=length, max_size=length)
    return [[draw(looks) for _ in range(heads)] for _ in range(layers)]


@given(patterns())
def test_fields_are_the_ends_of_all_paths_and_never_more_than_the_bound(given_patterns) -> None:
    length, heads, layers = len(given_patterns[0][0]), len(given_patterns[0]), len(given_patterns)
    for i, bits in enumerate(fields(given_patterns)):
        ends = set()
        for turns in product(range(heads + 1), repeat=layers):  # heads, or the residual
            place = i
            for layer, turn in zip(reversed(given_patterns), turns, strict=True):
                place = place if turn == heads else layer[turn][place]
            ends.add(place)
        assert {j for j in range(length) if bits >> j & 1} == ends
        assert len(ends) <= min(length, (heads + 1) ** layers)


def test_statements_that_are_wrong_are_refuted() -> None:
    assert one_layer((2, 3)).kind == "proved"
    assert one_layer((2, 3), factor=0).kind == "refuted"
    assert same_in_every_layer(4).kind == "proved"
    assert same_in_every_layer(4, most=lambda layers: 2**layers).kind == "refuted", "2ⁿ needs layers that differ"
    assert attained(lambda length, heads, layers: shifted(length, range(1, heads + 1), layers)).kind == "refuted"
    assert causal().kind == overlapping().kind == "tested"
    assert overlapping(3).kind == "refuted", "three positions are not enough to tell"


def test_a_stack_that_looks_elsewhere_is_refuted() -> None:
    looks = apart(7, 1, 2)
    assert stack(looks, 0, "as said").kind == "tested"
    assert stack(looks, 0, "more expected", expected=[2**7 - 1] * 7).kind == "refuted"
    assert stack(looks, 0, "fewer expected", expected=fields(looks[:1])).kind == "refuted"


def test_argmax_does_not_reach_all_by_derivatives_and_small_changes_do_not_matter() -> None:
    assert softmax_reaches_all(0).kind == "tested"
    assert softmax_reaches_all(0, similarity=qkv.Argmax()).kind == "refuted"
    assert any_key_can_win(0).kind == "tested"
    assert any_key_can_win(0, by=1e-9).kind == "refuted"


def test_figure_has_the_bound_and_the_cap() -> None:
    svg = figure(length=40, layers=4, draws=3)
    assert "bound (k+1)ⁿ" in svg
    assert "all 40 positions" in svg


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99), st.booleans(), st.data())
def test_paths_end_in_the_field_and_are_as_many_as_the_bound(length, heads, layers, seed, residual, data) -> None:
    looks = anywhere(length, heads, layers, seed)
    output = data.draw(st.integers(0, length - 1))
    counts = paths(looks, output, residual)
    assert [sum(row) for row in counts] == [bound(heads, n, residual) for n in range(layers + 1)]
    for below in range(1, layers + 1):
        bits = fields(looks[layers - below :], residual)[output]
        assert [count > 0 for count in counts[below]] == [bool(bits >> j & 1) for j in range(length)]


@pytest.mark.parametrize("residual", [True, False])
def test_what_is_spread_attains_the_bound_everywhere(residual: bool) -> None:
    for length, heads, layers in product((2, 5, 17, 32), (1, 2, 3, 4), (1, 2, 3, 6)):
        most = bound(heads, layers, residual)
        found = fields(spread(length, heads, layers, residual), residual)
        assert {bits.bit_count() for bits in found} == {min(length, most)}
        causal = fields(spread(length, heads, layers, residual, wrapped=False), residual)
        assert [bits.bit_count() for bits in causal] == [min(i, most) for i in range(1, length + 1)]
