import numpy as np
import pytest
import torch

from qkv.masks import Causal, Dense, Extent, Padding, Segments, Window

REAL = np.arange(7) < np.array([[7], [3], [5]])  # right padding, as people have it
LOWER, UPPER = np.tri(5, dtype=bool), ~np.tri(5, dtype=bool)


def one(sentences, *words):
    found = [s for s in sentences if all(word in s for word in words)]
    assert len(found) == 1, sentences
    assert found[0].endswith(".")
    assert found[0][0].isupper() or found[0][0].isdigit()


@pytest.mark.parametrize("hold", [np.array, torch.from_numpy])
def test_padding_of_the_opposite_polarity(hold):
    one(Padding(keep=hold(~REAL)).lint(), "looks like key_padding_mask (True = ignore)", "use drop=")
    one(Padding(drop=hold(REAL)).lint(), "looks like an attention mask (True = attend)", "use keep=")
    assert Padding(keep=hold(REAL)).lint() == []
    assert Padding(drop=hold(~REAL)).lint() == []


def test_left_padding_with_a_full_row_gives_no_warning():
    assert Padding(keep=REAL[:, ::-1]).lint() == []
    one(Padding(keep=REAL[1:, ::-1]).lint(), "unless padding is on the left")


def test_inside_a_join():
    one((Causal() & Padding(keep=~REAL)).lint(Extent(3, 2, 7, 7)), "use drop=")


def test_the_upper_triangle():
    one(Dense(UPPER).lint(), "nn.Transformer's mask (True = not allowed)", "Dense(~mask) or Causal()")
    one(Dense(torch.from_numpy(UPPER)[None, None].expand(2, 3, 5, 5)).lint(), "nn.Transformer's mask")
    one(Dense(~np.tri(5, 7, 2, dtype=bool)).lint(), "nn.Transformer's mask", "Causal(offset=2)")


def test_a_causal_mask_written_out():
    assert Dense(LOWER).lint() == [
        "This Dense mask is causal: use Causal() instead, which stores nothing and skips what is masked."
    ]
    one(Dense(np.tri(5, 7, 2, dtype=bool)).lint(), "Causal(offset=2)")
    one(Dense(np.tri(5, 7, 0, dtype=bool)).lint(), "Causal(offset=0)")
    other = LOWER.copy()
    other[4, 0] = False
    assert Dense(other).lint() == []
    assert Dense(np.stack([LOWER, other])).lint() == []


def test_queries_that_attend_to_nothing():
    one(Causal(offset=-2).lint(Extent(2, 3, 7, 5)), "12 of 42 queries attend to nothing", "wrong offset")
    one(Padding(lengths=[0, 3]).lint(Extent(2, 1, 5, 7)), "5 of 10 queries")
    one(Padding(lengths=[0, 3]).lint(), "queries attend to nothing")
    assert Causal().lint(Extent(2, 3, 5, 5)) == []


def test_masks_that_allow_everything():
    everything = "This mask allows everything: leave it out (mask=None) and save the work."
    assert Window().lint(Extent(2, 3, 5, 5)) == [everything]
    assert Padding([7, 7]).lint(Extent(2, 3, 5, 7)) == [everything]
    assert Causal(offset=10**15).lint(Extent(1, 1, 10**15, 10**15)) == [everything]
    assert Dense(np.ones((5, 7), dtype=bool)).lint() == [everything]
    assert Segments([3, 3, 3]).lint() == [everything]


def test_examples_prove_nothing():
    for mask in (Window(), Causal(offset=100), Causal(offset=-1), Padding([5, 5]), Causal() | Padding([3])):
        assert mask.lint() == []


def test_ordinary_masks_are_left_alone():
    for mask in (
        Causal(),
        Window(2),
        Causal() & Window(2),
        Padding([3, 5]),
        Segments([0, 0, 1]),
        Causal() | Padding([3]),
    ):
        assert mask.lint() == []
    assert Causal().lint(Extent(1, 1, 10**15, 10**15)) == []
    assert Causal(0).lint(Extent(2, 3, 0, 5)) == []
    assert Padding(keep=[[True, False]]).lint() == []
    assert Padding(keep=[[True]]).lint() != []
