"""`Attention` against multi-head attention written out, head by head and key by key."""

import copy
import math

import pytest
import torch

import qkv
from qkv.nn import ALiBi, Attention, Learned, RelativeBias, Rotary, Sinusoidal

BATCH, N, M, WIDTH, CONTEXT, HEAD = 2, 5, 7, 13, 17, 4
ELU1 = qkv.FeatureMap(qkv.features.elu1)


def layer_of(heads=6, kv_heads=3, **options) -> Attention:
    torch.manual_seed(0)
    return Attention(WIDTH, heads, kv_heads=kv_heads, head_width=HEAD, bias=True, **options).double()


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_hand(layer: Attention, x, context, keep=None, causal=False, similarity=None) -> torch.Tensor:
    """Project; split into heads; repeat the padding over heads; scaled dot products; join; project."""
    similarity = similarity or (lambda q, k: math.exp(float(q @ k) / math.sqrt(HEAD)))
    query = x @ layer.query.weight.T + layer.query.bias
    key, value = (context @ p.weight.T + p.bias for p in (layer.key, layer.value))
    group = layer.heads // layer.kv_heads
    joined = torch.zeros(len(x), x.shape[1], layer.heads * HEAD, dtype=torch.float64)
    for b in range(len(x)):
        real = [j for j in range(context.shape[1]) if keep is None or keep[b][j]]
        for h in range(layer.heads):
            mine, theirs = slice(h * HEAD, (h + 1) * HEAD), slice(h // group * HEAD, (h // group + 1) * HEAD)
            for i in range(x.shape[1]):
                seen = [j for j in real if not causal or j <= i]
                sims = [similarity(query[b, i, mine], key[b, j, theirs]) for j in seen]
                for sim, j in zip(sims, seen, strict=True):
                    joined[b, i, mine] += sim / sum(sims) * value[b, j, theirs]
    return joined @ layer.out.weight.T + layer.out.bias


@pytest.mark.parametrize("heads", [(6, 3), (5, 5), (6, 1)])
@torch.no_grad()
def test_self_attention_with_padding(heads) -> None:
    layer, x = layer_of(*heads), draw(BATCH, N, WIDTH)
    lengths = [3, 5]
    wanted = by_hand(layer, x, x, keep=[[j < n for j in range(N)] for n in lengths])
    poisoned = x.clone()
    poisoned[0, 3:] = torch.nan
    out = layer(poisoned, mask=qkv.Padding(lengths))
    torch.testing.assert_close(out[0, :3], wanted[0, :3])
    torch.testing.assert_close(out[1], wanted[1])


@torch.no_grad()
def test_causal_self_attention() -> None:
    layer, x = layer_of(), draw(BATCH, N, WIDTH)
    torch.testing.assert_close(layer(x, mask=qkv.Causal()), by_hand(layer, x, x, causal=True))
    poisoned = x.clone()
    poisoned[:, 3:] = torch.nan
    torch.testing.assert_close(layer(poisoned, mask=qkv.Causal())[:, :3], by_hand(layer, x, x, causal=True)[:, :3])


@torch.no_grad()
def test_cross_attention_with_padding() -> None:
    layer, x, context = layer_of(context_width=CONTEXT), draw(BATCH, N, WIDTH), draw(BATCH, M, CONTEXT)
    keep = torch.tensor([[True, False, True, True, False, False, True], [True] * 7])
    wanted = by_hand(layer, x, context, keep=keep.tolist())
    poisoned = context.masked_fill(~keep.unsqueeze(-1), torch.nan)
    torch.testing.assert_close(layer(x, poisoned, mask=qkv.Padding(keep=keep)), wanted)
    key, value = layer.project(poisoned)
    assert key.shape == value.shape == (BATCH, 3, M, HEAD)
    torch.testing.assert_close(layer(x, (key, value), mask=qkv.Padding(keep=keep)), wanted)


@torch.no_grad()
def test_another_similarity() -> None:
    def sim(q, k):
        return float(qkv.features.elu1(q) @ qkv.features.elu1(k))

    layer, x = layer_of(similarity=ELU1), draw(BATCH, N, WIDTH)
    wanted = by_hand(layer, x, x, causal=True, similarity=sim)
    torch.testing.assert_close(layer(x, mask=qkv.Causal()), wanted)


@torch.no_grad()
def test_weights_are_those_that_were_applied() -> None:
    layer, x, context = layer_of(context_width=CONTEXT), draw(BATCH, N, WIDTH), draw(BATCH, M, CONTEXT)
    out, weights = layer(x, context, mask=qkv.Padding([2, 7]), return_weights=True)
    assert weights.shape == (BATCH, 6, N, M)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, 6, N, dtype=torch.float64))
    assert not weights[0, :, :, 2:].any()
    value = layer.project(context)[1].repeat_interleave(2, dim=1)
    torch.testing.assert_close(layer.out((weights @ value).transpose(1, 2).flatten(2)), out)


POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(fraction=0.5),
    "alibi": lambda: ALiBi(6),
    "relative": lambda: RelativeBias(6, buckets=8, farthest=11),
    "learned": lambda: Learned(23, WIDTH),
    "sinusoidal": lambda: Sinusoidal(WIDTH),
}


def caches():
    for name, make in POSITIONS.items():
        yield pytest.param(make, qkv.Softmax(softcap=5.0), id=f"softmax-{name}")
        if name not in ("alibi", "relative"):
            yield pytest.param(make, ELU1, id=f"elu1-{name}")
            yield pytest.param(make, qkv.Polynomial(2), id=f"polynomial-{name}")


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "similarity"), list(caches()))
@pytest.mark.parametrize("padding", ["right", "left"])
@torch.no_grad()
def test_ragged_rows_with_a_cache_are_the_rows_alone(positions, similarity, padding) -> None:
    layer = layer_of(positions=positions(), similarity=similarity)
    lengths, total = [[4, 1], [0, 3], [2, 2]], (6, 6)
    x = draw(2, 6, WIDTH)
    cache, at, outs = layer.cache(batch=2), [0, 0], [[], []]
    for counts in lengths:
        n = max(counts) + 1
        piece = torch.full((2, n, WIDTH), torch.nan, dtype=torch.float64)
        where = [slice(0, c) if padding == "right" else slice(n - c, n) for c in counts]
        for b in range(2):
            piece[b, where[b]] = x[b, at[b] : at[b] + counts[b]]
        out = layer(piece, cache=cache, lengths=counts, padding=padding)
        for b in range(2):
            outs[b].append(out[b, where[b]])
            at[b] += counts[b]
    assert cache.lengths.tolist() == list(total)
    # A KVCache stores float32.
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(torch.stack([torch.cat(o) for o in outs]), layer(x, mask=qkv.Causal()), **tolerance)


@torch.no_grad()
def test_a_mask_with_a_cache_is_in_absolute_positions() -> None:
    layer, x = layer_of(positions=Rotary(), similarity=qkv.Argmax()), draw(1, N, WIDTH)
    cache, mask = layer.cache(batch=1), qkv.Window(left=1)
    steps = [layer(x[:, i : i + 1], cache=cache, mask=mask) for i in range(N)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, mask=qkv.Causal() & mask), rtol=1e-5, atol=1e-6)


def test_caches_have_the_kind_and_the_sizes_of_the_layer() -> None:
    cache = layer_of().cache(batch=5, dtype=torch.int8, capacity=70)
    assert isinstance(cache, qkv.KVCache)
    assert (cache.batch, cache.heads, cache.width, cache.capacity) == (5, 3, HEAD, 70)
    assert cache.dtype is torch.int8
    state = layer_of(similarity=ELU1).cache(batch=5)
    assert isinstance(state, qkv.LinearState)
    assert (state.batch, state.heads, state.width) == (5, 3, HEAD)


