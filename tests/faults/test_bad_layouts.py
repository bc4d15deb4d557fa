"""Rows 23 to 26 of the table of bad inputs: non-contiguous, expanded, misaligned and shared tensors."""

import inspect
from math import nan

import pytest
import torch

import qkv
from tests.helpers.faults_reference import (
    DTYPES,
    SIZES,
    by_dtype,
    by_softmax,
    by_way,
    close,
    gradients,
    leaves,
    make_mask,
    numbers,
    problem,
    same_bits,
)

LARGER = {"batch": 2, "heads_q": 4, "heads_kv": 2, "len_q": 67, "len_k": 131, "width": 37, "width_v": 41}
# One width for both: the flash kernel gets the tensors themselves, and not a copy that was made wider.
ONE_WIDTH = {"batch": 2, "heads_q": 3, "heads_kv": 3, "len_q": 23, "len_k": 29, "width": 37, "width_v": 37}
POWERS = {"batch": 1, "heads_q": 2, "heads_kv": 2, "len_q": 64, "len_k": 64, "width": 32, "width_v": 32}


def desert(shape, like):
    """What lies between the numbers of a strided tensor: NaN, or True in a mask."""
    return torch.full(shape, True if like.dtype == torch.bool else nan, dtype=like.dtype)


def swapped(tensor, one, other):
    return tensor.transpose(one, other).contiguous().transpose(one, other)


def sliced(tensor):
    wide = desert([size + 3 for size in tensor.shape], tensor)
    window = wide[tuple(slice(2, 2 + size) for size in tensor.shape)]
    return window.copy_(tensor)


