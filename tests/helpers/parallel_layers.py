"""Layers and models of every kind for tensor parallelism, and their inputs."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import qkv

WIDTH, HEADS, KV, VOCABULARY = 24, 8, 4, 31
TOKENS = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1))
X = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
CONTEXT = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class Scaled(nn.Module):
    """A feature map with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3) + torch.arange(3.0) / 5)

    def forward(self, x):
        return nn.functional.elu(x * self.scale.to(x.dtype)) + 1


def sinks(*shape):
    return qkv.Softmax(sink=nn.Parameter(torch.linspace(-1, 1, 8)[: shape[0]].clone()))


def attention(**options):
    return qkv.nn.Attention(WIDTH, HEADS, kv_heads=KV, **options)


def decoder(**options):
    return qkv.nn.Decoder(WIDTH, HEADS, 2, kv_heads=KV, vocabulary=VOCABULARY, **options)


def both(**options):
    positions = qkv.nn.RelativeBias(HEADS), qkv.nn.RelativeBias(HEADS, bidirectional=False)
    return qkv.nn.EncoderDecoder(
        WIDTH, HEADS, 2, kv_heads=KV, vocabulary=VOCABULARY, positions=positions[0], decoder_positions=positions[1],
        **options,
    )  # fmt: skip


# The constructor, arguments and options of each.
MODELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "attention": (partial(attention, bias=True, positions=qkv.nn.Rotary(fraction=2 / 3)), (X,), {"mask": qkv.Causal()}),
    "attention with a sink for each head": (lambda: attention(similarity=sinks(8)), (X,), {}),
    "attention with one sink": (lambda: attention(similarity=sinks(1)), (X,), {}),
    "attention to a context": (attention, (X, CONTEXT), {}),
    "attention by features": (lambda: attention(similarity=qkv.FeatureMap(Scaled())), (X,), {"mask": qkv.Causal()}),
    "block": (lambda: qkv.nn.Block(WIDTH, HEADS, kv_heads=KV, cross=True, feed_forward="gated"), (X, CONTEXT), {}),
    "encoder": (
        lambda: qkv.nn.Encoder(WIDTH, HEADS, 2, positions=qkv.nn.ALiBi(HEADS), layout="residual", norm="batch"),
        (X,), {"lengths": [7, 4, 5]},
    ),
    "decoder": (lambda: decoder(positions=qkv.nn.ALiBi(HEADS), similarity=sinks(8)), (TOKENS,), {"lengths": [7, 4, 5]}),
    "decoder by polynomials": (lambda: decoder(similarity=qkv.Polynomial(2), tied=False), (TOKENS,), {}),
    "encoder and decoder": (both, (TOKENS, TOKENS[:, 2:]), {"source_lengths": [7, 4, 5]}),
}  # fmt: skip


def made(name: str, seed: int = 0) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(seed)
    make, given, options = MODELS[name]
    return make().double(), given, options


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
