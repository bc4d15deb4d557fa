"""Fuzzing of the native kernels: libFuzzer writes calls as bytes, and each answer is held to its definition in float64.

The targets are those of native/fuzz. Of every batch a quarter runs under the address and undefined-behaviour
sanitizers, the rest without them, four times as fast. The inputs that reached something new are kept in
build/fuzz/corpus, and each batch starts from them; they are not counted again. An input that broke something stays in
build/fuzz/findings, and every batch fails until it no longer does.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from .campaign import Batch, Campaign
from .native_builds import BUILD, built

# Of a hundred executions: what each target gets.
SHARES = {"cache": 34, "plain": 20, "linear": 20, "argmax": 12, "pack": 9, "finite": 5}
SANITIZED = 4  # one of so many executions
OPTIONS = ("-DQKV_FUZZ=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo")
BUILDS = {
    "quick": (),
    "sanitized": ("-DQKV_SANITIZE=address,undefined,implicit-conversion",),
}
CORPUS, FINDINGS = BUILD / "fuzz" / "corpus", BUILD / "fuzz" / "findings"
# No longer than a call's description is. Nothing is weighed by rarity, which took half of the time, and how often an
# edge was taken is no news: sizes are drawn anyway, and ten times as many inputs would be tried again by every batch.
FLAGS = (
    "-max_len=200",
    "-len_control=0",
    "-entropic=0",
    "-use_counters=0",
    "-timeout=60",
    "-rss_limit_mb=2048",
    "-print_final_stats=1",
)


def run(seed: int, count: int) -> Batch:
    """About `count` executions, over all targets."""
    figures: Counter[str] = Counter()
    for number, (build, options) in enumerate(BUILDS.items()):
        folder = built(f"fuzz/{build}", *OPTIONS, *options, compiler="clang++")
        share = count // SANITIZED if build == "sanitized" else count - count // SANITIZED
        for place, (target, percent) in enumerate(SHARES.items()):
            program = folder / "native" / "fuzz" / f"fuzz_{target}"
            _try_findings_again(program, target)
            # libFuzzer takes 0 for the time of day.
            drawn = 1 + (seed * len(BUILDS) + number) * len(SHARES) + place
            fresh, again, seconds = fuzz(program, target, drawn, share * percent // 100)
            figures[target] += fresh
            figures[f"{build} executions"] += fresh
            figures["executions of inputs that were kept"] += again
            figures[f"{build} seconds"] += seconds
    return Batch(sum(figures[target] for target in SHARES), dict(figures))


def fuzz(program: Path, target: str, seed: int, count: int) -> tuple[int, int, int]:
    """How many new inputs it made and tried, how many it knew before, and how long that took."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    kept = sum(1 for _ in corpus.iterdir())
    command = [str(program), str(corpus), f"-seed={seed}", f"-runs={count + kept}", *FLAGS]
    said = _said([*command, f"-artifact_prefix={FINDINGS / target}-"])
    began = re.search(r"^#(\d+)\tINITED", said, re.MULTILINE)
    ended = re.search(r"^stat::number_of_executed_units: *(\d+)", said, re.MULTILINE)
    took = re.search(r"^Done \d+ runs in (\d+) second", said, re.MULTILINE)
    if began is None or ended is None or took is None:
        raise AssertionError(f"{target}: no count in what libFuzzer said\n{said[-2000:]}")
    return int(ended[1]) - int(began[1]), int(began[1]), int(took[1])


def _try_findings_again(program: Path, target: str) -> None:
    """Inputs that once broke something: raises while they do; those that no longer do join the others."""
    for finding in sorted(FINDINGS.glob(f"{target}-*")):
        _said([str(program), str(finding)])
        if "sanitized" in program.parts:  # the last to try it
            finding.rename(CORPUS / target / finding.name)


def _said(command: list[str]) -> str:
    environment = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if not re.match(r"#\d+\t", line)]
        raise AssertionError("\n".join([" ".join(command), *lines[-60:]]))
    return ended.stderr


def gather(figures: list[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for batch in figures:
        total.update(batch)
    kept = {target: sum(1 for _ in (CORPUS / target).glob("*")) for target in SHARES}
    return dict(total) | {"inputs that reached something new": sum(kept.values())}


CAMPAIGN = Campaign(
    about="calls of the native kernels, written by libFuzzer and held to their definition in float64",
    unit="executions",
    goal=10_000_000,
    batch=250_000,
    run=run,
    gather=gather,
)
