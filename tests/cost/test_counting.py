"""`count`: the slots of `attention`, with shapes in place of tensors."""

import pytest
import torch

import qkv
from qkv.cost import count, symbols
from qkv.errors import QkvError

N, D, M = symbols("n d m")


def test_document_003_6c_softmax() -> None:
    dense = count("n d", "n d", "n m", backend="reference")
    assert dense.theta() == N**2 * D + N**2 * M
    assert dense.theta("space") == N**2 + N * D + N * M
    assert count("n d", "n d", "n m").theta("space") == N * D + N * M, "without the matrix of scores"


def test_document_003_6d_the_quadratic_kernel() -> None:
    """(q·k + 1)² has (d+1)(d+2)/2 features: d³ for each token, and a state of d³ beside what is given."""
    linear = count("n d", "n d", "n d", similarity=qkv.Polynomial(2), backend="linear")
    assert linear.theta() == N * D**3
    assert linear.theta("space") == N * D + D**3
    by_scores = count("n d", "n d", "n d", similarity=qkv.Polynomial(2), backend="blockwise")
    assert by_scores.theta() == N**2 * D


def test_tensors_shapes_and_names_are_one() -> None:
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


def test_auto_takes_sums_when_they_are_fewer() -> None:
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
        (((5, 7),) * 3, {"backend": "linear"}, "streaming, dense"),
        (((5, 7),) * 3, {"dtype": "float8"}, "float32"),
        (((5, 7),) * 3, {"training": 1}, "True or False"),
        (((5, 7),) * 3, {"similarity": "softmax"}, "Softmax"),
        (((5, 7),) * 3, {"similarity": qkv.FeatureMap(lambda x: x), "backend": "linear"}, "features="),
        (((5, 7), (6, 7), (6, 7)), {"mask": qkv.Causal()}, "offset"),
    ],
)
def test_what_cannot_be_counted_is_said(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(QkvError, match=words):
        count(*arguments, **options)


def test_a_million_billion_tokens_do_not_overflow() -> None:
    shape = (1, 8, 10**15, 64)
    found = count(shape, shape, shape, mask=qkv.Causal())
    assert found.products == 4 * 64 * 8 * (10**15 * (10**15 + 1) // 2)
