"""`reference`: infinities, zero sums and masked numbers on one tile, and overflow behind a mask."""

import math

import pytest
import torch

import qkv
from qkv.backends.reference import Tile, attend
from qkv.inputs import read_inputs

INF, NAN = math.inf, math.nan


def attend_tile(weights_like, value, keep=None, similarity=None, **options):
    """One query of width 1 and value 1, so that each key is its own score."""
    key = torch.tensor(weights_like, dtype=torch.float64).reshape(1, 1, -1, 1)
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    value = torch.tensor(value, dtype=torch.float64).reshape(1, 1, len(weights_like), -1)
    similarity = similarity or qkv.Softmax(scale=1.0)
    call = read_inputs(query, key, value, similarity, None, None, 0.0, "auto", False, True)
    keep = None if keep is None else torch.tensor(keep).reshape(1, 1, 1, -1)
    result = attend(call, Tile(query, key, value, keep, options.get("bias"), None, finite=options.get("finite", False)))
    return result.out.flatten().tolist(), result.weights.flatten().tolist()


@pytest.mark.parametrize(
    ("scores", "values", "out"),
    [
        ([0.0, 0.0], [[1.0], [INF]], [INF]),
        ([0.0, 0.0], [[INF], [-INF]], [NAN]),
        ([0.0, -1000.0], [[1.0], [-INF]], [-INF]),  # the weight underflows and is still positive
        ([0.0, -INF], [[1.0], [INF]], [1.0]),  # no weight at all
        ([0.0, 0.0], [[1.0, 2.0], [NAN, 4.0]], [NAN, 3.0]),
        ([INF, 0.0], [[1.0], [2.0]], [NAN]),
        ([-INF, -INF], [[1.0], [2.0]], [0.0]),
    ],
)
def test_softmax_of_nonfinite_numbers(scores, values, out) -> None:
    assert attend_tile(scores, values)[0] == pytest.approx(out, nan_ok=True)


def test_a_negative_weight_flips_the_sign_of_infinity() -> None:
    linear_polynomial = qkv.Polynomial(degree=1, offset=0.0)
    assert attend_tile([3.0, -1.0], [[1.0], [INF]], similarity=linear_polynomial)[0] == [-INF]
    assert attend_tile([3.0, 0.0], [[1.0], [INF]], similarity=linear_polynomial)[0] == pytest.approx([NAN], nan_ok=True)


def test_masked_weights_are_zero_even_in_a_row_that_is_nan() -> None:
    out, weights = attend_tile([NAN, 0.0, 1.0], [[1.0], [2.0], [3.0]], keep=[True, False, True])
    assert math.isnan(out[0])
    assert weights[1] == 0.0


@pytest.mark.parametrize("finite", [False, True])
def test_a_zero_sum_is_a_zero_row(finite: bool) -> None:
    linear_polynomial = qkv.Polynomial(degree=1, offset=0.0)
    assert attend_tile([2.0, -2.0], [[5.0], [7.0]], similarity=linear_polynomial, finite=finite) == ([0.0], [0.0, 0.0])
    not_normalized = qkv.FeatureMap(lambda x: x, normalize=False)
    assert attend_tile([2.0, -2.0], [[5.0], [7.0]], similarity=not_normalized, finite=finite)[0] == [-4.0]


@pytest.mark.parametrize("similarity", [qkv.Polynomial(3), qkv.FeatureMap(torch.exp), qkv.FeatureMap(torch.square)])
@pytest.mark.parametrize("poison", [1e30, 1e300, INF, NAN])
def test_overflow_behind_a_mask_has_no_gradient(similarity, poison: float) -> None:
    query = torch.tensor([[1.0], [0.5]], dtype=torch.float64, requires_grad=True)
    clean = torch.tensor([[1.0], [2.0], [0.0]], dtype=torch.float64)
    poisoned = clean.clone()
    poisoned[2] = poison
    answers = []
    for key in (clean.requires_grad_(), poisoned.requires_grad_()):
        out = qkv.attention(query, key, key[:, :1] * 0 + 1.5, similarity=similarity, mask=qkv.Padding(lengths=[2]))
        answers.append(torch.autograd.grad(out.sum(), (query,))[0])
        value = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
        out = qkv.attention(query, key, value, similarity=similarity, mask=qkv.Padding(lengths=[2]))
        answers += torch.autograd.grad(out.sum(), (query, key))
    torch.testing.assert_close(answers[:3], answers[3:])
    assert answers[5][2].item() == 0.0


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_gradients_are_finite_where_the_sum_of_similarities_is_subnormal(backend: str) -> None:
    """exp(−‖q − k‖²) is 6e-40 at q = 9.5 and k = 0."""
    similarity = qkv.Similarity(lambda q, k: torch.exp(-(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)))
    found = []
    for name, dtype in ((backend, torch.float32), ("reference", torch.float64)):
        leaves = [torch.tensor(x, dtype=dtype).reshape(1, 1, -1, 1) for x in ([9.5], [0.0, 0.01], [1.0, 2.0])]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        out = qkv.attention(*leaves, similarity=similarity, backend=name)
        found.append([out, *torch.autograd.grad(out.sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-7)
