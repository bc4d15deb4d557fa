"""Products of the backends that are built on torch, by formula and by count: the same integers."""

import random

import pytest
import torch

import qkv
from cost_draws import DTYPES, Draw, draw, draw_mask
from qkv.backends import blockwise, linear
from qkv.backends.pieces import cut_mask
from qkv.cost import passes
from qkv.cost.passes import Features, Piece
from qkv.cost.sizes import Sizes
from qkv.inputs import read_inputs
from qkv.profiling.watch import Watch, watch

FORWARD_OR_TRAINING = pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SEEDS = pytest.mark.parametrize("seed", range(24))


def run(drawn: Draw, backend: str, training: bool, **arguments: object) -> Watch:
    if training:
        drawn.learning()
    with torch.set_grad_enabled(training), watch() as seen:
        answer = qkv.attention(*drawn.tensors, backend=backend, **arguments)  # pyright: ignore[reportCallIssue, reportArgumentType]
        outs = answer if isinstance(answer, tuple) else (answer,)
        if training:
            sum(out.float().sum() for out in outs).backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert not seen.unknown
    return seen


def random_map(rng: random.Random, width: int) -> tuple[object, Features]:
    kind = rng.choice(("elementwise", "random", "polynomial"))
    if kind == "random":
        return qkv.features.positive_random(width, 41), Features(41, products_a_row=2 * 41 * width)
    if kind == "polynomial":
        given = qkv.features.polynomial(2)
        return given, Features(given.features(width))
    return rng.choice((qkv.features.elu1, qkv.features.relu, qkv.features.squared)), Features(width)


@FORWARD_OR_TRAINING
@SEEDS
def test_dense(seed: int, training: bool) -> None:
    rng = random.Random(seed)
    drawn = draw(rng, DTYPES[seed % 4])
    mask, _ = draw_mask(rng, drawn.sizes, ("none", "causal", "window", "lengths", "given"))
    given, features = random_map(rng, drawn.sizes.width)
    name, similarity = rng.choice(
        (
            ("softmax", qkv.Softmax(softcap=rng.choice((None, 2.0)), sink=rng.choice((None, 0.5)))),
            ("polynomial", qkv.Polynomial(2)),
            ("features", qkv.FeatureMap(given)),  # pyright: ignore[reportArgumentType]
            ("argmax", qkv.Argmax()),
        )
    )
    seen = run(drawn, "reference", training, similarity=similarity, mask=mask)
    mapped = features if name == "features" else None
    assert seen.products == passes.dense_products(drawn.sizes, name, mapped, training=training)


def pieces_of(drawn: Draw, mask: qkv.masks.Mask | None) -> list[Piece]:
    call = read_inputs(*drawn.tensors, None, mask, None, 0.0, "sdpa", False, False)
    heads = drawn.sizes.heads
    return [Piece((p.b1 - p.b0) * heads, p.i1 - p.i0, p.j1 - p.j0, p.causal) for p in cut_mask(call)]


@FORWARD_OR_TRAINING
@SEEDS
def test_flash_in_pieces(seed: int, training: bool) -> None:
    rng = random.Random(100 + seed)
    drawn = draw(rng, DTYPES[seed % 4], (11, 41, 83, 211, 523, 787) if seed < 8 else (11, 13, 17, 23, 67, 71))
    mask, _ = draw_mask(rng, drawn.sizes, ("none", "causal", "causal", "window", "lengths", "given"))
    seen = run(drawn, "sdpa", training, similarity=qkv.Softmax(sink=rng.choice((None, 0.5))), mask=mask)
    width, width_v = drawn.sizes.width, drawn.sizes.width_v
    assert seen.products == passes.flash_products(pieces_of(drawn, mask), width, width_v, training=training)
    assert "aten.bmm" not in seen.by_operator


