"""Decoder-only transformers from GGUF and safetensors files, run without transformers: `load(path)`."""

from .model import Generated as Generated
from .model import Model as Model
from .model import ModelCache as ModelCache
from .model import load as load