def roomy(tensor):
    """Every row starts on a boundary of 64 bytes, as in a buffer that was made wider for that."""
    unit = 64 // tensor.itemsize
    wide = desert([*tensor.shape[:-1], -(-tensor.shape[-1] // unit) * unit + unit], tensor)
    return wide[..., : tensor.shape[-1]].copy_(tensor)


def stepped(tensor, axis):
    wide = desert([2 * n if at == axis % tensor.ndim else n for at, n in enumerate(tensor.shape)], tensor)
    steps = [slice(None)] * tensor.ndim
    steps[axis] = slice(1, None, 2)
    return wide[tuple(steps)].copy_(tensor)


def negated(tensor):
    """torch's lazy negation: the cache holds the numbers with the other sign."""
    return tensor if tensor.dtype == torch.bool else torch._neg_view(-tensor)


def misaligned(tensor, by=1):
    flat = desert([tensor.numel() + by], tensor)
    return flat[by:].view(tensor.shape).copy_(tensor)


LAYOUTS = {
    "heads after length": lambda t: swapped(t, -3, -2),
    "width before length": lambda t: swapped(t, -2, -1),
    "batch last": lambda t: swapped(t, 0, -1),
    "sliced": sliced,
    "rows on boundaries": roomy,
    "every second position": lambda t: stepped(t, -2),
    "every second number": lambda t: stepped(t, -1),
    "at the end of its storage": lambda t: torch.cat((desert(t.shape, t), t))[t.shape[0] :],
    "negated": negated,
}


def check_layout(way, dtype, layout, sizes, each=False, **options):
    near = way.problem(dtype, **sizes)
    far = tuple(layout(tensor) for tensor in near)
    assert all(torch.equal(one, other) for one, other in zip(near, far, strict=True))
    want = way.attend(*near, **options)
    for chosen in ((0, 1, 2), (0,), (1,), (2,)) if each else ((0, 1, 2),):
        got = way.attend(*(far[at] if at in chosen else near[at] for at in range(3)), **options)
        same_bits(got[0], want[0])
        if way.softmax:
            same_bits(got[1], want[1])


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_row_23_layout_does_not_matter_to_a_bit(way, layout):
    for dtype in DTYPES:
        check_layout(way, dtype, layout, SIZES, each=True)
        check_layout(way, dtype, layout, LARGER)
        check_layout(way, dtype, layout, ONE_WIDTH)
        check_layout(way, dtype, layout, POWERS)
        check_layout(way, dtype, layout, POWERS, mask=qkv.Causal())


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_row_23_layout_of_the_mask(way, layout):
    q, k, v = way.problem(torch.float32)
    _, keep = make_mask("dense")
    want, _ = way.attend(q, k, v, mask=qkv.Dense(keep))
    got, _ = way.attend(q, k, v, mask=qkv.Dense(layout(keep)))
    same_bits(got, want)


@pytest.mark.slow
@by_softmax
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_row_23_layout_of_the_bias(way, layout):
    for dtype in DTYPES:
        q, k, v = way.problem(dtype)
        bias = numbers((2, 6, 5, 7), dtype, seed=8)
        want, want_lse = way.attend(q, k, v, bias=bias)
        got, lse = way.attend(q, k, v, bias=layout(bias))
        same_bits(got, want)
        same_bits(lse, want_lse)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_row_23_gradients_through_layouts(way, layout):
    near = leaves(*way.problem(torch.float64))
    far = tuple(layout(tensor.detach()).requires_grad_() for tensor in near)
    got, want = way.attend(*far)[0], way.attend(*near)[0]
    for one, other in zip(gradients(got, far), gradients(want, near), strict=True):
        close(one, other, torch.float64)


@by_way
def test_row_23_incoming_gradient_of_any_layout(way):
    inputs = leaves(*way.problem(torch.float64))
    out, _ = way.attend(*inputs)
    incoming = numbers(out.shape)
    want = torch.autograd.grad(out, inputs, incoming, retain_graph=True, materialize_grads=True)
    for layout in (*LAYOUTS.values(), misaligned):
        got = torch.autograd.grad(out, inputs, layout(incoming), retain_graph=True, materialize_grads=True)
        for one, other in zip(got, want, strict=True):
            close(one, other, torch.float64)
    by_sum = torch.autograd.grad(out.sum(), inputs, materialize_grads=True)  # stride 0
    again = leaves(*inputs)
    by_ones = torch.autograd.grad(way.attend(*again)[0], again, torch.ones(out.shape).double(), materialize_grads=True)
    for one, other in zip(by_sum, by_ones, strict=True):
        close(one, other, torch.float64)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("axes", [(0,), (0, 1), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_row_24_expanded_keys_and_values(way, axes):
    for dtype in DTYPES:
        q, k, v = way.problem(dtype)
        one = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))
        bases = leaves(k[one], v[one])
        expanded = (bases[0].expand(k.shape), bases[1].expand(v.shape))
        copies = leaves(*(tensor.contiguous() for tensor in expanded))
        got, want = way.attend(q, *expanded), way.attend(q, *copies)
        same_bits(got[0], want[0])
        if way.softmax:
            same_bits(got[1], want[1])
        summed = [gradient.double() for gradient in gradients(want[0], copies)]
        for axis in axes:
            summed = [gradient.sum(axis, keepdim=True) for gradient in summed]
        for one_gradient, other in zip(gradients(got[0], bases), summed, strict=True):
            close(one_gradient, other, dtype, loose=5)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("shape", [(1, 1, 5, 7), (2, 1, 1, 7), (1, 6, 5, 1), (1, 1, 1, 7)], ids=str)
def test_row_24_expanded_masks_and_queries(way, shape):
    q, k, v = way.problem(torch.float32)
    keep = numbers(shape, seed=4) > -0.3
    wide = keep.expand(2, 6, 5, 7)
    want = way.attend(q, k, v, mask=qkv.Dense(wide.contiguous()))[0]
    same_bits(way.attend(q, k, v, mask=qkv.Dense(wide))[0], want)
    same_bits(way.attend(q, k, v, mask=qkv.Dense(keep))[0], want)
    close(want, way.reference(q, k, v, keep=wide).out, torch.float32)
    one = q[:1, :1, :1].expand(q.shape)
    same_bits(way.attend(one, k, v)[0], way.attend(one.contiguous(), k, v)[0])


@by_softmax
@pytest.mark.parametrize("shape", [(1, 1, 5, 7), (2, 1, 1, 1), (6, 1, 7)], ids=str)
def test_row_24_expanded_bias(way, shape):
    for dtype in DTYPES:
        q, k, v = way.problem(dtype)
        (base,) = leaves(numbers(shape, dtype, seed=4))
        (copy,) = leaves(base.expand(2, 6, 5, 7).contiguous())
        got, want = way.attend(q, k, v, bias=base.expand(2, 6, 5, 7))[0], way.attend(q, k, v, bias=copy)[0]
        same_bits(got, want)
        summed = gradients(want, (copy,))[0].double().sum_to_size(shape)
        close(gradients(got, (base,))[0], summed, dtype, loose=20)


@pytest.mark.slow
@by_way
@pytest.mark.parametrize("by", [1, 3])
def test_row_25_misaligned_pointers(way, by):
    for dtype in DTYPES:
        assert misaligned(torch.ones(3, dtype=dtype), by).data_ptr() % 16 != 0
        for sizes in (SIZES, LARGER, ONE_WIDTH, POWERS):
            check_layout(way, dtype, lambda tensor: misaligned(tensor, by), sizes)


@by_way
def test_row_25_misaligned_mask(way):
    q, k, v = way.problem(torch.float32)
    _, keep = make_mask("dense")
    want, _ = way.attend(q, k, v, mask=qkv.Dense(keep))
    same_bits(way.attend(q, k, v, mask=qkv.Dense(misaligned(keep)))[0], want)


def test_row_26_there_is_no_out():
    assert "out" not in inspect.signature(qkv.attention).parameters
    q, k, v = problem(torch.float32)
    with pytest.raises(TypeError, match="out"):
        qkv.attention(q, k, v, out=q)


@by_dtype
@by_way
def test_row_26_inputs_may_share_memory_and_are_never_written(way, dtype):
    q, _, _ = way.problem(dtype, len_k=5, heads_kv=6, width_v=11)
    before = q.clone()
    got, _ = way.attend(q, q, q)
    same_bits(got, way.attend(before.clone(), before.clone(), before.clone())[0])
    same_bits(q, before)
    got.fill_(7.0)
    same_bits(q, before)
