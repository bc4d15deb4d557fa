"""What the backends say that they execute is what they execute: formula and count, on hundreds of random calls."""

import pytest
import torch

from qkv import Softmax
from qkv.profiling.calibrate import Probe, prepare, prime_size_probes
from qkv.profiling.watch import watch

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_formula_is_count(part: int) -> None:
    for probe in prime_size_probes(64, seed=part):
        call = prepare(probe)
        with torch.no_grad(), watch() as seen:
            call.run()
        assert call.work.executed == seen.products + seen.native, probe


def test_there_are_hundreds_of_calls_of_every_kind() -> None:
    calls = [probe for part in range(PARTS) for probe in prime_size_probes(64, seed=part)]
    assert len(calls) >= 500

    def kinds(of) -> set:
        return {of(probe) for probe in calls}

    assert kinds(lambda p: p.backend) == {"reference", "sdpa", "native", "argmax", "linear"}
    assert kinds(lambda p: p.dtype) == {"float32", "float64", "bfloat16", "float16"}
    assert kinds(lambda p: p.storage) == {None, "float32", "float16", "bfloat16", "int8"}
    assert kinds(lambda p: type(p.mask).__name__) == {"NoneType", "Causal", "Window"}
    assert kinds(lambda p: type(p.similarity).__name__) == {"Softmax", "Polynomial", "FeatureMap", "Argmax"}


@pytest.mark.parametrize("backend", ["sdpa", "native", "reference"])
def test_the_busiest_thread_has_its_share(backend: str, threads) -> None:
    """More threads never make more work for one, and never less than an even share."""
    probe = Probe(backend, "float32", 1, 6, 3, 1031, 1031, 64, 64, Softmax())
    works = {}
    for count in (1, 2, 3):
        threads(count)
        works[count] = prepare(probe).work
    assert works[1].products == works[1].executed == works[2].executed
    assert all(works[1].products / n <= works[n].products <= works[1].products for n in works)
