"""`bias=` as a function of scores and positions, called with a block of pairs at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import DtypeError, OptionError, ShapeError, complaint
from .masks import Extent
from .shapes import Float
from .similarity import AnySimilarity

_NAME = "bias (a function of scores)"

# function(scores, batch, head, query, key) → scores. scores: (batch, heads, queries, keys). The others: indices, int64
# (batch, 1, 1, 1), (1, heads, 1, 1), (batch or 1, 1, queries, 1) and (batch or 1, heads or 1, 1, keys).
ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def cut(tensor: Tensor, *parts: slice) -> Tensor:
    """A part of each axis of a tensor that broadcasts: axes of size 1 stay."""
    whole = slice(None)
    index = tuple(part if size > 1 else whole for part, size in zip(parts, tensor.shape, strict=True))
    return tensor if index == (whole,) * len(index) else tensor[index]


class ScoreRule(NamedTuple):
    """A function of scores, and the indices of the pairs of a call."""

    function: ScoreFunction
    indices: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def over(
        cls, function: ScoreFunction, extent: Extent, device: torch.device, query: Any = None, key: Any = None
    ) -> ScoreRule:
        """For all pairs. query, key: positions (batch or 1, queries), (batch, heads, keys); None for the indices."""
        batch, head, row, column = (torch.arange(size, device=device) for size in extent.shape)
        query = row[None, None, :, None] if query is None else query[:, None, :, None]
        key = column[None, None, None] if key is None else key[:, :, None]
        return cls(function, (batch[:, None, None, None], head[None, :, None, None], query, key))

    def part(self, *parts: slice) -> ScoreRule:
        """For some batch rows, query heads, queries and keys."""
        batch, head, query, key = (cut(index, *parts) for index in self.indices)
        return ScoreRule(self.function, (batch, head, query, key))

    def __call__(self, scores: Float[Tensor, "batch heads rows keys"]) -> Float[Tensor, "batch heads rows keys"]:
        changed = self.function(scores, *self.indices)
        shape = tuple(scores.shape)
        if not isinstance(changed, Tensor):
            hint = "the function is given a block of scores and returns the block that replaces it"
            raise DtypeError(complaint(_NAME, f"{type(changed).__name__} as its result", "a torch.Tensor", hint))
        if tuple(changed.shape) != shape:
            hint = "return scores + ..., with terms that broadcast to it"
            raise ShapeError(complaint(_NAME, f"a result of shape {tuple(changed.shape)}", f"{shape}", hint))
        if changed.dtype is not scores.dtype:
            given, hint = f"a result of {changed.dtype}", "terms.to(scores.dtype) converts"
            raise DtypeError(complaint(_NAME, given, f"{scores.dtype}, as its scores have", hint))
        return changed


def check_score_function(function: ScoreFunction, similarity: AnySimilarity) -> ScoreFunction:
    if not similarity.has_scores:
        hint = "only Softmax and Sigmoid are functions of scores"
        raise OptionError(complaint("bias", f"a function with {similarity!r}", "None", hint))
    return function
