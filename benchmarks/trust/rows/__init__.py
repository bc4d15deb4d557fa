"""The rows of the table of faults, with a probe each: it returns what it saw, and raises if it is wrong."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FILES = (
    "values", "masks", "shapes", "layouts", "options", "sizes", "caches", "processes", "files", "lab_and_cli",
)  # fmt: skip


Probe = Callable[[Any], str | None]


@dataclass(frozen=True)
class Row:
    number: int
    title: str  # at most 44 characters, for the table
    probe: Probe
    alone: bool = False  # in a process that does nothing before or after it
    seconds: int = 240  # until it counts as hung


_ROWS: dict[int, Row] = {}


def row(number: int, title: str, **options: Any) -> Callable[[Probe], Probe]:
    def enter(probe: Probe) -> Probe:
        assert number not in _ROWS, f"row {number} has two probes"
        _ROWS[number] = Row(number, title, probe, **options)
        return probe

    return enter


def rows() -> dict[int, Row]:
    """All of them, by their number."""
    for name in FILES:
        importlib.import_module(f"{__name__}.{name}")
    return dict(sorted(_ROWS.items()))
