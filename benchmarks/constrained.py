"""Constrained decoding against free decoding: time for the same number of tokens; bar: at most 5% more.

SmolLM2-135M, and Qwen2.5-Coder-1.5B where `make weights-local` has put it. A mask depends on what was written, so that
each constraint writes another answer.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import qkv
from qkv.runtime import Constraint

from . import weights
from .harness import LiveTable, compare
from .runtimes import qwen

TOKENS, BAR = 48, 1.05
PROMPT = "A list of the planets with their names, sizes and moons, in detail:\n"
PLANET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3},
        "kind": {"enum": ["rocky", "gas", "ice"]},
        "radius": {"type": "number", "minimum": 1000, "maximum": 99999},
        "moons": {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 5},
    },
    "required": ["name", "kind", "radius", "moons"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "JSON schema": Constraint(schema={"type": "array", "items": PLANET, "minItems": 9}),
    "JSON object": Constraint(schema={"type": "object", "minProperties": 9}),
    "regular expression": Constraint(regex=r"([A-Z][a-z]+, [0-9.]+ km\n){30}"),
    "grammar": Constraint(grammar='start: ("- " WORD (" " WORD)~3..9 "\\n")~20\nWORD: /[A-Za-z]+/'),
}


def run() -> list[dict[str, Any]]:
    quick = "--quick" in sys.argv
    columns = {"model": 10, "constraint": 20, "free ms": 9, "constrained ms": 15, "ratio": 7, "bar": 8}
    table = LiveTable("constrained", f"{TOKENS} tokens after a prompt, int8; ms a token; bar {BAR}", columns)
    for name, path in {"SmolLM2": weights.smollm2(), "Qwen 1.5B": qwen()}.items():
        if path is None:
            table.note(f"{name}: absent (make weights-local)")
            continue
        model = qkv.runtime.load(path, activations="int8")
        entries = {"free": partial(_write, model, None)}
        entries |= {kind: partial(_write, model, constraint) for kind, constraint in CONSTRAINTS.items()}
        timings = compare(entries, seconds=1.0, rounds=3 if quick else 5 if name != "SmolLM2" else 15)
        for kind in CONSTRAINTS:
            ratio, met = timings.ratio(kind, "free"), timings.ratio(kind, "free") <= BAR
            each = [1e3 * timings.median(entry) / TOKENS for entry in ("free", kind)]
            cells = [name, kind, *(f"{time:.2f}" for time in each), f"{ratio:.3f}", "met" if met else "NOT MET"]
            spread = timings.spread(kind)
            table.add(cells, {"model": name, "constraint": kind, "ratio": ratio, "spread": spread, "met": met})
    return table.data


def _write(model: qkv.runtime.Model, constraint: Constraint | None) -> None:
    found = model.generate(PROMPT, TOKENS, constraint=constraint)
    assert len(found.tokens) == TOKENS, found.text
