"""The lab: one local page on which attention can be touched. Every number on it is computed by the library.

`qkv lab` opens it; `make_app` is the ASGI app behind its guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["make_app", "run"]

if TYPE_CHECKING:
    from .running import run
    from .server import make_app


def __getattr__(name: str) -> object:
    if name == "make_app":
        from .server import make_app

        return make_app
    if name == "run":
        from .running import run

        return run
    raise AttributeError(f"module 'qkv.lab' has no attribute {name!r}; it has make_app and run")
