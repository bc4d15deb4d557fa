import pickle
import re

import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError, OptionError, OptionTypeError
from qkv.masks import And, Causal, Dense, Extent, Mask, Padding, Predicate, Segments, Window, as_mask


def test_tensors_are_pickled_with_the_mask():
    extent = Extent(2, 1, 3, 5)
    mask = Causal(offset=2) & Padding(lengths=torch.tensor([2, 5]))
    again = pickle.loads(pickle.dumps(mask))
    assert again.population(extent) == mask.population(extent)
    assert repr(again) == repr(mask)


def test_numbers_make_equal_masks_and_tensors_do_not():
    assert Causal(2) & Window(3) == Causal(2) & Window(3)
    assert hash(Causal(2) | Window(3)) == hash(Causal(2) | Window(3))
    assert Causal() != Causal(0)
    assert Causal(2) & Window(3) != Causal(2) | Window(3)
    assert Padding([3]) != Padding([3])
    assert len({Dense([True]), Dense([True])}) == 2


def test_masks_are_immutable():
    for mask in (Causal(), Window(1), Padding([3]), Segments([0]), Dense([True]), Predicate(max), Causal() | Window(1)):
        with pytest.raises(AttributeError, match="immutable"):
            mask.offset = 3
        with pytest.raises(AttributeError, match="immutable"):
            del mask._signature


@pytest.mark.parametrize("other", [None, True, 3, torch.ones(2, dtype=torch.bool), np.ones(2, dtype=bool), "x"])
def test_masks_join_masks_only(other):
    for join in (lambda a, b: a & b, lambda a, b: a | b):
        with pytest.raises(TypeError):
            join(Causal(), other)
        with pytest.raises(TypeError):
            join(other, Causal())


def test_and_or_not_are_refused():
    with pytest.raises(MaskTypeError, match=r"join masks with & and \|"):
        bool(Causal() and Window(3))


def test_as_mask_passes_masks_and_none():
    mask = Causal()
    assert as_mask(mask) is mask
    assert as_mask(None) is None


@pytest.mark.parametrize(
    ("thing", "hint"),
    [
        (torch.ones(2, 3, dtype=torch.bool), "qkv.Dense"),
        (np.ones((2, 3), dtype=bool), "qkv.Dense"),
        ([[True, False]], "qkv.Dense"),
        (torch.zeros(2, 3), "bias="),
        (np.zeros(3), "bias="),
        ([0, 1], "bias="),
        (torch.ones(2, dtype=torch.uint8), "bias="),
        (Causal, "qkv.Causal(...)"),
        ("causal", "qkv.Causal()"),
        (lambda b, h, q, k: True, "qkv.Predicate"),
        (3, "qkv.Causal()"),
        (True, "qkv.Causal()"),
    ],
    ids=lambda given: re.sub(r" at 0x[0-9a-f]+", "", str(given)),
)
def test_as_mask_says_what_to_write(thing, hint):
    with pytest.raises(MaskTypeError) as caught:
        as_mask(thing)
    assert str(caught.value).startswith("mask: got ")
    assert "wanted a mask" in str(caught.value)
    assert hint in str(caught.value).split("Hint: ")[1]


def test_parts_are_flat():
    one, two, three = Causal(0), Window(1, offset=0), Padding([3])
    assert (one & two & three).parts() == (one, two, three)
    assert (one & (two & three)).parts() == (one, two, three)
    assert one.parts() == (one,)
    either = one | two
    assert either.parts() == (either,)
    assert isinstance(one & either, And)
    assert (one & either).parts() == (one, either)


def test_positions_outside_are_refused():
    extent = Extent(2, 3, 5, 7)
    for position in ((2, 0, 0, 0), (0, 3, 0, 0), (0, 0, 5, 0), (0, 0, 0, 7), (0, 0, 0, -1)):
        with pytest.raises(MaskError, match=r"\(2, 3, 5, 7\)"):
            Causal(0).allows(*position, extent)


def test_population_takes_sizes_or_an_extent():
    mask = Causal(offset=2)
    assert mask.population(Extent(2, 3, 5, 7)) == mask.population(2, 3, 5, 7) == 6 * 25
    assert mask.population(len_q=5, len_k=7) == 25
    with pytest.raises(OptionTypeError, match="len_q: got None, wanted the number of positions"):
        mask.population(len_k=7)
    with pytest.raises(OptionError, match="len_k: got -7, wanted a size"):
        mask.population(len_q=5, len_k=-7)
    with pytest.raises(OptionTypeError, match=r"heads: got 1\.5"):
        mask.population(heads=1.5, len_q=5, len_k=7)
    assert Padding(keep=[[True, False, True], [True, True, True]]).population(len_q=5) == 25


def test_tiles_can_be_traced():
    """Compilers see masks that were made outside and masks that are made inside, with sizes that vary."""
    lengths, keep = torch.tensor([3, 7]), torch.arange(14).view(2, 7) % 3 != 0
    queries, keys = torch.arange(10).view(2, 5) // 4, torch.arange(14).view(2, 7) // 4
    dense = torch.arange(105).view(3, 5, 7) % 2 == 0
    outside = Padding(lengths) | (Segments(queries, keys) & Padding(drop=keep)) | Padding(lengths=[2, 5])

    def program(mask, lengths, keep, queries, keys, dense):
        (batch, len_q), len_k = queries.shape, keys.shape[1]
        extent = Extent(batch, dense.shape[0], len_q, len_k)
        inside = Causal(offset=len_k - len_q) & Window(3) & Padding(lengths=lengths) & Padding(keep=keep)
        whole = (inside & Segments(queries, keys)) | Dense(dense) & Predicate(lambda b, h, q, k: (h + q) % 3 == b)
        whole = (mask | whole).resolved(extent)
        return whole.tile(extent, (1, len_q), (2, len_k - 1), dense.device)

    torch._dynamo.reset()
    tensors = (lengths, keep, queries, keys, dense)
    traced = torch.compile(program, fullgraph=True, backend="eager")(outside, *tensors)
    assert torch.equal(traced, program(outside, *tensors))


def test_tiles_can_be_vmapped():
    extent = Extent(1, 1, 5, 7)

    def tile(keep, length):
        mask = (Padding(keep=keep[None]) | Padding(lengths=length[None])) & Causal(offset=2)
        return mask.tile(extent, (0, 5), (0, 7), "cpu")

    keep, lengths = torch.arange(21).view(3, 7) % 2 == 0, torch.tensor([2, 3, 5])
    want = torch.stack([tile(*pair) for pair in zip(keep, lengths, strict=True)])
    assert torch.equal(torch.vmap(tile)(keep, lengths), want)


def test_each_kind_has_its_methods():
    for name in ("_cells", "_allows"):
        with pytest.raises(NotImplementedError):
            getattr(Mask(), name)(*[None] * (1 if name == "_cells" else 5))
