"""Whole models of files on `qkv.runtime`, compared with llama.cpp and transformers with sdpa.

A step after some tokens, a prompt, a batch, and the time from load to first logits: the same file, the same tokens,
interleaved. Peers that are not installed are absent. Bars may be met with float32 or with int8 activations.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import qkv

from . import weights
from .harness import Timings, report
from .rotation import QUIET

ROUNDS, STEPS = 7, 4  # steps in a sample; the first is not timed
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
STEP_BARS = {16: 1.3, 4096: 1.5, 16384: 2.0}
PROMPT_BAR, BATCH_BAR, ROOF_BAR = 1.3, 1.3, 0.7
OURS = ("qkv f32", "qkv int8")


class Entry(NamedTuple):
    """A loaded model: run(tokens) appends the tokens (batch, n) and returns logits; clear() empties the cache."""

    run: Callable[[torch.Tensor], Any]
    clear: Callable[[int], None]


def ours(path: Path, activations: str) -> Entry:
    model = qkv.runtime.load(path, activations=activations)
    state: dict[str, Any] = {}
    return Entry(
        lambda tokens: model.step(tokens, state["cache"]), lambda batch: state.update(cache=model.cache(batch))
    )


def llama_cpp(path: Path, flash: bool, context: int) -> Entry:
    import llama_cpp

    threads = torch.get_num_threads()
    options = {"n_ctx": context, "n_threads": threads, "n_threads_batch": threads, "flash_attn": flash}
    model = llama_cpp.Llama(str(path), verbose=False, **options)
    return Entry(lambda tokens: model.eval(tokens[0].tolist()), lambda batch: model.reset())


def sdpa(path: Path) -> Entry:
    from transformers import DynamicCache

    model = qkv.hf.load(path, implementation="sdpa").model
    state: dict[str, Any] = {}

    def run(tokens: torch.Tensor) -> Any:
        with torch.no_grad():
            return model(tokens, past_key_values=state["cache"], logits_to_keep=1).logits

    return Entry(run, lambda batch: state.update(cache=DynamicCache(config=model.config)))


def entries(path: Path, context: int, is_gguf: bool) -> tuple[dict[str, Entry], list[str]]:
    """What runs a file here, and what is absent."""
    found = {"qkv f32": ours(path, "float32"), "qkv int8": ours(path, "int8")}
    absent = ["mistralrs", "openvino_genai"]  # neither is installed by requirements/, nor has an adapter here
    if is_gguf and importlib.util.find_spec("llama_cpp") is not None:
        found |= {f"llama.cpp{' flash' * flash}": llama_cpp(path, flash, context) for flash in (False, True)}
    else:
        absent.append("llama_cpp")
    return found | {"sdpa": sdpa(path)}, absent


def interleaved(field: dict[str, Entry], prepare: Callable[[Entry], None], tokens: torch.Tensor, count: int) -> Timings:
    """Seconds of a call: each entry once a round, after `prepare`."""
    times: dict[str, list[float]] = {name: [] for name in field}
    names = list(field)
    for round_ in range(ROUNDS):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            prepare(field[name])
            time.sleep(QUIET)
            samples = []
            for _ in range(count):
                before = time.perf_counter()
                field[name].run(tokens)
                samples.append(time.perf_counter() - before)
            times[name].append(statistics.median(samples[1:] or samples))
    return Timings(times)


def random_tokens(batch: int, count: int) -> torch.Tensor:
    return torch.randint(3, 1000, (batch, count), generator=torch.Generator().manual_seed(0))


def step_times(field: dict[str, Entry], depth: int, batch: int) -> Timings:
    for entry in field.values():
        entry.clear(batch)
        for part in random_tokens(batch, depth).split(1024, dim=1):
            entry.run(part)
    return interleaved(field, lambda entry: None, torch.full((batch, 1), 7), STEPS)


def prompt_times(field: dict[str, Entry], count: int) -> Timings:
    return interleaved(field, lambda entry: entry.clear(1), random_tokens(1, count), 1)


def read_bytes(path: Path, depth: int) -> int:
    """Bytes of weights and cache that a step at batch 1 reads."""
    model = qkv.runtime.load(path)
    matrices: dict[int, int] = {}

    def visit(part: Any) -> None:
        if hasattr(part, "row_bytes") and hasattr(part, "data"):
            matrices[part.data.ctypes.data] = part.data.nbytes
        elif isinstance(part, tuple):
            for each in part:
                visit(each)
        elif hasattr(part, "__dataclass_fields__"):
            for name in part.__dataclass_fields__:
                visit(getattr(part, name))

    visit(model.program)
    tied = model.program.logits.weight.data.ctypes.data == model.program.embedding.data.ctypes.data
    total = sum(matrices.values()) - (0 if tied else model.program.embedding.data.nbytes)
    return total + sum(
        2 * 4 * depth * layer.attention.kv_heads * layer.attention.width for layer in model.program.layers
    )


def read_roof() -> float:
    """Bytes a second that all threads read together, from memory far larger than the caches."""
    data = torch.ones(1 << 28)
    times = []
    for _ in range(5):
        before = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - before)
    return data.nbytes / min(times)


def row_of(title: str, result: Timings, bar: float | None, roof: float | None) -> tuple[list[str], dict[str, Any]]:
    """A line of the table; `roof` is the share of the read roof that a step of one second would reach."""
    peers = [name for name in result.times if name not in OURS]
    best = result.best_of(peers)
    ratio = max(result.ratio(best, name) for name in OURS)
    share = None if roof is None else roof / min(result.median(name) for name in OURS)
    met = "-" if bar is None else "met" if ratio >= bar else "NOT MET"
    reached = "-" if share is None else f"{share:.0%} {'met' if share >= ROOF_BAR else 'NOT MET'}"
    shown = [f"{1e3 * result.median(name):.1f} ±{result.spread(name):.0%}" for name in (*OURS, best)]
    data = {"case": title, "ms": {name: 1e3 * result.median(name) for name in result.times}, "best_peer": best}
    cells = [title, *shown[:2], f"{shown[2]} {best}", f"{ratio:.2f}", "-" if bar is None else f"{bar}x", met, reached]
    return cells, data | {"ratio": ratio, "bar": bar, "met": met, "roof_share": share}


def first_logits(path: Path) -> Timings:
    """Seconds from load to first logits, imports done."""
    makers: dict[str, Callable[[], Entry]] = {
        "qkv f32": lambda: ours(path, "float32"),
        "qkv int8": lambda: ours(path, "int8"),
    }
    if importlib.util.find_spec("llama_cpp") is not None:
        makers["llama.cpp"] = lambda: llama_cpp(path, False, 512)
    else:
        makers["sdpa"] = lambda: sdpa(path)
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(3):
        for name, make in makers.items():
            before = time.perf_counter()
            entry = make()
            entry.clear(1)
            entry.run(random_tokens(1, 1))
            times[name].append(time.perf_counter() - before)
    return Timings(times)


def random_llama(folder: Path) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, vocab_size=32000, num_attention_heads=16,
        num_key_value_heads=2, max_position_embeddings=20000,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(32000)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def qwen() -> Path | None:
    """From $QKV_QWEN, or from the user's cache folder."""
    from platformdirs import user_cache_path

    path = Path(os.environ.get("QKV_QWEN", user_cache_path("qkv") / QWEN))
    return path if path.is_file() else None


