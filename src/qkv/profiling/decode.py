"""Time steps of `qkv.decode` on this machine, and measure the bytes of the cache."""

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

MAX_BYTES = 64 << 20  # of the cache, and of the tokens in float32 before they are appended
CHUNK = 4 << 20  # bytes that are appended at once
STEPS, UNTIMED = 15, 3


class StepTimes(NamedTuple):
    """seconds: Of each step, in order. nbytes: Of the cache before the first step. threads: Used by torch."""

    seconds: tuple[float, ...]
    nbytes: int
    threads: int

    @property
    def median(self) -> float:
        """Median seconds of a step."""
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
    """Time steps of one token each after `tokens` tokens; the cache is cropped after each step.

    Args:
        way, batch, heads, kv_heads, width, tokens: As for `qkv.cost.past`.
        cache: Storage format of a `KVCache`.
        say: Called with the activity, how much of it is done, and the total.

    >>> timed = time_steps("MQA", batch=1, heads=4, kv_heads=2, width=16, tokens=100)
    >>> len(timed.seconds), timed.nbytes > 100 * 2 * 16 * 4
    (15, True)
    """
    kept_heads = past(way, batch=batch, heads=heads, kv_heads=kv_heads, width=width, tokens=0).kv_heads
    token_bytes = batch * kept_heads * width * 2 * 4
    if way == "linear":
        kv_cache = LinearState(FeatureMap(elu1), batch, kept_heads, width)
    else:
        kv_cache = KVCache(batch, kept_heads, width, dtype=getattr(torch, cache))
    _check_bytes(kv_cache, tokens, token_bytes)
    generator = torch.Generator().manual_seed(0)

    def numbers(heads: int, count: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, width, generator=generator)

    chunk = max(1, min(CHUNK // token_bytes, tokens))
    key, value = numbers(kept_heads, chunk), numbers(kept_heads, chunk)
    for start in range(0, tokens, chunk):
        say("filling the cache", start, tokens)
        count = min(chunk, tokens - start)
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


def _check_bytes(kv_cache: KVCache | LinearState, tokens: int, token_bytes: int) -> None:
    """Refuse large measurements before memory is allocated."""
    if isinstance(kv_cache, LinearState):
        size = kv_cache.nbytes
    else:
        page = page_layout(kv_cache.dtype, kv_cache.heads, kv_cache.width, kv_cache.value_width).page_bytes
        size = kv_cache.batch * page * (tokens // PAGE + 1)
    if (needed := max(size, token_bytes * tokens)) > MAX_BYTES:
        given, most = quantity(needed, "B"), quantity(MAX_BYTES, "B")
        hint = "use fewer tokens, heads or sequences, or narrower heads"
        raise OptionError(complaint("cache", f"{given} to measure", f"at most {most}", hint))
