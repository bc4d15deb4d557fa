"""What running a model takes, line by line: attention, projections, feed-forward networks, norms, embedding, logits.

The name of a line starts with its part ("projections: query"), and `parts` adds up by part. What a good program keeps
near the cores is not written out: scores, weights, what stands between an activation and the product before it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import OptionError, complaint
from .architecture import NORM_VECTORS, Model
from .attending import attention_lines, product
from .formats import arithmetic, check_size, format_name, is_symbol, smaller, stored
from .ledger import Ledger, Line, Number, together
from .models import as_model

PARTS = ("embedding", "norms", "projections", "scores", "cache", "feed-forward", "logits")


class Step(NamedTuple):
    """What is asked of a model: `new` tokens of each of `batch` sequences after `past` ones, how weights and the cache
    are stored, bytes of a number in between, and the similarity. causal, caches: of a decoder's attention to itself.
    encodes: whether an encoder has just run, and its keys and values are made."""

    batch: Number
    new: Number
    past: Number
    weights: Any
    cache: Any
    item: Number
    training: bool = False
    similarity: str = "softmax"
    causal: bool = True
    caches: bool = True
    encodes: bool = True

    @property
    def tokens(self) -> Number:
        return self.batch * self.new


def model_cost(
    model: Model | str,
    batch: Number = 1,
    new: Number = 1,
    past: Number = 0,
    *,
    weights: Any = "bfloat16",
    cache: Any = "bfloat16",
    training: bool = False,
    similarity: str = "softmax",
    source: Number | None = None,
    logit_tokens: Number | None = None,
    item: Number | None = None,
    encodes: bool | None = None,
) -> Ledger:
    """Everything between token numbers and logits, for `new` tokens of each sequence after `past` ones in a cache.

    Each new token attends to itself and to what came before it, a windowed layer to its window: pairs are counted
    exactly. Weights are read once, whatever the batch. Of experts, flops are those of the active ones, and bytes those
    of the E·(1 − (1 − k/E)^tokens) that a batch is expected to touch when each token chooses k of E evenly.
    similarity: "softmax", or "linear" for feature maps as wide as a head, whose sums are kept in float32.
    source: tokens that an encoder-decoder's encoder reads; as many as the decoder has where nothing is said. It runs
    before the first token (past = 0), or as `encodes` says. logit_tokens: how many tokens of each sequence logits are
    made for; all. item: bytes of a number between the lines; 4 for float32 weights, 2 otherwise. training: forward and
    backward.

    >>> tiny = Model(layers=2, d_model=8, heads=4, kv_heads=2, d_ff=16, vocabulary=32)
    >>> found = model_cost(tiny, new=1)
    >>> found.products, 2 * (tiny.parameters - 32 * 8 - 5 * 8), parts(found)["scores"].products
    (2880, 2816, 64)
    """
    model = as_model(model)
    step = _step(model, batch, new, past, weights, cache, item, training, similarity)
    encodes = bool(past == 0) if encodes is None else encodes
    step = step._replace(encodes=encodes)
    if model.kind == "encoder-decoder":
        source = past + new if source is None else source
        check_size("source", source)
    ledgers = [_embedding(model, step)]
    if model.kind == "encoder-decoder" and encodes:
        ledgers.append(_encoder(model, step._replace(new=source, causal=False, caches=False)))
    ledgers += _stack(model, step, source)
    made = new if logit_tokens is None else logit_tokens
    if model.kind != "encoder":
        ledgers.append(_logits(model, step, batch * made))
    elif model.pooler:
        ledgers.append(_pooler(model, step))
    given = stored(model.parameters, weights)
    out = step.tokens * model.d_model if model.kind == "encoder" else batch * made * model.vocabulary
    return together(model.name, ledgers, given, step.item * out)


def block(
    model: Model | str,
    batch: Number = 1,
    new: Number = 1,
    past: Number = 0,
    *,
    weights: Any = "bfloat16",
    cache: Any = "bfloat16",
    training: bool = False,
    similarity: str = "softmax",
    windowed: bool = False,
    item: Number | None = None,
) -> Ledger:
    """One layer of the stack: the last one, so with experts where the model has them. windowed: one with the window.

    >>> tiny = Model(layers=2, d_model=8, heads=4, kv_heads=2, d_ff=16, vocabulary=32)
    >>> [part for part in parts(block(tiny))]
    ['norms', 'projections', 'scores', 'cache', 'feed-forward']
    """
    model = as_model(model)
    step = _step(model, batch, new, past, weights, cache, item, training, similarity)
    if windowed and model.window is None:
        raise OptionError(complaint("windowed", "True", f"a model with a window; {model.name} has none"))
    lines = [
        *_norms(model, step, model.norms_per_layer, 2),
        *attention_lines(model, step, model.window if windowed else None),
        *_feed_forward(model, step, bool(model.experts)),
    ]
    return _with_backward("block", lines, training)


def parts(ledger: Ledger) -> dict[str, Ledger]:
    """The lines of a ledger by the part that their names start with."""
    found: dict[str, list[Line]] = {part: [] for part in PARTS}
    for line in ledger.lines:
        found.setdefault(line.name.partition(":")[0], []).append(line)
    return {part: Ledger(part, tuple(lines)) for part, lines in found.items() if lines}


def _step(
    model: Model,
    batch: Number,
    new: Number,
    past: Number,
    weights: Any,
    cache: Any,
    item: Number | None,
    training: bool,
    similarity: str,
) -> Step:
    check_size("batch", batch)
    check_size("new", new)
    check_size("past", past, 0)
    if isinstance(weights, str):
        weights = format_name("weights", weights)
    if isinstance(cache, str):
        cache = format_name("cache", cache)
    if similarity not in ("softmax", "linear"):
        raise OptionError(complaint("similarity", repr(similarity), "'softmax' or 'linear'"))
    decodes = model.kind != "encoder"
    if not decodes and past != 0:
        raise OptionError(complaint("past", past, "0: an encoder reads all its tokens at once"))
    item = stored(1, arithmetic(weights)) if item is None else item
    return Step(batch, new, past, weights, cache, item, training, similarity, decodes, decodes)


def _stack(model: Model, step: Step, source: Number | None) -> list[Ledger]:
    """The layers, alike ones together."""
    cross = int(model.kind == "encoder-decoder")
    sparse = model.layers - model.dense_layers if model.experts else 0
    every = [*_norms(model, step, model.norms_per_layer + cross, 2 + cross)]
    if cross:
        every += attention_lines(model, step, None, source)
    pieces = [
        (model.layers, every),
        (model.layers - model.window_layers, attention_lines(model, step, None)),
        (model.layers - sparse, _feed_forward(model, step, False)),
        (1, _norms(model, step, int(model.final_norm), 0)),
    ]
    if model.window is not None:
        pieces.append((model.window_layers, attention_lines(model, step, model.window)))
    if model.experts:
        pieces.append((sparse, _feed_forward(model, step, True)))
    return [
        _with_backward("", lines, step.training).times(count) for count, lines in pieces if is_symbol(count) or count
    ]


def _encoder(model: Model, step: Step) -> Ledger:
    """An encoder-decoder's encoder, from the embedding of the source on."""
    lines = [
        *_norms(model, step, model.norms_per_layer, 2),
        *attention_lines(model, step, None),
        *_feed_forward(model, step, False),
    ]
    stack = _with_backward("", lines, step.training).times(model.encoder_layers)
    last = _with_backward("", _norms(model, step, int(model.final_norm), 0), step.training)
    whole = together("encoder", [_embedding(model, step), stack, last])
    return Ledger("encoder", tuple(replace(line, name=f"{line.name}, encoder") for line in whole.lines))


