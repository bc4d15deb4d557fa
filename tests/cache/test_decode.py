"""`decode` equals the last rows of attention over the whole sequence, for every dtype, mask, similarity and chunk."""

import itertools
from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors, ops
from qkv.testing import layouts, poisoned_memory
from tests.helpers.decode_cases import (
    BIASES,
    MASKS,
    SIMILARITIES,
    Scene,
    check_decode,
    cut,
    decode_in_chunks,
    make_bias,
    make_mask,
    make_similarity,
    tokens,
)
from tests.helpers.decode_reference import (
    HEADS,
    QUERIES,
    STORAGE,
    Plain,
    fill,
    has_scales,
    in_a_process,
    name_of,
    numbers,
    same_bits,
    untouched,
)

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)
by_dtype = pytest.mark.parametrize("dtype", QUERIES, ids=name_of)
# Native kernels sum in float32; float64 queries take the backends that torch computes.
by_native_dtype = pytest.mark.parametrize("dtype", [d for d in QUERIES if d is not torch.float64], ids=name_of)
by_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)


def new(storage=torch.float32, heads=2, widths=(11, 13), batch=3, **options):
    return qkv.KVCache(batch, heads, widths[0], value_width=widths[1], dtype=storage, **options)


def sequence(n, *, batch=3, heads=(10, 2), widths=(11, 13), dtype=torch.float32, seed=0):
    return tokens(n, batch=batch, heads=heads, widths=widths, dtype=dtype, seed=seed)


@pytest.mark.slow
@by_storage
@by_dtype
@by_heads
def test_every_storage_and_every_dtype(storage, dtype, heads):
    for past, n in ((0, 1), (1, 1), (67, 1), (67, 3), (0, 3), (130, 70), (0, 131)):
        check_decode(storage=storage, dtype=dtype, heads=heads, past=past, n=n, seed=past + n)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_similarity_with_every_mask(similarity):
    for at, mask in enumerate(MASKS):
        for n in (1, 4):
            storage, dtype = STORAGE[(at + n) % len(STORAGE)], QUERIES[(at // 4 + at) % 4]
            heads = list(HEADS.values())[at % 3]
            check_decode(storage=storage, dtype=dtype, heads=heads, n=n, similarity=similarity, mask=mask, seed=at)


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_with_every_dtype(mask):
    for storage, dtype in zip(STORAGE * 2, (*QUERIES, *QUERIES[::-1], *QUERIES), strict=True):
        check_decode(storage=storage, dtype=dtype, n=3, mask=mask, past=62)
        check_decode(storage=storage, dtype=dtype, n=1, mask=mask, past=0, seed=1)
        check_decode(storage=storage, dtype=dtype, n=5, mask=mask, past=130, window=70, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("bias", BIASES)
def test_every_bias(bias):
    for storage, dtype in zip(STORAGE * 2, (*QUERIES, *QUERIES[::-1], *QUERIES), strict=True):
        for mask, n in (("none", 1), ("and", 3), ("dense new", 4)):
            check_decode(storage=storage, dtype=dtype, n=n, bias=bias, mask=mask, similarity="everything")


@pytest.mark.slow
@by_storage
def test_argmax_takes_the_first_of_equal_keys(storage):
    """Whole numbers: scores are exact, and ties are everywhere."""
    for past, n, window in ((0, 9, None), (67, 3, None), (140, 1, 50), (1, 130, 3)):
        for mask in ("none", "predicate", "dense all"):
            check_decode(
                storage=storage,
                similarity="argmax",
                past=past,
                n=n,
                window=window,
                mask=mask,
                whole=True,
                widths=(3, 5),
            )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 80, 96, 128, 131])
def test_widths_leave_rests_of_every_size(width):
    for storage, value_width in zip(STORAGE, (width, 16, 17, width + 1, width, 33), strict=True):
        for n in (1, 6):
            check_decode(storage=storage, widths=(width, value_width), n=n, batch=2, heads=(6, 2), seed=width)
            check_decode(storage=storage, widths=(value_width, width), n=n, batch=1, heads=(3, 1), seed=width)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32, 33])
def test_groups_of_every_size(group):
    for storage in STORAGE:
        for n in (1, 2, 11):
            check_decode(storage=storage, heads=(2 * group, 2), batch=2, past=71, n=n, widths=(19, 23), seed=group)


