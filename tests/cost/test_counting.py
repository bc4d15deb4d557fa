"""Counts of calls, layers, decode steps and listings, against numbers and Θ-classes worked out by hand."""

import random

import numpy as np
import pytest
import sympy
import torch

import qkv
from qkv.cost import count, layer, layer_listing, step, step_listing, symbols
from qkv.cost.counting import item_bytes, sizes_of_shapes
from qkv.cost.ledger import Ledger
from qkv.errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError

N, D, M = symbols("n d m")


def test_theta_of_softmax() -> None:
    dense = count("n d", "n d", "n m", backend="reference")
    assert dense.theta() == N**2 * D + N**2 * M
    assert dense.theta("space") == N**2 + N * D + N * M
    assert count("n d", "n d", "n m").theta("space") == N * D + N * M, "without the matrix of scores"


def test_theta_of_the_quadratic_kernel() -> None:
    """(q·k + 1)² has (d+1)(d+2)/2 features: d³ for each token, and a state of d³."""
    linear = count("n d", "n d", "n d", similarity=qkv.Polynomial(2), backend="linear")
    assert linear.theta() == N * D**3
    assert linear.theta("space") == N * D + D**3
    by_scores = count("n d", "n d", "n d", similarity=qkv.Polynomial(2), backend="blockwise")
    assert by_scores.theta() == N**2 * D


def test_tensors_shapes_and_names_give_the_same_counts() -> None:
    q, k, v = torch.zeros(2, 6, 5, 7), torch.zeros(2, 3, 11, 7), torch.zeros(2, 3, 11, 13)
    of_tensors = count(q, k, v)
    assert of_tensors == count(q.shape, k.shape, v.shape) == count((2, 6, 5, 7), [2, 3, 11, 7], "2 3 11 13")
    named = count("b 6 q d", "b 3 k d", "b 3 k m")
    at = dict(zip(symbols("b q k d m"), (2, 5, 11, 7, 13), strict=True))
    assert named.flops.subs(at) == of_tensors.flops
    assert named.traffic.subs(at) == of_tensors.traffic


def test_half_precision_moves_half_the_bytes() -> None:
    q = torch.zeros(1, 3, 5, 7, dtype=torch.bfloat16)
    assert 2 * count(q, q, q).traffic == count((1, 3, 5, 7), (1, 3, 5, 7), (1, 3, 5, 7)).traffic


@pytest.mark.parametrize("offset", [-3, 0, 4, 6, 30])
def test_pairs_are_those_of_the_mask(offset: int) -> None:
    mask = qkv.Causal(offset=offset)
    found = count((2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13), mask=mask)
    cells = mask.population(2, 3, 5, 11)
    assert found.products == 2 * cells * (7 + 13)
    assert found.line("exponentials").flops == 2 * cells


def test_symbolic_masks_have_the_same_population() -> None:
    p = symbols("p")
    causal = count("n d", "n d", "n d", mask=qkv.Causal()).products
    assert causal.subs({N: 17, D: 5}) == count((17, 5), (17, 5), (17, 5), mask=qkv.Causal()).products
    window = qkv.Window(left=3, right=0)
    assert count("n d", "n d", "n d", mask=window).products.subs({N: 17, D: 5}) == (
        count((17, 5), (17, 5), (17, 5), mask=window).products
    )
    assert count("n d", "n d", "n d", mask=window).theta() == N * D
    late = count((N, D), (N + 6, D), (N + 6, D), mask=qkv.Causal(offset=6)).products
    assert late.subs({N: 5, D: 7}) == count((5, 7), (11, 7), (11, 7), mask=qkv.Causal(offset=6)).products
    with pytest.raises(QkvError, match="closed form"):
        count("n d", (p, D), (p, D), mask=qkv.Window(left=3, right=2, offset=1))


def test_auto_takes_linear_when_it_has_fewer_flops() -> None:
    power = qkv.Polynomial(2)
    assert count((9, 16), (9, 16), (9, 16), similarity=power).name == "blockwise"
    assert count((9999, 16), (9999, 16), (9999, 16), similarity=power).name == "linear"
    assert count("n d", "n d", "n d", similarity=qkv.Argmax()).name == "argmax"


