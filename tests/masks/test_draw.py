import re
from xml.dom.minidom import parseString

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import MaskError, OptionError, OptionTypeError
from qkv.masks import Causal, Dense, Extent, Padding, Predicate, Segments, Window

some = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def grid_of(picture):
    """The signs, row by row."""
    rows = [line for line in picture.splitlines() if re.match(r"(query|     ) +\d+ [■·▒]", line)]
    return ["".join(sign for sign in line if sign in "■·▒") for line in rows]


@pytest.mark.slow
@some
@given(len_q=st.integers(1, 90), len_k=st.integers(1, 200), offset=st.integers(-9, 99), width=st.integers(24, 100))
def test_pictures_fit_and_count(len_q, len_k, offset, width):
    mask = Causal(offset)
    picture = mask.draw(len_q, len_k, width=width)
    rows = grid_of(picture)
    assert all(len(line) <= width for line in picture.splitlines())
    assert 0 < len(rows) <= 32
    assert len({len(row) for row in rows}) == 1
    assert 0 < len(rows[0]) <= 32
    flat = " ".join(picture.split())
    assert f"{mask.population(len_q=len_q, len_k=len_k)} of {len_q * len_k} cells attend." in flat
    assert "True: the query attends to the key" in flat
    assert ("Each sign stands for" in flat) == (len(rows) < len_q or len(rows[0]) < len_k)


@some
@given(len_q=st.integers(33, 90), len_k=st.integers(33, 200), data=st.data())
def test_blocks_are_full_empty_or_partly(len_q, len_k, data):
    left, offset = data.draw(st.integers(0, 99)), data.draw(st.integers(-9, 99))
    mask = Causal(offset) & Window(left)
    cells = mask.tile(Extent(1, 1, len_q, len_k), (0, len_q), (0, len_k), "cpu")[0, 0].numpy()
    tall, wide = -(-len_q // 32), -(-len_k // 32)
    for r, row in enumerate(grid_of(mask.draw(len_q, len_k))):
        for c, sign in enumerate(row):
            block = cells[r * tall : (r + 1) * tall, c * wide : (c + 1) * wide]
            assert sign == ("■" if block.all() else "▒" if block.any() else "·")


def test_a_picture():
    assert (Causal(offset=1) & Window(left=1)).draw(3, 5) == (
        "Causal(offset=1) & Window(left=1)\n"
        "        key\n"
        "        0 1 2 3 4\n"
        "query 0 ■ ■ · · ·\n"
        "      1 · ■ ■ · ·\n"
        "      2 · · ■ ■ ·\n"
        "■ True: the query attends to the key   · False: it does not\n"
        "6 of 15 cells attend."
    )


def test_sizes_that_the_mask_knows():
    assert "36 of 64 cells attend; an example of 8 × 8, as the mask fits any size." in " ".join(str(Causal()).split())
    assert "of 15 cells attend." in str(Dense(np.tri(3, 5, dtype=bool)))
    assert "of 9 cells attend." in str(Segments([0, 1, 1]))
    assert "9 of 15 cells attend in batch row 0 of 2." in Padding(keep=[[True] * 3 + [False] * 2] * 2).draw(3)
    assert "15 of 25 cells attend in batch row 1 of 2" in Padding([5, 3]).draw(batch=1)
    assert "of 49 cells attend." in " ".join(str(Causal() & Padding(keep=np.ones(7, dtype=bool))).split())
    assert "in batch row 1 of 2, head 2 of 3." in Dense(np.ones((2, 3, 5, 7), dtype=bool)).draw(batch=1, head=2)


def test_which_row_and_head_is_drawn():
    keep = torch.zeros(2, 3, 5, 7, dtype=torch.bool)
    keep[1, 2] = True
    assert "35 of 35" in Dense(keep).draw(batch=1, head=2)
    assert "0 of 35" in Dense(keep).draw(batch=1, head=1)
    by_head = Predicate(lambda b, h, q, k: h == 3)
    assert "64 of 64" in by_head.draw(head=3)
    assert "0 of 64" in by_head.draw(head=4)
    with pytest.raises(OptionError, match="batch: got 2, wanted below 2"):
        Dense(keep).draw(batch=2)


def test_a_large_mask_of_every_kind_counts_in_blocks():
    n = 3000
    mask = Causal() & Predicate(lambda b, h, q, k: (q // 100) == (k // 100))
    assert f"{30 * 100 * 101 // 2} of {n * n} cells attend" in mask.draw(n, n)
    with pytest.raises(MaskError, match="to draw"):
        mask.draw(10**6, 10**6)
    assert "not drawn" in str(Segments(np.arange(20000)))


def test_wrong_sizes():
    with pytest.raises(OptionError, match="width: got 10, wanted 24 columns or more"):
        Causal().draw(width=10)
    with pytest.raises(OptionTypeError, match=r"len_q: got 2\.5"):
        Causal().draw(2.5)
    with pytest.raises(MaskError, match="len_q=3 and len_k=5"):
        Causal().draw(3, 5)
    with pytest.raises(MaskError, match=r"\(5, 7\)"):
        Dense(np.ones((5, 7), dtype=bool)).draw(3, 7)


def test_print_never_fails():
    assert "not drawn: Causal mask: got len_q=3 and len_k=5" in str(Causal() & Dense(np.ones((3, 5), dtype=bool)))
    assert "not drawn" in str(Padding(lengths=[]))
    assert "0 of 0 cells attend." in Causal().draw(0, 0)


@pytest.mark.parametrize(
    "mask",
    [Causal(), Padding(lengths=[70, 3]), Predicate(lambda b, h, q, k: q == k), Causal() & Segments([0, 1, 1])],
    ids=str,
)
def test_html_is_accessible(mask):
    document = parseString(mask._repr_html_())
    svg = document.getElementsByTagName("svg")[0]
    assert svg.getAttribute("role") == "img"
    assert "cells attend" in svg.getAttribute("aria-label")
    title = svg.getElementsByTagName("title")[0].firstChild.data
    assert title.startswith(repr(mask))
    signs = document.getElementsByTagName("path")
    assert sum(path.getAttribute("d").count("M") for path in signs) <= 32 * 32
    assert "full cells attend (True)" in document.getElementsByTagName("figcaption")[0].toxml()


def test_html_escapes_everything():
    def rule(b, h, q, k):
        return q >= k

    rule.__qualname__ = '<script>alert("x")</script>'
    for mask in (Predicate(rule), Predicate(rule) & Causal() & Dense(np.ones((3, 5), dtype=bool))):
        assert "<script>" not in mask._repr_html_()
        parseString(mask._repr_html_())
