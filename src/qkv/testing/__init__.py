"""The tools that test qkv, public so that other attention kernels can be tested with them.

- `oracle`: the right answer in float64, computed from the definition.
- `tolerance`: how far from it an answer may be, and why.
- `contract`: every promise as a check of any function with `qkv.attention`'s signature.
- `poison`: NaN in numbers that must not matter and memory that must not be read; one tensor in many layouts.
- `conditions`: checks of a similarity function or feature map.
- `strategies`: Hypothesis strategies for calls; the only part that needs hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from ..errors import MissingExtra
from .call_case import CallCase, Spec
from .conditions import Conditions, check_feature_map, check_similarity
from .oracle import Oracle, oracle
from .poison import layouts, poison_masked, poisoned_memory
from .tolerance import Budget, ErrorBounds, assert_argmax, assert_close_to_oracle, error_bounds, error_in_ulp
from .tolerance import naive_attention as naive_attention
from .tolerance import ulp as ulp

__all__ = ["Budget", "CallCase", "Conditions", "ErrorBounds", "Oracle", "Spec", "assert_argmax"]
__all__ += ["assert_close_to_oracle", "check_feature_map", "check_similarity", "error_bounds", "error_in_ulp"]
__all__ += ["layouts", "naive_attention", "oracle", "poison_masked", "poisoned_memory", "ulp"]


def __getattr__(name: str) -> object:
    # Imported on first use: the contract imports all of qkv, the strategies need hypothesis.
    if name == "strategies" and find_spec("hypothesis") is None:
        raise MissingExtra("qkv.testing.strategies", "hypothesis", "testing")
    if name in ("contract", "strategies"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'qkv.testing' has no attribute {name!r}")
