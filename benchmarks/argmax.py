"""Argmax attention: the fused kernel, torch's softmax attention, a one-hot product and the scores alone.

The target: 75% of the multiply rate on the flops of the scores, about 1.8 times as fast as torch's softmax
attention; extra memory that does not grow with len_q times len_k.
"""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot
from torch.nn.functional import scaled_dot_product_attention as sdpa

import qkv

from .harness import compare, report


def run() -> None:
    heads, length, width = 8, 4096, 64
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, width) for _ in range(3))
    similarity = qkv.Argmax()
    square = torch.randn(2048, 2048)

    def argmax() -> torch.Tensor:
        return qkv.attention(q, k, v, similarity=similarity)

    def one_hot_product() -> torch.Tensor:
        return one_hot((q @ k.transpose(-1, -2)).argmax(-1), length).to(v.dtype) @ v

    assert torch.equal(argmax(), one_hot_product())
    result = compare(
        {
            "qkv argmax": argmax,
            "sdpa (softmax)": lambda: sdpa(q, k, v),
            "one-hot product": one_hot_product,
            "scores only": lambda: q @ k.transpose(-1, -2),
            "2048-cubed product": lambda: square @ square,
        },
        seconds=12.0,
    )
    # The roof is measured like the others: the same rounds, the same median.
    rate = 2 * 2048**3 / result.median("2048-cubed product")
    flops = 2 * heads * length * length * width
    rows, data = [], []
    for name in list(result.times)[:-1]:
        seconds = result.median(name)
        rows.append(
            [
                name,
                f"{seconds * 1e3:.0f}",
                f"{result.ratio(name, 'qkv argmax'):.2f}x",
                f"{flops / seconds / rate:.0%}" if name in ("qkv argmax", "scores only") else "",
                f"{result.spread(name):.0%}",
            ]
        )
        data.append({"entry": name, "seconds": seconds, "of_multiply_rate": flops / seconds / rate})
    report(
        "argmax",
        f"argmax attention, 1x{heads}x{length}x{width} float32; multiply rate {rate / 1e9:.0f} GFLOP/s",
        ["entry", "ms", "to qkv", "of the rate", "spread"],
        rows,
        data,
    )


if __name__ == "__main__":
    run()
