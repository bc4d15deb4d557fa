"""Attention, one equation: V'_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j).

Importing qkv imports neither torch nor transformers: names and subpackages load on first touch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_MODULE_OF_NAME = {
    "attention": "functional",
    "explain": "functional",
    "varlen": "functional",
    "KVCache": "cache.decode",  # not "cache.kv": decode.py registers the operator that a cache's handle needs
    "decode": "cache.decode",
    "attend": "cache.decode",
    "LinearState": "cache.decode",
    "Choice": "backends.dispatch",
    "Softmax": "similarity",
    "Sigmoid": "similarity",
    "Argmax": "similarity",
    "Polynomial": "similarity",
    "FeatureMap": "similarity",
    "Similarity": "similarity",
    "Decay": "states",
    "Gated": "states",
    "Delta": "states",
    "GatedDelta": "states",
    "KDA": "states",
    "Causal": "masks",
    "Window": "masks",
    "Padding": "masks",
    "Segments": "masks",
    "Dense": "masks",
    "Predicate": "masks",
}
_SUBMODULES = (
    "backends",
    "cache",
    "compat",
    "cost",
    "errors",
    "exercises",
    "features",
    "figures",
    "grading",
    "hf",
    "lab",
    "masks",
    "maths",
    "nn",
    "ops",
    "parallel",
    "profiling",
    "reading",
    "render",
    "runtime",
    "similarity",
    "states",
    "testing",
    "theory",
    "widgets",
)

__all__ = ["__version__", *_MODULE_OF_NAME, *_SUBMODULES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from . import (
        backends,
        cache,
        compat,
        cost,
        errors,
        exercises,
        features,
        figures,
        grading,
        hf,
        lab,
        masks,
        maths,
        nn,
        ops,
        parallel,
        profiling,
        reading,
        render,
        runtime,
        similarity,
        states,
        testing,
        theory,
        widgets,
    )
    from .backends.dispatch import Choice
    from .cache import KVCache, LinearState
    from .cache.decode import attend, decode
    from .functional import attention, explain, varlen
    from .masks import Causal, Dense, Padding, Predicate, Segments, Window
    from .similarity import Argmax, FeatureMap, Polynomial, Sigmoid, Similarity, Softmax
    from .states import KDA, Decay, Delta, Gated, GatedDelta


def __getattr__(name: str) -> object:
    if name in _MODULE_OF_NAME:
        thing = getattr(importlib.import_module(f".{_MODULE_OF_NAME[name]}", __name__), name)
    elif name in _SUBMODULES:
        thing = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}; dir(qkv) lists what there is")
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)
