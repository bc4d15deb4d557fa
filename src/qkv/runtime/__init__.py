"""Decoder-only transformers from GGUF and safetensors files, run without transformers: `load(path)`."""

from .constraints import Constraint as Constraint
from .model import Model as Model
from .model import ModelCache as ModelCache
from .model import load as load
from .prefixes import PrefixStore as PrefixStore
from .rows import Generated as Generated
from .rows import Row as Row

__all__ = ["Constraint", "Generated", "Model", "ModelCache", "PrefixStore", "Row", "load"]
