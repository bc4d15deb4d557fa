"""decode at its edges: NaN seen and unseen, nothing to see, what it refuses and how, and what explain says."""

import itertools
from math import inf, nan

import pytest
import torch

import qkv
from decode_cases import (
    check_decode,
    cut,
    decode_in_chunks,
    tokens,
)
from decode_reference import (
    HEADS,
    QUERIES,
    STORAGE,
    Plain,
    name_of,
    same_bits,
    untouched,
)
from qkv import errors, ops

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)
by_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)


def new(storage=torch.float32, heads=2, widths=(11, 13), batch=3, **options):
    return qkv.KVCache(batch, heads, widths[0], value_width=widths[1], dtype=storage, **options)


def sequence(n, *, batch=3, heads=(10, 2), widths=(11, 13), dtype=torch.float32, seed=0):
    return tokens(n, batch=batch, heads=heads, widths=widths, dtype=dtype, seed=seed)


def attend_once(storage, tensors, past, **options):
    cache = new(storage)
    cache.append(*cut(tensors[1:], 0, past))
    return qkv.decode(*cut(tensors, past, tensors[0].shape[2]), cache, **options)


@by_storage
def test_attended_nan_is_never_hidden(storage):
    """In exactly the rows that may see it; a value's in its own column, but a whole vector in int8."""
    for dtype in QUERIES:
        for bad in (nan, inf, -inf):
            tensors = [tensor.clone() for tensor in sequence(70, dtype=dtype, batch=1)]
            tensors[2][0, 1, 66, 3] = bad
            plain, cache = Plain(1, 2, 11, 13, storage), new(storage, batch=1)
            expected = plain.decode(*tensors)
            found = decode_in_chunks(cache, tensors, [64, 5, 1])
            expected.check(found)
            column = found[0, 5:, 66:, 3]
            assert bool(column.isnan().all() if storage is torch.int8 or bad != bad else (column == bad).all())
            assert bool(found[0, 5:, :66].isfinite().all())
            assert bool(found[0, :5].isfinite().all())
            key = [tensor.clone() for tensor in sequence(70, dtype=dtype, batch=1)]
            key[1][0, 1, 66, 3] = nan
            plain = Plain(1, 2, 11, 13, storage)
            expected, found = plain.decode(*key), decode_in_chunks(new(storage, batch=1), key, [64, 5, 1])
            expected.check(found)
            assert bool(found[0, 5:, 66:].isnan().all())
            hard = decode_in_chunks(new(storage, batch=1), key, [64, 5, 1], similarity=qkv.Argmax())
            assert bool(hard[0, 5:, 66:].isnan().all())
            assert bool(hard[0, 5:, :66].isfinite().all())
    query = [tensor.clone() for tensor in sequence(70, batch=1)]
    query[0][0, 3, 66, 1] = nan
    found = decode_in_chunks(new(storage, batch=1), query, [64, 5, 1])
    assert bool(found[0, 3, 66].isnan().all())
    assert int(found.isnan().sum()) == 13


@by_storage
def test_masked_nan_cannot_matter(storage):
    """Keys and values that no query sees hold NaN, infinity and 1e30; the bits stay the same."""
    for dtype in QUERIES:
        clean = sequence(133, dtype=dtype)
        dirty = [tensor.clone() for tensor in clean]
        gone = torch.tensor([0, 5, 63, 64, 70, 131])
        poison = torch.tensor([nan, inf, -inf, 1e30, nan, nan], dtype=torch.float64)
        poison = poison.clamp(max=6e4).to(dtype)[None, None, :, None] if dtype is torch.float16 else poison.to(dtype)
        poison = poison.reshape(1, 1, 6, 1)
        dirty[1][:, :, gone], dirty[2][:, :, gone] = poison, poison.flip(2)
        keep = torch.ones(133, dtype=torch.bool)
        keep[gone] = False
        ids = (~keep).int().expand(3, -1)
        bias = torch.zeros(133, dtype=dtype)
        bias[gone] = -inf
        masks = (
            {"mask": qkv.Dense(keep)},
            {"mask": qkv.Padding(keep=keep.expand(3, -1))},
            {"mask": qkv.Segments(torch.zeros_like(ids), ids)},
            {"mask": qkv.Predicate(lambda b, h, i, j, kept=keep: kept[j] & (i >= 0))},
            {"bias": bias},
            {"mask": qkv.Dense(keep), "similarity": qkv.Argmax()},
        )
        for given in masks:
            one, other = (attend_once(storage, t, 130, **given) for t in (clean, dirty))
            assert bool(other.isfinite().all())
            same_bits(other, one, f"{name_of(dtype)} with {given}")


@pytest.mark.parametrize("storage", STORAGE[:3], ids=name_of)
def test_infinite_scores_mean_what_they_mean_to_attention(storage):
    """+inf makes its row NaN; −inf has weight 0, and the value behind it does not matter, NaN or not."""
    for bad in (inf, -inf):
        for behind in (1.0, nan, inf):
            query, key, value = (tensor.clone() for tensor in sequence(70))
            key[:, :, 10, 3], value[:, :, 10, 2] = bad, behind
            cache = new(storage)
            plain = Plain.beside(cache)
            found = decode_in_chunks(cache, (query, key, value), [66, 1, 3])
            plain.decode(query, key, value).check(found)
            lost = found[:, :, 10:].isnan().all(-1)
            assert bool(lost.any())
            assert not lost.all()


