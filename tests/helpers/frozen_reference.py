"""Transformers written out in float64 and plain torch: the reference of the frozen tests of `qkv.nn`.

Nothing here computes with qkv; its classes appear only as arguments for tests.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import errors, nn

NORMS = (torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.BatchNorm1d)
TIGHT = {"atol": 1e-9, "rtol": 1e-8}  # float64 throughout
STORED = {"atol": 2e-5, "rtol": 2e-5}  # float64, over keys and values that were stored in float32


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64).to(dtype)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(2000 + seed))


def randomize(module: Any, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Any:
    """Draw every parameter at random, so that no default initialisation hides an error."""
    module = module.to(dtype)
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            fan = parameter.shape[-1] if parameter.dim() > 1 else 4
            parameter.copy_(numbers(*parameter.shape, seed=100 * seed + at) * scale / math.sqrt(fan))
        for inner in module.modules():
            if isinstance(inner, NORMS) and inner.weight is not None:
                inner.weight.add_(1.0)
    return module


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Expect an error of qkv that is also a built-in one, with a message of one sentence."""
    with pytest.raises(errors.QkvError) as caught:
        yield
    assert isinstance(caught.value, ValueError | TypeError)
    text = str(caught.value)
    assert text.strip(), "an error without words"
    assert "\n" not in text, text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


def close(found: Tensor, wanted: Tensor, tolerance: dict[str, float] | None = None) -> None:
    found, wanted = found.detach(), wanted.detach()
    assert found.shape == wanted.shape, f"{tuple(found.shape)} instead of {tuple(wanted.shape)}"
    torch.testing.assert_close(found.double(), wanted.double(), **(tolerance or TIGHT))


# Similarities: function(q, k, seen, bias) → (numerators (b, h, n, m), what is added to the denominator)


