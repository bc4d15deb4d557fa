"""What encoders and decoders have in common: an input, layers, and a norm at the end."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import DtypeError, MaskError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size, in_transform
from ..masks import Mask, Padding
from ..shapes import Bool, Float
from .block import Block, norm_of, normed
from .module import Described
from .positions import Added, Learned, Place, checked_positions


class Real(NamedTuple):
    """Which tokens are real: the first `lengths` of each row, or where `keep` is True; all when both are None.

    mask: the same as key padding.
    """

    mask: Padding | None
    lengths: Any
    keep: Bool[Tensor, "batch n"] | None

    def kept(self, n: int, device: torch.device) -> Bool[Tensor, "batch n"] | None:
        """The real ones as booleans."""
        if self.lengths is None:
            return self.keep
        return torch.arange(n, device=device) < torch.as_tensor(self.lengths, device=device).reshape(-1, 1)

    def side(self, batch: int, n: int) -> tuple[Any, str]:
        """The same as (lengths, padding) of a cache's new tokens."""
        keep = self.keep
        if keep is None:
            return self.lengths, "right"
        if tuple(keep.shape) != (batch, n):
            raise MaskError(complaint("keep", f"shape {tuple(keep.shape)}", f"(batch, n) = {(batch, n)}"))
        counts, places = keep.sum(1), torch.arange(n, device=keep.device)
        if torch.equal(keep, places < counts.unsqueeze(1)):
            return counts, "right"
        if torch.equal(keep, places >= n - counts.unsqueeze(1)):
            return counts, "left"
        wanted = "real tokens in one run, at the left of every row or at the right of every row"
        hint = "a cache holds no padding; pad on one side, or run without a cache"
        raise MaskError(complaint("keep", "padding elsewhere beside a cache", wanted, hint))


def real(lengths: Any, keep: Any, device: torch.device) -> Real:
    """Read lengths and keep, of which at most one is given."""
    mask = None if lengths is None and keep is None else Padding(lengths, keep=keep)
    return Real(mask, lengths, None if keep is None else torch.as_tensor(keep, device=device))


class Stack(Described):
    """`layers` blocks, one after the other, behind an embedding and positions, and before a last norm.

    positions that are added to the input are added here, once; the others are given to every layer, one shared object.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        vocabulary: int | None,
        positions: Any,
        final_norm: bool | None,
        cross: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.width, self.vocabulary = check_size("width", width), vocabulary
        self.embedding = None
        if vocabulary is not None:
            self.embedding = nn.Embedding(check_size("vocabulary", vocabulary), self.width)
            # So that an output that shares the weights starts with logits of size 1.
            nn.init.normal_(self.embedding.weight, std=self.width**-0.5)
        added = isinstance(positions, Added)
        own = None if added else positions
        blocks = [
            Block(width, heads, cross=cross, positions=own, **options) for _ in range(check_size("layers", layers))
        ]
        self.layers = nn.ModuleList(blocks)
        if added:
            checked_positions(positions, self.width, heads, blocks[0].attention.head_width)
        self.positions = positions
        if final_norm not in (None, True, False):
            raise OptionTypeError(complaint("final_norm", repr(final_norm), "True, False or None"))
        wanted = blocks[0].layout == "pre-norm" if final_norm is None else final_norm
        self.norm = norm_of(options.get("norm", "layer"), self.width) if wanted else None

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return [block for block in self.layers if isinstance(block, Block)]

    def check_tokens(self, tokens: Tensor, keep: Tensor | None = None) -> None:
        """Integers (batch, n) of the vocabulary; without one, features (batch, n, width), which the blocks look at.

        What keep says is padding may be anything.
        """
        if not isinstance(tokens, Tensor):
            raise DtypeError(complaint("tokens", type(tokens).__name__, "a torch.Tensor"))
        if self.vocabulary is None:
            if tokens.dim() != 3:
                raise ShapeError(complaint("tokens", f"shape {tuple(tokens.shape)}", f"(batch, n, {self.width})"))
            return
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype is torch.bool:
            hint = "a stack without vocabulary= takes features"
            raise DtypeError(complaint("tokens", f"dtype {tokens.dtype}", "integers", hint))
        if tokens.dim() != 2:
            raise ShapeError(complaint("tokens", f"shape {tuple(tokens.shape)}", "(batch, n)"))
        # A program that is traced or transformed does not look at numbers; there the embedding says what is wrong.
        if torch.compiler.is_compiling() or in_transform() or tokens.is_meta:
            return
        if keep is not None and keep.shape == tokens.shape:
            tokens = tokens[keep]
        if not tokens.numel():
            return
        for worst in (int(tokens.min()), int(tokens.max())):
            if not 0 <= worst < self.vocabulary:
                wanted = f"numbers from 0 to {self.vocabulary - 1}, the vocabulary"
                raise OptionError(complaint("tokens", f"the number {worst}", wanted))

    def which(self, tokens: Tensor, lengths: Any, keep: Any) -> tuple[Real, Tensor | None]:
        """Which tokens are real, as it was given and as booleans; the tokens themselves are looked at, too."""
        if not isinstance(tokens, Tensor):
            self.check_tokens(tokens)
        given = real(lengths, keep, tokens.device)
        kept = None if tokens.dim() < 2 else given.kept(tokens.shape[1], tokens.device)
        self.check_tokens(tokens, kept)
        return given, kept

    def embedded(self, tokens: Tensor, place: Place, keep: Tensor | None) -> Float[Tensor, "batch n width"]:
        """What the first layer is given. Padding is 0: a NaN in it would come back through the weights' derivatives."""
        padded = None if keep is None or keep.shape != tokens.shape[:2] else ~keep
        if self.embedding is None:
            x = tokens
        else:
            tokens = tokens.long()
            x = self.embedding(tokens if padded is None else tokens.masked_fill(padded, 0))
        x = self.positions(x, place) if isinstance(self.positions, Added) else x
        return x if padded is None else x.masked_fill(padded.unsqueeze(-1), 0.0)

    def place(self, tokens: Tensor, real: Real) -> Place:
        """Without a cache: every row counts from its first real token, wherever its padding stands."""
        n = tokens.shape[1]
        if real.keep is None or self.positions is None:
            return Place(0, n, n)
        return Place(-real.keep.int().argmax(1), n, n)

    def finished(self, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n width"]:
        return x if self.norm is None else normed(self.norm, x)

    @property
    def longest(self) -> int | None:
        """How many positions there are; None where there is no end to them."""
        return self.positions.length if isinstance(self.positions, Learned) else None


def run_layers(
    stack: Stack,
    x: Float[Tensor, "batch n width"],
    *,
    mask: Mask | None,
    contexts: list[Any] | None = None,
    context_mask: Mask | None = None,
    cache: list[Any] | None = None,
    lengths: Any = None,
    padding: str = "right",
    place: Place | None = None,
    return_weights: bool,
) -> tuple[Tensor, list[tuple[Float[Tensor, "batch heads n m"], ...]]]:
    """x through every layer, and the weights of each where they are asked for."""
    weights = []
    for i, block in enumerate(stack.blocks):
        answer = block(
            x,
            None if contexts is None else contexts[i],
            mask=mask,
            context_mask=context_mask,
            cache=None if cache is None else cache[i],
            lengths=lengths,
            padding=padding,
            place=place,
            return_weights=return_weights,
        )
        if return_weights:
            x, seen = answer
            weights.append(seen)
        else:
            x = answer
    return stack.finished(x), weights