def test_training_is_three_forward_passes_of_products_in_dense() -> None:
    shape = (2, 3, 5, 7)
    forward, trained = (count(shape, shape, shape, backend="reference", training=t) for t in (False, True))
    assert trained.products == 3 * forward.products
    streamed = count(shape, shape, shape, training=True)
    assert streamed.products == 3 * forward.products + forward.products // 2, "scores are made again"


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (((5, 7), (5, 8), (5, 8)), {}, "width"),
        (((1, 6, 5, 7), (1, 4, 5, 7), (1, 4, 5, 7)), {}, "divides"),
        (((5,), (5,), (5,)), {}, "dimensions"),
        (((5, -7), (5, -7), (5, -7)), {}, "negative"),
        (((5, 7.0), (5, 7.0), (5, 7.0)), {}, "whole numbers"),
        (((5, True), (5, True), (5, True)), {}, "whole numbers"),
        ((5, 5, 5), {}, "shape"),
        (((5, 7),) * 3, {"backend": "flash"}, "one of auto"),
        (((5, 7),) * 3, {"backend": "linear"}, "blockwise, reference"),
        (((5, 7),) * 3, {"dtype": "float8"}, "float32"),
        (((5, 7),) * 3, {"training": 1}, "True or False"),
        (((5, 7),) * 3, {"similarity": "softmax"}, "Softmax"),
        (((5, 7),) * 3, {"similarity": qkv.FeatureMap(lambda x: x), "backend": "linear"}, "features="),
        (((5, 7), (6, 7), (6, 7)), {"mask": qkv.Causal()}, "offset"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(QkvError, match=words):
        count(*arguments, **options)


def test_a_million_billion_tokens_do_not_overflow() -> None:
    shape = (1, 8, 10**15, 64)
    found = count(shape, shape, shape, mask=qkv.Causal())
    assert found.products == 4 * 64 * 8 * (10**15 * (10**15 + 1) // 2)


# batch 2, 6 query heads on 3 key/value heads, 5 queries, 7 keys of which the second row has 4, widths 11 and 13.
QUERY, KEY, VALUE = (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
MASK = qkv.Padding(lengths=[7, 4])
ROWS = 2 * 6 * 5
KEYS = 3 * (7 + 4)  # that a query attends to
PAIRS = 6 * 5 * (7 + 4)
CELLS = ROWS * 7
OUT = ROWS * 13
IN_Q, IN_K, IN_V = ROWS * 11, 2 * 3 * 7 * 11, 2 * 3 * 7 * 13
SEEN_K, SEEN_V = KEYS * 11, KEYS * 13


def exactly(ledger: Ledger, *lines: tuple[str, int, int, int, bool]) -> None:
    """Of numbers of two bytes, name by name: flops, bytes read, bytes written, and whether it is a product."""
    found = [(line.name, line.flops, line.read, line.written, line.product) for line in ledger.lines]
    assert found == list(lines)
    assert ledger.inputs == 2 * (IN_Q + IN_K + IN_V)
    assert ledger.outputs == 2 * OUT


def counted(backend: str, similarity: object = None, training: bool = False, mask=MASK, **options) -> Ledger:
    return count(
        QUERY,
        KEY,
        VALUE,
        similarity=similarity,
        mask=mask,
        backend=backend,
        dtype="bfloat16",
        training=training,
        **options,
    )


@pytest.mark.parametrize("backend", ["blockwise", "native"])
def test_softmax_without_the_matrix(backend: str) -> None:
    ledger = counted(backend, qkv.Softmax(softcap=30.0, sink=0.5))
    exactly(
        ledger,
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        ("scale", PAIRS, 0, 0, False),
        ("softcap", 3 * PAIRS, 0, 0, False),
        ("largest", PAIRS, 0, 0, False),
        ("exponentials", 2 * PAIRS, 0, 0, False),
        ("sum", PAIRS, 0, 0, False),
        ("sink", 3 * ROWS, 0, 0, False),
        ("weighted values", 2 * PAIRS * 13, 2 * SEEN_V, 0, True),
        ("quotient", OUT, 0, 2 * OUT, False),
    )
    assert ledger.name == backend
    assert ledger.extra == 2 * ROWS


def test_softmax_with_the_matrix() -> None:
    """Scores are float32 where the inputs are halves; each line moves them as often as it touches them."""
    ledger = counted("reference")
    exactly(
        ledger,
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 4 * CELLS, True),
        ("scale", PAIRS, 0, 0, False),
        ("largest", PAIRS, 4 * CELLS, 0, False),
        ("exponentials", 2 * PAIRS, 4 * CELLS, 4 * CELLS, False),
        ("sum", PAIRS, 4 * CELLS, 0, False),
        ("weighted values", 2 * PAIRS * 13, 2 * SEEN_V + 4 * CELLS, 0, True),
        ("quotient", PAIRS, 0, 2 * OUT, False),
    )
    assert ledger.extra == 2 * 4 * CELLS
    wide = count(QUERY, KEY, VALUE, backend="reference", dtype="float64")
    assert wide.extra == 2 * 8 * CELLS


def test_powers_with_the_matrix() -> None:
    exactly(
        counted("reference", qkv.Polynomial(3)),
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 4 * CELLS, True),
        ("power", 3 * PAIRS, 4 * CELLS, 4 * CELLS, False),
        ("sum", PAIRS, 4 * CELLS, 0, False),
        ("weighted values", 2 * PAIRS * 13, 2 * SEEN_V + 4 * CELLS, 0, True),
        ("quotient", PAIRS, 0, 2 * OUT, False),
    )
    assert counted("reference", qkv.Polynomial(3, offset=0.0)).line("power").flops == 2 * PAIRS


def test_the_largest_alone() -> None:
    ledger = counted("argmax", qkv.Argmax())
    exactly(
        ledger,
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        ("largest", PAIRS, 0, 0, False),
        ("gather", 0, 2 * OUT, 2 * OUT, False),
    )
    assert ledger.extra == 8 * ROWS, "an index of eight bytes for each query"
    trained = counted("argmax", qkv.Argmax(), training=True)
    exactly(
        trained,
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        ("largest", PAIRS, 0, 0, False),
        ("gather", 0, 2 * OUT, 2 * OUT, False),
        ("derivative of the answer", 0, 2 * OUT, 0, False),
        ("dV", OUT, 0, 2 * IN_V, False),
    )
    assert trained.extra == ledger.extra + ledger.inputs + ledger.outputs


def backward(width: int) -> list[tuple[str, int, int, int, bool]]:
    return [
        ("dP", 2 * PAIRS * 13, 2 * SEEN_V, 0, True),
        ("dV", 2 * PAIRS * 13, 0, 2 * IN_V, True),
        ("dS", 2 * OUT + 3 * PAIRS, 2 * OUT, 0, False),
        ("dQ", 2 * PAIRS * width, 2 * SEEN_K, 2 * IN_Q, True),
        ("dK", 2 * PAIRS * width, 2 * IN_Q, 2 * IN_K, True),
    ]


def test_derivatives_make_scores_again_unless_there_is_the_matrix() -> None:
    softmax = qkv.Softmax(softcap=30.0, sink=0.5)
    forward = counted("blockwise", softmax)
    trained = counted("blockwise", softmax, training=True)
    assert trained.lines[: len(forward.lines)] == forward.lines
    assert [(line.name, line.flops, line.read, line.written, line.product) for line in trained.lines[9:]] == [
        ("derivative of the answer", 0, 2 * OUT, 0, False),
        ("scores again", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        ("scale again", PAIRS, 0, 0, False),
        ("softcap again", 3 * PAIRS, 0, 0, False),
        ("exponentials again", 2 * PAIRS, 0, 0, False),
        *backward(11),
    ]
    assert trained.extra == forward.extra + forward.inputs + forward.outputs
    dense = counted("reference", softmax, training=True)
    names = [line.name for line in dense.lines]
    assert names[names.index("quotient") :] == ["quotient", "derivative of the answer", "dP", "dV", "dS", "dQ", "dK"]


def test_features_by_scores() -> None:
    """elu + 1 makes as many numbers as it gets; each is one operation."""
    similarity = qkv.FeatureMap(qkv.features.elu1)
    trained = counted("blockwise", similarity, training=True)
    exactly(
        trained,
        ("features", (ROWS + KEYS) * 11, 0, 0, False),
        ("scores", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        ("sum", PAIRS, 0, 0, False),
        ("weighted values", 2 * PAIRS * 13, 2 * SEEN_V, 0, True),
        ("quotient", OUT, 0, 2 * OUT, False),
        ("derivative of the answer", 0, 2 * OUT, 0, False),
        ("features again", (ROWS + KEYS) * 11, 0, 0, False),
        ("scores again", 2 * PAIRS * 11, 2 * (IN_Q + SEEN_K), 0, True),
        *backward(11),
    )
    own = counted("blockwise", qkv.FeatureMap(torch.exp), training=True, features=17)
    assert own.line("dQ").flops == own.line("scores").flops == 2 * PAIRS * 17


@pytest.mark.parametrize("normalize", [True, False])
def test_features_by_sums(normalize: bool) -> None:
    wide = 14 if normalize else 13
    quotients = OUT if normalize else 0
    by_keys, by_queries = 2 * KEYS * 11 * wide, 2 * ROWS * 11 * wide
    state = 4 * 2 * 3 * 11 * wide  # float32, for each batch row and key/value head
    similarity = qkv.FeatureMap(qkv.features.elu1, normalize=normalize)
    lines = [
        ("features", (ROWS + KEYS) * 11, 0, 0, False),
        ("sums over the keys", by_keys, 2 * (SEEN_K + SEEN_V), 0, True),
        ("answers from the sums", by_queries, 2 * IN_Q, 0, True),
        ("quotient", quotients, 0, 2 * OUT, False),
    ]
    forward = counted("linear", similarity)
    exactly(forward, *lines)
    assert forward.extra == state
    trained = counted("linear", similarity, training=True)
    exactly(
        trained,
        *lines,
        ("derivative of the answer", 3 * quotients, 2 * 2 * OUT, 0, False),
        ("sums again", by_keys, 2 * (SEEN_K + SEEN_V), 0, True),
        ("dφ(Q)", by_queries, 2 * IN_Q, 0, True),
        ("sums over the queries", by_queries, 2 * IN_Q, 0, True),
        ("dφ(K)", by_keys, 2 * SEEN_K, 0, True),
        ("dV", by_keys, 0, 2 * IN_V, True),
        ("through the features", 2 * (ROWS + KEYS) * 11, 0, 2 * (IN_Q + IN_K), False),
    )
    assert trained.extra == 2 * state + forward.inputs + forward.outputs
    assert trained.name == "linear"


@pytest.mark.parametrize(
    ("similarity", "features"),
    [
        (qkv.Polynomial(2), 78),  # 13 over 2
        (qkv.Polynomial(3), 364),  # 14 over 3
        (qkv.Polynomial(2, offset=0.0), 66),  # 12 over 2
        (qkv.FeatureMap(qkv.features.polynomial(2)), 78),
        (qkv.FeatureMap(qkv.features.relu), 11),
        (qkv.FeatureMap(qkv.features.identity), 11),
        (qkv.FeatureMap(qkv.features.squared), 11),
        (qkv.FeatureMap(qkv.features.positive_random(11, 24, seed=1)), 24),
    ],
    ids=repr,
)
def test_how_many_features_a_similarity_has(similarity: object, features: int) -> None:
    ledger = counted("linear", similarity)
    assert ledger.line("features").flops == (ROWS + KEYS) * features


def test_a_custom_map_needs_its_number_of_features() -> None:
    similarity = qkv.FeatureMap(torch.exp)
    with pytest.raises(OptionError, match=r"features: .*features=256"):
        counted("linear", similarity)
    assert counted("linear", similarity, features=5).line("features").flops == (ROWS + KEYS) * 5
    assert counted("linear", similarity, features="f").line("features").flops == (ROWS + KEYS) * symbols("f")
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(OptionError, match=r"^features: .*a whole number of at least 1"):
            counted("linear", similarity, features=wrong)
    assert counted("linear", similarity, features=1).line("features").flops == ROWS + KEYS


def test_sigmoid_has_no_sum_and_no_quotient() -> None:
    soft, sigmoid = (counted("blockwise", similarity) for similarity in (qkv.Softmax(), qkv.Sigmoid(bias=-3.0)))
    pairs = soft.line("largest").flops
    assert [line.name for line in sigmoid.lines] == [
        "scores",
        "scale",
        "bias",
        "exponentials",
        "weighted values",
        "quotient",
    ]
    assert sigmoid.line("exponentials").flops == 3 * pairs
    assert sigmoid.line("bias").flops == pairs
    assert sigmoid.line("quotient").flops == 0
    assert sigmoid.products == soft.products


def test_gates_are_subtracted_and_added_for_each_pair() -> None:
    plain, forgetting = (counted("blockwise", qkv.Softmax(log_decay=gates)) for gates in (None, torch.zeros(3)))
    assert forgetting.line("decay").flops == 2 * plain.line("largest").flops
    assert forgetting.flops - plain.flops == forgetting.line("decay").flops


BACKENDS_OF = {
    qkv.Softmax(): ("blockwise", "reference", "native"),
    qkv.Sigmoid(): ("blockwise", "reference", "native"),
    qkv.Argmax(): ("argmax", "reference"),
    qkv.Polynomial(2): ("blockwise", "reference", "linear"),
    qkv.FeatureMap(qkv.features.elu1): ("blockwise", "reference", "linear"),
    qkv.Similarity(torch.cdist): ("blockwise", "reference"),
}


@pytest.mark.parametrize("similarity", BACKENDS_OF, ids=repr)
def test_each_similarity_has_its_backends(similarity: object) -> None:
    for backend in ("blockwise", "reference", "linear", "argmax", "native"):
        if backend in BACKENDS_OF[similarity]:
            assert counted(backend, similarity).name == backend
        else:
            with pytest.raises(OptionError, match="one of " + ", ".join(BACKENDS_OF[similarity])):
                counted(backend, similarity)
    with pytest.raises(OptionError, match="one of auto, reference, blockwise, linear, argmax, native"):
        counted("fast", similarity)


def test_linear_takes_causal_and_padding_only() -> None:
    similarity, shape = qkv.FeatureMap(qkv.features.elu1), (1, 1, 999, 4)
    for mask in (None, qkv.Causal(), qkv.Padding(lengths=[900]), qkv.Causal() & qkv.Padding(lengths=[900])):
        assert count(shape, shape, shape, similarity=similarity, mask=mask).name == "linear"
    for mask in (qkv.Window(left=2, right=0), qkv.Causal() & qkv.Window(left=2)):
        assert count(shape, shape, shape, similarity=similarity, mask=mask).name == "blockwise"
        with pytest.raises(OptionError, match=r"one of blockwise, reference"):
            count(shape, shape, shape, similarity=similarity, mask=mask, backend="linear")


def test_auto_takes_linear_from_the_length_at_which_it_has_fewer_flops() -> None:
    similarity = qkv.FeatureMap(qkv.features.elu1)

    def at(n: int, backend: str) -> Ledger:
        return count((n, 8), (n, 8), (n, 8), similarity=similarity, backend=backend)

    chosen = [at(n, "auto").name for n in range(1, 30)]
    assert set(chosen) == {"linear", "blockwise"}
    for n, name in enumerate(chosen, start=1):
        assert (name == "linear") == (at(n, "linear").flops < at(n, "blockwise").flops)
    assert count("n 8", "n 8", "n 8", similarity=similarity).name == "linear"


def test_native_has_no_gradient() -> None:
    with pytest.raises(OptionError, match=r"^training: .*backend='blockwise' has one"):
        counted("native", training=True)
    with pytest.raises(OptionTypeError, match=r"^training: "):
        counted("reference", training=1)


def test_sizes_of_two_three_and_four_axes() -> None:
    assert tuple(sizes_of_shapes((5, 11), (7, 11), (7, 13))) == (1, 1, 1, 5, 7, 11, 13)
    assert tuple(sizes_of_shapes((2, 5, 11), (2, 7, 11), (2, 7, 13))) == (2, 1, 1, 5, 7, 11, 13)
    assert tuple(sizes_of_shapes(QUERY, KEY, VALUE)) == (2, 6, 3, 5, 7, 11, 13)
    assert tuple(sizes_of_shapes("2,6,5,11", "2 3 7 11", torch.zeros(VALUE))) == (2, 6, 3, 5, 7, 11, 13)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((11,), (11,), (11,)), r"^query: got 1 dimensions"),
        (((1,) * 5,) * 3, r"^query: got 5 dimensions"),
        ((QUERY, KEY[1:], VALUE), r"^key: got 3 dimensions .* wanted 4"),
        ((QUERY, KEY, VALUE[1:]), r"^value: got 3 dimensions .* wanted 4"),
        ((7, KEY, VALUE), r"^query: got 7, wanted a tensor or a shape"),
        ((QUERY, None, VALUE), r"^key: got None, wanted a tensor or a shape"),
        ((QUERY, KEY, {1}), r"^value: got \{1\}, wanted a tensor or a shape"),
        ((QUERY, (2, 3, 7.0, 11), VALUE), r"^key: .*whole numbers"),
        ((QUERY, (True, 3, 7, 11), VALUE), r"^key: .*whole numbers"),
        ((QUERY, KEY, (2, 3, -7, 13)), r"^value: .*not negative"),
    ],
)
def test_invalid_shapes_are_refused(shapes: tuple, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        count(*shapes)


def test_no_keys_need_nothing() -> None:
    empty = count((1, 1, 5, 8), (1, 1, 0, 8), (1, 1, 0, 8))
    assert empty.flops == 0
    assert empty.read == 0
    assert empty.written == 4 * 5 * 8


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float64", 8),
        ("float32", 4),
        (torch.float16, 2),
        ("bfloat16", 2),
        ("int8", 1),
        (1, 1),
        (3, 3),
        (sympy.Symbol("s"), None),
    ],
)
def test_bytes_of_a_number(dtype: object, size: int | None) -> None:
    assert item_bytes(dtype) == (dtype if size is None else size)


