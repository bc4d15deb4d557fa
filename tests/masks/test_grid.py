"""Sizes, positions in torch and numpy, and the arrays that a mask stores."""

import warnings

import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError, OptionError, OptionTypeError
from qkv.masks import Extent
from qkv.masks.grid import (
    Grid,
    NumpyGrid,
    TorchGrid,
    as_booleans,
    as_integer,
    as_integers,
    as_size,
    brief_repr,
    describe,
    is_tensor,
    shape_of,
    to_numpy,
)


def test_extents_are_values():
    assert Extent(2, 3, 5, 7) == Extent(batch=2, heads=3, len_q=5, len_k=7, dims=4)
    assert len({Extent(2, 3, 5, 7), Extent(2, 3, 5, 7)}) == 1
    assert Extent(2, 3, 5, 7).cells == 210
    assert Extent(1, 1, 5, 7, dims=2).scores == (5, 7)
    with pytest.raises(AttributeError):
        Extent(2, 3, 5, 7).batch = 3


def test_positions_are_the_same_in_both_libraries():
    extent, rows, keys = Extent(2, 3, 5, 7), (1, 4), (2, 6)
    for grid in (NumpyGrid(extent, rows, keys), TorchGrid(extent, rows, keys, "cpu")):
        assert tuple(grid.batches().shape) == (2, 1, 1, 1)
        assert tuple(grid.heads().shape) == (1, 3, 1, 1)
        assert grid.query().reshape(-1).tolist() == [1, 2, 3]
        assert grid.key().reshape(-1).tolist() == [2, 3, 4, 5]
        assert grid.shape == (2, 3, 3, 4)
        assert grid.to_array((3, 5)).tolist() == grid.to_array(np.array([3, 5])).tolist() == [3, 5]
        assert grid.to_array(torch.tensor([3, 5])).tolist() == [3, 5]


def test_a_bare_grid_is_of_no_library():
    grid = Grid(Extent(2, 3, 5, 7), (0, 5), (0, 7))
    for ask in (grid.query, lambda: grid.to_array(())):
        with pytest.raises(NotImplementedError):
            ask()


def test_numbers_that_people_type():
    assert as_size("len_q", np.int64(3)) == 3
    assert as_integer("offset", -3) == -3
    with pytest.raises(OptionError, match="len_q: got -1, wanted a size, 0 or more"):
        as_size("len_q", -1)
    for wrong in (True, 1.0, None, "3"):
        with pytest.raises(OptionTypeError, match=r"offset: got .* wanted an integer"):
            as_integer("offset", wrong)


def test_what_is_given_is_copied_unless_it_is_borrowed():
    tensor, array = torch.ones(2, 3).bool(), np.ones((2, 3), dtype=bool)
    assert as_booleans("keep", tensor, "(2, 3)", copy=False) is tensor
    copies = [as_booleans("keep", given, "(2, 3)") for given in (tensor, array)]
    array[:] = False
    tensor.data[:] = False
    assert all(copied.all() for copied in copies)
    assert is_tensor(tensor)
    assert not is_tensor(array)


def test_what_expand_repeats_is_copied_once():
    repeated = torch.ones(1, 3).bool().expand(10**12, 3)
    copied = as_booleans("keep", repeated, "(batch, 3)")
    assert copied.shape == repeated.shape
    assert copied.untyped_storage().nbytes() == 3


def test_empty_lists_have_no_wrong_kind():
    assert as_booleans("keep", [[], []], "(2, 0)").shape == (2, 0)
    assert as_integers("ids", [], "(0,)").dtype == np.int64
    with pytest.raises(MaskTypeError):
        as_booleans("keep", np.zeros(0), "(0,)")


def test_integers_are_not_booleans_and_fit_64_bits():
    for wrong in ([True], [2**63], [2**70], [1.0], torch.ones(2).bool(), torch.ones(2).to(torch.uint32), "3"):
        with pytest.raises(MaskTypeError, match="wanted integers of shape"):
            as_integers("ids", wrong, "(len,)")
    assert as_integers("ids", np.array([255], dtype=np.uint8), "(len,)").tolist() == [255]


def test_ragged_lists():
    with pytest.raises(MaskError, match="a list whose rows have different lengths"):
        as_integers("ids", [[1], [1, 2]], "(len,)")


def test_nested_tensors():
    with warnings.catch_warnings(action="ignore"):  # a prototype, says torch
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(MaskTypeError, match="nested tensor, wanted an ordinary"):
        as_booleans("keep", nested, "(2, 3)")


def test_words():
    assert describe(torch.zeros(2, 3)) == "a torch.float32 tensor of shape (2, 3)"
    assert describe([[True]]) == "bool values of shape (1, 1)"
    assert describe("x" * 99).endswith("...")
    assert brief_repr(tuple(range(9))) == "<9 integers>"
    assert brief_repr(torch.zeros(2, 3).bool()) == "<bool (2, 3)>"
    assert shape_of((1, 2, 3)) == (3,)


def test_tensors_that_require_gradients_are_read():
    assert to_numpy(torch.zeros(3, requires_grad=True)).tolist() == [0, 0, 0]
