"""Counting what the kernels execute: what it counts, that it changes nothing, and when it is on."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from decode_reference import in_a_process
from qkv import ops
from qkv.ops.kernels import POWER, FeatureRule, linear_attention
from qkv.ops.loader import load

NATIVE: Any = load().native


@pytest.fixture(params=ops.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of one instruction set, for one test."""
    NATIVE.use(request.param)
    yield request.param
    NATIVE.use(ops.isa())


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on_a_memory(similarity: qkv.Softmax | qkv.Argmax, dtype: torch.dtype) -> Tensor:
    cache = qkv.KVCache(2, 3, 17, value_width=19, dtype=dtype)
    outs = []
    for n in (131, 1, 1, 7):  # the third is the step that the library knows again
        tokens = normal(2, 6, n, 17, seed=n), normal(2, 3, n, 17, seed=n + 1), normal(2, 3, n, 19, seed=n + 2)
        outs.append(qkv.decode(*tokens, cache, similarity=similarity))
    return torch.cat(outs, dim=2)


def attend(**options: Any) -> Tensor:
    tensors = normal(2, 6, 53, 17), normal(2, 3, 131, 17, seed=2), normal(2, 3, 131, 19, seed=3)
    return qkv.attention(*tensors, mask=qkv.Causal(offset=71), **options)


CALLS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: attend(backend="native", similarity=qkv.Softmax(softcap=2.0)),
    "argmax": lambda: attend(backend="argmax", similarity=qkv.Argmax()),
    "elu1": lambda: attend(backend="linear", similarity=qkv.FeatureMap(qkv.features.elu1)),
    "polynomial": lambda: attend(backend="linear", similarity=qkv.Polynomial(2)),
    "cache": lambda: on_a_memory(qkv.Softmax(), torch.bfloat16),
    "int8": lambda: on_a_memory(qkv.Softmax(softcap=3.0), torch.int8),
    "hard cache": lambda: on_a_memory(qkv.Argmax(), torch.float16),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_counting_changes_no_bit(isa: str, call: Callable[[], Tensor]) -> None:
    plain = call()
    assert not NATIVE.is_counting()
    with ops.count_executed() as work:
        assert NATIVE.is_counting()
        found = call()
    assert not NATIVE.is_counting()
    assert torch.equal(found, plain)
    assert work.flops > 0


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_threads_do_not_change_a_count(call: Callable[[], Tensor], threads: Callable[[int], None]) -> None:
    works = []
    for count in (1, 2, 5):
        threads(count)
        with ops.count_executed() as work:
            call()
        works.append(work)
    assert works[0] == works[1] == works[2]


def test_nothing_counts_outside_of_a_block() -> None:
    before = NATIVE.counts()
    for call in CALLS.values():
        call()
    assert NATIVE.counts() == before


