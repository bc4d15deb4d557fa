"""Caches of real models in each storage format: perplexity, error of the attention, bytes of a token.

SmolLM2-135M and, where `make weights-local` has put it, Qwen2.5-Coder-1.5B, on `qkv.runtime` with weights as the file
has them. The texts are those of `perplexity`. The first 64 tokens are one chunk, by which dtype="auto" decides, and the
rest another one; all of them are read from the cache. The error is that of the attention of the last 16 tokens, as
"auto" measures it, over all layers. llama.cpp's caches of q8_0 and q4_0, with and without its rotation, run on the same
tokens if llama-cpp-python is installed.

Prefixes of 32,768 tokens: a fork, which copies no page, and files, mapped with and without comparing their hash.

`python -m benchmarks caches [--quick] [--model smollm2|qwen|prefixes]`
"""

from __future__ import annotations

import importlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from qkv import runtime
from qkv.cache.choosing import QUERIES, last_queries, relative_errors
from qkv.cache.formats import FORMATS
from qkv.runtime import reference

from . import weights
from .harness import LiveTable
from .perplexity import LENGTH, texts
from .runtimes import progress

FIRST = 64
BOUND = 0.05  # of the attention, for "auto"
NAMES = tuple(each.name for each in FORMATS.values() if each.native_code is not None)
PREFIX = 32768  # tokens
BARS = {"int8": 0.1, "auto": 1.0}  # percent of the perplexity


def models() -> dict[str, Path]:
    found = {"smollm2": weights.smollm2()}
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "qkv"
    return found | {path.name[:4]: path for path in sorted(folder.glob("qwen2.5-coder-1.5b*.gguf"))}


def loss(model: Any, cache: Any, tokens: list[int]) -> float:
    """Mean of −log p of the tokens after the first."""
    given, total = torch.tensor([tokens]), 0.0
    for start, end in ((0, FIRST), (FIRST, LENGTH - 1)):
        logits = model.step(given[:, start:end], cache, every=True)[0].double()
        total += float(torch.nn.functional.cross_entropy(logits, given[0, start + 1 : end + 1], reduction="sum"))
    return total / (LENGTH - 1)


def errors(model: Any, tokens: list[int]) -> dict[str, list[float]]:
    """The relative error of each format in each layer."""
    cache, given = model.cache(), torch.tensor([tokens])
    model.step(given[:, :-QUERIES], cache)
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    read_inputs, decode = sys.modules["qkv.cache.decode"].read_decode_inputs, reference.decode

    def watched(query: Any, key: Any, value: Any, layer: Any, **options: Any) -> Any:
        similarity = options["similarity"]
        step = read_inputs(query, key, value, layer, similarity, None, None, None, "right")
        out = decode(query, key, value, layer, **options)
        scale = similarity.scale_for(layer.width)
        for name, (_, error) in zip(
            NAMES, relative_errors(layer, FORMATS.values(), *last_queries(step), scale), strict=False
        ):
            found[name].append(error)
        return out

    reference.decode = watched
    try:
        reference.run(model.program, given[:, -QUERIES:], cache.layers)
    finally:
        reference.decode = decode
    return found


class Llama:
    """llama.cpp with a cache of one type."""

    def __init__(self, path: Path, kind: str, rotated: bool) -> None:
        llama_cpp = importlib.import_module("llama_cpp")
        os.environ["LLAMA_ATTN_ROT_DISABLE"] = "0" if rotated else "1"
        number = {"f16": 1, "q8_0": 8, "q4_0": 2}[kind]
        options: dict[str, Any] = {"type_k": number, "type_v": number, "flash_attn": True, "logits_all": True}
        self.model = llama_cpp.Llama(str(path), n_ctx=LENGTH, n_batch=LENGTH, verbose=False, **options)

    def loss(self, tokens: list[int]) -> float:
        self.model.reset()
        self.model.eval(tokens[:-1])
        logits = torch.from_numpy(np.array(self.model.scores[: LENGTH - 1])).double()
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])))


LLAMA = {
    f"llama.cpp {kind}{', rotated' if rotated else ''}": (kind, rotated)
    for kind, rotated in (("f16", False), ("q8_0", False), ("q8_0", True), ("q4_0", False), ("q4_0", True))
}


