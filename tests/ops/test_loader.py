"""Loading: which instruction set is used, why the native library cannot be, and counting what the kernels execute."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import ops
from qkv.errors import OptionError
from qkv.ops import loader
from qkv.ops.kernels import POWER, FeatureRule, linear_attention
from qkv.ops.loader import Executed
from tests.helpers.decode_reference import in_a_process


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("QKV_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=settings | environment,
    )


def test_native_library_is_built() -> None:
    assert ops.available(), ops.reasons()
    assert ops.reasons() == ()
    assert ops.isa() in ops.isas()
    assert ops.isas()[-1] == "portable"
    assert ops.refused_isas() == {}


def test_the_capabilities_need_no_torch() -> None:
    done = python("import sys; from qkv import ops; ops.isa(); print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
def test_one_thread_until_torch_is_imported() -> None:
    done = python(
        "from qkv import ops; print(len(ops.reasons_for_one_thread()));"
        "import torch; print(ops.reasons_for_one_thread())"
    )
    assert done.stdout.split("\n")[:2] == ["1", "()"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("isa", ops.isas())
def test_every_instruction_set_gives_the_same_answer_for_integers(isa: str) -> None:
    code = (
        "import torch; from qkv import ops; torch.manual_seed(3);"
        "q = torch.randint(-3, 4, (2, 6, 43, 17)).float(); k = torch.randint(-3, 4, (2, 3, 101, 17)).float();"
        "s = torch.einsum('bhid,bhjd->bhij', q.double(), k.double().repeat_interleave(2, 1));"
        "first = (s == s.amax(-1, keepdim=True)).int().argmax(-1);"
        "assert torch.equal(ops.argmax_scores(q, k), first);"
        "assert ops.all_finite(q, k) and not ops.all_finite(q / 0);"
        "print(ops.isa())"
    )
    assert python(code, QKV_ISA=isa).stdout.strip() == isa


def test_an_unknown_instruction_set_is_refused() -> None:
    done = python("from qkv import ops; print('imported'); ops.isa()", QKV_ISA="avx1024")
    assert done.stdout.strip() == "imported"
    assert "OptionError: QKV_ISA: got 'avx1024', wanted one of" in done.stderr


@pytest.mark.slow
def test_the_native_library_can_be_turned_off() -> None:
    code = (
        "import torch; from qkv import ops;"
        "print(ops.available(), ops.reasons(), ops.isa(), ops.isas(), ops.calls());"
        "ops.reset_calls();"
        "assert ops.reasons_for_one_thread() == ();"
        "x = torch.ones(2, 3);"
        "assert ops.all_finite(x, x.t(), x.bfloat16()) and not ops.all_finite(x / 0);"
        "ops.argmax_scores(x[None, None], x[None, None])"
    )
    done = python(code, QKV_NATIVE="0")
    assert done.stdout.strip() == "False ('QKV_NATIVE=0 is set',) none () {}", done.stderr
    assert "BackendRefused" in done.stderr


def test_an_extension_that_does_not_load_is_a_reason_not_an_error() -> None:
    code = (
        "import sys; sys.modules['qkv.ops._native'] = None;"
        "from qkv import ops; print(ops.available(), ops.reasons()[0][:31])"
    )
    assert python(code).stdout.strip() == "False the native library is not built"


class FakeNative(ModuleType):
    """A native library whose instruction sets fail their self-check with the given faults."""

    def __init__(self, **faults: str) -> None:
        super().__init__("fake_native")
        self.faults = faults
        self.used: str | None = None

    def isas(self) -> list[str]:
        return list(self.faults)

    def self_check(self, isa: str) -> str:
        return self.faults[isa]

    def use(self, isa: str) -> None:
        self.used = isa


def test_the_next_instruction_set_is_used_if_one_fails_its_self_check() -> None:
    fake = FakeNative(fast="chose key 3 instead of 5", slow="")
    found = loader.choose_isa(fake, "")
    assert (fake.used, found.isa, found.reasons) == ("slow", "slow", ())
    assert found.refused == {"fast": "chose key 3 instead of 5"}


def test_a_requested_instruction_set_is_not_replaced() -> None:
    fake = FakeNative(fast="chose key 3 instead of 5", slow="")
    with pytest.raises(OptionError, match="chose key 3 instead of 5"):
        loader.choose_isa(fake, "fast")
    assert fake.used is None


def test_no_instruction_set_is_used_if_all_fail() -> None:
    found = loader.choose_isa(FakeNative(fast="a", slow="b"), "")
    assert found.native is None
    assert found.reasons == ("fast failed its self-check: a", "slow failed its self-check: b")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"dir\(qkv\.ops\)"):
        ops.argmin_scores  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert set(dir(ops)) == set(ops.__all__)


NATIVE: Any = loader.load().native


@pytest.fixture(params=ops.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of one instruction set, for one test."""
    NATIVE.use(request.param)
    yield request.param
    NATIVE.use(ops.isa())


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def decode_steps(similarity: qkv.Softmax | qkv.Argmax, dtype: torch.dtype) -> Tensor:
    cache = qkv.KVCache(2, 3, 17, value_width=19, dtype=dtype)
    outs = []
    for n in (131, 1, 1, 7):  # the third runs as a checked step
        tokens = normal(2, 6, n, 17, seed=n), normal(2, 3, n, 17, seed=n + 1), normal(2, 3, n, 19, seed=n + 2)
        outs.append(qkv.decode(*tokens, cache, similarity=similarity))
    return torch.cat(outs, dim=2)


def attend(**options: Any) -> Tensor:
    tensors = normal(2, 6, 53, 17), normal(2, 3, 131, 17, seed=2), normal(2, 3, 131, 19, seed=3)
    return qkv.attention(*tensors, mask=qkv.Causal(offset=71), **options)


