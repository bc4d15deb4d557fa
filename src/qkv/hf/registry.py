"""`register()`: makes "qkv" known to transformers, and has models refused that would never call it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ..errors import BackendRefused
from .interface import attend
from .patterns import ADDITIVE, pattern

NAME = "qkv"
_CALLS = "get_interface("
# A table of classes by implementation, which has no entry for another one.
_LOOKED_UP = re.compile(r"_CLASSES\[(self\.)?config\._attn_implementation\]")
_COMPUTES = ("softmax(", "scaled_dot_product_attention(", "baddbmm(")


def register() -> None:
    """Put "qkv" into transformers' registries of attention and of masks. May be called again.

    Afterwards `from_pretrained(..., attn_implementation="qkv")`, `from_config(..., attn_implementation="qkv")` and
    `model.set_attn_implementation("qkv")` run every attention layer on qkv. A model with a layer that computes
    attention by itself is refused by name, where transformers would let it run on as it is.

    >>> register()
    >>> from transformers import AttentionInterface
    >>> "qkv" in AttentionInterface()
    True
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, pattern)
    _watch("post_init", after=_when_built)
    _watch("_check_and_adjust_attn_implementation", before=_when_asked)
    _watch("set_attn_implementation", before=_when_asked)


def _when_asked(model: PreTrainedModel, attn_implementation: Any = None, *args: Any, **kwargs: Any) -> None:
    if attn_implementation == NAME:
        if not type(model)._can_set_attn_implementation() or _LOOKED_UP.search(_module_source(type(model))):
            raise _refused(model, f"{type(model).__module__} never asks transformers' registry of attention")
        if not model._supports_sdpa:
            ADDITIVE.add(type(model.config))
        check_layers(model)


def _when_built(model: PreTrainedModel) -> None:
    if not model._supports_sdpa:
        ADDITIVE.add(type(model.config))
    if getattr(model.config, "_attn_implementation", None) == NAME:
        check_layers(model)


def _watch(method: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None) -> None:
    """transformers has no hook for these moments, so its methods are wrapped, once."""
    original = getattr(PreTrainedModel, method)
    if getattr(original, "watched_by", None) == NAME:
        return

    @wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        if after is not None:
            after(self)
        return result

    watched.watched_by = NAME  # pyright: ignore[reportAttributeAccessIssue]
    setattr(PreTrainedModel, method, watched)


def _refused(model: nn.Module, reason: str) -> BackendRefused:
    hint = "use attn_implementation='eager' or 'sdpa'"
    return BackendRefused(f"{type(model).__name__}: qkv cannot serve this model: {reason}. Hint: {hint}.", (reason,))


def check_layers(model: nn.Module) -> None:
    """Refuse a model that has an attention layer which never asks transformers' registry."""
    for path, module in model.named_modules():
        kind = type(module)
        if "Attention" in kind.__name__ and _by_itself(kind) and not _has_served_parts(module):
            raise _refused(model, f"{path or 'it'} ({kind.__name__}) computes attention by itself")


def _has_served_parts(module: nn.Module) -> bool:
    return any(_CALLS in _source(type(part)) for part in module.modules() if part is not module)


@lru_cache
def _module_source(kind: type) -> str:
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):  # made in a session
        return ""


@lru_cache
def _by_itself(kind: type[nn.Module]) -> bool:
    source = _source(kind)
    return _CALLS not in source and any(word in source for word in _COMPUTES)


@lru_cache
def _source(kind: type[nn.Module]) -> str:
    """What the class and the classes of transformers that it is made of say."""
    texts = []
    for part in kind.__mro__:
        if part.__module__.startswith("torch.") or part is object:
            continue
        try:
            texts.append(inspect.getsource(part))
        except (OSError, TypeError):  # made in a session, or by a decorator
            continue
    return "\n".join(texts)