def compare(name: str, path: Path, count: int) -> None:
    model = qkv.runtime.load(path)
    chosen: Counter[str] = Counter()
    losses: dict[str, list[float]] = {each: [] for each in (*NAMES, "auto")}
    sizes: dict[str, float] = {}
    found: dict[str, list[float]] = {each: [] for each in NAMES}
    given = list(texts(model.tokenizer, count))
    for text, tokens in given:
        for kind in losses:
            progress(f"caches: {name}, {text}, {kind}")
            cache = model.cache(dtype=kind, bound=BOUND if kind == "auto" else None)
            losses[kind].append(loss(model, cache, tokens))
            page = sum(layer.page_layout.page_bytes for layer in cache.layers)
            sizes[kind] = sizes.get(kind, 0.0) + page / 64 / len(given)
            if kind == "auto":
                chosen.update(layer.format.name for layer in cache.layers)
        for kind, layers in errors(model, tokens).items():
            found[kind] += layers
    peers = LLAMA if find_spec("llama_cpp") else {}
    if not peers:
        print("llama.cpp: llama-cpp-python is not installed (make bench installs it)")
    for kind, (stored, rotated) in peers.items():
        progress(f"caches: {name}, {kind}")
        peer = Llama(path, stored, rotated)
        losses[kind] = [peer.loss(tokens) for _, tokens in given]
    columns = {
        "cache": 24,
        "bytes": 7,
        "of bf16": 7,
        "error": 7,
        "most": 7,
        "perplexity": 10,
        "change": 9,
        "±": 7,
        "": 8,
    }
    title = f"{name}: {len(given)} texts of {LENGTH} tokens; bytes of a token, error of the attention, perplexity"
    table = LiveTable(f"caches-{name}", title, columns)
    for kind, own in losses.items():
        base = losses["llama.cpp f16" if kind in peers else "float32"]
        changes = [100 * math.expm1(a - b) for a, b in zip(own, base, strict=True)]
        change = 100 * math.expm1(statistics.mean(own) - statistics.mean(base))
        spread = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else math.nan
        held = [f"{sizes[kind]:.0f}", f"{sizes[kind] / sizes['bfloat16']:.3f}"] if kind in sizes else ["-", "-"]
        wrong = [f"{statistics.mean(found[kind]):.4f}", f"{max(found[kind]):.4f}"] if kind in found else ["-", "-"]
        met = "" if kind not in BARS else "met" if abs(change) <= BARS[kind] else "NOT MET"
        cells = [kind, *held, *wrong, f"{math.exp(statistics.mean(own)):.3f}", f"{change:+.3f}%", f"{spread:.3f}%", met]
        data = {"cache": kind, "bytes": sizes.get(kind), "percent": change, "by_text": changes, "losses": own}
        table.add(cells, data | {"errors": found.get(kind)})
    table.note(f"auto with bound {BOUND}: " + ", ".join(f"{n} of {each}" for each, n in chosen.most_common()))


def prefixes() -> None:
    """Milliseconds of what is done with a prefix."""
    columns = {"": 36, "ms": 10, "bar": 8}
    table = LiveTable("caches-prefixes", f"a prefix of {PREFIX:,} tokens, 8 heads of 128, bfloat16, 134 MB", columns)
    tokens = torch.randn(1, 8, PREFIX, 128, dtype=torch.bfloat16)
    cache = qkv.KVCache(1, 8, 128, dtype=torch.bfloat16)
    cache.append(tokens, tokens)
    prefix, token = cache.freeze(), torch.randn(1, 8, 1, 128, dtype=torch.bfloat16)

    def step() -> None:
        qkv.decode(token, token, token, prefix.fork())

    with tempfile.TemporaryDirectory() as folder:
        path, plain = f"{folder}/a.prefix", f"{folder}/a.safetensors"
        layers = runtime.ModelCache([cache] + [_copy(cache) for _ in range(29)])
        done = {
            "freeze": cache.freeze,
            "fork": prefix.fork,
            "fork of 30 layers": layers.fork,
            "fork, and one step (copies no page)": step,
            "save": lambda: prefix.save(path),
            "map": lambda: qkv.KVCache.map(path),
            "map, pages compared with their hash": lambda: qkv.KVCache.map(path, check=True),
            "map, fork, and one step": lambda: qkv.decode(token, token, token, qkv.KVCache.map(path).fork()),
            "KVCache.save": lambda: cache.save(plain),
            "KVCache.load": lambda: qkv.KVCache.load(plain),
        }
        for name, call in done.items():
            times = []
            for _ in range(3 if "save" in name else 15):
                before = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - before))
            found = statistics.median(times)
            bar = ("met" if found < 1 else "NOT MET") if name == "fork" else ""
            table.add([name, f"{found:.3f}", bar], {"name": name, "ms": found, "times": times})


def _copy(cache: Any) -> Any:
    """Another cache with as many pages, smaller ones: a fork only reads the table."""
    other = qkv.KVCache(1, 1, 8, dtype=torch.bfloat16)
    one = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16).expand(1, 1, cache.length, 8)
    other.append(one, one)
    return other


def run() -> None:
    wanted = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else None
    quick = "--quick" in sys.argv
    if wanted in (None, "prefixes"):
        prefixes()
    for name, path in models().items():
        if wanted in (None, name):
            compare(name, path, {"smollm2": 3 if quick else 20, "qwen": 2 if quick else 6}[name])