def test_a_query_that_sees_nothing_gets_exactly_zero():
    for storage, sink in itertools.product(STORAGE, (None, 0.5)):
        cache = new(storage)
        tensors = [tensor.clone() for tensor in sequence(68)]
        cache.append(*cut(tensors[1:], 0, 66))
        keep = torch.ones(3, 10, 2, 68, dtype=torch.bool)
        keep[1, 3, 0], keep[2] = False, False
        out = qkv.decode(*cut(tensors, 66, 68), cache, mask=qkv.Dense(keep), similarity=qkv.Softmax(sink=sink))
        assert not out[1, 3, 0].any()
        assert not out[2].any()
        assert bool(out[0].any())


def test_finite_scores_however_small_still_count():
    cache, tensors = new(), sequence(66)
    bias = torch.full((66,), -1e5)
    out = decode_in_chunks(cache, tensors, [66], bias=bias)
    torch.testing.assert_close(out, decode_in_chunks(new(), tensors, [66]), atol=1e-2, rtol=1e-2)


def test_batch_heads_and_tokens_one():
    out = check_decode(batch=1, heads=(1, 1), widths=(1, 1), past=0, n=1)
    assert out.shape == (1, 1, 1, 1)
    cache, value = qkv.KVCache(1, 1, 3), torch.tensor([[[[2.0, -1.0, 5.0]]]])
    same_bits(qkv.decode(value, value, value, cache), value)
    assert cache.value_width == 3


WRONG = {
    "query of other heads": ((3, 5, 1, 11), (3, 2, 1, 11), (3, 2, 1, 13), errors.ShapeError),
    "query of another width": ((3, 10, 1, 12), (3, 2, 1, 11), (3, 2, 1, 13), errors.ShapeError),
    "query of another length": ((3, 10, 2, 11), (3, 2, 1, 11), (3, 2, 1, 13), errors.ShapeError),
    "value of another length": ((3, 10, 1, 11), (3, 2, 1, 11), (3, 2, 2, 13), errors.ShapeError),
    "three dimensions": ((3, 1, 11), (3, 1, 11), (3, 1, 13), errors.ShapeError),
    "another batch": ((4, 10, 1, 11), (4, 2, 1, 11), (4, 2, 1, 13), errors.ShapeError),
    "other heads": ((3, 10, 1, 11), (3, 5, 1, 11), (3, 5, 1, 13), errors.ShapeError),
    "another width": ((3, 10, 1, 12), (3, 2, 1, 12), (3, 2, 1, 13), errors.ShapeError),
    "another value width": ((3, 10, 1, 11), (3, 2, 1, 11), (3, 2, 1, 14), errors.ShapeError),
}


@pytest.mark.parametrize("name", WRONG)
def test_shapes_that_do_not_fit(name):
    *shapes, kind = WRONG[name]
    tensors = [torch.zeros(shape) for shape in shapes]
    for filled in (False, True):
        cache = new()
        if filled:
            cache.append(*sequence(3)[1:])
        for run in (
            lambda m=cache: qkv.decode(*tensors, m),
            lambda m=cache: qkv.explain(*tensors, cache=m),
        ):
            with untouched(cache), pytest.raises(kind, match="wanted"):
                run()


