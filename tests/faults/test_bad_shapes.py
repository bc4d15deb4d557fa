"""Rows 13 to 22, 37 and 38 of the table of bad inputs: sizes, dtypes, devices and kinds of tensors."""

import warnings
from math import inf, nan

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv import errors, ops
from tests.helpers.faults_reference import (
    DTYPES,
    WAYS,
    assert_speaks,
    by_dtype,
    by_softmax,
    by_way,
    close,
    gradients,
    in_separate_process,
    leaves,
    numbers,
    problem,
    refuses,
    run_zero_size,
    zero_sizes,
)

ARGUMENTS = ("query", "key", "value")
OTHER_DTYPES = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
ROW_13 = [name for name in zero_sizes() if not name.startswith("len_k")]
ROW_14 = [name for name in zero_sizes() if name.startswith("len_k")]


def one_head(tensor, dims):
    """The same call in two, three or four dimensions."""
    return {4: tensor, 3: tensor[:, 0], 2: tensor[0, 0]}[dims]


def short(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", ROW_13)
def test_row_13_nothing_to_answer(way, name):
    for dtype in DTYPES:
        run_zero_size(way, zero_sizes()[name], dtype)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("name", ROW_13)
def test_row_13_nothing_to_answer_under_masks(way, name):
    shapes = zero_sizes()[name]
    run_zero_size(way, shapes, torch.float32, mask=qkv.Causal(offset=0))
    run_zero_size(way, shapes, torch.float32, mask=qkv.Causal(offset=3) & qkv.Window(left=2, right=0))
    keep = torch.ones(shapes[0][-2], shapes[1][-2], dtype=torch.bool)
    run_zero_size(way, shapes, torch.float32, mask=qkv.Dense(keep))


@by_way
@pytest.mark.parametrize("name", ROW_14)
def test_row_14_nothing_to_attend(way, name):
    for dtype in DTYPES:
        run_zero_size(way, zero_sizes()[name], dtype)


@by_way
@pytest.mark.parametrize("name", ROW_14)
def test_row_14_nothing_to_attend_under_masks(way, name):
    shapes = zero_sizes()[name]
    run_zero_size(way, shapes, torch.float32, mask=qkv.Causal(offset=0))
    run_zero_size(way, shapes, torch.float32, mask=qkv.Dense(torch.ones(5, 0, dtype=torch.bool)))
    if len(shapes[0]) > 2:
        run_zero_size(way, shapes, torch.float32, mask=qkv.Padding(lengths=torch.tensor([0, 0])))


@by_dtype
@by_softmax
def test_row_14_nothing_to_attend_with_bias_sink_and_a_query_of_nan(way, dtype):
    shapes = zero_sizes()["len_k"]
    q, k, v = (torch.full(shape, nan, dtype=dtype) for shape in shapes)
    similarity = qkv.Softmax(sink=numbers((6,), dtype))
    out, lse = way.attend(q, k, v, bias=torch.zeros(5, 0, dtype=dtype), similarity=similarity)
    assert not out.any()
    assert bool((lse == -inf).all())


@by_way
def test_row_13_and_14_do_not_enter_the_native_library(way):
    """Where there is nothing to answer or nothing to attend, no kernel is asked."""
    way.attend(*way.problem(torch.float32), lse=False)
    for shapes in zero_sizes().values():
        before = ops.calls()
        way.attend(*(torch.ones(shape) for shape in shapes), lse=False)
        assert ops.calls() == before


@pytest.mark.slow
def test_row_13_and_14_do_not_crash_the_interpreter():
    said = in_separate_process("""
        import torch
        from tests.helpers.faults_reference import DTYPES, WAYS, run_zero_size, zero_sizes
        count = 0
        for way in WAYS:
            for shapes in zero_sizes().values():
                for dtype in DTYPES:
                    run_zero_size(way, shapes, dtype)
                    count += 1
        print(count)
    """)
    assert said.split()[-1] == str(len(WAYS) * len(zero_sizes()) * len(DTYPES))


@by_way
@pytest.mark.parametrize("lengths", [(5, 7), (0, 7), (5, 0)], ids=str)
def test_row_15_head_width_zero(way, lengths):
    q, k, v = problem(torch.float32, width=0, len_q=lengths[0], len_k=lengths[1])
    way.refuses(errors.ShapeError, ("query", 0), q, k, v)


@by_way
def test_row_16_heads_that_do_not_divide(way):
    for heads in ((6, 4), (3, 6), (5, 2), (1, 2), (6, 0), (1, 0)):
        q, k, v = problem(torch.float32, heads_q=heads[0], heads_kv=heads[1])
        way.refuses(errors.ShapeError, ("query", "key", *heads), q, k, v)


@by_way
def test_row_16_key_and_value_have_other_heads(way):
    q, k, v = problem(torch.float32)
    way.refuses(errors.ShapeError, ("key", "value", 3, 2), q, k, v[:, :2])


@by_way
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_row_17_query_and_key_have_other_widths(way, dims):
    q, k, v = (one_head(tensor, dims) for tensor in problem(torch.float32))
    k = torch.ones(*k.shape[:-1], 17)
    way.refuses(errors.ShapeError, ("query", "key", 11, 17), q, k, v)


@by_way
@pytest.mark.parametrize("width_v", [1, 11, 29])
def test_row_18_values_of_another_width(way, width_v):
    for dtype in DTYPES:
        inputs = leaves(*way.problem(dtype, width_v=width_v))
        out, lse = way.attend(*inputs)
        want, want_lse, want_grads = way.expected(inputs)
        close(out, want, dtype)
        if lse is not None:
            close(lse, want_lse, dtype)
        for got, expected in zip(gradients(out, inputs), want_grads, strict=True):
            close(got, expected, dtype, loose=5)


@by_way
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_row_19_key_and_value_have_other_lengths(way, dims):
    for len_v in (0, 1, 3):
        q, k, v = (one_head(tensor, dims) for tensor in problem(torch.float32))
        v = v[..., :len_v, :]
        way.refuses(errors.ShapeError, ("key", "value", 7, len_v), q, k, v)


@by_way
@pytest.mark.parametrize("odd", ARGUMENTS)
def test_row_20_dtypes_are_never_promoted(way, odd):
    for common in DTYPES:
        for other in set(DTYPES) - {common}:
            tensors = dict(zip(ARGUMENTS, problem(common), strict=True))
            tensors[odd] = tensors[odd].to(other)
            way.refuses(errors.DtypeError, (odd, short(common), short(other)), **tensors)


@by_softmax
@by_dtype
def test_row_20_bias_of_another_dtype(way, dtype):
    halves = (torch.bfloat16, torch.float16)
    allowed = {dtype, torch.float32} if dtype in halves else {dtype}
    q, k, v = problem(dtype)
    for other in {*DTYPES, torch.int64} - allowed:
        given = torch.zeros(5, 7).to(other)
        kinds = (errors.DtypeError, errors.MaskTypeError)
        way.refuses(kinds, ("bias", short(other), short(dtype)), q, k, v, bias=given)


@by_way
@pytest.mark.parametrize("odd", [*ARGUMENTS, "all"])
def test_row_21_dtypes_that_are_no_real_numbers(way, odd):
    for dtype in OTHER_DTYPES:
        tensors = dict(zip(ARGUMENTS, problem(torch.float32), strict=True))
        for name in ARGUMENTS if odd == "all" else (odd,):
            tensors[name] = tensors[name].to(dtype)
        word = "query" if odd == "all" else odd
        way.refuses(errors.DtypeError, (word, short(dtype)), **tensors)


class Touches(TorchDispatchMode):
    """Writes down every operation on tensors' data; questions about sizes and layouts are none."""

    QUESTIONS = ("size", "stride", "numel", "dim", "device", "layout", "storage_offset", "is_contiguous")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.removeprefix("sym_")
        if not name.startswith(self.QUESTIONS) and not name.startswith("is_"):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def foreign(kind, tensor):
    """`tensor` as another kind of tensor, and the word that a refusal must say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that most of these are prototypes
        if kind == "meta":
            return tensor.to("meta")
        if kind == "nested":
            return torch.nested.nested_tensor(list(tensor))
        if kind == "jagged":
            return torch.nested.nested_tensor(list(tensor), layout=torch.jagged)
        if kind == "sparse_coo":
            return tensor.to_sparse()
        if kind == "sparse_csr":
            return tensor.to_sparse_csr()
        if kind == "mkldnn":
            return tensor.to_mkldnn()
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


@by_way
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("meta", "meta"),
        ("nested", "nested"),
        ("jagged", "(nested|jagged)"),
        ("sparse_coo", "sparse"),
        ("sparse_csr", "sparse"),
        ("mkldnn", "mkldnn"),
        ("quantised", "(qint8|quanti[sz]ed)"),
    ],
)
def test_row_22_foreign_tensors_are_refused_untouched(way, kind, word):
    dims = 2 if kind == "sparse_csr" else 3
    similarity = way.similarity()
    for odd in (*ARGUMENTS, "all"):
        near = (one_head(tensor, dims) for tensor in problem(torch.float32))
        tensors = dict(zip(ARGUMENTS, near, strict=True))
        for name in ARGUMENTS if odd == "all" else (odd,):
            tensors[name] = foreign(kind, tensors[name])
        with Touches() as touches, pytest.raises(errors.QkvError, match=f"(?i){word}") as caught:
            qkv.attention(**tensors, similarity=similarity, backend=way.backend)
        assert touches.seen == []
        assert_speaks(caught.value, errors.QkvError, "query" if odd == "all" else odd)


@by_softmax
@pytest.mark.parametrize("odd", ["bias", "mask"])
def test_row_22_bias_or_mask_on_another_device(way, odd):
    q, k, v = problem(torch.float32)
    given = torch.ones(5, 7, device="meta")
    words = (odd, "meta")
    if odd == "bias":
        way.refuses(errors.QkvError, words, q, k, v, bias=given)
    else:
        way.refuses(errors.QkvError, words, q, k, v, mask=lambda: qkv.Dense(given.bool()))


@pytest.mark.parametrize("odd", ARGUMENTS)
def test_beyond_the_table_ranks_and_batches_that_disagree(odd):
    tensors = dict(zip(ARGUMENTS, problem(torch.float32), strict=True))
    for bad in (tensors[odd][0], tensors[odd][None], tensors[odd][0, 0, 0], torch.tensor(1.0)):
        refuses(errors.ShapeError, (odd,), **tensors | {odd: bad})
    refuses(errors.ShapeError, (odd, 2, 3), **tensors | {odd: tensors[odd].repeat(2, 1, 1, 1)[:3]})


@pytest.mark.parametrize("odd", ARGUMENTS)
def test_beyond_the_table_what_is_no_tensor(odd):
    tensors = dict(zip(ARGUMENTS, problem(torch.float32), strict=True))
    for bad in (tensors[odd].numpy(), tensors[odd].tolist(), 3.0):
        refuses(TypeError, (odd, type(bad).__name__), **tensors | {odd: bad})
    refuses(TypeError, (odd,), **tensors | {odd: None})
