"""Patterns and words that are kept as data: a TOML file next to the code that uses it."""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from importlib.resources import files
from typing import Any


class Table:
    """A TOML file of a package. Its patterns are compiled when they are first used, with its parts put in.

    Args:
        package: The package that holds the file.
        file: The file's name. `[patterns]` are texts or lists of alternatives, `[parts]` what "{name}" stands for in
            them; whatever else the file has is in `data`.
        flags: Flags of every pattern.

    >>> Table(__package__, "patterns.toml")["blank_lines"].pattern
    '\\\\n[ ]*\\\\n(?:[ ]*\\\\n)+'
    """

    def __init__(self, package: str, file: str, flags: int = re.MULTILINE) -> None:
        self.package, self.file, self.flags = package, file, flags
        self.compiled: dict[str, re.Pattern[str]] = {}

    @cached_property
    def data(self) -> dict[str, Any]:
        return tomllib.loads(files(self.package).joinpath(self.file).read_text(encoding="utf-8"))

    def __getitem__(self, name: str) -> re.Pattern[str]:
        if name not in self.compiled:
            self.compiled[name] = re.compile(self.filled(f"{{{name}}}"), self.flags)
        return self.compiled[name]

    def filled(self, pattern: str | list[str]) -> str:
        """A pattern with its parts put in, and theirs."""
        known = self.data["patterns"] | self.data["parts"]
        text = pattern if isinstance(pattern, str) else "|".join(pattern)
        return re.sub(r"\{([A-Za-z]\w*)\}", lambda name: self.filled(known.get(name[1], "")) or name.group(), text)
