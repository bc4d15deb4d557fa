"""Rows 11, 12 and 27 to 31 of the table of bad inputs: masks and bias, their shapes, dtypes and options."""

from math import inf, nan

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import qkv
from qkv import errors
from tests.helpers.faults_reference import (
    DTYPES,
    by_dtype,
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
)

some = settings(max_examples=15, deadline=None, derandomize=True, database=None)
SHAPE_KINDS = (errors.MaskError, errors.ShapeError)
MASK_KINDS = (errors.MaskError, errors.OptionError, errors.ShapeError, errors.DtypeError)


def positions(len_q, len_k):
    return torch.arange(len_q)[:, None], torch.arange(len_k)


@by_way
@pytest.mark.parametrize(("len_q", "len_k"), [(5, 7), (7, 5), (1, 7), (7, 1)])
@pytest.mark.parametrize("joined", [False, True], ids=("alone", "joined"))
def test_row_11_causal_without_offset_names_both_readings(way, len_q, len_k, joined):
    q, k, v = problem(torch.float32, len_q=len_q, len_k=len_k)
    mask = qkv.Causal()
    mask = mask & qkv.Padding(lengths=torch.tensor([1, 1])) if joined else mask
    way.refuses(ValueError, ("mask", len_q, len_k, "offset=0", f"offset={len_k - len_q}"), q, k, v, mask=mask)


@by_way
def test_row_11_the_two_readings_do_run(way):
    i, j = positions(5, 7)
    q, k, v = way.problem(torch.float64)
    for offset in (0, 2):
        out, _ = way.attend(q, k, v, mask=qkv.Causal(offset=offset))
        close(out, way.reference(q, k, v, keep=j <= i + offset).out, torch.float64)
    q, k, v = way.problem(torch.float64, len_k=5)
    out, _ = way.attend(q, k, v, mask=qkv.Causal())
    close(out, way.reference(q, k, v, keep=(j <= i)[:, :5]).out, torch.float64)


@pytest.mark.slow
@by_dtype
@by_way
@pytest.mark.parametrize(("len_q", "len_k"), [(7, 5), (5, 1)])
def test_row_12_more_queries_than_keys_at_the_bottom_right(way, dtype, len_q, len_k):
    inputs = leaves(*way.problem(dtype, len_q=len_q, len_k=len_k))
    i, j = positions(len_q, len_k)
    out, lse = way.attend(*inputs, mask=qkv.Causal(offset=len_k - len_q))
    want, want_lse, want_grads = way.expected(inputs, j <= i + len_k - len_q)
    close(out, want, dtype)
    assert not out[:, :, : len_q - len_k].any()
    if lse is not None:
        close(lse, want_lse, dtype)
        assert bool((lse[:, :, : len_q - len_k] == -inf).all())
    for got, expected in zip(gradients(out, inputs), want_grads, strict=True):
        close(got, expected, dtype, loose=5)


@by_way
def test_row_27_masks_that_do_not_broadcast(way):
    """Among them heads_kv for heads_q, and a batch where the heads are due: never guessed."""
    q, k, v = way.problem(torch.float32)
    low = ((0,), (3,), (7, 5), (5, 6), (2, 7), (3, 5, 7), (2, 5, 7))
    for shape in (*low, (2, 3, 5, 7), (3, 6, 5, 7), (1, 2, 6, 5, 7)):
        keep = torch.ones(shape, dtype=torch.bool)
        way.refuses(SHAPE_KINDS, ("mask", *shape), q, k, v, mask=lambda keep=keep: qkv.Dense(keep))
        if way.softmax:
            way.refuses(SHAPE_KINDS, ("bias", *shape), q, k, v, bias=torch.zeros(shape))


@by_way
@pytest.mark.parametrize("shape", [(2, 1, 5, 7), (5, 5, 7), (1, 1, 5, 7)], ids=str)
def test_row_27_masks_never_widen_the_scores(way, shape):
    """A mask of several batches does not make several of one, nor four dimensions of three."""
    dims = 3 if shape[1] == 1 and shape[0] == 1 else 4
    q, k, v = (tensor[:1, 0] if dims == 3 else tensor[:1, :1] for tensor in way.problem(torch.float32))
    keep = torch.ones(shape, dtype=torch.bool)
    way.refuses(SHAPE_KINDS, ("mask", *shape), q, k, v, mask=lambda: qkv.Dense(keep))