def test_pieces_of_causal_by_hand() -> None:
    drawn = draw(random.Random(3), torch.float32, (5, 11))
    sizes = drawn.sizes._replace(len_q=5, len_k=11)
    tensors = drawn.query[:, :, :1].repeat(1, 1, 5, 1), *(t[:, :, :1].repeat(1, 1, 11, 1) for t in drawn.tensors[1:])
    with watch() as seen:
        qkv.attention(*tensors, backend="sdpa", mask=qkv.Causal(offset=6))
    heads = sizes.batch * sizes.heads
    pieces = [Piece(heads, 5, 6), Piece(heads, 5, 5, causal=True)]
    assert seen.products == passes.flash_products(pieces, sizes.width, sizes.width_v)


@EVERY_DTYPE
@pytest.mark.parametrize("what", ["bias", "lse"])
def test_gradient_of_bias_or_lse_goes_by_blocks(what: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 997)
    rng = random.Random(17)
    drawn = draw(rng, dtype)
    sizes = drawn.sizes
    mask, _ = draw_mask(rng, sizes, ("causal",))
    arguments = (
        {"return_lse": True} if what == "lse" else {"bias": torch.zeros(sizes.len_k, dtype=dtype).requires_grad_()}
    )
    seen = run(drawn, "sdpa", True, mask=mask, **arguments)
    assert mask is not None
    pairs = passes.block_pairs(sizes, blockwise.BLOCK, mask.band(drawn.extent))
    forward = passes.flash_products(pieces_of(drawn, mask), sizes.width, sizes.width_v)
    assert seen.products == forward + passes.block_gradient_products(pairs, sizes.width, sizes.width_v)


