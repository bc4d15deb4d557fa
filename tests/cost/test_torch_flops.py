"""Formulas of products that torch executes equal what `watch` counts, on random calls."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch

import qkv
from qkv.backends import blockwise, linear
from qkv.backends.pieces import cut_mask
from qkv.cost import torch_flops
from qkv.cost.sizes import Sizes
from qkv.features import feature_count
from qkv.inputs import read_inputs
from qkv.masks import Extent, Mask
from qkv.profiling.watch import Watch, watch

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SEEDS = pytest.mark.parametrize("seed", range(24))


class Draw(NamedTuple):
    sizes: Sizes
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.query, self.key, self.value

    @property
    def extent(self) -> Extent:
        return Extent(self.sizes.batch, self.sizes.heads, self.sizes.len_q, self.sizes.len_k)


def draw(rng: random.Random, dtype: torch.dtype, lengths: tuple[int, ...] = (11, 13, 17, 19, 23, 29)) -> Draw:
    """Random tensors whose sizes are different primes."""
    batch, heads_kv, group = rng.sample((2, 3, 5), 3)
    group = rng.choice((1, group))
    len_q, len_k = rng.sample(lengths, 2)
    width, width_v = rng.sample([p for p in (7, 31, 37) if p not in (len_q, len_k)], 2)
    sizes = Sizes(batch, heads_kv * group, heads_kv, len_q, len_k, width, width_v)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Draw(
        sizes,
        numbers(batch, sizes.heads, len_q, width),
        numbers(batch, heads_kv, len_k, width),
        numbers(batch, heads_kv, len_k, width_v),
    )


def draw_mask(rng: random.Random, sizes: Sizes, kinds: tuple[str, ...]) -> Mask | None:
    kind, offset = rng.choice(kinds), rng.randrange(-3, sizes.len_k)
    if kind == "none":
        return None
    if kind == "causal":
        return qkv.Causal(offset=offset)
    if kind == "window":
        return qkv.Window(rng.randrange(5), rng.randrange(5), offset)
    if kind == "left":
        return qkv.Window(left=rng.randrange(5), offset=offset)
    if kind == "lengths":
        return qkv.Padding(lengths=[rng.randrange(sizes.len_k + 1) for _ in range(sizes.batch)])
    shape = [rng.choice((1, full)) for full in (sizes.batch, sizes.heads, sizes.len_q, sizes.len_k)]
    return qkv.Dense(torch.rand(shape, generator=torch.Generator().manual_seed(rng.randrange(2**31))) < 0.7)


def run(drawn: Draw, backend: str, **arguments: object) -> Watch:
    with torch.no_grad(), watch() as seen:
        qkv.attention(*drawn.tensors, backend=backend, **arguments)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert not seen.unknown
    return seen


def flash_products(drawn: Draw, mask: Mask | None) -> int:
    """Flops of torch's flash kernel over the pieces of a mask; the narrower of keys and values is padded."""
    call = read_inputs(*drawn.tensors, None, mask, None, 0.0, "sdpa", False, False)
    heads, width = drawn.sizes.heads, max(drawn.sizes.width, drawn.sizes.width_v)
    return sum(
        torch_flops.flash_flops(p.i1 - p.i0, p.j1 - p.j0, width, (p.b1 - p.b0) * heads, p.causal)
        for p in cut_mask(call)
    )


@SEEDS
def test_flash_kernel(seed: int) -> None:
    rng = random.Random(100 + seed)
    drawn = draw(rng, DTYPES[seed % 4], (11, 41, 83, 211, 523, 787) if seed < 8 else (11, 13, 17, 23, 67, 71))
    mask = draw_mask(rng, drawn.sizes, ("none", "causal", "causal", "window", "lengths", "given"))
    seen = run(drawn, "sdpa", similarity=qkv.Softmax(sink=rng.choice((None, 0.5))), mask=mask)
    assert seen.products == flash_products(drawn, mask)
    assert "aten.bmm" not in seen.by_operator


def test_flash_kernel_under_a_causal_mask_by_hand() -> None:
    query, key, value = torch.randn(2, 6, 5, 7), torch.randn(2, 6, 11, 7), torch.randn(2, 6, 11, 31)
    seen = run(Draw(Sizes(2, 6, 6, 5, 11, 7, 31), query, key, value), "sdpa", mask=qkv.Causal(offset=6))
    # A rectangle of the first six keys, and a triangle of the last five.
    pieces = ((6, False), (5, True))
    assert seen.products == sum(torch_flops.flash_flops(5, keys, 31, 12, causal) for keys, causal in pieces)


