"""Linear attention of transformers' models on `qkv.states`: gated delta rules, KDA, Mamba-2 and lightning attention.

Such layers call functions of their module for the recurrence: `torch_chunk_gated_delta_rule`, `mamba2_chunk_scan` and
so on, with the same text in every family. `prepare_layers` puts a switch around these functions and around the
layers' `forward`: where the configuration of the model says "qkv", `forward` notes the layer, its cache and its mask,
and the functions compute with `state=`. Projections, convolution, gates and norms stay those of transformers.
MiniMax's layer calls no function, so that its `forward` is here.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus
from transformers import PreTrainedModel
from transformers.masking_utils import find_packed_sequence_indices

from ..errors import MaskError, OptionError, complaint
from ..functional import attention
from ..inputs import compute_dtype
from ..masks import Padding
from ..states import KDA, AnyState, Decay, Gated, GatedDelta
from .layers import LAYER_CALLS, class_source, layer_refused, refuse_unknown_arguments
from .states import PLAIN, StateLayer


class LayerStep(NamedTuple):
    """A call of a layer. keep: which tokens are real, (batch, n), None for all; cache: its layer of a `qkv.hf.cache`.

    ran: filled by what computes the recurrence.
    """

    module: nn.Module
    keep: Tensor | None
    cache: StateLayer | None
    ran: list[bool]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, change: AnyState, initial: Tensor | None, returns: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output of tensors (batch, heads, n, …), and the state after them, which a `qkv.hf.cache` keeps itself."""
        self.ran.append(True)
        if self.cache is not None:
            return self.cache.attend(query, key, value, change), query.new_zeros(0)
        mask = None if self.keep is None else Padding(keep=self.keep)
        initial = None if initial is None else initial.to(query.dtype)
        answer = attention(
            query, key, value, similarity=PLAIN, mask=mask, state=change, initial_state=initial, return_lse=False,
            return_state=returns,
        )  # fmt: skip
        return answer if isinstance(answer, tuple) else (answer, None)  # pyright: ignore[reportReturnType]


_STEP: ContextVar[LayerStep | None] = ContextVar("_STEP", default=None)


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """(batch, n, heads, …) to (batch, heads, n, …), in at least float32, as transformers computes."""
    dtype = compute_dtype(tensors[0].dtype)
    return [tensor.transpose(1, 2).to(dtype) for tensor in tensors]