@pytest.mark.parametrize("past", [0, 1, 2, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1021])
def test_pasts_that_end_near_a_page_boundary(past):
    for at, n in enumerate((1, 2, 63, 64, 65)):
        check_decode(
            storage=STORAGE[(at + past) % len(STORAGE)], past=past, n=n, batch=2, heads=(3, 1), widths=(5, 7), seed=past
        )


def test_long_past_and_large_scores():
    for storage in STORAGE:
        check_decode(storage=storage, past=9001, n=2, batch=1, heads=(4, 2), widths=(32, 17))
    shape = {"batch": 2, "heads": (4, 2), "widths": (32, 17)}
    cache, tensors = new(batch=2, widths=(32, 17)), sequence(300, **shape)
    plain = Plain.like(cache)
    query, key, value = tensors
    query = query * 30  # the softmax saturates
    expected = plain.decode(query, key, value)
    expected.check(qkv.decode(query, key, value, cache))


@by_heads
def test_no_new_queries(heads):
    cache = new(heads=heads[1])
    for _ in range(2):
        with untouched(cache):
            out = qkv.decode(*sequence(0, heads=heads), cache)
            assert out.shape == (3, heads[0], 0, 13)
            assert out.dtype is torch.float32
        cache.append(*sequence(3, heads=heads)[1:])
    assert cache.length == 6


def test_it_is_what_attention_says_of_the_whole_sequence():
    """The promise in its own words: rows [past : past + n] of attention with `Causal() & mask`."""
    query, key, value = sequence(75)
    causal = qkv.Causal()
    masks = {
        "none": (None, causal),
        "window": (qkv.Window(left=7), causal & qkv.Window(left=7)),
        "or": (
            qkv.Window(left=7) | qkv.Dense(torch.arange(75) < 2),
            causal & (qkv.Window(left=7) | qkv.Dense(torch.arange(75) < 2)),
        ),
    }
    for storage in STORAGE:
        for given, whole in masks.values():
            for similarity in (None, qkv.Softmax(softcap=2.0, sink=0.3), qkv.Argmax()):
                cache = new(storage)
                fill(cache, *cut((key, value), 0, 70))
                found = qkv.decode(*cut((query, key, value), 70, 75), cache, mask=given, similarity=similarity)
                kept = (t.float() for t in cache.tensors())
                wanted = qkv.attention(query, *kept, mask=whole, similarity=similarity)[:, :, 70:]
                torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


CHUNKS = ([151], [1] * 151, [64, 64, 23], [63, 1, 1, 86], [150, 1], [1, 150], [37] * 4 + [3], [0, 80, 0, 71])


@by_storage
@by_native_dtype
def test_prefill_chunked_prefill_and_steps_give_the_same_bits(storage, dtype):
    tensors = sequence(151, batch=2, heads=(6, 2), dtype=dtype)
    plain = Plain(2, 2, 11, 13, storage)
    plain.decode(*tensors).check(decode_in_chunks(new(storage, batch=2), tensors, [151]))
    options = (
        {},
        {"similarity": make_similarity("everything", 6, dtype), "mask": qkv.Window(left=90)},
        {"similarity": qkv.Argmax()},
        {"mask": qkv.Predicate(lambda b, h, i, j: (i + 3 * j + h) % 5 != 0)},
    )
    # Queries of other dtypes are widened first: two of the options are enough for them.
    for given, window in itertools.product(options if dtype is torch.float32 else options[1:3], (None, 70)):
        if window is not None and "mask" in given:  # masks that reach behind the window are refused
            given = {**given, "mask": given["mask"] & qkv.Window(left=window - 1, offset=0)}
        answers = [decode_in_chunks(new(storage, batch=2, window=window), tensors, c, **given) for c in CHUNKS]
        for chunks, answer in zip(CHUNKS, answers, strict=True):
            same_bits(answer, answers[0], f"{given}, window {window}, in chunks {chunks[:4]}…")


