import numpy as np
import pytest
import torch

from qkv.errors import OptionError, OptionTypeError
from qkv.masks import Extent
from qkv.masks.grid import Grid, NumpyGrid, TorchGrid, as_integer, as_size


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
