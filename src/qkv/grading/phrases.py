"""The patterns of the chats' English, kept as data."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def phrases() -> dict[str, Any]:
    """phrases.toml: patterns by name, and the rules that a student may set."""
    return tomllib.loads(files("qkv.grading").joinpath("phrases.toml").read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """A pattern by its name."""
    return re.compile(phrases()["patterns"][name], re.IGNORECASE | re.MULTILINE)