@by_storage
def test_cuts_in_float64_agree(storage):
    tensors = sequence(151, batch=2, heads=(6, 2), dtype=torch.float64)
    for chunks in ([151], [64, 64, 23], [150, 1], [1] * 20 + [131]):
        plain = Plain(2, 2, 11, 13, storage)
        plain.decode(*tensors).check(decode_in_chunks(new(storage, batch=2), tensors, chunks))


@by_storage
def test_append_then_decode_is_decode(storage):
    """It does not matter whether the past came by append or by decode, nor in which cuts."""
    tensors = sequence(140)
    wanted = decode_in_chunks(new(storage), tensors, [139, 1])[:, :, 139:]
    for chunk in (None, 1, 50, 64):
        cache = new(storage)
        fill(cache, *cut(tensors[1:], 0, 139), chunk=chunk)
        same_bits(qkv.decode(*cut(tensors, 139, 140), cache), wanted, f"appended {chunk} at a time")


def attend_once(storage, tensors, past, **options):
    cache = new(storage, heads=tensors[1].shape[1], widths=(tensors[0].shape[3], tensors[2].shape[3]))
    cache.append(*cut(tensors[1:], 0, past))
    return qkv.decode(*cut(tensors, past, tensors[0].shape[2]), cache, **options)


@pytest.mark.slow
@by_storage
@by_native_dtype
def test_thread_count_does_not_matter_to_a_bit(storage, dtype, threads):
    for past, n, heads in ((3000, 1, (4, 2)), (3000, 3, (5, 1)), (5, 700, (2, 2))):
        tensors = sequence(past + n, heads=heads, dtype=dtype)
        for similarity in (None, qkv.Argmax()):
            answers = []
            for count in (1, 2, 3):
                threads(count)
                answers.append(attend_once(storage, tensors, past, similarity=similarity))
            for answer in answers[1:]:
                same_bits(answer, answers[0], f"past {past}, n {n}")


@by_storage
@by_native_dtype
def test_batch_companions_do_not_matter_to_a_bit(storage, dtype):
    """Each row equals the row on its own, whatever its companions' lengths and numbers are."""
    past, lengths = sequence(130, batch=5, dtype=dtype), torch.tensor([130, 0, 64, 7, 129])
    fresh = sequence(4, batch=5, dtype=dtype, seed=9)
    poisoned = [tensor.clone() for tensor in past]
    for tensor in poisoned:
        tensor[4] = nan
    for tensors in (past, poisoned):
        together = new(storage, batch=5)
        together.append(*tensors[1:], lengths=lengths)
        out = qkv.decode(*fresh, together)
        for row in range(4):
            alone = new(storage, batch=1)
            alone.append(*(t[row : row + 1, :, : lengths[row]] for t in tensors[1:]))
            same_bits(out[row : row + 1], qkv.decode(*(t[row : row + 1] for t in fresh), alone), f"row {row}")


@pytest.mark.slow
@by_storage
@by_native_dtype
def test_layout_does_not_matter_to_a_bit(storage, dtype):
    tensors = sequence(70, batch=2, heads=(6, 2), dtype=dtype)
    scene = Scene(2, 6, 70, 70)
    keep, bias = scene.coins(2, 6, 70, 70), make_bias("full", scene, dtype, holes=False)

    def run(query, key, value, **options):
        return qkv.decode(query, key, value, new(storage, batch=2), **options)

    wanted = run(*tensors, mask=qkv.Dense(keep), bias=bias)
    for name, (query, key, value) in zip(
        (n for n, _ in layouts(keep.float())),
        zip(*([same for _, same in layouts(tensor)] for tensor in tensors), strict=True),
        strict=True,
    ):
        same_bits(run(query, key, value, mask=qkv.Dense(keep), bias=bias), wanted, f"all {name}")
        same_bits(run(query, *tensors[1:], mask=qkv.Dense(keep), bias=bias), wanted, f"query {name}")
    for name, other in layouts(bias):
        same_bits(run(*tensors, mask=qkv.Dense(keep), bias=other), wanted, f"bias {name}")
    for turned in (keep.transpose(1, 2).contiguous().transpose(1, 2), keep.transpose(-1, -2).contiguous().mT):
        same_bits(run(*tensors, mask=qkv.Dense(turned), bias=bias), wanted, "a turned mask")
    # Stride 0: all rows, heads or tokens the same.
    for axis in range(4):
        base = [tensor.narrow(axis, 0, 1) for tensor in tensors]
        wide = [b.expand(t.shape) for b, t in zip(base, tensors, strict=True)]
        same_bits(run(*wide), run(*(w.contiguous() for w in wide)), f"axis {axis} expanded")


