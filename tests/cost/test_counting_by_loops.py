"""`count` against loops over every pair: the work of a program that visits each allowed pair once.

Conventions: a multiplication and an addition are two flops, everything else one; bytes are those that must be read and
written at least once.
"""

import random
from collections import Counter
from math import comb

import numpy as np
import pytest
import sympy

import qkv
from qkv.cost import count, layer, layer_listing, step, step_listing, symbols
from qkv.errors import QkvError
from qkv.masks import Causal, Dense, Padding, Segments, Window

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def own_function(query, key):
    return query @ key.mT


# For each similarity: flops for a pair between the product q·k and the sum, by line.
PER_PAIR = {
    "softmax": (qkv.Softmax(), {"scale": 1, "largest": 1, "exponentials": 2}),
    # softcap·tanh(x / softcap): a division, a tanh, a product.
    "softcap": (qkv.Softmax(scale=0.3, softcap=5.0), {"scale": 1, "softcap": 3, "largest": 1, "exponentials": 2}),
    # (x + 1)^3: an addition and two products.
    "cubic": (qkv.Polynomial(degree=3), {"power": 3}),
    "quadratic": (qkv.Polynomial(), {"power": 2}),
    "own": (qkv.Similarity(own_function), {}),
}


def spread(array: np.ndarray, sizes: tuple[int, int, int, int]) -> np.ndarray:
    return np.broadcast_to(array, sizes)


