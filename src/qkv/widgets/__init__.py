"""Widgets for notebooks: `Walk` steps through one attention, in JupyterLab and wherever anywidget runs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingExtra

__all__ = ["Walk"]

if TYPE_CHECKING:
    from .walk import Walk


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'qkv.widgets' has no attribute {name!r}; it has Walk")
    if find_spec("anywidget") is None:
        raise MissingExtra("qkv.widgets", "anywidget", "notebook")
    from .walk import Walk

    return Walk


def __dir__() -> list[str]:
    return sorted(__all__)
