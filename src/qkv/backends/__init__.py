"""The backends: each computes attention by another algorithm, and all give the same answer.

A backend declares why it cannot run a call (`reasons_against`) and what the call costs; `dispatch` picks one.
"""

from __future__ import annotations

from .argmax import ARGMAX
from .base import Backend
from .blockwise import BLOCKWISE
from .linear import LINEAR
from .native import NATIVE
from .reference import REFERENCE
from .sdpa import SDPA

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (REFERENCE, SDPA, BLOCKWISE, LINEAR, ARGMAX, NATIVE)
}

__all__ = ["BACKENDS", "Backend"]
