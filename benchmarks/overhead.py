"""The overhead of a tiny call, and the time of an import.

The targets: under 25 µs over torch's scaled_dot_product_attention; `import qkv` under 80 ms without torch; the
first call under 60 ms if torch is loaded already.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import qkv

from .harness import compare, report

IMPORT = "import time; t = time.perf_counter(); import qkv; print(time.perf_counter() - t)"
FIRST = (
    "import torch, time; q = torch.randn(1, 2, 3, 8); torch.nn.functional.scaled_dot_product_attention(q, q, q);"
    "t = time.perf_counter(); import qkv; qkv.attention(q, q, q); print(time.perf_counter() - t)"
)


def run() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    trained = [t.clone().requires_grad_() for t in (q, k, v)]
    causal = qkv.Causal()
    calls = {
        "plain": (lambda: qkv.attention(q, k, v), lambda: sdpa(q, k, v)),
        "causal": (lambda: qkv.attention(q, k, v, mask=causal), lambda: sdpa(q, k, v, is_causal=True)),
        "gradients on": (lambda: qkv.attention(*trained), lambda: sdpa(*trained)),
    }
    rows, data = [], []
    for name, (ours, theirs) in calls.items():
        result = compare({"qkv": ours, "sdpa": theirs}, rounds=201)
        ours_us, theirs_us = result.median("qkv") * 1e6, result.median("sdpa") * 1e6
        rows.append(
            [
                name,
                f"{ours_us:.1f}",
                f"{theirs_us:.1f}",
                f"{ours_us - theirs_us:.1f}",
                f"{result.spread('qkv'):.0%}",
            ]
        )
        data.append({"call": name, "qkv_us": ours_us, "sdpa_us": theirs_us})
    report("overhead", "a tiny call, microseconds", ["call", "qkv", "sdpa", "over", "spread"], rows, data)

    rows, data = [], []
    for name, code, bar in (("import qkv", IMPORT, 80), ("first attention, torch loaded", FIRST, 60)):
        times = [
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
            for _ in range(11)
        ]
        rows.append([name, f"{statistics.median(times) * 1e3:.1f}", f"{min(times) * 1e3:.1f}", f"{bar}"])
        data.append({"what": name, "seconds": times})
    report("startup", "starting, milliseconds (11 processes)", ["what", "median", "least", "bar"], rows, data)


if __name__ == "__main__":
    run()