@pytest.mark.slow
@by_dtype
@by_way
def test_row_27_rank_three_is_heads_where_batch_equals_heads(way, dtype):
    q, k, v = way.problem(dtype, batch=3, heads_q=3, heads_kv=3)
    keep = numbers((3, 5, 7), seed=11) > 0
    by_heads = way.reference(q, k, v, keep=keep[None]).out
    by_batch = way.reference(q, k, v, keep=keep[:, None]).out
    assert float((by_heads - by_batch).abs().max()) > 0.1
    close(way.attend(q, k, v, mask=qkv.Dense(keep))[0], by_heads, dtype)
    if way.softmax:
        bias = numbers((3, 5, 7), dtype, seed=12)
        close(way.attend(q, k, v, bias=bias)[0], reference(q, k, v, bias=bias[None]).out, dtype)


@by_way
def test_row_27_rank_three_is_batch_for_three_dimensions(way):
    q, k, v = (tensor[:, 0] for tensor in way.problem(torch.float64))
    keep = numbers((2, 5, 7), seed=11) > 0
    want = way.reference(q[:, None], k[:, None], v[:, None], keep=keep[:, None]).out[:, 0]
    close(way.attend(q, k, v, mask=qkv.Dense(keep))[0], want, torch.float64)
    alone = way.attend(q[1], k[1], v[1], mask=qkv.Dense(keep[1]))[0]
    close(alone, want[1], torch.float64)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(ones=st.lists(st.booleans(), min_size=4, max_size=4), rank=st.integers(0, 4))
@by_way
def test_row_27_right_alignment(way, ones, rank):
    sizes = [1 if one else size for one, size in zip(ones, (2, 6, 5, 7), strict=True)][4 - rank :]
    keep = numbers(sizes, seed=13) > -0.4
    q, k, v = way.problem(torch.float64)
    want = way.reference(q, k, v, keep=keep).out
    close(way.attend(q, k, v, mask=qkv.Dense(keep))[0], want, torch.float64)


@by_way
@pytest.mark.parametrize("wrap", [lambda mask: mask, qkv.Dense], ids=("bare", "Dense"))
def test_row_28_masks_are_boolean(way, wrap):
    q, k, v = way.problem(torch.float32)
    for dtype in (*DTYPES, torch.uint8, torch.int8, torch.int64):
        mask = torch.ones(5, 7).to(dtype)
        words = ("mask", str(dtype).removeprefix("torch."), "bool", "bias=")
        way.refuses(errors.MaskTypeError, words, q, k, v, mask=lambda mask=mask: wrap(mask))


@by_way
@pytest.mark.parametrize("wrap", [lambda mask: mask, qkv.Dense], ids=("bare", "Dense"))
def test_row_29_a_mask_does_not_learn(way, wrap):
    q, k, v = way.problem(torch.float32)
    mask = torch.ones(5, 7, requires_grad=True)
    way.refuses(errors.MaskTypeError, ("mask", "float32", "bias="), q, k, v, mask=lambda: wrap(mask))


@pytest.mark.slow
@by_softmax
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (6, 5, 7), (2, 1, 1, 7), (7,), ()], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=("full", "masked"))
def test_row_29_a_bias_learns(way, shape, masked):
    for dtype in DTYPES:
        mask, keep = make_mask("dense") if masked else (None, None)
        bias = numbers(shape, dtype, seed=8)
        if len(shape) > 1:
            bias[..., 3] = -inf
        inputs = leaves(*way.problem(dtype), bias)
        exact = leaves(*(tensor.double() for tensor in inputs))
        out, _ = way.attend(*inputs[:3], bias=inputs[3], mask=mask)
        want = reference(*exact[:3], bias=exact[3], keep=keep).out
        close(out, want, dtype)
        got, expected = gradients(out, inputs), gradients(want, exact)
        assert got[3].shape == shape
        assert got[3].dtype == dtype
        assert not got[3][bias == -inf].any()
        for one, other in zip(got, expected, strict=True):
            close(one, other, dtype, loose=20)


@by_softmax
def test_row_29_only_the_bias_learns(way):
    q, k, v = way.problem(torch.float64)
    bias, exact = leaves(numbers((6, 5, 7), seed=8)), leaves(numbers((6, 5, 7), seed=8))
    out, _ = way.attend(q, k, v, bias=bias[0])
    want = reference(q, k, v, bias=exact[0]).out
    close(gradients(out, bias)[0], gradients(want, exact)[0], torch.float64, loose=5)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("name", ["Argmax", "Polynomial", "FeatureMap", "Similarity"])
