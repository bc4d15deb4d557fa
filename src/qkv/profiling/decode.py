"""Steps of `qkv.decode` as they run on this machine: how long one takes, and how many bytes the cache really has."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ..cache import KVCache, LinearState
from ..cache.decode import decode
from ..cache.pages import PAGE, page_layout
from ..cost.readable import quantity
from ..cost.variants import past
from ..errors import OptionError, complaint
from ..features import elu1
from ..similarity import FeatureMap

MAX_BYTES = 64 << 20  # of the cache, and of the tokens in float32, which is what is made and appended
CHUNK = 4 << 20  # bytes that are appended at once
STEPS, UNTIMED = 15, 3


class StepTimes(NamedTuple):
    """seconds: of each step, in the order in which they ran. nbytes: of the cache before the first. threads: that it
    ran with."""

    seconds: tuple[float, ...]
    nbytes: int
    threads: int

    @property
    def middle(self) -> float:
        return median(self.seconds)


def time_steps(
    way: str,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    width: int,
    tokens: int,
    cache: str = "float32",
    say: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> StepTimes:
    """Steps of one token each, after `tokens`: the cache goes back to its length after each. Arguments as of
    `qkv.cost.variants`; `say` is told how far it is.

    >>> timed = time_steps("MQA", batch=1, heads=4, kv_heads=2, width=16, tokens=100)
    >>> len(timed.seconds), timed.nbytes > 100 * 2 * 16 * 4
    (15, True)
    """
    kept_heads = past(way, batch=batch, heads=heads, kv_heads=kv_heads, width=width, tokens=0).kv_heads
    a_token = batch * kept_heads * width * 2 * 4
    kv_cache = _make_cache(way, batch, kept_heads, width, cache)
    _check_bytes(kv_cache, tokens, a_token)
    generator = torch.Generator().manual_seed(0)

    def numbers(heads: int, count: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, width, generator=generator)

    at_once = max(1, min(CHUNK // a_token, tokens))
    key, value = numbers(kept_heads, at_once), numbers(kept_heads, at_once)
    for start in range(0, tokens, at_once):
        say("filling the cache", start, tokens)
        count = min(at_once, tokens - start)
        kv_cache.append(key[:, :, :count], value[:, :, :count])
    if isinstance(kv_cache, LinearState):
        kv_cache.snapshot()
    nbytes, seconds = kv_cache.nbytes, []
    query, key, value = numbers(heads, 1), key[:, :, :1].contiguous(), value[:, :, :1].contiguous()
    for step in range(UNTIMED + STEPS):
        say("decoding", step, UNTIMED + STEPS)
        began = perf_counter()
        decode(query, key, value, kv_cache)
        seconds.append(perf_counter() - began)
        kv_cache.crop(tokens)
    return StepTimes(tuple(seconds[UNTIMED:]), nbytes, torch.get_num_threads())


def _check_bytes(kv_cache: KVCache | LinearState, tokens: int, a_token: int) -> None:
    """Before anything is set aside."""
    if isinstance(kv_cache, LinearState):
        room = kv_cache.nbytes
    else:
        page = page_layout(kv_cache.dtype, kv_cache.heads, kv_cache.width, kv_cache.value_width).page_bytes
        room = kv_cache.batch * page * (tokens // PAGE + 1)
    if (needed := max(room, a_token * tokens)) > MAX_BYTES:
        given, most = quantity(needed, "B"), quantity(MAX_BYTES, "B")
        hint = "take fewer tokens, heads or sequences, or narrower heads"
        raise OptionError(complaint("cache", f"{given} that a measurement would fill", f"at most {most}", hint))


def _make_cache(way: str, batch: int, heads: int, width: int, cache: str) -> KVCache | LinearState:
    if way == "linear":
        return LinearState(FeatureMap(elu1), batch, heads, width)
    return KVCache(batch, heads, width, dtype=getattr(torch, cache))
