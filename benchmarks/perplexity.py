"""Perplexity of SmolLM2-135M (Q4_1) with 8-bit activations over that with float32 activations.

As steps, where a token is rounded to two parts of 8 bits, and as a prompt, where it is rounded to 8 bits except
for blocks with outliers. Texts of 512
tokens: the documentation of this project and the docstrings of Python's standard library, by name.
"""

from __future__ import annotations

import ast
import math
import statistics
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import qkv

from . import weights
from .harness import LiveTable
from .runtimes import progress

LENGTH, TEXTS = 512, 40
MODULES = (
    "argparse", "ast", "asyncio/base_events", "asyncio/streams", "bdb", "calendar", "codecs", "collections/__init__",
    "concurrent/futures/_base", "configparser", "csv", "datetime", "difflib", "doctest", "email/message", "fractions",
    "functools", "heapq", "inspect", "ipaddress", "locale", "logging/__init__", "mailbox", "optparse", "pathlib",
    "pickletools", "random", "shutil", "statistics", "string", "subprocess", "tempfile", "threading", "turtle",
    "typing", "unittest/case", "unittest/mock", "urllib/request", "zipfile",
)  # fmt: skip


def texts(tokenizer: Any, count: int) -> Iterator[tuple[str, list[int]]]:
    """The first tokens of each text that is long enough; documentation and docstrings by turns."""
    documents = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    modules = [Path(sysconfig.get_path("stdlib")) / f"{name}.py" for name in MODULES]
    turns = [path for pair in zip(documents, modules, strict=False) for path in pair]
    turns += documents[len(modules) :] + modules[len(documents) :]
    for path in turns:
        if not count or not path.is_file():
            continue
        tokens = tokenizer.encode(text_of(path), bare=True)
        if len(tokens) >= LENGTH:
            count -= 1
            yield path.stem, tokens[:LENGTH]


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return "\n\n".join(filter(None, found))


def loss(model: Any, tokens: list[int], chunk: int) -> float:
    """Mean of −log p of the tokens after the first, from chunks of this many tokens."""
    cache, given = model.cache(1), torch.tensor([tokens])
    total = 0.0
    for start in range(0, LENGTH - 1, chunk):
        part = given[:, start : min(start + chunk, LENGTH - 1)]
        logits = model.step(part, cache, every=True)[0].double()
        wanted = given[0, start + 1 : start + 1 + part.shape[1]]
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
    return total / (LENGTH - 1)


def run() -> None:
    path = weights.smollm2()
    exact, rounded = (qkv.runtime.load(path, activations=mode) for mode in ("float32", "int8"))
    ways = {"float32, prompt": (exact, LENGTH), "int8, steps": (rounded, 1), "int8, prompt": (rounded, LENGTH)}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    names = []
    for name, tokens in texts(exact.tokenizer, 6 if "--quick" in sys.argv else TEXTS):
        progress(f"perplexity: {name}")
        names.append(name)
        for way, (model, chunk) in ways.items():
            losses[way].append(loss(model, tokens, chunk))
    columns = {"activations": 16, "perplexity": 11, "difference": 11, "its error": 10, "least": 9, "most": 9}
    title = f"Perplexity of SmolLM2-135M (Q4_1), {len(names)} texts of {LENGTH} tokens; bar 0.1%"
    table = LiveTable("perplexity", title, columns)
    first = losses["float32, prompt"]
    for way, found in losses.items():
        changes = [100 * math.expm1(a - b) for a, b in zip(found, first, strict=True)]
        mean, error = statistics.mean(changes), statistics.stdev(changes) / len(changes) ** 0.5
        perplexity = math.exp(statistics.mean(found))
        shown = [f"{mean:+.3f}%", f"±{error:.3f}%", f"{min(changes):+.3f}%", f"{max(changes):+.3f}%"]
        data = {"perplexity": perplexity, "percent": mean, "standard_error": error, "by_text": changes, "texts": names}
        table.add(
            [way, f"{perplexity:.3f}", *(shown if found is not first else ["-"] * 4)], {"activations": way, **data}
        )
