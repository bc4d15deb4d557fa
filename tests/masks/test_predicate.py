import numpy as np
import pytest
import torch

from qkv.errors import MaskError, MaskTypeError, OptionTypeError
from qkv.masks import Causal, Extent, Predicate
from qkv.masks.grid import NumpyGrid

EXTENT = Extent(2, 3, 5, 7)


def whole(mask, extent=EXTENT):
    return mask.tile(extent, (0, extent.len_q), (0, extent.len_k), "cpu")


def test_positions_are_absolute_and_broadcast():
    seen = []

    def rule(batch, head, query, key):
        seen.append([tuple(p.shape) for p in (batch, head, query, key)])
        return (batch + head + query) % 2 == key % 2

    mask = Predicate(rule)
    full, part = whole(mask), mask.tile(EXTENT, (2, 5), (3, 5), "cpu")
    assert seen[0] == [(2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 5, 1), (1, 1, 1, 7)]
    assert torch.equal(part, full[:, :, 2:5, 3:5])


def test_what_it_does_not_use_is_not_spread_out():
    assert whole(Predicate(lambda b, h, q, k: q >= k)).shape == (1, 1, 5, 7)
    assert whole(Predicate(lambda b, h, q, k: b > h)).shape == (2, 3, 1, 1)
    assert whole(Predicate(lambda b, h, q, k: (q >= k)[0, 0])).shape == (1, 1, 5, 7)
    assert whole(Predicate(lambda b, h, q, k: True)).shape == (1, 1, 1, 1)


@pytest.mark.parametrize("wrong", [None, 3, "rule", [True]])
def test_it_must_be_callable(wrong):
    with pytest.raises(OptionTypeError, match=r"function \(of a Predicate mask\): got .* wanted a function of \(batch"):
        Predicate(wrong)


@pytest.mark.parametrize("result", [lambda q, k: q - k, lambda q, k: (q > k) * 1.0, lambda q, k: None, lambda q, k: 1])
def test_the_result_must_be_boolean(result):
    mask = Predicate(lambda b, h, q, k: result(q, k))
    for ask in (whole, lambda m: m.population(EXTENT), lambda m: m.allows(0, 0, 0, 0, EXTENT)):
        with pytest.raises(MaskTypeError, match=r"wanted booleans\. Hint: masks are bool; use bias= for additive"):
            ask(mask)


def test_the_result_must_fit():
    for shape in ((5, 5), (1, 1, 1, 5, 7), (3, 3, 5, 7)):
        mask = Predicate(lambda b, h, q, k, shape=shape: torch.ones(shape).bool())
        with pytest.raises(MaskError, match=r"\(batch, heads, rows, keys\) = \(2, 3, 5, 7\)"):
            whole(mask)
        with pytest.raises(MaskError, match=r"\(batch, heads, rows, keys\) = \(1, 1, 1, 1\)"):
            mask.allows(0, 0, 0, 0, EXTENT)


def test_branches_are_explained():
    mask = Predicate(lambda b, h, q, k: q > k and k > 1)
    with pytest.raises(MaskError, match=r"join conditions with &, \| and ~ instead of and"):
        whole(mask)
    want = sum(q > k > 1 for q in range(5) for k in range(7))
    assert mask.population(EXTENT) == 6 * want  # counted one cell after the other
    assert mask.allows(0, 0, 4, 2, EXTENT)
    part = mask.cells(NumpyGrid(EXTENT, (2, 5), (1, 6)))
    assert part[1, 2].tolist() == [[q > k > 1 for k in range(1, 6)] for q in range(2, 5)]


def test_functions_of_any_library():
    table = torch.tensor([1, 2, 3])
    by_table = Predicate(lambda b, h, q, k: (q - k).abs() < table[h])
    in_torch = Predicate(lambda b, h, q, k: torch.where(q > k, k > 1, k == 0))
    negated = Predicate(lambda b, h, q, k: ~((q > k) | (k == 3)))
    for mask in (by_table, in_torch, negated):
        tile = whole(mask).expand(2, 3, 5, 7)
        assert mask.population(EXTENT) == tile.sum()
        for position in np.ndindex(2, 3, 5, 7):
            assert mask.allows(*position, EXTENT) == tile[position]


def test_errors_of_the_function_are_passed_on():
    mask = Predicate(lambda b, h, q, k: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        whole(mask)
    with pytest.raises(RuntimeError, match="mine"):
        whole(Predicate(_mine))
    with pytest.raises(MaskError, match="got ZeroDivisionError") as caught:
        mask.population(EXTENT)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "not drawn" in str(mask)
    assert "ZeroDivisionError" in mask._repr_html_()


def _mine(b, h, q, k):
    raise RuntimeError("mine")


def test_equal_functions_make_equal_masks():
    assert Predicate(_mine) == Predicate(_mine)
    assert Predicate(_mine) != Predicate(max)
    assert repr(Predicate(_mine) & Causal()) == "Predicate(_mine) & Causal()"
