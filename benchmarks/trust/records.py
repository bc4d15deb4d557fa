"""Sections of docs/trust.md on the results of other commands: conformance, campaigns, mutants, long runs."""

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


def wrapped(text: str, start: str = "") -> list[str]:
    """Lines of at most 100 columns; `start` is the mark of a list."""
    return textwrap.wrap(
        " ".join(text.split()), 100, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _section(title: str, words: str, *blocks: list[str]) -> str:
    filled = "\n".join(wrapped(words))
    return "\n\n".join([f"## {title}", filled, *("\n".join(lines) for lines in blocks if lines)])


def conformance(_: object) -> str | None:
    """ONNX's test cases, with each backend and cache."""
    record = _read(CONFORMANCE)
    if not record:
        return None
    ways = record["ways"]
    counts = ("passed", "of", "refused", "differs", "failed")
    rows = [
        [
            name if name.endswith(way["operator"]) else f"{name}: {way['operator']}",
            *(f"{way[key] if isinstance(way[key], int) else len(way[key])}" for key in counts),
        ]
        for name, way in ways.items()
    ]
    reasons = [
        f"{name}, `{case}`: {reason}"
        for name, way in ways.items()
        if name.startswith("qkv")
        for kind in ("differs", "failed")
        for case, reason in way[kind].items()
    ]
    refused: dict[str, list[str]] = {}
    for name, way in ways.items():
        if name.startswith("qkv"):
            for case, reason in way["refused"].items():
                refused.setdefault(f"{name}: {reason}", []).append(f"`{case}`")
    reasons += [f"{reason} ({', '.join(cases)})" for reason, cases in refused.items()]
    lines = [line for reason in reasons for line in wrapped(reason, "- ")]
    words = f"""`python -m benchmarks.conformance`: every base case of Attention and LinearAttention in onnx
    {record["onnx"]}, compared as onnx's runner compares, and the same cases with onnxruntime. *Differs*: outside the
    tolerance of the case, but as close to float64 as the backend's bound."""
    return _section("ONNX's test cases", words, _table(["", *counts], rows), lines)


def campaigns(_: object) -> str | None:
    """What `make soak` has done."""
    record = _read(CAMPAIGNS)
    if not record:
        return None
    rows = [
        [
            f"{name}: {one['about']}",
            f"{one['done']:,} {one['unit']}",
            str(len(one["open"])),
            str(len(one["mended"])),
            f"{one['seconds'] / 60:,.0f}",
        ]
        for name, one in record.items()
    ]
    machines = sorted({f"{one['machine']['cpu']}, {one['machine']['cores']} cores" for one in record.values()})
    words = """`make soak` (`python -m campaigns`), resumable; the full record, with seeds, commits and coverage, is
    [campaigns.json](campaigns.json). *Fixed*: batches that failed once and pass since the fault was fixed."""
    table = _table(["campaign", "done", "open", "fixed", "minutes"], rows)
    return _section("Campaigns", words, table, [f"On {'; '.join(machines)}."])


def long_runs(_: object) -> str | None:
    """Memory and drift over 200,000 tokens."""
    record = _read(CAMPAIGNS).get("long_decoding")
    if not record:
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
        for name, one in record["figures"].items()
    ]
    after = ", ".join(f"{int(n):,}" for one in list(record["figures"].values())[:1] for n in one[RELATIVE])
    columns = [
        "cache",
        "tokens",
        "tokens a second",
        "RSS, kB in 10,000",
        "largest error, ulp of the largest v",
        "relative error",
    ]
    words = f"""`python -m campaigns long_decoding`: tokens decoded one by one with one cache; the growth of
    the process's resident memory after the first tenth, and the error against float64: the largest of all checks, and
    relative to the answer after {after} tokens."""
    return _section("Long runs", words, _table(columns, rows))


def mutants(_: object) -> str | None:
    """How many of the planted faults the tests detect."""
    record = _read(MUTATION)
    if not record:
        return None
    rows = []
    for name, one in record.items():
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
    words = """`make mutation` changes the code in one place, and the tests have to fail. If not all mutants were run,
    the 95% interval is given. *Equivalent*: the change has no effect. Reasons and the commit of each run are in
    [mutation.json](mutation.json); survivors in files that are gone since are only counted there."""
    return _section(
        "Mutants", words, _table(["target", "run", "detected", "rate", "equivalent", "rate without these"], rows)
    )


SECTIONS = (conformance, campaigns, long_runs, mutants)
