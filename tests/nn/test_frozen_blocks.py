"""FeedForward and the three layouts of Block, written out by hand; norms; gradients, autocast, copies."""

import copy

import pytest
import torch

import qkv
from qkv import nn
from tests.helpers.frozen_reference import (
    ACTIVATIONS,
    NORMS,
    PLACES,
    STORED,
    causal,
    close,
    feed_forward,
    key_padding,
    multihead,
    normalized,
    numbers,
    randomize,
    refused,
    within,
)

BATCH, N, M = 3, 7, 11
WIDTH, HEADS = 22, 6
LAYOUTS = ("residual", "post-norm", "pre-norm")

by_layout = pytest.mark.parametrize("layout", LAYOUTS)
by_norm = pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
by_cross = pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])


def tokens(seed=0, n=N):
    return numbers(BATCH, n, WIDTH, seed=seed)


def build(seed=0, dtype=torch.float64, **options):
    return randomize(nn.Block(WIDTH, HEADS, **{"head_width": 4, "kv_heads": 3, **options}), seed, dtype)


def by_hand(block, x, layout, context=None, *, seen=None, context_seen=None, kind="plain", place="none", at=None):
    """(answer, weights) as the layouts are written in the specification."""
    weights, training = [], block.training

    def attention(y):
        out, w = multihead(block.attention, y, HEADS, 3, seen=seen, place=place, positions=at)
        weights.append(w)
        return out

    def cross(y):
        out, w = multihead(block.cross, y, HEADS, 3, context=context, seen=context_seen)
        weights.append(w)
        return out

    def forward(y):
        return feed_forward(block.feed_forward, y, kind)

    if layout == "residual":
        y = attention(x) + x
        if context is not None:
            y = cross(y) + y
        return forward(y), tuple(weights)
    parts = [attention, forward] if context is None else [attention, cross, forward]
    assert len(block.norms) == len(parts)
    for part, norm in zip(parts, block.norms, strict=True):
        if layout == "post-norm":
            x = normalized(norm, x + part(x), training)
        else:
            x = x + part(normalized(norm, x, training))
    return x, tuple(weights)


@by_layout
@by_norm
@by_cross
@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_layouts(layout, norm, cross, kind):
    block = build(layout=layout, norm=norm, cross=cross, feed_forward=kind).eval()
    context = numbers(BATCH, M, WIDTH, seed=1) if cross else None
    mask, context_mask = qkv.Causal(), qkv.Padding(lengths=torch.tensor([11, 2, 5])) if cross else None
    found, weights = block(tokens(), context, mask=mask, context_mask=context_mask, return_weights=True)
    seen = key_padding(within([11, 2, 5], M)) if cross else None
    wanted, expected = by_hand(block, tokens(), layout, context, seen=causal(N), context_seen=seen, kind=kind)
    close(found, wanted)
    assert isinstance(weights, tuple)
    assert len(weights) == len(expected) == 1 + cross
    for one, other in zip(weights, expected, strict=True):
        close(one, other)
    close(block(tokens(), context, mask=mask, context_mask=context_mask), wanted)
    assert (block.cross is not None) == cross


@by_layout
def test_projected_context_and_another_context_width(layout):
    block = build(layout=layout, cross=True, context_width=13).eval()
    assert block.attention.key.in_features == WIDTH
    assert block.cross.key.in_features == 13
    context = numbers(BATCH, M, 13, seed=1)
    wanted, _ = by_hand(block, tokens(), layout, context)
    close(block(tokens(), context), wanted)
    close(block(tokens(), block.cross.project(context)), wanted)


