"""`python -m benchmarks [name ...] [--quick] [--field DIR] [--model NAME] [--reader NAME]`: measure figures.

All, or by name; JSON goes to build/bench. --model: of `runtimes`, smollm2, qwen or llama alone. --reader: of `reading`,
a language model.
"""

from __future__ import annotations

import importlib
import sys

from .harness import machine

FIGURES = (
    "prefill",
    "argmax",
    "overhead",
    "decode",
    "growth",
    "linear",
    "choice",
    "compiled",
    "packed",
    "constrained",
    "perplexity",
    "caches",
    "latents",
    "eviction",
    "models",
    "convert",
    "cost",
    "checker",
    "exercises",
    "reading",
    "teach",
    "lab",
    "serving",
    "parallel",
)
PARTS = ("runtimes",)  # what another figure measures too: of models


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{__doc__}\n\nNames: {', '.join(FIGURES + PARTS)}")
        return
    given = sys.argv[1:]
    # The folder of real sheets and chats; questions of the bank; a model of runtimes; a reader of chats.
    for option in ("--field", "--exercise", "--model", "--reader"):
        while option in given:
            place = given.index(option)
            del given[place : place + 2]
    names = [name for name in given if name not in ("--quick", "--verbose")] or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES + PARTS]
    if unknown:
        sys.exit(f"benchmarks: no figure {', '.join(unknown)}; choose from {', '.join(FIGURES)}")
    print("  ".join(f"{key} {value}" for key, value in machine().items()))
    for name in names:
        importlib.import_module(f"benchmarks.{name}").run()


main()
