"""Whole models on `qkv.runtime`, compared with llama.cpp, mistral.rs, OpenVINO GenAI and transformers with sdpa.

A step after some tokens, a batch of eight rows of which one is much shorter, a prompt, and the time from opening the
file to first logits: the same file, the same tokens, the same number of threads. Every program runs in a process of
its own (engines/), one at a time; a round asks each of them once. The memory's read rate is measured in every round.
Peers that fail or are not installed are absent, with the reason. Bars may be met with float32 or int8 activations.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import qkv

from . import weights
from .engines import ENGINES, OURS, Worker, WorkerFailed, version
from .harness import LiveTable, Timings
from .roofs import MEBI, Roofs
from .rotation import QUIET

QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
STEP_BARS = {16: 1.3, 4096: 1.5, 16384: 2.0}
PROMPT_BAR, BATCH_BAR, ROOF_BAR = 1.3, 1.3, 0.7
PEERS = tuple(name for name in ENGINES if name not in OURS)
LLAMA = ("llama.cpp", "llama.cpp+fa")
STEPS = 5  # in a sample; the first is not timed
LEAST, LONG = 3, 45.0  # rounds, and seconds after which there are no more of them
SHORT = 17  # tokens of the short row of a batch
SLOW = 2.5  # a peer that takes this many times as long as the best one is not timed again
PROMPTS, AGREE = 12, 0.7  # prompts whose next token is compared, and the part that must be the same
HOPELESS = 10  # and one that takes this many times as long is left out of all further cases
CACHE = "float16"  # as many bytes as in llama.cpp
COLUMNS = {
    "ms": 14, "qkv f32": 9, "qkv int8": 9, "best peer": 9, "": 12, "ratio": 5, "bar": 7, "of read": 7,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is measured of a model. `lengths`: tokens of each row before a step; `prompt`, `first`: of one prompt."""

    title: str
    kind: str
    lengths: tuple[int, ...] = ()
    bar: float | None = None

    @property
    def is_single_step(self) -> bool:
        return self.kind == "step"


@dataclass(frozen=True)
class Model:
    """A file and the cases that are measured with it."""

    name: str
    path: Path
    cases: tuple[Case, ...]
    tokens: Sequence[int]
    left_out: dict[str, str] = field(default_factory=dict)  # engines that do not run it, with the reason

    @property
    def context(self) -> int:
        return max(max(case.lengths) for case in self.cases) + 160


def step(depth: int) -> Case:
    return Case(f"step at {depth:,}", "step", (depth,), STEP_BARS.get(depth))


def batch(depth: int) -> Case:
    return Case(f"8 rows, {depth:,}", "batch", (SHORT,) + (depth,) * 7, BATCH_BAR)


def prompt(length: int) -> Case:
    return Case(f"prompt {length:,}", "prompt", (length,), PROMPT_BAR)


FIRST = Case("load to logits", "first", (16,), 1.0)