def loops(allowed: np.ndarray, kv_heads: int, width: int, value_width: int, per_pair: dict[str, int], dense: bool):
    """Flops by line and the rows that are touched, one pair after the other."""
    flops: Counter[str] = Counter()
    queries, keys = set(), set()
    batch, heads, len_q, len_k = allowed.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(len_q):
                attended = 0
                for j in range(len_k):
                    if not allowed[b, h, i, j]:
                        continue
                    attended += 1
                    flops["scores"] += 2 * width
                    for line, each in per_pair.items():
                        flops[line] += each
                    flops["sum"] += 1
                    flops["weighted values"] += 2 * value_width
                    queries.add((b, h, i))
                    keys.add((b, h // (heads // kv_heads), j))
                # dense divides the weights, streaming the finished row.
                flops["quotient"] += attended if dense else value_width * bool(attended)
    return flops, queries, keys


def random_mask(draw: random.Random, batch: int, heads: int, len_q: int, len_k: int):
    """A mask of qkv and the same as an array of booleans that was made another way."""
    i, j = np.arange(len_q)[:, None], np.arange(len_k)[None, :]
    kind = draw.choice(["none", "causal", "window", "padding", "both", "either", "dense", "segments"])
    offset = draw.randint(-len_q - 2, len_k + 2)
    left, right = draw.choice([None, 0, 1, 4]), draw.choice([None, 0, 2, 3])
    lengths = [draw.randint(0, len_k) for _ in range(batch)]
    causal = j <= i + offset
    # No side is no bound.
    window = np.full((len_q, len_k), True)
    if left is not None:
        window &= j >= i + offset - left
    if right is not None:
        window &= j <= i + offset + right
    padding = np.array([[k < length for k in range(len_k)] for length in lengths])[:, None, None, :]
    if kind == "none":
        return None, np.full((1, 1, len_q, len_k), True)
    if kind == "causal":
        return Causal(offset=offset), causal
    if kind == "window" and (left, right) != (None, None):
        return Window(left=left, right=right, offset=offset), window
    if kind == "both":
        band = Causal(offset=offset) & Window(left=3) & Padding(lengths=lengths)
        return band, causal & (j >= i + offset - 3) & padding
    if kind == "either":
        # All queries attend to the first four keys: a sink with a causal mask.
        return Causal(offset=offset) | Dense(np.broadcast_to(j < 4, (len_q, len_k))), causal | (j < 4)
    if kind == "dense":
        chosen = np.array([draw.random() < 0.4 for _ in range(len_q * len_k)]).reshape(len_q, len_k)
        return Dense(chosen), chosen
    if kind == "segments":
        of_query, of_key = [draw.randint(0, 2) for _ in range(len_q)], [draw.randint(0, 2) for _ in range(len_k)]
        return Segments(of_query, of_key), np.equal.outer(of_query, of_key)
    return Padding(lengths=lengths), padding


def random_call(seed: int):
    draw = random.Random(seed)
    dimensions = draw.choice([2, 3, 4, 4, 4])
    batch = 1 if dimensions == 2 else draw.choice([2, 3])
    kv_heads, group = (1, 1) if dimensions < 4 else draw.choice([(1, 5), (3, 2), (5, 1), (2, 3)])
    len_q, len_k = draw.choice([(1, 13), (7, 7), (5, 11), (11, 3), (2, 1)])
    width, value_width = draw.choice([(17, 19), (19, 17), (23, 23)])
    heads = kv_heads * group
    full = [(batch, heads, len_q, width), (batch, kv_heads, len_k, width), (batch, kv_heads, len_k, value_width)]
    shapes = [{2: s[2:], 3: (s[0], *s[2:]), 4: s}[dimensions] for s in full]
    mask, array = random_mask(draw, batch, heads, len_q, len_k)
    return draw, shapes, mask, spread(np.asarray(array), (batch, heads, len_q, len_k)), kv_heads, width, value_width


@pytest.mark.parametrize("seed", range(120))
def test_flops_of_each_line_are_those_of_a_loop_over_the_pairs(seed):
    draw, shapes, mask, allowed, kv_heads, width, value_width = random_call(seed)
    similarity, per_pair = PER_PAIR[draw.choice(list(PER_PAIR))]
    backend = draw.choice(["reference", "blockwise"])
    ledger = count(*shapes, similarity=similarity, mask=mask, backend=backend)
    wanted, _, _ = loops(allowed, kv_heads, width, value_width, per_pair, backend == "reference")
    got = Counter({line.name: line.flops for line in ledger.lines})
    # Fully masked rows are tested below.
    del got["quotient"], wanted["quotient"]
    assert +got == +wanted
    assert ledger.products == 2 * (width + value_width) * int(allowed.sum())
    assert ledger.flops == ledger.products + ledger.elementwise
    assert isinstance(ledger.flops, int)


@pytest.mark.parametrize("seed", range(120, 160))
def test_argmax_compares_and_gathers(seed):
    draw, shapes, mask, allowed, _, width, _ = random_call(seed)
    ledger = count(*shapes, similarity=qkv.Argmax(), mask=mask, backend=draw.choice(["argmax", "reference", "auto"]))
    pairs = int(allowed.sum())
    assert ledger.products == 2 * width * pairs
    assert ledger.elementwise == pairs


@pytest.mark.parametrize("backend", ["blockwise", "reference"])
def test_quotient_of_a_row(backend):
    allowed = spread(np.tril(np.full((5, 11), True), 3), (3, 2, 5, 11))
    ledger = count((3, 2, 5, 17), (3, 2, 11, 17), (3, 2, 11, 19), mask=Causal(offset=3), backend=backend)
    flops, _, _ = loops(allowed, 2, 17, 19, {}, backend == "reference")
    assert ledger.line("quotient").flops == flops["quotient"]


def test_a_fully_masked_row_needs_nothing():
    """It is exactly 0: nothing is compared, added or divided for it."""
    shapes = (3, 2, 5, 17), (3, 2, 11, 17), (3, 2, 11, 19)
    assert count(*shapes, mask=Causal(offset=-5)).flops == 0
    assert count(*shapes, mask=Padding(lengths=[0, 0, 0])).flops == 0
    two_rows = count(*shapes, mask=Causal(offset=-3))
    assert two_rows.line("quotient").flops == 3 * 2 * 2 * 19


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("backend", ["blockwise", "reference", "native"])
def test_bytes_without_a_mask(dtype, backend):
    batch, heads, kv_heads, len_q, len_k, width, value_width = 2, 15, 5, 7, 11, 13, 17
    item = BYTES[dtype]
    shapes = (batch, heads, len_q, width), (batch, kv_heads, len_k, width), (batch, kv_heads, len_k, value_width)
    ledger = count(*shapes, backend=backend, dtype=dtype)
    q, k, v = (int(np.prod(shape)) * item for shape in shapes)
    out = batch * heads * len_q * value_width * item
    matrix = batch * heads * len_q * len_k * item
    assert ledger.inputs == q + k + v
    assert ledger.outputs == out
    if backend == "reference":
        # The matrix is written once as scores and once as weights at least, and read for largest, weights and values.
        assert ledger.read >= q + k + v + 3 * matrix
        assert ledger.written >= out + 2 * matrix
        assert ledger.extra >= matrix
    else:
        assert ledger.read == q + k + v
        assert ledger.written == out
        # A largest score and a sum for each query at most: no matrix, and no repeated head.
        assert ledger.extra <= 2 * batch * heads * len_q * max(item, 4)
    assert ledger.space == ledger.inputs + ledger.outputs + ledger.extra
    assert ledger.intensity == pytest.approx(ledger.flops / (ledger.read + ledger.written))
    assert all(isinstance(n, int) for n in (ledger.read, ledger.written, ledger.space, ledger.traffic))


@pytest.mark.parametrize("seed", range(200, 230))
def test_keys_without_queries_are_not_read(seed):
    """A window or a row's length saves reading: the reason that windows and paged caches exist."""
    _, shapes, mask, allowed, kv_heads, width, value_width = random_call(seed)
    _, queries, keys = loops(allowed, kv_heads, width, value_width, {}, False)
    ledger = count(*shapes, mask=mask, backend="blockwise", dtype="float16")
    rows = allowed.shape[0] * allowed.shape[1] * allowed.shape[2]
    keys_and_values = 2 * len(keys) * (width + value_width)
    # A fully masked query may be read or not.
    assert keys_and_values + 2 * len(queries) * width <= ledger.read <= keys_and_values + 2 * rows * width
    assert ledger.written == 2 * rows * value_width


def test_a_decoded_token_reads_its_window_and_not_the_past():
    shapes = (1, 3, 1, 5), (1, 3, 1009, 5), (1, 3, 1009, 7)
    ledger = count(*shapes, mask=Window(left=10, right=0, offset=1008), backend="native", dtype="float32")
    assert ledger.products == 2 * 3 * 11 * (5 + 7)
    assert ledger.read == 4 * (3 * 5 + 3 * 11 * (5 + 7))


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize(("similarity", "features"), [(qkv.Polynomial(), comb(7 + 2, 2)), (None, 29)])
def test_linear_sums_over_keys_once_for_each_head_of_keys(group, similarity, features):
    similarity = similarity or qkv.FeatureMap(own_function)
    batch, kv_heads, len_q, len_k, width, value_width = 2, 5, 11, 13, 7, 17
    heads = group * kv_heads
    shapes = (batch, heads, len_q, width), (batch, kv_heads, len_k, width), (batch, kv_heads, len_k, value_width)
    ledger = count(*shapes, similarity=similarity, backend="linear", features=features)
    # φ(k) times the value and times the 1 below the fraction, for each key; the same with φ(q) for each query.
    sums, answers = 0, 0
    for _ in range(batch):
        sums += kv_heads * len_k * 2 * features * (value_width + 1)
        answers += heads * len_q * 2 * features * (value_width + 1)
    assert ledger.products == sums + answers
    assert ledger.extra >= batch * kv_heads * features * (value_width + 1) * 4
    assert ledger.line("quotient").flops == batch * heads * len_q * value_width


def test_homogeneous_polynomials_have_fewer_features():
    """(q·k)^3 of 7 coordinates: monomials of degree 3 exactly, C(7 + 2, 3) = 84 and not C(7 + 3, 3) = 120."""
    shapes = (11, 7), (13, 7), (13, 17)
    ledger = count(*shapes, similarity=qkv.Polynomial(degree=3, offset=0.0), backend="linear")
    assert ledger.products == 2 * 84 * 18 * (11 + 13)


def test_linear_counts_only_keys_that_are_there():
    """Per-row lengths: a key beyond its row's length enters no sum."""
    shapes = (2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13)
    ledger = count(*shapes, similarity=qkv.Polynomial(), mask=Padding(lengths=[4, 11]), backend="linear")
    assert ledger.line("sums over the keys").flops == 3 * (4 + 11) * 2 * 36 * 14


@pytest.mark.parametrize("mask", [Window(left=2, right=1, offset=0), Segments([0, 0, 0, 1, 1], [0, 0, 0, 1, 1])])
def test_linear_is_refused_where_one_sum_cannot_serve_every_query(mask):
    """`attention` refuses these: a count of an algorithm that does not exist would be a lie."""
    with pytest.raises(QkvError):
        count((5, 3), (5, 3), (5, 7), similarity=qkv.Polynomial(), mask=mask, backend="linear")


def test_a_map_without_normalisation_has_no_sum_and_no_quotient():
    shapes = (5, 7), (11, 7), (11, 13)
    plain = qkv.FeatureMap(qkv.features.relu, normalize=False)
    streaming = count(*shapes, similarity=plain, backend="blockwise")
    assert streaming.products == 2 * 55 * (7 + 13)
    assert streaming.elementwise == (5 + 11) * 7
    assert count(*shapes, similarity=plain, backend="linear").products == 2 * 7 * 13 * (5 + 11)


@pytest.mark.parametrize("backend", ["blockwise", "reference"])
def test_training_is_five_products_more_or_four(backend):
    """dP, dV, dQ and dK, and without the matrix the scores once more: FlashAttention's two and a half times."""
    width, value_width, pairs = 7, 13, 2 * 3 * sum(range(1, 12))
    shapes = (2, 3, 11, width), (2, 3, 11, width), (2, 3, 11, value_width)
    forward = count(*shapes, mask=Causal(), backend=backend)
    both = count(*shapes, mask=Causal(), backend=backend, training=True)
    assert forward.products == 2 * pairs * (width + value_width)
    backward = 2 * pairs * (2 * width + 2 * value_width + (width if backend == "blockwise" else 0))
    assert both.products - forward.products == backward
    assert both.written - forward.written >= sum(int(np.prod(shape)) for shape in shapes) * 4


@pytest.mark.parametrize("part", ["query", "key", "value", "output"])
def test_derivatives_of_a_projection_move_what_they_must(part):
    """y = x·W: by x reads dy and W, writes dx; by W reads x and dy, writes dW. Each is as many flops as y itself."""
    batch, len_q, len_k, d_model, heads, kv_heads, head = 2, 5, 7, 33, 6, 3, 13
    ledger = layer(batch, len_q, len_k, d_model, heads, kv_heads, head_width=head, item=4, training=True)
    rows = batch * (len_k if part in ("key", "value") else len_q)
    inner = head * (kv_heads if part in ("key", "value") else heads)
    given, made, matrix = rows * d_model * 4, rows * inner * 4, d_model * inner * 4
    if part == "output":
        given, made = made, given
    forward = ledger.line(f"{part} projection")
    assert (forward.read, forward.written) == (given + matrix, made)
    by_input = ledger.line(f"{part} projection: by its input")
    assert (by_input.read, by_input.written) == (made + matrix, given)
    by_weights = ledger.line(f"{part} projection: by its weights")
    assert (by_weights.read, by_weights.written) == (given + made, matrix)
    assert forward.flops == by_input.flops == by_weights.flops == 2 * rows * d_model * inner


def substituted(expression, numbers):
    return int(sympy.sympify(expression).subs(numbers))


QUANTITIES = ("flops", "products", "elementwise", "read", "written", "extra", "space")
FACES = [
    (None, "blockwise", None, False),
    (None, "reference", None, False),
    (None, "native", None, False),
    (None, "blockwise", Causal(), False),
    (None, "reference", Causal(), True),
    (None, "blockwise", None, True),
    (None, "blockwise", Window(left=0, right=0), False),
    (qkv.Polynomial(), "linear", None, False),
    (qkv.Polynomial(), "linear", Causal(), True),
    (qkv.Polynomial(degree=3, offset=0.0), "blockwise", None, False),
    (qkv.Argmax(), "argmax", Causal(), False),
    (qkv.Softmax(softcap=3.0, sink=0.5), "blockwise", None, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("similarity", "backend", "mask", "training"), FACES)
def test_formula_with_numbers_put_in_is_the_count(similarity, backend, mask, training):
    b, h, g, n, s, d, m = names = symbols("b h g n s d m")
    keys = n if mask is not None else s
    options = {"similarity": similarity, "backend": backend, "mask": mask, "training": training}
    formula = count((b, h, n, d), (b, g, keys, d), (b, g, keys, m), **options)
    draw = random.Random(7)
    for _ in range(6):
        B, G, N, S, D, M = (draw.randint(1, 40) for _ in range(6))
        H = G * draw.randint(1, 5)
        numbers = dict(zip(names, (B, H, G, N, S, D, M), strict=True))
        K = N if mask is not None else S
        counted = count((B, H, N, D), (B, G, K, D), (B, G, K, M), **options)
        for quantity in QUANTITIES:
            assert substituted(getattr(formula, quantity), numbers) == getattr(counted, quantity), quantity
        assert [line.name for line in formula.lines] == [line.name for line in counted.lines]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 31])
def test_a_window_has_a_formula_that_holds_for_short_sequences_too(n):
    """Sizes are whole numbers from 1 on: a closed form that needs n > left says nothing true about n = 2."""
    size = symbols("n")
    window = Window(left=3, right=0)
    formula = count((size, 5), (size, 5), (size, 7), mask=window)
    assert substituted(formula.products, {size: n}) == count((n, 5), (n, 5), (n, 7), mask=window).products


def test_formulas_of_layers_and_steps_give_their_numbers():
    b, n, d, g, w = names = symbols("b n d g w")
    draw = random.Random(11)
    for _ in range(8):
        B, N, G, R, W = (draw.randint(1, 30) for _ in range(5))
        numbers = dict(zip(names, (B, N, G * R * W, G, W), strict=True))
        pairs = [
            (
                layer(b, n, n, d, R * g, g, head_width=w, past=3),
                layer(B, N, N, G * R * W, R * G, G, head_width=W, past=3),
            ),
            (step(b, n, R * g * w, R * g, g), step(B, N, G * R * W, R * G, G)),
            (step_listing(b, n, R * g * w, R * g, g), step_listing(B, N, G * R * W, R * G, G)),
            (layer_listing(b, n, 7, g, w), layer_listing(B, N, 7, G, W)),
        ]
        for formula, counted in pairs:
            for quantity in QUANTITIES:
                assert substituted(getattr(formula, quantity), numbers) == getattr(counted, quantity), quantity


@pytest.mark.parametrize(
    "call",
    [
        lambda: layer(2, -1, 7, 24, 6),
        lambda: layer(2, 5, -7, 24, 6),
        lambda: layer(-2, 5, 7, 24, 6),
        lambda: layer(2, 5, 7, 24, 6, past=-1),
        lambda: layer(2.0, 5, 7, 24, 6),
        lambda: layer(2, 5, 7, 24, 6, 4),
        lambda: layer(2, 5, 7, 25, 6),
        lambda: layer(2, 5, 7, 24, 0),
        lambda: step(2, -3, 24, 6),
        lambda: step(2, 3, 24, 6, 5),
        lambda: step_listing(2, -3, 24, 6),
        lambda: layer_listing(2, 5, -7, 3, 11),
        lambda: count((5, 3), (5, 4), (5, 3)),
        lambda: count((-5, 3), (5, 3), (5, 3)),
        lambda: count((1, 6, 5, 3), (1, 4, 5, 3), (1, 4, 5, 3)),
        lambda: count((5, 3), (7, 3), (7, 3), mask=Causal()),
    ],
)
def test_impossible_sizes_are_refused(call):
    with pytest.raises(QkvError):
        call()


def test_ten_to_the_fifteen_tokens_are_counted_exactly():
    n = 10**15
    ledger = count((1, 1, n, 3), (1, 1, n, 3), (1, 1, n, 5), mask=Causal())
    assert ledger.products == 2 * (3 + 5) * (n * (n + 1) // 2)
    assert ledger.read == 4 * n * (3 + 3 + 5)


def test_a_state_against_a_loop_over_tokens() -> None:
    """Each number of the state: multiplied by its gate, read for the correction, added to, and read by each query."""
    batch, heads, kv_heads, n, width, value_width = 2, 6, 3, 5, 7, 11
    shapes = [(batch, h, n, w) for h, w in ((heads, width), (kv_heads, width), (kv_heads, value_width))]
    names = ["b h n d", "b g n d", "b g n m"]
    sizes = {"b": batch, "h": heads, "g": kv_heads, "n": n, "d": width, "m": value_width}
    plain = qkv.FeatureMap(qkv.features.identity, normalize=False)
    for kind, gates in ((qkv.Decay, 0), (qkv.Gated, 1), (qkv.Delta, 0), (qkv.GatedDelta, 1), (qkv.KDA, width)):
        flops: Counter[str] = Counter()
        for _ in range(batch * kv_heads * n):
            for _ in range(value_width):
                for _ in range(width):
                    flops["gates"] += 0 if kind is qkv.Delta else 1
                    flops["corrections"] += 2 if kind.rule == "delta" else 0
                    flops["sums over the keys"] += 2
                    flops["answers from the state"] += 2 * heads // kv_heads
                flops["corrections"] += 2 if kind.rule == "delta" else 0  # a difference, and beta
        ledger = count(*shapes, similarity=plain, state=kind)
        found = {line.name: line.flops for line in ledger.lines if line.name in flops}
        assert found == {name: work for name, work in flops.items() if work}
        numbers = batch * kv_heads * n * (gates + (kind.rule == "delta"))
        assert ledger.inputs == 4 * (sum(np.prod(shape) for shape in shapes) + numbers)
        assert ledger.extra == 4 * batch * kv_heads * width * value_width
        for training in (False, True):
            formula, number = (
                count(*given, similarity=plain, state=kind, training=training).flops for given in (names, shapes)
            )
            assert formula.subs({symbols(letter): size for letter, size in sizes.items()}) == number
    with pytest.raises(QkvError, match="normalizer"):
        count(*shapes, similarity=qkv.FeatureMap(qkv.features.elu1), state=qkv.Delta)
    with pytest.raises(QkvError, match="Causal"):
        count(*shapes, similarity=plain, mask=Window(2), state=qkv.KDA)
