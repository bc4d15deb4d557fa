"""What running a model takes, line by line: embedding, norms, projections, attention, feed-forward networks, logits.

The name of a line starts with its part ("projections: query"), and `parts` groups lines by part. What an efficient
program keeps near the cores is not written to memory: scores, attention weights, inputs of activations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import OptionError, complaint
from ..similarity import Softmax
from .architecture import NORM_VECTORS, Model, as_model
from .counting import SUM_BYTES, Workload, backend_ledger
from .ledger import Ledger, Line, Number, quotient
from .price import latent_flops
from .sizes import Sizes, check_size, compute_format, format_name, is_symbol, minimum, storage_bytes

PARTS = ("embedding", "norms", "projections", "scores", "cache", "feed-forward", "logits")


class StepSizes(NamedTuple):
    """Sizes of one pass of a model.

    Attributes:
        new, past: tokens of each sequence in this pass, and before it.
        weights, cache: their storage formats.
        item: bytes per number of activations.
        causal, caches: of self-attention.
        encodes: whether the encoder runs, so that keys and values of the source are made.
    """

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
    causal: bool | None = None,
) -> Ledger:
    """Everything from token ids to logits, for `new` tokens of each sequence after `past` cached ones.

    Causal: each token attends to itself and earlier tokens, in windowed layers within the window; pairs are exact.
    Weights are read once, whatever the batch. For experts, flops are those of the active ones, and bytes those of the
    E·(1 − (1 − k/E)^tokens) experts that a batch is expected to use if each token chooses k of E uniformly.

    Args:
        model: a `Model`, the name of a preset, or the path of a config.json. Sizes may be symbols.
        weights, cache: storage formats (float32, bfloat16, float16, int8, int4), or bytes per number.
        training: whether to count the backward pass too.
        similarity: "softmax", or "linear" for feature maps as wide as a head, with sums in float32.
        source: tokens that the encoder of an encoder-decoder reads; past + new by default.
        logit_tokens: tokens of each sequence that get logits; all by default.
        item: bytes per number of activations; 4 for float32 weights, else 2.
        encodes: whether the encoder runs; by default if past is 0.
        causal: False counts all pairs of tokens, as a program that masks scores computes them; by default as the model
            attends.

    Returns:
        A `Ledger` with the lines and their totals.

    >>> tiny = Model(layers=2, d_model=8, heads=4, kv_heads=2, d_ff=16, vocabulary=32)
    >>> found = model_cost(tiny, new=1)
    >>> found.products, 2 * (tiny.parameters - 32 * 8 - 5 * 8), parts(found)["scores"].products
    (2880, 2816, 64)
    """
    model = as_model(model)
    step = _check_step(model, batch, new, past, weights, cache, item, similarity)
    encodes = bool(past == 0) if encodes is None else encodes
    step = step._replace(training=training, encodes=encodes, causal=step.causal if causal is None else causal)
    lines = _joined([(1, _embedding(model, step))], training)
    if model.kind == "encoder-decoder":
        source = past + new if source is None else source
        check_size("source", source)
        if encodes:
            encoder = _encoder(model, step._replace(new=source, causal=False, caches=False))
            lines += [replace(line, name=f"{line.name}, encoder") for line in _joined(encoder, training)]
    made = new if logit_tokens is None else logit_tokens
    lines += _joined([*_stack(model, step, source), (1, _output(model, step, batch * made))], training)
    given = storage_bytes(model.parameters, weights)
    out = step.tokens * model.d_model if model.kind == "encoder" else batch * made * model.vocabulary
    return Ledger(model.name, tuple(lines), given, step.item * out)


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
    """One layer of the stack, the last one, so with experts if the model has them.

    Args:
        windowed: a layer with the model's window.
        model, batch, new, past, weights, cache, training, similarity, item: as of `model_cost`.

    Returns:
        A `Ledger` with the lines and their totals.

    Raises:
        OptionError: `windowed` for a model without a window, or an argument out of range.

    >>> tiny = Model(layers=2, d_model=8, heads=4, kv_heads=2, d_ff=16, vocabulary=32)
    >>> [part for part in parts(block(tiny))]
    ['norms', 'projections', 'scores', 'cache', 'feed-forward']
    """
    model = as_model(model)
    step = _check_step(model, batch, new, past, weights, cache, item, similarity)._replace(training=training)
    if windowed and model.window is None:
        raise OptionError(complaint("windowed", "True", f"a model with a window; {model.name} has none"))
    lines = _layer(model, step, model.window if windowed else None, bool(model.experts))
    return Ledger("block", tuple(_joined([(1, lines)], training)))


def parts(ledger: Ledger) -> dict[str, Ledger]:
    """The lines of a ledger grouped by part: embedding, norms, projections, scores, cache, feed-forward, logits.

    Args:
        ledger: What `model_cost` or `block` returns.

    Returns:
        A `Ledger` for each part that has lines.
    """
    found: dict[str, list[Line]] = {part: [] for part in PARTS}
    for line in ledger.lines:
        found.setdefault(line.name.partition(":")[0], []).append(line)
    return {part: Ledger(part, tuple(lines)) for part, lines in found.items() if lines}


def _check_step(
    model: Model,
    batch: Number,
    new: Number,
    past: Number,
    weights: Any,
    cache: Any,
    item: Number | None,
    similarity: str,
) -> StepSizes:
    check_size("batch", batch)
    check_size("new", new)
    check_size("past", past, 0)
    weights = format_name("weights", weights) if isinstance(weights, str) else weights
    cache = format_name("cache", cache) if isinstance(cache, str) else cache
    if similarity not in ("softmax", "linear"):
        raise OptionError(complaint("similarity", repr(similarity), "'softmax' or 'linear'"))
    decodes = model.kind != "encoder"
    if not decodes and past != 0:
        raise OptionError(complaint("past", past, "0, because an encoder reads all tokens at once"))
    item = storage_bytes(1, compute_format(weights)) if item is None else item
    return StepSizes(batch, new, past, weights, cache, item, False, similarity, decodes, decodes)


Pieces = list[tuple[Number, list[Line]]]  # equal layers together: their number, and the lines of one


def _stack(model: Model, step: StepSizes, source: Number | None) -> Pieces:
    cross = int(model.kind == "encoder-decoder")
    sparse = model.layers - model.dense_layers if model.experts else 0
    every = _norms(model, step, model.norms_per_layer + cross, 2 + cross)
    pieces = [
        (model.layers, every + (attention_lines(model, step, None, source) if cross else [])),
        (model.layers - model.window_layers, attention_lines(model, step, None)),
        (model.layers - sparse, _feed_forward(model, step, False)),
        (1, _norms(model, step, int(model.final_norm), 0)),
    ]
    if model.window is not None:
        pieces.append((model.window_layers, attention_lines(model, step, model.window)))
    return [*pieces, (sparse, _feed_forward(model, step, True))] if model.experts else pieces


def _encoder(model: Model, step: StepSizes) -> Pieces:
    """The encoder of an encoder-decoder, embedding of the source included."""
    last = _norms(model, step, int(model.final_norm), 0)
    return [(1, _embedding(model, step)), (model.encoder_layers, _layer(model, step, None, False)), (1, last)]


def _layer(model: Model, step: StepSizes, window: Number | None, sparse: bool) -> list[Line]:
    """A layer without cross-attention."""
    norms = _norms(model, step, model.norms_per_layer, 2)
    return [*norms, *attention_lines(model, step, window), *_feed_forward(model, step, sparse)]


def _embedding(model: Model, step: StepSizes) -> list[Line]:
    d, tokens = model.d_model, step.tokens
    lines = [Line("embedding: rows", 0, storage_bytes(tokens * d, step.weights), step.item * tokens * d)]
    tables = (model.positions != 0) + (model.segments != 0)
    if tables:
        read = storage_bytes(tables * step.new * d, step.weights)
        lines.append(Line("embedding: positions", tables * tokens * d, read))
    return [*lines, _norm("embedding: norm", model, step)] if model.embedding_norm else lines


def _norms(model: Model, step: StepSizes, norms: Number, residuals: int) -> list[Line]:
    moved = step.item * step.tokens * model.d_model
    lines = [_norm("norms: scaling", model, step).times(norms)] if is_symbol(norms) or norms else []
    added = Line("norms: residuals", step.tokens * model.d_model, 2 * moved, moved)
    return [*lines, added.times(residuals)] if residuals else lines


def _norm(name: str, model: Model, step: StepSizes) -> Line:
    """Four operations per number (square, add, scale, multiply by the weight); a mean and a bias take three more."""
    numbers, vectors = step.tokens * model.d_model, NORM_VECTORS[model.norm]
    flops = (4 if model.norm == "rms" else 7) * numbers
    weights = storage_bytes(vectors * model.d_model, step.weights)
    return Line(name, flops, step.item * numbers + weights, step.item * numbers)


def _feed_forward(model: Model, step: StepSizes, sparse: bool) -> list[Line]:
    """Up, activation, down; a gate adds a second product up and an elementwise product."""
    d, tokens, ups = model.d_model, step.tokens, 2 if model.gated else 1
    if not sparse:
        lines = _network("feed-forward", d, model.d_ff, tokens, ups, step, storage_bytes(d * model.d_ff, step.weights))
        return lines + ([_bias("feed-forward: biases", tokens, ups * model.d_ff + d, step)] if model.ff_bias else [])
    wide, active = model.expert_d_ff, model.experts_active
    used = _expert_bytes(model, tokens, step)
    router = projection_line("feed-forward: router", tokens, d, model.experts, step)
    # Exponential, sum, compare; a bias is one more.
    chosen = Line("feed-forward: choice", (3 + int(model.router_bias)) * tokens * model.experts)
    joined = Line("feed-forward: sum of experts", 2 * tokens * active * d)
    lines = [router, chosen, *_network("feed-forward: experts", d, wide, tokens * active, ups, step, used), joined]
    if model.ff_bias:
        numbers = ups * wide + d
        read = storage_bytes(minimum(tokens * active, model.experts) * numbers, step.weights)
        lines.append(Line("feed-forward: biases of experts", tokens * active * numbers, read))
    if is_symbol(model.shared_experts) or model.shared_experts:
        shared = storage_bytes(model.shared_experts * d * wide, step.weights)
        if model.shared_gate:
            gate = storage_bytes(d, step.weights)
            lines.append(Line("feed-forward: shared gate", 2 * tokens * d, gate, step.item * tokens, product=True))
        lines += _network("feed-forward: shared", d, model.shared_experts * wide, tokens, ups, step, shared)
    return lines


def _network(
    name: str, d: Number, wide: Number, tokens: Number, ups: int, step: StepSizes, matrix: Number
) -> list[Line]:
    """A feed-forward network; each matrix is read once, whatever the number of tokens."""
    before = ": " if ":" not in name else ", "
    narrow, broad = step.item * tokens * d, step.item * tokens * wide
    return [
        # The gate is applied before anything is written.
        Line(f"{name}{before}up", 2 * ups * tokens * d * wide, narrow + ups * matrix, broad, product=True),
        Line(f"{name}{before}activation", ups * tokens * wide),
        Line(f"{name}{before}down", 2 * tokens * d * wide, broad + matrix, narrow, product=True),
    ]


def _expert_bytes(model: Model, tokens: Number, step: StepSizes) -> Number:
    """Bytes of one matrix of each expert that a batch is expected to use."""
    numbers = experts_used(model, tokens) * model.d_model * model.expert_d_ff
    return storage_bytes(round(numbers) if isinstance(numbers, float) else numbers, step.weights)


def experts_used(model: Model, tokens: Number) -> Number:
    """Expected number of experts that a batch uses: E·(1 − (1 − k/E)^tokens).

    >>> mixtral = Model(layers=1, d_model=8, heads=1, experts=8, experts_active=2)
    >>> experts_used(mixtral, 1), experts_used(mixtral, 2)
    (2, 3.5)
    """
    experts, active = model.experts, model.experts_active
    if isinstance(tokens, int) and tokens == 1:
        return active
    if is_symbol(tokens) or is_symbol(experts) or is_symbol(active):
        return experts * (1 - (1 - active / experts) ** tokens)
    return experts if active == experts else -experts * math.expm1(tokens * math.log1p(-active / experts))


def _output(model: Model, step: StepSizes, tokens: Number) -> list[Line]:
    """Logits, or of an encoder with a pooler, one vector per sequence times a square matrix."""
    d, words = model.d_model, model.vocabulary
    if model.kind != "encoder":
        product = projection_line("logits: product", tokens, d, words, step)
        return [product, _bias("logits: bias", tokens, words, step)] if model.head_bias else [product]
    product = projection_line("logits: pooler", step.batch, d, d, step)
    rest = Line("logits: bias and tanh of the pooler", 2 * step.batch * d, storage_bytes(d, step.weights))
    return [product, rest] if model.pooler else []


def _joined(pieces: Pieces, training: bool) -> list[Line]:
    """All lines, each as often as its layer is there, with their backward pass: a product has two gradients of its
    size, by input and by weights; other lines take twice their work. Scores have theirs already."""
    found = []
    for count, lines in pieces:
        forward = [line.times(count) for line in lines if is_symbol(count) or count]
        found += forward
        for line in forward if training else ():
            if not line.name.startswith(("scores", "cache")):
                by = ("by its input", "by its weights") if line.product else ("backward",)
                flops = line.flops if line.product else 2 * line.flops
                found += [replace(line, name=f"{line.name}, {what}", flops=flops) for what in by]
    return found


def attention_lines(model: Model, step: StepSizes, window: Number | None, source: Number | None = None) -> list[Line]:
    """Lines of one attention layer: causal, within a window, or cross-attention to `source` tokens."""
    if source is not None:
        return _cross(model, step, source)
    if model.latent is not None and step.similarity == "softmax":
        return _latent(model, step, window)
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    lines = [*_in_projections(model, step), *_out_projection(model, step)]
    if step.similarity == "linear":
        return lines + _linear(model, step)
    sizes = Sizes(step.batch, h, g, step.new, step.new, w, v)
    lines += _scores(sizes, attended_pairs(step, window) * h, step, step.item * sizes.key_numbers)
    if is_symbol(model.relative_buckets) or model.relative_buckets:
        lines.append(Line("scores: relative positions", attended_pairs(step, window) * h))
    if model.sinks:
        lines.append(Line("scores: sinks", 3 * sizes.rows, storage_bytes(h, step.weights)))  # subtract, exp, add
    if step.caches:
        lines += _cached(step, window, g * (w + v))
    return lines


def attended_pairs(step: StepSizes, window: Number | None) -> Number:
    """Attended pairs over the batch, for one head.

    >>> step = StepSizes(1, 3, 7, 2, 2, 2)
    >>> attended_pairs(step, None), attended_pairs(step, 4), attended_pairs(StepSizes(1, 6, 0, 2, 2, 2), 4)
    (27, 12, 18)
    """
    new, past = step.new, step.past
    if not step.causal:
        return step.batch * new * (new + past)
    all_before = new * past + quotient(new * (new + 1), 2)
    if window is None:
        return step.batch * all_before
    if is_symbol(window) or is_symbol(new) or is_symbol(past):
        return step.batch * new * window  # assuming that every window is full
    # Token t attends to min(t + 1, window) tokens.
    growing = min(max(window - past, 0), new)
    return step.batch * (growing * past + growing * (growing + 1) // 2 + (new - growing) * window)


def projection_line(
    name: str, tokens: Number, wide: Number, out: Number, step: StepSizes, matrices: Number = 1
) -> Line:
    """(tokens, wide) times (wide, out), one of several matrices for each row; weights are read once, whatever the
    batch."""
    weights = storage_bytes(matrices * wide * out, step.weights)
    return Line(name, 2 * tokens * wide * out, step.item * tokens * wide + weights, step.item * tokens * out, True)


def _projected(step: StepSizes, *products: tuple[str, Number, Number, Number]) -> list[Line]:
    """Projections by name, tokens, width and width of the result."""
    return [projection_line(f"projections: {name}", tokens, wide, out, step) for name, tokens, wide, out in products]


def _bias(name: str, tokens: Number, numbers: Number, step: StepSizes) -> Line:
    """One addition for each number of each token."""
    return Line(name, tokens * numbers, storage_bytes(numbers, step.weights))


def _in_projections(model: Model, step: StepSizes) -> list[Line]:
    """Queries, keys and values of new tokens; earlier ones are in the cache."""
    d, tokens, queries = model.d_model, step.tokens, model.heads * model.head_width
    wide, values = model.kv_heads * model.head_width, model.kv_heads * model.value_width
    lines = _projected(step, ("query", tokens, d, queries), ("key", tokens, d, wide), ("value", tokens, d, values))
    if model.qkv_bias:
        lines.append(_bias("projections: biases", tokens, queries + wide + values, step))
    if model.qk_norm is not None:
        vectors = 2 * model.head_width if model.qk_norm == "head" else queries + wide
        flops = 4 * tokens * (queries + wide)
        lines.append(Line("projections: norms of queries and keys", flops, storage_bytes(vectors, step.weights)))
    return lines + _rotation(model.rotary * tokens * (model.heads + model.kv_heads))


def _out_projection(model: Model, step: StepSizes) -> list[Line]:
    lines = [projection_line("projections: output", step.tokens, model.heads * model.value_width, model.d_model, step)]
    return lines + ([_bias("projections: output bias", step.tokens, model.d_model, step)] if model.out_bias else [])


def _rotation(numbers: Number) -> list[Line]:
    """Two multiplications and an addition per coordinate."""
    return [Line("projections: rotation", 3 * numbers)] if is_symbol(numbers) or numbers else []


def _scores(
    sizes: Sizes, pairs: Number, step: StepSizes, keys_read: Number, values_read: Number | None = None
) -> list[Line]:
    """Softmax without a matrix of scores; reads of the cache have separate lines."""
    workload = Workload(sizes, pairs, step.item, Softmax())
    names = {"scores": "queries by keys"}
    reads = {
        "scores": step.item * sizes.query_numbers + keys_read,
        "weighted values": step.item * sizes.value_numbers if values_read is None else values_read,
    }
    lines = backend_ledger("blockwise", workload, step.training).lines
    return [
        replace(line, name=f"scores: {names.get(line.name, line.name)}", read=reads.get(line.name, line.read))
        for line in lines
    ]


def _cached(step: StepSizes, window: Number | None, numbers: Number) -> list[Line]:
    """A windowed layer reads the past tokens of its first new query, and keeps at most the window."""
    past = step.past if window is None else minimum(window - 1, step.past)
    kept = step.new if window is None else minimum(step.new, window)
    return [
        Line("cache: read", read=storage_bytes(step.batch * past * numbers, step.cache)),
        Line("cache: append", written=storage_bytes(step.batch * kept * numbers, step.cache)),
    ]


def _linear(model: Model, step: StepSizes) -> list[Line]:
    """Sums over keys with features as wide as a head; each new token reads and writes all of them."""
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    sizes = Sizes(step.batch, h, g, step.new, step.new, w, v)
    workload = Workload(sizes, 0, step.item, Softmax(), features=w)
    state = step.batch * state_bytes(model)
    lines = [
        replace(line, name=f"scores: {line.name}") for line in backend_ledger("linear", workload, step.training).lines
    ]
    if step.caches:
        lines += [Line("cache: sums read", read=state), Line("cache: sums written", written=state)]
    return lines


def state_bytes(model: Model) -> Number:
    """Bytes of the sums of one layer and sequence: features × (value_width + 1) per key/value head."""
    return SUM_BYTES * model.kv_heads * model.head_width * (model.value_width + 1)


def _latent(model: Model, step: StepSizes, window: Number | None) -> list[Line]:
    """Keys and values are made from the latent vectors (expanded), or queries are projected into the latent space
    (absorbed), whichever takes fewer flops; formulas take the latter, the choice for decoding."""
    assert model.latent is not None
    rank, rope = model.latent.kv_rank, model.latent.rope_width
    widths = {"plain": model.head_width - rope, "rope": rope, "value": model.value_width}
    counts = {"keys": step.batch * _attended(step, window), "pairs": attended_pairs(step, window)}
    absorbed, expanded = latent_flops(model.heads, rank, **widths, queries=step.tokens, **counts)
    less = expanded - absorbed
    chosen = (_absorbed if is_symbol(less) or less >= 0 else _expanded)(model, step, window)
    cached = _cached(step, window, model.latent.kv_rank + model.latent.rope_width) if step.caches else []
    return [*_latent_projections(model, step), *chosen, *_out_projection(model, step), *cached]


def _latent_projections(model: Model, step: StepSizes) -> list[Line]:
    assert model.latent is not None
    kv_rank, q_rank, rope = model.latent.kv_rank, model.latent.q_rank, model.latent.rope_width
    d, queries, tokens = model.d_model, model.heads * model.head_width, step.tokens
    lines = _projected(step, ("query", tokens, d, queries))
    if q_rank is not None:
        lines = _projected(step, ("query, down", tokens, d, q_rank), ("query, up", tokens, q_rank, queries))
        lines.insert(1, Line("projections: query norm", 4 * tokens * q_rank, storage_bytes(q_rank, step.weights)))
    return [
        *lines,
        *_projected(step, ("latent, down", tokens, d, kv_rank + rope)),
        Line("projections: latent norm", 4 * tokens * kv_rank, storage_bytes(kv_rank, step.weights)),
        *_rotation(rope * tokens * (model.heads + 1)),
    ]


def _absorbed(model: Model, step: StepSizes, window: Number | None) -> list[Line]:
    """All heads read the latent vectors: one key/value head of their width."""
    assert model.latent is not None
    h, rank, rope = model.heads, model.latent.kv_rank, model.latent.rope_width
    plain = model.head_width - rope
    sizes = Sizes(step.batch, h, 1, step.new, step.new, rank + rope, rank)
    rows = step.tokens * h
    into = projection_line("projections: queries into the latent space", rows, plain, rank, step, h)
    back = projection_line("projections: answers out of the latent space", rows, rank, model.value_width, step, h)
    # Values are the first coordinates of the keys, which have been read.
    scores = _scores(sizes, attended_pairs(step, window) * h, step, step.item * sizes.key_numbers, values_read=0)
    return [into, *scores, back]


def _attended(step: StepSizes, window: Number | None) -> Number:
    """The tokens of a sequence that a query attends to."""
    return step.new + (step.past if window is None else minimum(window - 1, step.past))


def _expanded(model: Model, step: StepSizes, window: Number | None) -> list[Line]:
    """Keys and values of every head, made again from the latent vectors of all attended tokens."""
    assert model.latent is not None
    h, rank, rope = model.heads, model.latent.kv_rank, model.latent.rope_width
    keys = _attended(step, window)
    wide = model.head_width - rope + model.value_width
    up = projection_line("projections: latent, up", step.batch * keys, rank, h * wide, step)
    sizes = Sizes(step.batch, h, h, step.new, keys, model.head_width, model.value_width)
    return [up, *_scores(sizes, attended_pairs(step, window) * h, step, step.item * sizes.key_numbers)]


def _cross(model: Model, step: StepSizes, source: Number) -> list[Line]:
    """Queries of new tokens with keys and values of the source, made at the first token and cached."""
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    d, fresh = model.d_model, step.encodes
    numbers = step.batch * source * g * (w + v)
    made = step.batch * source
    own = [("key, cross", made, d, g * w), ("value, cross", made, d, g * v)] if fresh else []
    tokens = step.tokens
    lines = _projected(step, ("query, cross", tokens, d, h * w), *own, ("output, cross", tokens, h * v, d))
    sizes = Sizes(step.batch, h, g, step.new, source, w, v)
    reads = (step.item * sizes.key_numbers, step.item * sizes.value_numbers) if fresh else (0, 0)
    scores = _scores(sizes, sizes.cells, step, *reads)
    lines += [replace(line, name=f"{line.name}, cross") for line in scores]
    moved = storage_bytes(numbers, step.cache)
    return [*lines, Line("cache: append, cross", written=moved) if fresh else Line("cache: read, cross", read=moved)]
