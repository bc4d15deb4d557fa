"""`KVCache`: its methods, forks, and what it refuses."""

import copy
import gc
import itertools
from math import inf, nan

import pytest
import torch

import qkv
from qkv import errors
from qkv.testing import layouts
from tests.helpers.decode_cases import tokens
from tests.helpers.decode_reference import (
    STORAGE,
    Plain,
    fill,
    has_scales,
    holds,
    name_of,
    numbers,
    page_bytes,
    same_bits,
    untouched,
)

by_storage = pytest.mark.parametrize("storage", STORAGE, ids=name_of)


def new(storage=torch.float32, **options):
    return qkv.KVCache(3, 2, 11, value_width=13, dtype=storage, **options)


def pairs(n, seed=0, dtype=torch.float32, batch=3):
    return tokens(n, batch=batch, heads=(2, 2), widths=(11, 13), dtype=dtype, seed=seed)[1:]


def both(storage=torch.float32, n=0, **options):
    """A cache and its plain list, with n tokens in each row."""
    cache = new(storage, **options)
    plain = Plain.like(cache)
    if n:
        cache.append(*pairs(n))
        plain.append(*pairs(n))
    return cache, plain


WRONG = {
    "batch": ((4, 2, 1, 11), (4, 2, 1, 13)),
    "heads": ((3, 1, 1, 11), (3, 1, 1, 13)),
    "width": ((3, 2, 1, 12), (3, 2, 1, 13)),
    "value width": ((3, 2, 1, 11), (3, 2, 1, 12)),
    "lengths": ((3, 2, 1, 11), (3, 2, 2, 13)),
    "dimensions": ((3, 1, 11), (3, 1, 13)),
    "broadcasting": ((1, 2, 1, 11), (3, 2, 1, 13)),
}


class TestMaking:
    def test_what_it_says_of_itself(self):
        cache = qkv.KVCache(3, 2, 11, value_width=13, capacity=100, window=7, dtype=torch.bfloat16)
        found = cache.batch, cache.heads, cache.width, cache.value_width, cache.capacity, cache.window
        assert found == (3, 2, 11, 13, 100, 7)
        assert cache.dtype is torch.bfloat16
        assert cache.length == 0
        assert cache.lengths.tolist() == [0, 0, 0]
        assert cache.lengths.dtype is torch.int64

    def test_what_is_left_out(self):
        cache = qkv.KVCache(3, 2, 11)
        assert (cache.value_width, cache.capacity, cache.window, cache.dtype) == (11, None, None, torch.float32)

    def test_it_prints_in_a_line(self):
        cache, _ = both(n=5)
        assert "\n" not in repr(cache)
        assert "KVCache" in repr(cache)

    @pytest.mark.parametrize("name", ["batch", "heads", "width", "value_width", "capacity", "window"])
    @pytest.mark.parametrize("given", [-1, 2.0, "3", True], ids=repr)
    def test_sizes_that_are_none(self, name, given):
        sizes = {"batch": 3, "heads": 2, "width": 11} | {name: given}
        with pytest.raises(errors.QkvError, match=rf"{name}.*wanted"):
            qkv.KVCache(**sizes)

    @pytest.mark.parametrize("name", ["heads", "width", "window"])
    def test_sizes_of_zero(self, name):
        sizes = {"batch": 3, "heads": 2, "width": 11} | {name: 0}
        with pytest.raises(errors.QkvError, match=rf"{name}.*wanted"):
            qkv.KVCache(**sizes)

    @pytest.mark.parametrize("given", [torch.float64, torch.int32, torch.bool, torch.complex64, "float33", float, None])
    def test_storage_that_is_none(self, given):
        with pytest.raises(errors.QkvError, match=r"dtype.*wanted.*int8"):
            qkv.KVCache(3, 2, 11, dtype=given)


