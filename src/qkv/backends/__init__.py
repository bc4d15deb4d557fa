"""The algorithms that compute a call. A backend never changes the answer; each declares why it cannot run and its cost."""

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
