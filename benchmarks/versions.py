"""Two installations of qkv against each other: `python -m benchmarks.versions --against OTHER/bin/python`.

Each round starts one process for each installation, in alternating order, and measures the same calls: decoding steps,
prompts and tiny calls. A call is slower if the ratio of times is above 1.03 with its 95% interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SLOWER = 1.03
DECODE = [(1, 32, 8, 4096, 128), (1, 32, 1, 4096, 128), (8, 16, 16, 1024, 64), (1, 32, 8, 17, 128), (1, 32, 8, 1, 128)]
PREFILL = [(1, 8, 8, 1024, 64), (1, 32, 8, 1024, 64), (1, 8, 8, 2048, 128)]


def calls() -> Iterator[tuple[str, Callable[[], object], Callable[[], object] | None]]:
    """Name, call and what undoes it; only names that every version has."""
    import torch

    import qkv

    torch.manual_seed(0)
    for batch, heads, kv_heads, past, width in DECODE:
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            given = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
            cache = qkv.KVCache(batch, kv_heads, width, dtype=dtype)
            tokens = torch.randn(batch, kv_heads, past, width, dtype=given)
            cache.append(tokens, tokens)
            query = torch.randn(batch, heads, 1, width, dtype=given)
            key = torch.randn(batch, kv_heads, 1, width, dtype=given)
            name = f"decode {batch}x{heads}/{kv_heads}x{past}x{width} {str(dtype).removeprefix('torch.')}"
            yield (
                name,
                lambda q=query, k=key, c=cache: qkv.decode(q, k, k, c),
                lambda c=cache, n=past: c.crop(n),
            )
    with torch.no_grad():
        for batch, heads, kv_heads, length, width in PREFILL:
            query = torch.randn(batch, heads, length, width)
            key, value = torch.randn(2, batch, kv_heads, length, width)
            padded = qkv.Causal() & qkv.Padding(lengths=[length * 3 // 4])
            for mask_name, mask in (("full", None), ("causal", qkv.Causal()), ("padded", padded)):
                name = f"prefill {batch}x{heads}/{kv_heads}x{length}x{width} {mask_name}"
                yield name, lambda q=query, k=key, v=value, m=mask: qkv.attention(q, k, v, mask=m), None
    small = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    trained = [tensor.clone().requires_grad_() for tensor in small]
    yield "overhead plain", lambda: qkv.attention(*small), None
    causal = qkv.Causal()
    yield "overhead causal", lambda: qkv.attention(*small, mask=causal), None
    yield "overhead gradients", lambda: qkv.attention(*trained), None


def median_time(call: Callable[[], object], undo: Callable[[], object] | None, budget: float = 0.2) -> float:
    for _ in range(3):
        call()
        if undo is not None:
            undo()
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if undo is not None:
            undo()
    return statistics.median(times)


def measure() -> dict[str, float]:
    return {name: median_time(call, undo) for name, call, undo in calls()}


def interval(ratios: list[float]) -> tuple[float, float]:
    """95% interval of the median, by order statistics of the binomial distribution."""
    ordered, count = sorted(ratios), len(ratios)
    rank = max(0, int(count / 2 - 0.98 * count**0.5))
    return ordered[rank], ordered[count - 1 - rank]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="PYTHON", help="interpreter of the other installation")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure()))
        return 0
    if not options.against:
        parser.error("--against is missing: the interpreter of the other installation")
    pythons = {"new": sys.executable, "old": options.against}
    times: dict[str, list[dict[str, float]]] = {"new": [], "old": []}
    for number in range(options.rounds):
        for name in ("new", "old") if number % 2 else ("old", "new"):
            command = [pythons[name], str(Path(__file__).resolve()), "--child"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env=dict(os.environ))
            times[name].append(json.loads(done.stdout))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    slower = 0
    result = {}
    for name in times["new"][0]:
        ratios = [new[name] / old[name] for new, old in zip(times["new"], times["old"], strict=True)]
        low, high = interval(ratios)
        result[name] = {"ratio": statistics.median(ratios), "low": low, "high": high}
        verdict = "SLOWER" if low > SLOWER else ""
        slower += bool(verdict)
        old_time = statistics.median(old[name] for old in times["old"])
        if not options.json:
            print(
                f"{name:42} {old_time * 1e6:9.1f} us  {result[name]['ratio']:.3f} ({low:.3f} to {high:.3f}) {verdict}"
            )
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{slower} of {len(result)} calls are slower by more than {SLOWER - 1:.0%}")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