class Run:
    """The workers of one model, the table and the roof."""

    def __init__(self, table: LiveTable, roofs: Roofs, quick: bool) -> None:
        self.table, self.roofs = table, roofs
        self.rounds, self.patience = (3, 60) if quick else (7, 300)  # seconds that a command may take
        self.comparing = 2.0 if quick else 20.0  # seconds in which the outputs of an engine are compared
        self.together = quick  # whether all load at the same time, which takes more memory
        self.workers: dict[str, Worker] = {}
        self.weights: int = 0
        self.doubtful: set[str] = set()
        self.slow: dict[str, dict[str, float]] = {}  # times of a peer over those of the best one, by kind of case

    def model(self, model: Model) -> None:
        self.table.note(f"{model.name}, cache {CACHE}")
        caches: dict[str, str] = {}
        try:
            for name in ENGINES:
                if (reason := self._missing(name, model)) is not None:
                    self.table.note(f"  {name}: absent: {reason}")
                    continue
                self.workers[name] = Worker(name, torch.get_num_threads())
                self.workers[name].send("load", context=model.context, **self._file(name, model))
                if not self.together:
                    self._loaded(name, model, caches)
            for name in [name for name in self.workers if name not in caches]:
                self._loaded(name, model, caches)
            self._compare(model)
            peers = [f"{name} {version(name)} ({kind})" for name, kind in caches.items() if name not in OURS]
            self.table.note(f"  {', '.join(peers)}")
            for case in model.cases:
                self._case(model, case)
            if (deepest := max(case.lengths[0] for case in model.cases)) >= 1024:
                self._cache_formats(deepest)
        finally:
            for name in list(self.workers):
                self._drop(name)

    def _file(self, name: str, model: Model) -> dict[str, str]:
        return {"path": str(model.path.absolute())} | ({"cache": CACHE} if name in OURS else {})

    def _loaded(self, name: str, model: Model, caches: dict[str, str]) -> None:
        """Wait until a worker has loaded the model."""
        progress(f"{model.name}: {name} loads")
        answer = self._answer(name, lambda: self.workers[name].receive(self.patience))
        if answer is not None:
            caches[name] = answer["cache"]
            self.weights = answer["bytes"] or self.weights

    def _missing(self, name: str, model: Model) -> str | None:
        return model.left_out.get(name, None if version(name) else f"{ENGINES[name][2]} is not installed")

    def _drop(self, name: str) -> None:
        self.workers.pop(name).close()

    def _ask(self, name: str, command: str, **arguments: Any) -> Any:
        return self._answer(name, lambda: self.workers[name].call(command, self.patience, **arguments))

    def _answer(self, name: str, wait: Callable[[], Any]) -> Any:
        """The answer of a worker, or None if it failed: then it is absent from here on."""
        try:
            return wait()
        except WorkerFailed as error:
            self.table.note(f"  {name}: absent from here: {error}")
            self._drop(name)
            if name in OURS:
                raise
            return None

    def _compare(self, model: Model) -> None:
        """Print how many of some prompts each engine continues with the same token as with float32 activations."""
        prompts = [list(model.tokens[SHORT * n : SHORT * (n + 1)]) for n in range(PROMPTS)]
        found: dict[str, list[int]] = {}
        for name in list(self.workers):
            progress(f"{model.name}: {name} is compared")
            began, found[name] = time.monotonic(), []
            for tokens in prompts:
                if time.monotonic() - began > self.comparing and name != OURS[0]:
                    break
                if (answer := self._ask(name, "greedy", tokens=tokens, count=1)) is None:
                    break
                found[name] += answer[:1] or [-1]  # mistral.rs may answer with no text
        exact = found.pop(OURS[0])
        same = {
            name: (sum(a == b for a, b in zip(tokens, exact, strict=False)), len(tokens))
            for name, tokens in found.items()
            if name in self.workers
        }
        self.doubtful = {name for name, (equal, count) in same.items() if equal < AGREE * count}
        shown = [f"{name}{'*' * (name in self.doubtful)} {equal}/{count}" for name, (equal, count) in same.items()]
        self.table.note(f"  same next token as qkv f32 after prompts: {', '.join(shown)}")
        if self.doubtful:
            self.table.note("  * its output is not that of the model: compared in rows without a bar")
        logits = {name: self._ask(name, "logits", tokens=prompts[0]) for name in LLAMA if name in self.workers}
        exact_logits = torch.tensor(self._ask(OURS[0], "logits", tokens=prompts[0]))
        for name, numbers in logits.items():
            worst = float((torch.tensor(numbers) - exact_logits).abs().max() / exact_logits.abs().max())
            self.table.note(f"  {name}: logits within {worst:.1e} of the largest")

    def _cache_formats(self, depth: int) -> None:
        """Print qkv's steps with each storage format of its cache."""
        for name in [name for name in OURS if name in self.workers]:
            found = self._ask(name, "cache_formats", depth=depth, rounds=self.rounds)
            ms = {kind: 1e3 * statistics.median(times) for kind, times in found.items()}
            self.table.note(f"  {name} at {depth:,} by cache: " + ", ".join(f"{k} {v:.1f}" for k, v in ms.items()))
            self.table.data.append({"case": f"cache formats at {depth}", "engine": name, "ms": ms, "read_roof": []})

    def _is_slow(self, name: str, kind: str) -> bool:
        """Whether a peer took so much longer than the best one in earlier cases that it will not be the best here."""
        factors = self.slow.get(name, {})
        return factors.get(kind, 0) > 2 * SLOW or max(factors.values(), default=0) > HOPELESS

    def _case(self, model: Model, case: Case) -> None:
        names = [name for name in self.workers if not self._is_slow(name, case.kind)]
        if case.kind == "first":
            names = [name for name in names if name in OURS + LLAMA[:1]]
        result, roofs = self._measure(model, case, names)
        peers = sorted((name for name in result if name in PEERS), key=lambda name: min(result[name]))
        for name in peers:
            self.slow.setdefault(name, {})[case.kind] = min(result[name]) / min(result[peers[0]])
        peers = [name for name in peers if len(result[name]) == len(roofs)]  # the others were too slow, or failed
        sound = [name for name in peers if name not in self.doubtful]
        rivals: list[str | None] = [*sound[:1]] or [None]
        if case.kind == "prompt" and sound and sound[0] not in LLAMA:
            rivals += [name for name in sound if name in LLAMA][:1]
        for name in rivals + [name for name in peers[:1] if name in self.doubtful]:
            self._row(model, case, result, name, roofs)

    def _measure(self, model: Model, case: Case, names: list[str]) -> tuple[dict[str, list[float]], list[float]]:
        """Seconds by engine and round; the read rate of each round."""
        rows = [list(model.tokens[:length]) for length in case.lengths]
        if case.kind in ("step", "batch"):
            for name in list(names):
                progress(f"{model.name}, {case.title}: {name} fills its cache")
                try:
                    self.workers[name].call("fill", self.patience, rows=rows)
                except WorkerFailed as error:
                    if name in OURS:
                        raise
                    self.table.note(f"  {name}, {case.title}: absent: {error}")
                    names.remove(name)
                    if "longer than" in str(error) or "ended with" in str(error):
                        self._drop(name)
        times: dict[str, list[float]] = {name: [] for name in names}
        roofs: list[float] = []
        active, began = list(names), time.monotonic()
        for round_ in range(self.rounds):
            if round_ >= LEAST and time.monotonic() - began > LONG:
                break
            progress(f"{model.name}, {case.title}: round {round_ + 1} of {self.rounds}")
            shift = round_ % len(active)
            for name in active[shift:] + active[:shift]:
                time.sleep(QUIET)
                if (seconds := self._sample(model, case, name, rows)) is not None:
                    times[name].append(seconds)
            roofs.append(self.roofs.read())
            active = [name for name in active if name in self.workers and times[name]]
            peers = [name for name in active if name in PEERS]
            sound = [name for name in peers if name not in self.doubtful]
            groups = [peers, sound, [name for name in sound if name in LLAMA]]  # rows show the fastest of each
            kept = {min(group, key=lambda name: min(times[name])) for group in groups if group}
            fastest = min((min(times[name]) for name in kept), default=0.0)
            active = [name for name in active if name in OURS or name in kept or min(times[name]) < SLOW * fastest]
        return {name: samples for name, samples in times.items() if samples}, roofs

    def _sample(self, model: Model, case: Case, name: str, rows: list[list[int]]) -> float | None:
        if case.kind == "first":
            return self._ask(name, "first", tokens=rows[0], **self._file(name, model))
        if case.kind == "prompt":
            return self._ask(name, "prompt", tokens=rows[0])
        samples = self._ask(name, "steps", count=STEPS)
        return None if samples is None else statistics.median(samples[1:])

    def _row(
        self, model: Model, case: Case, result: dict[str, list[float]], peer: str | None, roofs: list[float]
    ) -> None:
        shared = Timings({name: samples for name, samples in result.items() if len(samples) == len(roofs)})
        ours = [name for name in OURS if name in shared.times]
        ratios = {} if peer is None else {name: shared.ratio(peer, name) for name in ours}
        bar = 1.0 if case.kind == "prompt" and peer not in LLAMA else case.bar
        bar = None if peer is None or peer in self.doubtful else bar
        ratio, fastest = max(ratios.values(), default=0.0), min(ours, key=shared.median)
        share = None
        if case.is_single_step:
            size = self.weights + cache_bytes(model.path, case.lengths[0])
            share = statistics.median(size / (s * r) for s, r in zip(shared.times[fastest], roofs, strict=True))
        cells = [
            case.title,
            *(shown(shared, name) for name in OURS),
            "-" if peer is None else shown(shared, peer),
            "absent" if peer is None else peer + "*" * (peer in self.doubtful),
            "-" if peer is None else f"{ratio:.2f}",
            "-" if bar is None else f"{bar} {'yes' if ratio >= bar else 'NO'}",
            "-" if share is None else f"{share:.0%} {'yes' if share >= ROOF_BAR else 'NO'}",
        ]
        data = {
            "model": model.name, "case": case.title, "kind": case.kind, "lengths": case.lengths, "cache": CACHE,
            "ms": {name: 1e3 * statistics.median(samples) for name, samples in result.items()},
            "spread": {name: shared.spread(name) for name in shared.times}, "peer": peer, "ratios": ratios,
            "ratio": ratio, "bar": bar, "met": None if bar is None else ratio >= bar, "roof_share": share,
            "roof_met": None if share is None else share >= ROOF_BAR, "read_roof": roofs,
        }  # fmt: skip
        if case.kind == "batch":
            rows = len(case.lengths)
            data["tokens_per_second"] = {name: rows / statistics.median(taken) for name, taken in result.items()}
        self.table.add(cells, data)


