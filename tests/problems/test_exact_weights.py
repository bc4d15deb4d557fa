"""Weights in fractions against qkv's own in float64."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv.problems.exact import exact, times, transposed
from qkv.problems.exact_weights import hardest, raised, rectified, shares, sums

SMALL = st.integers(-4, 4)


def rows(count: int, wide: int):
    return st.lists(st.lists(SMALL, min_size=wide, max_size=wide), min_size=count, max_size=count)


@given(rows(3, 2), rows(5, 2), st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_fractions_are_what_attention_computes(q, k, seen) -> None:
    query, key = exact(q), exact(k)
    scores = times(query, transposed(key))
    positive = times(rectified(query), transposed(rectified(key)))
    for weights, similarity in (
        (hardest(scores, seen), qkv.Argmax()),
        (shares(raised(scores, 2, Fraction(1, 2)), seen), qkv.Polynomial(2, 0.5)),
        (shares(raised(scores, 0, Fraction(0)), seen), qkv.Polynomial(0, 0.0)),
        (shares(positive, seen), qkv.FeatureMap(qkv.features.relu)),
    ):
        a, b = (torch.tensor(each, dtype=torch.float64) for each in (q, k))
        mask = qkv.Dense(torch.tensor(seen))
        _, wanted = qkv.attention(a, b, b, similarity=similarity, mask=mask, return_weights=True)
        assert [[float(each) for each in row] for row in weights] == pytest.approx(wanted.numpy(), abs=1e-12)


def test_a_sum_that_vanishes_leaves_no_weights() -> None:
    row = exact([[3, -3]])
    assert sums(row, [[True, True]]) == (0,)
    assert shares(row, [[True, True]]) == exact([[0, 0]])
    assert shares(row, [[True, False]]) == exact([[1, 0]])
    assert hardest(row, [[False, False]]) == exact([[0, 0]])