CALLS: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: attend(backend="native", similarity=qkv.Softmax(softcap=2.0)),
    "argmax": lambda: attend(backend="argmax", similarity=qkv.Argmax()),
    "elu1": lambda: attend(backend="linear", similarity=qkv.FeatureMap(qkv.features.elu1)),
    "polynomial": lambda: attend(backend="linear", similarity=qkv.Polynomial(2)),
    "cache": lambda: decode_steps(qkv.Softmax(), torch.bfloat16),
    "int8": lambda: decode_steps(qkv.Softmax(softcap=3.0), torch.int8),
    "argmax cache": lambda: decode_steps(qkv.Argmax(), torch.float16),
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


def test_nothing_is_counted_outside_of_a_block() -> None:
    before = NATIVE.counts()
    for call in CALLS.values():
        call()
    assert NATIVE.counts() == before


def test_counts_by_hand() -> None:
    """One query row, 5 keys of width 3, values of width 7: a vector of scores, a group of weights, a line of values."""
    lanes, tile = {"avx512": (16, 8 * 48), "avx2": (8, 6 * 16), "portable": (4, 6 * 8)}[ops.isa()]
    with ops.count_executed() as work:
        ops.softmax_attention(normal(1, 1, 1, 3), normal(1, 1, 5, 3), normal(1, 1, 5, 7), scale=1.0)
    assert work.score_flops == 2 * 3 * (-(-5 // lanes) * lanes)
    assert work.value_flops == 2 * 5 * 16
    assert (work.exponentials, work.tiles, work.other_flops, work.feature_flops) == (16, 1, 0, 0)
    assert work.flops == work.score_flops + work.value_flops
    with ops.count_executed() as work:
        ops.argmax_scores(normal(1, 1, 1, 3), normal(1, 1, 5, 3))
    assert (work.score_flops, work.flops, work.tiles) == (2 * tile * 3, 2 * tile * 3, 1)


def test_powers_count_as_features() -> None:
    query, key, value = normal(1, 1, 1, 3), normal(1, 1, 5, 3), normal(1, 1, 5, 7)
    with ops.count_executed() as work:
        linear_attention(query, key, value, FeatureRule(POWER, 3, 2, 1.0), direct=True)
    # Scores of 16 keys, their squares, and five weights for as many values and for the denominator.
    assert work.other_flops == 2 * (16 * 3 + 5 * 16 + 5)
    assert work.feature_flops == 16 * 2
    assert work.flops == work.other_flops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_nonfinite_values_are_weighted_key_by_key(isa: str, dtype: torch.dtype) -> None:
    """Only attended pairs are then computed, each with a vector of values."""
    cache = qkv.KVCache(1, 1, 3, value_width=7, dtype=dtype)
    query, key, value = normal(1, 2, 13, 3), normal(1, 1, 13, 3), normal(1, 1, 13, 7)
    value[0, 0, 11, 2] = float("nan")
    pairs = 2 * (13 * 14 // 2)
    with ops.count_executed() as work:
        qkv.decode(query, key, value, cache)
    assert work.value_flops == 2 * pairs * 16
    with ops.count_executed() as work:
        qkv.attention(query, key, value, mask=qkv.Causal(), backend="native")
    assert work.value_flops == 2 * pairs * 16
    value[0, 0, 11, 2] = 0.0
    with ops.count_executed() as work:
        qkv.attention(query, key, value, mask=qkv.Causal(), backend="native")
    assert work.value_flops == 2 * (2 * 13 * 13) * 16


def test_nested_blocks_both_count() -> None:
    with ops.count_executed() as alone:
        CALLS["softmax"]()
    with ops.count_executed() as outer:
        CALLS["softmax"]()
        with ops.count_executed() as inner:
            CALLS["softmax"]()
        assert NATIVE.is_counting()
        assert inner == alone
        assert outer.flops == 0  # set when it ends
        CALLS["softmax"]()
    assert outer == Executed(**{name: 3 * count for name, count in vars(alone).items()})


def test_a_block_counts_the_calls_of_every_thread() -> None:
    with ops.count_executed() as alone:
        CALLS["softmax"]()
    workers = [threading.Thread(target=CALLS["softmax"]) for _ in range(3)]
    with ops.count_executed() as work:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert work == Executed(**{name: 3 * count for name, count in vars(alone).items()})


def test_concurrent_blocks_turn_counting_off() -> None:
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


def test_an_error_ends_the_block_and_sets_its_numbers() -> None:
    with pytest.raises(KeyError), ops.count_executed() as work:
        CALLS["softmax"]()
        raise KeyError
    assert work.flops > 0
    assert not NATIVE.is_counting()


def test_every_instruction_set_is_counted() -> None:
    try:
        with ops.count_executed() as work:
            for name in ops.isas():
                NATIVE.use(name)
                assert NATIVE.is_counting()
                ops.argmax_scores(normal(1, 1, 1, 3), normal(1, 1, 5, 3))
    finally:
        NATIVE.use(ops.isa())
    assert work.tiles == len(ops.isas())


@pytest.mark.slow
def test_counting_and_chunks_need_the_native_library() -> None:
    code = """
from qkv import ops
from qkv.errors import BackendRefused
from qkv.backends import linear
for function in (lambda: ops.count_executed().__enter__(), lambda: ops.chunk_tokens(5)):
    try:
        function()
    except BackendRefused as error:
        print("needs the native library" in str(error), "QKV_NATIVE" in str(error.reasons))
print(linear.chunk_tokens(9) == linear.MAX_CHUNK_TOKENS)
"""
    assert in_a_process(code, QKV_NATIVE="0").split() == ["True"] * 5