def test_uninitialized_memory_is_not_read():
    for storage in STORAGE:
        tensors = sequence(70)
        wanted = decode_in_chunks(new(storage), tensors, [67, 1, 2])
        with poisoned_memory():
            same_bits(decode_in_chunks(new(storage), tensors, [67, 1, 2]), wanted)


def test_inputs_are_copied_and_results_are_the_callers():
    tensors = sequence(5)
    cache = new()
    first = qkv.decode(*cut(tensors, 0, 4), cache)
    kept = first.clone()
    wanted = decode_in_chunks(new(), tensors, [4, 1])[:, :, 4:]
    last = [tensor[:, :, 4:].clone() for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(nan)
    first.fill_(nan)
    same_bits(qkv.decode(*last, cache), wanted)
    assert kept.isfinite().all()


@by_native_dtype
def test_the_native_kernel_is_what_runs(dtype):
    assert ops.available(), ops.reasons()
    for storage in STORAGE:
        for n, options in ((1, {}), (3, {"similarity": qkv.Argmax()}), (1, {"mask": qkv.Window(left=3)}), (70, {})):
            cache = new(storage)
            before = ops.calls()
            qkv.decode(*sequence(n, dtype=dtype), cache, **options)
            after = ops.calls()
            assert after["cache_attend"] > before["cache_attend"], f"{storage}, {n} queries, {options}"
            assert after["cache_append"] > before["cache_append"]


def test_the_native_kernel_runs_under_every_mask_bias_and_similarity():
    for mask, similarity in (*((m, "default") for m in MASKS), *(("none", s) for s in SIMILARITIES)):
        before = ops.calls()["cache_attend"]
        check_decode(mask=mask, similarity=similarity, n=3)
        assert ops.calls()["cache_attend"] > before, f"{mask}, {similarity}"
    before = ops.calls()["cache_attend"]
    check_decode(bias="full", n=3)
    assert ops.calls()["cache_attend"] > before


BATTERY = """
import torch
from tests.helpers.decode_cases import battery
from qkv import ops
torch.set_num_threads(1)
print(battery(), ops.isa(), ops.calls())
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", [isa for isa in ops.isas() if isa != ops.isa()])
def test_every_other_instruction_set(isa):
    said = in_a_process(BATTERY, QKV_ISA=isa)
    assert f" {isa} " in said
    assert "'cache_attend': 0" not in said


@pytest.mark.slow
def test_without_the_native_library():
    said = in_a_process(BATTERY, QKV_NATIVE="0")
    assert " none " in said


@pytest.mark.slow
def test_masks_are_read_in_absolute_positions_of_each_row():
    """Rows of different lengths: windows, predicates and whole-sequence tensors follow each row's own position."""
    for storage, dtype in zip(STORAGE, (*QUERIES, *QUERIES[:2]), strict=True):
        for name, padding in itertools.product(MASKS, ("right", "left")):
            past, lengths = sequence(70, dtype=dtype), [70, 3, 66]
            cache = new(storage)
            plain = Plain.like(cache)
            cache.append(*past[1:], lengths=torch.tensor(lengths))
            plain.append(*past[1:], lengths=lengths)
            fresh, counts = sequence(5, dtype=dtype, seed=4), [2, 5, 0]
            mask, keep = make_mask(name, Scene(3, 10, 5, 72))
            found = qkv.decode(*fresh, cache, mask=mask, lengths=torch.tensor(counts), padding=padding)
            expected = plain.decode(*fresh, keep=keep, lengths=counts, padding=padding)
            expected.check(found)
            assert cache.lengths.tolist() == [72, 8, 66]


@pytest.mark.parametrize("total", [1, 2, 3])
def test_a_call_that_is_longer_than_the_sequence(total):
    """Padding alone makes it so: fewer positions than new queries, down to one."""
    for name, padding in itertools.product(MASKS, ("right", "left")):
        if name == "dense new" or "queries" in name:
            continue
        cache = new()
        plain = Plain.like(cache)
        fresh, counts = sequence(5), [total, 0, total - 1]
        mask, keep = make_mask(name, Scene(3, 10, 5, total))
        found = qkv.decode(*fresh, cache, mask=mask, lengths=torch.tensor(counts), padding=padding)
        plain.decode(*fresh, keep=keep, lengths=counts, padding=padding).check(found)


def test_bias_counts_new_queries_and_absolute_keys_in_ragged_rows():
    for padding, bias_name in itertools.product(("right", "left"), BIASES):
        cache = new()
        plain = Plain.like(cache)
        past, lengths = sequence(70), [70, 3, 66]
        cache.append(*past[1:], lengths=torch.tensor(lengths))
        plain.append(*past[1:], lengths=lengths)
        fresh, counts = sequence(5, seed=4), [2, 5, 0]
        bias = make_bias(bias_name, Scene(3, 10, 5, 72), torch.float32)
        found = qkv.decode(*fresh, cache, bias=bias, lengths=torch.tensor(counts), padding=padding)
        plain.decode(*fresh, bias=bias, lengths=counts, padding=padding).check(found)


def test_a_bias_in_float32_with_half_precision():
    """As attention takes it: the dtype of the query or of its arithmetic."""
    for dtype in (torch.float16, torch.bfloat16):
        cache, plain, tensors = new(), Plain(3, 2, 11, 13), sequence(5, dtype=dtype)
        bias = numbers((5, 5), torch.float32, seed=3)
        plain.decode(*tensors, bias=bias).check(qkv.decode(*tensors, cache, bias=bias))


@pytest.mark.slow
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
            assert bool(column.isnan().all() if has_scales(storage) or bad != bad else (column == bad).all())
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


@pytest.mark.slow
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
            plain = Plain.like(cache)
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
def test_what_is_refused_leaves_the_cache_as_it_was(name):
    given, kind = REFUSED[name]
    cache = new()
    cache.append(*sequence(3)[1:])
    fresh = sequence(2, seed=1)
    with untouched(cache), pytest.raises(kind, match="wanted"):
        qkv.decode(*fresh, cache, **given)
    plain = Plain.like(cache)
    plain.append(*sequence(3)[1:])
    plain.decode(*fresh).check(qkv.decode(*fresh, cache))


def test_what_has_no_cache_yet_is_told_where_to_go():
    with pytest.raises(errors.BackendRefused) as caught:
        qkv.decode(*sequence(1), new(), similarity=qkv.Polynomial())
    assert "attention" in str(caught.value)


def test_an_error_of_the_users_own_leaves_the_cache_as_it_was():
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
    """torch.func.grad and vmap are refused, and the cache is unchanged."""
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


def test_not_a_cache():
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

    def test_an_empty_cache(self):
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


@pytest.mark.parametrize("n", [1, 5, 70])
def test_an_answer_lies_in_memory_as_its_query_does(n: int) -> None:
    """Models hold (batch, n, heads, width) and look at it as (batch, heads, n, width): turning back moves nothing."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, heads, 16) for heads in (6, 3, 3))
    turned = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    plain = [tensor.contiguous() for tensor in turned]
    caches = [qkv.KVCache(2, 3, 16) for _ in range(2)]
    for _ in range(3):  # the first is checked, the others are known again
        expected, found = qkv.decode(*plain, caches[0]), qkv.decode(*turned, caches[1])
        assert torch.equal(found, expected)
    assert found.transpose(1, 2).is_contiguous()
    expected, found = (qkv.attention(*given, mask=qkv.Causal(), backend="native") for given in (plain, turned))
    assert torch.equal(found, expected)
    assert found.transpose(1, 2).is_contiguous()


def test_a_plan_is_known_again_by_another_cache_and_only_where_it_fits() -> None:
    torch.manual_seed(0)
    similarity = qkv.Softmax(0.3)
    query, key, value = torch.randn(2, 6, 5, 16), torch.randn(2, 3, 5, 16), torch.randn(2, 3, 5, 16)
    expected = qkv.decode(query, key, value, qkv.KVCache(2, 3, 16), similarity=similarity)
    for options in ({}, {"capacity": 7}, {"window": 3}, {"dtype": torch.int8}):
        cache = qkv.KVCache(2, 3, 16, **options)
        found = qkv.decode(query, key, value, cache, similarity=similarity)
        again = qkv.KVCache(2, 3, 16, **options)
        mask = qkv.Causal(0)  # a mask takes the long way
        assert torch.equal(found, qkv.decode(query, key, value, again, similarity=similarity, mask=mask))
        assert torch.equal(found, expected) == (options in ({}, {"capacity": 7}))
        assert cache.length == 5
    with pytest.raises(qkv.errors.ShapeError, match="capacity"):
        qkv.decode(query, key, value, qkv.KVCache(2, 3, 16, capacity=4), similarity=similarity)
    with pytest.raises(qkv.errors.DtypeError):
        qkv.decode(query, key.double(), value.double(), qkv.KVCache(2, 3, 16), similarity=similarity)
    cache = qkv.KVCache(2, 3, 16)
    qkv.decode(query, key, value, cache, similarity=similarity)
    with pytest.raises(qkv.errors.DtypeError, match="before"):
        cache.append(key.double(), value.double())


def test_a_similarity_that_is_none_is_refused_by_name() -> None:
    one = torch.randn(1, 2, 1, 4)
    for wrong in ([1], {}, "softmax", qkv.Softmax):
        with pytest.raises(qkv.errors.OptionTypeError, match="similarity"):
            qkv.decode(one, one, one, qkv.KVCache(1, 2, 4), similarity=wrong)


EMPTY = [
    qkv.Dense(torch.ones(1, 1, 0, 0, dtype=torch.bool)),
    qkv.Padding(keep=torch.ones(1, 0, dtype=torch.bool)),
    qkv.Padding(lengths=[0]),
    qkv.Segments(torch.zeros(1, 0, dtype=torch.int64)),
]


@pytest.mark.parametrize("mask", EMPTY, ids=repr)
@pytest.mark.parametrize(("n", "lengths"), [(0, None), (1, [0]), (3, [0])])
def test_an_empty_mask_on_an_empty_cache(mask, n, lengths):
    cache, new = qkv.KVCache(1, 1, 4), torch.ones(1, 1, n, 4)
    assert not qkv.decode(new, new, new, cache, mask=mask, lengths=lengths).any()
    assert cache.length == 0
    if isinstance(mask, qkv.Dense):
        one = torch.ones(1, 1, 1, 4)
        with pytest.raises(errors.MaskError):
            qkv.decode(one, one, one, cache, mask=mask)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("storage", [torch.float32, torch.int8], ids=name_of)
def test_a_function_of_queries_and_keys_is_decoded_by_torch(normalize, storage):
    def laplacian(q, k):
        return torch.exp(-torch.cdist(q, k))

    similarity = qkv.Similarity(laplacian, normalize)
    cache, copy = new(storage), new(storage)
    whole = sequence(13)
    parts = decode_in_chunks(cache, whole, [7, 1, 5], similarity=similarity)
    copy.append(*whole[1:])
    key, value = copy.view().read(slice(0, 3), 0, 13)
    expected = qkv.attention(whole[0], key, value, similarity=similarity, mask=qkv.Causal())
    assert torch.allclose(parts, expected, atol=1e-5)
    choice = qkv.explain(*(t[:, :, :1] for t in whole), cache=cache, similarity=similarity)
    assert choice.reasons["native"] == ("the kernel computes Softmax, Sigmoid and Argmax, not Similarity",)
    with pytest.raises(errors.BackendRefused, match="a compiled step calls no function"):
        torch.compile(qkv.decode, backend="eager")(*(t[:, :, :1] for t in whole), cache, similarity=similarity)


@pytest.mark.parametrize("bias", [None, -1.5, torch.linspace(-2.0, 1.0, 10)], ids=["none", "number", "learned"])
def test_a_compiled_step_of_sigmoid(bias):
    similarity, caches = qkv.Sigmoid(0.3, bias), [new(), new()]
    step = torch.compile(qkv.decode, fullgraph=True, backend="eager")
    for i in range(3):
        one, other = (
            run(*sequence(1, seed=i), cache, similarity=similarity)
            for run, cache in zip((qkv.decode, step), caches, strict=True)
        )
        assert torch.allclose(one, other, atol=1e-6)
