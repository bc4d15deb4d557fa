import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError
from qkv.masks import Causal, Dense, Extent

EXTENT = Extent(2, 3, 5, 7)


def whole(mask, extent=EXTENT):
    return mask.tile(extent, (0, extent.len_q), (0, extent.len_k), "cpu")


def flags(*shape):
    return np.random.default_rng(0).random(shape) < 0.5


def test_lists_numpy_and_torch_agree():
    keep = flags(5, 7)
    tiles = [whole(Dense(values)) for values in (keep.tolist(), keep, torch.from_numpy(keep))]
    assert all(np.array_equal(tile[0, 0].numpy(), keep) for tile in tiles)


def test_three_dimensions_are_aligned_at_the_right():
    keep = flags(3, 5, 7)
    assert whole(Dense(keep)).shape == (1, 3, 5, 7)  # heads with four dimensions
    by_batch = Extent(3, 1, 5, 7, dims=3)
    assert whole(Dense(keep), by_batch).shape == (3, 1, 5, 7)  # batch with three
    same = Extent(3, 3, 5, 7)
    assert whole(Dense(keep), same).shape == (1, 3, 5, 7)  # never guessed where both would fit


@pytest.mark.parametrize(
    ("shape", "extent", "names"),
    [
        ((5, 5), EXTENT, "(batch, heads, len_q, len_k) = (2, 3, 5, 7)"),
        ((2, 5, 7), EXTENT, "(batch, heads, len_q, len_k) = (2, 3, 5, 7)"),
        ((2, 2, 3, 5, 7), EXTENT, "(batch, heads, len_q, len_k) = (2, 3, 5, 7)"),
        ((0,), EXTENT, "(batch, heads, len_q, len_k) = (2, 3, 5, 7)"),
        ((1, 1, 5, 7), Extent(2, 1, 5, 7, dims=3), "(batch, len_q, len_k) = (2, 5, 7)"),
        ((1, 5, 7), Extent(1, 1, 5, 7, dims=2), "(len_q, len_k) = (5, 7)"),
    ],
    ids=str,
)
def test_shapes_that_do_not_broadcast(shape, extent, names):
    with pytest.raises(MaskError) as caught:
        Dense(np.ones(shape, dtype=bool)).resolved(extent)
    assert f"keep (of a Dense mask): got shape {shape}, wanted one that broadcasts to {names}" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(5, 7),
        torch.ones(5, 7, requires_grad=True),
        torch.ones(5, 7).byte(),
        np.ones((5, 7)),
        [[0, 1]],
        None,
        "x",
    ],
    ids=["float", "learns", "uint8", "numpy", "list", "None", "text"],
)
def test_only_booleans(wrong):
    with pytest.raises(MaskTypeError) as caught:
        Dense(wrong)
    assert "keep (of a Dense mask): got " in str(caught.value)
    assert "wanted booleans of shape (..., len_q, len_k), True where a query may attend" in str(caught.value)
    assert "masks are bool; use bias= for additive" in str(caught.value)


def test_layouts_do_not_matter():
    keep = flags(7, 10)
    strided = torch.from_numpy(keep).T[::2]
    assert np.array_equal(whole(Dense(strided))[0, 0].numpy(), keep.T[::2])
    wide = torch.from_numpy(flags(5, 1)).expand(2, 3, 5, 7)
    assert torch.equal(whole(Dense(wide)), wide)


def test_shared_cells_count_for_all_that_share_them():
    row = Dense([[True], [False], [True], [True], [False]])
    assert row.population(EXTENT) == 2 * 3 * 3 * 7
    assert row.population(batch=10**5, heads=10**5, len_k=10**15) == 3 * 10**25
    assert Dense(True).population(EXTENT) == 210


def test_keys_only():
    assert Dense(flags(2, 1, 1, 7)).keys_kept(EXTENT).shape == (2, 7)
    assert Dense(flags(7)).keys_kept(EXTENT).shape == (2, 7)
    assert Dense(flags(5, 7)).keys_kept(EXTENT) is None
    assert Dense(flags(3, 1, 7)).keys_kept(EXTENT) is None


def test_no_band_even_if_it_looks_like_one():
    assert Dense(np.tri(5, 7, dtype=bool)).band(EXTENT) is None
    assert (Dense(np.tri(5, 7, dtype=bool)) & Causal(0)).band(EXTENT) is None


def test_repr_abbreviates():
    assert repr(Dense(torch.ones(2, 1, 5, 7).bool())) == "Dense(<bool (2, 1, 5, 7)>)"
