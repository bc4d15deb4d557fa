"""Arrays as people write them (LaTeX, MATLAB, nested lists, plain rows), and NumPy constructors, never executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its keyword, its source text ("Q", "[1, 2]"), and its value where it is known."""

    text: str
    value: Any = None
    keyword: str = ""


@dataclass(frozen=True)
class Call:
    """A call of a function that is not interpreted.

    `targets` are the names that it is assigned to; `printed` says whether its result, or its only target, is printed
    or is the last expression of the code; `digits` is the number of decimals of a `round` around it.
    """

    function: str
    arguments: tuple[Argument, ...] = ()
    targets: tuple[str, ...] = ()
    printed: bool = False
    digits: int | None = None


@dataclass(frozen=True)
class Interpreted:
    """What a listing says: the values of its names as nested lists of numbers, the calls that are left, findings."""

    values: dict[str, Any] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    findings: tuple[Finding, ...] = ()


def interpret(code: str) -> Interpreted:
    """Interpret assignments of numbers and NumPy or PyTorch constructors; nothing is executed."""
    raise NotImplementedError


def read_array(text: str) -> Any:
    """A written number, vector or matrix as nested lists of ints, floats and texts ("1/3"); None for anything else."""
    raise NotImplementedError
