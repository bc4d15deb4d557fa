"""The .toml files that come with this package."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def shipped(name: str) -> dict[str, Any]:
    """A file of this folder, read once. Nobody changes what comes back."""
    return tomllib.loads(files("qkv.cost").joinpath(name).read_text(encoding="utf-8"))
