"""The best key by sums in one order: equal keys tie wherever they stand, and near ones are told apart the same way."""

import pytest
import torch

import qkv
from qkv.backends import argmax
from qkv.backends.argmax import resolve_ties
from qkv.backends.reference import dot_products
from qkv.testing.poison import layouts

DTYPES = [torch.float64, torch.float32]


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def nearly_equal(seed: int, batch: int, heads: int, length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Keys that differ from one another by an ulp or two in a few places, and often not at all."""
    base = numbers(seed, batch, heads, 1, width, dtype=dtype).expand(batch, heads, length, width)
    draw = torch.randint(-2, 3, base.shape, generator=torch.Generator().manual_seed(seed))
    return base * (1 + torch.finfo(dtype).eps * torch.where(draw.abs() == 2, draw, 0).to(dtype))


def in_one_order(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return (query.unsqueeze(3) * key.unsqueeze(2)).sum(-1)


def positions(query, key, backend: str, mask=None) -> torch.Tensor:
    """Which key each query takes."""
    value = torch.arange(float(key.shape[2]), dtype=key.dtype).expand(key.shape[:3]).unsqueeze(-1).contiguous()
    return qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend).squeeze(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 17, 37, 64])
def test_the_first_of_equal_keys_is_taken_wherever_they_stand(dtype: torch.dtype, width: int) -> None:
    for rows, period, times in ((1, 11, 7), (5, 13, 3), (31, 29, 5)):
        query = numbers(rows, 2, 6, rows, width, dtype=dtype)
        key = numbers(period, 2, 3, period, width, dtype=dtype).repeat(1, 1, times, 1)
        holes = qkv.Dense(torch.ones(rows, period * times, dtype=torch.bool))  # no run of keys: torch's path
        for mask in (None, holes):
            assert (positions(query, key, "argmax", mask) < period).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 71, 37), (23, 31, 5), (7, 131, 64), (3, 2, 1)], ids=str)
def test_what_is_near_the_best_is_decided_by_sums_in_one_order(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    rows, columns, width = sizes
    query = numbers(3, 2, 6, rows, width, dtype=dtype)
    key = nearly_equal(5, 2, 3, columns, width, dtype)
    wanted = in_one_order(query, key)
    assert torch.equal(resolve_ties(dot_products(query, key), query, key).max(-1).indices, wanted.max(-1).indices)
    # Any other rounding of the scores leads to the same keys.
    noise = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(7)).sign().to(dtype)
    bound = torch.finfo(dtype).eps * in_one_order(query.abs(), key.abs())
    other = resolve_ties(wanted + noise * bound, query, key)
    assert torch.equal(other.max(-1).indices, wanted.max(-1).indices)


def test_only_scores_near_the_best_are_touched(monkeypatch) -> None:
    query, key = numbers(1, 2, 6, 23, 11), numbers(2, 2, 3, 31, 11)
    scores = dot_products(query, key)
    monkeypatch.setattr(argmax, "PAIRS", 7)
    moved = resolve_ties(scores.clone(), query, key) != scores
    assert not (moved & (scores < scores.amax(-1, keepdim=True) - 1e-9)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_near_ties_depend_on_neither_threads_nor_companions_nor_layout_nor_blocks(
    dtype: torch.dtype, threads, monkeypatch
) -> None:
    query, key = numbers(3, 2, 6, 23, 37, dtype=dtype), nearly_equal(5, 2, 3, 131, 37, dtype)
    holes = qkv.Dense(torch.arange(131) % 7 != 3)
    wanted = positions(query, key, "argmax", holes)
    assert len(wanted.unique()) > 5
    for count in (1, 3):
        threads(count)
        assert torch.equal(positions(query, key, "argmax", holes), wanted)
    assert torch.equal(positions(query[1:], key[1:], "argmax", holes), wanted[1:])
    for (name, q), (_, k) in zip(layouts(query), layouts(key), strict=True):
        assert torch.equal(positions(q, k, "argmax", holes), wanted), name
    monkeypatch.setattr(qkv.backends.argmax, "KEYS", 13)
    assert torch.equal(positions(query, key, "argmax", holes), wanted)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_masked_keys_do_not_decide_between_near_ones(poison: float) -> None:
    query, key = numbers(3, 2, 6, 23, 37), nearly_equal(5, 2, 3, 71, 37, torch.float64)
    mask = qkv.Dense(torch.arange(71) % 5 != 2)
    wanted = positions(query, key, "argmax", mask)
    key[:, :, 2::5] = poison
    assert torch.equal(positions(query, key, "argmax", mask), wanted)


def test_nothing_to_see_no_width_and_zeros_stay_as_they_are() -> None:
    query, key = numbers(1, 2, 6, 5, 11), numbers(2, 2, 3, 7, 11)
    never = torch.full((2, 6, 5, 7), float("-inf"), dtype=torch.float64)
    assert torch.equal(resolve_ties(never.clone(), query, key), never)
    zeros = torch.zeros(2, 6, 5, 7, dtype=torch.float64)
    assert torch.equal(resolve_ties(zeros.clone(), query[..., :0], key[..., :0]), zeros)
    assert torch.equal(resolve_ties(zeros.clone(), query, 0 * key), zeros)
    lost = dot_products(query, key)
    lost[1, 2, 3, 4] = float("nan")
    assert resolve_ties(lost.clone(), query, key)[1, 2, 3].isnan().sum() == 1
