"""`qkv serve` on SmolLM2: 16 clients for a minute, compared with a loop of 16 rows; and a prefix that is shared.

The clients and the server are separate processes, as in use. The loop is `model.step` with 16 rows and argmax, for as
many tokens as the answers have: nothing can be faster that computes the same step by step. Prompts of the clients
count for the server, not for the loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

import qkv

from . import weights
from .harness import report

CLIENTS, NEW, PREFIX = 16, 128, 1024
KEPT = 64 << 20  # bytes of prefixes, so few that the warm-up fills them several times
BARS = {"throughput": 0.85, "prefix": 10.0, "growth": 64 << 20}
TEXT = "the sea was calm and a small boat went out to look for fish under the grey morning sky"


@contextmanager
def served(path: Path, *options: str) -> Any:
    """A server in a separate process: the process, its address and the model's name."""
    command = [sys.executable, "-m", "qkv", "serve", str(path), "--port", "0", "--json", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            yield process, said["address"], said["model"]
        finally:
            process.terminate()
            assert process.wait(30) == 0, "the server did not end as it should"


def resident(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept(address: str) -> int:
    """Bytes of prefixes that the server keeps."""
    found = httpx.get(address.removesuffix("v1") + "metrics").text.splitlines()
    return int(next(line for line in found if line.startswith('qkv_cache_bytes{of="prefixes"}')).split()[1])


def text(seed: int, words: int) -> str:
    known = TEXT.split()
    return " ".join(known[(seed * 7 + at * at + seed * at) % len(known)] for at in range(words))


async def ask(client: httpx.AsyncClient, model: str, seed: int) -> tuple[int, int]:
    """One answer: the status and its new tokens."""
    body = {"model": model, "prompt": text(seed, 12), "max_tokens": NEW, "temperature": 0}
    found = await client.post("completions", json=body)
    return found.status_code, found.json()["usage"]["completion_tokens"] if found.status_code == 200 else 0


async def load(address: str, model: str, seconds: float) -> dict[str, Any]:
    """All clients at once, each with one request after the other: what they counted in the seconds."""
    statuses: list[int] = []
    tokens = 0
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        nonlocal tokens
        async with httpx.AsyncClient(base_url=address, timeout=120) as client:
            turn = 0
            while time.perf_counter() < end:
                status, new = await ask(client, model, number + CLIENTS * turn)
                turn += 1
                statuses.append(status)
                tokens += new

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    spent = time.perf_counter() - started
    return {"tokens": tokens, "seconds": spent, "requests": len(statuses), "errors": sum(s != 200 for s in statuses)}


def loop(path: Path, seconds: float) -> float:
    """Tokens a second of a plain loop of as many rows, from the length of the clients' prompts on."""
    model = qkv.runtime.load(path)
    prompts = [model.tokenizer.encode(text(number, 12)) for number in range(CLIENTS)]
    least = min(map(len, prompts))
    tokens, spent = 0, 0.0
    while spent < seconds:
        cache = model.cache(CLIENTS)
        logits = model.step(torch.tensor([prompt[:least] for prompt in prompts]), cache)
        before = time.perf_counter()
        for _ in range(NEW):
            logits = model.step(logits.argmax(-1, keepdim=True), cache)
        spent += time.perf_counter() - before
        tokens += NEW * CLIENTS
    return tokens / spent


def first_token(address: str, model: str, prompt: list[int]) -> float:
    """Seconds to the first token of a stream."""
    body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
    started = time.perf_counter()
    with httpx.Client(base_url=address, timeout=60) as client, client.stream("POST", "completions", json=body) as found:
        assert found.status_code == 200
        next(found.iter_lines())
        return time.perf_counter() - started


def run() -> None:
    quick = "--quick" in sys.argv
    path, seconds = weights.smollm2(), 10.0 if quick else 60.0
    plain = [loop(path, 5.0)]
    with served(path, "--cache-bytes", str(KEPT)) as (process, address, model):
        filled = -1
        while kept(address) > filled:  # memory is compared from where the store is full
            filled = kept(address)
            asyncio.run(load(address, model, 8.0))
        before = resident(process)
        found = asyncio.run(load(address, model, seconds))
        growth = resident(process) - before
    plain.append(loop(path, 5.0))
    rate, wanted = found["tokens"] / found["seconds"], statistics.mean(plain)
    starts = []
    with served(path) as (_, address, model):
        for seed in range(3 if quick else 7):
            generator = torch.Generator().manual_seed(seed)
            prefix = torch.randint(100, 40_000, (PREFIX,), generator=generator).tolist()
            starts.append(
                [first_token(address, model, [*prefix, *range(200 + 40 * at, 216 + 40 * at)]) for at in range(2)]
            )
    first, second = (statistics.median(each) for each in zip(*starts, strict=True))
    share = statistics.median(one / two for one, two in starts)
    rows = [
        ["16 clients, tokens/s", f"{rate:.0f}", f"loop {wanted:.0f}", f"{rate / wanted:.2f}", f"{BARS['throughput']}"],
        ["errors", str(found["errors"]), f"of {found['requests']}", "", "0"],
        ["memory, growth MB", f"{growth / 1e6:.1f}", "", "", f"{BARS['growth'] / 1e6:.0f}"],
        [
            "prefix of 1,024, ms",
            f"{1e3 * second:.1f}",
            f"first {1e3 * first:.0f}",
            f"{share:.1f}",
            f"{BARS['prefix']:.0f}",
        ],
    ]
    data = [found | {"rate": rate, "loop": wanted, "growth": growth, "first": first, "second": second}]
    report("serving", "qkv serve, SmolLM2-135M", ["", "served", "compared with", "ratio", "bar"], rows, data)
