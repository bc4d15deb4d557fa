"""The function that transformers calls for every attention layer when a model is set to "qkv"."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils import output_capturing
from transformers.utils.generic import TransformersKwargs

from ..errors import BackendRefused
from ..functional import attention
from ..masks import Causal, Mask, Window
from ..similarity import Softmax
from .layers import PagedStates, layer_refused, match_dtype
from .masks import ADDITIVE_MASK_CONFIGS, LazyMask, join_masks, make_mask, read_mask_tensor

_LAYER_CALLS: Counter[tuple[str, int | None]] = Counter()

# What models pass on to their layers, and what says nothing about attention that the mask has not said already.
_KNOWN = frozenset(TransformersKwargs.__annotations__) | {
    "cache_position",
    "deterministic",
    "labels",
    "logits_to_keep",
    "output_router_logits",
    "position_embeddings",
    "past_key_values",
    "return_dict",
    "token_type_ids",
    "use_cache",
}


def layer_calls() -> Counter[str]:
    """How often each attention layer was served since `served_reset()`: "LlamaAttention 0" and so on.

    >>> served_reset()
    >>> served()
    Counter()
    """
    return Counter({name if index is None else f"{name} {index}": n for (name, index), n in _LAYER_CALLS.items()})


def reset_layer_calls() -> None:
    """Count from zero again."""
    _LAYER_CALLS.clear()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """(batch, heads, n, width) in, (batch, n, heads, value width) out, and the weights if they were asked for.

    key and value are the tensors of transformers' caches, or stand for what a `qkv.hf.cache` holds.
    """
    for name, given in others.items():
        if name not in _KNOWN and given is not None:
            raise layer_refused(module, f"it passes {name}=, and nobody here knows what that does to attention")
    if others.get("cu_seq_lens_q") is not None:
        _check_packing(module, others["cu_seq_lens_q"], attention_mask)
    want_weights = bool(output_attentions) or _recording_weights()
    similarity = _softmax(scaling, softcap) if s_aux is None else Softmax(scaling, softcap, s_aux)
    bias = None if position_bias is None else position_bias.to(query.dtype)
    if type(key) is PagedStates:
        if dropout:
            raise layer_refused(module, "dropout and a qkv.hf.cache do not go together; model.eval() turns dropout off")
        if is_causal is False and query.shape[2] > 1 and not isinstance(attention_mask, Tensor):
            raise layer_refused(module, "it is not causal, and a cache is; run it without past_key_values")
        out, weights = key.layer.attend(module, query, key, value, attention_mask, similarity, bias, want_weights)
    else:
        key, value = match_dtype(query, key, value)
        mask, added = _read_mask(module, query, key, attention_mask, is_causal, sliding_window)
        bias = added if bias is None else bias if added is None else bias + added
        if bias is not None and bias.shape[-1] > key.shape[2]:
            bias = bias[..., : key.shape[2]]
        answer: Any = attention(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout,
            return_lse=False, return_weights=want_weights,
        )  # fmt: skip
        out, weights = answer if isinstance(answer, tuple) else (answer, None)
    _LAYER_CALLS[type(module).__name__, getattr(module, "layer_idx", None)] += 1
    return out.transpose(1, 2).contiguous(), weights


def _recording_weights() -> bool:
    """Whether transformers is recording weights: not every model passes output_attentions on to its layers."""
    collector = output_capturing._active_collector.get()
    return collector is not None and any(name.endswith("attentions") for name in collector)


@lru_cache
def _softmax(scale: float | None, softcap: float | None) -> Softmax:
    """The same object for the same numbers, so that a step is known again."""
    return Softmax(scale, softcap)


def _read_mask(
    module: nn.Module, query: Tensor, key: Tensor, given: Any, is_causal: bool | None, window: int | None
) -> tuple[Mask | None, Tensor | None]:
    """A mask for these tensors, and what is added to the scores."""
    if isinstance(given, LazyMask):
        return given.mask(), None
    if given is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or query.shape[2] == 1:
            return None, None
        # Without a mask, what stands behind the queries is a static cache's empty places.
        sides = [] if window is None else [Window(left=window - 1, offset=0)]
        return join_masks([Causal(offset=0), *sides]), None
    return read_mask_tensor(query, given, key.shape[2])


def _check_packing(module: nn.Module, edges: Tensor, given: Any) -> None:
    """Several documents in one row, and no mask that keeps them apart."""
    if edges.numel() > 2 and not (isinstance(given, LazyMask) and given.rules.others):
        reason = "cu_seq_lens_q= packs several documents, and position_ids= do not say where each begins"
        raise layer_refused(module, reason)


NAME = "qkv"
_REGISTRY_CALL = "get_interface("
# A table of classes by implementation, which has no entry for another one.
_CLASS_TABLE = re.compile(r"_CLASSES\[(self\.)?config\._attn_implementation\]")
_ATTENTION_OPS = ("softmax(", "scaled_dot_product_attention(", "baddbmm(")


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
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, make_mask)
    _wrap_method("post_init", after=_after_init)
    _wrap_method("_check_and_adjust_attn_implementation", before=_before_set)
    _wrap_method("set_attn_implementation", before=_before_set)


def _before_set(model: PreTrainedModel, attn_implementation: Any = None, *args: Any, **kwargs: Any) -> None:
    if attn_implementation == NAME:
        if not type(model)._can_set_attn_implementation() or _CLASS_TABLE.search(_module_source(type(model))):
            raise _model_refused(model, f"{type(model).__module__} never asks transformers' registry of attention")
        if not model._supports_sdpa:
            ADDITIVE_MASK_CONFIGS.add(type(model.config))
        check_layers(model)


def _after_init(model: PreTrainedModel) -> None:
    if not model._supports_sdpa:
        ADDITIVE_MASK_CONFIGS.add(type(model.config))
    if getattr(model.config, "_attn_implementation", None) == NAME:
        check_layers(model)


def _wrap_method(
    method: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
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


def _model_refused(model: nn.Module, reason: str) -> BackendRefused:
    hint = "use attn_implementation='eager' or 'sdpa'"
    return BackendRefused(f"{type(model).__name__}: qkv cannot serve this model: {reason}. Hint: {hint}.", (reason,))


def check_layers(model: nn.Module) -> None:
    """Refuse a model that has an attention layer which never asks transformers' registry."""
    for path, module in model.named_modules():
        kind = type(module)
        if "Attention" in kind.__name__ and _computes_attention(kind) and not _has_registered_parts(module):
            raise _model_refused(model, f"{path or 'it'} ({kind.__name__}) computes attention by itself")


def _has_registered_parts(module: nn.Module) -> bool:
    return any(_REGISTRY_CALL in _source(type(part)) for part in module.modules() if part is not module)


@lru_cache
def _module_source(kind: type) -> str:
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):  # made in a session
        return ""


@lru_cache
def _computes_attention(kind: type[nn.Module]) -> bool:
    source = _source(kind)
    return _REGISTRY_CALL not in source and any(word in source for word in _ATTENTION_OPS)


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
