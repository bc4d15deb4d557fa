"""The lines of one attention of a model: projections, scores and what it reads from and writes to its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..similarity import Softmax
from .architecture import Model
from .formats import is_symbol, smaller, stored
from .ledger import Line, Number, half
from .needs import SUM_BYTES, Asked, needed
from .sizes import Sizes

if TYPE_CHECKING:
    from .blocks import Step


def attention_lines(model: Model, step: Step, window: Number | None, source: Number | None = None) -> list[Line]:
    """Attention to the tokens before, to those within a window, or (source) to what an encoder has read."""
    if source is not None:
        return _cross(model, step, source)
    if model.latent is not None and step.similarity == "softmax":
        return _latent(model, step, window)
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    lines = [*_in_projections(model, step), *_out_projection(model, step)]
    if step.similarity == "linear":
        return lines + _linear(model, step)
    sizes = Sizes(step.batch, h, g, step.new, step.new, w, v)
    lines += _scores(sizes, attended(step, window) * h, step, step.item * sizes.key_numbers)
    if is_symbol(model.relative_buckets) or model.relative_buckets:
        lines.append(Line("scores: relative positions", attended(step, window) * h))
    if model.sinks:
        lines.append(Line("scores: sinks", 3 * sizes.rows, stored(h, step.weights)))  # subtract, exp, add
    if step.caches:
        lines += _cached(step, window, g * (w + v))
    return lines


def attended(step: Step, window: Number | None) -> Number:
    """Pairs of a query and a key that it sees, over the batch, for one head.

    >>> from qkv.cost.blocks import Step
    >>> attended(Step(1, 3, 7, 2, 2, 2), None), attended(Step(1, 3, 7, 2, 2, 2), 4), attended(Step(1, 6, 0, 2, 2, 2), 4)
    (27, 12, 18)
    """
    new, past = step.new, step.past
    if not step.causal:
        return step.batch * new * new
    all_before = new * past + half(new * (new + 1))
    if window is None:
        return step.batch * all_before
    if is_symbol(window) or is_symbol(new) or is_symbol(past):
        return step.batch * new * window  # far enough on that every window is full
    # Token t sees min(t + 1, window): those up to the window's end see all, those beyond it the window.
    growing = min(max(window - past, 0), new)
    return step.batch * (growing * past + growing * (growing + 1) // 2 + (new - growing) * window)


def product(name: str, tokens: Number, wide: Number, out: Number, step: Step) -> Line:
    """(tokens, wide) times (wide, out): the weights are read once, whatever the batch."""
    weights = stored(wide * out, step.weights)
    return Line(name, 2 * tokens * wide * out, step.item * tokens * wide + weights, step.item * tokens * out, True)


def _in_projections(model: Model, step: Step) -> list[Line]:
    """Of new tokens; keys and values of the past are in the cache."""
    d, tokens, queries = model.d_model, step.tokens, model.heads * model.head_width
    wide, values = model.kv_heads * model.head_width, model.kv_heads * model.value_width
    lines = [
        product("projections: query", tokens, d, queries, step),
        product("projections: key", tokens, d, wide, step),
        product("projections: value", tokens, d, values, step),
    ]
    if model.qkv_bias:
        numbers = queries + wide + values
        lines.append(Line("projections: biases", tokens * numbers, stored(numbers, step.weights)))
    if model.qk_norm is not None:
        vectors = 2 * model.head_width if model.qk_norm == "head" else queries + wide
        flops = 4 * tokens * (queries + wide)
        lines.append(Line("projections: norms of queries and keys", flops, stored(vectors, step.weights)))
    return lines + _rotation(model.rotary * tokens * (model.heads + model.kv_heads))


def _out_projection(model: Model, step: Step) -> list[Line]:
    lines = [product("projections: output", step.tokens, model.heads * model.value_width, model.d_model, step)]
    if model.out_bias:
        added = Line("projections: output bias", step.tokens * model.d_model, stored(model.d_model, step.weights))
        lines.append(added)
    return lines


def _rotation(numbers: Number) -> list[Line]:
    """Two multiplications and an addition for each coordinate."""
    return [Line("projections: rotation", 3 * numbers)] if is_symbol(numbers) or numbers else []


def _scores(
    sizes: Sizes, pairs: Number, step: Step, keys_read: Number, values_read: Number | None = None
) -> list[Line]:
    """Softmax without the matrix of scores; what the cache holds is read in lines of its own."""
    asked = Asked(sizes, pairs, step.item, Softmax())
    names = {"scores": "queries by keys"}
    reads = {
        "scores": step.item * sizes.query_numbers + keys_read,
        "weighted values": step.item * sizes.value_numbers if values_read is None else values_read,
    }
    return [
        Line(
            f"scores: {names.get(line.name, line.name)}",
            line.flops,
            reads.get(line.name, line.read),
            line.written,
            line.product,
        )
        for line in needed("blockwise", asked, step.training).lines
    ]


def _cached(step: Step, window: Number | None, numbers: Number) -> list[Line]:
    """A windowed layer reads the part of the past that its first new query sees, and keeps no more than the window."""
    past = step.past if window is None else smaller(window - 1, step.past)
    kept = step.new if window is None else smaller(step.new, window)
    return [
        Line("cache: read", read=stored(step.batch * past * numbers, step.cache)),
        Line("cache: append", written=stored(step.batch * kept * numbers, step.cache)),
    ]


def _linear(model: Model, step: Step) -> list[Line]:
    """Sums over keys, as wide as a head, which each new token reads and writes whole."""
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    sizes = Sizes(step.batch, h, g, step.new, step.new, w, v)
    asked = Asked(sizes, 0, step.item, Softmax(), features=w)
    state = step.batch * state_bytes(model)
    lines = [
        Line(f"scores: {line.name}", line.flops, line.read, line.written, line.product)
        for line in needed("linear", asked, step.training).lines
    ]
    if step.caches:
        lines += [Line("cache: sums read", read=state), Line("cache: sums written", written=state)]
    return lines


def state_bytes(model: Model) -> Number:
    """Bytes of the sums of one layer and sequence: features × (value_width + 1) for each key/value head."""
    return SUM_BYTES * model.kv_heads * model.head_width * (model.value_width + 1)


def _latent(model: Model, step: Step, window: Number | None) -> list[Line]:
    """Keys and values are made from the latent vectors (`expanded`), or queries are multiplied into their space
    (`absorbed`): whichever takes fewer flops; of formulas, the latter, which decoding takes."""
    absorbed, expanded = _absorbed(model, step, window), _expanded(model, step, window)
    less = _flops(expanded) - _flops(absorbed)
    chosen = absorbed if is_symbol(less) or less >= 0 else expanded
    assert model.latent is not None
    cached = _cached(step, window, model.latent.kv_rank + model.latent.rope_width) if step.caches else []
    return [*_latent_projections(model, step), *chosen, *_out_projection(model, step), *cached]


def _latent_projections(model: Model, step: Step) -> list[Line]:
    assert model.latent is not None
    kv_rank, q_rank, rope = model.latent.kv_rank, model.latent.q_rank, model.latent.rope_width
    d, queries, tokens = model.d_model, model.heads * model.head_width, step.tokens
    if q_rank is None:
        lines = [product("projections: query", tokens, d, queries, step)]
    else:
        lines = [
            product("projections: query, down", tokens, d, q_rank, step),
            Line("projections: query norm", 4 * tokens * q_rank, stored(q_rank, step.weights)),
            product("projections: query, up", tokens, q_rank, queries, step),
        ]
    return [
        *lines,
        product("projections: latent, down", tokens, d, kv_rank + rope, step),
        Line("projections: latent norm", 4 * tokens * kv_rank, stored(kv_rank, step.weights)),
        *_rotation(rope * tokens * (model.heads + 1)),
    ]


def _absorbed(model: Model, step: Step, window: Number | None) -> list[Line]:
    """Every head reads the latent vectors themselves: one key/value head, as wide as they are."""
    assert model.latent is not None
    h, rank, rope = model.heads, model.latent.kv_rank, model.latent.rope_width
    plain = model.head_width - rope
    sizes = Sizes(step.batch, h, 1, step.new, step.new, rank + rope, rank)
    rows = step.tokens * h
    weights = [stored(h * rank * wide, step.weights) for wide in (plain, model.value_width)]
    into = Line(
        "projections: queries into the latent space",
        2 * rows * plain * rank,
        step.item * rows * plain + weights[0],
        step.item * rows * rank,
        product=True,
    )
    back = Line(
        "projections: answers out of the latent space",
        2 * rows * rank * model.value_width,
        step.item * rows * rank + weights[1],
        step.item * rows * model.value_width,
        product=True,
    )
    # Values are the first coordinates of the keys: what was read for one is there for the other.
    scores = _scores(sizes, attended(step, window) * h, step, step.item * sizes.key_numbers, values_read=0)
    return [into, *scores, back]


def _expanded(model: Model, step: Step, window: Number | None) -> list[Line]:
    """Keys and values of every head, made anew from the latent vectors of all tokens that are seen."""
    assert model.latent is not None
    h, rank, rope = model.heads, model.latent.kv_rank, model.latent.rope_width
    seen = step.past if window is None else smaller(window - 1, step.past)
    keys = step.new + seen
    wide = model.head_width - rope + model.value_width
    up = product("projections: latent, up", step.batch * keys, rank, h * wide, step)
    sizes = Sizes(step.batch, h, h, step.new, keys, model.head_width, model.value_width)
    return [up, *_scores(sizes, attended(step, window) * h, step, step.item * sizes.key_numbers)]


def _cross(model: Model, step: Step, source: Number) -> list[Line]:
    """Queries of the new tokens, keys and values of the source: made before the first token, read from then on."""
    h, g, w, v = model.heads, model.kv_heads, model.head_width, model.value_width
    d, fresh = model.d_model, step.encodes
    numbers = step.batch * source * g * (w + v)
    lines = [product("projections: query, cross", step.tokens, d, h * w, step)]
    if fresh:
        made = step.batch * source
        lines.append(product("projections: key, cross", made, d, g * w, step))
        lines.append(product("projections: value, cross", made, d, g * v, step))
    lines.append(product("projections: output, cross", step.tokens, h * v, d, step))
    sizes = Sizes(step.batch, h, g, step.new, source, w, v)
    reads = (step.item * sizes.key_numbers, step.item * sizes.value_numbers) if fresh else (0, 0)
    scores = _scores(sizes, sizes.cells, step, *reads)
    lines += [Line(f"{line.name}, cross", line.flops, line.read, line.written, line.product) for line in scores]
    if fresh:
        lines.append(Line("cache: append, cross", written=stored(numbers, step.cache)))
    else:
        lines.append(Line("cache: read, cross", read=stored(numbers, step.cache)))
    return lines


def _flops(lines: list[Line]) -> Number:
    total: Number = 0
    for line in lines:
        total = total + line.flops
    return total
