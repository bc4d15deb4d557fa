"""The lists of tests and fuzz targets of the campaigns over native code name what exists."""

import ast
from pathlib import Path

from campaigns import native, sanitizers

ROOT = Path(__file__).parents[2]


def test_tests_of_the_sanitizers_exist() -> None:
    assert [path for path in (*sanitizers.REACHING, *sanitizers.THREADED) if not (ROOT / path).exists()] == []
    file, _, name = sanitizers.LEFT_OUT.partition("::")
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert name in {node.name for node in functions if isinstance(node, ast.FunctionDef)}


def test_every_fuzz_target_has_a_share() -> None:
    sources = {path.stem for path in (ROOT / "native" / "fuzz").glob("*.cpp")} - {"replay"}
    assert set(native.SHARES) == sources
    assert sum(native.SHARES.values()) == 100
