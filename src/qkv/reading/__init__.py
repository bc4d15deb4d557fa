"""Chats into turns, and readers that find which answers stand in them. Reading never judges."""

from __future__ import annotations

from .chat import Chat, Turn, read_chat
from .claims import AnswerClaim, Reader
from .explicit import ExplicitReader

__all__ = ["AnswerClaim", "Chat", "ExplicitReader", "Reader", "Turn", "read_chat"]