class TestAppend:
    @by_storage
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=name_of)
    def test_tokens_are_rounded_once_to_the_storage(self, storage, dtype):
        cache = new(storage)
        plain = Plain.like(cache)
        for n in (1, 62, 1, 1, 70, 0, 130):
            cache.append(*pairs(n, seed=n, dtype=dtype))
            plain.append(*pairs(n, seed=n, dtype=dtype))
            assert cache.length == plain.length
        holds(cache, plain)

    @by_storage
    def test_cuts_do_not_matter(self, storage):
        key, value = pairs(200)
        whole = new(storage)
        whole.append(key, value)
        for chunk in (1, 7, 64, 199):
            cache = new(storage)
            fill(cache, key, value, chunk=chunk)
            for one, other in zip(cache.tensors(), whole.tensors(), strict=True):
                same_bits(one, other, f"{chunk} at a time")

    @by_storage
    def test_layouts_do_not_matter(self, storage):
        key, value = pairs(67)
        whole = new(storage)
        whole.append(key, value)
        for (name, k), (_, v) in zip(layouts(key), layouts(value), strict=True):
            cache = new(storage)
            cache.append(k, v)
            for one, other in zip(cache.tensors(), whole.tensors(), strict=True):
                same_bits(one, other, name)

    def test_numbers_that_overflow_the_storage_become_infinite_as_torch_has_it(self):
        cache = new(torch.float16)
        key, value = pairs(2)
        value[0, 0, 0, 0], value[0, 0, 0, 1] = 1e6, -1e6
        cache.append(key, value)
        same_bits(cache.tensors()[1], value.half())

    def test_the_tensors_are_a_copy(self):
        cache, plain = both(n=5)
        for tensor in cache.tensors():
            tensor.fill_(nan)
        cache.lengths.fill_(0)
        holds(cache, plain)

    @by_storage
    def test_its_dtypes(self, storage):
        cache, _ = both(storage, n=5)
        wanted = torch.float32 if has_scales(storage) else storage
        assert all(tensor.dtype is wanted for tensor in cache.tensors())
        empty = new(storage).tensors()
        assert [tuple(tensor.shape) for tensor in empty] == [(3, 2, 0, 11), (3, 2, 0, 13)]

    @pytest.mark.parametrize("name", WRONG)
    def test_shapes_that_do_not_fit(self, name):
        for n in (0, 5):
            cache, _ = both(n=n)
            key, value = (torch.zeros(shape) for shape in WRONG[name])
            with untouched(cache), pytest.raises(errors.ShapeError, match="wanted"):
                cache.append(key, value)

    def test_tensors_that_are_none(self):
        cache, _ = both(n=2)
        key, value = pairs(1)
        for bad in (
            key.tolist(),
            None,
            key.int(),
            key.bool(),
            key.to(torch.complex64),
            key.to_sparse(),
            key.to("meta"),
        ):
            for given in ((bad, value), (key, bad)):
                with untouched(cache), pytest.raises(errors.QkvError, match="wanted"):
                    cache.append(*given)
        with untouched(cache), pytest.raises(errors.DtypeError, match="wanted"):
            cache.append(key, value.double())


