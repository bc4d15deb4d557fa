"""Exercises about attention: one record, solvers by the quantity that is asked, a bank of families, sheets read.

>>> from qkv.exercises import Asked, Exercise, Given, solve
>>> numbers = [Given(symbol="Q", role="query", value=[[1, 0]]), Given(symbol="K", role="key", value=[[1, 0], [0, 1]])]
>>> solve(Exercise(givens=numbers, asked=[Asked(quantity="scores")])).parts[0].answer.value
((1, 0),)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .findings import CannotSolve, Finding
from .record import Asked, Convention, Definition, Exercise, Given, Option, Structure, schema
from .solving import Also, Answer, Solution, Solved, quantities, solve

if TYPE_CHECKING:
    from . import bank
    from .bank import variant
    from .checking import check
    from .sheets import read_sheet

# Loaded when they are used: solving a record needs neither the bank nor the reader of sheets.
_LATER = {"check": "checking", "read_sheet": "sheets", "variant": "bank"}

__all__ = [
    "Also",
    "Answer",
    "Asked",
    "CannotSolve",
    "Convention",
    "Definition",
    "Exercise",
    "Finding",
    "Given",
    "Option",
    "Solution",
    "Solved",
    "Structure",
    "bank",
    "check",
    "quantities",
    "read_sheet",
    "schema",
    "solve",
    "variant",
]


def __getattr__(name: str) -> Any:
    if name == "bank":
        return import_module(".bank", __name__)
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
