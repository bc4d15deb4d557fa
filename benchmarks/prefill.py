"""Softmax over whole sequences: qkv, and every sensible way to call torch's scaled_dot_product_attention.

The target: never more than 3% slower than the best of them, and faster where torch takes its math path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import qkv

from .harness import compare, report

SHAPES = [(8, 8, 1024, 64), (8, 8, 4096, 64), (8, 8, 2048, 128), (32, 8, 1024, 64)]
Calls = dict[str, Callable[[], object]]


def inputs(heads: int, kv_heads: int, length: int, width: int, grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(heads * length + width)
    sizes = (heads, kv_heads, kv_heads)
    return [torch.randn(1, h, length, width, requires_grad=grad) for h in sizes]


def full(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    gqa = q.shape[1] != k.shape[1]
    return {
        "qkv": lambda: qkv.attention(q, k, v),
        "sdpa": lambda: sdpa(q, k, v, enable_gqa=gqa),
    }


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    gqa = q.shape[1] != k.shape[1]
    return {
        "qkv": lambda: qkv.attention(q, k, v, mask=qkv.Causal()),
        "sdpa is_causal": lambda: sdpa(q, k, v, is_causal=True, enable_gqa=gqa),
    }


def causal_padding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    length = q.shape[2]
    real = 3 * length // 4
    mask = qkv.Causal() & qkv.Padding(lengths=[real])
    keep = torch.ones(length, length, dtype=torch.bool).tril()
    keep[:, real:] = False
    added = torch.zeros(length, length).masked_fill(~keep, float("-inf"))
    gqa = q.shape[1] != k.shape[1]
    return {
        "qkv": lambda: qkv.attention(q, k, v, mask=mask),
        "sdpa bool mask": lambda: sdpa(q, k, v, attn_mask=keep[None, None], enable_gqa=gqa),
        "sdpa float mask": lambda: sdpa(q, k, v, attn_mask=added[None, None], enable_gqa=gqa),
    }


def dropout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    return {
        "qkv": lambda: qkv.attention(q, k, v, dropout=0.1),
        "sdpa dropout": lambda: sdpa(q, k, v, dropout_p=0.1),
    }


def three_dimensions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    q, k, v = q[0], k[0], v[0]
    return {"qkv": lambda: qkv.attention(q, k, v), "sdpa 3-D": lambda: sdpa(q, k, v)}


def learned_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    bias = torch.randn(1, q.shape[1], q.shape[2], k.shape[2], requires_grad=True)
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))

    def step(out: torch.Tensor) -> None:
        torch.autograd.grad(out.sum(), (q, k, v, bias))

    return {
        "qkv": lambda: step(qkv.attention(q, k, v, bias=bias)),
        "sdpa": lambda: step(sdpa(q, k, v, attn_mask=bias)),
    }


def training(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Calls:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))

    def step(out: torch.Tensor) -> None:
        torch.autograd.grad(out.sum(), (q, k, v))

    return {
        "qkv": lambda: step(qkv.attention(q, k, v, mask=qkv.Causal())),
        "sdpa is_causal": lambda: step(sdpa(q, k, v, is_causal=True)),
    }


def run() -> None:
    cases = [
        (shape, name, make)
        for shape in SHAPES
        for name, make in (("full", full), ("causal", causal), ("causal + padding", causal_padding))
    ]
    small = (8, 8, 1024, 64)
    cases += [
        (small, "dropout 0.1", dropout),
        (small, "3-D input", three_dimensions),
        (small, "learned bias, fwd+bwd", learned_bias),
        (small, "causal, fwd+bwd", training),
    ]
    rows, data = [], []
    for shape, name, make in cases:
        result = compare(make(*inputs(*shape)), seconds=3.0)
        best = result.best_of([peer for peer in result.times if peer != "qkv"])
        ratio = result.ratio("qkv", best)
        heads, kv_heads, length, width = shape
        label = f"1x{heads if heads == kv_heads else f'{heads}/{kv_heads}'}x{length}x{width} {name}"
        rows.append(
            [
                label,
                f"{result.median('qkv') * 1e3:.1f}",
                f"{result.median(best) * 1e3:.1f}",
                best,
                f"{1 / ratio:.2f}x",
                f"{max(result.spread('qkv'), result.spread(best)):.0%}",
            ]
        )
        data.append({"case": label, "best_peer": best, "speedup": 1 / ratio, "times": result.times})
        print(f"  {label}: {1 / ratio:.2f}x", flush=True)
    report(
        "prefill",
        "softmax over whole sequences, float32, milliseconds",
        ["shape and case", "qkv", "best sdpa", "called as", "faster", "spread"],
        rows,
        data,
    )


if __name__ == "__main__":
    run()
