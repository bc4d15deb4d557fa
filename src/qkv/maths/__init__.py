"""Typed mathematics: texts are parsed into trees in which every node has a shape, and trees are compared by proof.

>>> from qkv.maths import compare, parse
>>> parse(r"\\mu \\mu^T", {"mu": "vector[d]"}).shape
('d', 'd')
>>> print(compare(r"\\mu^T \\mu", "Σ_i μ_i²", {"mu": "vector[d]"}).kind)
equal
"""

from __future__ import annotations

from qkv.errors import IllTyped, Unreadable
from qkv.maths.comparison.bounds import holds
from qkv.maths.comparison.verdict import Verdict, compare, equal
from qkv.maths.parsing.parse import parse
from qkv.maths.printing import latex, plain

__all__ = ["IllTyped", "Unreadable", "Verdict", "compare", "equal", "holds", "latex", "parse", "plain"]
