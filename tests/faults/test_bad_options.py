"""Rows 32 to 36 of the table of bad inputs: the options of a call, of a similarity, and ties."""

from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from tests.helpers.faults_reference import (
    DTYPES,
    SOFTMAX,
    by_argmax,
    by_dtype,
    by_features,
    by_polynomial,
    by_softmax,
    by_way,
    close,
    gradients,
    leaves,
    make_mask,
    numbers,
    problem,
    reference,
    refuses,
    same_bits,
)

WITH_WEIGHTS = [way for way in SOFTMAX if way.backend in ("reference", "auto")]  # the others return no weights
WITH_DROPOUT = [way for way in SOFTMAX if way.backend != "sdpa"]  # PyTorch's flash kernel has no dropout


@pytest.mark.slow
@by_softmax
@pytest.mark.parametrize("scale", [0.0, 0, -0.7, -1, 1e-3])
def test_row_32_scales(way, scale):
    for dtype in DTYPES:
        mask, keep = make_mask("dense")
        inputs = leaves(*way.problem(dtype))
        out, lse = way.attend(*inputs, mask=mask, similarity=qkv.Softmax(scale=scale))
        want, want_lse, want_grads = way.expected(inputs, keep, scale=scale)
        close(out, want, dtype)
        close(lse, want_lse, dtype)
        got = gradients(out, inputs)
        for one, other in zip(got, want_grads, strict=True):
            close(one, other, dtype, loose=5)
        if scale == 0:
            assert not got[0].any()
            assert not got[1].any()


@by_softmax
@pytest.mark.parametrize("scale", [nan, inf, -inf])
def test_row_32_scales_refused(way, scale):
    q, k, v = problem(torch.float32)
    way.refuses(errors.OptionError, ("scale", scale), q, k, v, similarity=lambda: qkv.Softmax(scale=scale))


@by_softmax
@pytest.mark.parametrize("dropout", [-0.1, 1.1, -1, 2, nan, inf, -inf])
def test_row_33_dropout_refused(way, dropout):
    q, k, v = problem(torch.float32)
    way.refuses(errors.OptionError, ("dropout", dropout), q, k, v, dropout=dropout)


@pytest.mark.parametrize("dropout", ["0.1", None, torch.tensor([0.1, 0.2])], ids=("text", "None", "two"))
def test_row_33_dropout_is_a_number(dropout):
    q, k, v = problem(torch.float32)
    refuses(errors.OptionTypeError, ("dropout",), q, k, v, dropout=dropout)


@by_argmax
def test_row_33_argmax_refuses_dropout(way):
    q, k, v = problem(torch.float32)
    way.refuses(errors.QkvError, ("dropout", "Argmax"), q, k, v, dropout=0.5)


@by_dtype
@by_way
def test_row_33_dropout_of_one_is_zero(way, dtype):
    if way.name == "argmax":
        way.refuses(errors.QkvError, ("dropout", "Argmax"), *problem(dtype), dropout=1.0)
        return
    if way.backend == "sdpa":
        way.refuses(errors.BackendRefused, ("dropout", "sdpa"), *problem(dtype), dropout=1.0)
        return
    inputs = leaves(*way.problem(dtype))
    out, lse = way.attend(*inputs, dropout=1.0)
    assert not out.any()
    if lse is not None:
        close(lse, reference(*inputs).lse, dtype)
    assert not any(gradient.any() for gradient in gradients(out, inputs))


@by_way
@pytest.mark.parametrize("zero", [0.0, 0])
def test_row_33_dropout_of_zero_is_inactive(way, zero):
    """What a layer passes in eval mode: the same bits as without, and no random number is drawn."""
    for dtype in DTYPES:
        q, k, v = way.problem(dtype)
        want, _ = way.attend(q, k, v)
        state = torch.get_rng_state()
        got, _ = way.attend(q, k, v, dropout=zero)
        same_bits(got, want)
        assert torch.equal(torch.get_rng_state(), state)


def test_row_33_a_layer_in_eval_mode_drops_nothing():
    x = numbers((2, 9, 12), torch.float32)
    torch.manual_seed(0)
    layer, plain = qkv.nn.Attention(12, heads=3, dropout=0.9), qkv.nn.Attention(12, heads=3)
    plain.load_state_dict(layer.state_dict())
    assert not torch.equal(layer(x), plain(x))
    same_bits(layer.eval()(x), plain.eval()(x))