def test_a_map_that_is_a_module_and_a_sink_train() -> None:
    class Map(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(HEAD, 3)

        def forward(self, x):
            return self.inner(x).exp()

    mapped = layer_of(similarity=qkv.FeatureMap(Map()))
    assert {"map.inner.weight", "map.inner.bias"} <= set(dict(mapped.named_parameters()))
    sinking = layer_of(similarity=qkv.Softmax(sink=torch.nn.Parameter(torch.zeros(6))))
    x = draw(BATCH, N, WIDTH)
    for layer, name in ((mapped, "map.inner.weight"), (sinking, "sink")):
        twin = copy.deepcopy(layer)
        layer(x, mask=qkv.Causal()).square().sum().backward()
        parameter = layer.get_parameter(name)
        assert parameter.grad is not None
        assert parameter.grad.abs().min() > 0
        # A copy has separate weights, and uses them.
        before = layer(x)
        with torch.no_grad():
            twin.get_parameter(name).add_(1.0)
        assert torch.equal(layer(x), before)
        assert not torch.allclose(twin(x), before)
        twin.load_state_dict(layer.state_dict(), assign=True)
        assert torch.equal(twin(x), before)


@pytest.mark.slow
@pytest.mark.parametrize("positions", list(POSITIONS.values()), ids=list(POSITIONS))
def test_gradients_are_the_numeric_ones(positions) -> None:
    torch.manual_seed(0)
    kind = positions()
    if isinstance(kind, ALiBi | RelativeBias):
        kind = type(kind)(2)
    if isinstance(kind, Learned | Sinusoidal):
        kind = Learned(5, 3) if isinstance(kind, Learned) else Sinusoidal(3)
    layer = Attention(3, 2, kv_heads=1, head_width=4, positions=kind, bias=True).double()
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,), {"mask": qkv.Causal()})

    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, (draw(2, 3, 3).requires_grad_(), *weights))


def test_dropout_only_while_training() -> None:
    layer, x = layer_of(dropout=0.5), draw(BATCH, N, WIDTH)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"heads": 5}, qkv.errors.OptionError, "divides the width 12"),
        ({"heads": 0}, qkv.errors.OptionError, "heads"),
        ({"heads": 4, "kv_heads": 3}, qkv.errors.OptionError, "divides the 4 heads"),
        ({"heads": 4, "dropout": 1.5}, qkv.errors.OptionError, "dropout"),
        ({"heads": 4, "positions": ALiBi(3)}, qkv.errors.ShapeError, "3 heads"),
        ({"heads": 4, "positions": Rotary}, qkv.errors.OptionTypeError, "class Rotary"),
        ({"heads": 4, "positions": Rotary()}, qkv.errors.OptionError, "even number of features"),
        ({"heads": 4, "positions": Learned(5, 7)}, qkv.errors.ShapeError, "width 7"),
        ({"heads": 4, "similarity": "softmax"}, qkv.errors.OptionTypeError, "similarity"),
    ],
)
def test_options_that_cannot_be(options, error, says) -> None:
    with pytest.raises(error, match=says):
        Attention(12, **options)


def test_calls_that_cannot_be() -> None:
    layer, x = layer_of(), draw(BATCH, N, WIDTH)
    cache = layer.cache(BATCH)
    for call, error, says in (
        (lambda: layer(x[0]), qkv.errors.ShapeError, r"\(batch, n, 13\)"),
        (lambda: layer(x.float()), qkv.errors.DtypeError, "float64, the dtype of the module"),
        (lambda: layer(x, lengths=[1, 2]), qkv.errors.OptionError, "without a cache"),
        (lambda: layer(x, cache=cache), qkv.errors.BackendRefused, "requires grad"),
        (lambda: layer(x, x, cache=cache), qkv.errors.OptionError, "context"),
        (lambda: layer(x, cache=cache, return_weights=True), qkv.errors.OptionError, "return_weights"),
        (lambda: layer(x, cache=[cache]), qkv.errors.OptionTypeError, "cache"),
        (lambda: layer_of(context_width=CONTEXT)(x), qkv.errors.ShapeError, "width 17"),
        (lambda: layer_of(similarity=ELU1, positions=ALiBi(6)), qkv.errors.OptionError, "positions"),
    ):
        with pytest.raises(error, match=says):
            call()
    assert cache.length == 0
    biased, state = layer_of(positions=RelativeBias(6)), layer_of(similarity=ELU1).cache(BATCH)
    with torch.no_grad(), pytest.raises(qkv.errors.BackendRefused, match="LinearState"):
        biased(x, cache=state)
