"""The formula of each stage of the walk, as MathML."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from ...problems.exact import Scale
from ..blocks import formula
from ..fields import State
from ..view import Result

_TYPES = {
    "N": "natural", "M": "natural", "D": "natural", "E": "natural", "W": "natural", "i": "index[N]", "j": "index[M]",
    "X": "matrix[N,W]", "W_Q": "matrix[W,D]", "W_K": "matrix[W,D]", "W_V": "matrix[W,E]",
    "Q": "matrix[N,D]", "K": "matrix[M,D]", "V": "matrix[M,E]",
    "q": "matrix[N,D]", "k": "matrix[M,D]", "v": "matrix[M,E]", "o": "matrix[N,E]",
    "z": "matrix[N,M]", "s": "matrix[N,M]", "a": "matrix[N,M]", "phi": "map vector[D] -> vector[D]",
}  # fmt: skip
_PRODUCTS = r"z_{i,j} = q_i^T k_j"
_SHARE = r"a_{i,j} = \frac{s_{i,j}}{\sum_{l=1}^M s_{i,l}}"
_SOFTMAX = r"a_{i,j} = \frac{e^{s_{i,j}}}{\sum_{l=1}^M e^{s_{i,l}}}"


def pictures(state: State, result: Result) -> dict[str, str]:
    kind = state["similarity"]
    shown = {
        "scores": _formula(_PRODUCTS),
        "similarity": _formula(_similarity(state, result)),
        "sums": _formula(r"o_i = \sum_{j=1}^M a_{i,j} v_j"),
    }
    # For Argmax the rule is a sentence: which index it takes among equals is no part of a formula.
    if kind != "argmax":
        shown["weights"] = _formula(_SOFTMAX if kind == "softmax" else _SHARE)
    if result["x"] is not None:
        shown |= {letter: _formula(f"{letter.upper()} = X W_{letter.upper()}") for letter in "qkv"}
    return shown


def _similarity(state: State, result: Result) -> str:
    match state["similarity"]:
        case "polynomial":
            offset = state["offset"]
            sign = "-" if offset < 0 else "+"
            plain = format(Decimal(repr(abs(offset))).normalize(), "f")  # no exponent: a formula would read e
            inside = f"z_{{i,j}} {sign} {plain}" if offset else "z_{i,j}"
            return f"s_{{i,j}} = ({inside})^{{{state['degree']}}}"
        case "elu1" | "relu":
            return r"s_{i,j} = \phi(q_i)^T \phi(k_j)"
    if result["factor"] == 1 or state["similarity"] == "argmax":
        return r"s_{i,j} = z_{i,j}"
    width = result["shape"]["width"]
    if math.isclose(result["factor"], float(Scale.by_root(width).value(Fraction(1)))):
        return rf"s_{{i,j}} = \frac{{z_{{i,j}}}}{{\sqrt{{{width}}}}}"
    return f"s_{{i,j}} = {result['factor']:.6f} z_{{i,j}}"


@lru_cache(maxsize=256)
def _formula(text: str) -> str:
    return formula(text, _TYPES)
