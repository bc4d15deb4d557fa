"""`LinearState` and `decode`: the last rows of causal attention over the whole sequence, for any chunking."""

import itertools
import os
from copy import deepcopy
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

import qkv
from qkv import errors, features
from tests.helpers.decode_reference import name_of, same_bits
from tests.helpers.linear_reference import (
    DTYPES,
    HEADS,
    VALUE_WIDTH,
    WIDTH,
    Answer,
    Rows,
    append_rows,
    close,
    decode_rows,
    draw,
    lengths_of,
    no_rows,
    quadratic,
    real_part,
    recalls,
    similarities,
)

SIMILARITIES = similarities()
by_similarity = pytest.mark.parametrize("name", SIMILARITIES)
by_few = pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2"])
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
by_padding = pytest.mark.parametrize("padding", ["right", "left"])


def new(similarity: Any, batch: int = 2, heads: int = 3, widths: tuple[int, int] = (WIDTH, VALUE_WIDTH)) -> Any:
    return qkv.LinearState(similarity, batch, heads, widths[0], value_width=widths[1])


def in_chunks(state: Any, tensors: Any, sizes: Any, **options: Any) -> Tensor:
    """decode, cut at the sizes again and again."""
    n, first, parts = tensors[0].shape[2], 0, []
    for size in itertools.cycle(sizes):
        parts.append(qkv.decode(*(tensor[:, :, first : first + size] for tensor in tensors), state, **options))
        first += size
        if first >= n:
            return torch.cat(parts, dim=2)
    raise AssertionError


@cache
def whole(name: str, n: int, seed: int, heads: tuple[int, int] = (6, 3)) -> Answer:
    """The reference for numbers that are the same in every dtype."""
    return quadratic(*draw(n, seed=seed, heads=heads, coarse=True), SIMILARITIES[name], offset=0)


def test_what_it_says_of_itself() -> None:
    state = new(SIMILARITIES["elu1"])
    assert (state.batch, state.heads, state.width, state.value_width) == (2, 3, WIDTH, VALUE_WIDTH)
    assert state.similarity is SIMILARITIES["elu1"]
    assert state.length == 0
    assert state.lengths.tolist() == [0, 0]
    assert state.lengths.dtype is torch.int64
    assert qkv.LinearState(SIMILARITIES["elu1"], 2, 3, WIDTH).value_width == WIDTH
    assert "LinearState" in repr(state)
    assert "\n" not in repr(state)


@pytest.mark.parametrize("similarity", [qkv.Softmax(), qkv.Argmax(), qkv.Similarity(lambda q, k: q @ k.mT), None, 3])
def test_similarities_without_a_state_are_refused(similarity: Any) -> None:
    with pytest.raises(errors.QkvError):
        qkv.LinearState(similarity, 2, 3, WIDTH)


@pytest.mark.parametrize("name", ["batch", "heads", "width", "value_width"])
@pytest.mark.parametrize("given", [-1, 2.0, "3", True], ids=repr)
def test_sizes_that_are_none(name: str, given: Any) -> None:
    sizes = {"batch": 2, "heads": 3, "width": WIDTH} | {name: given}
    with pytest.raises(errors.QkvError, match=rf"{name}.*wanted"):
        qkv.LinearState(SIMILARITIES["elu1"], **sizes)


@pytest.mark.slow
@by_similarity
@by_dtype
def test_prefill_chunks_and_steps_are_one(name: str, dtype: torch.dtype) -> None:
    tensors = draw(71, seed=1, dtype=dtype, coarse=True)
    for sizes in ((71,), (1,), (3, 64), (1, 5, 13)):
        state = new(SIMILARITIES[name])
        found = in_chunks(state, tensors, sizes)
        assert found.dtype is dtype
        assert state.length == 71
        close(found, whole(name, 71, 1), what=f"{sizes}")


@by_few
def test_it_is_the_causal_mask_of_attention(name: str) -> None:
    tensors = draw(67, seed=2)
    found = in_chunks(new(SIMILARITIES[name]), tensors, (1, 11, 64))
    for backend in ("reference", "linear"):
        full = qkv.attention(*tensors, similarity=SIMILARITIES[name], mask=qkv.Causal(), backend=backend)
        reach = quadratic(*tensors, SIMILARITIES[name], offset=0)[1]
        close(found, (full.double(), reach), allowed=1e-5, what=backend)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@by_few
