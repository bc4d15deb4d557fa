"""`Block` and `FeedForward` against their equations."""

import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.nn import Block, FeedForward, Rotary

WIDTH, HEADS, N, M = 12, 3, 5, 7


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def block_of(**options) -> Block:
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, **options).double()
    # Random norm parameters, so that each norm has an effect.
    for parameter in block.norms.parameters():
        torch.nn.init.normal_(parameter)
    return block


@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("layout", ["residual", "post-norm", "pre-norm"])
def test_layouts(layout, cross, norm) -> None:
    block = block_of(layout=layout, cross=cross, norm=norm, context_width=11 if cross else None)
    x, context = draw(2, N, WIDTH), draw(2, M, 11)
    mask, context_mask = qkv.Causal(), qkv.Padding([7, 4])
    assert len(block.norms) == (0 if layout == "residual" else 3 if cross else 2)

    def norms(i: int, y: torch.Tensor) -> torch.Tensor:
        module = block.norms[i]
        if norm == "batch":
            flat = y.reshape(-1, WIDTH)
            flat = (flat - flat.mean(0)) / (flat.var(0, unbiased=False) + module.eps).sqrt()
            return flat.view_as(y) * module.weight + module.bias
        return module(y)

    A = lambda y: block.attention(y, mask=mask)  # noqa: E731 - the letters of the equations
    C = lambda y: block.cross(y, context, mask=context_mask) if cross else 0.0  # noqa: E731
    f = block.feed_forward
    if layout == "residual":
        y = A(x) + x
        wanted = f(C(y) + y)
    elif layout == "post-norm":
        y = norms(0, x + A(x))
        y = norms(1, y + C(y)) if cross else y
        wanted = norms(2 if cross else 1, y + f(y))
    else:
        y = x + A(norms(0, x))
        y = y + C(norms(1, y)) if cross else y
        wanted = y + f(norms(2 if cross else 1, y))
    given = (x, context) if cross else (x,)
    masks = {"mask": mask, "context_mask": context_mask} if cross else {"mask": mask}
    torch.testing.assert_close(block(*given, **masks), wanted)
    out, weights = block(*given, **masks, return_weights=True)
    torch.testing.assert_close(out, wanted)
    assert [tuple(w.shape) for w in weights] == [(2, HEADS, N, N), (2, HEADS, N, M)][: 1 + cross]


def test_batch_norm_remembers_for_evaluation() -> None:
    block = block_of(norm="batch")
    x = draw(2, N, WIDTH) + 3.0
    before = block.norms[0].running_mean.clone()
    block(x)
    assert not torch.equal(block.norms[0].running_mean, before)
    block.eval()
    torch.testing.assert_close(block(x)[:1], block(x[:1]))


@pytest.mark.parametrize("name", ["gelu", "relu", "silu", "tanh-gelu", "own"])
@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_feed_forward(kind, name) -> None:
    functions = {
        "gelu": lambda y: 0.5 * y * (1 + torch.erf(y / 2**0.5)),
        "relu": lambda y: y.clamp(min=0),
        "silu": lambda y: y / (1 + torch.exp(-y)),
        "tanh-gelu": lambda y: F.gelu(y, approximate="tanh"),
        "own": torch.sin,
    }
    activation = functions[name]
    layer = FeedForward(7, kind=kind, activation=torch.sin if name == "own" else name).double()
    x = draw(2, 3, 7)
    up = x @ layer.up.weight.T + layer.up.bias
    if kind == "gated":
        assert layer.up.out_features == 24  # 8/3 · 7 = 18.7
        up = activation(x @ layer.gate.weight.T + layer.gate.bias) * up
    else:
        assert layer.up.out_features == 28
        up = activation(up)
    torch.testing.assert_close(layer(x), up @ layer.out.weight.T + layer.out.bias)


def test_dropout_is_everywhere_and_only_while_training() -> None:
    block, x = block_of(dropout=0.3), draw(2, N, WIDTH)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))
    all_gone = block_of(dropout=1.0)
    assert torch.equal(all_gone(x), x)


@pytest.mark.parametrize("layout", ["residual", "post-norm", "pre-norm"])
@torch.no_grad()
def test_a_cache_goes_to_the_self_attention(layout) -> None:
    block = block_of(layout=layout, cross=True, positions=Rotary(), kv_heads=1)
    x, context = draw(2, N, WIDTH), draw(2, M, WIDTH)
    cache, pair = block.attention.cache(2), block.cross.project(context)
    assert block.cross.positions is None
    steps = [block(x[:, i : i + 1], pair, cache=cache) for i in range(N)]
    wanted = block(x, context, mask=qkv.Causal())
    torch.testing.assert_close(torch.cat(steps, 1), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gradients_are_the_numeric_ones() -> None:
    torch.manual_seed(0)
    block = Block(4, 2, cross=True, feed_forward="gated", hidden=3, norm="rms", positions=Rotary()).double()
    names = [name for name, _ in block.named_parameters()]

    def run(x, context, *weights):
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(block, named, (x, context), {"mask": qkv.Causal()})

    weights = [p.detach().clone().requires_grad_() for p in block.parameters()]
    inputs = draw(1, 2, 4).requires_grad_(), draw(1, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(run, (*inputs, *weights))


def test_what_cannot_be() -> None:
    for options, says in (
        ({"layout": "sandwich"}, "'residual', 'post-norm', 'pre-norm'"),
        ({"norm": "group"}, "'layer', 'rms', 'batch'"),
        ({"feed_forward": "swiglu"}, "'plain', 'gated'"),
        ({"activation": "swish"}, "'silu'"),
        ({"context_width": 5}, "cross=True"),
        ({"dropout": 2.0}, "dropout"),
    ):
        with pytest.raises(qkv.errors.OptionError, match=says):
            Block(WIDTH, HEADS, **options)
    x = draw(2, N, WIDTH)
    with pytest.raises(qkv.errors.OptionError, match="cross=True"):
        block_of(cross=True)(x)
    with pytest.raises(qkv.errors.OptionError, match="cross=False"):
        block_of()(x, x)
    with pytest.raises(qkv.errors.OptionError, match="context_mask"):
        block_of()(x, context_mask=qkv.Padding([5, 2]))
    with pytest.raises(qkv.errors.ShapeError, match="x: got shape"):
        block_of()(x[..., :5])
