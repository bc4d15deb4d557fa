"""`time_steps`: caches of the requested sizes, and limits that are checked first."""

import pytest
import torch

from qkv import FeatureMap, KVCache, LinearState, features
from qkv.cost.variants import past
from qkv.errors import OptionError
from qkv.profiling.decode import MAX_BYTES, STEPS, time_steps

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "width": 24}


@pytest.mark.parametrize("cache", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize(("way", "heads"), [("MHA", 4), ("GQA", 2), ("MQA", 1)])
def test_caches_are_those_that_were_asked_for(way, heads, cache):
    timed = time_steps(way, tokens=130, cache=cache, **SIZES)
    mine = KVCache(2, heads, 24, dtype=getattr(torch, cache))
    mine.append(torch.zeros(2, heads, 130, 24), torch.zeros(2, heads, 130, 24))
    assert timed.nbytes == mine.nbytes >= past(way, tokens=130, cache=cache, **SIZES).cache_bytes
    assert len(timed.seconds) == STEPS
    assert min(timed.seconds) <= timed.median <= max(timed.seconds)


def test_a_state_does_not_grow():
    state = LinearState(FeatureMap(features.elu1), 2, 2, 24)
    for tokens in (0, 1, 3000):
        assert time_steps("linear", tokens=tokens, **SIZES).nbytes == state.nbytes


def test_an_empty_past_can_be_timed():
    assert time_steps("GQA", tokens=0, **SIZES).nbytes == 0


def test_too_much_is_refused_before_it_is_made():
    wide = {"batch": 64, "heads": 64, "kv_heads": 64, "width": 256}
    for way in ("MHA", "linear"):
        with pytest.raises(OptionError, match=r"at most 67\.1 MB"):
            time_steps(way, tokens=7, **wide)
    assert MAX_BYTES == 64 << 20


def test_it_tells_how_far_it_is_and_can_be_stopped():
    told = []
    time_steps("GQA", tokens=20_000, say=lambda *said: told.append(said), **SIZES)
    assert {what for what, _, _ in told} == {"filling the cache", "decoding"}
    assert all(done < of for _, done, of in told)

    class Enough(Exception):
        pass

    def stop(*said):
        raise Enough

    with pytest.raises(Enough):
        time_steps("GQA", tokens=5, say=stop, **SIZES)
