"""A short run of each long campaign: it counts what it does, and detects a leak, a drift, a wrong bit and a crash."""

import random
import signal

import pytest
import torch

from campaigns import bits, caches, calls, long_decoding, process_faults, serving
from campaigns.process_fault_kinds import EXIT_CODES, exit_kind
from qkv.backends import BACKENDS


def test_a_few_calls_are_drawn_and_counted() -> None:
    batch = calls.run(3, 10)
    assert batch.done == sum(batch.figures["property"].values()) >= 10
    assert sum(batch.figures["dtype"].values()) == sum(batch.figures["layout"].values()) == batch.done
    twice = calls.gather([batch.figures, batch.figures])
    assert twice["dtype"] == {name: 2 * count for name, count in batch.figures["dtype"].items()}


@pytest.mark.slow
def test_a_call_that_fails_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: object) -> list[str]:
        raise AssertionError("this call fails")

    monkeypatch.setattr(calls.properties, "every_backend_agrees_with_the_oracle", fails)
    with pytest.raises(AssertionError, match="this call fails"):
        calls.run(0, 1)


def test_a_few_steps_are_walked_and_counted() -> None:
    batch = caches.run(1, 60)
    assert batch.done == sum(sum(counts.values()) for counts in batch.figures.values()) >= 60
    assert set(batch.figures) == {"KVCache", "LinearState"}
    assert caches.gather([batch.figures])["LinearState"]["steps"] == sum(batch.figures["LinearState"].values())


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reference", "blockwise", "linear", "native", "KVCache int8", "LinearState"])
def test_repeats_are_compared(where: str) -> None:
    cell = next(one for one in bits.cells() if one.where == where and one.dtype == "float32")
    before = torch.get_num_threads()
    tally = bits.repeat_cell(cell, random.Random(2), repeats=3)
    torch.set_num_threads(before)
    assert tally["repeats"] == 3 * len(bits.THREADS)


def test_every_backend_and_dtype_has_cells() -> None:
    every = bits.cells()
    assert {cell.where for cell in every} >= {*BACKENDS, "LinearState"}
    assert {cell.dtype for cell in every} == set(bits.DTYPES)
    assert len(every) == len(set(every))


def test_a_wrong_bit_is_detected() -> None:
    wanted = torch.randn(3, 5)
    found = wanted.clone()
    bits.same_bits(found, wanted, "the same")
    found.view(torch.int32)[1, 2] ^= 1
    with pytest.raises(AssertionError, match=r"1 of 15 numbers differ, the first at \(1, 2\)"):
        bits.same_bits(found, wanted, "another")
    with pytest.raises(AssertionError, match="1 of 1"):
        bits.same_bits(torch.tensor([-0.0]), torch.tensor([0.0]), "zeros")


def flat(leak: float = 0.0, jump: int = 0) -> list[tuple[int, int]]:
    """Bytes after every thousand tokens: a start-up phase, noise, and the given leak and jump."""
    noise = random.Random(0)
    return [
        (t, 250_000_000 + min(t, 5_000) * 1_000 + noise.randrange(9) * 4096 + int(leak * t) + jump * (t > 150_000))
        for t in range(1_000, 200_001, 1_000)
    ]


def test_a_leak_is_detected_and_noise_is_not() -> None:
    assert abs(long_decoding.judge_memory(flat())["bytes in 10,000 tokens"]) < 10_000
    assert round(long_decoding.slope([(0, 7), (10_000, 107), (20_000, 207)])) == 100
    for leak in (10, 100):
        with pytest.raises(AssertionError, match="the process grows"):
            long_decoding.judge_memory(flat(leak))
    with pytest.raises(AssertionError, match="the process grows"):
        long_decoding.judge_memory(flat(jump=2_000_000))


def test_a_drift_is_detected() -> None:
    long_decoding.judge_drift({"1000": 0.2, "10000": 31.9}, 32.0)
    for wrong in (32.1, float("nan"), float("inf")):
        with pytest.raises(AssertionError, match="drift from float64"):
            long_decoding.judge_drift({"1000": 0.2, "10000": wrong}, 32.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(long_decoding.CACHES)))
def test_every_cache_decodes(seed: int) -> None:
    batch = long_decoding.run(seed, 1_100)
    assert batch.done == 1_100
    assert set(batch.figures["error in ulp of the largest |v|"]) == {"1000", "1100", "worst of all looks"}
    assert long_decoding.gather([batch.figures]).keys() == {batch.figures["cache"]}


def test_wrong_exits_are_detected() -> None:
    seeds = {way: next(seed for seed in range(999) if exit_kind(seed) == way) for way in EXIT_CODES}
    process_faults.judge("fork", 1, 0, "")
    process_faults.judge("exit", seeds["SIGTERM"], -signal.SIGTERM, "")
    process_faults.judge("exit", seeds["raises"], 1, "Traceback\nRuntimeError: this process ends with an error\n")
    for kind, seed, code, stderr, words in (
        ("fork", 1, None, "", "still running"),
        ("fork", 1, -11, "", "ended with -11 instead of 0"),
        ("exit", seeds["sys.exit"], -6, "terminate called", "ended with -6 instead of 7"),
        ("exit", seeds["sys.exit"], 7, "nanobind: leaked 1 instances!", "unexpected text"),
        ("exit", seeds["raises"], 1, "RuntimeError: another", "unexpected text"),
        ("threads", 1, 0, "a warning", "unexpected text"),
    ):
        with pytest.raises(AssertionError, match=words):
            process_faults.judge(kind, seed, code, stderr)


@pytest.mark.slow
def test_a_few_seconds_of_load_are_answered_and_counted() -> None:
    batch = serving.run(3, 6)
    assert set(batch.figures["requests"]) >= {*serving.KINDS}
    with pytest.raises(AssertionError, match="the server grows"):
        serving.judge_memory([200 << 20, 210 << 20, *range(220 << 20, 300 << 20, 10 << 20)])
