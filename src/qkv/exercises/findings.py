"""What was found, as a code and data: words are written from it at the edge, with or without the answer.

No code reads the words back.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import QkvError


@dataclass(frozen=True)
class Finding:
    """`code` names what was found, an entry of findings.toml; `data` is what its words are filled with."""

    code: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def words(self, *, spoilers: bool = True) -> str:
        """The finding in a sentence; without spoilers, nothing of the right answer is in it.

        >>> Finding("missing", {"needs": "a value matrix"}).words()
        'a value matrix is needed and not given'
        """
        entry = _entries()[self.code]
        template = entry["words"] if spoilers else entry.get("discreet", entry["words"])
        return template.format_map(_Shown(self.data))

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "data": {name: _plain(value) for name, value in self.data.items()}}


class CannotSolve(QkvError, ValueError):
    """A question that no solver answers as it stands; `finding` says why and what would be needed."""

    def __init__(self, code: str, **data: Any) -> None:
        self.finding = Finding(code, data)
        super().__init__(self.finding.words())


def refuse(when: Any, code: str, **data: Any) -> None:
    """Raise CannotSolve where a condition holds."""
    if when:
        raise CannotSolve(code, **data)


class _Shown(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "?"


@cache
def _entries() -> dict[str, dict[str, str]]:
    return tomllib.loads(files("qkv.exercises").joinpath("findings.toml").read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