def _embedding(model: Model, step: Step) -> Ledger:
    d, tokens = model.d_model, step.tokens
    lines = [Line("embedding: rows", 0, stored(tokens * d, step.weights), step.item * tokens * d)]
    tables = (model.positions != 0) + (model.segments != 0)
    if tables:
        lines.append(Line("embedding: positions", tables * tokens * d, stored(tables * step.new * d, step.weights)))
    if model.embedding_norm:
        lines.append(_norm("embedding: norm", model, step))
    return _with_backward("embedding", lines, step.training)


def _norms(model: Model, step: Step, norms: Number, residuals: int) -> list[Line]:
    moved = step.item * step.tokens * model.d_model
    lines = []
    if is_symbol(norms) or norms:
        lines.append(_norm("norms: scaling", model, step).times(norms))
    if residuals:
        added = Line("norms: residuals", step.tokens * model.d_model, 2 * moved, moved)
        lines.append(added.times(residuals))
    return lines


def _norm(name: str, model: Model, step: Step) -> Line:
    """Four operations a number (square, add, scale, weigh); with a mean and a bias three more."""
    numbers, vectors = step.tokens * model.d_model, NORM_VECTORS[model.norm]
    flops = (4 if model.norm == "rms" else 7) * numbers
    weights = stored(vectors * model.d_model, step.weights)
    return Line(name, flops, step.item * numbers + weights, step.item * numbers)