def _delta_rule(
    step: LayerStep,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule; with a gate for each feature, KDA. Tensors are (batch, n, heads, …)."""
    refuse_unknown_arguments(step.module, others)
    rows, keys, values, gate, strength = _heads_first(query, key, value, g, beta)
    if use_qk_l2norm_in_kernel:
        rows, keys = (each * torch.rsqrt((each * each).sum(-1, keepdim=True) + 1e-6) for each in (rows, keys))
    change = GatedDelta(gate, strength) if gate.dim() == 3 else KDA(gate, strength)
    rows = rows * rows.shape[-1] ** -0.5
    out, last = step.attend(rows, keys, values, change, initial_state, output_final_state)
    return out.transpose(1, 2).to(query.dtype, memory_format=torch.contiguous_format), last


def _mamba2(
    step: LayerStep,
    inputs: Tensor,
    dt: Tensor,
    decay: Tensor,
    keys: Tensor,
    queries: Tensor,
    chunk_size: int = 0,
    D: Tensor | None = None,  # noqa: N803 - passed by this name
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **others: Any,
) -> Any:
    """Mamba-2: x, dt, A, B, C and D of its paper; keys B, queries C, values dt·x, gates e^(dt·A).

    inputs (batch, n, heads, width), dt (batch, n, heads), keys and queries (batch, n, groups, features); states of
    transformers are (batch, heads, width, features).
    """
    refuse_unknown_arguments(step.module, others)
    inputs, keys, queries, delta = _heads_first(inputs, keys, queries, dt)
    delta = delta if dt_bias is None else delta + dt_bias[:, None]
    delta = (softplus(delta) if dt_softplus else delta).clamp(*dt_limit)
    shared = inputs.shape[1] // keys.shape[1]
    keys, queries = (each.repeat_interleave(shared, dim=1) for each in (keys, queries))
    initial = None if initial_states is None else initial_states.mT
    change = Gated(delta * decay[:, None])
    out, last = step.attend(queries, keys, inputs * delta[..., None], change, initial, return_final_states)
    out = (out if D is None else out + D[:, None, None] * inputs).transpose(1, 2).contiguous()
    return (out, last if last is None or step.cache is not None else last.mT) if return_final_states else out


def _mamba2_step(
    step: LayerStep,
    state: Tensor,
    inputs: Tensor,
    dt: Tensor,
    decay: Tensor,
    key: Tensor,
    query: Tensor,
    skip: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **others: Any,
) -> Tensor:
    """One token: inputs (batch, heads, width); parameters are repeated along the width. Writes into `state`."""
    skip, dt_bias = (None if each is None else each[:, 0] for each in (skip, dt_bias))
    tokens = inputs[:, None], dt[:, None, :, 0], decay[:, 0, 0], key[:, None], query[:, None]
    limit = getattr(step.module, "time_step_limit", (0.0, float("inf")))  # transformers applies it in prefill only
    options = {"D": skip, "dt_bias": dt_bias, "initial_states": state, "dt_softplus": dt_softplus, "dt_limit": limit}
    out, last = _mamba2(step, *tokens, **options, return_final_states=True, **others)
    state.copy_(last)
    return (out[:, 0] if z is None else out[:, 0] * silu(z)).to(inputs.dtype)


def _lightning(step: LayerStep, hidden_states: Tensor, past_key_values: Any) -> tuple[Tensor, Tensor | None]:
    """The forward of MiniMax's lightning attention."""
    layer: Any = step.module
    index, foreign = layer.layer_idx, None if step.cache is not None else past_key_values
    batch, n, _ = hidden_states.shape
    mixed = layer.act_fn(layer.qkv_proj(hidden_states)).view(batch, n, layer.num_attention_heads, 3 * layer.head_dim)
    query, key, value = _heads_first(*mixed.split(layer.head_dim, dim=3))
    initial = None if foreign is None else foreign.get_linear_cache(index)
    change = Decay(layer.slope_rate.flatten().to(query.dtype))
    out, last = step.attend(query, key, value, change, initial, True)
    if foreign is not None:
        foreign.set_linear_cache(index, last)
    out = layer.norm(out.transpose(1, 2).reshape(batch, n, -1).to(mixed.dtype))
    out = torch.sigmoid(layer.output_gate(hidden_states)) * out
    return layer.out_proj(out), last


def _convolution(original: Callable[..., Tensor], step: LayerStep, hidden_states: Tensor, *args: Any, **options: Any):
    """The convolution of transformers, with 0 at padding: a projection with a bias is not 0 there."""
    if step.keep is not None:
        past = hidden_states.shape[2] - step.keep.shape[1]
        real = torch.nn.functional.pad(step.keep, (past, 0), value=True)
        hidden_states = hidden_states.masked_fill(~real[:, None], 0.0)
    return original(hidden_states, *args, **options)


def _padding_mask(original: Callable[..., Any], config: Any, inputs_embeds: Tensor, **options: Any) -> Tensor | None:
    """The mask of linear attention; transformers' function leaves it out for a single token, which may be padding."""
    mask = options.get("attention_mask")
    if config._attn_implementation in _ACTIVE:
        if mask is None and options.get("past_key_values") is None:
            _check_single_documents(options.get("position_ids"))
        if inputs_embeds.shape[1] == 1 and mask is not None and mask.dim() == 2:
            return None if bool(mask[:, -1:].all()) else mask[:, -1:]
    return original(config=config, inputs_embeds=inputs_embeds, **options)


def _check_single_documents(positions: Tensor | None) -> None:
    if positions is not None and positions.dim() == 2 and find_packed_sequence_indices(positions) is not None:
        hint = "linear attention cannot keep packed documents apart: its convolution reads neighbors"
        raise MaskError(complaint("position_ids", "several documents in a row", "one in each row", hint))


# The functions that layers of transformers call, and what runs instead.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba2_selective_state_update": _mamba2_step,
}
# Functions that keep their own body, and what is put around it.
_AROUND: dict[str, Callable[..., Any]] = {"causal_conv1d_fn": _convolution}
_MASK_FUNCTION = "create_recurrent_attention_mask"
_FORWARDS: dict[str, Callable[..., Any]] = {"MiniMaxLightningAttention": _lightning}
_ACTIVE = ("qkv", "qkv_capture")


@lru_cache
def _functions_of(kind: type) -> tuple[type, tuple[str, ...]] | None:
    """The class that defines `forward`, and which functions of its module this calls; None for other layers."""
    owner = next((part for part in kind.__mro__ if "forward" in part.__dict__), kind)
    module = sys.modules.get(owner.__module__)
    names = [name for name in _FUNCTIONS if hasattr(module, name)]
    if owner.__name__ in _FORWARDS and owner.__module__.startswith("transformers."):
        return owner, ()
    source = class_source(owner) if names else ""
    called = tuple(name for name in names if f"{name}(" in source)
    return (owner, called) if called else None


def runs_on_states(module: nn.Module) -> bool:
    """Whether this is a layer of linear attention that qkv can run."""
    return _functions_of(type(module)) is not None