@pytest.mark.parametrize("dtype", ["float", 0, -4, True, 4.0, torch.int64])
def test_an_invalid_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(DtypeError, match=r"^dtype: .*bytes per number"):
        item_bytes(dtype)


def test_bytes_of_a_number_may_have_a_name() -> None:
    size = sympy.Symbol("s", positive=True)
    assert count((5, 8), (5, 8), (5, 8), backend="reference", dtype=size).extra == 2 * size * 25


def test_a_mask_of_three_axes_belongs_to_shapes_of_three() -> None:
    keep = torch.ones(2, 5, 7, dtype=torch.bool)
    keep[1, :, 3:] = False
    ledger = count((2, 5, 8), (2, 7, 8), (2, 7, 8), mask=qkv.Dense(keep))
    assert ledger.line("largest").flops == 5 * 7 + 5 * 3


def test_a_tensors_own_dtype_counts_and_a_given_one_wins() -> None:
    q = torch.zeros(5, 8, dtype=torch.float64)
    assert count(q, q, q).outputs == 8 * 5 * 8
    assert count(q, q, q, dtype="float16").outputs == 2 * 5 * 8
    assert count((5, 8), (5, 8), (5, 8)).outputs == 4 * 5 * 8


def test_closed_forms_of_masks_are_their_populations() -> None:
    n, d = symbols("n d")
    for past in (0, 3):
        formula = count((n, d), (n + past, d), (n + past, d), mask=qkv.Causal(offset=past)).line("scores").flops
        for length in (1, 2, 9):
            shape = (1, 1, length, length + past)
            assert formula.subs({n: length, d: 1}) == 2 * qkv.Causal(offset=past).population(*shape)
    for left in (0, 1, 4):
        for offset in (None, 0):
            mask = qkv.Window(left=left, right=0, offset=offset)
            formula = count("n d", "n d", "n d", mask=mask).line("scores").flops
            for length in (1, 3, 9):
                assert formula.subs({n: length, d: 1}) == 2 * mask.population(1, 1, length, length)
    for mask in (
        qkv.Causal(offset=1),
        qkv.Window(right=0),
        qkv.Window(left=2, right=1),
        qkv.Window(left=2, right=0, offset=1),
        qkv.Padding(lengths=[3]),
    ):
        with pytest.raises(OptionError, match=r"^mask: .*closed form"):
            count("n d", "n d", "n d", mask=mask)
    for mask in (qkv.Causal(offset=2), qkv.Window(left=2, right=0)):
        with pytest.raises(OptionError, match=r"^mask: .*closed form"):
            count("n d", "m d", "m d", mask=mask)