class TestCapacity:
    @by_storage
    def test_it_is_set_aside_at_once_and_is_the_end(self, storage):
        cache, plain = both(storage, capacity=100)
        aside = cache.nbytes
        assert aside == 3 * 2 * page_bytes(2, 11, 13, storage)
        for n in (1, 64, 34):
            cache.append(*pairs(n, seed=n))
            plain.append(*pairs(n, seed=n))
            assert cache.nbytes == aside
        for n in (2, 3, 1000):
            with untouched(cache), pytest.raises(errors.QkvError, match=r"(?s)100") as caught:
                cache.append(*pairs(n, seed=n))
            assert isinstance(caught.value, ValueError)
        cache.append(*pairs(1, seed=5))
        plain.append(*pairs(1, seed=5))
        assert cache.length == 100
        with untouched(cache), pytest.raises(errors.QkvError, match="capacity"):
            qkv.decode(pairs(1)[0], *pairs(1), cache)
        cache.append(*pairs(0))
        holds(cache, plain)

    def test_the_fullest_row_decides(self):
        cache, plain = both(capacity=10)
        for counts in ([10, 0, 4], [0, 10, 6]):
            cache.append(*pairs(10), lengths=torch.tensor(counts))
            plain.append(*pairs(10), lengths=counts)
        holds(cache, plain)
        with untouched(cache), pytest.raises(errors.QkvError, match="10"):
            cache.append(*pairs(1), lengths=torch.tensor([0, 0, 1]))

    def test_crop_frees_capacity(self):
        cache, plain = both(capacity=10, n=10)
        cache.crop(4)
        plain.crop(4)
        cache.append(*pairs(6, seed=3))
        plain.append(*pairs(6, seed=3))
        holds(cache, plain)
        cache.reset()
        plain.reset()
        cache.append(*pairs(10, seed=4))
        plain.append(*pairs(10, seed=4))
        holds(cache, plain)

    def test_with_a_window_it_counts_all_positions(self):
        cache = new(capacity=20, window=4)
        fill(cache, *pairs(20), chunk=3)
        with untouched(cache), pytest.raises(errors.QkvError, match="20"):
            cache.append(*pairs(1))

    def test_a_fork_and_a_reordered_one_keep_it(self):
        cache, plain = both(capacity=70, n=66)
        forked, model = cache.fork(), plain.fork()
        forked.reorder([2, 2, 0, 1, 2])
        model.reorder([2, 2, 0, 1, 2])
        assert forked.capacity == 70
        forked.append(*pairs(4, seed=8, batch=5))
        model.append(*pairs(4, seed=8, batch=5))
        holds(forked, model)
        holds(cache, plain)
        with untouched(forked), pytest.raises(errors.QkvError, match="70"):
            forked.append(*pairs(1, batch=5))

    def test_capacities_beyond_the_machine(self):
        for capacity in (2**40, 2**62, 2**63, 10**30):
            with pytest.raises((MemoryError, errors.QkvError)) as caught:
                new(capacity=capacity)
            assert any(sign.isdigit() for sign in str(caught.value))


class TestCrop:
    @by_storage
    def test_the_first_tokens_stay(self, storage):
        for n in (0, 1, 63, 64, 65, 128, 129, 130):
            cache, plain = both(storage, n=130)
            cache.crop(n)
            plain.crop(n)
            holds(cache, plain)
            cache.append(*pairs(3, seed=n))
            plain.append(*pairs(3, seed=n))
            holds(cache, plain)

    def test_rows_that_are_shorter_stay_as_they_are(self):
        cache, plain = both()
        cache.append(*pairs(70), lengths=torch.tensor([70, 5, 0]))
        plain.append(*pairs(70), lengths=[70, 5, 0])
        for n in (66, 6, 2):
            cache.crop(n)
            plain.crop(n)
            holds(cache, plain)

    def test_pages_behind_the_end_go_back(self):
        cache, _ = both(n=200)
        cache.crop(65)
        assert cache.nbytes == 3 * 2 * page_bytes(2, 11, 13, torch.float32)
        cache.crop(64)
        assert cache.nbytes == 3 * page_bytes(2, 11, 13, torch.float32)
        cache.crop(0)
        assert cache.nbytes == 0

    def test_more_than_there_is(self):
        cache, _ = both(n=5)
        for n, words in ((6, "5"), (10**30, "5"), (-1, "-1")):
            with untouched(cache), pytest.raises(errors.QkvError, match=words):
                cache.crop(n)
        for n in (2.0, "2", None, True):
            with untouched(cache), pytest.raises(errors.QkvError, match="wanted"):
                cache.crop(n)

    @by_storage
    def test_nothing_of_what_was_cropped_can_matter(self, storage):
        clean, dirty = new(storage), new(storage)
        for cache in (clean, dirty):
            cache.append(*pairs(66))
        bad = [torch.full_like(tensor, value) for tensor, value in zip(pairs(70), (nan, inf), strict=True)]
        dirty.append(*bad)
        dirty.crop(66)
        for n in (1, 2, 70):
            query = numbers((3, 4, n, 11), seed=n)
            one, other = (qkv.decode(query, *pairs(n, seed=n), cache) for cache in (clean, dirty))
            same_bits(other, one, "a stale slot")