def test_query_heads_share_key_heads(heads: tuple[int, int], name: str) -> None:
    tensors = draw(67, seed=3, heads=heads, coarse=True)
    for sizes in ((67,), (1,)):
        found = in_chunks(new(SIMILARITIES[name], heads=heads[1]), tensors, sizes)
        close(found, whole(name, 67, 3, heads), what=f"{sizes}")


@pytest.mark.parametrize(
    ("similarity", "width"),
    [
        (qkv.FeatureMap(features.elu1), 3),
        (qkv.Polynomial(2, 1.0), 11),
        (qkv.Polynomial(3, 2.0), 5),
        (qkv.Polynomial(0), 5),
        (qkv.FeatureMap(features.positive_random(5, 257)), 5),
        (qkv.FeatureMap(features.elu1, normalize=False), 31),
    ],
    ids=["elu1", "quadratic", "cubic", "uniform", "random", "undivided"],
)
def test_the_switch_from_tokens_to_sums_cannot_be_seen(similarity: Any, width: int) -> None:
    tensors = draw(400, batch=1, heads=(1, 1), widths=(width, 5), seed=4)
    wanted = quadratic(*tensors, similarity, offset=0)
    close(in_chunks(new(similarity, 1, 1, (width, 5)), tensors, (1,)), wanted, what="step by step")
    for first in (1, 30, 63, 64, 65, 127, 128, 129, 255, 257, 390):
        state = new(similarity, 1, 1, (width, 5))
        state.append(*(tensor[:, :, :first] for tensor in tensors[1:]))
        found = qkv.decode(*(tensor[:, :, first:] for tensor in tensors), state)
        close(found, tuple(part[:, :, first:] for part in wanted), what=f"after {first}")


@by_few
def test_a_long_past_then_steps(name: str) -> None:
    tensors = draw(5003, batch=1, heads=(1, 1), seed=5)
    state = new(SIMILARITIES[name], 1, 1)
    state.append(*(tensor[:, :, :5000] for tensor in tensors[1:]))
    last = tensors[0][:, :, 5000:]
    wanted = quadratic(last, *tensors[1:], SIMILARITIES[name], offset=5000)
    close(in_chunks(state, (last, *(tensor[:, :, 5000:] for tensor in tensors[1:])), (1,)), wanted)
    assert state.lengths.tolist() == [5003]


@pytest.mark.parametrize("name", ["elu1", "polynomial 2", "two-sided"])
def test_its_size_is_constant(name: str) -> None:
    state = new(SIMILARITIES[name], 1, 1)
    chunk = draw(10_000, batch=1, heads=(1, 1))[1:]
    state.append(*chunk)
    early = state.nbytes
    assert 0 < early < 10_000 * (WIDTH + VALUE_WIDTH) * 4
    for _ in range(9):
        state.append(*chunk)
    assert state.length == 100_000
    assert state.nbytes == early
    qkv.decode(*draw(1, batch=1, heads=(2, 1)), state)
    assert state.nbytes == early


CALLS = ((67, [67, 1]), (3, [3, 0]), (1, [1, 1]), (5, [0, 0]), (66, [2, 63]), (1, [0, 1]), (2, [1, 2]))


def poisoned(tensors: Any, lengths: list[int], padding: str) -> list[Tensor]:
    n, copies = tensors[0].shape[2], [tensor.clone() for tensor in tensors]
    for copy, bad in zip(copies, (nan, inf, nan), strict=True):
        for b, count in enumerate(lengths):
            real = torch.zeros(n, dtype=torch.bool)
            real[real_part(n, count, padding)] = True
            copy[b, :, ~real] = bad
    return copies