def shown(result: Timings, name: str) -> str:
    """Milliseconds and the spread."""
    if name not in result.times:
        return "-"
    number = 1e3 * result.median(name)
    spread = f" ±{result.spread(name):.0%}" if len(result.times[name]) > 1 else ""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}{spread}"


def progress(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def cache_bytes(path: Path, depth: int) -> int:
    """Bytes of keys and values of `depth` tokens and the new one, in CACHE."""
    layers = qkv.runtime.load(path).program.layers
    numbers = sum(2 * layer.attention.kv_heads * layer.attention.width for layer in layers)
    return numbers * (depth + 1) * getattr(torch, CACHE).itemsize


def text_tokens(path: Path, count: int) -> list[int]:
    """The first tokens of this project's documentation that are also the tokens of their text."""
    tokenizer = qkv.runtime.load(path).tokenizer
    files = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    plain = "".join(letter for letter in text if letter.isascii())[: 8 * count]
    return tokenizer.encode(plain, bare=True)[:count]


def random_llama(
    path: Path, layers: int = 12, width: int = 1024, hidden: int = 2816, heads: int = 16, kv_heads: int = 2,
    vocabulary: int = 32000,
) -> Path:  # fmt: skip
    """A Llama of random numbers in bfloat16, 198 million of them. Its tokenizer has bytes only: a letter is a token."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(20000)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    symbols = [*map(chr, [*range(33, 127), *range(161, 173), *range(174, 256)]), *(chr(256 + n) for n in range(68))]
    words = [*symbols, "zz", *(f"word{number}" for number in range(vocabulary - len(symbols) - 1))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * (vocabulary - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["z z"])  # readers want one
    writer.add_eos_token_id(vocabulary - 1)
    writer.add_bos_token_id(vocabulary - 1)
    writer.add_add_bos_token(False)
    source = torch.Generator().manual_seed(0)

    def add(name: str, rows: int, columns: int) -> None:
        numbers = (torch.randn(rows, columns, generator=source) * columns**-0.5).to(torch.bfloat16)
        raw = numbers.view(torch.uint8).numpy()
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", torch.ones(width).numpy())

    add("token_embd", vocabulary, width)
    for layer in range(layers):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        for part, rows in (("q", width), ("k", kv_heads * width // heads), ("v", kv_heads * width // heads)):
            add(f"{block}.attn_{part}", rows, width)
        add(f"{block}.attn_output", width, width)
        add_norm(f"{block}.ffn_norm")
        add(f"{block}.ffn_gate", hidden, width)
        add(f"{block}.ffn_up", hidden, width)
        add(f"{block}.ffn_down", width, hidden)
    add_norm("output_norm")
    add("output", vocabulary, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def letters(count: int) -> list[int]:
    """Tokens of random letters from a to y."""
    numbers = torch.randint(25, (count,), generator=torch.Generator().manual_seed(1)).tolist()
    return [ord("a") - 33 + number for number in numbers]


def qwen() -> Path | None:
    """From $QKV_QWEN, or from the user's cache folder."""
    from platformdirs import user_cache_path

    path = Path(os.environ.get("QKV_QWEN", user_cache_path("qkv") / QWEN))
    return path if path.is_file() else None


def all_models(place: Path, quick: bool) -> dict[str, Callable[[], Model]]:
    """By name; what a model needs is made when it is its turn."""

    def smollm2() -> Model:
        path = weights.smollm2()
        cases = (step(16), step(1024), step(4096), step(8000), prompt(1024), batch(1024), FIRST)
        cases = (step(16), step(1024), prompt(256), batch(64), FIRST) if quick else cases
        left_out = {"sdpa bf16": "left out of --quick"} if quick else {}
        return Model("SmolLM2-135M Q4_1", path, cases, text_tokens(path, 1024 if quick else 8000), left_out)

    def coder() -> Model:
        path = qwen()
        if path is None:
            raise FileNotFoundError(f"absent: set QKV_QWEN to {QWEN}")
        cases = (step(16), prompt(64), FIRST) if quick else (step(16), step(1024), prompt(1024), FIRST)
        reason = "6 GB in float32, and slower than bfloat16"
        return Model("Qwen2.5-Coder-1.5B Q4_K_M", path, cases, text_tokens(path, 1024), {"sdpa": reason})

    def llama() -> Model:
        path = random_llama(place / "llama-bf16.gguf")
        cases = (step(16), prompt(64), step(1024)) if quick else (step(16), prompt(1024), step(16384))
        return Model("random Llama bf16", path, cases, letters(16384))

    return {"smollm2": smollm2, "qwen": coder, "llama": llama}


def table(quick: bool, only: str | None = None) -> None:
    roofs = Roofs()
    live = LiveTable("models-runtime", "Whole models on qkv.runtime: milliseconds", COLUMNS)
    with tempfile.TemporaryDirectory() as place:
        for name, make in all_models(Path(place), quick).items():
            if name != only if only else quick and name != "smollm2":
                continue
            try:
                Run(live, roofs, quick).model(make())
            except (FileNotFoundError, WorkerFailed) as error:
                live.note(f"{name}: {error}")
    seen = [rate for row in live.data for rate in row["read_roof"]]
    size = f"{roofs.way}, {roofs.size / MEBI:.0f} MiB"
    live.note(f"read roof {min(seen) / 1e9:.1f} to {max(seen) / 1e9:.1f} GB/s ({size}), bar {ROOF_BAR:.0%}")


def run() -> None:
    only = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else None
    table("--quick" in sys.argv, only)