class TestReset:
    @by_storage
    def test_length_0_and_no_trace(self, storage):
        cache = new(storage)
        cache.append(*(torch.full_like(tensor, nan) for tensor in pairs(130)))
        cache.reset()
        assert cache.length == 0
        assert cache.lengths.tolist() == [0, 0, 0]
        assert cache.nbytes == 0
        fresh = new(storage)
        for n in (1, 3, 130):
            query = numbers((3, 4, n, 11), seed=n)
            one, other = (qkv.decode(query, *pairs(n, seed=n), m) for m in (fresh, cache))
            same_bits(other, one, "after a reset")
            assert bool(other.isfinite().all())

    def test_another_dtype_may_come_after_it(self):
        cache, _ = both(n=2)
        with untouched(cache), pytest.raises(errors.DtypeError, match=r"float32(?s:.*)\.to\("):
            cache.append(*pairs(1, dtype=torch.float16))
        cache.reset()
        cache.append(*pairs(1, dtype=torch.float16))
        with untouched(cache), pytest.raises(errors.DtypeError, match=r"float16(?s:.*)\.to\("):
            cache.append(*pairs(1))


class TestReorder:
    @by_storage
    def test_rows_become_those_rows(self, storage):
        for index in ([2, 0, 1], [1, 1, 1], [0], [2, 2, 0, 0, 1, 2, 0], [0, 1, 2]):
            cache, plain = both(storage)
            cache.append(*pairs(70), lengths=torch.tensor([70, 3, 64]))
            plain.append(*pairs(70), lengths=[70, 3, 64])
            cache.reorder(torch.tensor(index))
            plain.reorder(index)
            holds(cache, plain)
            for n in (1, 64, 2):
                fresh = pairs(n, seed=n, batch=len(index))
                query = numbers((len(index), 4, n, 11), seed=n)
                plain.decode(query, *fresh).check(qkv.decode(query, *fresh, cache))
            holds(cache, plain)

    def test_a_list_or_any_integer_tensor(self):
        for index in ([2, 0], torch.tensor([2, 0]), torch.tensor([2, 0], dtype=torch.int32)):
            cache, plain = both(n=5)
            cache.reorder(index)
            plain.reorder([2, 0])
            holds(cache, plain)
            assert cache.batch == 2

    def test_beam_search(self):
        """Many steps, each after another choice of rows: what hangs together is never written twice."""
        cache, plain = both(n=60)
        generator = torch.Generator().manual_seed(3)
        for step in range(40):
            index = torch.randint(0, 3, (3,), generator=generator).tolist()
            cache.reorder(index)
            plain.reorder(index)
            query = numbers((3, 4, 1, 11), seed=step)
            plain.decode(query, *pairs(1, seed=step)).check(qkv.decode(query, *pairs(1, seed=step), cache))
        holds(cache, plain)

    @pytest.mark.parametrize(
        "index", [[], [3], [-1], [0, 1, 7], [0.0, 1.0], [[0, 1]], [True, False, True], None, 1, "012"], ids=repr
    )
    def test_an_index_that_is_none(self, index):
        cache, _ = both(n=5)
        for given in (index, torch.tensor(index)) if isinstance(index, list) else (index,):
            with untouched(cache), pytest.raises(errors.QkvError, match="wanted"):
                cache.reorder(given)

    def test_nothing_of_the_rows_that_went_can_matter(self):
        cache, plain = both()
        key, value = pairs(66)
        key[1], value[1] = nan, inf
        cache.append(key, value)
        plain.append(key, value)
        cache.reorder([0, 2, 2])
        plain.reorder([0, 2, 2])
        for n in (1, 64):
            query = numbers((3, 4, n, 11), seed=n)
            found = qkv.decode(query, *pairs(n, seed=n), cache)
            assert bool(found.isfinite().all())
            plain.decode(query, *pairs(n, seed=n)).check(found)


def fork_pairs(n, seed=0, batch=2):
    return tokens(n, batch=batch, heads=(3, 3), widths=(7, 5), dtype=torch.float32, seed=seed)[1:]


def new_fork_pair(storage=torch.float32, n=0, **options):
    cache = qkv.KVCache(2, 3, 7, value_width=5, dtype=storage, **options)
    plain = Plain.like(cache)
    cache.append(*fork_pairs(n))
    plain.append(*fork_pairs(n))
    return cache, plain


