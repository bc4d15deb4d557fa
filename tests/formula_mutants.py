"""A formula with one thing in it wrong, for every thing: a test that none of them fails tests nothing."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from types import ModuleType

_OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}


def mutants(module: ModuleType, functions: set[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """(what is wrong, the module's names) with one integer one larger, or one operator another, in these functions."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in functions]
    assert len(bodies) == len(functions)
    places = [node for body in bodies for statement in body.body for node in ast.walk(statement) if _changes(node)]
    for place in places:
        before = copy.copy(place)
        _change(place)
        names: dict[str, object] = {"__name__": module.__name__, "__package__": module.__package__}
        exec(compile(tree, module.__file__, "exec"), names)  # the project's own source
        yield f"line {place.lineno}: {ast.unparse(place)}", names  # pyright: ignore[reportAttributeAccessIssue]
        place.__dict__.update(before.__dict__)


def _changes(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OTHER


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        node.value += 1
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = _OTHER[type(node.op)]()  # pyright: ignore[reportArgumentType]
