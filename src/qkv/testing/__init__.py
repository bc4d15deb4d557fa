"""What qkv is held to, in public, so that others can hold their own kernels to it.

- `oracle`: the right answer, in float64, by the definition.
- `tolerance`: how far from it an answer may be, and why.
- `contract`: every promise as a check of any attention with `qkv.attention`'s signature.
- `poison`: numbers that must not matter, cache that must not be read, the same numbers in many layouts.
- `conditions`: what a user's similarity function or feature map has to be.
- `strategies`: Hypothesis strategies for calls; the only part that needs hypothesis.
"""

from __future__ import annotations

from importlib import import_module

from .cases import CallCase
from .conditions import Conditions, check_feature_map, check_similarity
from .oracle import Oracle, oracle
from .plain import plain_dense
from .poison import layouts, poison_masked, poisoned_memory
from .specs import Spec
from .tolerance import Budget, Yardstick, assert_argmax, assert_close_to_oracle, error_in_ulp, ulp, yardstick

_ROOMS = ("contract", "strategies")

__all__ = [
    "Budget",
    "CallCase",
    "Conditions",
    "Oracle",
    "Spec",
    "Yardstick",
    "assert_argmax",
    "assert_close_to_oracle",
    "check_feature_map",
    "check_similarity",
    "error_in_ulp",
    "layouts",
    "oracle",
    "plain_dense",
    "poison_masked",
    "poisoned_memory",
    "ulp",
    "yardstick",
]


def __getattr__(name: str) -> object:
    # The contract loads all of qkv, the strategies need hypothesis: both on first touch.
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'qkv.testing' has no attribute {name!r}")