def _feed_forward(model: Model, step: Step, sparse: bool) -> list[Line]:
    """Up, activation, down; with a gate, a second product up and a multiplication of the two."""
    d, tokens, ups = model.d_model, step.tokens, 2 if model.gated else 1
    if not sparse:
        lines = _network("feed-forward", d, model.d_ff, tokens, ups, step, stored(d * model.d_ff, step.weights))
        if model.ff_bias:
            numbers = ups * model.d_ff + d
            lines.append(Line("feed-forward: biases", tokens * numbers, stored(numbers, step.weights)))
        return lines
    wide, active = model.expert_d_ff, model.experts_active
    touched = _touched(model, tokens, step)
    router = Line(
        "feed-forward: router",
        2 * tokens * d * model.experts,
        step.item * tokens * d + stored(d * model.experts, step.weights),
        step.item * tokens * model.experts,
        product=True,
    )
    # Exponential, sum, compare; and a bias before them.
    chosen = Line("feed-forward: choice", (3 + int(model.router_bias)) * tokens * model.experts)
    joined = Line("feed-forward: sum of experts", 2 * tokens * active * d)
    lines = [router, chosen, *_network("feed-forward: experts", d, wide, tokens * active, ups, step, touched), joined]
    if model.ff_bias:
        numbers = ups * wide + d
        read = stored(smaller(tokens * active, model.experts) * numbers, step.weights)
        lines.append(Line("feed-forward: biases of experts", tokens * active * numbers, read))
    if is_symbol(model.shared_experts) or model.shared_experts:
        shared = stored(model.shared_experts * d * wide, step.weights)
        if model.shared_gate:
            gate = stored(d, step.weights)
            lines.append(Line("feed-forward: shared gate", 2 * tokens * d, gate, step.item * tokens, product=True))
        lines += _network("feed-forward: shared", d, model.shared_experts * wide, tokens, ups, step, shared)
    return lines


def _network(name: str, d: Number, wide: Number, tokens: Number, ups: int, step: Step, matrix: Number) -> list[Line]:
    """One matrix is read once however many tokens there are."""
    before = ": " if ":" not in name else ", "
    narrow, broad = step.item * tokens * d, step.item * tokens * wide
    return [
        # A gate is multiplied in before anything is written.
        Line(f"{name}{before}up", 2 * ups * tokens * d * wide, narrow + ups * matrix, broad, product=True),
        Line(f"{name}{before}activation", ups * tokens * wide),
        Line(f"{name}{before}down", 2 * tokens * d * wide, broad + matrix, narrow, product=True),
    ]


def _touched(model: Model, tokens: Number, step: Step) -> Number:
    """Bytes of one matrix of each expert that a batch is expected to touch."""
    numbers = touched_experts(model, tokens) * model.d_model * model.expert_d_ff
    return stored(round(numbers) if isinstance(numbers, float) else numbers, step.weights)


def touched_experts(model: Model, tokens: Number) -> Number:
    """E·(1 − (1 − k/E)^tokens): how many experts a batch is expected to touch.

    >>> mixtral = Model(layers=1, d_model=8, heads=1, experts=8, experts_active=2)
    >>> touched_experts(mixtral, 1), touched_experts(mixtral, 2)
    (2, 3.5)
    """
    experts, active = model.experts, model.experts_active
    if isinstance(tokens, int) and tokens == 1:
        return active
    if is_symbol(tokens) or is_symbol(experts) or is_symbol(active):
        return experts * (1 - (1 - active / experts) ** tokens)
    return experts if active == experts else -experts * math.expm1(tokens * math.log1p(-active / experts))


def _logits(model: Model, step: Step, tokens: Number) -> Ledger:
    d, words = model.d_model, model.vocabulary
    read = step.item * tokens * d + stored(d * words, step.weights)
    lines = [Line("logits: product", 2 * tokens * d * words, read, step.item * tokens * words, product=True)]
    if model.head_bias:
        lines.append(Line("logits: bias", tokens * words, stored(words, step.weights)))
    return _with_backward("logits", lines, step.training)


def _pooler(model: Model, step: Step) -> Ledger:
    """One vector of each sequence through a square matrix."""
    d = model.d_model
    lines = [product("logits: pooler", step.batch, d, d, step)]
    lines.append(Line("logits: bias and tanh of the pooler", 2 * step.batch * d, stored(d, step.weights)))
    return _with_backward("logits", lines, step.training)


def _with_backward(name: str, lines: list[Line], training: bool) -> Ledger:
    """A product has two derivatives of its own size, by its input and by its weights; what is no product, one that
    takes twice the work. Scores bring their own."""
    if not training:
        return Ledger(name, tuple(lines))
    backward = []
    for line in lines:
        if line.name.startswith(("scores", "cache")):
            continue
        by = ("by its input", "by its weights") if line.product else ("backward",)
        flops = line.flops if line.product else 2 * line.flops
        backward += [Line(f"{line.name}, {what}", flops, line.read, line.written, line.product) for what in by]
    return Ledger(name, (*lines, *backward))
