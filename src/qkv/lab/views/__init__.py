"""The views, in the order of the page; each is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from functools import cache

from ..view import View

NAMES = (
    "start",
    "walk",
    "scale",
    "cache",
    "plan",
    "kernels",
    "reach",
    "norms",
    "solve",
    "practice",
    "transcript",
    "model",
    "generate",
)


@cache
def view(name: str) -> View:
    """The view of that name; KeyError for any other."""
    if name not in NAMES:
        raise KeyError(name)
    return importlib.import_module(f"{__name__}.{name}").VIEW


def every() -> list[View]:
    return [view(name) for name in NAMES]
