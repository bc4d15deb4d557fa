"""The backends: each computes attention by another algorithm, and all give the same answer.

A backend declares what it lacks, from which the reasons against a call are written, and what a call costs; `dispatch`
picks one. `register` adds another.
"""

from __future__ import annotations

from ..inputs import BACKEND_NAMES
from .argmax import ARGMAX
from .base import CHOSEN, Backend
from .blockwise import BLOCKWISE
from .linear import LINEAR
from .native import NATIVE
from .reference import REFERENCE
from .sdpa import SDPA

BACKENDS: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Make a backend known: `backend=` takes its name, `auto` considers it, `explain` lists it.

    Args:
        backend: a new one, or one that replaces another of the same name.
    """
    if backend.name not in BACKENDS:
        BACKEND_NAMES.append(backend.name)
    BACKENDS[backend.name] = backend
    CHOSEN.clear()


for _backend in (REFERENCE, SDPA, BLOCKWISE, LINEAR, ARGMAX, NATIVE):
    register(_backend)

__all__ = ["BACKENDS", "Backend", "register"]
