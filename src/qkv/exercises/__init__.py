"""Exercises about attention: one record, solvers by the quantity that is asked, a bank of families, sheets read.

>>> from qkv.exercises import Asked, Exercise, Given, solve
>>> numbers = [Given(symbol="Q", role="query", value=[[1, 0]]), Given(symbol="K", role="key", value=[[1, 0], [0, 1]])]
>>> solve(Exercise(givens=numbers, asked=[Asked(quantity="scores")])).parts[0].answer.value
((1, 0),)
"""

from __future__ import annotations

from .findings import CannotSolve, Finding
from .record import Asked, Convention, Definition, Exercise, Given, Option, Structure, schema
from .solving import Also, Answer, Solution, Solved, quantities, solve

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
    "quantities",
    "schema",
    "solve",
]
