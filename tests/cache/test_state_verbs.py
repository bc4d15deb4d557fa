"""What a LinearState can do beside decode: fork, reorder, reset, crop to a snapshot, save and load."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import qkv
from decode_reference import name_of, same_bits
from linear_reference import (
    DTYPES,
    VALUE_WIDTH,
    WIDTH,
    Rows,
    append_rows,
    close,
    decode_rows,
    draw,
    lengths_of,
    no_rows,
    recalls,
    similarities,
)
from qkv import errors, features

SIMILARITIES = similarities()
by_few = pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2", "polynomial 3"])
# Tokens as they came, and sums.
by_past = pytest.mark.parametrize("past", [2, 700])


def new(similarity: Any, batch: int = 2) -> Any:
    return qkv.LinearState(similarity, batch, 3, WIDTH, value_width=VALUE_WIDTH)


def both(name: str, past: int, dtype: torch.dtype = torch.float32, shorter: int = 1) -> tuple[Any, Rows]:
    """A state and its plain list; the second row is that much shorter."""
    state, rows = new(SIMILARITIES[name]), no_rows(2)
    tokens, lengths = draw(past, seed=1, dtype=dtype)[1:], [past, max(past - shorter, 0)]
    state.append(*tokens, lengths=torch.tensor(lengths))
    append_rows(rows, *tokens, lengths)
    return state, rows


def add(state: Any, rows: Rows, seed: int, n: int) -> None:
    tokens = draw(n, batch=len(rows), seed=seed)[1:]
    state.append(*tokens)
    append_rows(rows, *tokens)


def crop_both(state: Any, rows: Rows, n: int) -> None:
    """The first n tokens of each row, or refused and as it was: never another past."""
    try:
        state.crop(n)
    except errors.QkvError:
        assert n != state.length
    else:
        rows[:] = [(keys[:, :n], values[:, :n]) for keys, values in rows]


def agree(state: Any, rows: Rows, seed: int, n: int = 1, dtype: torch.dtype = torch.float32) -> None:
    step = draw(n, batch=len(rows), seed=seed, dtype=dtype)
    close(qkv.decode(*step, state), decode_rows(rows, *step, state.similarity), what=f"step {seed}")
    assert state.lengths.tolist() == lengths_of(rows)
    assert state.length == max(lengths_of(rows))
    assert state.batch == len(rows)


@by_few
@by_past
def test_a_fork_goes_its_own_way(name: str, past: int) -> None:
    state, rows = both(name, past)
    forked, model = state.fork(), list(rows)
    same_bits(recalls(forked), recalls(state))
    for seed in (10, 11):
        agree(state, rows, seed, n=3)
        agree(forked, model, seed + 10, n=65)
    third, third_rows = forked.fork(), list(model)
    forked.reset()
    agree(third, third_rows, 40)
    agree(state, rows, 41)


@by_few
@by_past
@pytest.mark.parametrize("index", [[1, 0], [1, 1], [0], [1, 0, 0, 1, 1]], ids=str)
def test_rows_become_those_rows(name: str, past: int, index: list[int]) -> None:
    state, rows = both(name, past)
    state.reorder(index if past == 2 else torch.tensor(index))
    rows = [rows[i] for i in index]
    for seed in (10, 11):
        agree(state, rows, seed, n=2)


@by_past
@pytest.mark.parametrize("index", [[], [2], [-1], [0.0, 1.0], [[0, 1]], [True, False], None, 1, "01"], ids=repr)
def test_an_index_that_is_none(index: Any, past: int) -> None:
    state, _ = both("elu1", past)
    before = recalls(state)
    with pytest.raises(errors.QkvError):
        state.reorder(index)
    assert state.batch == 2
    same_bits(recalls(state), before)


def test_nothing_of_the_rows_that_went_can_matter() -> None:
    for past in (2, 700):
        state, rows = new(SIMILARITIES["elu1"]), no_rows(2)
        _, key, value = draw(past)
        key[1], value[1] = float("nan"), float("inf")
        state.append(key, value)
        append_rows(rows, key, value)
        state.reorder([0, 0, 0])
        agree(state, [rows[0]] * 3, 10, n=66)


@by_few
@by_past
def test_reset_starts_again_without_a_trace(name: str, past: int) -> None:
    state, _ = both(name, past)
    state.append(*(torch.full_like(tensor, float("nan")) for tensor in draw(3)[1:]))
    state.reset()
    assert state.lengths.tolist() == [0, 0]
    fresh, step = new(SIMILARITIES[name]), draw(67, seed=12)
    same_bits(qkv.decode(*step, state), qkv.decode(*step, fresh))
    agree(state, [(k.double(), v.double()) for k, v in zip(*step[1:], strict=True)], 13)


def test_another_dtype_may_come_after_a_reset() -> None:
    state, _ = both("elu1", 5)
    with pytest.raises(errors.DtypeError):
        state.append(*draw(1, dtype=torch.float64)[1:])
    state.reset()
    for seed, rows in enumerate([no_rows(2)] * 2):
        agree(state, rows, seed, n=67, dtype=torch.float64)


@by_few
def test_crop_is_refused_with_a_reason(name: str) -> None:
    state, _ = both(name, 5000)
    before = recalls(state)
    state.crop(5000)
    for n in (4000, 1, 0, 5001, -1, 10**30):
        with pytest.raises(errors.QkvError) as caught:
            state.crop(n)
        assert str(n) in str(caught.value)
    for n in (2.0, "2", None, True):
        with pytest.raises(errors.QkvError):
            state.crop(n)
    same_bits(recalls(state), before)
    with pytest.raises(errors.QkvError, match="snapshot"):
        state.crop(4000)


@by_few
@by_past
def test_a_crop_that_is_served_is_right(name: str, past: int) -> None:
    for n in (past, past - 1, past // 2, 1, 0):
        state, rows = both(name, past)
        crop_both(state, rows, n)
        agree(state, rows, 10, n=3)


@by_few
@by_past
def test_crop_goes_back_to_a_snapshot(name: str, past: int) -> None:
    state, rows = both(name, past, shorter=0)
    state.snapshot()
    kept, before = list(rows), recalls(state)
    agree(state, rows, 10, n=67)
    state.crop(past)
    assert state.lengths.tolist() == [past, past]
    close(recalls(state), (before.double(), torch.ones_like(before).double()), what="the snapshot")
    for seed in (11, 12):
        rows = list(kept)
        add(state, rows, seed, 1500)
        state.crop(past)
    agree(state, kept, 13)


def test_a_snapshot_of_rows_of_different_lengths() -> None:
    """Only the longest row grew: its first tokens and the snapshot are the same."""
    state, rows = both("elu1", 700, shorter=300)
    state.snapshot()
    state.append(*draw(900, seed=10)[1:], lengths=torch.tensor([900, 0]))
    state.crop(700)
    agree(state, rows, 11)


def test_several_snapshots_are_kept() -> None:
    state, rows = both("polynomial 2", 2, shorter=0)
    kept = {}
    for seed, n in enumerate((3, 70, 1, 1300)):
        state.snapshot()
        kept[state.length] = list(rows)
        add(state, rows, seed, n)
    for length in sorted(kept, reverse=True):
        state.crop(length)
        assert state.lengths.tolist() == lengths_of(kept[length])
        agree(state.fork(), list(kept[length]), 20)


@by_past
def test_a_snapshot_of_a_past_that_was_given_up_is_no_snapshot(past: int) -> None:
    """Cropped, then other tokens came: what was once remembered further on is not the beginning of these."""
    state, rows = both("elu1", past, shorter=0)
    state.snapshot()
    kept = list(rows)
    add(state, rows, 10, 700)
    state.snapshot()
    state.crop(past)
    add(state, kept, 11, 1500)
    crop_both(state, kept, past + 700)
    agree(state, kept, 12)


@by_past
def test_reset_forgets_snapshots(past: int) -> None:
    state, _ = both("elu1", past, shorter=0)
    state.snapshot()
    state.reset()
    rows = no_rows(2)
    add(state, rows, 10, past + 900)
    crop_both(state, rows, past)
    agree(state, rows, 11)


def there_and_back(state: Any, path: Path) -> Any:
    state.save(path)
    return qkv.LinearState.load(path, state.similarity)


@by_few
@pytest.mark.parametrize("past", [0, 2, 700])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_it_comes_back_bit_for_bit(name: str, past: int, dtype: torch.dtype, tmp_path: Path) -> None:
    state, rows = both(name, past, dtype)
    again = there_and_back(state, tmp_path / "state.safetensors")
    for what in ("batch", "heads", "width", "value_width", "length"):
        assert getattr(again, what) == getattr(state, what), what
    assert again.lengths.tolist() == lengths_of(rows)
    same_bits(recalls(again, dtype=dtype), recalls(state, dtype=dtype), "after loading")
    agree(again, rows, 10, n=66, dtype=dtype)


def test_it_is_an_ordinary_safetensors_file_of_constant_size(tmp_path: Path) -> None:
    sizes = []
    for past in (2000, 9000):
        state, _ = both("elu1", past)
        state.save(str(tmp_path / "state.safetensors"))
        with safe_open(tmp_path / "state.safetensors", framework="pt") as file:
            assert all(isinstance(file.get_tensor(key), torch.Tensor) for key in list(file.keys()))
        sizes.append((tmp_path / "state.safetensors").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 100


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    target = tmp_path / "state.safetensors"
    state, rows = both("elu1", 700)
    state.save(target)
    before = target.read_bytes()

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", broken)
        patched.setattr(os, "rename", broken)
        other = state.fork()
        other.append(*draw(7)[1:])
        with pytest.raises(OSError, match="No space left"):
            other.save(target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    agree(qkv.LinearState.load(target, state.similarity), rows, 10)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    state, _ = both("polynomial 2", 700)
    state.save(tmp_path / "state.safetensors")
    for other in (qkv.Polynomial(3, 1.0), qkv.Polynomial(2, 7.0), qkv.FeatureMap(features.elu1), qkv.Softmax()):
        with pytest.raises(errors.QkvError):
            qkv.LinearState.load(tmp_path / "state.safetensors", other)
    with pytest.raises((OSError, errors.QkvError)):
        qkv.LinearState.load(tmp_path / "nothing.safetensors", state.similarity)
    cache = qkv.KVCache(2, 3, WIDTH, value_width=VALUE_WIDTH)
    cache.append(*draw(3)[1:])
    cache.save(tmp_path / "cache.safetensors")
    with pytest.raises(errors.QkvError):
        qkv.LinearState.load(tmp_path / "cache.safetensors", state.similarity)


COUNTS = st.sampled_from([0, 1, 2, 5, 63, 64, 65, 130])
STEPS = st.one_of(
    st.tuples(st.just("decode"), COUNTS, st.sampled_from(["right", "left"]), st.lists(st.integers(0, 130), min_size=5)),
    st.tuples(st.just("append"), COUNTS, st.sampled_from(["right", "left"]), st.lists(st.integers(0, 130), min_size=5)),
    st.tuples(st.just("reorder"), st.lists(st.integers(0, 100), min_size=1, max_size=4)),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("crop"), st.integers(0, 100)),
    st.tuples(st.just("fork")),
    st.tuples(st.just("swap")),
    st.tuples(st.just("reset")),
)


@settings(max_examples=30)
@given(st.sampled_from(["elu1", "polynomial 2", "two-sided"]), st.lists(STEPS, max_size=14))
def test_any_sequence_of_verbs_against_a_plain_list(name: str, steps: list[tuple]) -> None:
    """Two states and their lists; a crop may be refused, but one that is served must be right."""
    states = [(new(SIMILARITIES[name]), no_rows(2))]
    for seed, (verb, *given_) in enumerate(steps):
        state, rows = states[-1]
        if verb in ("decode", "append"):
            n, padding, wanted = given_
            lengths = [min(n, count) for count in (wanted * 20)[: len(rows)]]
            tokens, options = (
                draw(n, batch=len(rows), seed=seed),
                {"lengths": torch.tensor(lengths), "padding": padding},
            )
            if verb == "append":
                state.append(*tokens[1:], **options)
                append_rows(rows, *tokens[1:], lengths, padding)
            else:
                found = qkv.decode(*tokens, state, **options)
                close(found, decode_rows(rows, *tokens, state.similarity, lengths, padding))
        elif verb == "reorder":
            index = [i % len(rows) for i in given_[0]]
            state.reorder(index)
            rows[:] = [rows[i] for i in index]
        elif verb == "snapshot":
            state.snapshot()
        elif verb == "crop":
            crop_both(state, rows, given_[0] * (state.length + 1) // 101)
        elif verb == "fork":
            states = [states[-1], (state.fork(), list(rows))]
        elif verb == "swap":
            states = states[::-1]
        else:
            state.reset()
            rows[:] = no_rows(len(rows))
        for other, plain in states:
            assert other.lengths.tolist() == lengths_of(plain)
    for seed, (state, rows) in enumerate(states):
        agree(state, rows, 50 + seed, n=2)


@pytest.mark.parametrize("name", ["_seen", "_sums", "_held"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interruption_between_two_of_its_stores_leaves_nothing_that_it_cannot_read(name: str, after: bool) -> None:
    class Interrupted(qkv.LinearState):
        armed = False

        def __setattr__(self, attribute: str, value: object) -> None:
            stops = attribute == name and self.armed
            if not stops or after:
                super().__setattr__(attribute, value)
            if stops:
                raise KeyboardInterrupt

    state = Interrupted(qkv.Polynomial(2), batch=1, heads=2, width=3)
    key, value = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    Interrupted.armed = True
    with pytest.raises(KeyboardInterrupt):
        state.append(key, value)
    Interrupted.armed = False
    if state.length:  # then it knows of what kind its tokens are
        with pytest.raises(qkv.errors.DtypeError):
            state.append(key.double(), value.double())
    else:
        state.append(key, value)
    fresh = qkv.LinearState(qkv.Polynomial(2), batch=1, heads=2, width=3)
    fresh.append(key, value)
    assert state.nbytes == fresh.nbytes
    answers = [qkv.decode(key[:, :, :1], key[:, :, 1:2], value[:, :, 1:2], each) for each in (state, fresh)]
    assert torch.equal(*answers)