@pytest.mark.parametrize("option", ["bias", "return_lse"])
def test_row_29_bias_and_lse_where_they_mean_nothing(backend, name, option):
    q, k, v = problem(torch.float32)
    similarity = {
        "Argmax": qkv.Argmax,
        "Polynomial": qkv.Polynomial,
        "FeatureMap": lambda: qkv.FeatureMap(qkv.features.elu1),
        "Similarity": lambda: qkv.Similarity(lambda q, k: torch.exp(q @ k.mT)),
    }[name]()
    given_option = {"bias": torch.zeros(5, 7)} if option == "bias" else {"return_lse": True}
    refuses(errors.QkvError, (option, name), q, k, v, similarity=similarity, backend=backend, **given_option)


@by_dtype
@by_way
def test_row_30_window_of_zero_is_only_itself(way, dtype):
    q, k, v = way.problem(dtype, len_k=5)
    out, _ = way.attend(q, k, v, mask=qkv.Window(left=0, right=0))
    close(out, v.repeat_interleave(2, dim=1), dtype)
    q, k, v = way.problem(dtype)
    out, _ = way.attend(q, k, v, mask=qkv.Window(left=0, right=0, offset=2))
    close(out, v[:, :, 2:].repeat_interleave(2, dim=1), dtype)


@pytest.mark.slow
@some
@given(
    left=st.none() | st.integers(0, 20),
    right=st.none() | st.integers(0, 20),
    offset=st.integers(-9, 9),
)
@example(left=0, right=0, offset=9)
@example(left=7, right=7, offset=0)
@example(left=10**12, right=10**12, offset=0)
@by_way
def test_row_30_windows(way, left, right, offset):
    i, j = positions(5, 7)
    low = i + offset - (10**12 if left is None else left)
    high = i + offset + (10**12 if right is None else right)
    q, k, v = way.problem(torch.float64)
    out, _ = way.attend(q, k, v, mask=qkv.Window(left=left, right=right, offset=offset))
    close(out, way.reference(q, k, v, keep=(low <= j) & (j <= high)).out, torch.float64)


@by_way
def test_row_30_window_wider_than_the_keys_is_no_window(way):
    q, k, v = way.problem(torch.float64)
    want, _ = way.attend(q, k, v)
    for left, right in ((7, 7), (100, 100), (2**62, 2**62)):
        out, _ = way.attend(q, k, v, mask=qkv.Window(left=left, right=right, offset=0))
        close(out, want, torch.float64)


@by_way
@pytest.mark.parametrize("side", ["left", "right"])
def test_row_30_windows_refused(way, side):
    q, k, v = problem(torch.float32)
    for size in (-1, -7, 1.5, nan, "two"):
        bad = {side: size, "offset": 0}
        way.refuses(MASK_KINDS, (side, size), q, k, v, mask=lambda bad=bad: qkv.Window(**bad))


@pytest.mark.slow
@some
@given(lengths=st.tuples(st.integers(0, 7), st.integers(0, 7)))
@example(lengths=(0, 7))
@by_way
def test_row_31_lengths_within_bounds(way, lengths):
    lengths = torch.tensor(lengths)
    q, k, v = way.problem(torch.float64)
    out, _ = way.attend(q, k, v, mask=qkv.Padding(lengths=lengths))
    keep = (torch.arange(7) < lengths[:, None])[:, None, None]
    close(out, way.reference(q, k, v, keep=keep).out, torch.float64)


@by_way
def test_row_31_lengths_refused(way):
    q, k, v = problem(torch.float32)
    for lengths, said in (
        (torch.tensor([3, -1]), (-1,)),
        (torch.tensor([8, 3]), (8, 7)),
        (torch.tensor([3, 2**40]), (2**40, 7)),
        (torch.tensor([3.0, 4.0]), ("float32",)),
        (torch.tensor([3.5, nan], dtype=torch.float64), ("float64",)),
        (torch.tensor([3, 4, 5]), (3, 2)),
        (torch.tensor([3]), (1, 2)),
        (torch.tensor([], dtype=torch.int64), (0, 2)),
        (torch.tensor([[3, 4], [3, 4]]), (2,)),
    ):
        words = ("lengths", *said)
        way.refuses(MASK_KINDS, words, q, k, v, mask=lambda given=lengths: qkv.Padding(lengths=given))


@pytest.mark.parametrize("name", ["keep", "drop"])
def test_row_31_keep_and_drop_of_wrong_shape_or_dtype(name):
    q, k, v = problem(torch.float32)
    for shape in ((2, 5), (3, 7), (2, 6, 7)):
        rows = torch.ones(shape, dtype=torch.bool)
        refuses(MASK_KINDS, (name,), q, k, v, mask=lambda rows=rows: qkv.Padding(**{name: rows}))
    words, numbers_of = (name, "float32", "bool"), torch.ones(2, 7)
    refuses(MASK_KINDS, words, q, k, v, mask=lambda: qkv.Padding(**{name: numbers_of}))
