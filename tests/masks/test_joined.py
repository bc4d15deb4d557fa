import pytest
import torch

from qkv.errors import MaskTypeError, OptionError
from qkv.masks import And, Causal, Dense, Extent, Or, Padding, Window

EXTENT = Extent(2, 3, 5, 7)


@pytest.mark.parametrize("kind", [And, Or])
def test_of_nothing_or_of_strangers(kind):
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
