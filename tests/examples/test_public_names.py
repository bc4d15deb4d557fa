"""Examples and notebooks use public names alone: what a package exports, and nothing with an underscore."""

import ast
import importlib
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "examples"
FILES = sorted([*ROOT.glob("*.py"), *ROOT.rglob("*.ipynb")])


def source_of(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def wrong_name(path: str) -> str | None:
    """What is not public in a dotted name that begins with qkv."""
    first, *rest = path.split(".")
    thing: object = importlib.import_module(first)
    for place, name in enumerate(rest, 2):
        if name.startswith("_"):
            return path
        if isinstance(thing, types.ModuleType):
            exported = getattr(thing, "__all__", None)
            if exported is not None and name not in exported:
                return ".".join([first, *rest[: place - 1]])
            package, thing = thing.__name__, getattr(thing, name)
            # A package without __all__ exports what it defines, not what it imports.
            if exported is None and not getattr(thing, "__module__", "").startswith(package):
                return ".".join([first, *rest[: place - 1]])
        else:
            return None
    return None


def names(tree: ast.AST) -> Iterator[str]:
    """Dotted names of qkv that a program imports or reads."""
    homes = {"qkv": "qkv"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "qkv")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "qkv":
            for alias in node.names:
                homes[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            first, dot, rest = ast.unparse(node).partition(".")
            if first in homes:
                yield f"{homes[first]}{dot}{rest.split('(')[0].split('[')[0]}"


def wrong_names(source: str) -> list[str]:
    tree = ast.parse(source)
    hidden = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr)]
    return sorted({wrong for name in names(tree) if (wrong := wrong_name(name))} | set(hidden))


def test_they_are_found() -> None:
    assert {path.stem for path in FILES} >= {"long_context", "sdpa_drop_in", "serve_and_call", "grade_class"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_examples_use_public_names(path: Path) -> None:
    assert not wrong_names(source_of(path))


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import qkv\nqkv.parallel.transfer.TRAFFIC.clear()", ["qkv.parallel.transfer"]),
        ("from qkv.backends.base import RUNS", ["qkv.backends.base"]),
        ("import qkv.inputs", ["qkv.inputs"]),
        ("from qkv.compat import attention", ["qkv.compat.attention"]),
        ("import qkv\nqkv.features.torch", ["qkv.features.torch"]),
        ("import qkv\ncache = qkv.KVCache(1, 1, 1)\ncache._evicted", ["_evicted"]),
        ("from qkv.grading import report", ["qkv.grading.report"]),
        ("import qkv\nqkv.theory.argmax.decides(3)\nqkv.cost.plan('x').parts[0].name", []),
    ],
)
def test_the_search_finds_what_is_not_public(source: str, wrong: list[str]) -> None:
    assert wrong_names(source) == wrong
