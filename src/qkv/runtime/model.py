"""A model from a file: `load`, then `generate`, or `cache` and `step` for a loop of one's own."""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cache.choosing import QUERIES
from ..cache.eviction import Policy, as_policy
from ..cache.inputs import check_lengths
from ..cache.kv import KVCache
from ..cache.mapped import PagesFile, write_pages
from ..cache.prefixes import fingerprint
from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..inputs import check_size
from ..nn.generate import _check_seed, beam_search, log_probabilities
from ..nn.module import check_number
from ..ops.packed import ACTIVATION_CODES
from ..shapes import Float, Int
from . import reference
from .architectures import read_program
from .blocks import PACKED, PackedMatrix, pack
from .constraints import Constraint
from .files import Source, open_source
from .native import NativeProgram, check_tokens
from .program import Attention, FeedForward, Layer, Linear, NotCovered, Program
from .rows import Row, chunks
from .tokenizer import TextTokenizer, read_stop_tokens, read_tokenizer

_CHUNK = 512  # tokens of a prompt that run at a time
_MOST_BEAMS = 1024
BACKENDS = ("auto", "native", "reference", "transformers")


def load(
    path: str | os.PathLike[str],
    *,
    weights: str | None = None,
    activations: str = "float32",
    threads: int | None = None,
    backend: str = "auto",
) -> Model:
    """Open a decoder-only transformer; docs/runtime.md has the families. Weights are mapped, nothing is downloaded.

    Other models run in transformers, with packed weights for products; a warning and `Model.reason` say why.

    Args:
        path: A GGUF file, a folder with one, or a folder with config.json and safetensors.
        weights: None keeps the formats of the file. "q8_0" or "q4_1" quantizes float weights to blocks of 32.
        activations: What the weights are multiplied by: "float32", or "int8", rounded in blocks.
        threads: Threads of a step; torch's number if None.
        backend: "native", one native call for a step; "reference", the same in float32 with torch; "transformers"; or
            "auto", the first of native and transformers that covers the model.

    Returns:
        A `Model`.

    Raises:
        OptionError: The file is damaged, or the backend that was named does not cover the model.
        BackendRefused: The native library cannot be used here.
        MissingExtra: The model needs transformers, which is not installed.

    >>> load("nowhere")
    Traceback (most recent call last):
    qkv.errors.OptionError: path: got 'nowhere', which does not exist, wanted a GGUF file, ...
    """
    if weights is not None and weights not in PACKED:
        raise OptionError(complaint("weights", repr(weights), f"None, {' or '.join(PACKED)}"))
    if activations not in ACTIVATION_CODES:
        raise OptionError(complaint("activations", repr(activations), " or ".join(ACTIVATION_CODES)))
    threads = None if threads is None else check_size("threads", threads)
    if backend not in BACKENDS:
        raise OptionError(complaint("backend", repr(backend), ", ".join(BACKENDS)))
    source, reason = None, 'backend="transformers"'
    try:
        source = open_source(path)
        if backend != "transformers":
            program = read_program(source)
            if weights is not None:
                packed = functools.cache(functools.partial(pack, name=weights))  # a tied matrix is packed once
                program = _with_matrices(program, packed)
            runner = _ProgramRunner(program, source, activations, backend == "reference")
            return Model(runner, threads, backend.replace("auto", "native"))
    except NotCovered as error:
        if backend in ("native", "reference"):
            raise
        reason = str(error)
        warnings.warn(f"{Path(path).name} runs in transformers: {reason}", stacklevel=2)
    from .outside import TransformersModel  # imports transformers

    return Model(TransformersModel(path, source, weights, activations), threads, "transformers", reason)


