"""LinearState and decode: the last rows of causal attention over the whole sequence, however the tokens came."""

import itertools
from functools import cache
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from decode_reference import name_of, same_bits
from linear_reference import (
    DTYPES,
    HEADS,
    VALUE_WIDTH,
    WIDTH,
    Answer,
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
from qkv import errors, features

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
