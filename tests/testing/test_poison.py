"""Poison fills masked positions, and layouts have the same numbers at other addresses."""

import math

import pytest
import torch

from qkv.testing import layouts, oracle, poison_masked, poisoned_memory
from qkv.testing.poison import LAYOUTS, POISONS, unseen_keys


def test_unseen_keys_are_those_of_the_whole_group() -> None:
    attended = torch.zeros(1, 4, 1, 3, dtype=torch.bool)
    attended[0, 1, 0, 0] = attended[0, 2, 0, 2] = True
    assert unseen_keys(attended, 2).tolist() == [[[False, True, True], [True, True, False]]]


def test_poison_fills_exactly_what_is_unseen() -> None:
    attended = torch.ones(2, 4, 3, 6, dtype=torch.bool)
    attended[0, :, :, 4:] = False
    attended[1, 2, 1] = False
    query, key, value = torch.zeros(2, 4, 3, 5), torch.zeros(2, 2, 6, 5), torch.zeros(2, 2, 6, 7)
    q, k, v = poison_masked(query, key, value, attended)
    assert q[1, 2, 1].ne(0).all()
    assert q.ne(0).sum() == 5
    for tensor, width in ((k, 5), (v, 7)):
        assert tensor[0, :, 4:].ne(0).all()
        assert tensor.ne(0).sum() == 2 * 2 * width
    assert not query.any()
    assert not key.any()


def test_every_poison_is_used() -> None:
    attended = torch.zeros(1, 8, dtype=torch.bool)
    _, key, value = poison_masked(torch.zeros(1, 2), torch.zeros(8, 2), torch.zeros(8, 3), attended)
    for tensor in (key, value):
        assert {repr(x) for x in tensor[:, 0].tolist()} == {repr(torch.tensor(p).item()) for p in POISONS}
    assert key[0].isnan().all()
    assert value[0].isinf().all()


def test_poison_does_not_change_the_oracle() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 4)
    attended = torch.rand(2, 3, 5, 5) < 0.3
    attended[..., 3] = False
    clean = oracle(x, x, x, mask=attended)
    dirty = oracle(*poison_masked(x, x, x, attended), mask=attended)
    assert torch.equal(dirty.out, clean.out)


def test_poisoned_memory_is_nan_only_inside() -> None:
    like = torch.zeros(3, dtype=torch.float16)
    with poisoned_memory():
        made = [
            torch.empty(2, 3),
            torch.empty_like(like),
            torch.empty_strided((2, 2), (1, 2)),
            like.new_empty(4),
            like.new_empty_strided((2,), (1,)),
            torch.empty((2, 2), dtype=torch.float64),
        ]
        counts = torch.empty(3, dtype=torch.int64)
        zeros = torch.zeros(2)
    assert all(tensor.isnan().all() for tensor in made)
    assert counts.dtype is torch.int64
    assert not zeros.any()
    # Memory from outside may still hold NaN, so the mode itself is tested.
    assert torch.overrides._get_current_function_mode() is None


def test_an_error_ends_poisoned_memory() -> None:
    with pytest.raises(RuntimeError), poisoned_memory():
        raise RuntimeError
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 5, 7), (5, 7), (1, 1, 1, 1), (0, 3, 5, 7), (2, 3, 0, 7)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_hold_the_same_numbers(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    view = LAYOUTS[name](tensor)
    assert view.shape == tensor.shape
    assert torch.equal(view, tensor)


def test_layouts_differ_in_memory() -> None:
    tensor = torch.randn(2, 3, 5, 7)
    found = dict(layouts(tensor))
    assert found["transposed"].stride()[-2:] == (1, 5)
    assert found["heads_last"].stride() == (105, 7, 21, 1)
    assert found["reversed_axes"].stride(0) == 1
    assert found["step_two"].stride(-1) == 2
    assert found["step_two_rows"].stride(-2) == 14
    assert found["sliced"].stride(-2) == 21
    assert found["sliced"].storage_offset() == 7
    assert found["misaligned"].data_ptr() % 8 == 4
    for name in ("step_two", "step_two_rows", "sliced", "misaligned"):
        storage = torch.empty(0).set_(found[name].untyped_storage())
        assert storage.isnan().any(), f"{name} has no NaN between its numbers"


def test_expanded_finds_equal_entries() -> None:
    tensor = torch.randn(1, 3, 1, 7).expand(2, 3, 5, 7).contiguous()
    assert LAYOUTS["expanded"](tensor).stride() == (0, 35, 0, 1)
    assert math.prod(LAYOUTS["expanded"](torch.randn(2, 3)).stride()) != 0
