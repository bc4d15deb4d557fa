import re

import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError, OptionError
from qkv.masks import Band, Causal, Dense, Extent, Padding

EXTENT = Extent(2, 3, 5, 7)
KEEP = np.array([[1, 1, 0, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1]], dtype=bool)


def whole(mask, extent=EXTENT):
    return mask.tile(extent, (0, extent.len_q), (0, extent.len_k), "cpu")


def test_lists_numpy_and_torch_agree():
    lengths = [[3, 5], (3, 5), np.array([3, 5], dtype=np.int32), torch.tensor([3, 5], dtype=torch.int16)]
    tiles = [whole(Padding(values)) for values in (*lengths, [torch.tensor(3), torch.tensor(5)])]
    assert all(torch.equal(tile, tiles[0]) for tile in tiles)
    assert tiles[0].shape == (2, 1, 1, 7)
    tiles = [whole(Padding(keep=values)) for values in (KEEP.tolist(), KEEP, torch.from_numpy(KEEP))]
    tiles += [whole(Padding(drop=values)) for values in ((~KEEP).tolist(), ~KEEP, torch.from_numpy(~KEEP))]
    assert all(np.array_equal(tile[:, 0, 0].numpy(), KEEP) for tile in tiles)


def test_a_batch_of_one_needs_no_list():
    one = Extent(1, 3, 5, 7)
    for values in (3, np.int64(3), torch.tensor(3), [3]):
        assert Padding(values).population(one) == 3 * 5 * 3
        with pytest.raises(MaskError, match="1 of them, wanted one for each of 2 batch rows"):
            Padding(values).resolved(EXTENT)
    assert Padding(keep=KEEP[0]).population(one) == Padding(drop=~KEEP[:1]).population(one) == 3 * 5 * 3
    with pytest.raises(MaskError, match=r"shape \(7,\), wanted \(batch, len_k\) = \(2, 7\)"):
        Padding(keep=KEEP[0]).resolved(EXTENT)


@pytest.mark.parametrize("given", [{}, {"lengths": [3], "keep": [True]}, {"keep": [True], "drop": [False]}])
def test_exactly_one_way(given):
    with pytest.raises(OptionError) as caught:
        Padding(**given)
    assert f"got {' and '.join(given) or 'none of them'}, wanted exactly one of lengths=" in str(caught.value)
    assert "drop= has True for padding" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        [3.0, 5.0],
        3.0,
        True,
        [True, False],
        np.array([3.5]),
        torch.tensor([3.0]),
        torch.ones(2) > 0,
        "35",
        object(),
        {3: 5},
    ],
    ids=lambda given: re.sub(r" at 0x[0-9a-f]+", "", str(given)),
)
def test_lengths_are_integers(wrong):
    with pytest.raises(MaskTypeError) as caught:
        Padding(lengths=wrong)
    text = str(caught.value)
    assert text.startswith("lengths (of a Padding mask): got ")
    assert "wanted integers of shape (batch,)" in text
    assert "booleans (batch, len_k) go to keep= or drop=" in text


