"""Seeds are places in a table: none twice, neighbours apart."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest

from qkv.problems.variety import digits


@pytest.mark.parametrize("sizes", [(2,), (3, 5), (3, 135, 4), (5, 56, 6), (38, 4, 8)])
def test_every_place_once(sizes: tuple[int, ...]) -> None:
    found = [digits(seed, *sizes) for seed in range(prod(sizes))]
    assert len(set(found)) == len(found)
    assert all(0 <= digit < size for place in found for digit, size in zip(place, sizes, strict=True))
    assert all(one != two for one, two in pairwise(found))
