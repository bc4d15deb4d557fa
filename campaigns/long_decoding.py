"""200,000 tokens through one cache: memory stays flat, and errors stay within the bound.

Each batch decodes with one cache: rings of three storage formats, linear states of three maps. At checkpoints the
answer is compared with float64: a ring's with the equation over its last tokens as they are stored, a state's with a
state in float64 that was given the same tokens.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.backends import BACKENDS
from qkv.testing import ulp
from tests.helpers import decode_reference

from .campaign import Batch, Campaign

TOKENS = 200_000
HEADS, KV_HEADS, WIDTH = 4, 2, 16
WINDOW = 500
BLOCK = 1_000  # tokens that are drawn at a time, each block from a separate seed
CHECKPOINTS = (1_000, 10_000, 50_000, 100_000, 200_000)
ELU1 = qkv.FeatureMap(qkv.features.elu1)
RANDOM = qkv.FeatureMap(qkv.features.positive_random(WIDTH, 64, seed=3))
CACHES: dict[str, Callable[[], Any]] = {
    "ring float32": lambda: qkv.KVCache(1, KV_HEADS, WIDTH, window=WINDOW),
    "ring bfloat16": lambda: qkv.KVCache(1, KV_HEADS, WIDTH, window=WINDOW, dtype=torch.bfloat16),
    "ring int8": lambda: qkv.KVCache(1, KV_HEADS, WIDTH, window=WINDOW, dtype=torch.int8),
    "state elu1": lambda: qkv.LinearState(ELU1, 1, KV_HEADS, WIDTH),
    "state polynomial": lambda: qkv.LinearState(qkv.Polynomial(2), 1, KV_HEADS, WIDTH),
    "state positive random": lambda: qkv.LinearState(RANDOM, 1, KV_HEADS, WIDTH),
}
# The allocator may keep a few pages; a page of tokens that is never freed would be 1.3 MB in 10,000 tokens, and one
# Python object a token 0.5 MB.
MOST_SLOPE = 64 << 10
MOST_GROWTH = 1 << 20


def block(number: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(1_000 + number)
    heads = HEADS, KV_HEADS, KV_HEADS
    query, key, value = (torch.randn(1, count, BLOCK, WIDTH, generator=source) for count in heads)
    return query, key, value


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(series: list[tuple[int, int]]) -> float:
    """Bytes in 10,000 tokens, by least squares, of (tokens, bytes)."""
    middle = sum(t for t, _ in series) / len(series)
    mean = sum(b for _, b in series) / len(series)
    spread = sum((t - middle) ** 2 for t, _ in series)
    return 1e4 * sum((t - middle) * (b - mean) for t, b in series) / spread


def judge_memory(series: list[tuple[int, int]]) -> dict[str, float]:
    """Raise AssertionError if the process grows with the tokens; the first tenth does not count."""
    warm = [point for point in series if point[0] > series[-1][0] / 10]
    half = [b for t, b in warm if t >= series[-1][0] / 2]
    few = max(1, len(half) // 10)
    growth = round((sum(half[-few:]) - sum(half[:few])) / few)
    found = {"bytes in 10,000 tokens": round(slope(warm)), "growth over the last half": growth}
    if found["bytes in 10,000 tokens"] > MOST_SLOPE or found["growth over the last half"] > MOST_GROWTH:
        raise AssertionError(f"the process grows: {found}, allowed {MOST_SLOPE} and {MOST_GROWTH}; {series}")
    return found


def judge_drift(errors: dict[str, float], most: float) -> None:
    """Raise AssertionError if an answer is too far from float64's, or NaN."""
    if not all(error <= most for error in errors.values()):
        raise AssertionError(f"answers drift from float64's: {errors} ulp of the largest |v|, allowed {most}")


