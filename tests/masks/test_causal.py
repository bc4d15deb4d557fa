import numpy as np
import pytest
import torch

import qkv
from qkv.errors import MaskError, OptionError, OptionTypeError
from qkv.masks import Causal, Extent, Padding, Window

SQUARE, WIDE, TALL = Extent(2, 3, 5, 5), Extent(2, 3, 5, 7), Extent(2, 3, 7, 5)


def whole(mask, extent):
    return mask.tile(extent, (0, extent.len_q), (0, extent.len_k), "cpu")[0, 0]


def test_without_offset_it_is_the_lower_triangle():
    assert torch.equal(whole(Causal(), SQUARE), torch.ones(5, 5).tril().bool())
    assert Causal().resolved(SQUARE) == Causal(offset=0)


def test_both_readings():
    assert torch.equal(whole(Causal(offset=0), WIDE), torch.ones(5, 7).tril().bool())
    assert torch.equal(whole(Causal(offset=2), WIDE), torch.ones(5, 7).tril(2).bool())
    assert not whole(Causal(offset=-2), TALL)[:2].any()


@pytest.mark.parametrize(("extent", "shift"), [(WIDE, 2), (TALL, -2)])
@pytest.mark.parametrize(
    ("mask", "spelled"),
    [
        (Causal(), "Causal("),
        (Window(left=3), "Window(left=3, "),
        (Window(right=0), "Window(right=0, "),
        (Causal() & Padding([3, 5]), "Causal("),
        (Causal() | Padding([3, 5]), "Causal("),
        (Causal() & Window(3), "Causal("),
    ],
    ids=str,
)
def test_other_lengths_are_refused_with_both_readings(mask, spelled, extent, shift):
    with pytest.raises(MaskError) as caught:
        mask.resolved(extent)
    text = str(caught.value)
    assert f"got len_q={extent.len_q} and len_k={extent.len_k}" in text
    assert "wanted equal lengths or an offset" in text
    assert f"{spelled}offset=0) aligns the first query with the first key (top-left)" in text
    assert f"{spelled}offset={shift}) aligns the last query with the last key (bottom-right)" in text
    for ask in (mask.band, mask.population, lambda e: mask.tile(e, (0, 1), (0, 1), "cpu")):
        with pytest.raises(MaskError):
            ask(extent)


@pytest.mark.parametrize("wrong", [True, 1.0, "1", [1], np.float64(2), np.bool_(True)])
@pytest.mark.parametrize("argument", ["offset", "left", "right"])
def test_numbers_are_integers(argument, wrong):
    kind = Causal if argument == "offset" else Window
    with pytest.raises(OptionTypeError) as caught:
        kind(**{argument: wrong})
    assert str(caught.value) == f"{argument}: got {wrong!r}, wanted an integer."


def test_integers_of_numpy_are_integers():
    assert Causal(np.int32(3)) == Causal(3)
    assert type(Window(np.int64(3)).left) is int


@pytest.mark.parametrize("side", ["left", "right"])
def test_sides(side):
    with pytest.raises(OptionError, match=rf"{side}: got -3, wanted a number of keys, 0 or more. Hint: 0 keeps"):
        Window(**{side: -3})
    alone = Window(left=0, right=0)
    assert torch.equal(whole(alone, SQUARE), torch.eye(5).bool())
    assert whole(Window(**{side: 5}), SQUARE).all()
    for far in (10**9, 2**63, 10**30):
        assert whole(Window(far, far), SQUARE).all()
        assert whole(Window(far, far), SQUARE).shape == (5, 5)
    assert whole(Causal(10**30), WIDE).all()
    assert not whole(Causal(-(10**30)), WIDE).any()


def test_a_window_takes_the_offset_of_the_causal_joined_to_it():
    taken = (Causal(offset=2) & Window(left=1)).resolved(WIDE)
    assert taken == Causal(offset=2) & Window(left=1, offset=2)
    assert (Window(left=1) & Causal(offset=2)).resolved(WIDE) == Window(left=1, offset=2) & Causal(offset=2)
    kept = Causal(offset=2) & Window(left=1, offset=0)
    assert kept.resolved(WIDE) is kept
    assert (Causal() & Window(left=1)).resolved(SQUARE) == Causal(0) & Window(left=1, offset=0)


