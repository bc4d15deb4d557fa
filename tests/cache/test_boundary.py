"""The cache is one unit: no private name of it is used outside its package."""

import ast
from functools import cache
from pathlib import Path

import pytest

import qkv

PACKAGE = Path(qkv.__file__).parent
CACHE = PACKAGE / "cache"
ROOT = Path(__file__).parents[2]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def files(folder: Path) -> list[Path]:
    """The files of a folder that mention caches."""
    return [path for path in sorted(folder.rglob("*.py")) if "cache" in path.read_text(encoding="utf-8").lower()]


@cache
def defined(folder: Path) -> set[str]:
    """Private names that a folder defines: methods, classes, functions, and what is assigned to attributes."""
    names = set()
    for path in files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return {name for name in names if is_private(name)}


def uses(source: str, private: set[str]) -> list[str]:
    """Private names that are read from something else than `self`, or imported from the package."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and "cache" in (node.module or "").split("."):
            found += [f"{node.lineno}: import {alias.name}" for alias in node.names if is_private(alias.name)]
        elif isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) != "self":
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


FOLDERS = [path for path in sorted(PACKAGE.iterdir()) if path.is_dir() and path != CACHE]
FOLDERS += [ROOT / "campaigns", ROOT / "benchmarks"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_no_private_name_of_the_cache_is_used_outside(folder: Path) -> None:
    private = defined(CACHE) - defined(folder)
    assert {"_pool", "_layout"} <= private
    found = {path.name: uses(path.read_text(encoding="utf-8"), private) for path in files(folder)}
    assert not {name: lines for name, lines in found.items() if lines}


def test_no_private_name_of_the_cache_is_used_in_the_modules_next_to_it() -> None:
    for path in PACKAGE.glob("*.py"):
        own = {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}
        assert not uses(path.read_text(encoding="utf-8"), defined(CACHE) - own), path.name


def test_the_scan_finds_uses() -> None:
    assert uses("from ..cache.kv import _secret\ncache._pool.lock\nself._pool", {"_pool"}) == [
        "1: import _secret",
        "2: cache._pool",
    ]
