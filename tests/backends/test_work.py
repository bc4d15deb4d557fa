"""The work that a backend predicts is the work that it executes, on hundreds of random calls."""

import pytest
import torch

from qkv import Softmax
from qkv.backends import BACKENDS
from qkv.profiling.calibrate import Probe, prepare, prime_size_probes
from qkv.profiling.watch import watch

PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_predicted_flops_are_executed_flops(part: int) -> None:
    for probe in prime_size_probes(64, seed=part):
        call = prepare(probe)
        with torch.no_grad(), watch() as watched:
            call.run()
        assert call.work.executed == watched.products + watched.native, probe


def test_the_random_calls_cover_every_backend_dtype_mask_and_similarity() -> None:
    calls = [probe for part in range(PARTS) for probe in prime_size_probes(64, seed=part)]
    assert len(calls) >= 500

    def kinds(of) -> set:
        return {of(probe) for probe in calls}

    assert kinds(lambda p: p.backend) == set(BACKENDS)
    assert kinds(lambda p: p.dtype) == {"float32", "float64", "bfloat16", "float16"}
    assert kinds(lambda p: p.storage) == {None, "float32", "float16", "bfloat16", "int8"}
    assert kinds(lambda p: type(p.mask).__name__) == {"NoneType", "Causal", "Window"}
    assert kinds(lambda p: type(p.similarity).__name__) == {"Softmax", "Polynomial", "FeatureMap", "Argmax"}


@pytest.mark.parametrize("backend", ["sdpa", "native", "reference"])
def test_work_of_the_busiest_thread(backend: str, threads) -> None:
    """More threads never increase the work of one, and it is never less than an even share."""
    probe = Probe(backend, "float32", 1, 6, 3, 1031, 1031, 64, 64, Softmax())
    works = {}
    for count in (1, 2, 3):
        threads(count)
        works[count] = prepare(probe).work
    assert works[1].products == works[1].executed == works[2].executed
    assert all(works[1].products / n <= works[n].products <= works[1].products for n in works)