@by_norm
@pytest.mark.parametrize("layout", ["post-norm", "pre-norm"])
def test_norms_in_training(norm, layout):
    """Batch statistics run over batch and positions, and move the running ones by a tenth."""
    block = build(layout=layout, norm=norm).train()
    wanted, _ = by_hand(block, tokens(), layout)
    close(block(tokens()), wanted)
    kinds = {"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm, "batch": torch.nn.BatchNorm1d}
    inner = [m for m in block.norms.modules() if isinstance(m, NORMS)]
    assert len(inner) == 2
    assert all(isinstance(m, kinds[norm]) for m in inner)
    if norm == "batch":
        first = tokens() if layout == "pre-norm" else tokens() + multihead(block.attention, tokens(), HEADS, 3)[0]
        close(inner[0].running_mean, 0.1 * first.mean((0, 1)))
        close(inner[0].running_var, 0.9 + 0.1 * first.flatten(0, 1).var(0))
        block.eval()
        close(block(tokens(1)), by_hand(block, tokens(1), layout)[0])
        alone = torch.cat([block(tokens(1)[b : b + 1]) for b in range(BATCH)])
        close(alone, block(tokens(1)))


def test_what_a_norm_depends_on():
    """Layer and rms: each token on its own. Batch, in training: all of them."""
    for norm, own in (("layer", True), ("rms", True), ("batch", False)):
        block = build(layout="post-norm", norm=norm).train()
        x = tokens()
        before = block(x, mask=qkv.Causal())
        x[2] += 1.0
        after = block(x, mask=qkv.Causal())
        assert torch.equal(before[:2], after[:2]) == own


def test_the_residual_layout_has_no_norm():
    block = build(layout="residual", cross=True)
    assert not [m for m in block.modules() if isinstance(m, NORMS)]
    assert len(block.norms) == 0


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["plain", "gated"])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward(activation, kind, bias):
    module = randomize(nn.FeedForward(WIDTH, 13, kind=kind, activation=activation, bias=bias))
    close(module(tokens()), feed_forward(module, tokens(), kind, activation))
    assert module.up.weight.shape == (13, WIDTH)
    assert module.out.weight.shape == (WIDTH, 13)
    assert (module.up.bias is not None) == (module.out.bias is not None) == bias


