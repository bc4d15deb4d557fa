"""The kinds of similarity: immutable, and with checked options."""

import math

import pytest
import torch

import qkv
from qkv.errors import OptionError, OptionTypeError, ShapeError


def test_they_are_frozen_and_print_as_they_are_written() -> None:
    softmax = qkv.Softmax(scale=0.5, sink=torch.zeros(4))
    with pytest.raises(AttributeError):
        softmax.scale = 1.0
    assert repr(softmax) == "Softmax(scale=0.5, sink=<(4,)>)"
    assert repr(qkv.Softmax()) == "Softmax()"
    assert repr(qkv.FeatureMap(qkv.features.elu1, normalize=False)) == "FeatureMap(map=elu1, normalize=False)"
    assert repr(qkv.Polynomial(degree=3, offset=0.0)) == "Polynomial(degree=3, offset=0.0)"


def test_sigmoid_is_refused_where_it_has_no_meaning() -> None:
    x = torch.zeros(2, 3, 5, 7)
    with pytest.raises(OptionError, match="only Softmax has a log-sum-exp"):
        qkv.attention(x, x, x, similarity=qkv.Sigmoid(), return_lse=True)
    with pytest.raises(ShapeError, match=r"bias \(of Sigmoid\): got shape \(2,\), wanted \(3,\)"):
        qkv.attention(x, x, x, similarity=qkv.Sigmoid(bias=torch.zeros(2)))
    with pytest.raises(qkv.errors.BackendRefused, match="not Sigmoid"):
        qkv.attention(x, x, x, similarity=qkv.Sigmoid(), backend="sdpa")


def test_an_empty_row_of_sigmoid_is_zero_and_its_weights_stand_alone() -> None:
    q, k, v = torch.randn(1, 1, 2, 3), torch.randn(1, 1, 5, 3), torch.randn(1, 1, 5, 2)
    keep = torch.tensor([[True] * 5, [False] * 5])
    out, weights = qkv.attention(q, k, v, similarity=qkv.Sigmoid(), mask=qkv.Dense(keep), return_weights=True)
    assert not out[0, 0, 1].any()
    assert torch.allclose(weights[0, 0, 0], torch.sigmoid(q[0, 0, 0] @ k[0, 0].T / math.sqrt(3)))
    bias = torch.tensor([0.0, -math.inf, 0.0, 0.0, math.inf])
    _, other = qkv.attention(q, k, v, similarity=qkv.Sigmoid(), bias=bias, return_weights=True)
    assert torch.allclose(other[..., [0, 2, 3]], torch.sigmoid(q @ k.mT / math.sqrt(3))[..., [0, 2, 3]])
    assert other[..., 1].eq(0).all()
    assert other[..., 4].eq(1).all()


def test_a_learned_bias_of_sigmoid_has_the_gradient_of_finite_differences() -> None:
    tensors = [torch.randn(1, 4, 6, 3, dtype=torch.float64) for _ in range(3)]
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for backend in ("reference", "blockwise"):
        options = {"mask": qkv.Causal(), "backend": backend}
        assert torch.autograd.gradcheck(
            lambda b, options=options: qkv.attention(*tensors, similarity=qkv.Sigmoid(bias=b), **options), (bias,)
        )


def test_default_scale() -> None:
    assert qkv.Softmax().scale_for(3) == 1 / math.sqrt(3)
    assert qkv.Softmax(scale=0).scale_for(3) == 0.0


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: qkv.Softmax(scale=math.nan), OptionError),
        (lambda: qkv.Softmax(scale=math.inf), OptionError),
        (lambda: qkv.Softmax(scale="1"), OptionTypeError),
        (lambda: qkv.Softmax(scale=True), OptionTypeError),
        (lambda: qkv.Softmax(softcap=0.0), OptionError),
        (lambda: qkv.Softmax(softcap=-1.0), OptionError),
        (lambda: qkv.Softmax(sink=[1.0]), OptionTypeError),
        (lambda: qkv.Softmax(sink=math.nan), OptionError),
        (lambda: qkv.Sigmoid(scale=math.inf), OptionError),
        (lambda: qkv.Sigmoid(bias=math.nan), OptionError),
        (lambda: qkv.Sigmoid(bias=[1.0]), OptionTypeError),
        (lambda: qkv.Polynomial(degree=-1), OptionError),
        (lambda: qkv.Polynomial(degree=1.5), OptionTypeError),
        (lambda: qkv.Polynomial(offset=math.inf), OptionError),
        (lambda: qkv.FeatureMap(3), OptionTypeError),
        (lambda: qkv.FeatureMap(qkv.features.relu, normalize=1), OptionTypeError),
        (lambda: qkv.Similarity("dot"), OptionTypeError),
        (lambda: qkv.Similarity(torch.cdist, normalize=0), OptionTypeError),
    ],
)
def test_refused(make, error) -> None:
    with pytest.raises(error, match="wanted"):
        make()


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (qkv.features.elu1, "qkv.FeatureMap(qkv.features.elu1)"),
        (qkv.features.polynomial(2), "qkv.FeatureMap(qkv.features.polynomial(degree=2, offset=1.0))"),
        (qkv.features.polynomial, "qkv.FeatureMap(qkv.features.polynomial(...))"),
        (torch.cdist, "qkv.Similarity(function)"),
        (qkv.Softmax, "write qkv.Softmax(...)"),
    ],
    ids=["a map", "an object", "a class", "a function", "Softmax"],
)
def test_a_bare_function_is_refused_with_its_wrapper(given, hint: str) -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(OptionTypeError) as caught:
        qkv.attention(x, x, x, similarity=given)
    assert hint in str(caught.value).split("Hint: ")[1]


@pytest.mark.parametrize("softcap", [1e-46, 1e-39, 3.5e38, 1e300])
def test_a_softcap_that_float32_does_not_have_is_refused(softcap: float) -> None:
    with pytest.raises(qkv.errors.OptionError, match="softcap"):
        qkv.Softmax(softcap=softcap)


@pytest.mark.parametrize("sink", [1e39, -1e39])
def test_a_sink_that_float32_does_not_have_is_refused(sink: float) -> None:
    with pytest.raises(qkv.errors.OptionError, match="sink"):
        qkv.Softmax(sink=sink)
