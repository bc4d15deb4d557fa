"""Attention, one equation: V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j).

Importing qkv imports neither torch nor transformers: names and subpackages load on first touch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME_OF_NAME = {
    "attention": "api",
    "explain": "api",
    "varlen": "api",
    "KVCache": "decoding",  # not "memory": whoever has one can run the operator that decoding serves
    "decode": "decoding",
    "LinearState": "decoding",
    "Choice": "choice",
    "Softmax": "similarity",
    "Argmax": "similarity",
    "Polynomial": "similarity",
    "FeatureMap": "similarity",
    "Similarity": "similarity",
    "Causal": "masks",
    "Window": "masks",
    "Padding": "masks",
    "Segments": "masks",
    "Dense": "masks",
    "Predicate": "masks",
}
_ROOMS = (
    "compat",
    "cost",
    "errors",
    "features",
    "figures",
    "forms",
    "hf",
    "kernels",
    "lab",
    "masks",
    "maths",
    "memory",
    "nn",
    "parallel",
    "problems",
    "render",
    "similarity",
    "testing",
    "theory",
    "tutor",
)

__all__ = ["__version__", *_HOME_OF_NAME, *_ROOMS]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from . import (
        compat,
        cost,
        errors,
        features,
        figures,
        forms,
        hf,
        kernels,
        lab,
        masks,
        maths,
        memory,
        nn,
        parallel,
        problems,
        render,
        similarity,
        testing,
        theory,
        tutor,
    )
    from .api import attention, explain, varlen
    from .choice import Choice
    from .decoding import decode
    from .masks import Causal, Dense, Padding, Predicate, Segments, Window
    from .memory import KVCache, LinearState
    from .similarity import Argmax, FeatureMap, Polynomial, Similarity, Softmax


def __getattr__(name: str) -> object:
    if name in _HOME_OF_NAME:
        thing = getattr(importlib.import_module(f".{_HOME_OF_NAME[name]}", __name__), name)
    elif name in _ROOMS:
        thing = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}; dir(qkv) lists what there is")
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