@by_dtype
@pytest.mark.parametrize("way", WITH_DROPOUT, ids=str)
def test_row_33_dropout_drops_and_follows_the_seed(way, dtype):
    q, k, v = way.problem(dtype, len_q=67, len_k=131)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(way.attend(q, k, v, dropout=0.5)[0])
    same_bits(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    zero_key = torch.ones_like(v)
    torch.manual_seed(3)
    total = way.attend(torch.zeros_like(q), k, zero_key, dropout=0.5)[0].double()[..., 0]
    # Each row sums 131 equal weights, each kept by a coin and doubled: 1 on average, 131^-1/2 of spread.
    assert abs(float(total.mean()) - 1) < 0.02
    assert 0.8 < float(total.std()) * 131**0.5 < 1.2


@by_dtype
@pytest.mark.parametrize("way", WITH_WEIGHTS, ids=str)
def test_row_33_weights_are_those_applied(way, dtype):
    q, k, v = way.problem(dtype, len_k=67)
    torch.manual_seed(4)
    out, weights = qkv.attention(q, k, v, dropout=0.4, backend=way.backend, return_weights=True)
    plain = reference(q, k, v).weights
    close(out, weights.double() @ v.double().repeat_interleave(2, dim=1), dtype, loose=2)
    kept = weights != 0
    assert 0.55 < float(kept.double().mean()) < 0.65
    close(weights, torch.where(kept, plain / 0.6, 0.0), dtype)


@by_dtype
@by_polynomial
@pytest.mark.parametrize("offset", [1.0, 0.0])
def test_row_34_degree_zero_is_uniform(way, dtype, offset):
    """Also where q·k + offset = 0: the zeroth power of zero is one."""
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    q[0, :, 2] = 0.0
    similarity = qkv.Polynomial(degree=0, offset=offset)
    out, _ = way.attend(q, k, v, mask=mask, similarity=similarity)
    close(out, reference(q, k, v, keep=keep, scale=0.0).out, dtype)


@by_polynomial
@pytest.mark.parametrize("degree", [-1, -2, 2.5, 0.5, nan, inf, "two", None])
def test_row_34_degrees_refused(way, degree):
    q, k, v = problem(torch.float32)
    way.refuses(errors.OptionError, ("degree", degree), q, k, v, similarity=lambda: qkv.Polynomial(degree=degree))


@by_polynomial
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=("float64", "float32"))
@pytest.mark.parametrize(("degree", "offset"), [(1, 0.0), (3, 0.0), (3, 1.0), (5, -2.0)])
def test_row_34_odd_degrees_keep_their_signs(way, dtype, degree, offset):
    """Whole numbers: the sums are exact, so a sum of exactly zero is known to be one."""
    q, k, v = problem(dtype, whole=True, batch=3, len_q=31)
    q, k = q.clamp(-1, 1), k.clamp(-1, 1)
    v = v.mul(4).round()
    weights = (q.double() @ k.double().repeat_interleave(2, dim=1).mT + offset) ** degree
    total = weights.sum(-1, keepdim=True)
    assert bool((weights < 0).any())
    assert bool((total == 0).any()) or degree == 5
    want = torch.where(total == 0, 0.0, weights @ v.double().repeat_interleave(2, dim=1) / total)
    out, _ = way.attend(q, k, v, similarity=qkv.Polynomial(degree=degree, offset=offset))
    assert not out[(total == 0).squeeze(-1)].any()
    # The quotient's conditioning: what a rounding of any weight can do to it.
    unit = weights.abs() @ v.double().abs().repeat_interleave(2, dim=1) / total.abs().clamp_min(1)
    assert bool(((out.double() - want).abs() <= 2e-5 * unit + 1e-5).all())


@by_dtype
@by_polynomial
@pytest.mark.parametrize("degree", [1, 3])
def test_row_34_a_sum_of_exactly_zero_is_a_zero_row(way, dtype, degree):
    q, k = torch.ones(1, 1, 3, 2, dtype=dtype), torch.zeros(1, 1, 4, 2, dtype=dtype)
    k[0, 0, :, 0] = torch.tensor([2.0, -2.0, 1.0, -1.0])
    q[0, 0, 1] = 0.0
    v = numbers((1, 1, 4, 5), dtype)
    out, _ = way.attend(q, k, v, similarity=qkv.Polynomial(degree=degree, offset=0.0))
    assert not out.any()


