"""Claims about attention: stated, derived line by line, tested, and drawn.

Each function returns a `Claim`; `claims()` lists them in reading order; `qkv prove` runs them.

>>> from qkv import theory
>>> list(theory.claims())
['products', 'scores', 'saturation', 'argmax', 'kernels', 'chunks', 'reach', 'normalisation', 'recall']
"""

from __future__ import annotations

from collections.abc import Callable

from .argmax import argmax
from .chunks import chunks
from .claim import Claim, Correction, Evidence
from .kernels import kernels
from .normalisation import normalisation
from .products import products
from .reach import reach
from .recall import recall
from .saturation import saturation
from .scores import scores

__all__ = [
    "Claim",
    "Correction",
    "Evidence",
    "argmax",
    "chunks",
    "claims",
    "kernels",
    "normalisation",
    "products",
    "reach",
    "recall",
    "saturation",
    "scores",
]


def claims() -> dict[str, Callable[..., Claim]]:
    """The functions by name, in reading order: from one score to a stack of layers, then training.

    Returns:
        A function for each claim.
    """
    ordered = (products, scores, saturation, argmax, kernels, chunks, reach, normalisation, recall)
    return {claim.__name__: claim for claim in ordered}