def table(quick: bool) -> None:
    rows, data, roof, length = [], [], read_roof(), 128 if quick else 1024

    def add(title: str, result: Timings, bar: float | None, bytes_read: int | None = None) -> None:
        cells, figures = row_of(title, result, bar, None if bytes_read is None else bytes_read / roof)
        rows.append(cells)
        data.append(figures)

    with tempfile.TemporaryDirectory() as place:
        models_here: list[tuple[str, Path, tuple[int, ...], bool]] = [
            ("SmolLM2", weights.smollm2(), (16, 1024) if quick else (16, 1024, 4096, 8000), True)
        ]
        if (path := qwen()) is not None and not quick:
            models_here.append(("Qwen2.5-Coder-1.5B", path, (16, 1024), True))
        if not quick:
            models_here.append(("Llama bf16", random_llama(Path(place) / "llama"), (16, 16384), False))
        for name, path, depths, is_gguf in models_here:
            field, absent = entries(path, max(depths) + 192, is_gguf)
            for depth in depths:
                add(
                    f"{name}, step at {depth}",
                    step_times(field, depth, 1),
                    STEP_BARS.get(depth),
                    read_bytes(path, depth),
                )
            add(f"{name}, prompt of {length}", prompt_times(field, length), PROMPT_BAR)
            if name == "SmolLM2":
                several = {title: entry for title, entry in field.items() if not title.startswith("llama.cpp")}
                add(f"{name}, 8 rows at {length}", step_times(several, length, 8), BATCH_BAR)
                add(f"{name}, load to first logits", first_logits(path), 1.0)
            print(f"{name}: absent {', '.join(absent)}")
    print(f"read roof {roof / 1e9:.1f} GB/s{'' if qwen() else f'; {QWEN}: absent, set QKV_QWEN'}")
    columns = ["case", *OURS, "best peer", "ratio", "bar", "", "of read roof"]
    report("models-runtime", "Whole models on qkv.runtime: ms", columns, rows, data)
