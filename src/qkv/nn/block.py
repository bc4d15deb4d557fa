"""Blocks: attention, optional cross attention, and a feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from ..cache import KVCache, LinearState
from ..errors import OptionError, complaint
from ..inputs import check_dropout, check_size
from ..masks import Mask
from ..shapes import Float
from ..similarity import DEFAULT_SOFTMAX, Argmax
from .attention import Attention, KeyValue
from .module import ConfiguredModule, check_choice, check_features

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh-gelu": partial(F.gelu, approximate="tanh"),
}
_KINDS = {"plain": False, "gated": True}


class FeedForward(ConfiguredModule):
    """A feed-forward network, (batch, n, width) → (batch, n, width).

    "plain": out(activation(up(x))). "gated": out(activation(gate(x)) · up(x)).

    Args:
        width: Width of inputs and outputs.
        hidden: Hidden width. If None, 4·width, or for "gated" about 8/3·width, which has about as many weights.
        kind: "plain" or "gated".
        activation: "gelu", "relu", "silu", "tanh-gelu", or a function.
        bias: Whether the projections have biases.
        dropout: Dropout of the hidden features while training.

    >>> import torch
    >>> FeedForward(6, kind="gated", activation="silu")(torch.randn(2, 5, 6)).shape
    torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        kind: str = "plain",
        activation: str | Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width = check_size("width", width)
        gated = check_choice("kind", kind, _KINDS)
        default = 8 * -(-self.width // 3) if gated else 4 * self.width
        self.hidden = default if hidden is None else check_size("hidden", hidden)
        self.activation = activation if callable(activation) else check_choice("activation", activation, _ACTIVATIONS)
        self.up = nn.Linear(self.width, self.hidden, bias)
        self.gate = nn.Linear(self.width, self.hidden, bias) if gated else None
        self.out = nn.Linear(self.hidden, self.width, bias)
        self.dropout = nn.Dropout(check_dropout(dropout, DEFAULT_SOFTMAX))

    def forward(self, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n width"]:
        check_features("x", x, self.width, self.up)
        up = self.up(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.out(self.dropout(hidden))


_NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": nn.BatchNorm1d}
_LAYOUTS = {"residual": 0, "post-norm": 1, "pre-norm": 1}


class Block(ConfiguredModule):
    """Attention A, cross attention C (with `cross`) and feed-forward F, combined as `layout` says.

    "residual":  F(y), with y = A(x) + x, or F(C(y) + y): one residual, no norm, none around F.
    "post-norm": x = norm(x + A(x)), x = norm(x + C(x)), x = norm(x + F(x)).
    "pre-norm":  x = x + A(norm(x)), x = x + C(norm(x)), x = x + F(norm(x)).

    Args:
        width: Width of inputs and outputs.
        heads: Query heads.
        layout: "residual", "post-norm" or "pre-norm".
        cross: Whether there is cross attention. It has no positions.
        feed_forward: "plain" or "gated", see `FeedForward`.
        hidden: Hidden width of the feed-forward network.
        activation: Activation of the feed-forward network.
        norm: "layer", "rms" or "batch" over the width; the statistics of "batch" are over batch and positions, padding
            and later tokens included.
        bias: Whether projections have biases.
        dropout: Dropout of weights, hidden features and residual branches while training.
        **options: kv_heads, head_width, similarity and positions of `Attention`, context_width of the cross attention.

    >>> import torch, qkv
    >>> block = qkv.nn.Block(12, heads=3, feed_forward="gated", norm="rms", cross=True)
    >>> x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    >>> out, (own, cross) = block(x, context, mask=qkv.Causal(), return_weights=True)
    >>> out.shape, own.shape, cross.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]), torch.Size([2, 3, 5, 7]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        layout: str = "pre-norm",
        cross: bool = False,
        feed_forward: str = "plain",
        hidden: int | None = None,
        activation: str | Activation = "gelu",
        norm: str = "layer",
        bias: bool = True,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_choice("layout", layout, _LAYOUTS)
        self.layout = layout
        context_width = options.pop("context_width", None)
        if context_width is not None and not cross:
            raise OptionError(complaint("context_width", context_width, "None", "only cross=True has a context"))
        # Argmax has no weights to drop.
        weight_dropout = 0.0 if isinstance(options.get("similarity"), Argmax) else dropout
        self.attention = Attention(width, heads, bias=bias, dropout=weight_dropout, **options)
        crossed = {**options, "positions": None, "context_width": context_width}
        self.cross = Attention(width, heads, bias=bias, dropout=weight_dropout, **crossed) if cross else None
        self.feed_forward = FeedForward(
            width, hidden, kind=feed_forward, activation=activation, bias=bias, dropout=dropout
        )
        norms = (3 if cross else 2) * _LAYOUTS[layout]
        self.norms = nn.ModuleList(make_norm(norm, width) for _ in range(norms))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch n width"],
        context: Float[Tensor, "batch m context_width"] | KeyValue | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        cache: KVCache | LinearState | None = None,
        lengths: Any = None,
        padding: str = "right",
        return_weights: bool = False,
        position_range: Any = None,
    ) -> Any:
        """Run the block.

        Args:
            x: (batch, n, width).
            context: Input of the cross attention, (batch, m, context_width), or the result of `cross.project(context)`.
            mask: Of the self attention, as are cache, lengths, padding and position_range; see `Attention`.
            context_mask: Of the cross attention.
            return_weights: Also return the attention weights.

        Returns:
            (batch, n, width); with return_weights, a pair of that and a tuple of weights: of self attention and, with
            `cross`, of cross attention.
        """
        check_features("x", x, self.attention.width, self.attention.query)
        if (context is None) is (self.cross is not None):
            given, wanted = ("None", "a context") if context is None else ("a context", "None")
            hint = f"this block was made with cross={self.cross is not None}"
            raise OptionError(complaint("context", given, wanted, hint))
        if context_mask is not None and self.cross is None:
            hint = "this block has no cross attention"
            raise OptionError(complaint("context_mask", repr(context_mask), "None", hint))
        own = {"lengths": lengths, "padding": padding, "cache": cache, "position_range": position_range}
        parts: list[Any] = [partial(self.attention, mask=mask, return_weights=return_weights, **own)]
        if self.cross is not None:
            parts.append(partial(self.cross, context=context, mask=context_mask, return_weights=return_weights))
        parts.append(self.feed_forward)
        norms = self.norms or [None] * len(parts)
        weights: list[Tensor] = []
        for part, norm in zip(parts, norms, strict=True):
            out = part(apply_norm(norm, x) if self.layout == "pre-norm" else x)
            if return_weights and part is not self.feed_forward:
                out, part_weights = out
                weights.append(part_weights)
            last_residual = self.layout == "residual" and part is self.feed_forward
            x = out if last_residual else x + self.dropout(out)
            x = apply_norm(norm, x) if self.layout == "post-norm" else x
        return (x, tuple(weights)) if return_weights else x


def make_norm(name: str, width: int) -> nn.Module:
    return check_choice("norm", name, _NORMS)(width)


def apply_norm(norm: nn.Module | None, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n width"]:
    """Apply a norm, if any, to (batch, n, width); BatchNorm1d takes batch and positions as one axis."""
    if norm is None:
        return x
    return norm(x.flatten(0, 1)).view_as(x) if isinstance(norm, nn.BatchNorm1d) else norm(x)