@by_dtype
@by_features
@pytest.mark.parametrize("own", [False, True], ids=("features.identity", "a function"))
def test_row_35_normaliser_of_any_sign(way, dtype, own):
    """Weights of row 0 sum to -6, of row 1 to 0 without being 0, of row 2 are 0, of row 3 sum to 6."""
    q = torch.zeros(1, 1, 4, 3, dtype=dtype)
    q[0, 0, :, 0] = torch.tensor([-1.0, 0.0, 0.0, 1.0])
    q[0, 0, 1, 1] = 1.0
    k = torch.zeros(1, 1, 3, 3, dtype=dtype)
    k[0, 0, :, 0], k[0, 0, :, 1] = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, -3.0, -1.0])
    v = numbers((1, 1, 3, 5), dtype)
    similarity = qkv.FeatureMap((lambda x: x) if own else qkv.features.identity)
    out, _ = way.attend(q, k, v, similarity=similarity)
    mean = (torch.tensor([1.0, 2.0, 3.0]).double() @ v[0, 0].double()) / 6
    close(out[0, 0, 0], mean, dtype)
    close(out[0, 0, 3], mean, dtype)
    assert not out[0, 0, 1:3].any()


@by_dtype
@by_features
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_row_35_no_hidden_epsilon(way, dtype, sign):
    """A tiny normaliser still divides: the weights are equal, so the result is the plain average."""
    tiny = 2.0**-12 if dtype == torch.float16 else 2.0**-40
    q, k, v = way.problem(dtype)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = tiny, sign * tiny
    out, _ = way.attend(q, k, v, similarity=qkv.FeatureMap(qkv.features.identity))
    close(out, v.double().mean(2, keepdim=True).repeat_interleave(2, dim=1).expand(out.shape), dtype)


@by_dtype
@by_features
def test_row_35_without_normaliser(way, dtype):
    mask, keep = make_mask("dense")
    q, k, v = problem(dtype, whole=True)
    similarity = qkv.FeatureMap(qkv.features.identity, normalize=False)
    out, _ = way.attend(q, k, v, mask=mask, similarity=similarity)
    scores = (q.double() @ k.double().repeat_interleave(2, dim=1).mT).masked_fill(~keep, 0.0)
    close(out, scores @ v.double().repeat_interleave(2, dim=1), dtype)
    assert not out[~keep.any(-1)].any()


@by_features
def test_row_35_relu_may_leave_nothing(way):
    q, k, v = way.problem(torch.float64)
    q[0, :, 1], k[1, :, 4] = -q[0, :, 1].abs(), -k[1, :, 4].abs()
    out, _ = way.attend(q, k, v, similarity=qkv.FeatureMap(qkv.features.relu))
    want = reference(q, k, v, similarity=lambda q, k: k.relu() @ q.relu()).out
    close(out, want, torch.float64)
    assert not out[0, :, 1].any()


@by_dtype
@by_argmax
def test_row_36_ties_go_to_the_lowest_attended_index(way, dtype):
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    q[0, :, 1] = 0.0
    first = keep.int().argmax(-1)
    out, _ = way.attend(q, k, v, mask=mask)
    want = way.reference(q, k, v, keep=keep).out
    assert torch.equal(out.double(), want)
    for h in range(6):
        if keep[0, h, 1].any():
            assert torch.equal(out[0, h, 1], v[0, h // 2, first[0, h, 1]])


@by_argmax
@pytest.mark.parametrize(("one", "other"), [(0, 1030), (3, 700), (255, 256), (511, 512), (1023, 1024)])
def test_row_36_ties_far_apart(way, one, other):
    for dtype in DTYPES:
        q, k, v = way.problem(dtype, batch=1, heads_q=2, heads_kv=1, len_k=1031)
        q[..., 0] = 2.0
        k[0, 0, :, 0] = -2.0
        k[0, 0, one] = k[0, 0, other] = torch.tensor([60.0] + [0.0] * 10)
        out, _ = way.attend(q, k, v)
        assert torch.equal(out, v[:, :, one : one + 1].expand(1, 2, 5, 13))


@by_argmax
def test_row_36_signed_zeros_tie(way):
    q, k, v = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 3, 2), numbers((1, 1, 3, 5), torch.float32)
    for zeros in ((-0.0, 0.0, -0.0), (0.0, -0.0, 0.0)):
        k[0, 0, :, 0] = k[0, 0, :, 1] = torch.tensor(zeros)
        out, _ = way.attend(q, k, v)
        same_bits(out[0, 0, 0], v[0, 0, 0])


@by_dtype
@by_argmax
def test_row_36_gradient_reaches_the_chosen_value_only(way, dtype):
    mask, keep = make_mask("dense")
    q, k, v = way.problem(dtype)
    q[0, :, 1] = 0.0
    inputs, exact = leaves(q, k, v), leaves(q.double(), k.double(), v.double())
    out, _ = way.attend(*inputs, mask=mask)
    want = way.reference(*exact, keep=keep).out
    got, expected = gradients(out, inputs), gradients(want, exact)
    assert not got[0].any()
    assert not got[1].any()
    close(got[2], expected[2], dtype)
    assert torch.equal(got[2] == 0, expected[2] == 0)
