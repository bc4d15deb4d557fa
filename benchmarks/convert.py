"""From multi-head to multi-query attention: the loss from pooling key and value heads, and the gain from training.

stories15M has 6 heads and shares no keys or values. Its perplexity is measured on stories that it sampled, so it starts
at the entropy of the model's text. Training is AdamW on other samples of it, a few minutes on one core.
SmolLM2 (9/3 heads, weights that were quantised) is read from GGUF, and measured on a book.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv

from . import weights
from .harness import report

START = 1  # the start token
LENGTH = 128
BATCH = 4
TRAINED = 100  # steps
RATE = 5e-4


def sampled(model: Any, stories: int, seed: int) -> Tensor:
    """Stories of LENGTH tokens from the model's own distribution, after the start token."""
    generator = torch.Generator().manual_seed(seed)
    tokens, past = torch.full((stories, 1), START), None
    with torch.no_grad():
        for _ in range(LENGTH):
            out = model(tokens[:, -1:], past_key_values=past, use_cache=True)
            past = out.past_key_values
            drawn = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


def loss(model: Any, tokens: Tensor) -> Tensor:
    """Mean of -log p(token | those before it)."""
    logits = model(tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def perplexity(model: Any, tokens: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return math.exp(sum(loss(model, part).item() * len(part) for part in tokens.split(8)) / len(tokens))


def train(model: Any, tokens: Tensor, steps: int) -> None:
    """Train on each story once; the learning rate rises for a tenth of the steps, then falls to 0."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    warm = max(1, steps // 10)
    for step, batch in enumerate(tokens[: steps * BATCH].split(BATCH)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / warm, (steps - step) / (steps - warm))
        optimizer.zero_grad()
        loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def cache_bytes(config: Any, tokens: int = 1000) -> int:
    """What the caches of all layers take after `tokens` tokens, in float32: whole pages."""
    heads, width = config.num_key_value_heads, config.head_dim
    total = 0
    for _ in range(config.num_hidden_layers):
        cache = qkv.KVCache(1, heads, width)
        cache.append(torch.zeros(1, heads, tokens, width), torch.zeros(1, heads, tokens, width))
        total += cache.nbytes
    return total


def stories(quick: bool) -> None:
    from transformers import AutoModelForCausalLM

    from qkv.hf.conversion import convert

    source = weights.stories15m()
    model = AutoModelForCausalLM.from_pretrained(source).eval()
    count, steps = (8, 5) if quick else (64, TRAINED)
    text, lessons = sampled(model, count, seed=1), sampled(model, steps * BATCH, seed=2)
    before, heads = perplexity(model, text), model.config.num_key_value_heads
    rows, data = [], []
    with tempfile.TemporaryDirectory() as place:
        for kv_heads in (heads, 3, 2, 1):
            entry: dict[str, Any] = {"kv_heads": kv_heads, "cache_bytes": 0, "perplexity": before}
            pooled = model
            if kv_heads != heads:
                first = range(0, heads, heads // kv_heads)
                done = convert(source, Path(place, f"mean{kv_heads}"), kv_heads=kv_heads)
                convert(source, Path(place, f"first{kv_heads}"), kv_heads=kv_heads, keep=first)
                kept = AutoModelForCausalLM.from_pretrained(Path(place, f"first{kv_heads}"))
                pooled = AutoModelForCausalLM.from_pretrained(Path(place, f"mean{kv_heads}"))
                entry |= {"perplexity": perplexity(pooled, text), "first_head": perplexity(kept, text)}
                entry |= {"conversion": done._asdict(), "bytes_per_token": done.cache_bytes_per_token}
                started = time.perf_counter()
                train(pooled, lessons, steps)
                entry |= {"seconds": time.perf_counter() - started, "trained": perplexity(pooled, text)}
                data[0]["bytes_per_token"] = done.cache_bytes_per_token_before
            entry["cache_bytes"] = cache_bytes(pooled.config)
            data.append(entry)
    for entry in data:
        cells = [f"{entry[name]:.2f}" if name in entry else "-" for name in ("perplexity", "first_head", "trained")]
        size = f"{entry['cache_bytes'] / 2**20:.2f}"
        rows.append([f"{heads}/{entry['kv_heads']}", *cells, f"{entry['bytes_per_token']:,}", size])
    title = (
        f"stories15M, fewer key/value heads: perplexity on {count} stories of {LENGTH} tokens that\n"
        f"the original sampled itself (seeded); trained: {steps} steps of {BATCH} other stories; the\n"
        "cache of 6 layers in float32: bytes a token, and MiB of qkv.KVCache at 1000"
    )
    report("convert", title, ["heads", "mean", "first head", "mean, trained", "bytes", "MiB"], rows, data)


def smollm2() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from qkv.hf.conversion import convert

    source = weights.smollm2()
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name).eval()
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    book = weights.books()["carroll-alice"].read_text(encoding="latin-1")[2000:10000]
    text = torch.tensor(tokenizer(book)["input_ids"][: 8 * LENGTH]).view(8, LENGTH)
    with tempfile.TemporaryDirectory() as place:
        done = convert(model, Path(place, "mean"), kv_heads=1)
        convert(model, Path(place, "first"), kv_heads=1, keep=[0])
        models = {"as it is": model}
        models |= {name: AutoModelForCausalLM.from_pretrained(Path(place, name)) for name in ("mean", "first")}
        rows, data = [], []
        for name, each in models.items():
            size = done.cache_bytes_per_token_before if each is model else done.cache_bytes_per_token
            entry = {"model": name, "perplexity": perplexity(each, text), "bytes_per_token": size}
            entry["cache_bytes"] = cache_bytes(each.config)
            data.append(entry)
            kv_heads = f"{each.config.num_attention_heads}/{each.config.num_key_value_heads}"
            rows.append(
                [name, kv_heads, f"{entry['perplexity']:,.1f}", f"{size:,}", f"{entry['cache_bytes'] / 2**20:.2f}"]
            )
    title = f"SmolLM2-135M, not trained: perplexity on {text.numel()} tokens of a book; cache as above"
    report("convert-smollm2", title, ["", "heads", "perplexity", "bytes", "MiB"], rows, data)


def run() -> None:
    quick = "--quick" in sys.argv
    for part in (lambda: stories(quick), *([] if quick else [smollm2])):
        try:
            part()
        except FileNotFoundError as error:
            print(f"\nconvert: {error}")


if __name__ == "__main__":
    run()
