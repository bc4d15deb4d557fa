"""`Attention` against float64 computations written out, whole and in chunks."""

import copy
from math import nan

import pytest
import torch

import qkv
from qkv import nn
from tests.helpers.frozen_reference import (
    PLACES,
    SIMILARITIES,
    STORED,
    causal,
    close,
    integers,
    key_padding,
    multihead,
    numbers,
    randomize,
    refused,
    within,
)

BATCH, N, M = 3, 7, 11
WIDTH, HEADS, HEAD_WIDTH = 22, 6, 4
GROUPS = {"mha": 6, "gqa": 3, "gqa of three": 2, "mqa": 1}

by_group = pytest.mark.parametrize("kv_heads", GROUPS.values(), ids=GROUPS)
by_similarity = pytest.mark.parametrize("similarity", SIMILARITIES)
by_place = pytest.mark.parametrize("place", PLACES)


def build(kv_heads=None, *, similarity="default", place="none", seed=0, dtype=torch.float64, **options):
    """(module, its positions object)"""
    positions = PLACES[place].make(HEADS, WIDTH)
    options = {"head_width": HEAD_WIDTH, "similarity": SIMILARITIES[similarity][0](), **options}
    module = nn.Attention(WIDTH, HEADS, kv_heads=kv_heads, positions=positions, **options)
    return randomize(module, seed, dtype).eval(), positions


def tokens(n=N, seed=0):
    return numbers(BATCH, n, WIDTH, seed=seed)


@by_group
@by_similarity
def test_self_attention(kv_heads, similarity):
    module, _ = build(kv_heads, similarity=similarity)
    found, weights = module(tokens(), return_weights=True)
    wanted, by_hand = multihead(module, tokens(), HEADS, kv_heads, similarity=similarity)
    close(found, wanted)
    close(weights, by_hand)
    close(module(tokens()), wanted)


@by_group
@by_similarity
@pytest.mark.parametrize("context_width", [None, 13])
def test_cross_attention(kv_heads, similarity, context_width):
    module, _ = build(kv_heads, similarity=similarity, context_width=context_width)
    context = numbers(BATCH, M, context_width or WIDTH, seed=1)
    found, weights = module(tokens(), context, return_weights=True)
    wanted, by_hand = multihead(module, tokens(), HEADS, kv_heads, context=context, similarity=similarity)
    close(found, wanted)
    close(weights, by_hand)
    key, value = module.project(context)
    assert key.shape == value.shape == (BATCH, kv_heads, M, HEAD_WIDTH)
    close(module(tokens(), (key, value)), wanted)


@pytest.mark.parametrize("bias", [False, True])
def test_the_projections_are_what_they_are_called(bias):
    module = nn.Attention(WIDTH, HEADS, kv_heads=2, head_width=5, context_width=13, bias=bias)
    shapes = {"query": (30, WIDTH), "key": (10, 13), "value": (10, 13), "out": (WIDTH, 30)}
    for name, shape in shapes.items():
        assert isinstance(getattr(module, name), torch.nn.Linear)
        assert getattr(module, name).weight.shape == shape
        assert (getattr(module, name).bias is not None) == bias
    wanted = {f"{name}.weight" for name in shapes} | ({f"{name}.bias" for name in shapes} if bias else set())
    assert set(module.state_dict()) == wanted
    assert nn.Attention(15, 5).query.weight.shape == (15, 15)
    module = randomize(nn.Attention(WIDTH, HEADS, kv_heads=2, head_width=5, bias=bias))
    close(module(tokens()), multihead(module, tokens(), HEADS, 2)[0])


