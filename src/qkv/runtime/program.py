"""A decoder-only transformer as one frozen record: what reference.py and the native library execute."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import OptionError, ShapeError, complaint
from ..shapes import Float
from .blocks import PackedMatrix


class NotCovered(OptionError):
    """A model that no program describes; transformers may run it."""


@dataclass(frozen=True, eq=False)
class Linear:
    """y = Wx + b."""

    weight: PackedMatrix
    bias: Float[Tensor, " rows"] | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """kind "rms": x / √(mean x² + eps) · weight. kind "layer": (x − mean x) / √(variance + eps) · weight + bias."""

    weight: Float[Tensor, " width"]
    eps: float
    kind: str = "rms"
    bias: Float[Tensor, " width"] | None = None


@dataclass(frozen=True, eq=False)
class Rotary:
    """Pair i of a head is rotated by position · frequencies[i]; cos and sin are multiplied by `scale`.

    Pairs are the features 2i and 2i + 1 if interleaved, otherwise i and i + w/2, of the first w features of a head.
    """

    frequencies: Float[Tensor, " pairs"]  # float64; scalings are applied
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, eq=False)
class Attention:
    """Query head h reads key/value head h // (heads // kv_heads).

    query_norm, key_norm: Of each head, or of all heads together if the norm is as wide.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    kv_heads: int
    width: int  # of a head
    scale: float
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary: Rotary | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None


@dataclass(frozen=True, eq=False)
class FeedForward:
    """down(activation(gate(x)) · up(x)), or down(activation(up(x))) without a gate."""

    up: Linear
    down: Linear
    gate: Linear | None
    activation: str  # silu, gelu, gelu_tanh or relu


@dataclass(frozen=True, eq=False)
class Layer:
    """x + post(attention(pre(x))), then the same with the feed-forward; a norm that is None is left out.

    parallel: Both have the same input: x + post(attention(pre(x))) + post(feed_forward(pre(x))).
    """

    attention: Attention
    feed_forward: FeedForward
    attention_norm: Norm | None
    feed_forward_norm: Norm | None
    attention_post_norm: Norm | None = None
    feed_forward_post_norm: Norm | None = None
    parallel: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """A decoder-only transformer: logits(norm(layers(embedding_scale · embedding[token] + positions[position])))."""

    architecture: str
    embedding: PackedMatrix
    layers: tuple[Layer, ...]
    norm: Norm
    logits: Linear
    context: int  # tokens that positions were made for
    embedding_scale: float = 1.0
    logits_softcap: float | None = None
    positions: Float[Tensor, "context width"] | None = None  # learned

    @property
    def vocabulary(self) -> int:
        return self.embedding.rows

    @property
    def width(self) -> int:
        return self.embedding.columns

    def check_length(self, longest: int) -> None:
        """Refuse more tokens than there are learned positions."""
        if self.positions is not None and longest > len(self.positions):
            raise ShapeError(
                complaint("tokens", f"{longest} in total", f"at most {len(self.positions)}, the positions")
            )