@pytest.mark.parametrize("hold", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_lengths_out_of_range(hold):
    def check(lengths, row, given):
        with pytest.raises(MaskError) as caught:
            mask = Padding(lengths=hold(lengths))
            mask.resolved(EXTENT)
            mask.check_contents(EXTENT)
        assert f"lengths[{row}] (of a Padding mask): got {given}, wanted " in str(caught.value)

    check([3, -1], 1, -1)
    check([8, 3], 0, 8)
    check([7, 2**40], 1, 2**40)
    Padding(lengths=hold([0, 7])).check_contents(EXTENT)
    for wrong in ([3], [3, 5, 7]):
        with pytest.raises(MaskError, match=f"{len(wrong)} of them, wanted one for each of 2 batch rows"):
            Padding(lengths=hold(wrong)).resolved(EXTENT)
    with pytest.raises(MaskError, match=r"shape \(1, 2\), wanted shape \(batch,\)"):
        Padding(lengths=hold([[3, 5]]))


@pytest.mark.parametrize("name", ["keep", "drop"])
@pytest.mark.parametrize(
    "wrong",
    [
        KEEP.astype(int).tolist(),
        KEEP.astype(np.uint8),
        KEEP * 1.0,
        torch.from_numpy(KEEP) * 1.0,
        torch.ones(2, 7).byte(),
        3,
    ],
    ids=["ints", "uint8", "float", "torch float", "torch uint8", "number"],
)
def test_keep_and_drop_are_boolean(name, wrong):
    with pytest.raises(MaskTypeError) as caught:
        Padding(**{name: wrong})
    text = str(caught.value)
    assert text.startswith(f"{name} (of a Padding mask): got ")
    assert "wanted booleans of shape (batch, len_k), True where a " in text
    assert ("ignored" in text) == (name == "drop")
    assert "masks are bool; use bias= for additive" in text


def test_shapes_are_those_of_the_keys():
    for shape in ((2, 5), (7, 2), (1, 7), (3, 7)):
        with pytest.raises(MaskError, match=r"wanted \(batch, len_k\) = \(2, 7\)"):
            Padding(keep=np.ones(shape, dtype=bool)).resolved(EXTENT)
    with pytest.raises(MaskError, match=r"shape \(2, 1, 7\).*Dense takes"):
        Padding(keep=np.ones((2, 1, 7), dtype=bool))
    with pytest.raises(MaskError, match="rows have different lengths"):
        Padding(keep=[[True], [True, False]])


def test_other_layouts_are_refused():
    with pytest.raises(MaskTypeError, match="sparse"):
        Padding(keep=torch.eye(3).bool().to_sparse())
    with pytest.raises(MaskTypeError, match="meta"):
        Padding(keep=torch.ones(2, 3, dtype=torch.bool, device="meta"))


def test_bands_of_runs():
    runs = np.array([[0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]], dtype=bool)
    assert Padding(keep=runs).band(EXTENT) == Band(starts=(1, 0), stops=(3, 0))
    assert Padding(drop=~runs).band(EXTENT) == Band(starts=(1, 0), stops=(3, 0))
    assert Padding(keep=KEEP).band(EXTENT) is None
    assert (Padding(keep=KEEP) & Causal(2)).band(EXTENT) is None
    assert Padding(lengths=[3, 7]).band(EXTENT) == Band(stops=(3, 7))


def test_empty_sequences():
    none = Extent(2, 3, 5, 0)
    assert Padding(keep=[[], []]).population(none) == Padding(lengths=[0, 0]).population(none) == 0
    assert Padding(keep=[]).population(Extent(1, 1, 5, 0)) == 0
    assert Padding(lengths=[]).population(Extent(0, 3, 5, 7)) == 0


def test_contents_are_read_once():
    class Spy(torch.Tensor):
        read = 0

        def tolist(self):
            Spy.read += 1
            return super().tolist()

    mask = Padding(torch.tensor([3, 5]).as_subclass(Spy))
    for _ in range(3):
        mask.check_contents(EXTENT)
        mask.band(EXTENT)
    assert Spy.read == 1


def test_lists_and_arrays_are_copied():
    keep, lengths = KEEP.copy(), [3, 5]
    masks = Padding(keep=keep), Padding(lengths)
    before = [mask.population(EXTENT) for mask in masks]
    keep[:] = False
    lengths[0] = 0
    assert [mask.population(EXTENT) for mask in masks] == before


def test_keys_kept():
    assert np.array_equal(Padding(drop=~KEEP).keys_kept(EXTENT).numpy(), KEEP)
    both = Padding(drop=~KEEP) & Padding(lengths=[2, 5])
    want = KEEP & (np.arange(7) < np.array([[2], [5]]))
    assert np.array_equal(both.keys_kept(EXTENT).numpy(), want)
    assert np.array_equal(Dense(KEEP[:, None, None]).keys_kept(EXTENT).numpy(), KEEP)
    assert (both & Causal(0)).keys_kept(EXTENT) is None
    assert Causal(0).keys_kept(EXTENT) is None


def test_repr_abbreviates():
    assert repr(Padding(lengths=[3, 5])) == "Padding(lengths=[3, 5])"
    assert repr(Padding(lengths=range(11))) == "Padding(lengths=<11 integers>)"
    assert repr(Padding(lengths=torch.tensor([3, 5]))) == "Padding(lengths=<int64 (2,)>)"
    assert repr(Padding(drop=KEEP)) == "Padding(drop=<bool (2, 7)>)"
