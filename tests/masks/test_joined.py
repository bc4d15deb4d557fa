"""Masks joined by & and |, and the masks of the usual transformers."""

import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError, OptionError
from qkv.masks import And, Causal, Dense, Extent, Or, Padding, Window, cross, decoder, encoder

EXTENT = Extent(2, 3, 5, 7)


@pytest.mark.parametrize("kind", [And, Or])
def test_no_masks_or_other_things_are_refused(kind):
    with pytest.raises(OptionError, match=f"{kind.__name__}: got no masks, wanted at least one"):
        kind()
    with pytest.raises(MaskTypeError, match=f"{kind.__name__}: got None, wanted masks"):
        kind(Causal(), None)
    with pytest.raises(MaskTypeError, match="Dense"):
        kind(Causal(), torch.ones(5, 7).bool())


@pytest.mark.parametrize("kind", [And, Or])
def test_one_part_is_that_part(kind):
    one = kind(Causal(2))
    assert repr(one) == f"{kind.__name__}(Causal(offset=2))"
    assert one.band(EXTENT) == Causal(2).band(EXTENT)
    assert one.population(EXTENT) == Causal(2).population(EXTENT)


def test_signatures_tell_structure_and_not_contents():
    one, other = (Causal(2) & (Padding([a, 5]) | Dense([True])) for a in (3, 4))
    assert one.signature() == other.signature()
    assert one.signature() != (Causal(1) & (Padding([3, 5]) | Dense([True]))).signature()
    assert (Causal(2) & Window(1)).signature() != (Causal(2) | Window(1)).signature()
    assert one.signature() is one.signature()


def test_nothing_to_resolve_is_the_mask_itself():
    mask = Causal(2) & (Window(1, offset=0) | Padding([3, 5])) & Dense(torch.ones(5, 7).bool())
    assert mask.resolved(EXTENT) is mask
    loose = Causal() & Padding([3, 5])
    assert loose.resolved(Extent(2, 3, 5, 5)).parts()[1] is loose.parts()[1]


def test_every_part_is_checked():
    mask = Or(Causal(0), And(Window(1, offset=0), Padding(torch.tensor([3, 8]))))
    mask.resolved(EXTENT)
    with pytest.raises(ValueError, match=r"lengths\[1\]"):
        mask.check_contents(EXTENT)
    with pytest.raises(ValueError, match="2 of them"):
        mask.resolved(Extent(3, 3, 5, 7))


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
