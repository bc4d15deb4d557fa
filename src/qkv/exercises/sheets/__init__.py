"""Sheets of exercises into records: questions, what they give, what they ask."""

from __future__ import annotations

from .reading import Reading, read_question, read_sheet

__all__ = ["Reading", "read_question", "read_sheet"]
