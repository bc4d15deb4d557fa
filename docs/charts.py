"""Draw the charts of the pages: `make docs`. tests/test_docs.py checks that they agree with the tables and the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from qkv.cost.architecture import model_named
from qkv.cost.model_counts import model_counts
from qkv.figures import Axis, Line, chart, standalone
from qkv.figures.counts import picture

DOCS = Path(__file__).parent
_STEP = re.compile(r"^\| step at ([\d,]+) \| ([\d.]+), ([\d.]+) \| ([\d.]+) llama\.cpp", re.MULTILINE)


def steps() -> str:
    """The steps of SmolLM2 in the table of docs/benchmarks.md."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    start = page.index("| SmolLM2-135M, Q4_1 |")
    found = _STEP.findall(page[start : page.index("| **", start)])
    rows = [(int(tokens.replace(",", "")), *map(float, times)) for tokens, *times in found]
    names = ("qkv, float32 activations", "qkv, int8 activations", "llama.cpp, the better of both ways")
    lines = [Line(name, [(row[0], row[at] / 1000) for row in rows]) for at, name in enumerate(names, 1)]
    title = "Time of a step over tokens in the cache: SmolLM2-135M, Q4_1"
    note = "two cores, medians of seven rounds: python -m benchmarks runtimes --model smollm2"
    return standalone(chart(title, Axis("tokens in the cache"), Axis("time of a step", "s", low=0), lines, note))


def operations() -> str:
    """What `qkv count --model llama-3-8b --length 32768 --causal -o FILE` draws."""
    model = model_named("llama-3-8b")
    return picture(model, model_counts(model, 32768, 1, phase="forward", causal=True, weights="bfloat16"), html=False)


CHARTS: dict[str, Callable[[], str]] = {"steps.svg": steps, "operations.svg": operations}


def main() -> None:
    for name, draw in CHARTS.items():
        path, drawn = DOCS / "images" / name, draw()
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            path.write_text(drawn, encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
