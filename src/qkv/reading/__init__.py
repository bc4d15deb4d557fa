"""Chats into turns, and readers that find which answers stand in them. Reading never judges."""

from __future__ import annotations

from .chat import Chat, Turn, read_chat, read_chats
from .claims import AnswerClaim, Reader
from .explicit import ExplicitReader
from .replay import ReplayReader, from_quotes, record

__all__ = [
    "AnswerClaim",
    "Chat",
    "ExplicitReader",
    "Reader",
    "ReplayReader",
    "Turn",
    "from_quotes",
    "read_chat",
    "read_chats",
    "record",
]