@pytest.mark.slow
@by_similarity
@by_padding
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=name_of)
def test_rows_of_different_lengths(name: str, padding: str, dtype: torch.dtype) -> None:
    state, rows = new(SIMILARITIES[name]), no_rows(2)
    for seed, (n, lengths) in enumerate(CALLS):
        tensors = draw(n, seed=seed, dtype=dtype, coarse=True)
        dirty = poisoned(tensors, lengths, padding)
        found = qkv.decode(*dirty, state, lengths=torch.tensor(lengths), padding=padding)
        wanted = decode_rows(rows, *tensors, SIMILARITIES[name], lengths, padding)
        close(found, wanted, what=f"call {seed}")
        for b, count in enumerate(lengths):
            hidden = torch.ones(n, dtype=torch.bool)
            hidden[real_part(n, count, padding)] = False
            assert not found[b, :, hidden].any(), "what does not count gets exactly zero"
        assert state.lengths.tolist() == lengths_of(rows)
        assert state.length == max(lengths_of(rows))


@by_few
@by_padding
def test_each_row_of_append_equals_its_unpadded_self(name: str, padding: str) -> None:
    state, rows = new(SIMILARITIES[name]), no_rows(2)
    for seed, (n, lengths) in enumerate(CALLS):
        tensors = draw(n, seed=seed)
        state.append(*poisoned(tensors, lengths, padding)[1:], lengths=torch.tensor(lengths), padding=padding)
        append_rows(rows, *tensors[1:], lengths, padding)
    step = draw(1, seed=50)
    close(qkv.decode(*step, state), decode_rows(rows, *step, SIMILARITIES[name]))


def test_the_similarity_is_the_states_own() -> None:
    own = SIMILARITIES["elu1"]
    state, step = new(own), draw(2)
    found = qkv.decode(*step, state.fork(), similarity=None)
    same_bits(qkv.decode(*step, state.fork(), similarity=own), found)
    for other in (SIMILARITIES["relu"], SIMILARITIES["polynomial 2"], qkv.Softmax(), qkv.Argmax()):
        with pytest.raises(errors.QkvError):
            qkv.decode(*step, state, similarity=other)
        assert state.length == 0


def test_a_deepcopied_and_retrained_map_is_refused() -> None:
    own = qkv.FeatureMap(torch.nn.Linear(WIDTH, 6))
    state, step = new(own), draw(2)
    with torch.no_grad():
        found = qkv.decode(*step, state.fork(), similarity=own)
        copied = deepcopy(own)
        copied.map.weight += 1.0
        with pytest.raises(errors.OptionError, match="the state's own map"):
            qkv.decode(*step, state, similarity=copied)
        same_bits(qkv.decode(*step, state, similarity=own), found)


@pytest.mark.parametrize("past", [0, 3, 300])
def test_what_is_refused_leaves_the_state_as_it_was(past: int) -> None:
    state, step = new(SIMILARITIES["elu1"]), draw(2)
    state.append(*draw(past)[1:])
    before = recalls(state)
    query, key, value = step
    options = (
        {"mask": qkv.Window(left=3)},
        {"mask": qkv.Padding(keep=torch.ones(2, past + 2, dtype=torch.bool))},
        {"mask": qkv.Causal()},
        {"bias": torch.zeros(2, past + 2)},
        {"lengths": torch.tensor([3, 1])},
        {"lengths": torch.tensor([1, -1])},
        {"lengths": torch.tensor([1, 1, 1])},
        {"padding": "middle"},
    )
    for option in options:
        with pytest.raises(errors.QkvError) as caught:
            qkv.decode(*step, state, **option)
        assert len(str(caught.value)) > 20, "a reason"
    for wrong in (query[:, :5], query[..., :6], query.double(), query.clone().requires_grad_(), query.tolist()):
        with pytest.raises(errors.QkvError):
            qkv.decode(wrong, key, value, state)
    for pair in (
        (key[:1], value[:1]),
        (key[:, :2], value[:, :2]),
        (key[..., :6], value),
        (key, value[..., :4]),
        (key[:, :, :1], value),
        (key, value.double()),
        (key.clone().requires_grad_(), value),
        (key, value.clone().requires_grad_()),
        (key.int(), value),
        (key, None),
    ):
        with pytest.raises(errors.QkvError):
            qkv.decode(query, *pair, state)
        with pytest.raises(errors.QkvError):
            state.append(*pair)
    assert state.lengths.tolist() == [past, past]
    same_bits(recalls(state), before, "the past")