REFUSED = {
    "polynomial": ({"similarity": qkv.Polynomial()}, errors.BackendRefused),
    "features": ({"similarity": qkv.FeatureMap(lambda x: x)}, errors.BackendRefused),
    "similarity": ({"similarity": qkv.Similarity(lambda q, k: q @ k.mT)}, errors.BackendRefused),
    "a word": ({"similarity": "softmax"}, errors.OptionTypeError),
    "argmax with bias": ({"similarity": qkv.Argmax(), "bias": torch.zeros(5)}, errors.OptionError),
    "bias of another shape": ({"bias": torch.zeros(7)}, errors.ShapeError),
    "bias of the whole sequence": ({"bias": torch.zeros(5, 5)}, errors.ShapeError),
    "boolean bias": ({"bias": torch.zeros(5, dtype=torch.bool)}, errors.MaskTypeError),
    "mask of another length": ({"mask": qkv.Dense(torch.ones(7, dtype=torch.bool))}, errors.MaskError),
    "mask of other heads": ({"mask": qkv.Dense(torch.ones(3, 1, 5, dtype=torch.bool))}, errors.MaskError),
    "mask of other queries": ({"mask": qkv.Dense(torch.ones(3, 5, dtype=torch.bool))}, errors.MaskError),
    "a tensor for a mask": ({"mask": torch.ones(5, dtype=torch.bool)}, errors.QkvError),
    "padding too long": ({"mask": qkv.Padding(lengths=[5, 6, 5])}, errors.MaskError),
    "padding of other rows": ({"mask": qkv.Padding(lengths=[5, 5])}, errors.MaskError),
    "segments of another length": ({"mask": qkv.Segments([0] * 4)}, errors.MaskError),
    "sinks of other heads": ({"similarity": qkv.Softmax(sink=torch.zeros(3))}, errors.ShapeError),
    "lengths of another batch": ({"lengths": torch.tensor([1, 1])}, errors.QkvError),
    "lengths beyond n": ({"lengths": torch.tensor([1, 3, 1])}, errors.QkvError),
    "a negative length": ({"lengths": torch.tensor([1, -1, 1])}, errors.QkvError),
    "fractions of lengths": ({"lengths": torch.tensor([1.0, 1.0, 1.0])}, errors.QkvError),
    "padding in the middle": ({"lengths": torch.tensor([1, 1, 1]), "padding": "middle"}, errors.OptionError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_the_memory_as_it_was(name):
    given, kind = REFUSED[name]
    cache = new()
    cache.append(*sequence(3)[1:])
    fresh = sequence(2, seed=1)
    with untouched(cache), pytest.raises(kind, match="wanted"):
        qkv.decode(*fresh, cache, **given)
    plain = Plain.beside(cache)
    plain.append(*sequence(3)[1:])
    plain.decode(*fresh).check(qkv.decode(*fresh, cache))


def test_what_has_no_memory_yet_is_told_where_to_go():
    with pytest.raises(errors.BackendRefused) as caught:
        qkv.decode(*sequence(1), new(), similarity=qkv.Polynomial())
    assert "attention" in str(caught.value)


def test_an_error_of_the_users_own_leaves_the_memory_as_it_was():
    cache = new()
    cache.append(*sequence(66)[1:])

    def fails(b, h, i, j):
        raise ZeroDivisionError("the user's own")

    with untouched(cache), pytest.raises(Exception, match="the user's own"):
        qkv.decode(*sequence(2, seed=1), cache, mask=qkv.Predicate(fails))


@pytest.mark.parametrize("which", ["query", "key", "value", "bias", "sink"])
def test_inputs_that_require_grad_are_refused_with_the_reason(which):
    tensors = dict(zip(("query", "key", "value"), sequence(1), strict=True))
    given = {"bias": torch.zeros(1), "sink": torch.zeros(10)}
    (given if which in given else tensors)[which].requires_grad_()
    options = {"bias": given["bias"], "similarity": qkv.Softmax(sink=given["sink"])}
    cache = new()
    with untouched(cache), pytest.raises(errors.QkvError, match="no_grad") as caught:
        qkv.decode(*tensors.values(), cache, **options)
    assert "attention" in str(caught.value)
    with torch.no_grad():
        assert not qkv.decode(*tensors.values(), cache, **options).requires_grad
    with torch.inference_mode():
        qkv.decode(*tensors.values(), cache, **options)
    assert cache.length == 2


def test_append_refuses_gradients_too_or_keeps_none():
    _, key, value = sequence(1)
    cache = new()
    with torch.no_grad():
        cache.append(key.requires_grad_(), value)
    assert not any(t.requires_grad for t in cache.tensors())
    key.detach_()


def test_torch_func_is_refused_with_the_reason():
    """Gradients by another door, and batches that nobody sees: refused, and the cache stays as it was."""
    query, key, value = sequence(1)
    cache = new()
    cache.append(*sequence(3)[1:])

    def run(q, k=key):
        return qkv.decode(q, k, value, cache)

    tries = {
        "vmap": lambda: torch.func.vmap(run)(query[None]),
        "grad": lambda: torch.func.grad(lambda q: run(q).sum())(query),
        "grad by keys": lambda: torch.func.grad(lambda k: run(query, k).sum())(key),
        "jvp": lambda: torch.func.jvp(run, (query,), (query,)),
    }
    for attempt in tries.values():
        with untouched(cache), pytest.raises(errors.QkvError, match="attention"):
            attempt()


def test_not_a_memory():
    for thing in (None, "cache", torch.zeros(3), qkv.KVCache):
        with pytest.raises(errors.QkvError, match="cache"):
            qkv.decode(*sequence(1), thing)


class TestExplain:
    def test_nothing_is_appended(self):
        cache = new()
        cache.append(*sequence(5)[1:])
        with untouched(cache):
            before = ops.calls()
            choice = qkv.explain(*sequence(2), cache=cache, similarity=qkv.Softmax(softcap=3.0), mask=qkv.Window(2))
            assert ops.calls() == before
        assert isinstance(choice, qkv.Choice)
        assert choice.backend
        assert str(choice)
        assert choice._repr_html_()

    def test_an_empty_memory(self):
        for n in (0, 1, 3):
            assert qkv.explain(*sequence(n), cache=new()).backend

    def test_it_refuses_what_decode_refuses(self):
        cache = new()
        for given in (REFUSED["polynomial"], REFUSED["argmax with bias"]):
            with pytest.raises(given[1]):
                qkv.explain(*sequence(1), cache=cache, **given[0])

    def test_float64_is_told_why_it_does_not_run_natively(self):
        text = str(qkv.explain(*sequence(1, dtype=torch.float64), cache=new()))
        assert "float64" in text
