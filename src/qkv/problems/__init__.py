"""The problem bank: every question of the source documents, worked, with fresh variants and judged answers.

>>> from qkv import problems
>>> problem = problems.named("scaling")
>>> problem.check("a", r"\\mu^T \\mu").kind, problem.check("a", r"d \\mu^2").misconceptions
('right', ('mean read as a scalar',))
"""

from __future__ import annotations

from .catalogue import Match, bank, named, names, recognise
from .misconceptions import MISCONCEPTIONS
from .outcome import Outcome
from .problem import Misconception, Part, Problem, Solution, Solved, Step

__all__ = [
    "MISCONCEPTIONS",
    "Match",
    "Misconception",
    "Outcome",
    "Part",
    "Problem",
    "Solution",
    "Solved",
    "Step",
    "bank",
    "named",
    "names",
    "recognise",
]
