"""Chats graded by mathematics: what was right at once, what needed correction, and who found the error.

>>> from qkv.grading import Row
>>> Row("1", "a", "one shot", first_right=2).label
'1(a)'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOME = {
    **dict.fromkeys(("GradeReport", "Judged", "Row", "grade"), "grade"),
    **dict.fromkeys(("from_bank", "from_chat", "from_sheet"), "questions"),
    "Dialogue": "dialogue",
    "Rule": "rules",
}

__all__ = ["Dialogue", "GradeReport", "Judged", "Row", "Rule", "from_bank", "from_chat", "from_sheet", "grade"]

if TYPE_CHECKING:
    from .dialogue import Dialogue
    from .grade import GradeReport, Judged, Row, grade
    from .questions import from_bank, from_chat, from_sheet
    from .rules import Rule


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'qkv.grading' has no attribute {name!r}; dir(qkv.grading) lists what there is")
    thing = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
