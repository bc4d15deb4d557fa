"""`argmax`: the best key by definition, ties, NaN, both engines, and no matrix of scores."""

import subprocess
import sys

import pytest
import torch

import qkv
from qkv import ops
from qkv.backends import argmax
from qkv.backends.argmax import resolve_ties
from qkv.backends.base import RUNS
from qkv.backends.reference import dot_products
from qkv.masks import Extent
from qkv.testing.poison import layouts

MASKS = {
    "none": None,
    "causal": qkv.Causal(2),
    "causal with fully masked rows": qkv.Causal(-3),
    "padded and causal": qkv.Causal(2) & qkv.Padding(lengths=[3, 29]),
    "left padding": qkv.Padding(keep=torch.arange(31) >= torch.tensor([[5], [0]])) & qkv.Causal(8),
    "window": qkv.Window(2, 3, offset=8),
    "every third key dropped": qkv.Padding(keep=torch.arange(31).expand(2, 31) % 3 != 0),
    "segments": qkv.Segments(torch.arange(23) // 7, torch.arange(31) // 9),
    "any": qkv.Dense(torch.arange(23 * 31).reshape(23, 31) % 7 != 0) | qkv.Causal(0),
}


def integers(seed: int, *shape: int) -> torch.Tensor:
    """Small integers: every product is exact in every dtype, and there are many ties."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = ((2, 6, 23, 5), (2, 3, 31, 5), (2, 3, 31, 7))
    return tuple(integers(seed, *shape).to(dtype) for seed, shape in enumerate(shapes))


def by_definition(query, key, value, mask) -> torch.Tensor:
    extent = Extent(2, 6, 23, 31)
    resolved = None if mask is None else mask.resolved(extent)
    out = torch.zeros(2, 6, 23, 7)
    for b in range(2):
        for h in range(6):
            scores = query[b, h].double() @ key[b, h // 2].double().T
            for i in range(23):
                seen = [j for j in range(31) if resolved is None or resolved.allows(b, h, i, j, extent)]
                if seen:
                    out[b, h, i] = value[b, h // 2, max(seen, key=lambda j, row=scores[i]: (row[j], -j))]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_best_key_and_the_lowest_index_of_equal_keys(name: str, dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    out = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=MASKS[name], backend="argmax")
    assert torch.equal(out.float(), by_definition(query, key, value, MASKS[name]))


def test_which_engine_runs() -> None:
    assert ops.available(), ops.reasons()
    for dtype, name, engine in (
        (torch.float32, "none", "native"),
        (torch.bfloat16, "padded and causal", "native"),
        (torch.float16, "left padding", "native"),
        (torch.float32, "window", "native"),
        (torch.float32, "every third key dropped", "blocks"),
        (torch.float64, "none", "blocks"),
        (torch.float32, "few", "native"),
    ):
        RUNS.clear()
        ops.reset_calls()
        query, key, value = inputs(dtype)
        query = query[:, :, :2] if name == "few" else query
        qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=MASKS.get(name), backend="argmax")
        assert dict(RUNS) == {f"argmax.{engine}": 1}
        assert ops.calls()["argmax_scores"] == (engine == "native")


@pytest.mark.parametrize("backend", ["argmax", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nan_is_visible_unless_masked(backend: str, dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    mask = qkv.Causal(2)
    clean = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend)
    key[1, 1, 20, 3] = float("nan")
    value[0, 0, 30] = float("nan")
    out = qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend)
    sees = torch.zeros(2, 6, 23, dtype=torch.bool)
    sees[1, 2:4, 18:] = True  # query i sees key 20 from i = 18 on; heads 2 and 3 read key/value head 1
    assert out[sees].isnan().all()
    assert torch.equal(out[~sees], clean[~sees])


def test_blocks_of_keys_agree_with_one_block(monkeypatch) -> None:
    query, key, value = inputs(torch.float64)
    whole = qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax")
    monkeypatch.setattr(argmax, "BLOCK_KEYS", 7)
    monkeypatch.setattr(argmax, "BLOCK_SCORES", 2 * 6 * 7 * 3)
    assert torch.equal(qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax"), whole)


def test_bits_do_not_depend_on_threads_or_the_rest_of_the_batch(threads) -> None:
    query, key, value = (torch.randn(3, 2, 301, 17) for _ in range(3))
    answers = []
    for count in (1, 2, 3):
        threads(count)
        answers.append(qkv.attention(query, key, value, similarity=qkv.Argmax(), backend="argmax"))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    alone = qkv.attention(query[1:2], key[1:2], value[1:2], similarity=qkv.Argmax(), backend="argmax")
    assert torch.equal(alone, answers[0][1:2])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_product_of_lengths() -> None:
    """The matrix of scores would take 4 GB; the output takes 2 MB."""
    code = (
        "import resource, torch, qkv; torch.set_num_threads(1);"
        "q, k = torch.randn(1, 1, 32768, 8), torch.randn(1, 1, 32768, 8);"
        "qkv.attention(q[:, :, :8], k[:, :, :8], k[:, :, :8], similarity=qkv.Argmax());"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "qkv.attention(q, k, k, similarity=qkv.Argmax(), backend='argmax');"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 64 * 2**20


TIE_DTYPES = [torch.float64, torch.float32]


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


def chosen_keys(query, key, backend: str, mask=None) -> torch.Tensor:
    """The index of the key that each query chooses."""
    value = torch.arange(float(key.shape[2]), dtype=key.dtype).expand(key.shape[:3]).unsqueeze(-1).contiguous()
    return qkv.attention(query, key, value, similarity=qkv.Argmax(), mask=mask, backend=backend).squeeze(-1)


@pytest.mark.parametrize("dtype", TIE_DTYPES)
@pytest.mark.parametrize("width", [1, 5, 17, 37, 64])
def test_the_first_of_equal_keys_is_chosen_at_any_position(dtype: torch.dtype, width: int) -> None:
    for rows, period, times in ((1, 11, 7), (5, 13, 3), (31, 29, 5)):
        query = numbers(rows, 2, 6, rows, width, dtype=dtype)
        key = numbers(period, 2, 3, period, width, dtype=dtype).repeat(1, 1, times, 1)
        mask_with_holes = qkv.Dense(
            torch.ones(rows, period * times, dtype=torch.bool)
        )  # not a contiguous range of keys: torch's path
        for mask in (None, mask_with_holes):
            assert (chosen_keys(query, key, "argmax", mask) < period).all()


@pytest.mark.parametrize("dtype", TIE_DTYPES)
@pytest.mark.parametrize("sizes", [(1, 71, 37), (23, 31, 5), (7, 131, 64), (3, 2, 1)], ids=str)
def test_near_ties_are_decided_by_sums_in_one_order(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    rows, columns, width = sizes
    query = numbers(3, 2, 6, rows, width, dtype=dtype)
    key = nearly_equal(5, 2, 3, columns, width, dtype)
    expected = in_one_order(query, key)
    assert torch.equal(resolve_ties(dot_products(query, key), query, key).max(-1).indices, expected.max(-1).indices)
    # Any other rounding of the scores leads to the same keys.
    noise = torch.randn(expected.shape, generator=torch.Generator().manual_seed(7)).sign().to(dtype)
    bound = torch.finfo(dtype).eps * in_one_order(query.abs(), key.abs())
    other = resolve_ties(expected + noise * bound, query, key)
    assert torch.equal(other.max(-1).indices, expected.max(-1).indices)


def test_only_scores_near_the_best_change(monkeypatch) -> None:
    query, key = numbers(1, 2, 6, 23, 11), numbers(2, 2, 3, 31, 11)
    scores = dot_products(query, key)
    monkeypatch.setattr(argmax, "PAIRS_AT_ONCE", 7)
    moved = resolve_ties(scores.clone(), query, key) != scores
    assert not (moved & (scores < scores.amax(-1, keepdim=True) - 1e-9)).any()


@pytest.mark.parametrize("dtype", TIE_DTYPES)
def test_near_ties_do_not_depend_on_threads_batch_layout_or_blocks(dtype: torch.dtype, threads, monkeypatch) -> None:
    query, key = numbers(3, 2, 6, 23, 37, dtype=dtype), nearly_equal(5, 2, 3, 131, 37, dtype)
    mask_with_holes = qkv.Dense(torch.arange(131) % 7 != 3)
    expected = chosen_keys(query, key, "argmax", mask_with_holes)
    assert len(expected.unique()) > 5
    for count in (1, 3):
        threads(count)
        assert torch.equal(chosen_keys(query, key, "argmax", mask_with_holes), expected)
    assert torch.equal(chosen_keys(query[1:], key[1:], "argmax", mask_with_holes), expected[1:])
    for (name, q), (_, k) in zip(layouts(query), layouts(key), strict=True):
        assert torch.equal(chosen_keys(q, k, "argmax", mask_with_holes), expected), name
    monkeypatch.setattr(argmax, "BLOCK_KEYS", 13)
    assert torch.equal(chosen_keys(query, key, "argmax", mask_with_holes), expected)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_masked_keys_do_not_decide_near_ties(poison: float) -> None:
    query, key = numbers(3, 2, 6, 23, 37), nearly_equal(5, 2, 3, 71, 37, torch.float64)
    mask = qkv.Dense(torch.arange(71) % 5 != 2)
    expected = chosen_keys(query, key, "argmax", mask)
    key[:, :, 2::5] = poison
    assert torch.equal(chosen_keys(query, key, "argmax", mask), expected)


def test_fully_masked_rows_zero_width_and_zeros_do_not_change() -> None:
    query, key = numbers(1, 2, 6, 5, 11), numbers(2, 2, 3, 7, 11)
    never = torch.full((2, 6, 5, 7), float("-inf"), dtype=torch.float64)
    assert torch.equal(resolve_ties(never.clone(), query, key), never)
    zeros = torch.zeros(2, 6, 5, 7, dtype=torch.float64)
    assert torch.equal(resolve_ties(zeros.clone(), query[..., :0], key[..., :0]), zeros)
    assert torch.equal(resolve_ties(zeros.clone(), query, 0 * key), zeros)
    with_nan = dot_products(query, key)
    with_nan[1, 2, 3, 4] = float("nan")
    assert resolve_ties(with_nan.clone(), query, key)[1, 2, 3].isnan().sum() == 1
