"""Chats into turns, and readers that find which answers stand in them. Reading never judges."""

from __future__ import annotations

from .chat import Chat, Turn
from .claims import AnswerClaim, Reader

__all__ = ["AnswerClaim", "Chat", "Reader", "Turn"]
