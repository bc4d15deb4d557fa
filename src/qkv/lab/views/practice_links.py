"""Where else the numbers of an exercise can be looked at: addresses of Walk, Plan and Scale with the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ..fields import typed

if TYPE_CHECKING:
    from ...exercises import Exercise

_TOKENS = {"tokens": "x", "query_weight": "wq", "key_weight": "wk", "value_weight": "wv"}
_GIVEN = {"query": "q", "key": "k", "value": "v"}


def links(exercise: Exercise) -> list[dict[str, str]]:
    """Views that take what the exercise gives, each with its address; only states that the view can show."""
    given = {each.role: each.value for each in exercise.givens if each.value is not None}
    scale = exercise.conventions.get("scale")
    rooted = {"scale": "root"} if scale is not None and scale.value == "sqrt" else {}
    asked: list[tuple[str, dict[str, str]]] = []
    for source, names in (("x", _TOKENS), ("qkv", _GIVEN)):
        grids = {field: _grid(given.get(role)) for role, field in names.items()}
        if all(grids.values()):
            asked.append(("walk", {"source": source, **rooted, **grids}))
    if isinstance(given.get("model"), str):
        sizes = {"context": given.get("length"), "batch": given.get("batch"), "cache": given.get("dtype")}
        said = {name: str(value) for name, value in sizes.items() if value is not None}
        asked.append(("plan", {"model": given["model"].lower(), **said}))
    if isinstance(given.get("head_width"), int):
        asked.append(("scale", {"d": str(given["head_width"])}))
    return [{"view": name, "address": f"/{name}?{urlencode(texts)}"} for name, texts in asked if _shows(name, texts)]


def _shows(name: str, texts: dict[str, str]) -> bool:
    from . import view

    return typed(view(name).fields, texts).state is not None


def _grid(value: Any) -> str:
    """A matrix, or a row of numbers, as the walk's fields have it; nothing for all else."""
    rows = value if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)) else [value]
    if not all(isinstance(row, (list, tuple)) and row for row in rows):
        return ""
    return ";".join(",".join(str(entry) for entry in row) for row in rows)