def step(cache, plain, n=1, seed=0):
    query = numbers((cache.batch, 6, n, 7), seed=seed)
    fresh = fork_pairs(n, seed, cache.batch)
    plain.decode(query, *fresh).check(qkv.decode(query, *fresh, cache))


@by_storage
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 130])
def test_each_goes_its_own_way(storage, n):
    cache, plain = new_fork_pair(storage, n)
    forked, model = cache.fork(), plain.fork()
    holds(forked, model)
    step(forked, model, 3, seed=1)
    holds(cache, plain)
    step(cache, plain, 2, seed=2)
    holds(forked, model)
    step(forked, model, 70, seed=3)
    step(cache, plain, 1, seed=4)
    holds(forked, model)
    holds(cache, plain)


@by_storage
def test_a_fork_of_some_rows(storage):
    cache, plain = new_fork_pair(storage, 70)
    forked, model = cache.fork([1, 0, 1]), plain.fork()
    model.reorder([1, 0, 1])
    holds(forked, model)
    step(forked, model, 3, seed=1)
    holds(cache, plain)
    for wrong in ([], [2], [-1], [[0]], "0"):
        with untouched(cache), pytest.raises(errors.QkvError):
            cache.fork(wrong)


@by_storage
def test_the_same_steps_give_the_same_bits(storage):
    cache, _ = new_fork_pair(storage, 70)
    forked = cache.fork()
    for seed in range(3):
        query, fresh = numbers((2, 6, 1, 7), seed=seed), fork_pairs(1, seed)
        same_bits(qkv.decode(query, *fresh, forked), qkv.decode(query, *fresh, cache))


def test_it_is_the_same_kind_of_cache():
    cache = qkv.KVCache(2, 3, 7, value_width=5, capacity=90, window=30, dtype=torch.bfloat16)
    cache.append(*fork_pairs(5))
    forked = cache.fork()
    for name in ("batch", "heads", "width", "value_width", "capacity", "window", "dtype", "length"):
        assert getattr(forked, name) == getattr(cache, name), name
    assert forked.lengths.tolist() == cache.lengths.tolist()
    with pytest.raises(qkv.errors.DtypeError):
        forked.append(*(tensor.double() for tensor in fork_pairs(1)))


def test_pages_are_shared_until_they_are_written():
    one = page_bytes(3, 7, 5, torch.float32)
    cache, _ = new_fork_pair(n=130)
    forked = cache.fork()
    assert cache.nbytes == forked.nbytes == 2 * 3 * one
    with untouched(cache):
        forked.append(*fork_pairs(1))
        assert forked.nbytes == 2 * 3 * one
        forked.append(*fork_pairs(64))
        assert forked.nbytes == 2 * 4 * one
        forked.reset()
    assert forked.nbytes == 0


@pytest.mark.slow
@by_storage
def test_crop_of_one_and_new_tokens_leave_the_other_alone(storage):
    for n, kept in itertools.product((66, 128, 140), (0, 3, 63, 64, 65)):
        cache, plain = new_fork_pair(storage, n)
        forked, model = cache.fork(), plain.fork()
        forked.crop(kept)
        model.crop(kept)
        holds(cache, plain)
        step(forked, model, 3, seed=1)
        holds(cache, plain)
        step(cache, plain, 2, seed=2)
        holds(forked, model)


def test_reorder_of_one_leaves_the_other_alone():
    cache, plain = new_fork_pair(n=70)
    forked, model = cache.fork(), plain.fork()
    forked.reorder([1, 1, 0])
    model.reorder([1, 1, 0])
    step(forked, model, 2, seed=1)
    holds(cache, plain)
    assert cache.batch == 2
    step(cache, plain, 2, seed=2)
    holds(forked, model)