@pytest.mark.slow
@SEEDS
def test_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(200 + seed)
    monkeypatch.setattr(blockwise, "BLOCK_SCORES", rng.choice((1999, 4999, 20011)))
    drawn = draw(rng, DTYPES[seed % 4])
    mask = draw_mask(rng, drawn.sizes, ("none", "causal", "window", "lengths", "given"))
    similarity = rng.choice((qkv.Softmax(softcap=2.0), qkv.Polynomial(2), qkv.FeatureMap(qkv.features.elu1)))
    seen = run(drawn, "blockwise", similarity=similarity, mask=mask)
    band = None if mask is None else mask.band(drawn.extent)
    pairs = torch_flops.block_pairs(drawn.sizes, blockwise.BLOCK_SCORES, band)
    assert seen.products == torch_flops.block_products(pairs, drawn.sizes.width, drawn.sizes.width_v)
    assert pairs <= drawn.sizes.cells


def test_block_pairs_are_those_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        monkeypatch.setattr(blockwise, "BLOCK_SCORES", rng.randrange(100, 10_000))
        drawn = draw(rng, torch.float32)
        mask = draw_mask(rng, drawn.sizes, ("causal", "window", "left", "lengths"))
        assert mask is not None
        call = read_inputs(*drawn.tensors, None, mask, None, 0.0, "blockwise", False, False)
        pairs = 0
        for b0, b1, g0, g1, i0, i1, j0, j1 in blockwise.blocks_of(call, blockwise.rows_in_block(call)):
            pairs += (b1 - b0) * (g1 - g0) * call.group * (i1 - i0) * max(0, j1 - j0)
        assert torch_flops.block_pairs(drawn.sizes, blockwise.BLOCK_SCORES, mask.band(drawn.extent)) == pairs


@pytest.mark.slow
@SEEDS
def test_chunks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(300 + seed)
    monkeypatch.setattr(linear, "MAX_CHUNK_TOKENS", rng.choice((7, 11, 128)))
    monkeypatch.setattr(linear, "native_kernel_reasons", lambda call: ("this test is of torch's chunks",))
    drawn = draw(rng, DTYPES[seed % 4])
    sizes = drawn.sizes
    offset = rng.choice((None, rng.randrange(-3, sizes.len_k)))
    mask = None if offset is None else qkv.Causal(offset=offset)
    padding = draw_mask(rng, sizes, ("none", "lengths"))
    if padding is not None:
        mask = padding if mask is None else mask & padding
    similarity = rng.choice((qkv.Polynomial(2, -0.5), qkv.FeatureMap(qkv.features.elu1)))
    features = feature_count(similarity, sizes.width)
    size = linear.chunk_size(features, sizes.batch, sizes.heads)
    seen = run(drawn, "linear", similarity=similarity, mask=mask)
    assert seen.products == torch_flops.chunk_products(sizes, features, size, offset)


@pytest.mark.parametrize("seed", range(6))
def test_argmax(seed: int) -> None:
    rng = random.Random(400 + seed)
    drawn = draw(rng, torch.float64)
    mask = draw_mask(rng, drawn.sizes, ("none", "causal", "given"))
    seen = run(drawn, "argmax", similarity=qkv.Argmax(), mask=mask)
    assert seen.products == torch_flops.argmax_products(drawn.sizes)


@pytest.mark.parametrize("rows", [1, 31, 512, 513, 1021, 1024, 2053])
@pytest.mark.parametrize("keys", [1, 31, 511, 512, 1021, 1536, 3001])
def test_flash_pairs_are_a_sum_over_query_blocks_of_any_size(rows: int, keys: int) -> None:
    for step in (32, 64, 256, 512):
        total = 0
        for first in range(0, rows, step):
            last = min(first + step, rows)
            total += (last - first) * min(keys, -(-min(last, keys) // 512) * 512)
        assert torch_flops.flash_pairs(rows, keys, causal=True) == total
    needed = sum(min(i + 1, keys) for i in range(rows))
    assert needed <= torch_flops.flash_pairs(rows, keys, causal=True) <= torch_flops.flash_pairs(rows, keys, False)


def test_flash_pairs_of_huge_lengths() -> None:
    tokens = 10**15 // 512 * 512
    assert 2 * torch_flops.flash_pairs(tokens, tokens, causal=True) == tokens * (tokens + 512)


def test_training_a_layer_takes_three_times_its_forward_products() -> None:
    torch.manual_seed(0)
    layer = qkv.nn.Attention(30, 5, bias=True)
    x = torch.randn(2, 7, 30, requires_grad=True)
    with watch() as forward:
        out = layer(x)
    with watch() as backward:
        out.sum().backward()
    linear_flops = 4 * 2 * 2 * 7 * 30 * 30
    assert forward.by_operator["aten.addmm"].products == linear_flops
    assert forward.by_operator["aten.addmm"].elementwise == 4 * 2 * 7 * 30
    assert backward.by_operator["aten.mm"].products == 2 * linear_flops