def test_a_map_that_needs_grad_decodes_without() -> None:
    """The parameters of a learned map may require grad: it is the inputs that must not."""
    module = torch.nn.Linear(WIDTH, 11)
    with torch.no_grad():
        found = qkv.decode(*draw(67), new(qkv.FeatureMap(module, normalize=False)))
    assert not found.requires_grad
    close(found, quadratic(*draw(67), qkv.FeatureMap(module, normalize=False), offset=0))


@by_few
def test_no_new_tokens(name: str) -> None:
    state = new(SIMILARITIES[name])
    for past in (0, 5, 300):
        state.reset()
        state.append(*draw(past)[1:])
        assert qkv.decode(*draw(0), state).shape == (2, 6, 0, VALUE_WIDTH)
        assert state.length == past


@by_few
@pytest.mark.parametrize("past", [3, 300])
def test_attended_nan_is_never_hidden_and_stays_in_its_row(name: str, past: int) -> None:
    for which in (1, 2):
        state, rows = new(SIMILARITIES[name]), no_rows(2)
        tokens = draw(past, seed=7)
        tokens[which][1, 2, 1, 3] = nan
        state.append(*tokens[1:])
        append_rows(rows, *tokens[1:])
        for seed in (8, 9):
            step = draw(3, seed=seed)
            close(qkv.decode(*step, state), decode_rows(rows, *step, SIMILARITIES[name]))


def test_a_sum_of_exactly_zero_gives_a_zero_row() -> None:
    for past in (1, 700):
        state = qkv.LinearState(qkv.Polynomial(2, 1.0), 1, 1, 2, value_width=3)
        state.append(torch.tensor([-1.0, 3.0]).expand(1, 1, past, 2), torch.ones(1, 1, past, 3))
        query, key = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[-1.0, 0.0]]]])
        assert qkv.decode(query, key, torch.full((1, 1, 1, 3), 5.0), state).tolist() == [[[[0.0, 0.0, 0.0]]]]


@pytest.mark.parametrize("name", ["elu1", "polynomial 2", "polynomial 3"])
def test_bits_depend_neither_on_threads_nor_on_companions(name: str, threads: Any) -> None:
    tensors, found = draw(131, batch=5, heads=(4, 2), seed=6), []
    for count in (1, 2, 5):
        threads(count)
        found.append(in_chunks(new(SIMILARITIES[name], 5, 2), tensors, (100, 1, 1, 29)))
        same_bits(found[-1], found[0], f"{count} threads")
    for b in (0, 3):
        alone = in_chunks(new(SIMILARITIES[name], 1, 2), [t[b : b + 1] for t in tensors], (100, 1, 1, 29))
        same_bits(alone, found[0][b : b + 1], f"row {b} alone")


def test_a_map_that_changes_its_features_is_refused_and_changes_nothing() -> None:
    copies = [1]
    state = qkv.LinearState(qkv.FeatureMap(lambda x: (x.abs() + 1).repeat(1, 1, 1, copies[0])), 1, 1, 4)
    tokens = torch.randn(1, 1, 500, 4)
    qkv.decode(tokens, tokens, tokens, state)
    copies[0] = 3
    with pytest.raises(qkv.errors.ShapeError, match="12 features"):
        qkv.decode(tokens[:, :, :1], tokens[:, :, :1], tokens[:, :, :1], state)
    assert state.length == 500


def test_queries_that_do_not_count_may_hold_anything() -> None:
    tokens = [torch.randn(2, 1, 90, 4) for _ in range(3)]
    odd = tokens[0].clone()
    odd[0, 0, 89] = float("nan")
    one, other = (qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), 2, 1, 4) for _ in range(2))
    clean = qkv.decode(*tokens, one, lengths=[89, 90])
    assert torch.equal(clean, qkv.decode(odd, *tokens[1:], other, lengths=[89, 90]))


def test_explain_says_that_it_takes_no_state() -> None:
    x = torch.randn(1, 1, 5, 4)
    with pytest.raises(qkv.errors.OptionTypeError, match="a LinearState, wanted"):
        qkv.explain(x, x, x, cache=qkv.LinearState(qkv.FeatureMap(qkv.features.elu1), 1, 1, 4))


