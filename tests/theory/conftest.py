"""Claims are made once per process, because their evidence and checks are slow."""

from collections.abc import Callable

import pytest

from qkv import theory
from qkv.theory import Claim

# Fewer draws and steps than `qkv prove` takes; whether recall learns is for `qkv prove recall` to say.
SMALLER = {"saturation": {"draws": 60_000, "steps": 2}, "recall": {"seeds": (0,), "widths": (16,), "steps": 25}}


@pytest.fixture(scope="session")
def made() -> Callable[[str], Claim]:
    """A claim by its name."""
    known: dict[str, Claim] = {}

    def claim(name: str) -> Claim:
        if name not in known:
            known[name] = theory.claims()[name](**SMALLER.get(name, {}))
        return known[name]

    return claim
