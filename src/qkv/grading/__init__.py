"""Chats graded by mathematics: what was right at once, what needed correction, and who found the error.

>>> from qkv.grading import Row
>>> Row("1", "a", "one shot", first_right=2).label
'1(a)'
"""

from __future__ import annotations

from .dialogue import Dialogue
from .grade import GradeReport, Judged, Row, grade
from .questions import from_bank, from_chat, from_sheet
from .rules import Rule

__all__ = ["Dialogue", "GradeReport", "Judged", "Row", "Rule", "from_bank", "from_chat", "from_sheet", "grade"]
