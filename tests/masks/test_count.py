import subprocess
import sys

import numpy as np
import pytest

from qkv.errors import MaskError
from qkv.masks import Causal, Extent, Or, Padding, Predicate, Segments, Window
from qkv.masks.count import alternatives, blocks


def test_packed_documents_are_rectangles():
    ids = np.repeat(np.arange(1000), 1000)
    assert Segments(ids).population() == 1000 * 1000**2
    assert (Segments(ids) & Causal()).population() == 1000 * 1000 * 1001 // 2


def test_paddings_with_holes_are_rectangles():
    keep = np.arange(10**5) % 1000 != 0
    n = 10**5
    left_out = sum(n - j for j in range(0, n, 1000))
    assert (Causal() & Padding(keep=[keep])).population(len_q=n) == n * (n + 1) // 2 - left_out


def test_many_small_runs_are_counted_one_by_one():
    ids = np.arange(3000) % 2
    want = sum((i // 2) + 1 for i in range(3000))
    assert (Segments(ids) & Causal()).population() == want


def test_many_alternatives_are_counted_one_by_one():
    either = Or(*(Window(0, 0, offset=step) for step in range(-8, 8, 2)))
    assert alternatives(either) is None
    assert either.population(len_q=11, len_k=13) == sum(max(0, min(11, 13 - o) - max(0, -o)) for o in range(-8, 8, 2))
    assert alternatives(Causal(0) & (Window(1) | Window(2)) & (Causal(1) | Causal(2))) is not None
    assert alternatives(Or(Causal(0), either)) is None
    assert alternatives(Causal(0) & either & either) is None


def test_counting_one_by_one_has_an_end():
    with pytest.raises(MaskError, match=r"to count one by one\. Hint: Causal, Window, Padding"):
        Predicate(lambda b, h, q, k: q == k).population(len_q=10**6, len_k=10**6)


@pytest.mark.parametrize(
    "extent", [Extent(2, 3, 5, 7), Extent(1, 1, 5000, 3000), Extent(10**4, 10**3, 3, 2), Extent(0, 1, 2, 3)]
)
def test_blocks_cover_everything_once(extent):
    assert sum((i1 - i0) * (j1 - j0) for (i0, i1), (j0, j1) in blocks(extent)) == extent.len_q * extent.len_k


def test_torch_is_not_needed():
    code = """
import sys
from qkv.masks import *
masks = [Causal(), Window(2), Padding(lengths=[3]), Padding(keep=[True, False, True, False, True]),
         Segments([0, 0, 1, 1, 1]), Dense([[True, False, True, True, True]]), Predicate(lambda b, h, q, k: q % 2 == k)]
extent = Extent(1, 1, 5, 5)
for mask in masks:
    joined = mask & (Causal() | Window(1))
    for each in (mask, joined):
        each.population(extent), each.lint(extent), each.band(extent), each.allows(0, 0, 0, 0, extent)
        str(each), each._repr_html_()
assert "torch" not in sys.modules, "torch was loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
