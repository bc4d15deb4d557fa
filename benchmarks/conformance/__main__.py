"""`python -m benchmarks.conformance`: ONNX's cases through qkv and, if it is installed, onnxruntime.

Prints a table, and writes every case that did not pass, with its reason, to build/conformance.json. Half a minute.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import onnx

from ..harness import machine
from . import runtime
from .cases import FILES, base_cases
from .outcomes import DIFFERS, FAILED, REFUSED, of_attention, of_linear, of_steps, summarize

RESULT = Path("build/conformance.json")
WIDTH = 80
WAYS = {
    "qkv": ("attention", of_attention),
    "qkv, reference": ("attention", lambda: of_attention("reference")),
    "qkv, blockwise": ("attention", lambda: of_attention("blockwise")),
    "qkv, sdpa": ("attention", lambda: of_attention("sdpa")),
    "qkv, native": ("attention", lambda: of_attention("native")),
    "qkv, steps of a cache": ("attention", of_steps),
    "qkv, LinearState": ("linear", of_linear),
}


def measured() -> dict[str, Any]:
    """Everything that the table shows; the loader of all operators counts the cases."""
    found: dict[str, Any] = {"onnx": onnx.__version__, "onnxruntime": runtime.version(), "machine": machine()}
    found["cases"] = {operator: len(base_cases(operator, everything=True)) for operator in FILES}
    ways = {way: {"operator": operator, **summarize(run())} for way, (operator, run) in WAYS.items()}
    if found["onnxruntime"]:
        for operator, name in (("Attention", "attention"), ("LinearAttention", "linear")):
            ways[f"onnxruntime, {name}"] = {"operator": name, **summarize(runtime.outcomes(operator))}
    return found | {"ways": ways}


def table(found: dict[str, Any]) -> list[str]:
    """At most 80 columns, then the reasons of the cases that did not pass."""
    lines = [f"ONNX's node cases, onnx {found['onnx']}: {found['cases']}", ""]
    lines.append(f"{'':24}{'operator':>10}{'passed':>8}{'of':>5}{'refused':>9}{'differs':>9}{'failed':>8}")
    for way, row in found["ways"].items():
        counts = [len(row[kind]) for kind in (REFUSED, DIFFERS, FAILED)]
        lines.append(
            f"{way:24}{row['operator']:>10}{row['passed']:>8}{row['of']:>5}{counts[0]:>9}{counts[1]:>9}{counts[2]:>8}"
        )
    for way, row in found["ways"].items():
        for kind in (REFUSED, DIFFERS, FAILED):
            by_reason: dict[str, list[str]] = {}
            for name, reason in row[kind].items():
                by_reason.setdefault(reason, []).append(name)
            for reason, names in by_reason.items():
                head = f"{way}: {kind}, {names[0] if len(names) == 1 else f'{len(names)} cases'}"
                lines += ["", *_wrapped(head), *_wrapped(reason, indent="  ")]
    if not found["onnxruntime"]:
        lines += ["", "onnxruntime is not installed: pip install -c constraints.txt onnxruntime"]
    return lines


def _wrapped(text: str, indent: str = "") -> list[str]:
    """At most three lines; the file has all of it."""
    indents = {"initial_indent": indent, "subsequent_indent": indent}
    return textwrap.wrap(text, WIDTH, max_lines=3, placeholder=" …", **indents)


def main() -> None:
    found = measured()
    print("\n".join(table(found)))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
