"""Paths: their number is the bound, their ends are the fields, and what is spread attains it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.theory.reach import anywhere, bound, fields, paths, spread


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