KEEP = integers(2, BATCH, N, seed=3).bool() | torch.eye(N)[[1, 4, 6]].bool()
ANY = integers(3, BATCH, HEADS, N, N, seed=4) > 0
AT = torch.arange(N)
MASKS = {
    "causal": (lambda: qkv.Causal(), causal(N)),
    "window": (lambda: qkv.Window(left=2, right=1), (AT[:, None] - AT <= 2) & (AT - AT[:, None] <= 1)),
    "lengths": (lambda: qkv.Padding(lengths=torch.tensor([7, 3, 5])), key_padding(within([7, 3, 5], N))),
    "keep": (lambda: qkv.Padding(keep=KEEP), key_padding(KEEP)),
    "drop": (lambda: qkv.Padding(drop=~KEEP), key_padding(KEEP)),
    "causal and keep": (lambda: qkv.Causal() & qkv.Padding(keep=KEEP), causal(N) & key_padding(KEEP)),
    "causal window": (lambda: qkv.Causal() & qkv.Window(left=2), causal(N) & (AT[:, None] - AT <= 2)),
    "dense": (lambda: qkv.Dense(ANY), ANY),
    "predicate": (lambda: qkv.Predicate(lambda b, h, i, j: (i + j + h) % 3 != 0), None),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("similarity", ["default", "softmax", "argmax", "quadratic", "elu"])
def test_masks(mask, similarity):
    made, seen = MASKS[mask]
    if seen is None:
        seen = (AT[:, None] + AT + torch.arange(HEADS)[:, None, None]) % 3 != 0
    module, _ = build(3, similarity=similarity)
    found, weights = module(tokens(), mask=made(), return_weights=True)
    wanted, by_hand = multihead(module, tokens(), HEADS, 3, seen=seen, similarity=similarity)
    close(found, wanted)
    close(weights, by_hand)
    assert not weights[~seen.expand_as(weights)].any()


@by_similarity
def test_what_is_masked_cannot_matter(similarity):
    """Keys beyond a row's length, and tokens of the future, are NaN."""
    module, _ = build(2, similarity=similarity)
    context, keep = numbers(BATCH, M, WIDTH, seed=1), within([11, 1, 6], M)
    wanted = module(tokens(), context, mask=qkv.Padding(keep=keep))
    context[~keep] = nan
    close(module(tokens(), context, mask=qkv.Padding(keep=keep)), wanted)
    x = tokens()
    wanted = module(x, mask=qkv.Causal())
    x[:, 4:] = nan
    found = module(x, mask=qkv.Causal())
    close(found[:, :4], wanted[:, :4])
    assert found[:, 4:].isnan().all()


def test_a_query_that_sees_nothing_gets_the_projection_of_zero():
    module, _ = build(3, bias=True)
    found = module(tokens(), mask=qkv.Padding(lengths=torch.tensor([7, 0, 3])))
    close(found[1], module.out.bias.expand(N, WIDTH))


@by_place
@pytest.mark.parametrize("mask", ["none", "causal", "lengths"])
def test_positions(place, mask):
    module, positions = build(3, place=place)
    made, seen = MASKS.get(mask, (lambda: None, None))
    wanted, by_hand = multihead(module, tokens(), HEADS, 3, seen=seen, place=place, positions=positions)
    found, weights = module(tokens(), mask=made(), return_weights=True)
    close(found, wanted)
    close(weights, by_hand)


CHUNKS = ([N], [1] * N, [3, 4], [1, 5, 1], [6, 1])


@pytest.mark.slow
@by_group
@by_place
def test_in_chunks_with_a_cache(kv_heads, place):
    module, positions = build(kv_heads, place=place)
    wanted, _ = multihead(module, tokens(), HEADS, kv_heads, seen=causal(N), place=place, positions=positions)
    for chunks in CHUNKS:
        cache = module.cache(BATCH)
        assert isinstance(cache, qkv.KVCache)
        with torch.no_grad():
            parts = [module(part, cache=cache) for part in tokens().split(chunks, 1)]
        close(torch.cat(parts, 1), wanted, STORED)
        assert cache.lengths.tolist() == [N] * BATCH


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("place", ["none", "rotary", "alibi"])
def test_storage(storage, dtype, place):
    module, positions = build(2, place=place, dtype=dtype)
    wanted, _ = multihead(module, tokens().to(dtype), HEADS, 2, seen=causal(N), place=place, positions=positions)
    cache = module.cache(BATCH, dtype=storage)
    assert cache.dtype is storage
    with torch.no_grad():
        parts = [module(part.to(dtype), cache=cache) for part in tokens().split([4, 1, 2], 1)]
    assert parts[0].dtype is dtype
    loose = {torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.int8: 8e-2}[storage]
    close(torch.cat(parts, 1), wanted, {"atol": loose, "rtol": loose})


@pytest.mark.slow
@pytest.mark.parametrize("similarity", ["softmax", "sinks", "argmax", "elu", "sums", "quadratic", "quartic"])
@pytest.mark.parametrize("place", ["none", "rotary", "rotary, part", "sinusoidal", "learned"])
def test_every_similarity_with_its_cache(similarity, place):
    module, positions = build(2, similarity=similarity, place=place)
    wanted, _ = multihead(
        module, tokens(), HEADS, 2, seen=causal(N), similarity=similarity, place=place, positions=positions
    )
    for chunks in CHUNKS:
        cache = module.cache(BATCH)
        kind = qkv.KVCache if similarity in ("softmax", "sinks", "argmax") else qkv.LinearState
        assert isinstance(cache, kind)
        with torch.no_grad():
            parts = [module(part, cache=cache) for part in tokens().split(chunks, 1)]
        close(torch.cat(parts, 1), wanted, STORED)


# A state takes no bias.
RAGGED = [(place, name) for place in PLACES for name in ("default", "elu") if name != "elu" or not PLACES[place].bias]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "similarity"), RAGGED)
@pytest.mark.parametrize("padding", ["right", "left"])
def test_rows_of_different_lengths_are_the_rows_alone(place, padding, similarity):
    """Positions go on from each row's own length; what does not count is NaN."""
    module, positions = build(2, place=place, similarity=similarity)
    counts = [[7, 2, 5], [1, 3, 0], [2, 2, 2]]
    cache, rows, found = module.cache(BATCH), [[], [], []], [[], [], []]
    for at, (n, lengths) in enumerate(zip((7, 3, 2), counts, strict=True)):
        x = numbers(BATCH, n, WIDTH, seed=20 + at)
        for b, count in enumerate(lengths):
            real = slice(n - count, n) if padding == "left" else slice(0, count)
            rows[b].append(x[b, real].clone())
            gone = torch.ones(n, dtype=torch.bool)
            gone[real] = False
            x[b, gone] = nan
        with torch.no_grad():
            out = module(x, cache=cache, lengths=torch.tensor(lengths), padding=padding)
        for b, count in enumerate(lengths):
            found[b].append(out[b, n - count :] if padding == "left" else out[b, :count])
    assert cache.lengths.tolist() == [10, 7, 7]
    for b in range(BATCH):
        x = torch.cat(rows[b])[None]
        wanted, _ = multihead(
            module,
            x,
            HEADS,
            2,
            seen=causal(x.shape[1]),
            place=place,
            positions=positions,
            similarity=similarity,
        )
        close(torch.cat(found[b])[None], wanted, STORED)