def dots(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhnd,bhmd->bhnm", q, k)


def soft(scale: float | None = None, softcap: float | None = None, sink: Any = None) -> Callable[..., Any]:
    def similarity(q: Tensor, k: Tensor, seen: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
        scores = dots(q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias
        extra = 0.0 if sink is None else torch.as_tensor(sink, dtype=torch.float64).exp().reshape(-1, 1, 1)
        return scores.exp(), extra

    return similarity


def argmax(q: Tensor, k: Tensor, seen: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
    scores = torch.where(seen, dots(q, k), -math.inf)
    return torch.nn.functional.one_hot(scores.argmax(-1), k.shape[2]).double(), 0.0


def power(degree: int, offset: float) -> Callable[..., Any]:
    return lambda q, k, seen, bias: ((dots(q, k) + offset) ** degree, 0.0)


def mapped(phi: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda q, k, seen, bias: (dots(phi(q), phi(k)), 0.0)


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


def cauchy(q: Tensor, k: Tensor) -> Tensor:
    return 1 / (1 + (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1))


# name → (qkv's similarity, the reference, whether the weights are divided by their sum); for six query heads
SIMILARITIES: dict[str, tuple[Callable[[], Any], Callable[..., Any], bool]] = {
    "default": (lambda: None, soft(), True),
    "softmax": (lambda: qkv.Softmax(scale=0.7, softcap=1.3, sink=0.2), soft(0.7, 1.3, 0.2), True),
    "sinks": (
        lambda: qkv.Softmax(sink=torch.linspace(-1, 1, 6, dtype=torch.float64)),
        soft(sink=torch.linspace(-1, 1, 6, dtype=torch.float64)),
        True,
    ),
    "argmax": (lambda: qkv.Argmax(), argmax, True),
    "quadratic": (lambda: qkv.Polynomial(2, 0.5), power(2, 0.5), True),
    "quartic": (lambda: qkv.Polynomial(4, 1.5), power(4, 1.5), True),
    "elu": (lambda: qkv.FeatureMap(qkv.features.elu1), mapped(elu_plus_one), True),
    "sums": (lambda: qkv.FeatureMap(qkv.features.squared, normalize=False), mapped(torch.square), False),
    "any": (lambda: qkv.Similarity(cauchy), lambda q, k, seen, bias: (cauchy(q, k), 0.0), True),
}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None = None,
    similarity: str = "default",
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j) over the attended j; query head h reads h // group."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    seen = torch.ones(shape, dtype=torch.bool) if seen is None else seen.expand(shape)
    _, reference, normalize = SIMILARITIES[similarity]
    above, extra = reference(q, k, seen, bias)
    weights = torch.where(seen, above, 0.0)
    if normalize:
        below = weights.sum(-1, keepdim=True) + extra
        weights = torch.where(seen.any(-1, keepdim=True), weights / torch.where(below == 0, 1.0, below), 0.0)
    return torch.einsum("bhnm,bhmd->bhnd", weights, v), weights


# Masks


def causal(n: int) -> Tensor:
    return torch.arange(n)[None, :] <= torch.arange(n)[:, None]


def within(lengths: Any, m: int) -> Tensor:
    """(batch, m): True where a token is real, padded on the right."""
    return torch.arange(m)[None, :] < torch.as_tensor(lengths)[:, None]


def key_padding(keep: Tensor) -> Tensor:
    return keep[:, None, None, :]


# Positions


def rotate(x: Tensor, positions: Tensor, base: float = 10000.0, turned: int | None = None, interleaved: bool = False):
    """Pairs of features as complex numbers, pair i times exp(√−1 · position · base^(−2i/turned))."""
    turned = x.shape[-1] if turned is None else turned
    part, rest = x[..., :turned], x[..., turned:]
    if interleaved:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = part[..., : turned // 2], part[..., turned // 2 :]
    rates = torch.tensor([base ** (-2 * i / turned) for i in range(turned // 2)], dtype=torch.float64)
    angles = positions.double()[:, None] * rates
    product = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    if interleaved:
        part = torch.stack([product.real, product.imag], -1).flatten(-2)
    else:
        part = torch.cat([product.real, product.imag], -1)
    return torch.cat([part, rest], -1)


def slopes(heads: int) -> list[float]:
    whole = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = [2 ** (-8 * (i + 1) / (2 * whole)) for i in range(0, 2 * whole, 2)]
    return first + between[: heads - whole]


def distance_bias(heads: int, n: int, m: int) -> Tensor:
    apart = (torch.arange(n)[:, None] - torch.arange(m)[None, :]).abs().double()
    return -torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None] * apart


def bucket(query: int, key: int, buckets: int = 32, farthest: int = 128, bidirectional: bool = True) -> int:
    """T5's, in whole numbers: half of the buckets are exact, the others grow by equal factors up to `farthest`."""
    apart, first = query - key, 0
    if bidirectional:
        buckets //= 2
        first = buckets if apart < 0 else 0
        apart = abs(apart)
    apart = max(apart, 0)
    exact = buckets // 2
    if apart < exact:
        return first + apart
    step = 0  # the largest with (apart / exact)^(buckets − exact) ≥ (farthest / exact)^step
    free = buckets - exact
    while step < free - 1 and apart**free * exact ** (step + 1) >= farthest ** (step + 1) * exact**free:
        step += 1
    return first + exact + step


def bucket_bias(weight: Tensor, n: int, m: int, **options: Any) -> Tensor:
    rows = [[bucket(i, j, weight.shape[0], **options) for j in range(m)] for i in range(n)]
    return weight.double()[torch.tensor(rows)].permute(2, 0, 1)


def waves(n: int, width: int, base: float = 10000.0) -> Tensor:
    table = torch.zeros(n, width, dtype=torch.float64)
    for i in range(n):
        for at in range(width):
            angle = i / base ** ((at - at % 2) / width)
            table[i, at] = math.cos(angle) if at % 2 else math.sin(angle)
    return table


@dataclass(frozen=True)
class Place:
    """One kind of position: qkv's object, and its effect on input, queries and keys, and scores."""

    make: Callable[..., Any]  # (heads, width)
    added: Callable[[Any, int, int], Tensor] | None = None  # (object, n, width) → (n, width)
    turned: Callable[[Tensor, Tensor], Tensor] | None = None
    bias: Callable[[Any, int, int, int], Tensor] | None = None  # (object, heads, n, m) → (heads, n, m)


def only(module: Any) -> Tensor:
    (parameter,) = module.parameters()
    return parameter


PLACES = {
    "none": Place(lambda heads, width: None),
    "rotary": Place(lambda heads, width: nn.Rotary(), turned=rotate),
    "rotary, interleaved": Place(
        lambda heads, width: nn.Rotary(base=300.0, interleaved=True),
        turned=lambda x, at: rotate(x, at, 300.0, None, True),
    ),
    "rotary, part": Place(
        lambda heads, width: nn.Rotary(fraction=0.5),
        turned=lambda x, at: rotate(x, at, turned=x.shape[-1] // 2),
    ),
    "alibi": Place(lambda heads, width: nn.ALiBi(heads), bias=lambda module, heads, n, m: distance_bias(heads, n, m)),
    "buckets": Place(
        lambda heads, width: nn.RelativeBias(heads, buckets=8, farthest=11),
        bias=lambda module, heads, n, m: bucket_bias(only(module), n, m, farthest=11),
    ),
    "buckets, one way": Place(
        lambda heads, width: nn.RelativeBias(heads, buckets=6, farthest=9, bidirectional=False),
        bias=lambda module, heads, n, m: bucket_bias(only(module), n, m, farthest=9, bidirectional=False),
    ),
    "learned": Place(
        lambda heads, width: nn.Learned(31, width), added=lambda module, n, width: only(module)[:n].double()
    ),
    "sinusoidal": Place(lambda heads, width: nn.Sinusoidal(width), added=lambda module, n, width: waves(n, width)),
}


# Layers, with the weights of the modules


def affine(linear: Any, x: Tensor) -> Tensor:
    out = torch.einsum("...i,oi->...o", x, linear.weight.double())
    return out if linear.bias is None else out + linear.bias.double()


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)


def multihead(
    module: Any,
    x: Tensor,
    heads: int,
    kv_heads: int | None = None,
    *,
    context: Tensor | None = None,
    seen: Tensor | None = None,
    similarity: str = "default",
    place: str = "none",
    positions: Any = None,
) -> tuple[Tensor, Tensor]:
    """(out, weights) of an Attention whose positions, if any, are of the kind `place`, in the object `positions`."""
    x, where = x.double(), PLACES[place]
    if where.added is not None and context is None:
        x = x + where.added(positions, x.shape[1], x.shape[2])
    source = x if context is None else context.double()
    q = heads_of(affine(module.query, x), heads)
    k, v = (heads_of(affine(p, source), kv_heads or heads) for p in (module.key, module.value))
    if where.turned is not None and context is None:
        q, k = (where.turned(t, torch.arange(t.shape[2])) for t in (q, k))
    bias = None
    if where.bias is not None and context is None:
        bias = where.bias(positions, heads, q.shape[2], k.shape[2])
    out, weights = attend(q, k, v, seen, similarity, bias)
    return affine(module.out, out.transpose(1, 2).flatten(2)), weights


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "tanh-gelu": lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def feed_forward(module: Any, x: Tensor, kind: str = "plain", activation: str = "gelu") -> Tensor:
    act = ACTIVATIONS[activation]
    if kind == "gated":
        return affine(module.out, act(affine(module.gate, x)) * affine(module.up, x))
    return affine(module.out, act(affine(module.up, x)))


def normalized(module: Any, x: Tensor, training: bool = False) -> Tensor:
    """LayerNorm, RMSNorm or BatchNorm over the width, by hand; batch statistics over batch and positions."""
    (module,) = [inner for inner in module.modules() if isinstance(inner, NORMS)]
    eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
    if isinstance(module, torch.nn.BatchNorm1d):
        if training:
            mean, variance = x.mean((0, 1)), x.var((0, 1), unbiased=False)
        else:
            mean, variance = module.running_mean.double(), module.running_var.double()
        out = (x - mean) / torch.sqrt(variance + eps)
    elif isinstance(module, torch.nn.RMSNorm):
        out = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    else:
        centred = x - x.mean(-1, keepdim=True)
        out = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    out = out * module.weight.double()
    return out if getattr(module, "bias", None) is None else out + module.bias.double()


def outer_norms(model: Any, *inputs: Any, **options: Any) -> list[Any]:
    """The norms that belong to no block, in the order in which they run."""
    inside = {id(m) for block in blocks_of(model) for m in block.modules()}
    ran: list[Any] = []
    hooks = []
    for module in model.modules():
        if id(module) not in inside and isinstance(module, NORMS):
            hooks.append(module.register_forward_hook(lambda m, *_: ran.append(m)))
    with torch.no_grad():
        model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return ran


def blocks_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, nn.Block)]


def embedding_of(model: Any, vocabulary: int) -> Tensor:
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == vocabulary:
            return module.weight.double()
    return next(p for p in model.parameters() if p.shape[:1] == (vocabulary,) and p.dim() == 2).double()


def unembed(model: Any, x: Tensor, outputs: int) -> Tensor:
    """Use the one Linear outside the blocks with this number of outputs; without one, the embedding."""
    inside = {id(m) for block in blocks_of(model) for m in block.modules()}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module) not in inside and module.out_features == outputs:
            return affine(module, x)
    return x @ embedding_of(model, outputs).T
