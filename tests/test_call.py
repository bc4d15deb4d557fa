"""Reading a call: what is checked, what is normalised, and that heads are mapped in one place."""

import pytest
import torch

import qkv
from qkv.call import arithmetic, compact, fold_group, is_traced, read_call, unfold_group
from qkv.errors import DtypeError, OptionError, OptionTypeError, QkvError, ShapeError


def call(query, key, value, **options):
    given = {
        "similarity": None,
        "mask": None,
        "bias": None,
        "dropout": 0.0,
        "form": "auto",
        "return_lse": False,
        "return_weights": False,
    } | options
    return read_call(query, key, value, *given.values())


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
    assert arithmetic(dtype) is torch.float32
    assert arithmetic(torch.float64) is torch.float64


def test_compact_copies_what_is_held_and_not_what_is_expanded() -> None:
    held = torch.randn(3, 7, 5).transpose(0, 1)
    plain = compact(held)
    assert plain.is_contiguous()
    assert torch.equal(plain, held)
    wide = torch.randn(1, 5).expand(10**12, 5)
    assert compact(wide).stride() == (0, 1)
    assert compact(plain) is plain


def test_signature_knows_sizes_and_kinds_but_no_numbers() -> None:
    def signature(value, **options):
        q = torch.full((2, 6, 5, 11), value)
        k = torch.full((2, 3, 5, 11), value)
        return call(q, k, k, **options).signature

    assert signature(0.0) == signature(1.0)
    assert signature(0.0, mask=qkv.Padding(lengths=[1, 2])) == signature(0.0, mask=qkv.Padding(lengths=[3, 4]))
    different = [{}, {"mask": qkv.Causal()}, {"mask": qkv.Causal(1)}, {"similarity": qkv.Argmax()}]
    different += [{"similarity": qkv.Softmax(scale=2.0)}, {"dropout": 0.1}, {"form": "dense"}, {"return_lse": True}]
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
    "an unknown form": (lambda q: (q, q, q), {"form": "fast"}, OptionError, "'fast'"),
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
