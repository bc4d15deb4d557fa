"""Transcripts of tutoring: read from whatever a chat was saved by, and graded by mathematics.

>>> from qkv import tutor
>>> chat = tutor.read("Student: Which of two roots is meant?\\n\\nTutor: The positive one.")
>>> [turn.speaker for turn in chat.turns]
['student', 'tutor']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOME_OF_NAME = {
    **dict.fromkeys(("Transcript", "Turn", "read", "read_all"), "transcript"),
    **dict.fromkeys(("Error", "Ledger", "Row", "grade"), "ledger"),
    "insights": "for_class",
}

__all__ = ["Error", "Ledger", "Row", "Transcript", "Turn", "grade", "insights", "read", "read_all"]

if TYPE_CHECKING:
    from .for_class import insights
    from .ledger import Error, Ledger, Row, grade
    from .transcript import Transcript, Turn, read, read_all


def __getattr__(name: str) -> object:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module 'qkv.tutor' has no attribute {name!r}; dir(qkv.tutor) lists what there is")
    module = importlib.import_module(f".{_HOME_OF_NAME[name]}", __name__)
    thing = getattr(module, name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
