"""Stacks of blocks: `Encoder`, `Decoder` and `EncoderDecoder`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..cache import KVCache, LinearState
from ..errors import DtypeError, MaskError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size, in_transform
from ..masks import Causal, Mask, Segments
from ..masks import encoder as encoder_mask
from ..masks.joined import join_masks
from ..masks.segments import boundaries
from ..shapes import Bool, Float, Int
from .attention import KeyValue
from .block import Block, apply_norm, make_norm
from .module import ConfiguredModule
from .positions import AddedPositions, Learned, PositionRange, check_positions, positions_after


class RealTokens(NamedTuple):
    """Which tokens are real: the first `lengths` of each row, or where `keep` is True; all if both are None.

    mask: The same as a mask over keys. kept: The same as booleans.
    """

    mask: Mask | None
    lengths: Any
    keep: Bool[Tensor, "batch n"] | None
    kept: Bool[Tensor, "batch n"] | None

    def side(self, batch: int, n: int) -> tuple[Any, str]:
        """The same as the arguments (lengths, padding) of `decode`."""
        keep = self.keep
        if keep is None:
            return self.lengths, "right"
        if tuple(keep.shape) != (batch, n):
            raise MaskError(complaint("keep", f"shape {tuple(keep.shape)}", f"(batch, n) = {(batch, n)}"))
        counts, index = keep.sum(1), torch.arange(n, device=keep.device)
        if torch.equal(keep, index < counts.unsqueeze(1)):
            return counts, "right"
        if torch.equal(keep, index >= n - counts.unsqueeze(1)):
            return counts, "left"
        wanted = "contiguous real tokens, at the left of every row or at the right of every row"
        hint = "a cache stores no padding; pad on one side, or run without a cache"
        raise MaskError(complaint("keep", "padding between real tokens, with a cache", wanted, hint))


class Stack(ConfiguredModule):
    """An embedding, positions, `layers` blocks and a final norm.

    `Learned` and `Sinusoidal` positions are added to the input once; other positions are shared by all layers.
    """

    def __init__(self, sizes: tuple[int, int, int], vocabulary: int | None, positions: Any, **options: Any) -> None:
        """sizes: Width, heads and layers. options: Those of `Block`, and final_norm."""
        super().__init__()
        (width, heads, layers), final_norm = sizes, options.pop("final_norm")
        self.width, self.vocabulary = check_size("width", width), vocabulary
        self.embedding = None
        if vocabulary is not None:
            self.embedding = nn.Embedding(check_size("vocabulary", vocabulary), self.width)
            # With tied weights, logits then start with a variance of about 1.
            nn.init.normal_(self.embedding.weight, std=self.width**-0.5)
        added = isinstance(positions, AddedPositions)
        options["positions"] = None if added else positions
        blocks = [Block(width, heads, **options) for _ in range(check_size("layers", layers))]
        self.layers = nn.ModuleList(blocks)
        if added:
            check_positions(positions, self.width, heads, blocks[0].attention.head_width)
        self.positions = positions
        if final_norm not in (None, True, False):
            raise OptionTypeError(complaint("final_norm", repr(final_norm), "True, False or None"))
        has_norm = blocks[0].layout == "pre-norm" if final_norm is None else final_norm
        self.norm = make_norm(options.get("norm", "layer"), self.width) if has_norm else None

    @property
    def blocks(self) -> list[Block]:
        """The layers."""
        return [block for block in self.layers if isinstance(block, Block)]

    def read_tokens(self, tokens: Tensor, lengths: Any = None, keep: Any = None) -> RealTokens:
        """Check integers (batch, n) of the vocabulary or, without a vocabulary, the rank of features (batch, n, width).

        Padding may have any value.

        Returns:
            Which tokens are real.
        """
        if not isinstance(tokens, Tensor):
            raise DtypeError(complaint("tokens", type(tokens).__name__, "a torch.Tensor"))
        features = self.vocabulary is None
        if not features and (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype is torch.bool):
            hint = "a model without vocabulary= takes features"
            raise DtypeError(complaint("tokens", f"dtype {tokens.dtype}", "integers", hint))
        if tokens.dim() != (3 if features else 2):
            wanted = f"(batch, n, {self.width})" if features else "(batch, n)"
            raise ShapeError(complaint("tokens", f"shape {tuple(tokens.shape)}", wanted))
        device, mask = tokens.device, encoder_mask(lengths, keep=keep)
        kept = keep = None if keep is None else torch.as_tensor(keep, device=device)
        if lengths is not None:
            kept = torch.arange(tokens.shape[1], device=device) < torch.as_tensor(lengths, device=device).reshape(-1, 1)
        # Values cannot be read while tracing; the embedding raises at run time.
        if self.vocabulary is not None and not (torch.compiler.is_compiling() or in_transform() or tokens.is_meta):
            real = tokens if kept is None or kept.shape != tokens.shape else tokens[kept]
            for worst in map(int, real.aminmax()) if real.numel() else ():
                if not 0 <= worst < self.vocabulary:
                    wanted = f"numbers from 0 to {self.vocabulary - 1}, the vocabulary"
                    raise OptionError(complaint("tokens", f"the number {worst}", wanted))
        return RealTokens(mask, lengths, keep, kept)

    def embed(
        self, tokens: Tensor, position_range: PositionRange, keep: Tensor | None
    ) -> Float[Tensor, "batch n width"]:
        """The input of the first layer. Padding is set to 0: a NaN in it would reach the gradients of the weights."""
        padded = None if keep is None or keep.shape != tokens.shape[:2] else ~keep
        if self.embedding is None:
            x = tokens
        else:
            tokens = tokens.long()
            x = self.embedding(tokens if padded is None else tokens.masked_fill(padded, 0))
        x = self.positions(x, position_range) if isinstance(self.positions, AddedPositions) else x
        return x if padded is None else x.masked_fill(padded.unsqueeze(-1), 0.0)

    def documents(self, tokens: Tensor, real: RealTokens, cu_seqlens: Any) -> tuple[Segments | None, PositionRange]:
        """The mask of packed documents, if any, and positions without a cache.

        Each row starts at 0 with its first real token, or each document with its first token.
        """
        n = tokens.shape[1]
        if cu_seqlens is None:
            start = 0 if real.keep is None or self.positions is None else -real.keep.int().argmax(1)
            return None, PositionRange(start, n, n)
        if real.mask is not None:
            hint = "make the padding a document, and leave its outputs out"
            raise OptionError(complaint("cu_seqlens", "lengths or keep as well", "one of them", hint))
        edges = boundaries("cu_seqlens", cu_seqlens)
        if edges[-1] != n:
            raise ShapeError(complaint("cu_seqlens", f"{edges[-1]} at the end", f"{n}, the number of tokens"))
        sizes = [stop - start for start, stop in pairwise(edges)]
        ids = torch.cat([torch.arange(size, device=tokens.device) for size in (*sizes, 0)])
        return Segments.from_cu_seqlens(edges), PositionRange(0, n, max(sizes, default=0), ids)

    def run(self, tokens: Tensor, real: RealTokens, cu_seqlens: Any, *masks: Mask | None, **options: Any) -> Any:
        """Embed the tokens and run all layers, without a cache."""
        documents, position_range = self.documents(tokens, real, cu_seqlens)
        x = self.embed(tokens, position_range, real.kept)
        mask = join_masks(*masks, real.mask, documents)
        return run_layers(self, x, mask=mask, position_range=position_range, **options)

    @property
    def max_length(self) -> int | None:
        """The number of positions, or None if it is unlimited."""
        return self.positions.length if isinstance(self.positions, Learned) else None


def run_layers(
    stack: Stack,
    x: Float[Tensor, "batch n width"],
    contexts: list[Any] | None = None,
    cache: list[Any] | None = None,
    **options: Any,
) -> tuple[Tensor, list[tuple[Float[Tensor, "batch heads n m"], ...]]]:
    """Run all layers, with options of `Block.forward`, and the final norm.

    Returns:
        The output and, with return_weights, the weights of each layer.
    """
    weights = []
    for i, block in enumerate(stack.blocks):
        context, layer_cache = (None if given is None else given[i] for given in (contexts, cache))
        x = block(x, context, cache=layer_cache, **options)
        if options["return_weights"]:
            x, layer_weights = x
            weights.append(layer_weights)
    return apply_norm(stack.norm, x), weights


class Encoder(Stack):
    """Blocks of bidirectional self attention over the real tokens: (batch, n) → (batch, n, width).

    Outputs at padded positions are undefined. Positions count from the first real token of each row.

    Args:
        width: Width of the model.
        heads: Query heads.
        layers: Number of blocks.
        vocabulary: Number of tokens. If None, the inputs are features (batch, n, width).
        classes: If given, the output is logits (batch, classes) of the mean over the real tokens. The mean of a row
            without real tokens is 0.
        positions: An object such as `qkv.nn.Rotary()`, or None.
        final_norm: Whether a norm follows the last layer; if None, it does for the layout "pre-norm".
        **options: Options of `Block`.

    >>> import torch, qkv
    >>> model = qkv.nn.Encoder(12, heads=3, layers=2, vocabulary=31, classes=5, positions=qkv.nn.Sinusoidal(12))
    >>> tokens = torch.randint(31, (2, 7))
    >>> model(tokens, lengths=[7, 4]).shape
    torch.Size([2, 5])
    >>> short = model(tokens[1:, :4])
    >>> torch.allclose(model(tokens, lengths=[7, 4])[1:], short, atol=1e-5)
    True
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
        super().__init__((width, heads, layers), vocabulary, positions, final_norm=final_norm, **options)
        self.head = None if classes is None else nn.Linear(self.width, check_size("classes", classes))

    def forward(
        self,
        tokens: Tensor,
        lengths: Any = None,
        *,
        keep: Any = None,
        mask: Mask | None = None,
        cu_seqlens: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Run the encoder.

        Args:
            tokens: Integers (batch, n), or features (batch, n, width) without a vocabulary.
            lengths: How many tokens of each row are real, from the left; all if None.
            keep: Instead of lengths, booleans (batch, n): True for real tokens.
            mask: A mask of qkv (True attends) that every layer applies in addition.
            cu_seqlens: For documents packed into each row, their cumulative lengths (documents + 1,) from 0 to n: each
                attends to itself only, and its positions start at 0.
            return_weights: Also return the attention weights.

        Returns:
            (batch, n, width) or (batch, classes); with return_weights, a pair of that and a list with one tuple of
            weights (batch, heads, n, n) per layer.
        """
        real = self.read_tokens(tokens, lengths, keep)
        if cu_seqlens is not None and self.head is not None:
            hint = "classes are of the mean over a row; run the documents as rows"
            raise OptionError(complaint("cu_seqlens", "packed documents with classes", "None", hint))
        x, weights = self.run(tokens, real, cu_seqlens, mask, return_weights=return_weights)
        if self.head is not None:
            x = self.head(_mean_over_real(x, real.kept))
        return (x, weights) if return_weights else x


def _mean_over_real(
    x: Float[Tensor, "batch n width"], keep: Bool[Tensor, "batch n"] | None
) -> Float[Tensor, "batch width"]:
    """The mean over real tokens; padding has no effect, even if it is non-finite."""
    keep = torch.ones_like(x[..., 0], dtype=torch.bool) if keep is None else keep
    return x.masked_fill(~keep.unsqueeze(-1), 0.0).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


LayerCaches = list[KVCache | LinearState]


class Decoder(Stack):
    """Blocks of causal self attention and logits of the next token: (batch, n) integers → (batch, n, vocabulary).

    Causal: each token attends to itself and earlier tokens. Logits at padded positions are undefined. Positions count
    from the first real token of each row. With a cache, gradients and `return_weights` are refused.

    Args:
        width: Width of the model.
        heads: Query heads.
        layers: Number of blocks.
        vocabulary: Number of tokens.
        positions: An object such as `qkv.nn.Rotary()`, or None.
        tied: Whether the logits use the embedding's weights; otherwise `head` is a separate Linear.
        cross: Whether every block also attends to a context.
        final_norm: Whether a norm follows the last layer; if None, it does for the layout "pre-norm".
        **options: Options of `Block`.

    >>> import torch, qkv
    >>> model = qkv.nn.Decoder(12, heads=3, layers=2, vocabulary=31, positions=qkv.nn.ALiBi(3)).eval()
    >>> tokens = torch.randint(31, (2, 7))
    >>> cache = model.cache(batch=2)
    >>> with torch.no_grad():
    ...     first, rest = model(tokens[:, :5], cache=cache), model(tokens[:, 5:], cache=cache)
    ...     torch.allclose(torch.cat([first, rest], dim=1), model(tokens), atol=1e-5)
    True
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
        super().__init__((width, heads, layers), vocabulary, positions, final_norm=final_norm, cross=cross, **options)
        if self.embedding is None:
            raise OptionTypeError(complaint("vocabulary", "None", "the number of tokens: a decoder predicts them"))
        self.head = None if tied else nn.Linear(self.width, self.embedding.num_embeddings, bias=False)

    def cache(self, batch: int, dtype: torch.dtype | str = torch.float32, capacity: int | None = None) -> LayerCaches:
        """Create one empty cache per layer; see `Attention.cache`."""
        return [block.attention.cache(batch, dtype, capacity) for block in self.blocks]

    def project(self, context: Float[Tensor, "batch m width"]) -> list[KeyValue]:
        """Keys and values of a context, one pair per layer; pass them to `forward` as `context`."""
        return [block.cross.project(context) for block in self.blocks if block.cross is not None]

    def forward(
        self,
        tokens: Int[Tensor, "batch n"],
        lengths: Any = None,
        *,
        keep: Any = None,
        context: Float[Tensor, "batch m width"] | list[KeyValue] | None = None,
        context_lengths: Any = None,
        context_keep: Any = None,
        mask: Mask | None = None,
        cu_seqlens: Any = None,
        cache: LayerCaches | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Run the decoder.

        Args:
            tokens: Integers (batch, n).
            lengths: How many tokens of each row are real, from the left; all if None.
            keep: Instead of lengths, booleans (batch, n): True for real tokens.
            context: Input of the cross attention, (batch, m, width), or the result of `project(context)`.
            context_lengths: As lengths, for the context.
            context_keep: As keep, for the context.
            mask: A mask of qkv (True attends) that every layer's self attention applies in addition to causality. With
                a cache, in absolute positions.
            cu_seqlens: For documents packed into each row, their cumulative lengths (documents + 1,) from 0 to n: each
                attends to itself only, and its positions start at 0. Not with a cache.
            cache: From `self.cache`. The real tokens are appended to it; they must be contiguous, at the left of every
                row or at the right of every row.
            return_weights: Also return the attention weights.

        Returns:
            Logits (batch, n, vocabulary); with return_weights, a pair of that and a list with one tuple of weights per
            layer.
        """
        x, weights = self.states(
            tokens, lengths, keep, context, context_lengths, context_keep, cache, return_weights, mask, cu_seqlens
        )
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
        mask: Mask | None = None,
        cu_seqlens: Any = None,
    ) -> tuple[Float[Tensor, "batch n width"], list[Any]]:
        """As `forward`, but return the input of `logits`, so that logits can be computed for some tokens only."""
        real, layers = self.read_tokens(tokens, lengths, keep), len(self.layers)
        contexts = context if isinstance(context, list) or context is None else [context] * layers
        if contexts is not None and len(contexts) != layers:
            raise OptionError(complaint("context", f"{len(contexts)} pairs", f"{layers}, one per layer"))
        context_mask = encoder_mask(context_lengths, keep=context_keep)
        given = {"contexts": contexts, "context_mask": context_mask, "return_weights": return_weights}
        if cache is None:
            return self.run(tokens, real, cu_seqlens, Causal(), mask, **given)
        if cu_seqlens is not None:
            raise OptionError(complaint("cu_seqlens", "packed documents with a cache", "None", "run them as rows"))
        check_layer_caches(cache, layers)
        n = tokens.shape[1]
        counts, padding = real.side(tokens.shape[0], n)
        position_range = PositionRange(0, n, n)
        if isinstance(self.positions, AddedPositions):
            position_range = positions_after(cache[0], n, counts, padding)
        x = self.embed(tokens, position_range, real.kept)
        with rollback_on_error(cache):
            return run_layers(self, x, mask=mask, cache=cache, lengths=counts, padding=padding, **given)

    def logits(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Logits of the next token."""
        assert self.embedding is not None
        return nn.functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)


class EncoderDecoder(ConfiguredModule):
    """decoder(target | encoder(source)): logits (batch, n, vocabulary) of the target's next tokens.

    The encoder's self attention and the cross attention attend to the real tokens of the source; the decoder's self
    attention is causal. Encoder, decoder and logits share one embedding.

    Args:
        width: Width of the model.
        heads: Query heads.
        layers: Blocks of the encoder.
        vocabulary: Number of tokens.
        decoder_layers: Blocks of the decoder; `layers` if None.
        positions: Positions of the encoder, or None.
        decoder_positions: Positions of the decoder, another object, or None.
        **options: Options of `Block`, and final_norm.

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
        decoder_layers = check_size("layers", layers) if decoder_layers is None else decoder_layers
        decoder_layers = check_size("decoder_layers", decoder_layers)
        self.encoder = Encoder(width, heads, layers, vocabulary=vocabulary, positions=positions, **options)
        self.decoder = Decoder(
            width, heads, decoder_layers, vocabulary=vocabulary, positions=decoder_positions, cross=True, **options
        )
        # Share the weight, not the module: torch.func.functional_call cannot restore a module with two names.
        assert self.decoder.embedding is not None
        assert self.encoder.embedding is not None
        self.decoder.embedding.weight = self.encoder.embedding.weight

    def encode(self, source: Int[Tensor, "batch m"], lengths: Any = None) -> Float[Tensor, "batch m width"]:
        """The context of the decoder: `decoder(target, context=encode(source, lengths), context_lengths=lengths)`."""
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
        """Run encoder and decoder.

        Args:
            source: Integers (batch, m).
            target: Integers (batch, n).
            source_lengths: How many tokens of each row of the source are real, from the left; all if None.
            target_lengths: The same for the target.
            return_weights: Also return the attention weights.

        Returns:
            Logits (batch, n, vocabulary); with return_weights, a pair of that and {"encoder": …, "decoder": …}, each a
            list with one tuple of weights per layer.
        """
        encoded = self.encoder(source, source_lengths, return_weights=return_weights)
        context, encoder_weights = encoded if return_weights else (encoded, None)
        options = {"context": context, "context_lengths": source_lengths, "return_weights": return_weights}
        decoded = self.decoder(target, target_lengths, **options)
        return (decoded[0], {"encoder": encoder_weights, "decoder": decoded[1]}) if return_weights else decoded


def check_layer_caches(cache: Any, layers: int) -> None:
    """Check that each layer has its own cache, and that all have the same lengths."""
    wanted, hint = f"a list of {layers}, one qkv.KVCache or qkv.LinearState per layer", "call model.cache(batch)"
    if not isinstance(cache, list) or len(cache) != layers:
        found = f"a list of {len(cache)}" if isinstance(cache, list) else type(cache).__name__
        raise OptionTypeError(complaint("cache", found, wanted, hint))
    for layer in cache:
        if not isinstance(layer, KVCache | LinearState):
            raise OptionTypeError(complaint("cache", type(layer).__name__, wanted, hint))
    if len({id(layer) for layer in cache}) != len(cache):
        raise OptionError(complaint("cache", "one cache for several layers", "one for each"))
    first = cache[0].lengths.tolist()
    for number, layer in enumerate(cache):
        lengths = layer.lengths.tolist()
        if lengths != first:
            given, hint = f"{lengths} tokens in layer {number}", "reset() or crop() all caches to the same length"
            raise OptionError(complaint("cache", given, f"{first}, as in layer 0", hint))


@contextlib.contextmanager
def rollback_on_error(cache: list[KVCache | LinearState]) -> Iterator[None]:
    """On an error, crop what earlier layers appended. A LinearState cannot be cropped: the next call refuses it."""
    before = [(layer, layer.lengths) for layer in cache if isinstance(layer, KVCache)]
    try:
        yield
    except BaseException:
        for layer, lengths in before:
            with layer.lock, contextlib.suppress(OptionError):  # the window may have evicted earlier tokens
                if len(lengths) == layer.batch:
                    layer.crop(lengths)
        raise