class _ProgramRunner:
    """A program of a file and what executes it."""

    def __init__(self, program: Program, source: Source, activations: str, by_reference: bool) -> None:
        self.program, self.source = program, source
        self.vocabulary, self.context = program.vocabulary, program.context
        self._activations = activations
        by_torch = functools.partial(reference.run, program, activations=activations)
        self._run = by_torch if by_reference else NativeProgram(program, activations).run

    def new_cache(
        self, batch: int, dtype: torch.dtype | str, capacity: int | None, eviction: Policy | None, bound: float | None
    ) -> ModelCache:
        return ModelCache(reference.new_caches(self.program, batch, dtype, capacity, eviction, bound))

    @cached_property
    def identity(self) -> str:
        return fingerprint(self.program, self._activations)

    def save_cache(self, cache: Any, path: str | os.PathLike[str], tokens: Any) -> None:
        layers = self._layers_of(cache)
        write_pages(path, layers, count=int(cache.lengths.sum()), model=self.identity, tokens=tokens)

    def load_cache(
        self, file: PagesFile, check: bool | None, like: ModelCache | None, eviction: Policy | None
    ) -> ModelCache:
        if like is None:
            made = functools.cache(lambda dtype: self.new_cache(1, dtype, None, eviction, None).layers)
            chosen = [made(record["dtype"])[at] for at, record in enumerate(file.records) if record is not None]
        else:
            chosen = self._layers_of(like)
        found = [layer for layer in file.caches(check=check, likes=chosen) if layer is not None]
        if not all(torch.equal(layer.lengths, found[0].lengths) for layer in found):
            raise file.damaged("layers of different tokens")
        return ModelCache(found)

    def _layers_of(self, cache: Any) -> list[KVCache]:
        if not isinstance(cache, ModelCache) or len(cache.layers) != len(self.program.layers):
            raise OptionTypeError(complaint("cache", type(cache).__name__, "a cache of this model", "model.cache()"))
        return cache.layers

    def run(self, tokens: Tensor, cache: Any, **options: Any) -> Tensor:
        self._layers_of(cache)
        undecided = any(layer.bound is not None for layer in cache.layers)
        return (self._run_first if undecided else self._run)(tokens, cache.layers, **options)

    def _run_first(
        self, tokens: Tensor, caches: list[KVCache], *, every: bool, lengths: Tensor | None, **options: Any
    ) -> Tensor:
        """The prompt that decides the formats of dtype="auto": its last tokens run in torch, where `decode` sees their
        queries; all of them if the rows are not equally long."""
        before, n = caches[0].lengths, tokens.shape[1]
        first = 0 if lengths is not None else max(0, n - QUERIES)
        by_torch = functools.partial(reference.run, self.program, activations=self._activations)
        logits = []
        try:
            if first:
                logits = [self._run(tokens[:, :first], caches, every=every, lengths=None, **options)]
            logits.append(by_torch(tokens[:, first:], caches, every=every, lengths=lengths, **options))
        except BaseException:
            for cache in caches:
                cache.crop(before)
            raise
        return torch.cat(logits, 1) if every else logits[-1]

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        return read_tokenizer(self.source, self.vocabulary)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        return read_stop_tokens(self.source)


def _with_matrices(part: Any, convert: Callable[[PackedMatrix], PackedMatrix]) -> Any:
    """A part of a program with other matrices."""
    if isinstance(part, PackedMatrix):
        return convert(part)
    if isinstance(part, tuple):
        return tuple(_with_matrices(each, convert) for each in part)
    if not isinstance(part, Program | Layer | Attention | FeedForward | Linear):
        return part
    parts = {name: _with_matrices(getattr(part, name), convert) for name in part.__dataclass_fields__}
    return replace(part, **parts)


@dataclass(frozen=True)
class ModelCache:
    """Keys and values of a model: one `KVCache` for each layer, all of the same tokens."""

    layers: list[KVCache]

    @property
    def batch(self) -> int:
        return self.layers[0].batch

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return self.layers[0].length

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        return self.layers[0].lengths

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def fork(self, rows: Any = None) -> ModelCache:
        """An independent cache with the same tokens, which are not copied: of these rows, or of all."""
        return ModelCache([layer.fork(rows) for layer in self.layers])

    def crop(self, n: Any) -> None:
        """Keep the first n tokens of each row; see `KVCache.crop`."""
        for layer in self.layers:
            layer.crop(n)

    def evict(self, policy: Any = None) -> None:
        """Forget tokens in the layers without a window; see `KVCache.evict`. None: what each layer's policy forgets."""
        for layer in self.layers:
            if layer.window is None and (policy is not None or layer.eviction is not None):
                layer.evict(policy)

    def reorder(self, index: Any) -> None:
        """Replace the rows by rows[index]; see `KVCache.reorder`."""
        for layer in self.layers:
            layer.reorder(index)

    def extend(self, other: ModelCache) -> None:
        """Append the rows of another cache of the same origin, to all layers or none; see `KVCache.extend`."""
        rows = list(range(self.batch))
        try:
            for layer, added in zip(self.layers, other.layers, strict=True):
                layer.extend(added)
        except BaseException:
            for layer in self.layers:
                layer.reorder(rows)
            raise