def test_a_ledger_prints_its_lines() -> None:
    shown = str(count(QUERY, KEY, VALUE))
    for line in ("scores", "exponentials", "weighted values", "quotient"):
        assert line in shown


b, n, d, h, g, n_t, n_s, d_h = symbols("b n d h g n_t n_s d_h")
HEADS = [(h, d)]


def test_theta_of_a_layer() -> None:
    assert layer(1, n_t, n_s, d, h).theta(at_most=HEADS) == n_t * d**2 + n_s * d**2 + n_t * n_s * d


def test_theta_of_the_layer_listing_with_a_batch() -> None:
    listing = layer_listing(b, n_t, n_s, h, d_h)
    assert listing.theta() == b * (n_t * d_h**2 * h**2 + n_s * d_h**2 * h**2 + n_t * n_s * d_h * h).expand()
    by_line = {line.name.split(":")[0]: line for line in listing.lines}
    assert by_line["2"].flops == 2 * b * n_t * (h * d_h) ** 2
    assert listing.line("15: softmax").flops == 5 * b * h * n_t * n_s


def test_the_bottleneck_of_the_layer_listing_moves() -> None:
    """Wide and short: the projections. Narrow and long: scores and weighted values."""

    def largest(tokens: int, width: int) -> set[str]:
        lines = sorted(layer_listing(1, tokens, tokens, 4, width).lines, key=lambda line: -line.flops)
        return {line.name.split(": ")[1] for line in lines[:2]}

    assert largest(8, 1024) <= {"query projection", "key projection", "value projection", "output projection"}
    assert largest(8192, 4) == {"scores", "weighted values"}


