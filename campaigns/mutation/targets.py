"""The files that are mutated, and the tests that have to detect it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """`files` and folders that are mutated; `tests` that run; `sample`: the number of mutants, None for all."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int | None = None

    def files_in(self, root: Path) -> list[str]:
        found = [
            path
            for place in self.files
            for path in ([root / place] if place.endswith(".py") else sorted((root / place).rglob("*.py")))
        ]
        return [path.relative_to(root).as_posix() for path in found]


INPUTS = (
    "tests/test_inputs.py",
    "tests/cache/test_inputs.py",
    "tests/test_functional.py",
    "tests/backends/test_dispatch.py",
    "tests/faults/test_bad_shapes.py",
    "tests/faults/test_bad_sizes.py",
    "tests/faults/test_bad_masks.py",
    "tests/faults/test_bad_numbers.py",
    "tests/faults/test_bad_options.py",
)
COUNTS = (
    "tests/cost/test_ledger.py",
    "tests/cost/test_counting.py",
    "tests/cost/test_counting_by_loops.py",
    "tests/cost/test_variants.py",
)
CACHES = ("tests/faults/test_caches.py", "tests/faults/test_cache_files.py", "tests/properties/test_cache.py")
DECODING = ("tests/cache/test_decode.py",)

TARGETS = {
    "inputs": Target(
        ("src/qkv/inputs.py", "src/qkv/cache/inputs.py"), (*INPUTS, "src/qkv/inputs.py", "src/qkv/cache/inputs.py")
    ),
    # `qkv.cost.count` is in counting, and adds up in ledger.
    "count": Target(
        ("src/qkv/cost/counting.py", "src/qkv/cost/ledger.py"),
        (*COUNTS, "src/qkv/cost/counting.py", "src/qkv/cost/ledger.py"),
    ),
    "masks": Target(
        ("src/qkv/masks",),
        (
            "tests/masks",
            "tests/faults/test_bad_masks.py",
            "tests/cost/test_counting_by_loops.py",
            "tests/cost/test_counting.py",
            "src/qkv/masks",
        ),
        400,
    ),
    "cache": Target(
        ("src/qkv/cache",),
        ("tests/cache", *CACHES, *DECODING, "src/qkv/cache"),
        400,
    ),
    "maths": Target(("src/qkv/maths",), ("tests/maths", "tests/properties/test_maths_text.py", "src/qkv/maths"), 600),
}
