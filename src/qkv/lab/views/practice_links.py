"""Where else the numbers of an exercise are shown: addresses of Walk, Plan, Cache and Scale with the same values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ...errors import QkvError
from ..fields import typed

if TYPE_CHECKING:
    from ...exercises import Exercise

_TOKENS = {"tokens": "x", "query_weight": "wq", "key_weight": "wk", "value_weight": "wv"}
_GIVEN = {"query": "q", "key": "k", "value": "v"}
_SCALES = {"sqrt": {"scale": "root"}, "none": {}, None: {}}
_MASKS = {"none": {}, "causal": {"mask": "causal"}}
_LIMITED = re.compile(r"(causal & )?(?:window\((\d+), ?(\d+)\)|padding\((\d+)\))")
# What an exercise may have of which the walk shows nothing.
_UNSHOWN = ("mask", "bias", "scale", "temperature", "output_weight", "context")


def links(exercise: Exercise) -> list[dict[str, str]]:
    """Views that take what the exercise gives, each with its address; only states that the view can show."""
    asked = [*_walks(exercise), *_sizes(exercise), *_laws(exercise)]
    return [{"view": name, "address": f"/{name}?{urlencode(texts)}"} for name, texts in asked if _shows(name, texts)]


def _walks(exercise: Exercise) -> Iterator[tuple[str, dict[str, str]]]:
    """The walk with the same matrices, scale, mask and heads; none where it would show other numbers."""
    given = {each.role: each.value for each in exercise.givens if each.value is not None}
    structure, scale = exercise.structure, exercise.convention("scale")
    mask, similarity = _mask(structure.mask), structure.similarity
    if not isinstance(scale, str | None) or scale not in _SCALES or mask is None:
        return
    if similarity not in ("softmax", "argmax") or exercise.of_role(*_UNSHOWN):
        return
    # A definition may have a scale that is said nowhere else.
    if exercise.convention("layout", "rows") != "rows" or (exercise.definitions and scale is None):
        return
    heads = {"heads": exercise.size("heads"), "kvheads": exercise.size("kv_heads") or exercise.size("heads")}
    kept = {"similarity": similarity, **_SCALES[scale], **mask}
    kept |= {name: str(size) for name, size in heads.items() if size is not None}
    for source, names in (("x", _TOKENS), ("qkv", _GIVEN)):
        grids = {field: _grid(given.get(role)) for role, field in names.items()}
        if all(grids.values()):
            yield "walk", {"source": source, **kept, **grids}


def _mask(mask: str) -> dict[str, str] | None:
    if mask in _MASKS:
        return _MASKS[mask]
    if (found := _LIMITED.fullmatch(mask)) is None:
        return None
    causal, left, right, real = found.groups()
    name = f"{'causal-' if causal else ''}{'padding' if real else 'window'}"
    return {"mask": name, "lengths": real} if real else {"mask": name, "left": left, "right": right}


def _sizes(exercise: Exercise) -> Iterator[tuple[str, dict[str, str]]]:
    """A model that is named in Plan, one whose sizes are given in Cache."""
    given = {each.role: each.value for each in exercise.givens if each.value is not None}
    if isinstance(given.get("model"), str):
        asked = {"context": given.get("length"), "batch": given.get("batch"), "cache": given.get("dtype")}
        yield "plan", {"model": given["model"].lower(), **_said(asked)}
    elif isinstance(exercise.size("heads"), int) and isinstance(exercise.size("head_width"), int):
        roles = {"heads": "heads", "kvheads": "kv_heads", "width": "head_width", "layers": "layers", "past": "length"}
        sizes = {field: exercise.size(role) for field, role in roles.items()} | {"batch": given.get("batch")}
        sizes["kvheads"] = sizes["kvheads"] or sizes["heads"]
        yield "cache", _said(sizes | {"dtype": given.get("dtype")})


def _laws(exercise: Exercise) -> Iterator[tuple[str, dict[str, str]]]:
    """Scale at the width and the law of the components, where both are numbers."""
    from ...exercises.solvers.moments import read_law

    width = exercise.size("head_width") or exercise.size("width")
    if not isinstance(width, int) or exercise.of_role("heads", "layers"):
        return
    texts = {"d": str(width)}
    try:
        laws = {read_law(each.law) for each in exercise.givens if each.law}
        for law in laws if len(laws) == 1 else ():
            texts |= {"mu": str(float(law.mean)), "sigma": str(float(law.spread) ** 0.5)}
    except (QkvError, ValueError):
        return  # a law of symbols has no numbers to show
    yield "scale", texts


def _said(given: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}


def _shows(name: str, texts: dict[str, str]) -> bool:
    from . import view

    return typed(view(name).fields, texts).state is not None


def _grid(value: Any) -> str:
    """A matrix, or a row of numbers, as the walk's fields have it; nothing for all else."""
    rows = value if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)) else [value]
    if not all(isinstance(row, (list, tuple)) and row for row in rows):
        return ""
    return ";".join(",".join(str(entry) for entry in row) for row in rows)
