"""What attention costs before it runs: exact counts, formulas, plans and machines.

Importing this package loads neither torch nor SymPy; a name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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

# No module has the name of a public function: importing the module would hide the function.
_NAMES_OF_MODULE = {
    ".counting": "count layer step layer_listing step_listing",
    ".ledger": "Ledger Line",
    ".symbolic": "theta symbols text",
    ".architecture": "Model Latent models",
    ".blocks": "block model_cost parts",
    ".configs": "read_config config_model",
    ".machine": "Hardware hardware Machine use",
    ".variants": "past",
    ".planning": "Plan plan",
    ".scaling": "Scaling",
    ".communication": "Link links Spread Wire wire",
    "qkv.profiling.watch": "watch",
    "qkv.profiling.model_audit": "audit Audit",
    "qkv.profiling.files": "plan_file FilePlan",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}

__all__ = [*_MODULE_OF_NAME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'qkv.cost' has no attribute {name!r}; dir(qkv.cost) lists its names")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF_NAME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
