import numpy as np
import pytest
import torch

from qkv.errors import MaskError, OptionError
from qkv.masks import Causal, Extent, Padding, cross, decoder, encoder

KEEP = np.array([[False, False, True, True, True], [True, True, True, True, True]])


@pytest.mark.parametrize("recipe", [encoder, cross])
def test_padding_only(recipe):
    extent = Extent(2, 3, 7, 5)
    assert recipe() is None
    assert recipe([3, 5]).population(extent) == 3 * 7 * 8
    assert recipe(keep=KEEP).population(extent) == recipe(drop=~KEEP).population(extent) == 3 * 7 * 8
    assert isinstance(recipe(lengths=torch.tensor([3, 5])), Padding)
    with pytest.raises(OptionError, match="exactly one"):
        recipe([3, 5], keep=KEEP)


def test_a_decoder_needs_no_right_padding():
    assert decoder() == Causal()
    assert decoder([3, 5]) == Causal()
    assert decoder(torch.tensor([3, 5]), offset=2) == Causal(offset=2)
    with pytest.raises(MaskError):
        decoder([3.5, 5])
    with pytest.raises(OptionError, match="exactly one"):
        decoder([3, 5], drop=KEEP)


def test_real_queries_see_the_same_with_and_without_right_padding():
    extent, lengths = Extent(2, 1, 5, 5), [3, 5]
    alone, joined = (m.tile(extent, (0, 5), (0, 5), "cpu") for m in (decoder(lengths), Causal() & Padding(lengths)))
    for row, length in enumerate(lengths):
        assert torch.equal(alone.expand(2, 1, 5, 5)[row, 0, :length], joined[row, 0, :length])


def test_left_padding_is_joined():
    extent = Extent(2, 3, 5, 5)
    for mask in (decoder(keep=KEEP), decoder(drop=~KEEP)):
        assert mask.parts()[0] == Causal()
        assert mask.population(extent) == 3 * (6 + 15)
