"""Each position encoding against its formula, and what it must not change."""

import json
import math

import pytest
import torch

import qkv
from qkv import nn
from tests.helpers.decode_reference import in_a_process
from tests.helpers.frozen_reference import (
    PLACES,
    STORED,
    bucket,
    causal,
    close,
    distance_bias,
    heads_of,
    multihead,
    numbers,
    only,
    randomize,
    refused,
    rotate,
    slopes,
    waves,
)

BATCH, N = 3, 13


def still(module):
    """All weights zero but value and out, which are the identity: what is left is what positions do."""
    with torch.no_grad():
        for projection in (module.query, module.key):
            projection.weight.zero_()
        for projection in (module.value, module.out):
            projection.weight.copy_(torch.eye(*projection.weight.shape))
    return module.double()


def weights_of(module, x, **options):
    return module(x, return_weights=True, **options)[1]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 20])
def test_alibi_has_the_slopes_of_the_paper(heads):
    positions = nn.ALiBi(heads)
    assert not list(positions.parameters())
    module = still(nn.Attention(2 * heads, heads, positions=positions))
    found = weights_of(module, numbers(BATCH, N, 2 * heads))
    close(found, distance_bias(heads, N, N).softmax(-1).expand(BATCH, -1, -1, -1))


def test_the_slopes_of_the_paper():
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(3) == [2**-4, 2**-8, 2**-2]
    assert slopes(12)[8:] == [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (16, 17)])
def test_buckets_of_t5(buckets, farthest, bidirectional):
    """Weight (buckets, heads): the bias of a pair is the row of its bucket, near, far and beyond the farthest."""
    n, heads = 149, 2
    positions = nn.RelativeBias(heads, buckets=buckets, farthest=farthest, bidirectional=bidirectional)
    assert only(positions).shape == (buckets, heads)
    assert only(positions).requires_grad
    module = still(nn.Attention(4, heads, positions=positions))
    with torch.no_grad():
        only(positions).copy_(torch.arange(buckets)[:, None] / buckets * torch.tensor([1.0, -0.5]))
    logs = weights_of(module, numbers(1, n, 4)).log()[0]
    table = torch.tensor(
        [[bucket(i, j, buckets, farthest, bidirectional) for j in range(n)] for i in range(n)], dtype=torch.float64
    )
    for head, slope in enumerate((1.0, -0.5)):
        found = (logs[head] - logs[head].diagonal()[:, None]) * buckets / slope
        close(found, table - table.diagonal()[:, None], {"atol": 1e-6, "rtol": 0.0})


def test_the_buckets_that_are_never_used_do_not_matter():
    """One way, what lies ahead shares the bucket of the distance 0."""
    positions = nn.RelativeBias(3, buckets=6, farthest=9, bidirectional=False)
    module = randomize(nn.Attention(6, 3, positions=positions))
    x = numbers(BATCH, 4, 6)
    wanted = module(x)
    with torch.no_grad():
        only(positions)[4:] = math.nan
    close(module(x), wanted)


def test_a_bucket_learns_only_from_its_own_pairs():
    positions = nn.RelativeBias(3, buckets=8, farthest=11)
    module = randomize(nn.Attention(6, 3, positions=positions))
    module(numbers(BATCH, 2, 6)).square().sum().backward()
    used = {bucket(i, j, 8, 11) for i in range(2) for j in range(2)}
    moved = {int(row) for row in only(positions).grad.any(1).nonzero()}
    assert moved == used


ROTARY = {
    "halves": ({}, {}),
    "interleaved": ({"interleaved": True}, {"interleaved": True}),
    "base": ({"base": 500.0}, {"base": 500.0}),
    "half": ({"fraction": 0.5}, {"turned": 4}),
    "quarter, interleaved": ({"fraction": 0.25, "interleaved": True}, {"turned": 2, "interleaved": True}),
    "three quarters": ({"fraction": 0.75, "base": 77.0}, {"turned": 6, "base": 77.0}),
}


