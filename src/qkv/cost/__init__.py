"""What attention costs, before it runs: formula, exact count and measurement.

Nothing here loads torch or SymPy before it is asked for something that needs them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

_HOME_OF_NAME = {
    "count": "counting",
    "layer": "layers",
    "step": "layers",
    "layer_listing": "layers",
    "step_listing": "layers",
    "Ledger": "ledger",
    "Line": "ledger",
    "theta": "symbols",
    "symbols": "symbols",
    "text": "symbols",
    "Model": "architecture",
    "Latent": "architecture",
    "block": "blocks",
    "model_cost": "blocks",
    "parts": "blocks",
    "models": "models",
    "read_config": "configs",
    "config_model": "configs",
    "Hardware": "hardware",
    "hardware": "hardware",
    "past": "past",
    "Plan": "planning",
    "plan": "planning",
    "Scaling": "scaling",
    "Link": "links",
    "links": "links",
    "Spread": "wire",
    "Wire": "wire",
    "wire": "wire",
    "Machine": "machine",
    "use": "machine",
    "watch": "qkv.profiling.watch",
    "audit": "qkv.profiling.audit",
    "Audit": "qkv.profiling.audit",
}

__all__ = [*_HOME_OF_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from .architecture import Latent, Model
    from .blocks import block, model_cost, parts
    from .configs import config_model, read_config
    from .counting import count
    from .hardware import Hardware, hardware
    from .layers import layer, layer_listing, step, step_listing
    from .ledger import Ledger, Line
    from .links import Link, links
    from .machine import Machine, use
    from .models import models
    from .past import past
    from .planning import Plan, plan
    from .scaling import Scaling
    from .symbols import symbols, text, theta
    from .wire import Spread, Wire, wire


def __getattr__(name: str) -> object:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}; dir(qkv.cost) lists what there is")
    home = _HOME_OF_NAME[name]
    thing = getattr(importlib.import_module(home if "." in home else f".{home}", __name__), name)
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted(__all__)


class _Door(ModuleType):
    """A file and the function that it is named after, `qkv.cost.symbols` for instance: the function keeps the name,
    whoever imports the file first."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF_NAME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
