"""What attention costs before it runs: exact counts, formulas, plans and machines.

Importing this package loads neither torch nor SymPy; a name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# No module has the name of a public function: importing the module would hide the function.
_MODULE_OF_NAME = {
    "count": "counting",
    "layer": "counting",
    "step": "counting",
    "layer_listing": "counting",
    "step_listing": "counting",
    "Ledger": "ledger",
    "Line": "ledger",
    "theta": "symbolic",
    "symbols": "symbolic",
    "text": "symbolic",
    "Model": "architecture",
    "Latent": "architecture",
    "models": "architecture",
    "block": "blocks",
    "model_cost": "blocks",
    "parts": "blocks",
    "read_config": "configs",
    "config_model": "configs",
    "Hardware": "machine",
    "hardware": "machine",
    "past": "variants",
    "Plan": "planning",
    "plan": "planning",
    "Scaling": "scaling",
    "Link": "communication",
    "links": "communication",
    "Spread": "communication",
    "Wire": "communication",
    "wire": "communication",
    "Machine": "machine",
    "use": "machine",
    "watch": "qkv.profiling.watch",
    "audit": "qkv.profiling.model_audit",
    "Audit": "qkv.profiling.model_audit",
    "plan_file": "qkv.profiling.files",
    "FilePlan": "qkv.profiling.files",
}

__all__ = [*_MODULE_OF_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from .architecture import Latent, Model, models
    from .blocks import block, model_cost, parts
    from .communication import Link, Spread, Wire, links, wire
    from .configs import config_model, read_config
    from .counting import count, layer, layer_listing, step, step_listing
    from .ledger import Ledger, Line
    from .machine import Hardware, Machine, hardware, use
    from .planning import Plan, plan
    from .scaling import Scaling
    from .symbolic import symbols, text, theta
    from .variants import past


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}; dir(qkv.cost) lists its names")
    module = _MODULE_OF_NAME[name]
    value = getattr(importlib.import_module(module if "." in module else f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
