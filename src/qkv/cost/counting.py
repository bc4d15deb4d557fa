"""Exact counts of attention: one call (`count`), a layer with its projections (`layer`), a decode step (`step`), and
the programs of the exercises (`layer_listing`, `step_listing`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import DtypeError, OptionError, OptionTypeError, ShapeError, complaint
from ..masks import Causal, Extent, Mask, Padding, Segments, Window, as_mask
from ..masks.count import Reach, reach
from ..masks.grid import as_size
from ..similarity import AnySimilarity, FeatureMap, Polynomial, Sigmoid, Softmax, as_similarity
from ..states import AnyState, Delta
from .ledger import Ledger, Line, Number, as_sizes, quotient
from .price import state_flops
from .sizes import BITS, RANKS, Sizes, check_choice, check_heads, check_sizes, is_symbol

ITEM_BYTES = {"float64": 8, **{name: bits // 8 for name, bits in BITS.items() if bits >= 8}}
BACKENDS = ("reference", "blockwise", "linear", "argmax", "native")
ELEMENTWISE_MAPS = ("elu1", "relu", "identity", "squared")
PROJECTING_MAPS = ("positive_random",)  # each feature is a function of one product with a fixed vector
SUM_BYTES = 4  # sums are float32 at least, whatever the inputs are
INDEX_BYTES = 8


def count(
    query: Any,
    key: Any,
    value: Any,
    *,
    similarity: AnySimilarity | None = None,
    mask: Mask | None = None,
    backend: str = "auto",
    dtype: Any = None,
    features: Number | None = None,
    training: bool = False,
    state: AnyState | type[AnyState] | None = None,
) -> Ledger:
    """Flops, bytes and memory that a call of attention needs, line by line.

    Only pairs that the mask allows are counted; `qkv.explain` says what a backend executes.

    Args:
        query, key, value: tensors or shapes as `qkv.attention` takes them, with 2, 3 or 4 axes. A size is an integer, a
            name or a SymPy symbol; with names or symbols the result is a formula.
        similarity, mask: as of `qkv.attention`.
        backend: "reference", "blockwise", "linear", "argmax" or "native"; "auto" takes one that keeps no matrix of
            scores, and for feature maps the one with fewer flops.
        dtype: for shapes; float32 by default.
        features: number of features of a custom feature map.
        training: whether to count the backward pass too.
        state: as of `qkv.attention`; its class is enough, and has a gate for each token, `KDA` for each feature too.

    Returns:
        A `Ledger` with the lines and their totals.

    Raises:
        ShapeError: shapes do not belong together.
        OptionError: the backend does not compute this similarity and mask, or the mask has no formula.

    >>> count((1, 8, 1024, 64), (1, 8, 1024, 64), (1, 8, 1024, 64), mask=Causal()).products
    1074790400
    >>> count("n d", "n d", "n m", backend="reference").theta()
    Θ(d·n² + m·n²)
    >>> count("n d", "n d", "n m", backend="reference").theta("space")
    Θ(d·n + m·n + n²)
    """
    given = as_similarity(similarity)
    sizes = sizes_of_shapes(query, key, value)
    item = item_bytes(dtype if dtype is not None else getattr(query, "dtype", "float32"))
    if not isinstance(training, bool):
        raise OptionTypeError(complaint("training", repr(training), "True or False"))
    if features is not None:
        (features,) = as_sizes(features)
        if not is_symbol(features) and (type(features) is not int or features < 1):
            raise OptionError(complaint("features", repr(features), "a whole number of at least 1"))
    pairs, reached = _pairs(sizes, mask, len(_shape("query", query)))
    workload = Workload(sizes, pairs, item, given, features, *(reached or (None, None)))
    if state is not None:
        return _counted_state(workload, state, as_mask(mask), backend, training)
    chosen_backend = _backend(backend, workload, as_mask(mask))
    if training and chosen_backend == "native":
        hint = "backend='blockwise' has one"
        raise OptionError(complaint("training", "True with backend='native'", "a backend that has a derivative", hint))
    return backend_ledger(chosen_backend, workload, training)


def _backend(backend: str, workload: Workload, mask: Mask | None) -> str:
    """The backend whose lines are counted."""
    check_choice("backend", backend, ("auto", *BACKENDS))
    serving = backends_for(workload.similarity)
    if not all(isinstance(part, Causal | Padding) for part in (() if mask is None else mask.parts())):
        # Sums over keys are shared by all queries, and a key cannot be removed from a sum.
        serving = tuple(name for name in serving if name != "linear")
    if backend != "auto":
        if backend not in serving:
            given = f"{backend!r} with {workload.similarity!r}" + ("" if mask is None else f" and {mask!r}")
            raise OptionError(complaint("backend", given, "one of " + ", ".join(serving)))
        return backend
    if "linear" not in serving:
        return serving[0]
    # For formulas, linear: the choice for long sequences.
    saved = backend_ledger("blockwise", workload, False).flops - backend_ledger("linear", workload, False).flops
    return "linear" if not isinstance(saved, int) or saved > 0 else "blockwise"


def sizes_of_shapes(query: Any, key: Any, value: Any) -> Sizes:
    """The sizes of three tensors or shapes with two, three or four axes."""
    shapes = [_shape(name, given) for name, given in (("query", query), ("key", key), ("value", value))]
    dims = len(shapes[0])
    if dims not in (2, 3, 4):
        raise ShapeError(complaint("query", f"{dims} dimensions {shapes[0]}", RANKS))
    for name, shape in zip(("key", "value"), shapes[1:], strict=True):
        if len(shape) != dims:
            given = f"{len(shape)} dimensions {shape} for a query of {shapes[0]}"
            raise ShapeError(complaint(name, given, f"{dims} dimensions like query"))
    whole = [(shape if dims == 4 else (shape[0], 1, *shape[1:]) if dims == 3 else (1, 1, *shape)) for shape in shapes]
    return check_sizes(*whole)


def item_bytes(dtype: Any) -> Number:
    """Bytes per number of a dtype, given by name or as a torch dtype; integers and symbols are bytes already."""
    if is_symbol(dtype) or (isinstance(dtype, int) and not isinstance(dtype, bool) and dtype > 0):
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise DtypeError(complaint("dtype", repr(dtype), f"one of {', '.join(ITEM_BYTES)}, or bytes per number"))
    return ITEM_BYTES[name]


def _shape(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        return as_sizes(*given.replace(",", " ").split())
    shape = getattr(given, "shape", given)
    if not isinstance(shape, tuple | list):
        raise ShapeError(complaint(name, repr(given), "a tensor or a shape", 'such as (1, 8, 1024, 64) or "b h n d"'))
    sizes = as_sizes(*shape)
    if not all(is_symbol(size) or (type(size) is int and size >= 0) for size in sizes):
        raise ShapeError(complaint(name, repr(tuple(shape)), "whole numbers that are not negative, or names of sizes"))
    return sizes


def _pairs(sizes: Sizes, mask: Mask | None, dims: int) -> tuple[Number, Reach | None]:
    """Pairs that the mask allows, over batch and heads; and how many queries and keys have any (None: all)."""
    checked = as_mask(mask)
    if checked is None:
        return sizes.cells, Reach(0, 0) if sizes.len_k == 0 else None
    shape = (sizes.batch, sizes.heads, sizes.len_q, sizes.len_k)
    if all(isinstance(size, int) for size in shape):
        extent = Extent(*shape, dims)
        return checked.population(extent), reach(checked, extent, sizes.heads_kv)
    # With these closed forms every query attends to a key, and every key is attended to.
    return sizes.batch * sizes.heads * _symbolic_pairs(checked, sizes), None


def _symbolic_pairs(mask: Mask, sizes: Sizes) -> Number:
    """Closed forms for lengths that are symbols."""
    n, m = sizes.len_q, sizes.len_k
    if isinstance(mask, Causal):
        if mask.offset is None and n == m:
            return quotient(n * (n + 1), 2)
        if mask.offset is not None and m - n == mask.offset:  # the queries are the last of the keys
            return n * m - quotient(n * (n - 1), 2)
    if isinstance(mask, Window) and mask.left is not None and mask.right == 0 and n == m and mask.offset in (None, 0):
        import sympy

        w = sympy.Min(n, mask.left + 1)  # keys of each query; the first queries have fewer
        return n * w - quotient(w * (w - 1), 2)
    given, wanted = f"{mask!r} over {n} queries and {m} keys", "numbers for the lengths, or a mask with a closed form"
    hint = "Causal() over n and n, or Causal(offset=past) over n and past + n, has one"
    raise OptionError(complaint("mask", given, wanted, hint))


@dataclass
class Workload:
    """What the lines of a call are counted from.

    Attributes:
        pairs: attended pairs of a query and a key, over batch and heads.
        item: bytes per number.
        features: number of features, if given.
        rows: queries, over batch and heads, that attend to a key; the results of the others are 0 without work.
        keys: keys, over batch and key/value heads, that a query attends to; the others need not be read.
        query_bytes, key_bytes, value_bytes: of those queries and keys.
        inputs, outputs: bytes of all arguments, and of the result.
    """

    sizes: Sizes
    pairs: Number
    item: Number
    similarity: AnySimilarity
    features: Number | None = None
    rows: Number = None
    keys: Number = None

    def __post_init__(self) -> None:
        sizes, item = self.sizes, self.item
        self.rows = sizes.rows if self.rows is None else self.rows
        self.keys = sizes.batch * sizes.heads_kv * sizes.len_k if self.keys is None else self.keys
        self.query_bytes = item * self.rows * sizes.width
        self.key_bytes, self.value_bytes = item * self.keys * sizes.width, item * self.keys * sizes.width_v
        self.inputs = item * (sizes.query_numbers + sizes.key_numbers + sizes.value_numbers)
        self.outputs = item * sizes.out_numbers


def backends_for(similarity: AnySimilarity) -> tuple[str, ...]:
    """Backends that compute a similarity; the first is the default of "auto"."""
    if similarity.picks_one_key:
        return "argmax", "reference"
    more = ("native",) if similarity.has_scores else ("linear",) if similarity.is_product else ()
    return "blockwise", "reference", *more


def backend_ledger(backend: str, workload: Workload, training: bool) -> Ledger:
    """The lines of a backend, with those of its backward pass for training."""
    if backend == "linear":
        return _linear(workload, training)
    sizes, item = workload.sizes, workload.item
    lines = [*_scores(workload), *_weights(workload), *_values(workload, backend)]
    extra = item * sizes.rows if backend != "argmax" else INDEX_BYTES * sizes.rows
    if backend == "reference":
        # The matrix of scores is written, read, written as weights and read again.
        matrix = (max(item, SUM_BYTES) if isinstance(item, int) else item) * sizes.cells
        lines = [_moved(line, matrix) for line in lines]
        extra = 2 * matrix
    if training:
        lines += _backward(workload, backend)
        extra = extra + workload.inputs + workload.outputs  # their gradients
    return Ledger(backend, tuple(lines), workload.inputs, workload.outputs, extra)


def feature_count(workload: Workload) -> Number:
    """Features that make the similarity a product: (d+p choose p) for (q·k + c)^p, (d+p-1 choose p) for (q·k)^p.

    >>> feature_count(Workload(Sizes(1, 1, 1, 9, 9, 64, 64), 81, 4, Polynomial(2)))
    2145
    """
    similarity, width = workload.similarity, workload.sizes.width
    if workload.features is not None:
        return workload.features
    power = similarity if isinstance(similarity, Polynomial) else getattr(similarity, "map", None)
    degree, offset = getattr(power, "degree", None), getattr(power, "offset", None)
    if degree is not None and offset is not None:
        top, result = (width if offset else width - 1), 1
        for i in range(1, degree + 1):
            product = result * (top + i)
            # Exact at every step: the product of i consecutive integers is a multiple of i!.
            result = product // i if isinstance(product, int) else product / i
        return result
    if getattr(power, "__name__", "") in ELEMENTWISE_MAPS:
        return width
    counts = getattr(power, "features", None)
    if callable(counts) and isinstance(width, int):
        return counts(width)
    hint = "pass it as count(..., features=256)"
    raise OptionError(complaint("features", "None", f"the number of features of {similarity!r}", hint))


def _features(workload: Workload) -> list[Line]:
    """The features of every query and key; random features take a product with their directions first."""
    made = (workload.rows + workload.keys) * feature_count(workload)
    return [*_projected_features("projection of features", workload), Line("features", flops=made)]


def _projected_features(name: str, workload: Workload) -> list[Line]:
    similarity = workload.similarity
    if not isinstance(similarity, FeatureMap) or type(similarity.map).__name__ not in PROJECTING_MAPS:
        return []
    products = (workload.rows + workload.keys) * workload.sizes.width * feature_count(workload)
    directions = workload.item * workload.sizes.width * feature_count(workload)
    return [Line(name, flops=2 * products, read=directions, product=True)]


def _scores(workload: Workload) -> list[Line]:
    """q·k for each pair, or φ(q)·φ(k)."""
    width, lines = workload.sizes.width, []
    if isinstance(workload.similarity, FeatureMap):
        width, lines = feature_count(workload), _features(workload)
    read = workload.query_bytes + workload.key_bytes
    return [*lines, Line("scores", flops=2 * workload.pairs * width, read=read, product=True)]


def _weights(workload: Workload) -> list[Line]:
    """From scores to weights, before the division by their sum."""
    pairs, rows, similarity = workload.pairs, workload.rows, workload.similarity
    if similarity.picks_one_key:
        return [Line("largest", flops=pairs)]
    flops: dict[str, Number] = {}
    if isinstance(similarity, Softmax):
        softcap = {} if similarity.softcap is None else {"softcap": 3 * pairs}  # divide, tanh, multiply
        decay = {} if similarity.log_decay is None else {"decay": 2 * pairs}  # a difference of sums, added
        flops = {"scale": pairs, **softcap, **decay, "largest": pairs, "exponentials": 2 * pairs}  # subtract, exp
    elif isinstance(similarity, Sigmoid):
        biased = {} if similarity.bias is None else {"bias": pairs}
        flops = {"scale": pairs, **biased, "exponentials": 3 * pairs}  # exp, add, divide
    elif isinstance(similarity, Polynomial):
        # The offset is added, then degree − 1 multiplications.
        flops = {"power": (similarity.degree - (similarity.offset == 0)) * pairs}
    if similarity.normalizes:
        flops["sum"] = pairs
    if isinstance(similarity, Softmax) and similarity.sink is not None:
        flops["sink"] = 3 * rows  # subtract, exp, add
    return [Line(name, flops=count) for name, count in flops.items()]


def _values(workload: Workload, backend: str) -> list[Line]:
    width, out = workload.sizes.width_v, workload.outputs
    if workload.similarity.picks_one_key:
        return [Line("gather", read=workload.item * workload.rows * width, written=out)]
    # Dividing outputs takes fewer operations than dividing weights; the reference divides its matrix of weights.
    quotients = workload.pairs if backend == "reference" else workload.rows * width
    weighted = Line("weighted values", flops=2 * workload.pairs * width, read=workload.value_bytes, product=True)
    return [weighted, Line("quotient", flops=quotients if workload.similarity.normalizes else 0, written=out)]


def _moved(line: Line, matrix: Number) -> Line:
    """A line of `reference` with its reads and writes of the matrix of scores."""
    written = {"scores": matrix, "exponentials": matrix, "power": matrix}
    read = {"largest": matrix, "exponentials": matrix, "power": matrix, "sum": matrix, "weighted values": matrix}
    return replace(line, read=line.read + read.get(line.name, 0), written=line.written + written.get(line.name, 0))


def _backward(workload: Workload, backend: str) -> list[Line]:
    """dP = dO·Vᵀ, dS = P∘(dP − rowsum), dQ = dS·K, dK = dSᵀ·Q, dV = Pᵀ·dO; scores again unless they were kept."""
    sizes, pairs, item = workload.sizes, workload.pairs, workload.item
    gradient = Line("derivative of the answer", read=workload.outputs)
    if workload.similarity.picks_one_key:
        return [gradient, Line("dV", flops=workload.rows * sizes.width_v, written=item * sizes.value_numbers)]
    width = feature_count(workload) if isinstance(workload.similarity, FeatureMap) else sizes.width
    lines = [gradient]
    if backend != "reference":
        again = [
            line for line in [*_scores(workload), *_weights(workload)] if line.name not in ("largest", "sum", "sink")
        ]
        lines += [Line(f"{line.name} again", line.flops, line.read, product=line.product) for line in again]
    by_query, by_key = item * sizes.query_numbers, item * sizes.key_numbers
    return [
        *lines,
        Line("dP", flops=2 * pairs * sizes.width_v, read=workload.value_bytes, product=True),
        Line("dV", flops=2 * pairs * sizes.width_v, written=item * sizes.value_numbers, product=True),
        Line("dS", flops=2 * workload.rows * sizes.width_v + 3 * pairs, read=workload.outputs),
        Line("dQ", flops=2 * pairs * width, read=workload.key_bytes, written=by_query, product=True),
        Line("dK", flops=2 * pairs * width, read=workload.query_bytes, written=by_key, product=True),
        *_projected_features("through the projection of features", workload),
    ]


def _linear(workload: Workload, training: bool) -> Ledger:
    """Each key is added to features × (width_v + 1) sums once; each query reads them once."""
    sizes, item, features = workload.sizes, workload.item, feature_count(workload)
    wide = sizes.width_v + 1 if workload.similarity.normalizes else sizes.width_v
    by_keys, by_queries = 2 * workload.keys * features * wide, 2 * workload.rows * features * wide
    state = SUM_BYTES * sizes.batch * sizes.heads_kv * features * wide
    keys_values = workload.key_bytes + workload.value_bytes
    quotients = workload.rows * sizes.width_v if workload.similarity.normalizes else 0
    lines = [
        *_features(workload),
        Line("sums over the keys", flops=by_keys, read=keys_values, product=True),
        Line("answers from the sums", flops=by_queries, read=workload.query_bytes, product=True),
        Line("quotient", flops=quotients, written=workload.outputs),
    ]
    extra, gradients = state, item * (sizes.query_numbers + sizes.key_numbers)
    if training:
        lines += [
            Line("derivative of the answer", flops=3 * quotients, read=2 * workload.outputs),
            Line("sums again", flops=by_keys, read=keys_values, product=True),
            Line("dφ(Q)", flops=by_queries, read=workload.query_bytes, product=True),
            Line("sums over the queries", flops=by_queries, read=workload.query_bytes, product=True),
            Line("dφ(K)", flops=by_keys, read=workload.key_bytes, product=True),
            Line("dV", flops=by_keys, written=item * sizes.value_numbers, product=True),
            Line("through the features", flops=2 * (workload.rows + workload.keys) * features, written=gradients),
            *_projected_features("through the projection of features", workload),
        ]
        extra = 2 * state + workload.inputs + workload.outputs
    return Ledger("linear", tuple(lines), workload.inputs, workload.outputs, extra)


def _counted_state(
    workload: Workload, state: AnyState | type[AnyState], mask: Mask | None, backend: str, training: bool
) -> Ledger:
    """The recurrence: every key changes the state, every query reads it."""
    check_choice("backend", backend, ("auto", "linear", "reference"))
    if not workload.similarity.is_product or (state.rule == "delta" and workload.similarity.normalizes):
        wanted = "a similarity with features, and without a normalizer for a delta rule"
        raise OptionError(complaint("similarity", f"{workload.similarity!r} with state=", wanted))
    if not all(isinstance(part, Causal | Padding | Segments) for part in (() if mask is None else mask.parts())):
        raise OptionError(complaint("mask", repr(mask), "None, Causal(), Padding or Segments with state="))
    sizes, item, features = workload.sizes, workload.item, feature_count(workload)
    columns = sizes.width_v + 1 if workload.similarity.normalizes else sizes.width_v
    kind = state if isinstance(state, type) else type(state)
    gates = getattr(state, "log_gate", None)
    wide = 2 in kind.gate_axes and (1 not in kind.gate_axes or getattr(gates, "ndim", 3) == 4)
    per_key = (features if wide else 1 if kind.gate_axes else 0) + int(kind.rule == "delta")
    gated = kind is not Delta
    flops = state_flops(workload.rows, workload.keys, features, columns, kind.rule, gated)
    read = {"sums over the keys": workload.key_bytes + workload.value_bytes}
    read |= {"gates": item * workload.keys * per_key, "answers from the state": workload.query_bytes}
    if not gated:
        read["corrections"] = read.pop("gates")
    lines = [*_features(workload)]
    lines += [Line(name, flops=work, read=read.get(name, 0), product=name != "gates") for name, work in flops.items()]
    quotients = workload.rows * sizes.width_v if workload.similarity.normalizes else 0
    lines.append(Line("quotient", flops=quotients, written=workload.outputs))
    held = SUM_BYTES * sizes.batch * sizes.heads_kv * features * columns
    extra, inputs = held, workload.inputs + item * workload.keys * per_key
    if training:  # each product of two factors has two products as its derivative, and the states are computed again
        again = [(name, work) for name, work in flops.items() if name != "answers from the state"]
        lines += [Line(f"{name}, again", flops=n, read=read.get(name, 0), product=name != "gates") for name, n in again]
        times = {"gates": 3}  # a product, and a product that is summed
        more = ((f"derivative of the {name}", times.get(name, 2) * n, name != "gates") for name, n in flops.items())
        lines += [Line(name, flops=n, product=product) for name, n, product in more]
        lines += [Line("derivative of the answer", flops=3 * quotients, read=2 * workload.outputs, written=inputs)]
        lines += [Line("through the features", flops=2 * (workload.rows + workload.keys) * features)]
        lines += _projected_features("through the projection of features", workload)
        extra = 2 * held + inputs + workload.outputs
    return Ledger("linear", tuple(lines), inputs, workload.outputs, extra)


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

    What can stay near the cores is not written to memory. Sizes are integers, symbols or names of symbols.

    Args:
        len_q, len_k: new tokens that become queries, and keys and values.
        kv_heads: key/value heads; `heads` by default.
        head_width: d_model / heads by default.
        past: keys and values already in a cache, to which the new ones are appended; None: no cache.
        pairs: attended pairs over batch and heads; all by default.
        item, cache_item: bytes per number, and per cached number.
        training: whether to count the backward pass too.
        state: as of `qkv.attention`; its class is enough, and has a gate for each token, `KDA` for each feature too.

    Returns:
        A `Ledger` with the lines and their totals.

    >>> layer(1, "n_t", "n_s", "d", "h").theta(at_most=[("h", "d")])
    Θ(d²·n_s + d²·n_t + d·n_s·n_t)
    """
    batch, len_q, len_k, d_model, heads = as_sizes(batch, len_q, len_k, d_model, heads)
    kv_heads, head_width, past = as_sizes(heads if kv_heads is None else kv_heads, head_width, past)
    item, pairs, stored = as_sizes(item, pairs, item if cache_item is None else cache_item)
    lengths = {"batch": batch, "len_q": len_q, "len_k": len_k, "past": past}
    check_layer(d_model, heads, kv_heads, head_width, **lengths, item=item, cache_item=stored, pairs=pairs)
    width = quotient(d_model, heads) if head_width is None else head_width
    caches, past_keys = past is not None, 0 if past is None else past
    queries, keys = heads * width, kv_heads * width
    tokens_q, tokens_k = batch * len_q, batch * len_k
    shapes = {"query": (tokens_q, queries), "key": (tokens_k, keys), "value": (tokens_k, keys)}
    projections = [_projection(f"{x} projection", rows, d_model, out, item) for x, (rows, out) in shapes.items()]
    sizes = Sizes(batch, heads, kv_heads, len_q, len_k + past_keys, width, width)
    workload = Workload(sizes, sizes.cells if pairs is None else pairs, item, Softmax())
    attention = list(backend_ledger("blockwise", workload, training).lines)
    if caches:
        # Past keys and values are read from the cache in its format.
        cached, fresh = batch * keys * past_keys, item * tokens_k * keys
        values = stored * cached + fresh
        reads = {"scores": item * sizes.query_numbers + values, "weighted values": values}
        attention = [replace(line, read=reads.get(line.name, line.read)) for line in attention]
        projections[1:] = [replace(line, written=0) for line in projections[1:]]  # written to the cache only
        attention.insert(0, Line("append to the cache", written=2 * stored * tokens_k * keys))
    output = _projection("output projection", tokens_q, queries, d_model, item)
    lines = [*projections, *attention, output]
    if training:
        wide = (queries, keys, keys, queries)
        for made, out in zip((*projections, output), wide, strict=True):
            lines += _projection_backward(made, item * d_model * out)
    given = item * (tokens_q * d_model + 2 * d_model * (queries + keys)) + 2 * stored * batch * keys * past_keys
    extra = item * (2 * tokens_q * queries + 2 * tokens_k * keys)
    return Ledger("layer", tuple(lines), given, item * tokens_q * d_model, extra)


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
    """A decode step of a layer: one token for each sequence, with `past` tokens in the cache.

    Args:
        batch: Number of sequences; every size is a number, or a name for formulas.
        past: Tokens in the cache before the step.
        d_model: Width of a token between layers.
        heads: Query heads.
        kv_heads: Key/value heads, by default as many.
        head_width: Width of a head, by default d_model / heads.
        item: Bytes of a number.
        cache_item: Bytes of a number in the cache, by default `item`.

    Returns:
        A `Ledger` with the lines and their totals.

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
    """Check that heads divide d_model, that key/value heads divide heads, and that sizes are possible."""
    sizes = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads, "head_width": head_width}
    for name, given in (sizes | lengths).items():
        if given is not None and not is_symbol(given):
            as_size(name, given)
    check_heads(heads, kv_heads)
    if head_width is None and isinstance(d_model, int) and isinstance(heads, int) and (heads < 1 or d_model % heads):
        hint = "pass head_width= if it is not d_model / heads"
        raise ShapeError(complaint("heads", f"{heads} for d_model {d_model}", "a number that divides d_model", hint))


def _projection(name: str, tokens: Number, wide: Number, out: Number, item: Number) -> Line:
    """(tokens, wide) times (wide, out); weights are read once, whatever the batch."""
    return Line(name, 2 * tokens * wide * out, item * (tokens * wide + wide * out), item * tokens * out, product=True)


def _projection_backward(line: Line, weights: Number) -> list[Line]:
    """dx = dy·Wᵀ and dW = xᵀ·dy, two products of the same size."""
    given, made = line.read - weights, line.written
    return [
        Line(f"{line.name}: by its input", line.flops, made + weights, given, product=True),
        Line(f"{line.name}: by its weights", line.flops, given + made, weights, product=True),
    ]


def step_listing(
    batch: Number, past: Number, d_model: Number, heads: Number, kv_heads: Number | None = None, *, item: Number = 4
) -> Ledger:
    """A decode step as the exercise's listing computes it with torch operators: `torch.cat` copies the past, and logits
    and weights are written and read again.

    Args:
        batch: Number of sequences; every size is a number, or a name for formulas.
        past: Tokens in the cache before the step.
        d_model: Width of a token between layers.
        heads: Query heads.
        kv_heads: Key/value heads, by default as many.
        item: Bytes of a number.

    Returns:
        A `Ledger` with the lines and their totals.

    >>> step_listing("b", "n", "d", "h", 1).theta("traffic", at_most=[("h", "d")])
    Θ(b·h·n + b·d + b·d·n/h + d²)
    """
    batch, past, d_model, heads = as_sizes(batch, past, d_model, heads)
    (kv_heads,) = as_sizes(heads if kv_heads is None else kv_heads)
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
        # Largest, subtract, exp, sum, divide.
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
    """Multi-head attention as the exercise's listing computes it, line by line, for a batch. Rearranged tensors are
    counted as copies.

    Args:
        batch: Number of sequences; every size is a number, or a name for formulas.
        n_t: Tokens that ask.
        n_s: Tokens that are attended to.
        heads: Heads.
        d_head: Width of a head.
        item: Bytes of a number.

    Returns:
        A `Ledger` with the lines and their totals.

    >>> layer_listing("b", "n_t", "n_s", "h", "d_h").theta()
    Θ(b·d_h²·h²·n_s + b·d_h²·h²·n_t + b·d_h·h·n_s·n_t)
    """
    batch, n_t, n_s, heads, d_head = as_sizes(batch, n_t, n_s, heads, d_head)
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
