"""How a layer says that it cannot be served: by its name."""

from __future__ import annotations

from torch import nn

from ..errors import BackendRefused


def layer_name(module: nn.Module) -> str:
    """The class of an attention layer, and its number where it has one."""
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ if index is None else f"{type(module).__name__} {index}"


def refusal(module: nn.Module, reason: str) -> BackendRefused:
    """The error for a layer, with the reason."""
    return BackendRefused(f"{layer_name(module)}: qkv cannot serve this layer: {reason}.", (reason,))
