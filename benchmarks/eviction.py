"""A quarter of the cache: needles found and perplexity with StreamingLLM, H2O and SnapKV; what importance costs a step.

SmolLM2-135M, and Qwen2.5-Coder-1.5B where `make weights-local` has put it. A needle is a sentence with a number of five
digits in a documentation text, at five depths; it is found if the greedy continuation of the question has the number.
Perplexity is that of the tokens that follow a prompt, which run in chunks of 16. The cost of importance: steps at
several pasts, with and without. Bars: importance at most 10%; policies have none.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import qkv

from . import weights
from .harness import LiveTable, compare
from .perplexity import text_of
from .runtimes import progress, qwen

POLICIES = "full", "streaming", "h2o", "snapkv"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
CITIES = "Oslo", "Lima", "Cairo", "Quito"
FOLLOWING, CHUNK = 128, 16  # tokens whose perplexity is measured
# query heads, key/value heads, width, past, format
STEPS = (
    (32, 8, 128, 1024, torch.bfloat16), (32, 8, 128, 4096, torch.bfloat16), (32, 8, 128, 4096, torch.float32),
    (32, 8, 128, 4096, torch.int8), (9, 3, 64, 1024, torch.float32), (16, 16, 128, 4096, torch.bfloat16),
)  # fmt: skip
STEP_BAR = 10.0  # percent


def run() -> None:
    quick = "--quick" in sys.argv
    importance(quick)
    models = {"SmolLM2-135M": (weights.smollm2(), 1024, 1 if quick else 4, 2 if quick else 12)}
    if (path := qwen()) is not None:
        models["Qwen2.5-Coder-1.5B"] = path, 1024, 1, 1 if quick else 2
    if "--model" in sys.argv:
        asked = sys.argv[sys.argv.index("--model") + 1]
        models = {name: each for name, each in models.items() if asked in name.lower()}
    columns = {"model": 19, "cache": 10, "tokens": 7, "MB": 7, "needles": 8, "perplexity": 11, "difference": 11}
    table = LiveTable("eviction", "A quarter of the cache of a prompt of 1,024 tokens", columns)
    for name, (file, length, cities, count) in models.items():
        model = qkv.runtime.load(file)
        tokens = fillers(model.tokenizer, length + FOLLOWING)
        losses: dict[str, list[float]] = {}
        for policy in POLICIES:
            keep = length if policy == "full" else length // 4
            progress(f"eviction: {name}, {policy}")
            found = [finds(model, policy, keep, tokens[at % len(tokens)], city, depth)
                     for city in CITIES[:cities] for at, depth in enumerate(DEPTHS)]  # fmt: skip
            lost, sizes = zip(*(loss(model, policy, keep, text, length) for text in tokens[:count]), strict=True)
            losses[policy] = list(lost)
            perplexity = math.exp(statistics.mean(lost))
            changes = [100 * math.expm1(a - b) for a, b in zip(lost, losses["full"], strict=True)]
            data = {"model": name, "policy": policy, "keep": keep, "bytes": max(sizes), "texts": len(lost)}
            data |= {"found": sum(found), "needles": len(found), "perplexity": perplexity, "percent": changes}
            row = [name, policy, str(keep), f"{max(sizes) / 1e6:.1f}", f"{sum(found)}/{len(found)}"]
            table.add([*row, f"{perplexity:.2f}", f"{statistics.mean(changes):+.1f}%"], data)


def fillers(tokenizer: Any, length: int) -> list[list[int]]:
    """Texts of this many tokens: the longest files of the documentation."""
    files = sorted((Path(__file__).parent.parent / "docs").glob("*.md"), key=lambda path: -path.stat().st_size)
    every = (tokenizer.encode(text_of(path), bare=True) for path in files)
    return [tokens[:length] for tokens in every if len(tokens) >= length]


def cache_of(model: Any, policy: str, keep: int) -> Any:
    return model.cache(1, eviction=None if policy == "full" else qkv.cache.eviction.named_policy(policy, keep))


def finds(model: Any, policy: str, keep: int, text: list[int], city: str, depth: float) -> bool:
    """Whether the model continues the question with the number that the text has at this depth."""
    encode = model.tokenizer.encode
    number = str(10007 + 7919 * (1 + CITIES.index(city)) + round(1000 * depth))
    needle = encode(f"\n\nThe secret number of {city} is {number}.\n\n", bare=True)
    question = encode(f"\n\nQuestion: what is the secret number of {city}?\nAnswer: the secret number of {city} is",
                      bare=True)  # fmt: skip
    place = round(depth * (space := 1024 - len(needle) - len(question)))
    prompt = text[:place] + needle + text[place:space] + question
    found = model.generate(prompt, 12, cache=cache_of(model, policy, keep))
    return number in model.tokenizer.decode(found.tokens)


def loss(model: Any, policy: str, keep: int, text: list[int], length: int) -> tuple[float, int]:
    """Mean of −log p of the tokens after the prompt, and the bytes of the cache at the end."""
    cache, total = cache_of(model, policy, keep), 0.0
    logits = prompted(model, cache, text[:length])
    for part in parts(text[length:]):
        every = model.step([part], cache, every=True)[0]
        before, logits = torch.cat([logits, every[:-1]]), every[-1:]
        total += float(torch.nn.functional.cross_entropy(before.double(), torch.tensor(part), reduction="sum"))
    return total / (len(text) - length), cache.nbytes


def parts(tokens: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(tokens), CHUNK):
        yield tokens[start : start + CHUNK]


def prompted(model: Any, cache: Any, prompt: list[int]) -> torch.Tensor:
    """As `generate` runs a prompt: in chunks of 512, then what evicts after it."""
    for start in range(0, len(prompt), 512):
        logits = model.step([prompt[start : start + 512]], cache)
    if any(layer.evicts_after_prompt for layer in cache.layers):
        cache.evict()
    return logits


def importance(quick: bool) -> None:
    """Steps of one token with and without the sums of weights; both caches grow alike."""
    columns = {"heads": 7, "width": 6, "past": 6, "format": 9, "without": 10, "with": 10, "slower": 8, "bar": 4}
    table = LiveTable("importance", "A step with importance: microseconds", columns)
    for heads, kv_heads, width, past, dtype in STEPS[: 2 if quick else None]:
        entries = {}
        for name in ("without", "with"):
            cache = qkv.KVCache(1, kv_heads, width, dtype=dtype, importance=name == "with")
            cache.append(torch.randn(1, kv_heads, past, width), torch.randn(1, kv_heads, past, width))
            step = [torch.randn(1, count, 1, width) for count in (heads, kv_heads, kv_heads)]

            def run(step: list[torch.Tensor] = step, cache: Any = cache, past: int = past) -> None:
                if cache.length >= past + 64:
                    cache.crop(past)
                qkv.decode(*step, cache)

            entries[name] = run
        found = compare(entries, seconds=1.0 if quick else 3.0)
        slower = 100 * (found.median("with") / found.median("without") - 1)
        shown = [f"{heads}/{kv_heads}", str(width), str(past), str(dtype).removeprefix("torch.")]
        times = [f"{1e6 * found.median(name):.1f}" for name in ("without", "with")]
        data = {"shape": [heads, kv_heads, width, past], "dtype": str(dtype), "percent": slower, "bar": STEP_BAR}
        verdict = "met" if slower <= STEP_BAR else "over"
        table.add([*shown, *times, f"{slower:+.1f}%", verdict], data | {name: found.median(name) for name in entries})
