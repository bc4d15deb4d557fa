"""The lab: a local web page for exploring attention. Every number on it is computed by the library.

`qkv lab` opens it; `make_app` is the ASGI app behind its guard.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import MissingExtra

_PACKAGES = ("jinja2", "starlette", "uvicorn")

__all__ = ["make_app", "run"]

if TYPE_CHECKING:
    from .running import run
    from .server import make_app


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'qkv.lab' has no attribute {name!r}; it has make_app and run")
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise MissingExtra("the lab", " and ".join(missing), "lab")
    if name == "make_app":
        from .server import make_app

        return make_app
    from .running import run

    return run


def __dir__() -> list[str]:
    return [] if any(find_spec(package) is None for package in _PACKAGES) else sorted(__all__)
