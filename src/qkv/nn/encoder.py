"""The encoder: every token sees every real token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..inputs import check_size
from ..shapes import Bool, Float
from .stack import Stack, run_layers


class Encoder(Stack):
    """Blocks of self attention without a direction, with key padding: (batch, n) → (batch, n, width).

    vocabulary: tokens are integers, and there is an embedding; without it they are features (batch, n, width).
    classes: the answer is logits (batch, classes), of the mean over the real tokens.
    positions: an object of `qkv.nn`. final_norm: a norm behind the last layer; when None, with the layout "pre-norm".
    options: those of `Block`.

    >>> import torch, qkv
    >>> model = qkv.nn.Encoder(12, heads=3, layers=2, vocabulary=31, classes=5, positions=qkv.nn.Sinusoidal(12))
    >>> tokens = torch.randint(31, (2, 7))
    >>> model(tokens, lengths=[7, 4]).shape
    torch.Size([2, 5])
    >>> short = model(tokens[1:, :4])
    >>> torch.allclose(model(tokens, lengths=[7, 4])[1:], short, atol=1e-5)
    True

    At the edges: rows of padded positions mean nothing. A row without any real token has the mean 0. Positions count
    from the first real token of each row.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        vocabulary: int | None = None,
        classes: int | None = None,
        positions: Any = None,
        final_norm: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            width, heads, layers, vocabulary=vocabulary, positions=positions, final_norm=final_norm, cross=False,
            options=options,
        )  # fmt: skip
        self.head = None if classes is None else nn.Linear(self.width, check_size("classes", classes))

    def forward(self, tokens: Tensor, lengths: Any = None, *, keep: Any = None, return_weights: bool = False) -> Any:
        """(batch, n, width) or (batch, classes); with return_weights (that, a list with one tuple a layer).

        lengths: how many tokens of each row are real, from the left; or keep: booleans (batch, n), True is real.
        """
        which, kept = self.which(tokens, lengths, keep)
        place = self.place(tokens, which)
        x = self.embedded(tokens, place, kept)
        x, weights = run_layers(self, x, mask=which.mask, place=place, return_weights=return_weights)
        if self.head is not None:
            x = self.head(mean(x, kept))
        return (x, weights) if return_weights else x


def mean(x: Float[Tensor, "batch n width"], keep: Bool[Tensor, "batch n"] | None) -> Float[Tensor, "batch width"]:
    """The mean over real tokens; what is padded does not matter, whatever it holds."""
    if keep is None:
        return x.sum(1) / max(x.shape[1], 1)
    keep = keep.unsqueeze(-1)
    return x.masked_fill(~keep, 0.0).sum(1) / keep.sum(1).clamp(min=1)
