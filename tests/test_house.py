"""Imports go one way. A room may call on the rooms below it, never up and never in a ring."""

import ast
from pathlib import Path

import pytest

import qkv

PACKAGE = Path(qkv.__file__).parent

# From the ground up: a room may import from rooms that stand before it, where ALLOWED does not say less.
FLOORS = [
    "errors",
    "shapes",
    "sizes",
    "masks",
    "similarity",
    "features",
    "cost",
    "kernels",
    "maps",
    "cache",
    "call",
    "backends",
    "choice",
    "step",
    "engines",
    "decoding",
    "api",
    "compat",
    "nn",
    "hf",
    "parallel",
    "testing",
    "measure",
    "figures",
    "maths",
    "render",
    "theory",
    "problems",
    "tutor",
    "lab",
    "cli",
]
NEVER_TORCH = {
    "errors",
    "sizes",
    "masks",
    "similarity",
    "cost",
    "figures",
    "maths",
    "render",
    "problems",
    "tutor",
    "lab",
}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, whether it is imported when the file is) of every import in a file."""
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


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    assert here in FLOORS, f"{here} has no floor: say in FLOORS where it stands"
    for name, _ in imported(path):
        parts = name.split(".")
        if parts[0] != "qkv" or len(parts) == 1 or parts[1] not in FLOORS or parts[1] == here:
            continue
        assert FLOORS.index(parts[1]) < FLOORS.index(here), f"{path.name} of {here} calls up on {parts[1]}"


@pytest.mark.parametrize(
    "path", [p for p in files() if room(p) in NEVER_TORCH], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_rooms_without_torch_do_not_import_it_at_the_door(path: Path) -> None:
    assert not [name for name, at_import in imported(path) if at_import and name.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