def test_masks_with_a_cache_are_in_absolute_positions():
    module, _ = build(3, place="rotary")
    seen = causal(N) & (AT[:, None] - AT <= 2)
    wanted, _ = multihead(module, tokens(), HEADS, 3, seen=seen, place="rotary")
    for chunks in CHUNKS:
        cache = module.cache(BATCH)
        with torch.no_grad():
            parts = [module(part, cache=cache, mask=qkv.Window(left=2)) for part in tokens().split(chunks, 1)]
        close(torch.cat(parts, 1), wanted, STORED)


def test_a_cache_has_a_capacity():
    module, _ = build(3)
    cache = module.cache(BATCH, capacity=N)
    with torch.no_grad():
        module(tokens(), cache=cache)
        with refused():
            module(tokens(1), cache=cache)
    assert cache.lengths.tolist() == [N] * BATCH


class Softplus(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(HEAD_WIDTH, 5)

    def forward(self, x):
        return torch.nn.functional.softplus(self.inner(x))


def test_a_feature_map_that_is_a_module_trains():
    phi = Softplus()
    module = randomize(nn.Attention(WIDTH, HEADS, head_width=HEAD_WIDTH, similarity=qkv.FeatureMap(phi)))
    assert {id(p) for p in phi.parameters()} <= {id(p) for p in module.parameters()}
    module(tokens(), mask=qkv.Causal()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    assert all(p.dtype is torch.float64 for p in phi.parameters())
    twin = copy.deepcopy(module)
    twin.load_state_dict(module.state_dict())
    close(twin(tokens()), module(tokens()))
    with torch.no_grad():
        for p in phi.parameters():
            p.add_(0.3)
    assert (module(tokens()) - twin(tokens())).abs().max() > 1e-4


def test_dropout_is_for_training():
    module, _ = build(3, dropout=0.5)
    wanted, _ = multihead(module, tokens(), HEADS, 3)
    close(module(tokens()), wanted)
    module.train()
    torch.manual_seed(0)
    one = module(tokens())
    torch.manual_seed(0)
    assert torch.equal(module(tokens()), one)
    assert (one - wanted).abs().max() > 1e-3


def memorized(module):
    return module.cache(BATCH)


REFUSED = {
    "heads that do not divide the width": lambda: nn.Attention(22, 6),
    "kv_heads that do not divide the heads": lambda: nn.Attention(24, 6, kv_heads=4),
    "no heads": lambda: nn.Attention(24, 0),
    "dropout above 1": lambda: nn.Attention(24, 6, dropout=1.5),
    "another width": lambda: build()[0](numbers(BATCH, N, WIDTH + 1)),
    "two axes": lambda: build()[0](numbers(N, WIDTH)),
    "another context width": lambda: build(context_width=13)[0](tokens(), numbers(BATCH, M, WIDTH)),
    "lengths without a cache": lambda: build()[0](tokens(), lengths=torch.tensor([1, 2, 3])),
    "an unknown side": lambda: (
        lambda a: a(tokens(), cache=a.cache(BATCH), lengths=torch.tensor([1, 2, 3]), padding="middle")
    )(build()[0]),
    "weights with a cache": lambda: (lambda a: a(tokens(), cache=memorized(a), return_weights=True))(build()[0]),
    "a context with a cache": lambda: (lambda a: a(tokens(), tokens(), cache=memorized(a)))(build()[0]),
    "a cache of another batch": lambda: (lambda a: a(tokens(), cache=a.cache(2)))(build()[0]),
    "lengths beyond the tokens": lambda: (
        lambda a: a(tokens(), cache=memorized(a), lengths=torch.tensor([1, 2, N + 1]))
    )(build()[0]),
    "ALiBi with a state": lambda: (lambda a: a(tokens(), cache=memorized(a)))(
        build(place="alibi", similarity="elu")[0]
    ),
    "ALiBi and argmax": lambda: build(place="alibi", similarity="argmax")[0](tokens()),
    "buckets and a power": lambda: build(place="buckets", similarity="quadratic")[0](tokens()),
    "more positions than Learned has": lambda: build(place="learned")[0](tokens(32)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what):
    with torch.no_grad(), refused():
        REFUSED[what]()
