"""Steps of `qkv.decode` as they run on this machine: how long one takes, and how many bytes the memory really has."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ..cost.past import past
from ..cost.readable import quantity
from ..decoding import decode
from ..errors import OptionError, complaint
from ..features import elu1
from ..memory import KVCache, LinearState
from ..memory.layout import PAGE, layout_of
from ..similarity import FeatureMap

MOST_BYTES = 64 << 20  # of the memory, and of the tokens in float32, which is what is made and appended
CHUNK = 4 << 20  # bytes that are appended at once
STEPS, UNTIMED = 15, 3


class Timed(NamedTuple):
    """seconds: of each step, in the order in which they ran. nbytes: of the memory before the first. threads: that it
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
) -> Timed:
    """Steps of one token each, after `tokens`: the memory goes back to its length after each. Arguments as of
    `qkv.cost.past`; `say` is told how far it is.

    >>> timed = time_steps("MQA", batch=1, heads=4, kv_heads=2, width=16, tokens=100)
    >>> len(timed.seconds), timed.nbytes > 100 * 2 * 16 * 4
    (15, True)
    """
    kept_heads = past(way, batch=batch, heads=heads, kv_heads=kv_heads, width=width, tokens=0).kv_heads
    a_token = batch * kept_heads * width * 2 * 4
    memory = _memory(way, batch, kept_heads, width, cache)
    _check_room(memory, tokens, a_token)
    generator = torch.Generator().manual_seed(0)

    def numbers(heads: int, count: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, width, generator=generator)

    at_once = max(1, min(CHUNK // a_token, tokens))
    key, value = numbers(kept_heads, at_once), numbers(kept_heads, at_once)
    for start in range(0, tokens, at_once):
        say("filling the memory", start, tokens)
        count = min(at_once, tokens - start)
        memory.append(key[:, :, :count], value[:, :, :count])
    if isinstance(memory, LinearState):
        memory.snapshot()
    nbytes, seconds = memory.nbytes, []
    query, key, value = numbers(heads, 1), key[:, :, :1].contiguous(), value[:, :, :1].contiguous()
    for step in range(UNTIMED + STEPS):
        say("decoding", step, UNTIMED + STEPS)
        began = perf_counter()
        decode(query, key, value, memory)
        seconds.append(perf_counter() - began)
        memory.crop(tokens)
    return Timed(tuple(seconds[UNTIMED:]), nbytes, torch.get_num_threads())


def _check_room(memory: KVCache | LinearState, tokens: int, a_token: int) -> None:
    """Before anything is set aside."""
    if isinstance(memory, LinearState):
        room = memory.nbytes
    else:
        page = layout_of(memory.dtype, memory.heads, memory.width, memory.value_width).page_bytes
        room = memory.batch * page * (tokens // PAGE + 1)
    if (needed := max(room, a_token * tokens)) > MOST_BYTES:
        given, most = quantity(needed, "B"), quantity(MOST_BYTES, "B")
        hint = "take fewer tokens, heads or sequences, or narrower heads"
        raise OptionError(complaint("memory", f"{given} that a measurement would fill", f"at most {most}", hint))


def _memory(way: str, batch: int, heads: int, width: int, cache: str) -> KVCache | LinearState:
    if way == "linear":
        return LinearState(FeatureMap(elu1), batch, heads, width)
    return KVCache(batch, heads, width, dtype=getattr(torch, cache))
