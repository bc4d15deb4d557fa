"""Every line of every backend by name, in flops and bytes, beside what is written here by hand for one call."""

import pytest
import sympy
import torch

import qkv
from qkv.cost import count, symbols
from qkv.cost.counting import item_bytes, sizes_of_shapes
from qkv.cost.ledger import Ledger
from qkv.errors import DtypeError, OptionError, OptionTypeError, ShapeError

# batch 2, 6 query heads on 3 key/value heads, 5 queries, 7 keys of which the second row has 4, widths 11 and 13.
QUERY, KEY, VALUE = (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
MASK = qkv.Padding(lengths=[7, 4])
ROWS = 2 * 6 * 5
KEYS = 3 * (7 + 4)  # that a query sees
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


def test_a_map_of_your_own_says_how_many_features_it_makes() -> None:
    similarity = qkv.FeatureMap(torch.exp)
    with pytest.raises(OptionError, match=r"features: .*features=256"):
        counted("linear", similarity)
    assert counted("linear", similarity, features=5).line("features").flops == (ROWS + KEYS) * 5
    assert counted("linear", similarity, features="f").line("features").flops == (ROWS + KEYS) * symbols("f")
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(OptionError, match=r"^features: .*a whole number from 1 on"):
            counted("linear", similarity, features=wrong)
    assert counted("linear", similarity, features=1).line("features").flops == ROWS + KEYS


FORMS_OF = {
    qkv.Softmax(): ("blockwise", "reference", "native"),
    qkv.Argmax(): ("argmax", "reference"),
    qkv.Polynomial(2): ("blockwise", "reference", "linear"),
    qkv.FeatureMap(qkv.features.elu1): ("blockwise", "reference", "linear"),
    qkv.Similarity(torch.cdist): ("blockwise", "reference"),
}


@pytest.mark.parametrize("similarity", FORMS_OF, ids=repr)
def test_each_similarity_has_its_forms(similarity: object) -> None:
    for backend in ("blockwise", "reference", "linear", "argmax", "native"):
        if backend in FORMS_OF[similarity]:
            assert counted(backend, similarity).name == backend
        else:
            with pytest.raises(OptionError, match="one of " + ", ".join(FORMS_OF[similarity])):
                counted(backend, similarity)
    with pytest.raises(OptionError, match="one of auto, dense, streaming, linear, hard, decode"):
        counted("fast", similarity)


def test_sums_serve_causal_and_padding_alone() -> None:
    similarity, shape = qkv.FeatureMap(qkv.features.elu1), (1, 1, 999, 4)
    for mask in (None, qkv.Causal(), qkv.Padding(lengths=[900]), qkv.Causal() & qkv.Padding(lengths=[900])):
        assert count(shape, shape, shape, similarity=similarity, mask=mask).name == "linear"
    for mask in (qkv.Window(left=2, right=0), qkv.Causal() & qkv.Window(left=2)):
        assert count(shape, shape, shape, similarity=similarity, mask=mask).name == "blockwise"
        with pytest.raises(OptionError, match=r"one of streaming, dense"):
            count(shape, shape, shape, similarity=similarity, mask=mask, backend="linear")


def test_auto_takes_sums_from_the_first_length_on_at_which_they_are_fewer() -> None:
    similarity = qkv.FeatureMap(qkv.features.elu1)

    def at(n: int, backend: str) -> Ledger:
        return count((n, 8), (n, 8), (n, 8), similarity=similarity, backend=backend)

    chosen = [at(n, "auto").name for n in range(1, 30)]
    assert set(chosen) == {"linear", "blockwise"}
    for n, name in enumerate(chosen, start=1):
        assert (name == "linear") == (at(n, "linear").flops < at(n, "blockwise").flops)
    assert count("n 8", "n 8", "n 8", similarity=similarity).name == "linear"


def test_decoding_has_no_derivative() -> None:
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
def test_shapes_that_are_none_are_refused_by_name(shapes: tuple, words: str) -> None:
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
def test_what_is_no_size_of_a_number_is_refused(dtype: object) -> None:
    with pytest.raises(DtypeError, match=r"^dtype: .*bytes a number"):
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
