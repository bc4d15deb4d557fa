"""Sections of docs/trust.md about what other commands measured: conformance, campaigns, mutants, long runs."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

CONFORMANCE, CAMPAIGNS, MUTATION = (
    Path("build/conformance.json"),
    Path("docs/campaigns.json"),
    Path("docs/mutation.json"),
)

# As campaigns/long_decoding.py names them.
ULP, RELATIVE = "error in ulp of the largest |v|", "error as a part of the largest answer"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (columns, ["---", *["---:"] * (len(columns) - 1)], *rows)]


def _section(title: str, words: str, *blocks: list[str]) -> str:
    filled = textwrap.fill(" ".join(words.split()), 120)
    return "\n\n".join([f"## {title}", filled, *("\n".join(lines) for lines in blocks if lines)])


def conformance(_: object) -> str | None:
    """ONNX's own cases, by every way that runs them."""
    told = _read(CONFORMANCE)
    if not told:
        return None
    ways = told["ways"]
    counts = ("passed", "of", "refused", "differs", "failed")
    rows = [
        [
            name if name.endswith(way["operator"]) else f"{name}: {way['operator']}",
            *(f"{way[key] if isinstance(way[key], int) else len(way[key])}" for key in counts),
        ]
        for name, way in ways.items()
    ]
    reasons = [
        f"- {name}, `{case}`: {said}"
        for name, way in ways.items()
        if name.startswith("qkv")
        for kind in ("differs", "failed")
        for case, said in way[kind].items()
    ]
    refused: dict[str, list[str]] = {}
    for name, way in ways.items():
        if name.startswith("qkv"):
            for case, said in way["refused"].items():
                refused.setdefault(f"{name}: {said}", []).append(f"`{case}`")
    reasons += [f"- {said} ({', '.join(cases)})" for said, cases in refused.items()]
    words = f"""`python -m benchmarks.conformance`: every base case of Attention and LinearAttention that onnx
    {told["onnx"]} carries, compared as onnx's own runner compares, and the same cases by onnxruntime. *Differs*: not
    within the case's own tolerance, but as near to float64 as the backend promises."""
    return _section("ONNX's own cases", words, _table(["", *counts], rows), reasons)


def campaigns(_: object) -> str | None:
    """What `make soak` has worked off."""
    told = _read(CAMPAIGNS)
    if not told:
        return None
    rows = [
        [
            f"{name}: {one['about']}",
            f"{one['done']:,} {one['unit']}",
            str(len(one["open"])),
            str(len(one["mended"])),
            f"{one['seconds'] / 60:,.0f}",
        ]
        for name, one in told.items()
    ]
    machines = sorted({f"{one['machine']['cpu']}, {one['machine']['cores']} cores" for one in told.values()})
    words = """`make soak` (`python -m campaigns`), resumable; the whole record, with seeds, commits and what was
    covered, is [campaigns.json](campaigns.json). *Mended*: batches that failed once and pass since it was
    cured."""
    table = _table(["campaign", "done", "open", "mended", "minutes"], rows)
    return _section("Campaigns", words, table, [f"On {'; '.join(machines)}."])


def long_runs(_: object) -> str | None:
    """Memory and drift over 200,000 tokens."""
    told = _read(CAMPAIGNS).get("long_decoding")
    if not told:
        return None
    rows = [
        [
            name,
            f"{one['tokens']:,}",
            f"{one['tokens a second']:,}",
            f"{one['bytes in 10,000 tokens'] / 1024:+,.1f}",
            f"{one[ULP]['worst of all looks']:.2f}",
            " ".join(f"{error:.0e}" for error in one[RELATIVE].values()),
        ]
        for name, one in told["figures"].items()
    ]
    after = ", ".join(f"{int(n):,}" for one in list(told["figures"].values())[:1] for n in one[RELATIVE])
    columns = ["cache", "tokens", "a second", "RSS, kB in 10,000", "worst, ulp of the largest v", "relative"]
    words = f"""`python -m campaigns long_decoding`: tokens decoded one by one through one cache; the slope of
    the process's resident cache after a tenth of them, and the distance from float64: the largest of all looks, and
    relative to the answer after {after} tokens."""
    return _section("Long runs", words, _table(columns, rows))


def mutants(_: object) -> str | None:
    """How many faults that were planted the tests notice."""
    told = _read(MUTATION)
    if not told:
        return None
    rows = []
    for name, one in told.items():
        ends = one["interval"]
        rows.append(
            [
                name,
                f"{one['run']:,} of {one['made']:,}",
                f"{one['killed']:,}",
                f"{one['rate']:.1%}" + (f" ({ends[0]:.1%} to {ends[1]:.1%})" if ends else ""),
                str(one["equivalent"]),
                f"{one['rate_without_equivalent']:.1%}",
            ]
        )
    words = """`make mutation`: the code is changed in one place, and the tests have to notice. Where not all
    mutants were run, the interval is that of 95%. *Equivalent*: nobody could notice, each with its reason in
    [mutation.json](mutation.json)."""
    return _section("Mutants", words, _table(["room", "run", "noticed", "rate", "equivalent", "without these"], rows))


SECTIONS = (conformance, campaigns, long_runs, mutants)
