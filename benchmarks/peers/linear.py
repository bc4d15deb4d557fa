"""Whole sequences, causal: other libraries' linear attention, SDPA, and plain torch operations.

Each takes the same queries, keys and values, and computes its `similarity`; a peer with other features than elu+1's is
checked against qkv's answer for those.
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

from . import Peer, TimedCall

ELU1 = qkv.FeatureMap(qkv.features.elu1)
EXP = qkv.FeatureMap(torch.exp)
QUADRATIC = qkv.Polynomial(2)
SQUARES = qkv.features.polynomial(2)

Shape = tuple[int, int, int, int]  # batch, heads, length, width


class Whole(Peer):
    """Causal attention over a whole sequence."""

    similarity: Any = ELU1
    library = False  # whether it is one of the linear peers that the target is about

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError

    def timed_call(self, given: list[Tensor]) -> TimedCall:
        return TimedCall(lambda: self.attend(*given))

    def needs(self, shape: Shape) -> int:
        """Bytes in addition to inputs and output, in float32, if they are more than a few times those."""
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
    """It applies softmax to queries, which the fraction cancels: its similarity is exp(q)·exp(k)."""

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


class BucketTransformer(LinearTransformer):
    """Not causal attention: a query sees the buckets before its bucket only. Shown, not counted."""

    name = "lin-tr 64"
    title = "the same, bucket_size=64: nothing inside a bucket, another answer; not counted"
    similarity = None
    library = False
    bucket = 64


# Causal attention by features in plain torch operations, for users without a kernel:
#     V'_i = φ(q_i)·Σ_{j≤i} φ(k_j) v_jᵀ / φ(q_i)·Σ_{j≤i} φ(k_j)
# Features are given, (batch, heads, length, features), values are (batch, heads, length, width_v). All compute in the
# dtype of the inputs.
CHUNK = 128  # tokens
ROWS = 512  # queries in a block of the N×N scores


def recurrent(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Token by token, with the two sums as a state; no epsilon is added to the denominator."""
    batch, heads, length, features = query.shape
    kv_agg = value.new_zeros(batch, heads, features, value.shape[-1])
    z_agg = value.new_zeros(batch, heads, features, 1)
    out = torch.empty_like(value)
    for i in range(length):
        column = key[:, :, i, :, None]
        kv_agg += column * value[:, :, i, None, :]
        z_agg += column
        row = query[:, :, i, None, :]
        out[:, :, i] = ((row @ kv_agg) / (row @ z_agg))[:, :, 0]
    return out


def cumulative(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """einsum and cumsum: the state of every token is stored, length × features × width_v numbers a head."""
    states = torch.einsum("bhnf,bhnv->bhnfv", key, value).cumsum(dim=2)
    numerator = torch.einsum("bhnf,bhnfv->bhnv", query, states)
    return numerator / torch.einsum("bhnf,bhnf->bhn", query, key.cumsum(dim=2))[..., None]


def chunked(query: Tensor, key: Tensor, value: Tensor, chunk: int = CHUNK) -> Tensor:
    """Quadratic inside a chunk, a state across chunks; a column of ones next to the values gives the denominator."""
    batch, heads, length, features = query.shape
    width = value.shape[-1]
    value = torch.cat([value, value.new_ones(batch, heads, length, 1)], dim=-1)
    state = value.new_zeros(batch, heads, features, width + 1)
    out = value.new_empty(batch, heads, length, width)
    for i in range(0, length, chunk):
        q, k, v = (tensor[:, :, i : i + chunk] for tensor in (query, key, value))
        sums = (q @ k.transpose(-1, -2)).tril_() @ v
        sums += q @ state
        state += k.transpose(-1, -2) @ v
        torch.div(sums[..., :width], sums[..., width:], out=out[:, :, i : i + chunk])
    return out


def blocked_quadratic(query: Tensor, key: Tensor, value: Tensor, rows: int = ROWS) -> Tensor:
    """(q·k + 1)² over the N×N matrix, some rows at a time, up to the last key that they see; without features."""
    length, out = query.shape[2], torch.empty_like(value)
    for i in range(0, length, rows):
        end = min(i + rows, length)
        weights = query[:, :, i:end] @ key[:, :, :end].transpose(-1, -2)
        weights.add_(1).square_()
        weights[..., i:].tril_()
        numerator = weights @ value[:, :, :end]
        torch.div(numerator, weights.sum(-1, keepdim=True), out=out[:, :, i:end])
    return out


class Plain(Whole):
    """Plain torch operations, with a feature map that is applied to all tokens first."""

    def __init__(
        self,
        name: str,
        title: str,
        function: Callable[..., Tensor],
        phi: Callable[[Tensor], Tensor] | None,
        similarity: Any = ELU1,
        needs: Callable[[Shape], int] = lambda shape: 0,
    ) -> None:
        self.name, self.title, self.function, self.phi, self.similarity = name, title, function, phi, similarity
        self._needs = needs

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.phi is None:
            return self.function(query, key, value)
        return self.function(self.phi(query), self.phi(key), value)

    def needs(self, shape: Shape) -> int:
        return self._needs(shape)


def _states(shape: Shape) -> int:
    """A state of width × width float32 numbers for every token."""
    return 4 * math.prod(shape) * shape[-1]


def _squares(shape: Shape) -> int:
    """The features of (q·k + 1)², of queries and keys, with their temporaries."""
    return 4 * 4 * math.prod(shape[:3]) * SQUARES.features(shape[3])


CHUNKS = "chunks"
BLOCKS = "blocks"


def for_elu1() -> list[Whole]:
    """qkv first, then everything that computes causal attention in linear time, and SDPA."""
    phi = qkv.features.elu1
    return [
        Qkv(ELU1),
        Plain(CHUNKS, "torch: products inside chunks of 128, a state across; elu+1", chunked, phi),
        Sdpa(),
        Performer(),
        LinearTransformer(),
        BucketTransformer(),
        Plain("tokens", "torch: the recurrence, token by token; elu+1", recurrent, phi),
        Plain("cumsum", "torch: einsum, cumsum, einsum; elu+1", cumulative, phi, needs=lambda s: 2 * _states(s)),
    ]


def for_quadratic() -> list[Whole]:
    phi, title = SQUARES, "torch: features.polynomial(2) of all tokens, then chunks of 128"
    return [
        Qkv(QUADRATIC),
        Plain(BLOCKS, "torch: (q·k + 1)² in blocks of 512 rows", blocked_quadratic, None, QUADRATIC),
        Plain("features", title, chunked, phi, QUADRATIC, needs=_squares),
    ]
