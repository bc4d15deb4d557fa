"""Whole sequences, causal: other libraries' linear attention, SDPA, and the plain ways in torch operations.

Each takes the same queries, keys and values. What it computes is its `similarity`; where a peer has features of its
own, that is another answer than elu+1's, and it is checked against qkv's answer for those.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import qkv

from ..plain import blocked_quadratic, chunked, cumulative, recurrent
from . import Peer, Turn

ELU1 = qkv.FeatureMap(qkv.features.elu1)
EXP = qkv.FeatureMap(torch.exp)
QUADRATIC = qkv.Polynomial(2)
SQUARES = qkv.features.polynomial(2)

Shape = tuple[int, int, int, int]  # batch, heads, length, width


class Whole(Peer):
    """Causal attention over a sequence that is there as a whole."""

    similarity: Any = ELU1
    library = False  # one of the libraries that the bar for linear peers is about

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError

    def turn(self, given: list[Tensor]) -> Turn:
        return Turn(lambda: self.attend(*given))

    def needs(self, shape: Shape) -> int:
        """Bytes beside inputs and output, in float32, where they are more than a few times those."""
        return 0


class Qkv(Whole):
    """qkv's linear backend for any similarity that has features."""

    name = "qkv"
    package = "qkv"

    def __init__(self, similarity: Any) -> None:
        self.similarity = similarity
        self.title = f"qkv.attention(similarity={similarity!r}, mask=Causal(), backend='linear')"

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, similarity=self.similarity, mask=qkv.Causal(), backend="linear")


class Sdpa(Whole):
    name = "sdpa"
    title = "PyTorch scaled_dot_product_attention(is_causal=True): softmax"
    similarity = qkv.Softmax()

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)


@functools.cache
def _performer() -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks distutils for torch's version
        from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda
    return causal_linear_attention_noncuda


class Performer(Whole):
    name = "performer"
    title = "performer_pytorch causal_linear_attention_noncuda on elu+1, 128 pieces"
    package = "performer-pytorch"
    library = True
    pieces = 128  # its chunk_size is the number of pieces

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _performer()(qkv.features.elu1(query), qkv.features.elu1(key), value, chunk_size=self.pieces)

    def needs(self, shape: Shape) -> int:
        return 2 * _states(shape) // self.pieces


@functools.cache
def _transformer() -> Callable[..., Tensor]:
    from linear_attention_transformer.linear_attention_transformer import causal_linear_attn

    return causal_linear_attn


class LinearTransformer(Whole):
    """Queries are softmaxed, which the fraction takes back: its similarity is exp(q)·exp(k)."""

    name = "lin-tr"
    title = "linear_attention_transformer causal_linear_attn(bucket_size=1): exp"
    package = "linear-attention-transformer"
    similarity = EXP
    library = True
    bucket = 1

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _transformer()(query, key, value, bucket_size=self.bucket)

    def needs(self, shape: Shape) -> int:
        return 2 * _states(shape) // self.bucket


class BlindTransformer(LinearTransformer):
    """Not causal attention: a query sees the buckets before its own and nothing of its own. Shown, not counted."""

    name = "lin-tr 64"
    title = "the same, bucket_size=64: blind inside a bucket, another answer; not counted"
    similarity = None
    library = False
    bucket = 64


class Plain(Whole):
    """A plain way in torch operations, with a feature map that is applied to all tokens first."""

    def __init__(
        self,
        name: str,
        title: str,
        way: Callable[..., Tensor],
        phi: Callable[[Tensor], Tensor] | None,
        similarity: Any = ELU1,
        needs: Callable[[Shape], int] = lambda shape: 0,
    ) -> None:
        self.name, self.title, self.way, self.phi, self.similarity = name, title, way, phi, similarity
        self._needs = needs

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.phi is None:
            return self.way(query, key, value)
        return self.way(self.phi(query), self.phi(key), value)

    def needs(self, shape: Shape) -> int:
        return self._needs(shape)


def _states(shape: Shape) -> int:
    """A state of width × width float32 numbers for every token."""
    return 4 * math.prod(shape) * shape[-1]


def _squares(shape: Shape) -> int:
    """The features of (q·k + 1)², of queries and keys, and what making them takes."""
    return 4 * 4 * math.prod(shape[:3]) * SQUARES.features(shape[3])


CHUNKS = "chunks"
BLOCKS = "blocks"


def for_elu1() -> list[Whole]:
    """qkv first; then everybody who computes causal attention in linear time, and softmax's."""
    phi = qkv.features.elu1
    return [
        Qkv(ELU1),
        Plain(CHUNKS, "torch: products inside chunks of 128, a state across; elu+1", chunked, phi),
        Sdpa(),
        Performer(),
        LinearTransformer(),
        BlindTransformer(),
        Plain("tokens", "torch: the recurrence of document 003, token by token; elu+1", recurrent, phi),
        Plain("cumsum", "torch: einsum, cumsum, einsum; elu+1", cumulative, phi, needs=lambda s: 2 * _states(s)),
    ]


def for_quadratic() -> list[Whole]:
    phi, said = SQUARES, "torch: features.polynomial(2) of all tokens, then chunks of 128"
    return [
        Qkv(QUADRATIC),
        Plain(BLOCKS, "torch: (q·k + 1)² in blocks of 512 rows", blocked_quadratic, None, QUADRATIC),
        Plain("features", said, chunked, phi, QUADRATIC, needs=_squares),
    ]
