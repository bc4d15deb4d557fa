"""Imports go one way, packages without tensors do not import torch, and files keep to one idea."""

import ast
from pathlib import Path

import pytest

import qkv

pytestmark = pytest.mark.slow

PACKAGE = Path(qkv.__file__).parent

# A package imports only from packages before it.
ORDER = [
    "errors",
    "notebook",
    "shapes",
    "raw",
    "masks",
    "similarity",
    "forgetting",
    "scoring",
    "states",
    "cost",
    "ops",
    "features",
    "inputs",
    "backends",
    "cache",
    "functional",
    "compat",
    "nn",
    "hf",
    "runtime",
    "parallel",
    "testing",
    "profiling",
    "figures",
    "maths",
    "derivation",
    "render",
    "theory",
    "documents",
    "exercises",
    "web",
    "serving",
    "reading",
    "grading",
    "lab",
    "widgets",
    "mcp",
    "cli",
]
WITHOUT_TORCH = {
    "errors",
    "notebook",
    "masks",
    "similarity",
    "states",
    "cost",
    "figures",
    "maths",
    "derivation",
    "render",
    "documents",
    "exercises",
    "reading",
    "grading",
    "web",
    "lab",
    "widgets",
    "mcp",
}
MAX_LINES = 800  # of code: without blank lines, comments and docstrings


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, whether it is imported together with the file) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    late |= {
        id(n)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for n in ast.walk(branch)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(path.relative_to(PACKAGE.parent).parent.parts)
            stem = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
            stem = ".".join(filter(None, [stem, node.module]))
            found += [(f"{stem}.{alias.name}", id(node) not in late) for alias in node.names]
    return found


def lines_of_code(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documentation.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and not line.lstrip().startswith("#") and i not in documentation)


def test_imports_go_one_way() -> None:
    wrong = []
    for path in files():
        here = package_of(path)
        if here in ("__init__", "__main__"):
            continue
        assert here in ORDER, f"{here}: add it to ORDER"
        for name, _ in imports(path):
            parts = name.split(".")
            if parts[0] != "qkv" or len(parts) == 1 or parts[1] not in ORDER or parts[1] == here:
                continue
            if ORDER.index(parts[1]) > ORDER.index(here):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_packages_without_tensors_do_not_import_torch() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in files()
        if package_of(path) in WITHOUT_TORCH
        for name, at_import in imports(path)
        if at_import and name.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_not_too_long() -> None:
    long = {str(path.relative_to(PACKAGE)): lines_of_code(path) for path in files()}
    assert {name: count for name, count in long.items() if count > MAX_LINES} == {}
