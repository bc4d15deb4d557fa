"""One decoding step beside PyTorch's, timed where the tour runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import scaled_dot_product_attention

import qkv

HEADS, HEADS_KV, PAST, WIDTH = 32, 8, 4096, 128
ROUNDS = 9


def decode_step() -> dict[str, float | str]:
    """Medians of interleaved rounds, in milliseconds: one token after 4096, 32 query heads on 8, width 128, float32."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, WIDTH, generator=generator)

    key, value = random(HEADS_KV, PAST + 1), random(HEADS_KV, PAST + 1)
    query, new_key, new_value = random(HEADS, 1), key[:, :, PAST:], value[:, :, PAST:]
    memory = qkv.KVCache(batch=1, heads=HEADS_KV, width=WIDTH)
    memory.append(key[:, :, :PAST], value[:, :, :PAST])
    times: dict[str, list[float]] = {"qkv": [], "torch": []}
    outs: dict[str, torch.Tensor] = {}

    def timed(name: str, call: Callable[[], torch.Tensor]) -> None:
        start = perf_counter()
        outs[name] = call()
        times[name].append(1e3 * (perf_counter() - start))

    for _ in range(ROUNDS):
        timed("qkv", lambda: qkv.decode(query, new_key, new_value, memory))
        memory.crop(PAST)
        timed("torch", lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True))
    assert torch.allclose(outs["qkv"], outs["torch"], atol=1e-5), "qkv and torch disagree"
    ms, torch_ms = median(times["qkv"]), median(times["torch"])
    return {"qkv_ms": ms, "torch_ms": torch_ms, "ratio": torch_ms / ms, "isa": qkv.kernels.isa()}
