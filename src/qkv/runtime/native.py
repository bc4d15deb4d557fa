"""Runs a program by one native call for each chunk of tokens; the answers are those of reference.py."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..cache.kv import KVCache
from ..cache.layers import appending
from ..errors import OptionError, OptionTypeError, complaint
from ..nn.packed import PackedLinear
from ..ops.packed import ACTIVATION_CODES, FORMAT_CODES, new_program, transformer_layer
from ..shapes import Float, Int
from .blocks import FORMATS, PackedMatrix, pack
from .program import FeedForward, Layer, Linear, Norm, Program, Rotary

_MAX_ROWS = 512  # tokens of one native call, over all rows of a batch; one of each row if there are more rows
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}  # native/src/kernel_table.h


class _Chunk(NamedTuple):
    """Tokens of all rows that run together."""

    tokens: np.ndarray  # row after row
    counts: list[int]
    positions: list[int]
    wanted: list[int]  # the tokens whose logits are wanted
    at: np.ndarray  # where their logits belong: rows of (batch · n, vocabulary), or of (batch, vocabulary)


class NativeProgram:
    """A program that the native library executes.

    Memory for activations is allocated once; calls from several threads wait for each other.

    Args:
        program: The record; its weights must not be changed.
        activations: What weights are multiplied by: "float32" or "int8".

    Raises:
        BackendRefused: The native library cannot be used.
        OptionError: A name of the record is unknown.
    """

    def __init__(self, program: Program, activations: str = "float32") -> None:
        if activations not in ACTIVATION_CODES:
            raise OptionError(complaint("activations", repr(activations), " or ".join(ACTIVATION_CODES)))
        self.program, self.activations = program, activations
        self._kept: list[Any] = []  # memory that native code reads
        rotaries: dict[Rotary, int] = {}
        for layer in program.layers:
            if layer.attention.rotary is not None:
                rotaries.setdefault(layer.attention.rotary, len(rotaries))
        self._native = new_program(
            embedding=self._matrix(program.embedding),
            embedding_scale=program.embedding_scale,
            positions=self._address(program.positions),
            rotaries=[(each.frequencies.tolist(), each.scale, each.interleaved) for each in rotaries],
            layers=[self._layer(layer, rotaries) for layer in program.layers],
            norm=self._norm(program.norm),
            logits=self._linear(program.logits),
            logits_softcap=program.logits_softcap or 0.0,
            activations=ACTIVATION_CODES[activations],
        )
        parts = [layer.attention for layer in program.layers]
        self._sizes = [(each.kv_heads, each.width, each.width) for each in parts]
        self._windows = [each.window for each in parts]
        self._checked: list[Any] = []  # layouts and windows of the last caches that had these sizes

    def run(
        self,
        tokens: Int[Tensor, "batch n"],
        caches: Sequence[KVCache],
        *,
        lengths: Int[Tensor, " batch"] | None = None,
        padding: str = "right",
        every: bool = False,
        threads: int | None = None,
    ) -> Float[Tensor, "*rows vocabulary"]:
        """Append tokens to the caches, one for each layer, and return logits of the next token.

        If it raises, no cache has changed.

        Args:
            tokens: Token numbers; those of padding have no effect.
            caches: As `reference.new_caches` makes them.
            lengths: How many tokens of each row are real; all if None.
            padding: Where the padding is: "right" or "left" of the real tokens.
            every: Whether to return the logits of all n tokens; otherwise of the last real token of each row.
            threads: torch's number if None.

        Returns:
            (batch, vocabulary), or (batch, n, vocabulary); 0 at padding and for rows without a token.
        """
        batch, n = tokens.shape
        counts, left = None if lengths is None else lengths.numpy(), padding == "left"
        vocabulary = self.program.logits.weight.rows
        given = check_tokens(tokens, counts, left, self.program.vocabulary)
        logits = torch.zeros if counts is not None else torch.empty
        out = logits((batch * n if every else batch, vocabulary))
        threads = torch.get_num_threads() if threads is None else threads
        check = functools.partial(self._check_caches, caches, batch)
        with _Interrupts() as interrupts, appending(caches, n, counts, check) as pages:
            self.program.check_length(int((caches[0].row_lengths + (n if counts is None else counts)).max()))
            for chunk in _chunks(given, counts, caches[0].row_lengths, left, every):
                rows = len(chunk.wanted)
                part = out if rows == len(out) else torch.empty((rows, vocabulary))
                moved = chunk.counts, chunk.positions, pages, chunk.wanted
                self._native.run(torch.from_numpy(chunk.tokens), *moved, part, threads)
                interrupts.check()
                if part is not out:
                    out[torch.from_numpy(chunk.at)] = part
        return out.view(batch, n, vocabulary) if every else out

    def _check_caches(self, caches: Sequence[KVCache], batch: int) -> None:
        """Native code reads and writes the pages by these sizes."""
        if len(caches) != len(self._sizes):
            raise OptionTypeError(complaint("cache", f"{len(caches)} layers", f"{len(self._sizes)}", "model.cache()"))
        kinds = [(cache.page_layout, cache.window) for cache in caches]
        every = zip(caches, kinds, self._sizes, self._windows, strict=True)
        for cache, kind, sizes, window in every if kinds != self._checked else ():
            code, *rest = kind[0].native_args
            # A layer without a window may be given a cache with one: its user evicts.
            if tuple(rest) != sizes or not code or (window is not None and (kind[1] != window or cache.sinks)):
                raise OptionTypeError(complaint("cache", repr(cache), "a cache of this model", "model.cache()"))
        self._checked = kinds
        lengths = caches[0].row_lengths
        if len(lengths) != batch:
            raise OptionTypeError(complaint("cache", f"{len(lengths)} rows", f"{batch} rows", "model.cache(batch)"))
        if len({cache.row_lengths.tobytes() for cache in caches}) > 1:
            given = f"lengths {lengths.tolist()} and others"
            raise OptionError(complaint("cache", given, "the same tokens in all layers"))

    def _address(self, vector: Tensor | None) -> int:
        if vector is None:
            return 0
        self._kept.append(vector := vector.detach().to(torch.float32).contiguous())
        return vector.data_ptr()

    def _matrix(self, matrix: PackedMatrix) -> tuple[int, int, int, int, int]:
        data = matrix.data
        if not data.flags.c_contiguous or matrix.row_bytes != matrix.format.row_bytes(matrix.columns):
            given = f"{matrix.name} with strides {data.strides}"
            raise OptionError(complaint("program", given, "rows of whole blocks without gaps"))
        self._kept.append(data)
        return data.ctypes.data, FORMAT_CODES[matrix.format.name], matrix.rows, matrix.columns, matrix.row_bytes

    def _linear(self, linear: Linear) -> tuple[Any, int]:
        return self._matrix(linear.weight), self._address(linear.bias)

    def _norm(self, norm: Norm | None) -> tuple[int, int, int, float, bool] | None:
        if norm is None:
            return None
        width, centred = len(norm.weight), norm.kind == "layer"
        return self._address(norm.weight), self._address(norm.bias), width, norm.eps, centred

    def _layer(self, layer: Layer, rotaries: dict[Rotary, int]) -> Any:
        attention, forward = layer.attention, layer.feed_forward
        norms = (
            layer.attention_norm, layer.attention_post_norm, attention.query_norm, attention.key_norm,
            layer.feed_forward_norm, layer.feed_forward_post_norm,
        )  # fmt: skip
        linears = attention.query, attention.key, attention.value, attention.output, forward.up, forward.down
        return transformer_layer(
            norms=[self._norm(norm) for norm in norms],
            linears=[self._linear(linear) for linear in linears],
            gate=None if forward.gate is None else self._linear(forward.gate),
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            width=attention.width,
            scale=attention.scale,
            softcap=attention.softcap or 0.0,
            sinks=self._address(attention.sinks),
            rotary=-1 if attention.rotary is None else rotaries[attention.rotary],
            activation=_activation(forward),
            parallel=layer.parallel,
        )


class _Interrupts:
    """Ctrl-C waits for `check`, or for the end: some layers without a token that others have would be no cache."""

    def __enter__(self) -> _Interrupts:
        self.handler: Any = signal.getsignal(signal.SIGINT)
        self.caught: tuple[Any, ...] = ()
        self.held = threading.current_thread() is threading.main_thread() and callable(self.handler)
        if self.held:
            signal.signal(signal.SIGINT, lambda *caught: setattr(self, "caught", caught))
        return self

    def check(self) -> None:
        caught, self.caught = self.caught, ()
        if caught:
            self.handler(*caught)

    def __exit__(self, *_: object) -> None:
        if self.held:
            signal.signal(signal.SIGINT, self.handler)
            self.check()


def check_tokens(tokens: Tensor, counts: np.ndarray | None, left: bool, vocabulary: int) -> np.ndarray:
    """The tokens as int64, with 0 in place of padding; OptionError if the vocabulary has no such token."""
    given = tokens.numpy().astype(np.int64)
    if counts is not None:
        index = np.arange(given.shape[1])
        real = index >= given.shape[1] - counts[:, None] if left else index < counts[:, None]
        given[~real] = 0
    if given.size and not 0 <= given.min() <= given.max() < vocabulary:
        wrong = given[(given < 0) | (given >= vocabulary)]
        raise OptionError(complaint("tokens", int(wrong[0]), f"0 to {vocabulary - 1}, the vocabulary"))
    return given


def _activation(forward: FeedForward) -> int:
    if forward.activation not in _ACTIVATIONS:
        raise OptionError(complaint("program", f"the activation {forward.activation!r}", ", ".join(_ACTIVATIONS)))
    return _ACTIVATIONS[forward.activation]


def _chunks(
    tokens: np.ndarray, counts: np.ndarray | None, past: np.ndarray, left: bool, every: bool
) -> Iterator[_Chunk]:
    """Tokens in parts of at most _MAX_ROWS: from each row as many as from the others, as long as it has some."""
    batch, n = tokens.shape
    if counts is None and batch * n <= _MAX_ROWS:
        wanted = np.arange(0 if every else n - 1, batch * n, 1 if every else n)
        yield _Chunk(tokens.reshape(-1), [n] * batch, past.tolist(), wanted.tolist(), wanted)
        return
    real = np.full(batch, n) if counts is None else counts
    first = n - real if left else np.zeros_like(real)
    height = max(1, _MAX_ROWS // batch)
    for start in range(0, int(real.max(initial=0)), height):
        here = np.clip(real - start, 0, height)
        row = np.repeat(np.arange(batch), here)
        column = (start + first)[row] + np.arange(len(row)) - np.repeat(np.cumsum(here) - here, here)
        if every:
            wanted, at = np.arange(len(row)), row * n + column
        else:
            wanted = np.flatnonzero(column == (first + real - 1)[row])
            at = row[wanted]
        yield _Chunk(tokens[row, column], here.tolist(), (past + start).tolist(), wanted.tolist(), at)


def quantized(linear: nn.Linear, name: str, activations: str = "float32") -> PackedLinear:
    """A layer with its weights quantized to q8_0 or q4_1, rounded as ggml does: for models that run in transformers.

    >>> layer = nn.Linear(64, 5)
    >>> packed, x = quantized(layer, "q8_0"), torch.randn(2, 64)
    >>> torch.allclose(packed(x), layer(x), atol=0.05), packed.packed.nbytes, layer.weight.nbytes
    (True, 340, 1280)
    """
    plain = PackedLinear.from_linear(linear)
    matrix = PackedMatrix(plain.packed.numpy(), FORMATS[plain.blocks], plain.out_features, plain.in_features, "weight")
    return PackedLinear(torch.from_numpy(pack(matrix, name).data), name, linear.bias, activations)
