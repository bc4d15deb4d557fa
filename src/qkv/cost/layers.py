"""A layer with its projections, a step of decoding, and the listings of the exercises, line by line.

`layer` is what a good program does: nothing that it can keep near the cores is written out. `listing` and
`step_listing` count the programs of the exercises as they stand, with the logits that they write and the past that
`torch.cat` copies.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ShapeError, complaint
from ..masks.grid import size
from ..similarity import Softmax
from .ledger import Ledger, Line, Number, named, quotient
from .needs import Asked, needed
from .sizes import Sizes, check_heads


def layer(
    batch: Number,
    len_q: Number,
    len_k: Number,
    d_model: Number,
    heads: Number,
    kv_heads: Number | None = None,
    *,
    head_width: Number | None = None,
    past: Number | None = None,
    pairs: Number | None = None,
    item: Number = 4,
    cache_item: Number | None = None,
    training: bool = False,
) -> Ledger:
    """Multi-head, grouped-query or multi-query attention with its four projections.

    len_q new tokens are projected to queries, len_k new ones to keys and values. past: how many more keys and values
    a cache holds already; the new ones join them. None: there is no cache. pairs: those that attend, over batch and
    heads; all where nothing is said.

    Sizes are numbers, symbols, or names of symbols.

    >>> layer(1, "n_t", "n_s", "d", "h").theta(at_most=[("h", "d")])
    Θ(d²·n_s + d²·n_t + d·n_s·n_t)
    """
    batch, len_q, len_k, d_model, heads = named(batch, len_q, len_k, d_model, heads)
    kv_heads, head_width, past = named(heads if kv_heads is None else kv_heads, head_width, past)
    check_layer(d_model, heads, kv_heads, head_width, batch=batch, len_q=len_q, len_k=len_k, past=past)
    width = quotient(d_model, heads) if head_width is None else head_width
    item, pairs = named(item, pairs)
    stored = item if cache_item is None else named(cache_item)[0]
    for name, given in (("item", item), ("cache_item", stored), ("pairs", pairs)):
        if given is not None and not hasattr(given, "free_symbols"):
            size(name, given)
    caches, past_keys = past is not None, 0 if past is None else past
    queries, keys = heads * width, kv_heads * width
    tokens_q, tokens_k = batch * len_q, batch * len_k
    projections = [
        _projection("query projection", tokens_q, d_model, queries, item),
        _projection("key projection", tokens_k, d_model, keys, item),
        _projection("value projection", tokens_k, d_model, keys, item),
    ]
    sizes = Sizes(batch, heads, kv_heads, len_q, len_k + past_keys, width, width)
    asked = Asked(sizes, sizes.cells if pairs is None else pairs, item, Softmax())
    attention = list(needed("blockwise", asked, training).lines)
    if caches:
        # What is past is read from the cache in the cache's format, what is new goes there.
        held, fresh = batch * keys * past_keys, item * tokens_k * keys
        reads = {
            "scores": item * sizes.query_numbers + stored * held + fresh,
            "weighted values": stored * held + fresh,
        }
        attention = [replace(line, read=reads.get(line.name, line.read)) for line in attention]
        projections[1:] = [replace(line, written=0) for line in projections[1:]]  # they go to the cache at once
        attention.insert(0, Line("append to the cache", written=2 * stored * tokens_k * keys))
    output = _projection("output projection", tokens_q, queries, d_model, item)
    lines = [*projections, *attention, output]
    if training:
        wide = (queries, keys, keys, queries)
        for made, out in zip((*projections, output), wide, strict=True):
            lines += _projection_backward(made, item * d_model * out)
    return Ledger(
        "layer",
        tuple(lines),
        item * (tokens_q * d_model + 2 * d_model * (queries + keys)) + 2 * stored * batch * keys * past_keys,
        item * tokens_q * d_model,
        item * (2 * tokens_q * queries + 2 * tokens_k * keys),
    )


def step(
    batch: Number,
    past: Number,
    d_model: Number,
    heads: Number,
    kv_heads: Number | None = None,
    *,
    head_width: Number | None = None,
    item: Number = 4,
    cache_item: Number | None = None,
) -> Ledger:
    """One token for each sequence of a batch, with `past` tokens in the cache.

    >>> found = step("b", "n", "d", "h", 1)
    >>> found.theta(at_most=[("h", "d")]), found.theta("traffic", at_most=[("h", "d")])
    (Θ(b·d² + b·d·n), Θ(b·d + b·d·n/h + d²))
    """
    sizes = {"head_width": head_width, "item": item, "cache_item": cache_item}
    found = layer(batch, 1, 1, d_model, heads, kv_heads, past=past, **sizes)
    return Ledger("step", found.lines, found.inputs, found.outputs, found.extra)


def check_layer(
    d_model: Number, heads: Number, kv_heads: Number, head_width: Number | None, **lengths: Number | None
) -> None:
    """Heads that share the width evenly, key/value heads that divide them, and lengths that there can be."""
    sizes = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads, "head_width": head_width}
    for name, given in (sizes | lengths).items():
        if given is not None and not hasattr(given, "free_symbols"):
            size(name, given)
    check_heads(heads, kv_heads)
    if head_width is None and isinstance(d_model, int) and isinstance(heads, int) and (heads < 1 or d_model % heads):
        hint = "head_width= says how wide a head is where it is not d_model / heads"
        raise ShapeError(complaint("heads", f"{heads} for d_model {d_model}", "a number that divides d_model", hint))


def _projection(name: str, tokens: Number, wide: Number, out: Number, item: Number) -> Line:
    """(tokens, wide) times (wide, out): the weights are read once, whatever the batch."""
    return Line(name, 2 * tokens * wide * out, item * (tokens * wide + wide * out), item * tokens * out, product=True)


def _projection_backward(line: Line, weights: Number) -> list[Line]:
    """dx = dy·Wᵀ and dW = xᵀ·dy: two products of the same size."""
    given, made = line.read - weights, line.written
    return [
        Line(f"{line.name}: by its input", line.flops, made + weights, given, product=True),
        Line(f"{line.name}: by its weights", line.flops, given + made, weights, product=True),
    ]


def step_listing(
    batch: Number, past: Number, d_model: Number, heads: Number, kv_heads: Number | None = None, *, item: Number = 4
) -> Ledger:
    """The step of decoding as the exercise lists it, in torch operators: `torch.cat` copies the past, logits and
    weights are written out and read again.

    >>> step_listing("b", "n", "d", "h", 1).theta("traffic", at_most=[("h", "d")])
    Θ(b·h·n + b·d + b·d·n/h + d²)
    """
    batch, past, d_model, heads = named(batch, past, d_model, heads)
    (kv_heads,) = named(heads if kv_heads is None else kv_heads)
    check_layer(d_model, heads, kv_heads, None, batch=batch, past=past)
    width = quotient(d_model, heads)
    keys, now = kv_heads * width, past + 1
    logits, cache = item * batch * heads * now, item * batch * keys
    queries = item * batch * d_model
    scored = 2 * batch * heads * now * width
    lines = (
        _projection("q = x·W_q", batch, d_model, heads * width, item),
        _projection("k = x·W_k", batch, d_model, keys, item),
        _projection("v = x·W_v", batch, d_model, keys, item),
        Line("new_K = cat(prev_K, k)", read=cache * now, written=cache * now),
        Line("new_V = cat(prev_V, v)", read=cache * now, written=cache * now),
        Line("logits = q·new_K", scored, queries + cache * now, logits, product=True),
        # The largest is subtracted before the exponential: five operations for each.
        Line("weights = softmax(logits)", 5 * batch * heads * now, logits, logits),
        Line("o = weights·new_V", scored, logits + cache * now, queries, product=True),
        _projection("y = o·W_o", batch, heads * width, d_model, item),
    )
    weights = 2 * d_model * (heads * width + keys)
    given = item * weights + queries + 2 * cache * past
    return Ledger("step as listed", lines, given, queries, 2 * cache * now + 2 * logits + 2 * queries + 2 * cache)


def layer_listing(
    batch: Number, n_t: Number, n_s: Number, heads: Number, d_head: Number, *, item: Number = 4
) -> Ledger:
    """Multi-head attention as the exercise lists it, line by line, with the factor of the batch that its answer leaves
    out. Rearrangements are counted as the copies that they are.

    >>> layer_listing("b", "n_t", "n_s", "h", "d_h").theta()
    Θ(b·d_h²·h²·n_s + b·d_h²·h²·n_t + b·d_h·h·n_s·n_t)
    """
    batch, n_t, n_s, heads, d_head = named(batch, n_t, n_s, heads, d_head)
    check_layer(1, heads, heads, d_head, batch=batch, n_t=n_t, n_s=n_s)
    d_model = heads * d_head
    out, keys, scores = batch * n_t * d_model, batch * n_s * d_model, batch * heads * n_t * n_s
    lines = (
        _projection("2: query projection", batch * n_t, d_model, d_model, item),
        _projection("3: key projection", batch * n_s, d_model, d_model, item),
        _projection("4: value projection", batch * n_s, d_model, d_model, item),
        Line("5-6: heads of the queries", read=item * out, written=item * out),
        Line("7-8: heads of the keys", read=item * keys, written=item * keys),
        Line("9-10: heads of the values", read=item * keys, written=item * keys),
        Line("15: scores", 2 * scores * d_head, item * (out + keys), item * scores, product=True),
        Line("15: scale", scores, item * scores, item * scores),
        Line("15: softmax", 5 * scores, item * scores, item * scores),
        Line("15: weighted values", 2 * scores * d_head, item * (scores + keys), item * out, product=True),
        Line("16-17: heads side by side", read=item * out, written=item * out),
        _projection("18: output projection", batch * n_t, d_model, d_model, item),
    )
    given = item * (batch * (n_t + 2 * n_s) * d_model + 4 * d_model * d_model)
    return Ledger("layer as listed", lines, given, item * out, item * (3 * out + 4 * keys + 2 * scores))
