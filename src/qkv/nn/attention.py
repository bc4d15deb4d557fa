"""Multi-head attention as a module, with any similarity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..cache.decode import decode
from ..errors import BackendRefused, OptionError, ShapeError, complaint
from ..functional import attention
from ..inputs import check_dropout, check_size
from ..masks import Mask
from ..shapes import Float
from ..similarity import AnySimilarity, FeatureMap, Sigmoid, Softmax, as_similarity
from .module import ConfiguredModule, check_features, local_part
from .positions import AddedPositions, BiasPositions, PositionRange, Rotary, check_positions, positions_after

LOGITS = ("sink", "score_bias")  # the names of a module's tensor of Softmax, and of Sigmoid

KeyValue = tuple[Tensor, Tensor]


class Attention(ConfiguredModule):
    """out([head_1 … head_H]) with head_h = attention(query_h(x), key_h(c), value_h(c)), c = x for self attention.

    The output of a fully masked token is the bias of `out`.

    Args:
        width: Width of inputs and outputs.
        heads: Query heads.
        kv_heads: Key/value heads, a divisor of heads; `heads` if None.
        head_width: Width of a head; width // heads if None.
        context_width: Width of the context of cross attention; `width` if None.
        similarity: Any similarity of qkv; `Softmax()` if None. A `FeatureMap`'s module and a sink that is a parameter
            are trained.
        positions: An object such as `qkv.nn.Rotary()`, or None. `Learned` and `Sinusoidal` are added to x before the
            projections.
        bias: Whether the projections `query`, `key`, `value` and `out` have biases.
        dropout: Dropout of the attention weights while training.

    >>> import torch, qkv
    >>> layer = qkv.nn.Attention(width=12, heads=4, kv_heads=2, positions=qkv.nn.Rotary(fraction=2 / 3))
    >>> x = torch.randn(2, 5, 12)
    >>> layer(x, mask=qkv.Causal()).shape
    torch.Size([2, 5, 12])
    >>> cache = layer.cache(batch=2)
    >>> with torch.no_grad():
    ...     steps = [layer(x[:, i : i + 1], cache=cache) for i in range(5)]
    ...     torch.allclose(torch.cat(steps, dim=1), layer(x, mask=qkv.Causal()), atol=1e-5)
    True
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        context_width: int | None = None,
        similarity: AnySimilarity | None = None,
        positions: Any = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.width, self.heads = check_size("width", width), check_size("heads", heads)
        self.kv_heads = self.heads if kv_heads is None else check_size("kv_heads", kv_heads)
        if self.heads % self.kv_heads:
            raise OptionError(complaint("kv_heads", kv_heads, f"a number that divides the {heads} heads"))
        if head_width is None and self.width % self.heads:
            wanted = f"a number that divides the width {width}"
            raise OptionError(complaint("heads", heads, wanted, "or set head_width="))
        self.head_width = self.width // self.heads if head_width is None else check_size("head_width", head_width)
        self.context_width = self.width if context_width is None else check_size("context_width", context_width)
        self._similarity = chosen = as_similarity(similarity)
        self.dropout = check_dropout(dropout, chosen)
        self.query = nn.Linear(self.width, self.heads * self.head_width, bias)
        self.key = nn.Linear(self.context_width, self.kv_heads * self.head_width, bias)
        self.value = nn.Linear(self.context_width, self.kv_heads * self.head_width, bias)
        self.out = nn.Linear(self.heads * self.head_width, self.width, bias)
        self.positions = check_positions(positions, self.width, self.heads, self.head_width)
        if isinstance(self.positions, BiasPositions) and not chosen.has_scores:
            kind = type(self.positions).__name__
            hint = "only the scores of Softmax and Sigmoid take a bias; use Rotary, Learned or Sinusoidal"
            raise OptionError(complaint("positions", f"{kind} with {chosen!r}", "Softmax or Sigmoid", hint))
        # The similarity's module, parameter or tensor is part of this module.
        if isinstance(chosen, FeatureMap) and isinstance(chosen.map, nn.Module):
            self.map = chosen.map
        if getattr(chosen, "log_decay", None) is not None:
            hint = "gates belong to the tokens of a call: give them to qkv.attention and qkv.decode"
            raise OptionError(complaint("similarity", repr(chosen), "one without log_decay", hint))
        name, logits = LOGITS[0], getattr(chosen, "sink", None)
        if isinstance(chosen, Sigmoid):
            name, logits = LOGITS[1], chosen.bias
        if isinstance(logits, Tensor):
            if logits.numel() != 1 and tuple(logits.shape) != (self.heads,):
                wanted = f"({self.heads},): one logit per query head"
                raise ShapeError(complaint(name, f"shape {tuple(logits.shape)}", wanted))
            if isinstance(logits, nn.Parameter):
                self.register_parameter(name, logits)
            else:
                self.register_buffer(name, logits)

    @property
    def similarity(self) -> AnySimilarity:
        """The similarity, with the module's current sink or bias, which may have been moved or loaded."""
        similarity = self._similarity
        if isinstance(similarity, Softmax) and isinstance(similarity.sink, Tensor):
            return Softmax(similarity.scale, similarity.softcap, local_part(self.sink))
        if isinstance(similarity, Sigmoid) and isinstance(similarity.bias, Tensor):
            return Sigmoid(similarity.scale, local_part(self.score_bias))
        return similarity

    def extra_repr(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return f"{self.width}, heads={heads}, similarity={self.similarity!r}"

    def cache(
        self, batch: int, dtype: torch.dtype = torch.float32, capacity: int | None = None
    ) -> KVCache | LinearState:
        """Create an empty cache for `forward`: a `KVCache`, or a `LinearState` for `FeatureMap` and `Polynomial`.

        Args:
            batch: Rows of the batch.
            dtype: Storage format of a `KVCache`.
            capacity: Capacity of a `KVCache`.
        """
        similarity = self.similarity
        if not similarity.is_product:
            return KVCache(batch, self.kv_heads, self.head_width, capacity=capacity, dtype=dtype)
        return LinearState(similarity, batch, self.kv_heads, self.head_width)

    def project(self, context: Float[Tensor, "batch m context_width"]) -> KeyValue:
        """Keys and values of a context, each (batch, kv_heads, m, head_width), to pass to `forward` as `context`."""
        check_features("context", context, self.context_width, self.key)
        key, value = self._split(self.key(context), self.kv_heads), self._split(self.value(context), self.kv_heads)
        return *self._rotate(key), value

    def forward(
        self,
        x: Float[Tensor, "batch n width"],
        context: Float[Tensor, "batch m context_width"] | KeyValue | None = None,
        *,
        mask: Mask | None = None,
        lengths: Any = None,
        padding: str = "right",
        cache: KVCache | LinearState | None = None,
        return_weights: bool = False,
        position_range: PositionRange | None = None,
    ) -> Any:
        """Attend.

        Args:
            x: (batch, n, width).
            context: For cross attention, (batch, m, context_width), or the result of `project(context)`.
            mask: A mask of qkv (True attends). With a cache, in absolute positions.
            lengths: With a cache, how many of the n tokens are real in each row; all if None.
            padding: With a cache, where the padding of a shorter row is: "right" or "left" of its real tokens.
            cache: From `self.cache`. The tokens are appended to it and attend causally to all of its tokens; dropout is
                not applied, and gradients are refused.
            return_weights: Also return the weights; not with a cache.
            position_range: Positions of the tokens without a cache; 0, 1, 2, … if None.

        Returns:
            (batch, n, width); with return_weights, a pair of that and the weights (batch, heads, n, m).
        """
        check_features("x", x, self.width, self.query)
        if cache is not None:
            if context is not None:
                hint = "a context needs no cache: call project(context) once and pass the result as context"
                raise OptionError(complaint("context", "a context with a cache", "None", hint))
            if return_weights:
                hint = "run the whole sequence without a cache"
                raise OptionError(complaint("return_weights", "True with a cache", "False", hint))
            return self._decode(x, mask, lengths, padding, cache)
        if lengths is not None or padding != "right":
            given = f"lengths={lengths!r}, padding={padding!r} without a cache"
            hint = "use mask=qkv.Padding(lengths)"
            raise OptionError(complaint("lengths, padding", given, "None and 'right'", hint))
        n = x.shape[1]
        position_range = PositionRange(0, n, n) if position_range is None else position_range
        if context is None and self.context_width != self.width:
            wanted = f"a context of width {self.context_width}"
            raise ShapeError(complaint("context", "None", wanted, "self attention needs context_width == width"))
        if context is None:
            query, key, value = self._project_self(x, position_range)
        else:
            key, value = context if isinstance(context, tuple) else self.project(context)
            query = self._split(self.query(self._add_positions(x, position_range)), self.heads)
            (query,) = self._rotate(query)
        dropout = self.dropout if self.training else 0.0
        # The bias depends on distances only, so the start of the range does not matter.
        bias = self._bias(query, PositionRange(0, n, n), key.shape[-2])
        result: Any = attention(
            query, key, value, similarity=self.similarity, mask=mask, bias=bias, dropout=dropout,
            return_lse=False, return_weights=return_weights,
        )  # fmt: skip
        return (self._merge_heads(result[0]), result[1]) if return_weights else self._merge_heads(result)

    def _decode(self, x: Tensor, mask: Mask | None, lengths: Any, padding: str, cache: KVCache | LinearState) -> Tensor:
        if isinstance(cache, LinearState) and isinstance(self.positions, BiasPositions):
            kind = type(self.positions).__name__
            reason = "its sums are shared by all queries and take no bias"
            wanted = "Rotary, Learned or Sinusoidal"
            raise BackendRefused(complaint("positions", f"{kind} with a LinearState", wanted, reason), (reason,))
        n = x.shape[1]
        placed = self.positions is not None
        position_range = positions_after(cache, n, lengths, padding) if placed else PositionRange(0, n, n)
        query, key, value = self._project_self(x, position_range)
        bias = self._bias(query, position_range, position_range.end)
        out = decode(
            query, key, value, cache, similarity=self.similarity, mask=mask, bias=bias, lengths=lengths, padding=padding
        )  # fmt: skip
        return self._merge_heads(out)

    def _project_self(self, x: Tensor, position_range: PositionRange) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of self attention, with their positions."""
        x = self._add_positions(x, position_range)
        query, key = self._split(self.query(x), self.heads), self._split(self.key(x), self.kv_heads)
        return *self._rotate(query, key, position_range=position_range), self._split(self.value(x), self.kv_heads)

    def _rotate(self, *heads: Tensor, **given: Any) -> Any:
        return self.positions(*heads, **given) if isinstance(self.positions, Rotary) else heads

    def _add_positions(self, x: Tensor, position_range: PositionRange) -> Tensor:
        return self.positions(x, position_range) if isinstance(self.positions, AddedPositions) else x

    def _bias(self, query: Tensor, position_range: PositionRange, keys: int) -> Tensor | None:
        if not isinstance(self.positions, BiasPositions):
            return None
        return self.positions(position_range, keys, query.dtype, query.device)

    def _split(self, x: Tensor, heads: int) -> Float[Tensor, "batch heads n head_width"]:
        return x.unflatten(-1, (heads, self.head_width)).transpose(1, 2)

    def _merge_heads(self, heads: Float[Tensor, "batch heads n head_width"]) -> Float[Tensor, "batch n width"]:
        return self.out(heads.transpose(1, 2).flatten(2))
