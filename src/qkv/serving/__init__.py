"""`qkv serve`: a local model at an OpenAI-compatible address, with continuous batching on one paged cache."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingExtra

_PACKAGES = ("jinja2", "starlette", "tokenizers", "uvicorn")

__all__ = ["Engine", "Limits", "run"]

if TYPE_CHECKING:
    from .engine import Engine
    from .limits import Limits
    from .running import run


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'qkv.serving' has no attribute {name!r}; it has {', '.join(__all__)}")
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise MissingExtra("qkv serve", " and ".join(missing), "serve")
    from . import engine, limits, running

    return {"Engine": engine.Engine, "Limits": limits.Limits, "run": running.run}[name]


def __dir__() -> list[str]:
    return sorted(__all__)