def test_theta_of_a_decode_step() -> None:
    for kv_heads in (h, 1):
        assert step(b, n, d, h, kv_heads).theta(at_most=HEADS) == b * d**2 + b * n * d
    assert step(b, n, d, h, h).theta("traffic", at_most=HEADS) == d**2 + b * n * d
    assert step(b, n, d, h, 1).theta("traffic", at_most=HEADS) == d**2 + b * d + b * n * d / h


def test_grouped_heads_stand_between() -> None:
    assert step(b, n, d, h, g).theta("traffic", at_most=[*HEADS, (g, h)]) == d**2 + b * d + b * n * d * g / h


def test_the_listing_also_moves_the_logits_and_copies_the_past() -> None:
    listed = step_listing(b, n, d, h, 1)
    assert listed.theta("traffic", at_most=HEADS) == d**2 + b * d + b * n * d / h + b * h * n
    copied = listed.line("new_K = cat(prev_K, k)")
    assert copied.read == copied.written == 4 * b * (n + 1) * d / h
    assert listed.theta(at_most=HEADS) == step(b, n, d, h, 1).theta(at_most=HEADS)


def test_the_ratio_of_memory_to_work_is_shazeers() -> None:
    """For batch b and n up to d: n/d + 1/b with many key heads, 1/d + n/(d·h) + 1/b with one, up to constants."""
    for kv_heads, ratio in ((64, lambda n, b: n / 4096 + 1 / b), (1, lambda n, b: 1 / 4096 + n / (4096 * 64) + 1 / b)):
        for past, batch in ((64, 1), (64, 256), (1024, 256), (4096, 256)):
            found = step(batch, past, 4096, 64, kv_heads, item=1)
            assert 0.1 < found.traffic / found.products / ratio(past, batch) < 2.0