class Model:
    """A decoder-only transformer of a file; see `load`.

    backend: "native", "reference" or "transformers". reason: Why it is transformers. context: Its most tokens.
    """

    def __init__(self, runner: Any, threads: int | None, backend: str, reason: str = "") -> None:
        self._runner, self.threads, self.backend, self.reason = runner, threads, backend, reason
        self.vocabulary, self.context = runner.vocabulary, runner.context

    @property
    def program(self) -> Program:
        """The record of the model; one that runs in transformers has none."""
        if not isinstance(self._runner, _ProgramRunner):
            raise OptionError(complaint("model", f"one that runs in {self.backend}", "one with a program", self.reason))
        return self._runner.program

    @property
    def tokenizer(self) -> TextTokenizer:
        """Read from the file when it is first used."""
        return self._runner.tokenizer

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self._runner.stop_tokens

    def cache(
        self,
        batch: int = 1,
        *,
        dtype: torch.dtype | str = torch.float32,
        capacity: int | None = None,
        eviction: Policy | None = None,
        bound: float | None = None,
    ) -> Any:
        """An empty cache.

        Args:
            batch: Rows.
            dtype: Storage format of keys and values, as for `KVCache`.
            capacity: Memory for this many tokens of a row is allocated at once; it grows if None.
            eviction: A policy of `qkv.cache` for every layer without a window, such as `FirstLast(4, 252)`. Positions
                stay within the model's context. "renumbered" turns rotated keys by the rotary of each layer.
            bound: With dtype="auto", the relative error of the attention, by which the first prompt decides the format
                of each layer.
        """
        policy = None if eviction is None else as_policy(eviction)
        return self._runner.new_cache(check_size("batch", batch), dtype, capacity, policy, bound)

    @property
    def identity(self) -> str:
        """A hash of its record, formats and samples of its weights, `qkv.cache.prefixes.fingerprint`."""
        return self._runner.identity

    def save_cache(self, cache: Any, path: str | os.PathLike[str], *, tokens: Any = None) -> None:
        """Write a cache of all layers to one file, whole or not at all.

        Args:
            cache: From `cache`.
            path: The file. It holds the tokens in the clear, and keys and values from which text can be guessed.
            tokens: The tokens of all rows, one row after another, which `load_cache` can ask for.
        """
        self._runner.save_cache(cache, path, tokens)

    def load_cache(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Any = None,
        check: bool | None = None,
        like: Any = None,
        eviction: Policy | None = None,
    ) -> Any:
        """Open a file that `save_cache` wrote; pages are mapped and copied on write, as in `KVCache.map`.

        Args:
            path: The file.
            tokens: The tokens that it must have been saved with; any if None.
            check: Whether to compare the pages with their hash, which reads all of them. None: up to 64 MiB.
            like: An empty cache of this model; `extend` then joins the two, or forks of them.
            eviction: The policy that goes on, as for `cache`: a file has none.

        Raises:
            OptionError: The file is damaged, or it is that of another model or of other tokens.
        """
        file = PagesFile(path)
        file.expect(self.identity, tokens)
        return self._runner.load_cache(file, check, like, None if eviction is None else as_policy(eviction))

    def step(
        self, tokens: Any, cache: Any, *, lengths: Any = None, padding: str = "right", every: bool = False
    ) -> Float[Tensor, "*rows vocabulary"]:
        """Append tokens and return logits of the next one. If it raises, also for Ctrl-C, the cache is unchanged.

        Args:
            tokens: Integers (batch, n), or (n,) for one row.
            cache: From `cache`.
            lengths: How many tokens of each row are real; all if None. A row may have none.
            padding: Where the others are: "right" or "left" of them.
            every: Whether to return logits after each token; otherwise after the last real one of each row.

        Returns:
            (batch, vocabulary), or (batch, n, vocabulary); undefined at padding.
        """
        batch = _batch_of(cache)
        given = _as_tokens("tokens", tokens)
        given = given.unsqueeze(0) if given.dim() == 1 else given
        if given.dim() != 2 or not given.shape[1] or len(given) != batch:
            raise ShapeError(complaint("tokens", f"shape {tuple(given.shape)}", f"({batch}, n), n at least 1"))
        counts, left = check_lengths(lengths, padding, batch, n := given.shape[1])
        if self.backend != "native":  # which checks them itself
            given = torch.from_numpy(check_tokens(given, counts, left, self.vocabulary))
        longest = cache.length + n if counts is None else int((cache.lengths.numpy() + counts).max())
        if longest > self.context:
            raise ShapeError(complaint("tokens", f"{longest} in total", f"at most {self.context}, the context"))
        real = None if counts is None else torch.from_numpy(counts)
        options = {"lengths": real, "padding": padding, "every": every, "threads": self.threads}
        return self._runner.run(given, cache, **options)

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Any = (),
        logprobs: int = 0,
        beams: int = 1,
        length_penalty: float = 1.0,
        constraint: Constraint | Sequence[Constraint | None] | None = None,
        on_token: Callable[[int, int, str], Any] | None = None,
        cache: Any = None,
    ) -> Any:
        """Continue a prompt, or each of several.

        Args:
            prompt: Text, or a sequence of tokens; or a list of those.
            max_new_tokens: The largest number of new tokens.
            temperature: 0 takes the most probable token; otherwise p_i ∝ exp(logit_i / temperature) is sampled.
            top_k: Sample among the k most probable tokens only.
            top_p: Sample among the smallest set of tokens with at least this probability only.
            seed: Makes sampling reproducible; if None, torch's generator is used.
            stop: Tokens and texts that end a row, in addition to the model's own; the text ends before them.
            logprobs: How many of the most probable tokens to return for each step.
            beams: If above 1, the continuation with the largest sum of log-probabilities / length**length_penalty that
                beam search finds, without sampling, stop texts, `logprobs` and `on_token`.
            length_penalty: See beams.
            constraint: What each answer has to be, or one for each prompt; not with beams. An answer that can only end
                is ended, and an answer that `max_new_tokens` or `stop` ends may be incomplete.
            on_token: Called as on_token(row, token, text) for every new token, with the text that is certain by then;
                generation ends if it returns False.
            cache: Tokens before the prompt, for example a fork of a shared prefix; it grows. A new one if None.

        Returns:
            A `Generated`, or a list of them for a list of prompts.
        """
        several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        given = prompt if several else [prompt]
        prompts = [self._prompt(each) for each in given]
        generator = None if seed is None else torch.Generator().manual_seed(_check_seed(seed))
        others = temperature or logprobs or constraint is not None or on_token is not None
        asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator, "stop": stop}
        asked |= {"logprobs": logprobs, "with_text": any(isinstance(each, str) for each in given)}
        limits = _constraints(constraint, len(prompts))
        rows = [Row(self, max_new_tokens, **asked, constraint=each) for each in limits]
        if on_token is not None and not callable(on_token):
            raise OptionTypeError(complaint("on_token", type(on_token).__name__, "a function"))
        if check_size("beams", beams, most=_MOST_BEAMS) > 1 and (others or rows[0].texts):
            wanted = "1 with temperature, stop texts, logprobs, a constraint or on_token"
            raise OptionError(complaint("beams", beams, wanted))
        cache = self.cache(len(prompts)) if cache is None else cache
        _batch_of(cache)
        logits = self._prefill(prompts, cache, rows[0].new)
        if isinstance(cache, ModelCache) and any(layer.evicts_after_prompt for layer in cache.layers):
            cache.evict()
        if beams > 1:
            options: dict[str, Any] = {
                "beams": beams,
                "penalty": check_number("length_penalty", length_penalty, "a number", -math.inf),
            }
            options |= {"new": rows[0].new, "stop": [each for each in rows[0].ends if 0 <= each < self.vocabulary]}
            self._search(rows, cache, log_probabilities(logits), **options)
            return [row.found for row in rows] if several else rows[0].found
        while True:
            log_probs = self.log_probabilities(logits)
            best = log_probs.argmax(-1).tolist()
            for at, row in enumerate(rows):
                if row.found.finish:
                    continue
                text = row.take(log_probs[at], best[at])
                if on_token is not None and on_token(at, row.found.tokens[-1], text) is False:
                    for each in rows:
                        each.found.finish = each.found.finish or "callback"
            going = [not row.found.finish for row in rows]
            if not any(going):
                return [row.found for row in rows] if several else rows[0].found
            real = None if all(going) else [int(each) for each in going]
            logits = self.step([row.found.tokens[-1:] for row in rows], cache, lengths=real)

    def _search(self, rows: list[Row], cache: Any, first: Tensor, **options: Any) -> None:
        """Beam search on a fork of the cache; the cache itself gets the best continuation of each row."""
        fork = cache.fork()
        advance = lambda tokens: self.log_probabilities(self.step(tokens.unsqueeze(1), fork))  # noqa: E731
        tokens, counts, _ = beam_search(self.log_probabilities(first), advance, [fork], **options)
        after = log_probabilities(self.step(tokens, cache, lengths=counts - 1, every=True))
        every = torch.cat([first.unsqueeze(1), after[:, :-1]], dim=1).gather(2, tokens.unsqueeze(2)).squeeze(2)
        for row, count, own, log_probs in zip(rows, counts.tolist(), tokens.tolist(), every.tolist(), strict=True):
            for token in own[:count]:
                row.add(token)
            row.found.logprobs = log_probs[:count]

    def _prompt(self, prompt: Any) -> Tensor:
        tokens = _as_tokens("prompt", self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if tokens.dim() != 1 or not tokens.numel():
            given = f"shape {tuple(tokens.shape)}" if tokens.numel() else "no token"
            raise ShapeError(complaint("prompt", given, "text, or at least one token"))
        return tokens

    def _prefill(self, prompts: list[Tensor], cache: Any, new: int) -> Float[Tensor, "batch vocabulary"]:
        """Run the prompts in chunks; logits after the last token of each."""
        lengths = torch.tensor([len(each) for each in prompts])
        longest, most = int(lengths.max()) + cache.length, self.context
        if longest + new - 1 > most:
            raise ShapeError(complaint("max_new_tokens", f"{new} after {longest}", f"at most {most}, the context"))
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        logits = torch.empty(len(prompts), self.vocabulary)
        for start, stop in chunks(0, tokens.shape[1], _CHUNK):
            part = tokens[:, start:stop]
            counts = (lengths - start).clamp(0, part.shape[1])
            found = self.step(part, cache, lengths=None if (counts == part.shape[1]).all() else counts)
            logits = torch.where((counts > 0).unsqueeze(1), found, logits)
        return logits

    def log_probabilities(self, logits: Float[Tensor, "batch vocabulary"]) -> Float[Tensor, "batch vocabulary"]:
        """Of the next token, after `step`; OptionError if they are NaN: if one of a row is, all are."""
        log_probs = log_probabilities(logits)
        if not math.isnan(float(log_probs[:, 0].sum())):
            return log_probs
        matrices: list[PackedMatrix] = []
        if isinstance(self._runner, _ProgramRunner):
            _with_matrices(self.program, lambda matrix: matrices.append(matrix) or matrix)
        bad = [each.name for each in matrices if not each.is_finite()] or ["no matrix, but a norm or a bias"]
        hint = "the file is damaged, or training diverged"
        raise OptionError(complaint("path", f"NaN logits; not finite is {bad[0]}", "finite weights", hint))


def _constraints(given: Any, rows: int) -> list[Constraint | None]:
    """The constraint of each row."""
    found = [given] * rows if given is None or isinstance(given, Constraint) else list(given)
    if len(found) != rows or not all(each is None or isinstance(each, Constraint) for each in found):
        raise OptionError(complaint("constraint", repr(given)[:100], f"a Constraint, or one or None for {rows} rows"))
    return found


def _batch_of(cache: Any) -> int:
    if not isinstance(batch := getattr(cache, "batch", None), int):
        raise OptionTypeError(complaint("cache", type(cache).__name__, "a cache of this model", "model.cache()"))
    return batch


def _as_tokens(name: str, given: Any) -> Tensor:
    if isinstance(given, Tensor) and given.dtype is torch.int64:
        return given
    try:
        tokens = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionTypeError(complaint(name, repr(given)[:100], "integers")) from error
    if tokens.numel() and (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype is torch.bool):
        raise DtypeError(complaint(name, tokens.dtype, "integers"))
    return tokens.long()