@FORWARD_OR_TRAINING
@SEEDS
def test_blocks(seed: int, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(200 + seed)
    monkeypatch.setattr(blockwise, "BLOCK", rng.choice((1999, 4999, 20011)))
    drawn = draw(rng, DTYPES[seed % 4])
    mask, _ = draw_mask(rng, drawn.sizes, ("none", "causal", "window", "lengths", "given"))
    similarity = rng.choice((qkv.Softmax(softcap=2.0), qkv.Polynomial(2), qkv.FeatureMap(qkv.features.elu1)))
    seen = run(drawn, "sdpa", training, similarity=similarity, mask=mask)
    band = None if mask is None else mask.band(drawn.extent)
    pairs = passes.block_pairs(drawn.sizes, blockwise.BLOCK, band)
    width, width_v = drawn.sizes.width, drawn.sizes.width_v
    assert seen.products == passes.block_products(pairs, width, width_v, masked=mask is not None, training=training)
    assert pairs <= drawn.sizes.cells


def test_blocks_are_cut_as_the_form_cuts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        monkeypatch.setattr(blockwise, "BLOCK", rng.randrange(100, 10_000))
        drawn = draw(rng, torch.float32)
        mask, _ = draw_mask(rng, drawn.sizes, ("causal", "window", "left", "lengths"))
        assert mask is not None
        call = read_inputs(*drawn.tensors, None, mask, None, 0.0, "sdpa", False, False)
        pairs = 0
        for b0, b1, g0, g1, i0, i1, j0, j1 in blockwise.blocks_of(call, blockwise.rows_in_block(call)):
            pairs += (b1 - b0) * (g1 - g0) * call.group * (i1 - i0) * max(0, j1 - j0)
        assert passes.block_pairs(drawn.sizes, blockwise.BLOCK, mask.band(drawn.extent)) == pairs


@FORWARD_OR_TRAINING
@SEEDS
def test_chunks(seed: int, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(300 + seed)
    monkeypatch.setattr(linear, "MOST_TOKENS", rng.choice((7, 11, 128)))
    monkeypatch.setattr(linear, "reasons_against", lambda call: ("this test is of torch's own",))
    drawn = draw(rng, DTYPES[seed % 4])
    sizes = drawn.sizes
    offset = rng.choice((None, rng.randrange(-3, sizes.len_k)))
    mask = None if offset is None else qkv.Causal(offset=offset)
    padding, _ = draw_mask(rng, sizes, ("none", "lengths"))
    if padding is not None:
        mask = padding if mask is None else mask & padding
    given, features = random_map(rng, sizes.width)
    similarity = rng.choice((qkv.Polynomial(2, -0.5), qkv.FeatureMap(given)))  # pyright: ignore[reportArgumentType]
    if isinstance(similarity, qkv.Polynomial):
        features = Features(features.feature_count(similarity, sizes.width))
    size = linear.size_of(features.width, sizes.batch, sizes.heads)
    seen = run(drawn, "linear", training, similarity=similarity, mask=mask)
    assert seen.products == passes.chunk_products(sizes, features, size, offset, training=training)


@FORWARD_OR_TRAINING
@pytest.mark.parametrize("seed", range(6))
def test_hard_by_blocks(seed: int, training: bool) -> None:
    rng = random.Random(400 + seed)
    drawn = draw(rng, torch.float64)
    mask, _ = draw_mask(rng, drawn.sizes, ("none", "causal", "given"))
    seen = run(drawn, "argmax", training, similarity=qkv.Argmax(), mask=mask)
    assert seen.products == passes.hard_products(drawn.sizes)


@pytest.mark.parametrize("rows", [1, 31, 512, 513, 1021, 1024, 2053])
@pytest.mark.parametrize("keys", [1, 31, 511, 512, 1021, 1536, 3001])
def test_flash_pairs_against_a_sum_over_blocks_of_any_size(rows: int, keys: int) -> None:
    for step in (32, 64, 256, 512):
        total = 0
        for first in range(0, rows, step):
            last = min(first + step, rows)
            total += (last - first) * min(keys, -(-min(last, keys) // 512) * 512)
        assert passes.flash_pairs(rows, keys, causal=True) == total
    needed = sum(min(i + 1, keys) for i in range(rows))
    assert needed <= passes.flash_pairs(rows, keys, causal=True) <= passes.flash_pairs(rows, keys, causal=False)


def test_flash_at_any_size() -> None:
    tokens = 10**15 // 512 * 512
    assert 2 * passes.flash_pairs(tokens, tokens, causal=True) == tokens * (tokens + 512)


@pytest.mark.parametrize("context", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_layer(dtype: torch.dtype, context: bool) -> None:
    batch, n, m, width, heads, kv_heads, head_width = 2, 17, 19 if context else 17, 23, 6, 3, 5
    layer = qkv.nn.Attention(width, heads, kv_heads=kv_heads, head_width=head_width).to(dtype)
    x, other = torch.randn(batch, n, width, dtype=dtype), torch.randn(batch, m, width, dtype=dtype)
    with watch() as seen:
        layer(x, other if context else None, mask=qkv.Causal(offset=2))
    sizes = Sizes(batch, heads, kv_heads, n, m, head_width, head_width)
    projections = 2 * batch * width * head_width * (2 * n * heads + 2 * m * kv_heads)
    query = torch.zeros(batch, heads, n, head_width, dtype=dtype, requires_grad=True)
    key = torch.zeros(batch, kv_heads, m, head_width, dtype=dtype)
    backend = qkv.explain(query, key, key, mask=qkv.Causal(offset=2)).backend
    pieces = pieces_of(Draw(sizes, query, key, key), qkv.Causal(offset=2))
    attention = {
        "reference": passes.dense_products(sizes, "softmax"),
        "sdpa": passes.flash_products(pieces, head_width, head_width),
    }[backend]
    assert seen.products == projections + attention


def test_a_block_of_a_model_trains_three_times_its_forward_products() -> None:
    torch.manual_seed(0)
    layer = qkv.nn.Attention(30, 5, bias=True)
    x = torch.randn(2, 7, 30, requires_grad=True)
    with watch() as forward:
        out = layer(x)
    with watch() as backward:
        out.sum().backward()
    linear = 4 * 2 * 2 * 7 * 30 * 30
    assert forward.by_operator["aten.addmm"].products == linear
    assert forward.by_operator["aten.addmm"].elementwise == 4 * 2 * 7 * 30
    assert backward.by_operator["aten.mm"].products == 2 * linear