def test_by_hand() -> None:
    """One query row, 5 keys of width 3, values of width 7: a vector of scores, a group of weights, a line of values."""
    lanes = ops.geometry().lanes
    with ops.count_executed() as work:
        ops.softmax_attention(normal(1, 1, 1, 3), normal(1, 1, 5, 3), normal(1, 1, 5, 7), scale=1.0)
    assert work.score_flops == 2 * 3 * (-(-5 // lanes) * lanes)
    assert work.value_flops == 2 * 5 * 16
    assert (work.exponentials, work.tiles, work.other_flops, work.feature_flops) == (16, 1, 0, 0)
    assert work.flops == work.score_flops + work.value_flops
    tile = ops.geometry().tile_rows * ops.geometry().tile_keys
    with ops.count_executed() as work:
        ops.argmax_scores(normal(1, 1, 1, 3), normal(1, 1, 5, 3))
    assert (work.score_flops, work.flops, work.tiles) == (2 * tile * 3, 2 * tile * 3, 1)


def test_powers_count_as_features_and_products_apart() -> None:
    query, key, value = normal(1, 1, 1, 3), normal(1, 1, 5, 3), normal(1, 1, 5, 7)
    with ops.count_executed() as work:
        linear_attention(query, key, value, FeatureRule(POWER, 3, 2, 1.0), direct=True)
    # Scores of a line of keys, their squares, and five weights for as many values and the sum below.
    assert work.other_flops == 2 * (16 * 3 + 5 * 16 + 5)
    assert work.feature_flops == 16 * 2
    assert work.flops == work.other_flops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_a_value_that_is_not_finite_is_weighed_key_by_key(isa: str, dtype: torch.dtype) -> None:
    """Then only the pairs that a query sees are done, each with a line of values."""
    cache = qkv.KVCache(1, 1, 3, value_width=7, dtype=dtype)
    query, key, value = normal(1, 2, 13, 3), normal(1, 1, 13, 3), normal(1, 1, 13, 7)
    value[0, 0, 11, 2] = float("nan")
    seen = 2 * (13 * 14 // 2)
    with ops.count_executed() as work:
        qkv.decode(query, key, value, cache)
    assert work.value_flops == 2 * seen * 16
    with ops.count_executed() as work:
        qkv.attention(query, key, value, mask=qkv.Causal(), backend="native")
    assert work.value_flops == 2 * seen * 16
    value[0, 0, 11, 2] = 0.0
    with ops.count_executed() as work:
        qkv.attention(query, key, value, mask=qkv.Causal(), backend="native")
    assert work.value_flops == 2 * (2 * 13 * 13) * 16


def test_a_block_in_a_block_counts_for_both() -> None:
    with ops.count_executed() as alone:
        CALLS["plain"]()
    with ops.count_executed() as outer:
        CALLS["plain"]()
        with ops.count_executed() as inner:
            CALLS["plain"]()
        assert NATIVE.is_counting()
        assert inner == alone
        assert outer.flops == 0  # not before it ends
        CALLS["plain"]()
    assert outer == alone.times(3)
    assert inner + inner + inner == outer


def test_a_block_counts_the_calls_of_every_thread() -> None:
    with ops.count_executed() as alone:
        CALLS["plain"]()
    workers = [threading.Thread(target=CALLS["plain"]) for _ in range(3)]
    with ops.count_executed() as work:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert work == alone.times(3)


def test_blocks_that_open_and_end_at_once_leave_nothing_on() -> None:
    def many() -> None:
        for _ in range(50):
            with ops.count_executed() as work:
                ops.softmax_attention(normal(1, 1, 1, 3), normal(1, 1, 5, 3), normal(1, 1, 5, 7), scale=1.0)
            assert work.value_flops >= 2 * 5 * 16

    failures = []

    def watched() -> None:
        try:
            many()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=watched) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert not NATIVE.is_counting()


def test_an_error_ends_the_block_with_its_numbers() -> None:
    with pytest.raises(KeyError), ops.count_executed() as work:
        CALLS["plain"]()
        raise KeyError
    assert work.flops > 0
    assert not NATIVE.is_counting()


def test_another_instruction_set_is_counted_as_well() -> None:
    try:
        with ops.count_executed() as work:
            for name in ops.isas():
                NATIVE.use(name)
                assert NATIVE.is_counting()
                ops.argmax_scores(normal(1, 1, 1, 3), normal(1, 1, 5, 3))
    finally:
        NATIVE.use(ops.isa())
    assert work.tiles == len(ops.isas())


def test_geometry_is_the_library_s(isa: str) -> None:
    geometry = ops.geometry()
    assert geometry.isa == isa
    assert geometry.tile_keys % geometry.lanes == geometry.page_tokens % geometry.lanes == 0
    assert geometry.part_tokens % geometry.page_tokens == geometry.page_tokens % geometry.group_tokens == 0
    for features in (1, 511, 512, 513, 8191, 8192, 8193, 2**20, 2**62):
        assert geometry.chunk_tokens(features) == ops.chunk_tokens(features)
    chunks = [tokens for _, tokens in geometry.chunks]
    assert chunks == sorted(chunks)


def test_pages_are_those_of_a_memory() -> None:
    from qkv.cache.pages import PAGE

    assert ops.geometry().page_tokens == PAGE


def test_without_the_native_library() -> None:
    code = """
from qkv import kernels
from qkv.errors import BackendRefused
from qkv.backends.linear import chunks, native
for function in (kernels.geometry, lambda: kernels.counted().__enter__(), lambda: kernels.chunk_tokens(5)):
    try:
        function()
    except BackendRefused as error:
        print("needs the native library" in str(error), "QKV_NATIVE" in str(error.reasons))
print(native.chunk_tokens(9) == chunks.MOST_TOKENS)
"""
    assert in_a_process(code, QKV_NATIVE="0").split() == ["True"] * 7