@pytest.mark.slow
def test_formulas_of_layers_give_their_numbers() -> None:
    made = random.Random(7)
    for _ in range(20):
        group, kv, width, batch, past, queries = (made.choice([1, 2, 3, 5, 7, 11, 13]) for _ in range(6))
        at = {b: batch, n: past, h: group * kv, g: kv, d: group * kv * width, n_t: queries, n_s: past, d_h: width}
        pairs = [
            (step(b, n, d, h, g), step(batch, past, at[d], at[h], kv)),
            (step_listing(b, n, d, h, g), step_listing(batch, past, at[d], at[h], kv)),
            (layer(b, n_t, n_s, d, h, g, training=True), layer(batch, queries, past, at[d], at[h], kv, training=True)),
            (layer_listing(b, n_t, n_s, h, d_h), layer_listing(batch, queries, past, at[h], width)),
        ]
        for formula, number in pairs:
            for quantity in ("flops", "products", "read", "written", "extra", "space"):
                value = getattr(number, quantity)
                assert isinstance(value, int)
                assert getattr(formula, quantity).subs(at) == value, (formula.name, quantity)


def test_training_has_two_products_more_for_each_projection() -> None:
    forward, trained = layer(2, 5, 5, 12, 3), layer(2, 5, 5, 12, 3, training=True)

    def projections(ledger) -> int:
        return sum(line.flops for line in ledger.lines if "projection" in line.name)

    assert projections(trained) == 3 * projections(forward)