@pytest.mark.slow
@by_storage
def test_rows_of_a_fork_are_appended_without_a_copy(storage):
    """Requests that join a batch: rows of other lengths, in tables of other widths, that share their pages."""
    cache, plain = new_fork_pair(storage, n=70)
    other, model = cache.fork(), plain.fork()
    for each in (other, model):
        each.append(*fork_pairs(64 * 67))  # more pages than a new table has slots
    alone = other.nbytes
    cache.extend(other)
    plain.extend(model)
    assert cache.lengths.tolist() == plain.lengths == [70, 70, 4358, 4358]
    assert cache.nbytes == alone + 2 * page_bytes(3, 7, 5, storage)  # the last pages of the two shorter rows
    step(cache, plain, 3, seed=2)
    holds(other, model)
    step(other, model, 2, seed=3)
    cache.reorder([3, 0])
    plain.reorder([3, 0])
    holds(cache, plain)
    del other
    gc.collect()
    step(cache, plain, 70, seed=4)
    holds(cache, plain)


def test_a_cache_can_be_appended_to_itself():
    cache, plain = new_fork_pair(n=65)
    cache.extend(cache)
    plain.extend(plain.fork())
    step(cache, plain, 2, seed=1)
    holds(cache, plain)


def test_rows_of_another_pool_are_refused():
    cache, _ = new_fork_pair(n=3)
    other, _ = new_fork_pair(n=3)
    with untouched(cache), pytest.raises(errors.OptionError, match=r"^other: got KVCache"):
        cache.extend(other)
    empty = cache.fork()
    empty.reset()
    empty.append(*(tensor.double() for tensor in fork_pairs(1)))
    with untouched(cache), pytest.raises(errors.DtypeError, match=r"^other: got tokens of .*float64"):
        cache.extend(empty)


@pytest.mark.slow
@by_storage
def test_the_first_may_go_away(storage):
    """The child's pages are not used again by anybody while it lives."""
    cache, plain = new_fork_pair(storage, 100)
    forked, model = cache.fork(), plain.fork()
    cache.reset()
    cache.append(*(torch.full_like(tensor, nan) for tensor in fork_pairs(200)))
    holds(forked, model)
    del cache, plain
    gc.collect()
    others = [new_fork_pair(storage, 130)[0] for _ in range(4)]
    for other in others:
        other.reset()
        other.append(*(torch.full_like(tensor, nan) for tensor in fork_pairs(130)))
    step(forked, model, 70, seed=3)
    holds(forked, model)


def test_a_tree_of_forks():
    """Speculative decoding: branches of branches, written in any order, some dropped."""
    living = [new_fork_pair(n=60)]
    generator = torch.Generator().manual_seed(5)
    for seed in range(60):
        at, what = (int(i) for i in torch.randint(0, 100, (2,), generator=generator))
        cache, plain = living[at % len(living)]
        if what < 30 and len(living) < 8:
            living.append((cache.fork(), plain.fork()))
        elif what < 40 and len(living) > 2:
            living.pop(at % len(living))
        elif what < 55 and plain.length:
            kept = at % (plain.length + 1)
            cache.crop(kept)
            plain.crop(kept)
        else:
            step(cache, plain, 1 + what % 9, seed)
    for cache, plain in living:
        holds(cache, plain)


@by_storage
def test_forks_of_a_ring(storage):
    cache, plain = new_fork_pair(storage, 200, window=50)
    forked, model = cache.fork(), plain.fork()
    for seed, n in enumerate((1, 30, 64, 1, 100)):
        step(forked, model, n, seed)
        if seed % 2:
            step(cache, plain, 3, seed)
    holds(cache, plain)
    holds(forked, model)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_independent_too(copied):
    cache, plain = new_fork_pair(n=66)
    other, model = copied(cache), plain.fork()
    step(other, model, 3, seed=1)
    holds(cache, plain)
    step(cache, plain, 2, seed=2)
    holds(other, model)


def test_forks_that_are_dropped_before_they_append_leave_nothing():
    cache = qkv.KVCache(batch=1, heads=2, width=3)
    cache.append(torch.randn(1, 2, 65, 3), torch.randn(1, 2, 65, 3))
    for _ in range(5):
        cache.fork()
        gc.collect()
    assert len(cache._pool._collected) == 1  # the last one
    cache.fork().append(torch.randn(1, 2, 1, 3), torch.randn(1, 2, 1, 3))
    gc.collect()
    cache.append(torch.randn(1, 2, 64, 3), torch.randn(1, 2, 64, 3))
    assert not cache._pool.shared
