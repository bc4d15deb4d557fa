"""The lines of attention, backend by backend: what each has to do with the pairs that the mask lets through."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import OptionError, complaint
from ..similarity import AnySimilarity, Argmax, FeatureMap, Polynomial, Softmax
from .ledger import Ledger, Line, Number
from .sizes import Sizes

ELEMENTWISE_MAPS = ("elu1", "relu", "identity", "squared")
SUM_BYTES = 4  # sums are float32 at least, whatever the inputs are
INDEX_BYTES = 8


class Asked(NamedTuple):
    """Sizes, pairs that attend (over batch and heads), bytes of a number, the similarity, its features if given; and of
    a mask: how many queries see a key, and how many keys are seen. None: all."""

    sizes: Sizes
    pairs: Number
    item: Number
    similarity: AnySimilarity
    features: Number | None = None
    seeing: Number | None = None
    seen: Number | None = None

    @property
    def inputs(self) -> Number:
        return self.item * (self.sizes.query_numbers + self.sizes.key_numbers + self.sizes.value_numbers)

    @property
    def outputs(self) -> Number:
        return self.item * self.sizes.out_numbers

    @property
    def rows(self) -> Number:
        """Queries of all heads that see a key: the others are 0, and nothing is done for them."""
        return self.sizes.rows if self.seeing is None else self.seeing

    @property
    def keys(self) -> Number:
        """Keys of all key/value heads that a query sees: the others need not be read."""
        return self.sizes.batch * self.sizes.heads_kv * self.sizes.len_k if self.seen is None else self.seen

    @property
    def query_bytes(self) -> Number:
        return self.item * self.rows * self.sizes.width

    @property
    def key_bytes(self) -> Number:
        return self.item * self.keys * self.sizes.width

    @property
    def value_bytes(self) -> Number:
        return self.item * self.keys * self.sizes.width_v

    @property
    def normalized(self) -> bool:
        """Whether there is a sum to divide by."""
        return not (isinstance(self.similarity, FeatureMap) and not self.similarity.normalize)


def forms_for(similarity: AnySimilarity) -> tuple[str, ...]:
    """The backends that compute a similarity; the first is what `auto` means where flops do not decide."""
    if isinstance(similarity, Argmax):
        return "argmax", "reference"
    if isinstance(similarity, Softmax):
        return "blockwise", "reference", "native"
    if isinstance(similarity, Polynomial | FeatureMap):
        return "blockwise", "reference", "linear"
    return "blockwise", "reference"


def needed(backend: str, asked: Asked, training: bool) -> Ledger:
    """Every line of a backend, and of its derivative where that is asked for."""
    if backend == "linear":
        return _linear(asked, training)
    sizes, item = asked.sizes, asked.item
    lines = [*_scores(asked), *_weights(asked), *_values(asked, backend)]
    held = item * sizes.rows if backend != "argmax" else INDEX_BYTES * sizes.rows
    if backend == "reference":
        # The matrix of scores is written, read, written as weights and read again.
        matrix = _arithmetic(item) * sizes.cells
        lines = [_moved(line, matrix) for line in lines]
        held = 2 * matrix
    if training:
        lines += _backward(asked, backend)
        held = held + asked.inputs + asked.outputs  # their derivatives
    return Ledger(backend, tuple(lines), asked.inputs, asked.outputs, held)


def feature_count(asked: Asked) -> Number:
    """How many features make the similarity a product: (d+p choose p) for (q·k + c)^p, (d+p-1 choose p) for (q·k)^p.

    >>> feature_count(Asked(Sizes(1, 1, 1, 9, 9, 64, 64), 81, 4, Polynomial(2)))
    2145
    """
    similarity, width = asked.similarity, asked.sizes.width
    if asked.features is not None:
        return asked.features
    power = similarity if isinstance(similarity, Polynomial) else getattr(similarity, "map", None)
    degree, offset = getattr(power, "degree", None), getattr(power, "offset", None)
    if degree is not None and offset is not None:
        top, result = (width if offset else width - 1), 1
        for i in range(1, degree + 1):
            product = result * (top + i)
            # Exact at every step: the product of i neighbours is a multiple of i!.
            result = product // i if isinstance(product, int) else product / i
        return result
    if getattr(power, "__name__", "") in ELEMENTWISE_MAPS:
        return width
    counts = getattr(power, "features", None)
    if callable(counts) and isinstance(width, int):
        return counts(width)
    hint = "count(..., features=256) says how many numbers your map makes of a vector"
    raise OptionError(complaint("features", "None", f"the number of features of {similarity!r}", hint))


def _scores(asked: Asked) -> list[Line]:
    """q·k for each pair, or φ(q)·φ(k)."""
    width, lines = asked.sizes.width, []
    if isinstance(asked.similarity, FeatureMap):
        width = feature_count(asked)
        lines.append(Line("features", flops=(asked.rows + asked.keys) * width))
    read = asked.query_bytes + asked.key_bytes
    return [*lines, Line("scores", flops=2 * asked.pairs * width, read=read, product=True)]


def _weights(asked: Asked) -> list[Line]:
    """From scores to weights that still have to be divided by their sum."""
    pairs, rows, similarity = asked.pairs, asked.rows, asked.similarity
    if isinstance(similarity, Argmax):
        return [Line("largest", flops=pairs)]
    lines = []
    if isinstance(similarity, Softmax):
        lines.append(Line("scale", flops=pairs))
        if similarity.softcap is not None:
            lines.append(Line("softcap", flops=3 * pairs))  # divide, tanh, multiply
        lines.append(Line("largest", flops=pairs))
        lines.append(Line("exponentials", flops=2 * pairs))  # subtract, exp
    elif isinstance(similarity, Polynomial):
        # The offset is added, and degree − 1 times there is something to multiply.
        lines.append(Line("power", flops=(similarity.degree - (similarity.offset == 0)) * pairs))
    if asked.normalized:
        lines.append(Line("sum", flops=pairs))
    if isinstance(similarity, Softmax) and similarity.sink is not None:
        lines.append(Line("sink", flops=3 * rows))  # subtract, exp, add
    return lines


def _values(asked: Asked, backend: str) -> list[Line]:
    width, out = asked.sizes.width_v, asked.outputs
    if isinstance(asked.similarity, Argmax):
        return [Line("gather", read=asked.item * asked.rows * width, written=out)]
    # Dividing the answers is cheaper than dividing the weights, unless there is a matrix of them.
    quotients = asked.pairs if backend == "reference" else asked.rows * width
    weighted = Line("weighted values", flops=2 * asked.pairs * width, read=asked.value_bytes, product=True)
    return [weighted, Line("quotient", flops=quotients if asked.normalized else 0, written=out)]


def _moved(line: Line, matrix: Number) -> Line:
    """What a line of `dense` reads and writes of the matrix of scores."""
    written = {"scores": matrix, "exponentials": matrix, "power": matrix}
    read = {"largest": matrix, "exponentials": matrix, "power": matrix, "sum": matrix, "weighted values": matrix}
    return Line(
        line.name,
        line.flops,
        line.read + read.get(line.name, 0),
        line.written + written.get(line.name, 0),
        line.product,
    )


def _backward(asked: Asked, backend: str) -> list[Line]:
    """dP = dO·Vᵀ, dS = P∘(dP − rowsum), dQ = dS·K, dK = dSᵀ·Q, dV = Pᵀ·dO; scores again where they were not kept."""
    sizes, pairs, item = asked.sizes, asked.pairs, asked.item
    gradient = Line("derivative of the answer", read=asked.outputs)
    if isinstance(asked.similarity, Argmax):
        return [gradient, Line("dV", flops=asked.rows * sizes.width_v, written=item * sizes.value_numbers)]
    width = feature_count(asked) if isinstance(asked.similarity, FeatureMap) else sizes.width
    lines = [gradient]
    if backend != "reference":
        again = [line for line in [*_scores(asked), *_weights(asked)] if line.name not in ("largest", "sum", "sink")]
        lines += [Line(f"{line.name} again", line.flops, line.read, product=line.product) for line in again]
    by_query, by_key = item * sizes.query_numbers, item * sizes.key_numbers
    return [
        *lines,
        Line("dP", flops=2 * pairs * sizes.width_v, read=asked.value_bytes, product=True),
        Line("dV", flops=2 * pairs * sizes.width_v, written=item * sizes.value_numbers, product=True),
        Line("dS", flops=2 * asked.rows * sizes.width_v + 3 * pairs, read=asked.outputs),
        Line("dQ", flops=2 * pairs * width, read=asked.key_bytes, written=by_query, product=True),
        Line("dK", flops=2 * pairs * width, read=asked.query_bytes, written=by_key, product=True),
    ]


def _linear(asked: Asked, training: bool) -> Ledger:
    """Each key is added to features × (width_v + 1) sums once, each query reads them once."""
    sizes, item, features = asked.sizes, asked.item, feature_count(asked)
    wide = sizes.width_v + 1 if asked.normalized else sizes.width_v
    by_keys, by_queries = 2 * asked.keys * features * wide, 2 * asked.rows * features * wide
    state = SUM_BYTES * sizes.batch * sizes.heads_kv * features * wide
    keys_values = asked.key_bytes + asked.value_bytes
    quotients = asked.rows * sizes.width_v if asked.normalized else 0
    lines = [
        Line("features", flops=(asked.rows + asked.keys) * features),
        Line("sums over the keys", flops=by_keys, read=keys_values, product=True),
        Line("answers from the sums", flops=by_queries, read=asked.query_bytes, product=True),
        Line("quotient", flops=quotients, written=asked.outputs),
    ]
    held = state
    if training:
        lines += [
            Line("derivative of the answer", flops=3 * quotients, read=2 * asked.outputs),
            Line("sums again", flops=by_keys, read=keys_values, product=True),
            Line("dφ(Q)", flops=by_queries, read=asked.query_bytes, product=True),
            Line("sums over the queries", flops=by_queries, read=asked.query_bytes, product=True),
            Line("dφ(K)", flops=by_keys, read=asked.key_bytes, product=True),
            Line("dV", flops=by_keys, written=item * sizes.value_numbers, product=True),
            Line(
                "through the features",
                flops=2 * (asked.rows + asked.keys) * features,
                written=item * (sizes.query_numbers + sizes.key_numbers),
            ),
        ]
        held = 2 * state + asked.inputs + asked.outputs
    return Ledger("linear", tuple(lines), asked.inputs, asked.outputs, held)


def _arithmetic(item: Number) -> Number:
    """Bytes of a score: float32 for half-precision inputs, the inputs' own otherwise."""
    return max(item, SUM_BYTES) if isinstance(item, int) else item