def test_a_cache_in_fewer_bytes_is_read_in_fewer() -> None:
    whole, eighth = step(3, 1000, 64, 4, 2, item=4), step(3, 1000, 64, 4, 2, item=4, cache_item=1)
    numbers = 2 * 3 * 2 * 16
    assert whole.traffic - eighth.traffic == 3 * numbers * 1000 + 3 * numbers
    assert whole.flops == eighth.flops


@pytest.mark.parametrize("sizes", [(1, 5, 64, 3), (1, 5, 64, 8, 3), (1, 5, 64, 0)])
def test_heads_that_do_not_divide_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(QkvError, match="divides"):
        step(*sizes)


def test_integers_of_other_libraries_do_not_overflow() -> None:
    plain = layer(1000, 4096, 4096, 4096, 32).flops
    found = layer(np.int32(1000), np.int16(4096), 4096, np.int64(4096), 32).flops
    assert found == plain
    assert type(found) is int


def test_the_cache_is_part_of_the_space() -> None:
    assert step(b, n, d, h, h).theta("space", at_most=HEADS) == d**2 + b * n * d


def test_the_projection_of_random_features_is_counted() -> None:
    """Torch's counter sees the products of φ(q) and φ(k) with the directions; elementwise work it does not count."""
    from torch.utils.flop_counter import FlopCounterMode

    phi = qkv.features.positive_random(width=7, count=11)
    query, key, value = torch.ones(2, 6, 5, 7), torch.ones(2, 3, 13, 7), torch.ones(2, 3, 13, 4)
    with FlopCounterMode(display=False) as counter:
        phi(query), phi(key)
    for backend in ("linear", "blockwise"):
        found = qkv.cost.count(query, key, value, similarity=qkv.FeatureMap(phi), backend=backend)
        assert found.line("projection of features").flops == counter.get_total_flops() == 2 * (60 + 78) * 7 * 11
        trained = qkv.cost.count(query, key, value, similarity=qkv.FeatureMap(phi), backend=backend, training=True)
        assert trained.line("through the projection of features").flops == counter.get_total_flops()
        elementwise = qkv.cost.count(
            query, key, value, similarity=qkv.FeatureMap(torch.exp), features=11, backend=backend
        )
        assert found.products - elementwise.products == counter.get_total_flops()