@pytest.mark.parametrize("kind", ROTARY)
def test_rotary_turns_queries_and_keys_and_nothing_else(kind):
    asked, by_hand = ROTARY[kind]
    positions = nn.Rotary(**asked)
    assert not list(positions.parameters())
    module = randomize(nn.Attention(15, 3, head_width=8, kv_heads=1, positions=positions))
    x, at = numbers(BATCH, N, 15), torch.arange(N)
    q, k = heads_of(module.query(x), 3), heads_of(module.key(x), 1)
    scores = rotate(q, at, **by_hand) @ rotate(k, at, **by_hand).mT / math.sqrt(8)
    weights = scores.softmax(-1)
    close(weights_of(module, x), weights)
    values = heads_of(module.value(x), 1)
    close(module(x), module.out((weights @ values).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("kind", ["rotary", "rotary, interleaved", "rotary, part", "alibi", "buckets"])
def test_only_distances_count(kind):
    """Shifted by a fully masked prefix, the answers are the same."""
    module = randomize(nn.Attention(24, 6, positions=PLACES[kind].make(6, 24)))
    x, prefix = numbers(BATCH, N, 24), numbers(BATCH, 5, 24, seed=1)
    keep = torch.ones(BATCH, N + 5, dtype=torch.bool)
    keep[:, :5] = False
    shifted = module(torch.cat([prefix, x], 1), mask=qkv.Padding(keep=keep))
    close(shifted[:, 5:], module(x))


@pytest.mark.parametrize("place", [name for name in PLACES if name != "none"])
def test_order_counts(place):
    """Without positions a permutation of the tokens permutes the answers; with them it does not."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    x = numbers(BATCH, N, 24)
    plain = randomize(nn.Attention(24, 6))
    close(plain(x[:, order]), plain(x)[:, order])
    placed = randomize(nn.Attention(24, 6, positions=PLACES[place].make(6, 24)))
    assert (placed(x[:, order]) - placed(x)[:, order]).abs().max() > 1e-4


@pytest.mark.parametrize("base", [10000.0, 37.0])
def test_sinusoidal_is_the_table_of_the_paper(base):
    positions = nn.Sinusoidal(14, base=base)
    assert not list(positions.parameters())
    module = still(nn.Attention(14, 1, positions=positions))
    found = module(torch.zeros(1, 401, 14).double(), mask=qkv.Window(0, 0))
    close(found[0], waves(401, 14, base))


def test_learned_is_added_to_the_input():
    positions = nn.Learned(N, 14)
    assert only(positions).shape == (N, 14)
    module = still(nn.Attention(14, 1, positions=positions))
    x = numbers(BATCH, N, 14)
    close(module(x, mask=qkv.Window(0, 0)), x + only(positions))
    short = module(x[:, :5], mask=qkv.Window(0, 0))
    close(short, x[:, :5] + only(positions)[:5])


def test_learned_ends_where_it_ends():
    module = randomize(nn.Attention(14, 1, positions=nn.Learned(N, 14)))
    with refused(str(N)):
        module(numbers(BATCH, N + 1, 14))
    cache = module.cache(BATCH)
    with torch.no_grad():
        module(numbers(BATCH, N - 1, 14), cache=cache)
        with refused(str(N)):
            module(numbers(BATCH, 2, 14), cache=cache)
        assert cache.lengths.tolist() == [N - 1] * BATCH, "an error leaves the cache as it was"
        module(numbers(BATCH, 1, 14), cache=cache)
        with refused(str(N)):
            module(numbers(BATCH, 1, 14), cache=cache)


def test_learned_counts_each_row_on_its_own():
    """A row with positions left can grow next to a full one, if only the former gets new tokens."""
    module = randomize(nn.Attention(14, 1, positions=nn.Learned(5, 14)))
    cache = module.cache(2)
    x = numbers(2, 5, 14)
    with torch.no_grad():
        module(x, cache=cache, lengths=torch.tensor([5, 2]), padding="left")
        found = module(x[:, :2], cache=cache, lengths=torch.tensor([0, 2]), padding="right")
    row = torch.cat([x[1, 3:], x[1, :2]])[None]
    positions = next(m for m in module.modules() if isinstance(m, nn.Learned))
    wanted, _ = multihead(module, row, 1, seen=causal(4), place="learned", positions=positions)
    close(found[1:], wanted[:, 2:], STORED)


@pytest.mark.parametrize("place", [name for name in PLACES if name != "none"])
def test_positions_go_on_from_the_cache(place):
    """Step by step over 80 tokens, more than a page of the cache holds."""
    positions = nn.Learned(80, 24) if place == "learned" else PLACES[place].make(6, 24)
    module = randomize(nn.Attention(24, 6, kv_heads=2, positions=positions))
    x = numbers(2, 80, 24)
    wanted, _ = multihead(module, x, 6, 2, seen=causal(80), place=place, positions=positions)
    cache = module.cache(2)
    with torch.no_grad():
        parts = [module(part, cache=cache) for part in x.split([61] + [1] * 8 + [11], 1)]
    close(torch.cat(parts, 1), wanted, STORED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_other_dtypes(place, dtype):
    positions = PLACES[place].make(6, 24)
    module = randomize(nn.Attention(24, 6, positions=positions), dtype=dtype)
    x = numbers(BATCH, N, 24, dtype=dtype)
    found = module(x, mask=qkv.Causal())
    assert found.dtype is dtype
    wanted, _ = multihead(module, x, 6, seen=causal(N), place=place, positions=positions)
    loose = 1e-5 if dtype is torch.float32 else 6e-2
    close(found, wanted, {"atol": loose, "rtol": loose})


# In a separate process: dynamo cannot trace conftest's hook, which checks shapes at every call.
COMPILED = """
import copy, json
import torch
import qkv
from tests.helpers.decode_reference import in_a_process
from tests.helpers.frozen_reference import PLACES, close, integers, numbers, randomize
from qkv import nn

torch.set_num_threads(1)
LOOSE = {"atol": 1e-4, "rtol": 1e-4}
x, words = numbers(3, 13, 24, dtype=torch.float32), integers(11, 3, 13)

def attention(place):
    module = randomize(nn.Attention(24, 6, kv_heads=2, positions=PLACES[place].make(6, 24)), dtype=torch.float32)
    mask = None if place == "none" else qkv.Causal()
    close(torch.compile(module, fullgraph=True, backend="eager")(x, mask=mask), module(x, mask=mask), LOOSE)

def decoder(place):
    model = nn.Decoder(24, 6, 2, vocabulary=11, positions=PLACES[place].make(6, 24))
    model = randomize(model, dtype=torch.float32)
    close(torch.compile(model, fullgraph=True, backend="eager")(words), model(words), LOOSE)

def training(place):
    block = randomize(nn.Block(24, 6, positions=PLACES[place].make(6, 24)), dtype=torch.float32)
    twin = copy.deepcopy(block)
    block(x, mask=qkv.Causal()).square().mean().backward()
    torch.compile(twin, fullgraph=True, backend="aot_eager")(x, mask=qkv.Causal()).square().mean().backward()
    for one, other in zip(block.parameters(), twin.parameters(), strict=True):
        close(other.grad, one.grad, LOOSE)

said = {}
for name, places in CASES.items():
    for place in places:
        torch._dynamo.reset()
        try:
            globals()[name](place)
            said[f"{name}, {place}"] = "held"
        except Exception as error:
            said[f"{name}, {place}"] = f"{type(error).__name__}: {str(error)[:3000]}"
print(json.dumps(said))
"""
CASES = {
    "attention": ["none", "rotary", "alibi", "buckets", "learned", "sinusoidal"],
    "decoder": ["rotary", "learned"],
    "training": ["buckets"],
}


@pytest.fixture(scope="module")
def compiled():
    return json.loads(in_a_process(f"CASES = {CASES!r}\n{COMPILED}").splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", [f"{name}, {place}" for name, places in CASES.items() for place in places])
def test_it_compiles_to_one_graph(case, compiled):
    assert compiled[case] == "held", compiled[case]


REFUSED = {
    "Rotary of an odd number of features": lambda: nn.Attention(15, 3, positions=nn.Rotary())(
        numbers(1, 2, 15).float()
    ),
    "Rotary with a fraction above 1": lambda: nn.Rotary(fraction=1.5),
    "Rotary with a fraction below 0": lambda: nn.Rotary(fraction=-0.5),
    "Rotary with base 0": lambda: nn.Rotary(base=0.0),
    "ALiBi for no heads": lambda: nn.ALiBi(0),
    "ALiBi for other heads": lambda: nn.Attention(24, 6, positions=nn.ALiBi(4))(numbers(1, 2, 24).float()),
    "RelativeBias for other heads": lambda: nn.Attention(24, 6, positions=nn.RelativeBias(4))(
        numbers(1, 2, 24).float()
    ),
    "Learned of another width": lambda: nn.Attention(24, 6, positions=nn.Learned(5, 23))(numbers(1, 2, 24).float()),
    "Sinusoidal of another width": lambda: nn.Attention(24, 6, positions=nn.Sinusoidal(22))(numbers(1, 2, 24).float()),
    "Learned of no length": lambda: nn.Learned(0, 24),
    "a word for positions": lambda: nn.Attention(24, 6, positions="rotary"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what):
    with refused():
        REFUSED[what]()
