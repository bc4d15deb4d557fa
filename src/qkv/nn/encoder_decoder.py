"""Encoder and decoder together: one sequence is read, another is written."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..inputs import check_size
from ..shapes import Float, Int
from .decoder import Decoder
from .encoder import Encoder
from .module import Described


class EncoderDecoder(Described):
    """decoder(target | encoder(source)): logits (batch, n, vocabulary) of the target's next tokens.

    The encoder's self attention and the cross attention see the source without its padding; the decoder's self
    attention is causal. Both stacks, and the logits, share one embedding.
    layers, decoder_layers: of the encoder and of the decoder, which has as many when None.
    positions: of the encoder; decoder_positions: of the decoder, an object of its own, none when None.
    options: those of `Block`, and final_norm.

    >>> import torch, qkv
    >>> model = qkv.nn.EncoderDecoder(12, heads=3, layers=2, vocabulary=31,
    ...                               positions=qkv.nn.RelativeBias(3),
    ...                               decoder_positions=qkv.nn.RelativeBias(3, bidirectional=False))
    >>> source, target = torch.randint(31, (2, 7)), torch.randint(31, (2, 5))
    >>> model(source, target, source_lengths=[7, 4]).shape
    torch.Size([2, 5, 31])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        vocabulary: int,
        decoder_layers: int | None = None,
        positions: Any = None,
        decoder_positions: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        below = check_size("layers", layers) if decoder_layers is None else check_size("decoder_layers", decoder_layers)
        self.encoder = Encoder(width, heads, layers, vocabulary=vocabulary, positions=positions, **options)
        self.decoder = Decoder(
            width, heads, below, vocabulary=vocabulary, positions=decoder_positions, cross=True, **options
        )
        # The weight, and not the module, which torch.func.functional_call would not put back under two names.
        assert self.decoder.embedding is not None
        assert self.encoder.embedding is not None
        self.decoder.embedding.weight = self.encoder.embedding.weight

    def encode(self, source: Int[Tensor, "batch m"], lengths: Any = None) -> Float[Tensor, "batch m width"]:
        """What the decoder attends to: `decoder(target, context=encode(source, lengths), context_lengths=lengths)`."""
        return self.encoder(source, lengths)

    def forward(
        self,
        source: Int[Tensor, "batch m"],
        target: Int[Tensor, "batch n"],
        source_lengths: Any = None,
        target_lengths: Any = None,
        *,
        return_weights: bool = False,
    ) -> Any:
        """Logits; with return_weights (that, {"encoder": …, "decoder": …}), each a list with one tuple a layer."""
        if not return_weights:
            context = self.encode(source, source_lengths)
            return self.decoder(target, target_lengths, context=context, context_lengths=source_lengths)
        context, read = self.encoder(source, source_lengths, return_weights=True)
        logits, written = self.decoder(
            target, target_lengths, context=context, context_lengths=source_lengths, return_weights=True
        )
        return logits, {"encoder": read, "decoder": written}
