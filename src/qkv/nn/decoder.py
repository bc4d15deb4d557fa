"""The decoder: every token sees itself and what came before, and the next one is predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..errors import OptionError, OptionTypeError, complaint
from ..masks import Causal
from ..shapes import Float, Int
from .attention import Pair
from .positions import Added, Place, place_after
from .stack import Stack, real, run_layers
from .steps import all_or_none, check_in_step

LayerCaches = list[KVCache | LinearState]


class Decoder(Stack):
    """Blocks of causal self attention, and logits of the next token: (batch, n) integers → (batch, n, vocabulary).

    tied: logits are products with the embedding's own vectors; otherwise `head` is a Linear of its own.
    cross: every block attends to a context as well. positions, final_norm: as for `Encoder`. options: those of `Block`.

    >>> import torch, qkv
    >>> model = qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31, positions=qkv.nn.ALiBi(3)).eval()
    >>> tokens = torch.randint(31, (2, 7))
    >>> cache = model.memory(batch=2)
    >>> with torch.no_grad():
    ...     first, rest = model(tokens[:, :5], cache=cache), model(tokens[:, 5:], cache=cache)
    ...     torch.allclose(torch.cat([first, rest], dim=1), model(tokens), atol=1e-5)
    True

    At the edges: logits of padded positions mean nothing. Positions count from the first real token of each row. With
    a cache gradients and `return_weights` are refused.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        vocabulary: int,
        positions: Any = None,
        tied: bool = True,
        cross: bool = False,
        final_norm: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            width, heads, layers, vocabulary=vocabulary, positions=positions, final_norm=final_norm, cross=cross,
            options=options,
        )  # fmt: skip
        if self.embedding is None:
            raise OptionTypeError(complaint("vocabulary", "None", "the number of tokens: a decoder predicts them"))
        self.head = None if tied else nn.Linear(self.width, self.embedding.num_embeddings, bias=False)

    def cache(self, batch: int, dtype: torch.dtype = torch.float32, capacity: int | None = None) -> LayerCaches:
        """One empty cache a layer, as `Attention.memory` makes them."""
        return [block.attention.cache(batch, dtype, capacity) for block in self.blocks]

    def project(self, context: Float[Tensor, "batch m width"]) -> list[Pair]:
        """Keys and values of a context, one pair a layer: `forward` takes them in its place."""
        return [block.cross.project(context) for block in self.blocks if block.cross is not None]

    def forward(
        self,
        tokens: Int[Tensor, "batch n"],
        lengths: Any = None,
        *,
        keep: Any = None,
        context: Float[Tensor, "batch m width"] | list[Pair] | None = None,
        context_lengths: Any = None,
        context_keep: Any = None,
        cache: LayerCaches | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Logits (batch, n, vocabulary); with return_weights (that, a list with one tuple a layer).

        lengths: how many tokens of each row are real, from the left; or keep: booleans (batch, n), True is real.
        context, context_lengths, context_keep: what the cross attention sees, or what `project(context)` gave.
        cache: of `self.memory`. tokens are new ones, appended to it; those that lengths or keep leave out are not. The
        real ones must then stand at the left of every row, or at the right of every row.
        """
        x, weights = self.states(tokens, lengths, keep, context, context_lengths, context_keep, cache, return_weights)
        return (self.logits(x), weights) if return_weights else self.logits(x)

    def states(
        self,
        tokens: Tensor,
        lengths: Any = None,
        keep: Any = None,
        context: Any = None,
        context_lengths: Any = None,
        context_keep: Any = None,
        cache: LayerCaches | None = None,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch n width"], list[Any]]:
        """What `logits` is given, and the weights: whoever needs the last token only need not ask for all logits."""
        which, kept = self.which(tokens, lengths, keep)
        layers = len(self.layers)
        contexts = context if isinstance(context, list) or context is None else [context] * layers
        if contexts is not None and len(contexts) != layers:
            raise OptionError(complaint("context", f"{len(contexts)} pairs", f"{layers}, one a layer"))
        given: dict[str, Any] = {
            "contexts": contexts,
            "context_mask": real(context_lengths, context_keep, tokens.device).mask,
            "return_weights": return_weights,
        }
        if cache is None:
            mask = Causal() if which.mask is None else Causal() & which.mask
            here = self.place(tokens, which)
            return run_layers(self, self.embedded(tokens, here, kept), mask=mask, place=here, **given)
        if not isinstance(cache, list) or len(cache) != layers:
            said = f"{len(cache)} of them" if isinstance(cache, list) else type(cache).__name__
            wanted = f"a list of {layers}, one a layer"
            raise OptionTypeError(complaint("cache", said, wanted, "model.memory(batch) makes it"))
        check_in_step(cache)
        n = tokens.shape[1]
        counts, padding = which.side(tokens.shape[0], n)
        place = Place(0, n, n)
        if isinstance(self.positions, Added):
            place = place_after(cache[0], n, counts, padding)
        x = self.embedded(tokens, place, kept)
        with all_or_none(cache):
            return run_layers(self, x, mask=None, cache=cache, lengths=counts, padding=padding, **given)

    def logits(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Of the token that comes next."""
        assert self.embedding is not None
        return nn.functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)
