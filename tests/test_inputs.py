"""Reading a call: what is checked, what is normalised, and that heads are mapped in one place."""

import pytest
import torch

import qkv
from qkv.errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError
from qkv.inputs import (
    ALIGNMENT,
    aligned_layout,
    compact,
    compute_dtype,
    fold_group,
    is_traced,
    read_inputs,
    unfold_group,
)


def call(query, key, value, **options):
    given = {
        "similarity": None,
        "mask": None,
        "bias": None,
        "dropout": 0.0,
        "backend": "auto",
        "return_lse": False,
        "return_weights": False,
    } | options
    return read_inputs(query, key, value, *given.values())


def test_sizes_are_read_off_the_shapes() -> None:
    read = call(torch.zeros(2, 6, 5, 11), torch.zeros(2, 3, 7, 11), torch.zeros(2, 3, 7, 13))
    assert (read.group, read.heads_kv, read.width, read.width_v) == (2, 3, 11, 13)
    assert (read.extent.batch, read.extent.heads, read.extent.len_q, read.extent.len_k) == (2, 6, 5, 7)


def test_group_folds_into_rows_by_the_one_head_mapping() -> None:
    heads, rows = torch.arange(6), torch.arange(5)
    tensor = (heads[:, None] * 100 + rows)[None, :, :, None].expand(2, 6, 5, 1)
    folded = fold_group(tensor, 3)
    assert folded.shape == (2, 3, 10, 1)
    for kv_head in range(3):
        assert {int(h) // 100 for h in folded[0, kv_head, :, 0]} == {2 * kv_head, 2 * kv_head + 1}
    assert torch.equal(unfold_group(folded, 6), tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_compute_in_float32(dtype: torch.dtype) -> None:
    assert compute_dtype(dtype) is torch.float32
    assert compute_dtype(torch.float64) is torch.float64


def off_by_one(*shape: int) -> torch.Tensor:
    """Plain, and one number off every boundary."""
    return torch.randn(torch.Size(shape).numel() + 1)[1:].view(shape)


@pytest.mark.parametrize(
    "given",
    [
        torch.randn(3, 7, 5).transpose(0, 1),
        torch.randn(2, 3, 7, 11)[:, :, 1:],
        torch.randn(2, 1, 7, 11).expand(2, 3, 7, 11),
        torch.randn(1, 1, 7, 11).expand(2, 3, 7, 11),
        torch.randn(2, 3, 1, 16).expand(2, 3, 7, 16),
        torch.randn(2, 3, 1, 16)[:, :1].as_strided((2, 1, 1, 16), (48, 5, 3, 1)),
        off_by_one(2, 3, 7, 11),
        off_by_one(1, 1, 5, 16).expand(2, 3, 5, 16),
        torch.randn(7, 5).T,
    ],
    ids=lambda given: str(given.stride()),
)
def test_compact_and_level_give_the_same_numbers_from_a_boundary_on(given: torch.Tensor) -> None:
    plain = compact(given)
    assert torch.equal(plain, given)
    assert plain.data_ptr() % ALIGNMENT == 0
    if given.dim() == 4:
        assert torch.equal(aligned_layout(given), given)
        assert aligned_layout(given).data_ptr() % ALIGNMENT == 0
    if 0 not in plain.stride():
        assert plain.stride() == torch.empty(plain.shape).stride()
        assert compact(plain) is plain


def test_nothing_is_copied_that_is_expanded_or_lies_well() -> None:
    wide = torch.randn(1, 1, 5, 16).expand(10**6, 10**6, 5, 16)
    assert compact(wide).stride() == aligned_layout(wide).stride() == (0, 0, 16, 1)
    projected = torch.randn(2, 7, 3, 16).transpose(1, 2)  # heads after the length
    cached = torch.randn(2, 3, 13, 16)[:, :, 1:8]
    shared = torch.randn(2, 1, 7, 16).expand(2, 3, 7, 16)
    for good in (projected, cached, shared, torch.randn(2, 3, 7, 11)):
        assert aligned_layout(good) is good


@pytest.mark.parametrize(
    "bad",
    [
        torch.randn(2, 3, 7, 16)[..., :11],  # rows on boundaries, where those of a plain copy are not
        torch.randn(2, 3, 7, 17)[..., :16],
        torch.randn(2, 3, 1, 16).expand(2, 3, 7, 16),  # no row has room of its own
        torch.randn(2, 3, 16, 7).mT,
        off_by_one(2, 3, 7, 16),
    ],
    ids=lambda bad: str(bad.stride()),
)
def test_level_copies_what_would_round_otherwise(bad: torch.Tensor) -> None:
    assert aligned_layout(bad).stride() == torch.empty(bad.shape).stride()
    assert torch.equal(aligned_layout(bad), bad)


def test_gradients_go_through_a_compact_copy() -> None:
    leaf = torch.randn(2 * 3 * 7 + 1, requires_grad=True)
    compact(leaf[1:].view(2, 3, 7)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [0.0] + [1.0] * 42


def test_signature_knows_sizes_and_kinds_but_no_numbers() -> None:
    def signature(value, **options):
        q = torch.full((2, 6, 5, 11), value)
        k = torch.full((2, 3, 5, 11), value)
        return call(q, k, k, **options).signature

    assert signature(0.0) == signature(1.0)
    assert signature(0.0, mask=qkv.Padding(lengths=[1, 2])) == signature(0.0, mask=qkv.Padding(lengths=[3, 4]))
    different = [{}, {"mask": qkv.Causal()}, {"mask": qkv.Causal(1)}, {"similarity": qkv.Argmax()}]
    different += [
        {"similarity": qkv.Softmax(scale=2.0)},
        {"dropout": 0.1},
        {"backend": "reference"},
        {"return_lse": True},
    ]
    assert len({signature(0.0, **options) for options in different}) == len(different)
    hash(signature(0.0, mask=qkv.Predicate(lambda b, h, i, j: i >= j)))


def test_three_dimensional_bias_means_the_callers_scores() -> None:
    q = torch.zeros(5, 5, 7)
    per_batch = torch.randn(5, 1, 5)
    assert call(q, q, q, bias=per_batch).bias.shape == (5, 1, 1, 5)
    heads = q[None]
    assert call(heads, heads, heads, bias=per_batch).bias.shape == (1, 5, 1, 5)


REFUSED = {
    "a list": (lambda q: ([1.0], q, q), {}, DtypeError, "query"),
    "five dimensions": (lambda q: (q[None], q[None], q[None]), {}, ShapeError, "5 dimensions"),
    "another rank": (lambda q: (q, q[0], q), {}, ShapeError, "key"),
    "integers": (lambda q: (q.long(), q.long(), q.long()), {}, DtypeError, "int64"),
    "another batch": (lambda q: (q, q[:1], q[:1]), {}, ShapeError, "batch 1"),
    "an unknown backend": (lambda q: (q, q, q), {"backend": "fast"}, OptionError, "'fast'"),
    "a function": (lambda q: (q, q, q), {"similarity": torch.exp}, OptionTypeError, "Similarity\\(function\\)"),
    "a class": (lambda q: (q, q, q), {"similarity": qkv.Argmax}, OptionTypeError, "Argmax\\(...\\)"),
    "a raw mask": (lambda q: (q, q, q), {"mask": torch.ones(5, 5, dtype=torch.bool)}, QkvError, "Dense"),
    "bias with argmax": (
        lambda q: (q, q, q),
        {"similarity": qkv.Argmax(), "bias": torch.zeros(5, 5)},
        OptionError,
        "bias",
    ),
    "bias of a wrong shape": (lambda q: (q, q, q), {"bias": torch.zeros(4, 5)}, ShapeError, r"\(4, 5\)"),
    "a sink of a wrong shape": (
        lambda q: (q, q, q),
        {"similarity": qkv.Softmax(sink=torch.zeros(4))},
        ShapeError,
        "one logit per query head",
    ),
    "lse of features": (
        lambda q: (q, q, q),
        {"similarity": qkv.Polynomial(), "return_lse": True},
        OptionError,
        "return_lse",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_word_to_the_caller(name: str) -> None:
    tensors, options, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        call(*tensors(torch.zeros(2, 3, 5, 7)), **options)
    assert "wanted" in str(caught.value)


def test_a_parameter_is_no_tracer_and_other_subclasses_are() -> None:
    class Odd(torch.Tensor):
        pass

    assert not is_traced(torch.zeros(2), torch.nn.Parameter(torch.zeros(2)))
    assert is_traced(torch.zeros(2).as_subclass(Odd))