def by_equation(cache: Any, number: int, at: int) -> Tensor:
    """The answer to token `at` of a block, in float64, over the last tokens as the cache stores them."""
    blocks = [block(n) for n in range(max(0, number - WINDOW // BLOCK - 1), number + 1)]
    key, value = (torch.cat([tensors[which] for tensors in blocks], dim=2) for which in (1, 2))
    end = key.shape[2] - BLOCK + at + 1
    key, value = (tensor[:, :, max(0, end - WINDOW) : end] for tensor in (key, value))
    k, v = (decode_reference.stored(t, cache.dtype).repeat_interleave(HEADS // KV_HEADS, 1) for t in (key, value))
    query = blocks[-1][0][:, :, at : at + 1].double()
    return torch.softmax(query @ k.mT / math.sqrt(WIDTH), dim=-1) @ v


def by_sums(state: Any, tensors: tuple[Tensor, ...], steps: int) -> Tensor:
    """The answer to the last token, by sums in float64; the other tokens are only appended."""
    double = [tensor[:, :, :steps].double() for tensor in tensors]
    if steps > 1:
        state.append(*(tensor[:, :, :-1] for tensor in double[1:]))
    return qkv.decode(*(tensor[:, :, -1:] for tensor in double), state)


def decode(name: str, tokens: int) -> dict[str, Any]:
    """`tokens` steps with one cache: memory and errors, checked after each block."""
    cache, exact = CACHES[name](), None if name.startswith("ring") else CACHES[name]()
    series, errors, relative, sizes, spent, worst = [], {}, {}, set(), 0.0, 0.0
    for number in range(-(-tokens // BLOCK)):
        tensors = block(number)
        steps, found = min(BLOCK, tokens - number * BLOCK), tensors[0]
        before = time.perf_counter()
        for t in range(steps):
            found = qkv.decode(*(tensor[:, :, t : t + 1] for tensor in tensors), cache)
        spent += time.perf_counter() - before
        done = number * BLOCK + steps
        series.append((done, resident()))
        sizes.add(cache.nbytes)
        right = by_equation(cache, number, steps - 1) if exact is None else by_sums(exact, tensors, steps)
        off = float((found.double() - right).abs().max())
        error = off / float(ulp(tensors[2].abs().max(), torch.float32))
        worst = error if math.isnan(error) else max(worst, error)
        if done in CHECKPOINTS or done == tokens:
            errors[str(done)], relative[str(done)] = round(error, 3), off / float(right.abs().max())
    assert cache.length == tokens
    return {
        "cache": name,
        "tokens": tokens,
        "tokens a second": round(tokens / spent),
        "bytes of the cache": sorted(sizes),
        "series": series,
        "error in ulp of the largest |v|": errors | {"worst of all looks": round(worst, 3)},
        "error as a part of the largest answer": relative,
    }


def run(seed: int, count: int) -> Batch:
    torch.set_num_threads(1)
    name = list(CACHES)[seed % len(CACHES)]
    result = decode(name, count)
    series = result.pop("series")
    # A short run has only the first tenth.
    flat = judge_memory(series) if len(series) >= 100 else {}
    # The published bound of the backend, for any number of tokens.
    backend = "native" if name.startswith("ring") else "linear"
    judge_drift(result["error in ulp of the largest |v|"], BACKENDS[backend].bound[torch.float32])
    # A ring has one more page while it fills one; a state has a fixed size.
    sizes, most = result["bytes of the cache"], 2 if name.startswith("ring") else 1
    assert len(sizes) <= most, f"{name}: the cache's own size changes: {sizes}"
    return Batch(count, result | flat)


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """By cache; of two runs with the same cache, the later one."""
    return {batch["cache"]: {key: value for key, value in batch.items() if key != "cache"} for batch in figures}


CAMPAIGN = Campaign(
    about="200,000 tokens decoded with each of six caches: memory stays flat, errors within the bound",
    unit="tokens",
    goal=len(CACHES) * TOKENS,
    batch=TOKENS,
    run=run,
    alone=True,
    limit=3600,
    gather=gather,
)