def prepare_layers(model: PreTrainedModel) -> None:
    """Let the layers of linear attention follow the configuration of the model that they belong to."""
    for part in model.modules():  # inner models come after those around them
        if isinstance(part, PreTrainedModel):
            for module in part.modules():
                if (found := _functions_of(type(module))) is not None:
                    module._qkv_config = part.config  # pyright: ignore[reportAttributeAccessIssue,reportArgumentType]
                    _switch(*found)


def warn_of_others(model: PreTrainedModel) -> None:
    """Say which recurrent layers of the model stay in transformers."""
    others = {type(m).__name__ for m in model.modules() if "update_recurrent_state(" in class_source(type(m))}
    others -= {type(module).__name__ for module in model.modules() if runs_on_states(module)}
    if others:
        text = f"{type(model).__name__}: {', '.join(sorted(others))} runs in transformers: qkv has no such recurrence"
        warnings.warn(text, stacklevel=4)


@lru_cache
def _switch(owner: type, names: tuple[str, ...]) -> None:
    """Wrap the forward of a class and the functions of its module, once."""
    owner.forward = _switched_forward(owner.forward, _FORWARDS.get(owner.__name__))  # pyright: ignore
    module = sys.modules[owner.__module__]
    for name in (*names, *_AROUND, _MASK_FUNCTION):
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, "qkv_original"):
            setattr(module, name, _switched(name, original))


def _switched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def function(*args: Any, **options: Any) -> Any:
        if name == _MASK_FUNCTION:
            return _padding_mask(original, *args, **options)
        if (step := _STEP.get()) is None:
            return original(*args, **options)
        around = _AROUND.get(name)
        return _FUNCTIONS[name](step, *args, **options) if around is None else around(original, step, *args, **options)

    function.qkv_original = original  # pyright: ignore[reportAttributeAccessIssue]
    return function


def _switched_forward(original: Callable[..., Any], ours: Callable[..., Any] | None) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @wraps(original)
    def forward(self: Any, *args: Any, **options: Any) -> Any:
        config = getattr(self, "_qkv_config", None)
        if config is None or config._attn_implementation not in _ACTIVE:
            return original(self, *args, **options)
        given = signature.bind(self, *args, **options)
        values = given.arguments
        cache = values.get("cache_params", values.get("past_key_values"))
        step = _begin(self, values["hidden_states"], values.get("attention_mask"), cache, values.get("kwargs", {}))
        if step.keep is not None:  # NaN at padding is not 0 after a multiplication by 0
            values["hidden_states"] = values["hidden_states"].masked_fill(~step.keep[..., None], 0.0)
        token = _STEP.set(step)
        try:
            answer = (
                original(*given.args, **given.kwargs) if ours is None else ours(step, values["hidden_states"], cache)
            )
        finally:
            _STEP.reset(token)
        if not step.ran:
            raise layer_refused(self, "it did not call the function of its recurrence")
        LAYER_CALLS[type(self).__name__, getattr(self, "layer_idx", None)] += 1
        return answer

    return forward


def _begin(module: nn.Module, hidden: Tensor, mask: Tensor | None, cache: Any, options: dict[str, Any]) -> LayerStep:
    """Check a call of a layer, and announce its tokens to the cache."""
    for name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"):
        if options.get(name) is not None:
            raise layer_refused(module, f"{name}= packs several documents, which its convolution would mix")
    batch, n, _ = hidden.shape
    keep = None
    if mask is not None:
        if mask.dim() != 2 or mask.shape != (batch, n):
            raise layer_refused(module, f"its mask has the shape {tuple(mask.shape)}, not (batch, tokens)")
        keep = mask.bool()
        if bool(((keep[:, 1:] & ~keep[:, :-1]).sum(1) + keep[:, 0] > 1).any()):
            hint = "linear attention cannot skip tokens inside a row: its convolution reads neighbors"
            raise MaskError(complaint("attention_mask", "padding between real tokens", "padding at the ends", hint))
        keep = None if bool(keep.all()) else keep
    index, layers = int(getattr(module, "layer_idx", None) or 0), getattr(cache, "layers", ())
    layer = layers[index] if index < len(layers) else None
    if not isinstance(layer, StateLayer):
        return LayerStep(module, keep, None, [])
    for other, length in ((index - 1, layer.length + n), (index + 1, layer.length)):
        if 0 <= other < len(layers) and layers[other].length != length:
            given = f"layer {other} with {layers[other].length} tokens, where layer {index} needs {length}"
            hint = "a forward pass that raised an error updated some layers only: reset() the cache"
            raise OptionError(complaint("past_key_values", given, "layers of one length", hint))
    layer.begin(batch, n, keep)
    return LayerStep(module, keep, layer, [])