SUMMED_SIMILARITIES = {
    "elu1": qkv.FeatureMap(qkv.features.elu1),
    "squares": qkv.Polynomial(2),
    "not divided": qkv.FeatureMap(qkv.features.relu, normalize=False),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SUMMED_SIMILARITIES)
def test_three_hundred_tokens_at_once_then_one(name: str, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(3)
    q, k, v = (torch.rand(3, 2, 301, 8, generator=made, dtype=torch.float64).to(dtype) for _ in range(3))
    lengths = [300, 170, 3]
    state = qkv.LinearState(SUMMED_SIMILARITIES[name], 3, 2, 8)
    first = qkv.decode(q[:, :, :300], k[:, :, :300], v[:, :, :300], state, lengths=lengths)
    step = qkv.decode(q[:, :, 300:], k[:, :, 300:], v[:, :, 300:], state)
    assert state.lengths.tolist() == [301, 171, 4]
    for row, count in enumerate(lengths):
        own = [torch.cat([x[row : row + 1, :, :count], x[row : row + 1, :, 300:]], dim=2).double() for x in (q, k, v)]
        wanted = qkv.attention(*own, similarity=SUMMED_SIMILARITIES[name], mask=qkv.Causal(), backend="reference").to(
            dtype
        )
        torch.testing.assert_close(first[row : row + 1, :, :count], wanted[:, :, :-1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step[row : row + 1], wanted[:, :, -1:], rtol=1e-5, atol=1e-6)
        assert not first[row, :, count:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_append_of_no_tokens_changes_nothing(dtype: torch.dtype) -> None:
    state = qkv.LinearState(SUMMED_SIMILARITIES["elu1"], 2, 1, 8)
    key = torch.rand(2, 1, 40, 8, dtype=dtype)
    state.append(key, key)
    query = torch.rand(2, 1, 1, 8, dtype=dtype)
    wanted = qkv.decode(query, key[:, :, :1], key[:, :, :1], state.fork())
    state.append(key[:, :, :0], key[:, :, :0])
    state.append(key, key, [0, 0])
    assert state.lengths.tolist() == [40, 40]
    assert torch.equal(qkv.decode(query, key[:, :, :1], key[:, :, :1], state), wanted)


by_some = pytest.mark.parametrize("name", ["elu1", "two-sided", "polynomial 2", "polynomial 3"])
# Tokens as they came, and sums.
by_past = pytest.mark.parametrize("past", [2, 700])


def new_state(similarity: Any, batch: int = 2) -> Any:
    return qkv.LinearState(similarity, batch, 3, WIDTH, value_width=VALUE_WIDTH)


def both(name: str, past: int, dtype: torch.dtype = torch.float32, shorter: int = 1) -> tuple[Any, Rows]:
    """A state and its plain list; the second row is that much shorter."""
    state, rows = new_state(SIMILARITIES[name]), no_rows(2)
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


@pytest.mark.slow
@by_some
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


@pytest.mark.slow
@by_some
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
        state, rows = new_state(SIMILARITIES["elu1"]), no_rows(2)
        _, key, value = draw(past)
        key[1], value[1] = float("nan"), float("inf")
        state.append(key, value)
        append_rows(rows, key, value)
        state.reorder([0, 0, 0])
        agree(state, [rows[0]] * 3, 10, n=66)


@by_some
@by_past
def test_reset_starts_again_without_a_trace(name: str, past: int) -> None:
    state, _ = both(name, past)
    state.append(*(torch.full_like(tensor, float("nan")) for tensor in draw(3)[1:]))
    state.reset()
    assert state.lengths.tolist() == [0, 0]
    fresh, step = new_state(SIMILARITIES[name]), draw(67, seed=12)
    same_bits(qkv.decode(*step, state), qkv.decode(*step, fresh))
    agree(state, [(k.double(), v.double()) for k, v in zip(*step[1:], strict=True)], 13)


def test_another_dtype_may_come_after_a_reset() -> None:
    state, _ = both("elu1", 5)
    with pytest.raises(errors.DtypeError):
        state.append(*draw(1, dtype=torch.float64)[1:])
    state.reset()
    for seed, rows in enumerate([no_rows(2)] * 2):
        agree(state, rows, seed, n=67, dtype=torch.float64)


@by_some
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


@by_some
@by_past
def test_a_crop_that_is_served_is_right(name: str, past: int) -> None:
    for n in (past, past - 1, past // 2, 1, 0):
        state, rows = both(name, past)
        crop_both(state, rows, n)
        agree(state, rows, 10, n=3)


@by_some
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


@pytest.mark.slow
@by_some
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
    states = [(new_state(SIMILARITIES[name]), no_rows(2))]
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


@pytest.mark.parametrize("name", ["token_type", "_sums", "_contents"])
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


def _wide_reference(state: Any, tokens: Any) -> Tensor:
    """The last row of the same tokens in float64, by the map of the state in float32."""
    query, key, value = tokens
    similarity = state.similarity
    if isinstance(similarity, qkv.FeatureMap):
        query, key = (similarity.map(x).detach() for x in (query, key))
        similarity = qkv.FeatureMap(features.identity, normalize=similarity.normalize)
    wide = (x.double() for x in (query, key, value))
    return qkv.attention(*wide, similarity=similarity, mask=qkv.Causal(), backend="reference")


@pytest.mark.parametrize("size", [1e37, 1e38, 3e38])
@pytest.mark.parametrize("chunks", [(1,), (7,), (75, 1), (13, 64, 1)], ids=str)
@pytest.mark.parametrize("name", ["elu1", "polynomial", "module"])
def test_values_of_a_linear_state_near_the_largest_number_do_not_overflow(
    name: str, chunks: tuple[int, ...], size: float
) -> None:
    made = {
        "elu1": qkv.FeatureMap(features.elu1),
        "polynomial": qkv.Polynomial(2, offset=1.0),
        "module": qkv.FeatureMap(torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Softplus())),
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        query, key, value = draw(75, widths=(3, 5))
    value = value.abs().clamp(0.1, 1.0)
    value[..., :3] *= size  # the other columns are small numbers that must stay exact
    state = new(made[name], widths=(3, 5))
    with torch.no_grad():
        found = in_chunks(state, (query, key, value), chunks)
        wanted = _wide_reference(state, (query, key, value))
    torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=0.0)


def test_sums_that_overflow_float32_are_saved_forked_cropped_and_taken(tmp_path: Path) -> None:
    query, key, value = draw(301, widths=(3, 5))
    value = value.abs().clamp(0.1, 1.0)
    state = new(qkv.FeatureMap(features.elu1), widths=(3, 5))
    narrow = state.nbytes
    state.append(key[:, :, :50], value[:, :, :50])
    state.snapshot()
    state.append(key[:, :, 50:300], value[:, :, 50:300] * 3e38)
    state.append(key[:, :, 300:], value[:, :, 300:])
    value[:, :, 50:300] *= 3e38
    assert state.nbytes != narrow  # rows of the native layout are padded
    state.save(tmp_path / "state")
    with safe_open(tmp_path / "state", "pt") as file:
        assert file.get_tensor("sums").dtype is torch.float64
    loaded = qkv.LinearState.load(tmp_path / "state", state.similarity)
    whole = _wide_reference(state, (query, key, value))[:, :, -1:]
    for other in (state.fork(), loaded):
        other.crop(300)
        found = qkv.decode(query[:, :, 300:], key[:, :, 300:], value[:, :, 300:], other)
        torch.testing.assert_close(found.double(), whole, rtol=2e-5, atol=0.0)
    loaded.reorder([1])
    loaded.crop(300)
    found = qkv.decode(query[1:, :, 300:], key[1:, :, 300:], value[1:, :, 300:], loaded)
    torch.testing.assert_close(found.double(), whole[1:], rtol=2e-5, atol=0.0)
    state.crop(50)  # the snapshot has sums in float32
    assert state.nbytes == narrow
    found = qkv.decode(query[:, :, 50:51], key[:, :, 50:51], value[:, :, :1], state)
    assert bool(found.isfinite().all())
    assert float(found.max()) <= 1.0