def test_also_through_or():
    padding = Padding([3, 5])
    nested = Causal(offset=2) & (Window(left=1) | padding)
    assert nested.resolved(WIDE) == Causal(offset=2) & (Window(left=1, offset=2) | padding)
    deeper = Causal(offset=2) & (padding | (padding & (Window(left=1) | padding)))
    assert "Window(left=1, offset=2)" in repr(deeper.resolved(WIDE))
    turned = (Causal(offset=2) | padding) & Window(left=1)
    assert turned.resolved(WIDE) == (Causal(offset=2) | padding) & Window(left=1, offset=2)


def test_alternatives_are_not_joined_by_and():
    with pytest.raises(MaskError, match="Window mask: got len_q=5 and len_k=7"):
        (Causal(offset=2) | Window(left=1)).resolved(WIDE)
    assert (Causal(offset=2) | Window(left=1)).resolved(SQUARE) == Causal(2) | Window(left=1, offset=0)
    apart = Padding([3, 5]) & ((Causal(0) & Window(left=1)) | (Causal(2) & Window(right=3)))
    resolved = repr(apart.resolved(WIDE))
    assert "Window(left=1, offset=0)" in resolved
    assert "Window(right=3, offset=2)" in resolved


@pytest.mark.parametrize(
    "mask",
    [
        Causal(0) & Causal(2) & Window(left=1),
        Causal(0) & ((Causal(2) & Window(left=1)) | Padding([3, 5])),
        Causal(0) & (Causal(2) | Padding([3, 5])) & Window(left=1),
    ],
    ids=str,
)
def test_two_offsets_for_a_window_are_refused(mask):
    with pytest.raises(MaskError) as caught:
        mask.resolved(WIDE)
    assert "got Causal offsets [0, 2] with Window(left=1)" in str(caught.value)
    assert "Hint: write Window(..., offset=...)." in str(caught.value)


def test_the_same_offset_twice_is_one_offset():
    assert (Causal() & Causal(0) & Window(left=1)).resolved(SQUARE).parts()[2] == Window(left=1, offset=0)
    explicit = Causal(0) & Causal(2) & Window(left=1, offset=2)
    assert explicit.resolved(WIDE) is explicit


def test_repr_is_the_constructor_call():
    for mask in (Causal(), Causal(-3), Window(), Window(2), Window(None, 0), Window(2, 3, -1)):
        assert eval(repr(mask)) == mask
    for mask in (Causal() & Window(2), (Causal(1) | Window(2)) & Causal(3), Causal(1) | (Window(2) & Causal(3))):
        assert eval(repr(mask)) == mask


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("offset", [2**62, 2**63, -(2**63), 2**64, -(2**70)])
def test_large_offsets_do_not_wrap_around_in_a_kernel(backend, offset) -> None:
    x = torch.randn(1, 1, 5, 3)
    everything = qkv.attention(x, x, x, mask=Causal(offset=offset), backend=backend)
    expected = qkv.attention(x, x, x, backend=backend) if offset > 0 else torch.zeros_like(x)
    torch.testing.assert_close(everything, expected)
    assert not qkv.attention(x, x, x, mask=Window(1, 1, offset=offset), backend=backend).any()


def test_swapped_heads_and_lengths_are_suspected() -> None:
    query, key = torch.randn(2, 17, 6, 5), torch.randn(2, 17, 3, 5)  # (batch, length, heads, width)
    with pytest.raises(MaskError, match=r"transpose\(1, 2\)"):
        qkv.attention(query, key, key, mask=Causal())
    qkv.attention(query.transpose(1, 2), key.transpose(1, 2), key.transpose(1, 2), mask=Causal())
    with pytest.raises(MaskError) as caught:
        qkv.attention(torch.randn(2, 2, 6, 5), torch.randn(2, 2, 3, 5), torch.randn(2, 2, 3, 5), mask=Causal())
    assert "transpose" not in str(caught.value)
