"""Timed where the tour runs: a decoding step beside PyTorch's, and where linear time begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import scaled_dot_product_attention

import qkv
from qkv import features, ops
from qkv.ops.kernels import ELU1, Rule, linear

HEADS, HEADS_KV, PAST, WIDTH = 32, 8, 4096, 128
ROUNDS = 9


def decode_step() -> dict[str, float | str]:
    """Medians of interleaved rounds, in milliseconds: one token after 4096, 32 query heads on 8, width 128, float32."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, WIDTH, generator=generator)

    key, value = random(HEADS_KV, PAST + 1), random(HEADS_KV, PAST + 1)
    query, new_key, new_value = random(HEADS, 1), key[:, :, PAST:], value[:, :, PAST:]
    cache = qkv.KVCache(batch=1, heads=HEADS_KV, width=WIDTH)
    cache.append(key[:, :, :PAST], value[:, :, :PAST])
    times: dict[str, list[float]] = {"qkv": [], "torch": []}
    outs: dict[str, torch.Tensor] = {}

    def timed(name: str, call: Callable[[], torch.Tensor]) -> None:
        start = perf_counter()
        outs[name] = call()
        times[name].append(1e3 * (perf_counter() - start))

    for _ in range(ROUNDS):
        timed("qkv", lambda: qkv.decode(query, new_key, new_value, cache))
        cache.crop(PAST)
        timed("torch", lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True))
    assert torch.allclose(outs["qkv"], outs["torch"], atol=1e-5), "qkv and torch disagree"
    ms, torch_ms = median(times["qkv"]), median(times["torch"])
    return {"qkv_ms": ms, "torch_ms": torch_ms, "ratio": torch_ms / ms, "isa": qkv.ops.isa()}


def crossover_here() -> dict[str, int | None]:
    """N* for causal calls with 8 heads of width 64: counted for two similarities, and measured for elu + 1."""
    x = torch.randn(1, HEADS_KV, 16, 64, generator=torch.Generator().manual_seed(0))
    elu1, quadratic = qkv.FeatureMap(features.elu1), qkv.Polynomial(2)
    counted = [qkv.explain(x, x, x, similarity=s, mask=qkv.Causal()).crossover for s in (elu1, quadratic)]
    return {"elu1": counted[0], "quadratic": counted[1], "elu1_measured": _measured_crossover()}


def _measured_crossover() -> int | None:
    """The length at which the kernel's two ways take equally long, between the two lengths where the order changes."""
    if ops.reasons():
        return None
    before: tuple[int, float] | None = None
    for length in (32, 64, 128, 256, 512, 1024):
        now = length, scores_to_sums(Rule(ELU1, 64), HEADS_KV, length)
        if now[1] >= 1:
            return length if before is None else round(equal_between(before, now))
        before = now
    return None


def scores_to_sums(rule: Rule, heads: int, length: int, *, causal: bool = True, rounds: int = 15) -> float:
    """The time that the kernel takes with scores, as a part of the time that it takes with sums of features."""
    x = torch.randn(1, heads, length, rule.width, generator=torch.Generator().manual_seed(length))
    ways: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for direct, times in ways.items():
            start = perf_counter()
            linear(x, x, x, rule, offset=0 if causal else None, direct=direct)
            times.append(perf_counter() - start)
    return median(ways[True]) / median(ways[False])


def equal_between(before: tuple[int, float], after: tuple[int, float]) -> float:
    """The length at which a ratio is 1, on a straight line between (length, ratio) on two log scales."""
    (shorter, less), (longer, more) = before, after
    return shorter * (longer / shorter) ** (-math.log(less) / (math.log(more) - math.log(less)))
