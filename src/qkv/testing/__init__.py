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
from .call_case import CallCase as CallCase
from .call_case import Spec as Spec
from .conditions import Conditions as Conditions
from .conditions import check_feature_map as check_feature_map
from .conditions import check_similarity as check_similarity
from .oracle import Oracle as Oracle
from .oracle import oracle as oracle
from .poison import layouts as layouts
from .poison import poison_masked as poison_masked
from .poison import poisoned_memory as poisoned_memory
from .tolerance import Budget as Budget
from .tolerance import ErrorBounds as ErrorBounds
from .tolerance import assert_argmax as assert_argmax
from .tolerance import assert_close_to_oracle as assert_close_to_oracle
from .tolerance import error_bounds as error_bounds
from .tolerance import error_in_ulp as error_in_ulp
from .tolerance import naive_attention as naive_attention
from .tolerance import ulp as ulp

_LAZY_MODULES = ("contract", "strategies")


def __getattr__(name: str) -> object:
    # Imported on first use: the contract imports all of qkv, the strategies need hypothesis.
    if name == "strategies" and find_spec("hypothesis") is None:
        raise MissingExtra("qkv.testing.strategies", "hypothesis", "testing")
    if name in _LAZY_MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module 'qkv.testing' has no attribute {name!r}")