@pytest.mark.parametrize("width", [3, 6, 9, 12, 22, 24, 384, 4096])
def test_hidden_sizes(width):
    """Gated: the first multiple of 8 that is not below 8/3 of the width."""
    with torch.device("meta"):
        assert nn.FeedForward(width).up.out_features == 4 * width
        gated = nn.FeedForward(width, kind="gated")
    assert gated.gate.out_features == gated.up.out_features == gated.out.in_features
    if width % 3:
        assert gated.up.out_features == 8 * (width // 3 + 1)
    else:
        assert gated.up.out_features in (8 * width // 3, 8 * width // 3 + 8)


def test_an_activation_of_ones_own():
    module = randomize(nn.FeedForward(WIDTH, activation=torch.sin))
    wanted = torch.sin(tokens() @ module.up.weight.T + module.up.bias) @ module.out.weight.T + module.out.bias
    close(module(tokens()), wanted)


def test_options_reach_the_parts():
    block = nn.Block(WIDTH, HEADS, kv_heads=2, head_width=5, hidden=17, feed_forward="gated", bias=False, cross=True)
    assert block.attention.key.out_features == block.cross.key.out_features == 10
    assert block.feed_forward.gate.out_features == 17
    linears = [m for m in block.modules() if isinstance(m, torch.nn.Linear)]
    assert len(linears) == 4 + 4 + 3
    assert all(m.bias is None for m in linears)
    block = nn.Block(WIDTH, HEADS, head_width=5)
    assert all(m.bias is not None for m in block.modules() if isinstance(m, torch.nn.Linear))


@by_layout
@pytest.mark.parametrize("place", ["none", "rotary", "alibi", "buckets"])
def test_with_a_cache(layout, place):
    at = PLACES[place].make(HEADS, WIDTH)
    block = build(layout=layout, positions=at).eval()
    wanted, _ = by_hand(block, tokens(), layout, seen=causal(N), place=place, at=at)
    cache = block.attention.cache(BATCH)
    with torch.no_grad():
        found = torch.cat([block(part, cache=cache) for part in tokens().split([4, 1, 2], 1)], 1)
    close(found, wanted, STORED)
    cache, x = block.attention.cache(BATCH), tokens()
    x[1, :5] = torch.nan
    with torch.no_grad():
        found = block(x, cache=cache, lengths=torch.tensor([7, 2, 7]), padding="left")
    alone, _ = by_hand(block, tokens()[1:2, 5:], layout, seen=causal(2), place=place, at=at)
    close(found[1:2, 5:], alone, STORED)
    close(found[[0, 2]], wanted[[0, 2]], STORED)


def test_dropout_is_for_training():
    block = build(dropout=0.4).eval()
    wanted, _ = by_hand(block, tokens(), "pre-norm")
    close(block(tokens()), wanted)
    block.train()
    torch.manual_seed(1)
    one = block(tokens())
    torch.manual_seed(1)
    assert torch.equal(one, block(tokens()))
    assert (one - wanted).abs().max() > 1e-3


def tiny(**options):
    return randomize(nn.Block(4, 2, **options)).train()


def check_gradients(module, *inputs, **options):
    """Against numeric ones in float64, for inputs and for every parameter."""
    names, values = zip(*module.named_parameters(), strict=True)
    buffers = {name: b.clone() for name, b in module.named_buffers()}

    def run(*given):
        x, weights = given[: len(inputs)], dict(zip(names, given[len(inputs) :], strict=True))
        state = weights | {name: b.clone() for name, b in buffers.items()}
        return torch.func.functional_call(module, state, x, options)

    given = [t.detach().clone().requires_grad_() for t in (*inputs, *values)]
    assert torch.autograd.gradcheck(run, given, atol=1e-6, fast_mode=True)


@pytest.mark.slow
@by_layout
@by_norm
def test_gradients_of_blocks(layout, norm):
    block = tiny(layout=layout, norm=norm, cross=True, kv_heads=1, hidden=3)
    mask = qkv.Causal()
    check_gradients(block, numbers(2, 3, 4), numbers(2, 5, 4, seed=1), mask=mask)


@pytest.mark.parametrize("place", PLACES)
def test_gradients_of_positions(place):
    options = {"positions": PLACES[place].make(2, 8)}
    module = randomize(nn.Attention(8, 2, **options))
    check_gradients(module, numbers(2, 3, 8), mask=qkv.Causal())


@pytest.mark.parametrize("similarity", [qkv.Softmax(softcap=2.0), qkv.Polynomial(2), qkv.FeatureMap(qkv.features.elu1)])
def test_gradients_of_similarities(similarity):
    module = randomize(nn.Attention(4, 2, similarity=similarity))
    check_gradients(module, numbers(2, 3, 4), numbers(2, 5, 4, seed=1))


def test_gradients_do_not_reach_padding():
    model, lengths = randomize(nn.Encoder(24, 6, 2)), torch.tensor([7, 2, 5])
    x, keep = numbers(BATCH, N, 24).requires_grad_(), within(lengths, N)
    model(x, lengths)[keep].square().sum().backward()
    assert not x.grad[~keep].any()
    assert x.grad[keep].any(-1).all()


@by_layout
@by_norm
@pytest.mark.parametrize("place", ["none", "rotary", "alibi", "buckets"])
def test_autocast(layout, norm, place):
    block = build(layout=layout, norm=norm, dtype=torch.float32, positions=PLACES[place].make(HEADS, WIDTH)).eval()
    x = tokens().float().requires_grad_()
    wanted = block(x, mask=qkv.Causal())
    with torch.autocast("cpu", torch.bfloat16):
        found = block(x, mask=qkv.Causal())
    close(found, wanted, {"atol": 0.15, "rtol": 0.1})
    found.float().square().mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())


@by_layout
@by_norm
def test_state_dict_and_deepcopy(layout, norm):
    block = build(layout=layout, norm=norm, cross=True, feed_forward="gated").train()
    context = numbers(BATCH, M, WIDTH, seed=1)
    block(tokens(), context)
    block.eval()
    other = build(7, layout=layout, norm=norm, cross=True, feed_forward="gated").eval()
    other.load_state_dict(copy.deepcopy(block.state_dict()))
    twin = copy.deepcopy(block)
    wanted = block(tokens(), context)
    assert torch.equal(other(tokens(), context), wanted)
    assert torch.equal(twin(tokens(), context), wanted)
    with torch.no_grad():
        for p in block.parameters():
            p.fill_(torch.nan)
    assert torch.equal(twin(tokens(), context), wanted)


REFUSED = {
    "an unknown layout": lambda: nn.Block(24, 6, layout="sandwich"),
    "an unknown norm": lambda: nn.Block(24, 6, norm="group"),
    "an unknown feed-forward": lambda: nn.Block(24, 6, feed_forward="wide"),
    "an unknown kind": lambda: nn.FeedForward(24, kind="wide"),
    "an unknown activation": lambda: nn.FeedForward(24, activation="sine"),
    "no hidden features": lambda: nn.FeedForward(24, 0),
    "dropout below 0": lambda: nn.FeedForward(24, dropout=-0.1),
    "a context without cross attention": lambda: build()(tokens(), tokens(1)),
    "no context for cross attention": lambda: build(cross=True)(tokens()),
    "a context mask without cross attention": lambda: build()(
        tokens(), context_mask=qkv.Padding(lengths=torch.tensor([1, 2, 3]))
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what):
    with refused():
        REFUSED[what]()
