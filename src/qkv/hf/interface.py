"""The function that transformers calls for every attention layer when a model is set to "qkv"."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from transformers.utils import output_capturing
from transformers.utils.generic import TransformersKwargs

from ..functional import attention
from ..masks import Causal, Mask, Window
from ..similarity import Softmax
from .layers import Held, alike
from .patterns import Pattern, joined, read_cells
from .refusal import refusal

_SERVED: Counter[tuple[str, int | None]] = Counter()

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


def served() -> Counter[str]:
    """How often each attention layer was served since `served_reset()`: "LlamaAttention 0" and so on.

    >>> served_reset()
    >>> served()
    Counter()
    """
    return Counter({name if index is None else f"{name} {index}": n for (name, index), n in _SERVED.items()})


def served_reset() -> None:
    """Count from zero again."""
    _SERVED.clear()


def attend(
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
            raise refusal(module, f"it passes {name}=, and nobody here knows what that does to attention")
    if others.get("cu_seq_lens_q") is not None:
        _check_packing(module, others["cu_seq_lens_q"], attention_mask)
    want_weights = bool(output_attentions) or _recording_weights()
    similarity = _similarity(scaling, softcap) if s_aux is None else Softmax(scaling, softcap, s_aux)
    bias = None if position_bias is None else position_bias.to(query.dtype)
    if type(key) is Held:
        if dropout:
            raise refusal(module, "dropout and a qkv.hf.cache do not go together; model.eval() turns dropout off")
        if is_causal is False and query.shape[2] > 1 and not isinstance(attention_mask, Tensor):
            raise refusal(module, "it is not causal, and a cache is; run it without past_key_values")
        out, weights = key.layer.attend(module, query, key, value, attention_mask, similarity, bias, want_weights)
    else:
        key, value = alike(query, key, value)
        mask, added = _mask(module, query, key, attention_mask, is_causal, sliding_window)
        bias = added if bias is None else bias if added is None else bias + added
        if bias is not None and bias.shape[-1] > key.shape[2]:
            bias = bias[..., : key.shape[2]]
        answer: Any = attention(
            query, key, value, similarity=similarity, mask=mask, bias=bias, dropout=dropout,
            return_lse=False, return_weights=want_weights,
        )  # fmt: skip
        out, weights = answer if isinstance(answer, tuple) else (answer, None)
    _SERVED[type(module).__name__, getattr(module, "layer_idx", None)] += 1
    return out.transpose(1, 2).contiguous(), weights


def _recording_weights() -> bool:
    """Whether transformers is recording weights: not every model passes output_attentions on to its layers."""
    collector = output_capturing._active_collector.get()
    return collector is not None and any(name.endswith("attentions") for name in collector)


@lru_cache
def _similarity(scale: float | None, softcap: float | None) -> Softmax:
    """The same object for the same numbers, so that a step is known again."""
    return Softmax(scale, softcap)


def _mask(
    module: nn.Module, query: Tensor, key: Tensor, given: Any, is_causal: bool | None, window: int | None
) -> tuple[Mask | None, Tensor | None]:
    """A mask for these tensors, and what is added to the scores."""
    if isinstance(given, Pattern):
        return given.mask(), None
    if given is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or query.shape[2] == 1:
            return None, None
        # Without a mask, what stands behind the queries is a static cache's empty places.
        sides = [] if window is None else [Window(left=window - 1, offset=0)]
        return joined([Causal(offset=0), *sides]), None
    return read_cells(query, given, key.shape[2])


def _check_packing(module: nn.Module, edges: Tensor, given: Any) -> None:
    """Several documents in one row, and no mask that keeps them apart."""
    if edges.numel() > 2 and not (isinstance(given, Pattern) and given.rules.others):
        reason = "cu_seq_lens_q= packs several documents, and position_ids= do not say where each begins"
        raise refusal(module, reason)
