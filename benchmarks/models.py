"""Whole models: a decoding step, attention's share of it, prefill, cache bytes, and the perplexity with int8.

Models: SmolLM2-135M (real weights, 30 layers, 9 heads on 3), a random Llama with 8 query heads on each key/value
head, and one of GPT-2's shape (12 heads on 12). Peers: transformers with sdpa and eager attention, dynamic and static
caches, in the same weights and the same run. Caches are filled with the same random tokens; steps and
prompts are timed separately.

The targets: tokens a second at past 4,096 against the better peer: batch 1 1.3x, batch 8 2.2x, one row left-padded
3.5x; attention's own share 5x; cache bytes 0.55x in bf16 and 0.30x in int8; perplexity with int8 within 0.5%; prefill
within 3%.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
import transformers
from transformers import AttentionInterface, DynamicCache, StaticCache

import qkv

from . import runtimes, weights
from .harness import Timings, report
from .rotation import QUIET

PAST, FREE = 4096, 96
ROUNDS, STEPS = 5, 3  # steps in a sample; the first is not timed
STORAGE = {"qkv f32": torch.float32, "qkv bf16": torch.bfloat16, "qkv int8": torch.int8}
PEERS = {
    "sdpa": ("sdpa", False),
    "sdpa st.": ("sdpa", True),
    "eager": ("eager", False),
    "eager st.": ("eager", True),
}
CASES = {"1": (1, 0), "8": (8, 0), "8 pad": (8, 1000)}  # batch, and padding on the left of the first row


class Entry(NamedTuple):
    """An implementation and its cache, ready for the next token."""

    implementation: str
    cache: Any


def smollm2() -> Any:
    path = weights.smollm2()
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()


def grouped() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, vocab_size=32000, num_attention_heads=16,
        num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def gpt2() -> Any:
    config = transformers.GPT2Config(n_positions=8192)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


MODELS: dict[str, Callable[[], Any]] = {"SmolLM2 9/3": smollm2, "Llama 16/2": grouped, "GPT-2 12/12": gpt2}


def shape_of(model: Any) -> tuple[int, int, int]:
    config = model.config
    heads = config.num_attention_heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", heads), config.hidden_size // heads


def filled(model: Any, name: str, batch: int, padding: int) -> Entry:
    """A cache with PAST tokens; the first `padding` of row 0 are padding."""
    layers, heads, width = shape_of(model)
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(batch, heads, PAST, width, generator=generator) for _ in range(2))
    if name in STORAGE:
        model.set_attn_implementation("qkv")
        cache = qkv.hf.cache(model, dtype=STORAGE[name])
        visible = mask_of(batch, padding, PAST)
        for layer in cache.layers:
            layer.lazy_initialization(key, value)
            layer.cache.append(key, value, visible.sum(1), padding="left")
            layer.record_append(PAST, visible if padding else None, visible if padding else None, False)
        return Entry("qkv", cache)
    implementation, static = PEERS[name]
    cache = StaticCache(model.config, max_cache_len=PAST + FREE) if static else DynamicCache(config=model.config)
    for layer in range(layers):
        cache.update(key, value, layer)
    return Entry(implementation, cache)


def mask_of(batch: int, padding: int, total: int) -> torch.Tensor:
    mask = torch.ones(batch, total, dtype=torch.bool)
    mask[0, :padding] = False
    return mask


def step(model: Any, entry: Entry, batch: int, padding: int) -> torch.Tensor:
    """One more token, as in `generate`."""
    total = int(entry.cache.get_seq_length()) + 1
    mask = mask_of(batch, padding, total).long()
    positions = mask.sum(1, keepdim=True) - 1
    tokens = torch.full((batch, 1), 7)
    return model(tokens, attention_mask=mask, position_ids=positions, past_key_values=entry.cache).logits


def decoding(
    model: Any, names: list[str], batch: int, padding: int
) -> tuple[Timings, dict[str, int], dict[str, float]]:
    """Seconds a step, bytes of the caches, and seconds of a step in cache and attention alone."""
    field = {name: filled(model, name, batch, padding) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    answers: dict[str, torch.Tensor] = {}
    for round_ in range(ROUNDS):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            model.set_attn_implementation(field[name].implementation)
            time.sleep(QUIET)
            samples = []
            for _ in range(STEPS):
                before = time.perf_counter()
                answers[name] = step(model, field[name], batch, padding)
                samples.append(time.perf_counter() - before)
            times[name].append(statistics.median(samples[1:]))
    agree(answers)
    sizes = {name: bytes_of(entry.cache) for name, entry in field.items()}
    shares = {name: share(model, field[name], batch, padding) for name in names if not name.startswith("eager")}
    return Timings(times), sizes, shares


def agree(answers: dict[str, torch.Tensor]) -> None:
    """Check that all entries that compute in float32 give the same logits."""
    exact = [answer for name, answer in answers.items() if name not in ("qkv bf16", "qkv int8")]
    for answer in exact[1:]:
        worst = float((answer - exact[0]).abs().max() / exact[0].abs().max())
        assert worst < 1e-3, f"float32 entries differ by {worst}"


def share(model: Any, entry: Entry, batch: int, padding: int) -> float:
    """Seconds of a step inside the cache's update and the attention function."""
    spent, registry = [0.0], AttentionInterface._global_mapping
    function, update = registry[entry.implementation], entry.cache.update

    def clocked(run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = time.perf_counter()
            result = run(*args, **kwargs)
            spent[0] += time.perf_counter() - before
            return result

        return timed

    model.set_attn_implementation(entry.implementation)
    registry[entry.implementation], entry.cache.update = clocked(function), clocked(update)
    samples = []
    try:
        for _ in range(ROUNDS):
            spent[0] = 0.0
            step(model, entry, batch, padding)
            samples.append(spent[0])
    finally:
        registry[entry.implementation] = function
        del entry.cache.update
    return statistics.median(samples[1:])


def bytes_of(cache: Any) -> int:
    if hasattr(cache, "nbytes"):
        return cache.nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def steps_table(quick: bool) -> None:
    rows, data = [], []
    names = [*STORAGE, *PEERS]
    for title, make in MODELS.items():
        model = make()
        for case, (batch, padding) in CASES.items():
            gc.collect()
            with torch.no_grad():
                result, sizes, shares = decoding(model, names, batch, padding)
            best = result.best_of(list(PEERS))
            peer_share = min(shares[name] for name in ("sdpa", "sdpa st."))
            figures = {
                "ms": {name: 1e3 * result.median(name) for name in names},
                "spread": {name: result.spread(name) for name in names},
                "best_peer": best,
                "ratio": {name: result.ratio(best, name) for name in STORAGE},
                "attention_ms": {name: 1e3 * seconds for name, seconds in shares.items()},
                "attention_ratio": {name: peer_share / shares[name] for name in STORAGE},
                "bytes": sizes,
            }
            data.append({"model": title, "case": case, **figures})
            ms, ratio, own = figures["ms"], figures["ratio"], figures["attention_ratio"]
            rows.append(
                [title, case, *(f"{ms[name]:.0f}" for name in STORAGE), f"{ms[best]:.0f} {best}"]
                + [f"{ratio[name]:.2f}" for name in STORAGE] + [f"{own[name]:.1f}" for name in ("qkv f32", "qkv int8")]
            )  # fmt: skip
            print(f"  {title}, batch {case}: done", file=sys.stderr)
        del model
        if quick:
            break
    columns = ["model", "batch", "f32", "bf16", "int8", "best peer", "x f32", "bf16", "int8", "own", "int8"]
    report("models", f"A step after {PAST} tokens: ms, and times as fast as the best peer", columns, rows, data)
    kept = data[0]["bytes"]
    print(", ".join(f"{name} {kept[name] / kept['sdpa']:.3f}" for name in STORAGE), "of transformers' cache bytes")


def prefill_table(quick: bool) -> None:
    rows, data = [], []
    for title, make in MODELS.items():
        model = make()
        for length in (128, 1024):
            tokens = torch.randint(3, 1000, (1, length), generator=torch.Generator().manual_seed(0))
            times: dict[str, list[float]] = {"qkv": [], "qkv, dyn": [], "sdpa": []}
            with torch.no_grad():
                for _ in range(2 + ROUNDS * (4 if length < 1000 else 1)):
                    for name in times:
                        model.set_attn_implementation("sdpa" if name == "sdpa" else "qkv")
                        cache = qkv.hf.cache(model) if name == "qkv" else DynamicCache(config=model.config)
                        time.sleep(QUIET)
                        before = time.perf_counter()
                        model(tokens, past_key_values=cache)
                        times[name].append(time.perf_counter() - before)
            result = Timings({name: samples[2:] for name, samples in times.items()})
            ratios = {name: result.ratio(name, "sdpa") for name in ("qkv", "qkv, dyn")}
            ms = {name: 1e3 * result.median(name) for name in times}
            data.append({"model": title, "tokens": length, "ms": ms, "ratio": ratios})
            shown = [f"{number:.0f}" for number in ms.values()] + [f"{ratio:.3f}" for ratio in ratios.values()]
            rows.append([title, str(length), *shown])
        del model
        if quick:
            break
    columns = ["model", "tokens", "qkv ms", "on dyn ms", "sdpa ms", "qkv / sdpa", "on dyn / sdpa"]
    report("models-prefill", "A prompt: time over sdpa's (bar 1.03)", columns, rows, data)


def perplexities() -> None:
    """Perplexity of SmolLM2 on a book, with every key and value rounded as the cache stores it."""
    model = smollm2()
    model.set_attn_implementation("qkv")
    path = weights.smollm2()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    name, book = next((name, book) for name, book in weights.books().items() if "alice" in name)
    text = book.read_text(encoding="utf-8", errors="replace")
    tokens = tokenizer(text[2000:30000], return_tensors="pt")["input_ids"]
    rows, data, exact = [], [], 0.0
    for kind, dtype in STORAGE.items():
        losses = []
        for start in range(0, min(tokens.shape[1], 4 * 1024) - 1024 + 1, 1024):
            part = tokens[:, start : start + 1024]
            with torch.no_grad():
                logits = model(part, past_key_values=qkv.hf.cache(model, dtype=dtype)).logits
            losses.append(torch.nn.functional.cross_entropy(logits[0, :-1].double(), part[0, 1:]).item())
        perplexity = math.exp(statistics.mean(losses))
        exact = exact or perplexity
        data.append({"cache": kind, "perplexity": perplexity, "over_f32": perplexity / exact - 1})
        rows.append([kind, f"{perplexity:.4f}", f"{100 * (perplexity / exact - 1):+.3f}%"])
    report("models-perplexity", f"SmolLM2 on {name}, 4 x 1024 tokens", ["cache", "perplexity", "over f32"], rows, data)


def run() -> None:
    quick = "--quick" in sys.argv
    transformers.utils.logging.set_verbosity_error()
    qkv.hf.register()
    runtimes.table(quick)
    steps_table(quick)
    prefill_table(quick)
    perplexities()
