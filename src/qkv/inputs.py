"""Arguments of `attention`, validated once and frozen, and the checks that other calls share.

`AttentionInputs` has tensors with four dimensions, a resolved mask and checked options; backends validate nothing.
Nothing in this file reads the numbers inside a tensor, except the lengths of a mask and the signs of gates.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from typing import Any, NamedTuple, Never, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from .cost.sizes import RANKS, check_sizes
from .errors import (
    BackendRefused,
    DtypeError,
    MaskError,
    MaskTypeError,
    OptionError,
    OptionTypeError,
    QkvError,
    ShapeError,
    complaint,
)
from .features import feature_count
from .forgetting import Forgetting, check_log_decay, forgetting_of
from .masks import Causal, Extent, Mask, Padding, Segments, as_mask
from .masks.grid import as_integer, describe
from .scoring import ScoreFunction, ScoreRule, check_score_function
from .shapes import Bool, Float
from .similarity import AnySimilarity, Sigmoid, Softmax, as_similarity
from .states import AnyState, Decay, as_state

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPE_SET = frozenset(DTYPES)
BACKEND_NAMES = ["auto"]  # and the names that `qkv.backends.register` adds
_BACKEND_HINT = "sdpa is torch's flash kernel, native is qkv's; leave it out to let qkv choose"
NO_STATE_WEIGHTS = "a state sums tokens, and has no weight for each of them"
_MAX_INT64 = 2**63 - 1
ALIGNMENT = 64  # bytes; torch allocates tensors at multiples of it
# Looked up once: following the attributes costs as much as the call.
is_compiling, _forward_ad, _PARAMETER = torch.compiler.is_compiling, torch.autograd.forward_ad, torch.nn.Parameter


class StateInputs(NamedTuple):
    """The `state=` of a call, with four dimensions and in the compute dtype; gates and beta are 0 at padding.

    rule: "linear" or "delta". log_gate: (heads_kv,) for a constant decay, else with all axes. keep: which tokens are
    real; None for all. resets: before which tokens the state is 0. normalizes: whether the last column is a sum of
    features.
    """

    rule: str
    log_gate: Tensor | None
    beta: Float[Tensor, "batch heads_kv n"] | None
    initial: Float[Tensor, "batch heads_kv features columns"] | None
    keep: Bool[Tensor, "batch n"] | None
    resets: Bool[Tensor, "batch n"] | None
    shape: tuple[int, int, int, int]
    normalizes: bool

    @property
    def channel_gates(self) -> bool:
        """Whether each feature has a gate."""
        return self.log_gate is not None and self.log_gate.dim() == 4

    def per_token(self, n: int) -> Tensor | None:
        """The gates with all axes; −infinity where the state is reset."""
        gate = self.log_gate
        if gate is not None and gate.dim() == 1:
            gate = gate[None, :, None].expand(*self.shape[:2], n)
            gate = gate if self.keep is None else gate.masked_fill(~self.keep[:, None], 0.0)
        if self.resets is None:
            return gate
        resets = self.resets[:, None]
        if gate is None:
            return torch.where(resets, -math.inf, 0.0).to(self.resets.device).expand(*self.shape[:2], n)
        return gate.masked_fill(resets if gate.dim() == 3 else resets[..., None], -math.inf)


class AttentionInputs(NamedTuple):
    """query (batch, heads_q, len_q, width), key (batch, heads_kv, len_k, width), value (…, len_k, width_v)."""

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: AnySimilarity
    mask: Mask | None
    bias: Tensor | None
    dropout: float
    backend: str
    return_lse: bool
    return_weights: bool
    extent: Extent
    heads_kv: int
    width: int
    width_v: int
    needs_grad: bool
    traced: bool
    signature: tuple[Any, ...]
    state: StateInputs | None = None
    return_state: bool = False
    forgetting: Forgetting | None = None
    score_rule: ScoreRule | None = None

    @property
    def mask_parts(self) -> tuple[Mask, ...]:
        """The masks that are joined by &."""
        return () if self.mask is None else self.mask.parts()

    @property
    def group(self) -> int:
        """How many query heads read one key/value head: query head h reads h // group."""
        return self.extent.heads // max(1, self.heads_kv)

    @property
    def sink(self) -> Tensor | None:
        """The sink as (heads_q, 1, 1) or (1, 1, 1), in the dtype of the scores."""
        sink = self.similarity.sink if isinstance(self.similarity, Softmax) else None
        if sink is None:
            return None
        dtype = compute_dtype(self.query.dtype)
        if not isinstance(sink, Tensor):
            return self.query.new_full((1, 1, 1), sink, dtype=dtype)
        return sink.to(dtype).reshape(-1, 1, 1)

    def keep(self, rows: tuple[int, int] | None = None, keys: tuple[int, int] | None = None) -> Tensor | None:
        """Which pairs of these queries and keys, or of all, attend; broadcasts over batch and heads. None for all."""
        if self.mask is None:
            return None
        extent = self.extent
        return self.mask.tile(extent, rows or (0, extent.len_q), keys or (0, extent.len_k), self.query.device)

    def mask_versions(self) -> tuple[int, ...]:
        return () if self.mask is None else self.mask.versions()

    def check_mask_unchanged(self, versions: tuple[int, ...]) -> None:
        """The backward pass computes the mask again: its tensors must not have changed since the forward pass."""
        if self.mask_versions() != versions:
            given = "a tensor that was written to between the forward and the backward pass"
            raise MaskError(complaint("mask", given, "a tensor that does not change", "give the mask a clone() of it"))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores and sums: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def fold_group(tensor: Tensor, heads_kv: int) -> Tensor:
    """(batch, heads_q, rows, n) → (batch, heads_kv, group·rows, n): the heads of a group become rows."""
    batch, heads_q, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_kv, heads_q // heads_kv * rows, n)


def unfold_group(tensor: Tensor, heads_q: int) -> Tensor:
    """The inverse of `fold_group`."""
    batch, heads_kv, rows, n = tensor.shape
    return tensor if heads_q == heads_kv else tensor.reshape(batch, heads_q, rows * heads_kv // heads_q, n)


def compact(tensor: Tensor) -> Tensor:
    """The same numbers, contiguous and aligned, so that the layout of the inputs cannot change a bit of the result: on
    some processors a product q kᵀ rounds differently when its rows start at other addresses (docs/log.md).

    Nothing is copied that is contiguous and aligned already. One matrix that `expand` repeats over batch and heads
    stays one where its copies would be aligned as well.
    """
    shape, strides = tensor.shape, tensor.stride()
    if tensor.is_contiguous():
        step = 1
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if stride != step:
                # An axis of size 1 may have any stride in a contiguous tensor, and torch's products depend on strides.
                tensor = tensor.flatten().view(shape)
                break
            step *= size
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
    front, matrix = shape[:-2], math.prod(shape[-2:]) * tensor.itemsize
    alike = all(stride == 0 or size == 1 for size, stride in zip(front, strides[:-2], strict=True))
    if alike and math.prod(front) > 1 and matrix % ALIGNMENT == 0:
        return compact(tensor[(slice(0, 1),) * len(front)]).expand(shape)
    return tensor.contiguous()


def aligned_layout(tensor: Tensor) -> Tensor:
    """For kernels that take strides: the tensor itself where all its rows are aligned, `compact` otherwise."""
    if tensor.is_contiguous() and not (tensor.data_ptr() % ALIGNMENT or tensor.shape[3] * tensor.itemsize % ALIGNMENT):
        return tensor  # the usual case, without a look at each stride
    (batch, head, row, one), width, step = tensor.stride(), tensor.shape[3], ALIGNMENT // tensor.itemsize
    off = tensor.data_ptr() % ALIGNMENT or width % step or batch % step or head % step or row % step
    return compact(tensor) if off or one != 1 or row < width else tensor


def read_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: AnySimilarity | None,
    mask: Mask | None,
    bias: Tensor | ScoreFunction | None,
    dropout: float,
    backend: str,
    return_lse: bool,
    return_weights: bool,
    state: AnyState | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    forgetting: Forgetting | None = None,
    score_rule: ScoreRule | None = None,
) -> AttentionInputs:
    """Check every argument of `attention` once. forgetting, score_rule: gates and a bias that were read already."""
    dims = check_tensors(query, key, value)
    if dims != 4:
        query, key, value = (_to_four_dimensions(tensor, dims) for tensor in (query, key, value))
    _check_sizes(query, key, value)
    (batch, heads, len_q, width), heads_kv, len_k, width_v = query.shape, key.shape[1], key.shape[2], value.shape[3]
    extent = Extent(batch, heads, len_q, len_k, dims)
    chosen = as_similarity(similarity)
    _check_options(chosen, backend, return_lse, return_weights)
    if type(dropout) is not float or dropout != 0.0:
        dropout = check_dropout(dropout, chosen)

    traced = is_traced(query, key, value)
    if traced:
        _refuse_dtensors(query, key, value)
    learns = query.requires_grad or key.requires_grad or value.requires_grad
    if mask is not None:
        mask = resolve_mask(mask, extent, traced)
    if callable(bias):
        score_rule, bias = ScoreRule.over(check_score_function(bias, chosen), extent, query.device), None
        learns = torch.is_grad_enabled()  # what the function uses may be learned
    if bias is not None:
        bias = check_bias(bias, query, extent, chosen)
    chosen, bias = fold_bias(chosen, bias, query, heads)
    learns = learns or (bias is not None and bias.requires_grad)
    if isinstance(chosen, Softmax) and chosen.log_decay is not None:
        forgetting, chosen = _read_log_decay(chosen.log_decay, query, extent, mask, traced), chosen.without_decay()
        learns = learns or forgetting.query.requires_grad
    if isinstance(chosen, Softmax) and isinstance(chosen.sink, Tensor):
        check_sink(chosen.sink, query, heads)
        learns = learns or chosen.sink.requires_grad
    scan, state_kind = None, None
    if state is not None or initial_state is not None or return_state is not False:
        state = as_state(state) or Decay(0.0)
        _check_state_options(chosen, state, extent, dropout, return_weights, return_state)
        keep, resets = _read_state_mask(mask, extent, query.device)
        columns = width_v + chosen.normalizes
        sizes = batch, heads_kv, feature_count(chosen, width), columns
        scan = read_state(state, query, sizes, len_q, dims, keep, resets, initial_state, chosen.normalizes, traced)
        learns = learns or any(t is not None and t.requires_grad for t in (scan.log_gate, scan.beta, scan.initial))
        state_kind = state.signature, initial_state is not None
    needs_grad = learns and torch.is_grad_enabled()

    flags = dropout > 0.0, return_lse, return_weights, needs_grad, traced
    kinds = (
        chosen.signature,
        None if mask is None else mask.signature(),
        None if bias is None else bias.shape,
        state_kind,
        forgetting is not None,
        score_rule is not None,
    )
    signature = backend, query.dtype, query.device.type, extent, heads_kv, width, width_v, kinds, flags
    returns = return_lse, return_weights
    sizes = extent, heads_kv, width, width_v
    return AttentionInputs(
        query, key, value, chosen, mask, bias, dropout, backend, *returns, *sizes, needs_grad, traced, signature, scan,
        return_state, forgetting, score_rule,
    )  # fmt: skip


def _read_log_decay(log_decay: Tensor, query: Tensor, extent: Extent, mask: Mask | None, traced: bool) -> Forgetting:
    """The gates of `Softmax(log_decay=...)`: query i is the token that `Causal` says."""
    parts = () if mask is None else mask.parts()
    offsets = [part.offset for part in parts if isinstance(part, Causal) and part.offset is not None]
    if not offsets:
        hint = "gates forget what is before a token: join & qkv.Causal() to the mask"
        raise MaskError(complaint("mask", repr(mask), "one with Causal, for log_decay", hint))
    axes = {4: "batch, query heads, keys", 3: "batch, keys", 2: "keys"}[extent.dims]
    shape = (extent.batch, extent.heads, extent.len_k)
    given = shape if extent.dims == 4 else shape[::2] if extent.dims == 3 else shape[2:]
    gates = check_log_decay(log_decay, query, given, axes).reshape(shape)
    last = min(offsets) + extent.len_q - 1
    if extent.len_q and last >= max(extent.len_k, 1):
        wanted = f"a mask whose last query is one of the {extent.len_k} tokens, for log_decay"
        raise MaskError(complaint("mask", f"{mask!r}, with the last query at position {last}", wanted))
    at = torch.arange(min(offsets), last + 1, device=query.device)[None]
    return forgetting_of(gates, at, tokens_kept(mask, extent, query.device), None, traced)


def tokens_kept(mask: Mask | None, extent: Extent, device: torch.device) -> Tensor | None:
    """The tokens that no `Padding` of a mask drops, (batch, keys); None for all."""
    keep = None
    for part in () if mask is None else mask.parts():
        if isinstance(part, Padding):
            kept = part.keys_kept(extent, device)
            assert kept is not None
            keep = kept if keep is None else keep & kept
    return keep


def _check_state_options(
    similarity: AnySimilarity, state: AnyState, extent: Extent, dropout: float, return_weights: bool, return_state: bool
) -> None:
    """Refuse what no recurrence over a state can compute."""
    check_state_similarity(similarity, state)
    if return_state is not True and return_state is not False:
        raise OptionTypeError(complaint("return_state", repr(return_state), "True or False"))
    if dropout or return_weights:
        name, given, wanted = ("dropout", dropout, "0.0") if dropout else ("return_weights", True, "False")
        raise BackendRefused(complaint(name, f"{given} with state=", wanted, NO_STATE_WEIGHTS), (NO_STATE_WEIGHTS,))
    if extent.len_q != extent.len_k:
        given = f"len_q={extent.len_q} and len_k={extent.len_k}"
        hint = "the state is read once after each token; continue a sequence with initial_state= or qkv.LinearState"
        raise ShapeError(complaint("query", given, "one query for each key with state=", hint))


def check_state_similarity(similarity: AnySimilarity, state: AnyState | type[AnyState]) -> None:
    """A state is made of features, and a delta rule has no normalizer."""
    name = state.__name__ if isinstance(state, type) else type(state).__name__
    plain = "qkv.FeatureMap(qkv.features.identity, normalize=False)"
    if not similarity.is_product:
        hint = f"{plain} is q·k"
        raise OptionError(complaint("similarity", f"{similarity!r} with state=", "a FeatureMap or a Polynomial", hint))
    if state.rule == "delta" and similarity.normalizes:
        wanted = "a FeatureMap with normalize=False: a delta rule corrects the state, and no weights sum to 1"
        raise OptionError(complaint("similarity", f"{similarity!r} with {name}", wanted, f"{plain} is q·k"))


def _read_state_mask(mask: Mask | None, extent: Extent, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Which tokens are real, and before which of them the state is reset; None for all, and for none."""
    keep = resets = None
    for part in () if mask is None else mask.parts():
        if isinstance(part, Causal) and part.offset == 0:
            continue
        if isinstance(part, Padding):
            kept = part.keys_kept(extent, device)
            assert kept is not None
            keep = kept if keep is None else keep & kept
        elif isinstance(part, Segments):
            starts = _segment_starts(part, device).expand(extent.batch, -1)
            resets = starts if resets is None else resets | starts
        else:
            hint = "a state holds all earlier tokens, and none of them can be taken out of it for one query"
            wanted = "None, Causal(), Padding or Segments, joined by &, with state=, which is causal"
            raise MaskError(complaint("mask", repr(part), wanted, hint))
    return keep, resets


def _segment_starts(mask: Segments, device: torch.device) -> Bool[Tensor, "batch n"]:
    """The first token of each segment, each of which must be one run of tokens."""
    ids, others = (torch.as_tensor(each, device=device) for each in (mask.query_ids, mask.key_ids))
    ids, others = (each if each.dim() == 2 else each[None] for each in (ids, others))
    new = torch.ones_like(ids, dtype=torch.bool)
    new[:, 1:] = ids[:, 1:] != ids[:, :-1]
    new[:, :1] = False  # an initial state belongs to the first segment
    if is_compiling() or in_transform():
        return new
    if ids is not others and not torch.equal(*torch.broadcast_tensors(ids, others)):
        raise MaskError(complaint("mask", repr(mask), "the same ids for queries and keys with state="))
    if any(int(row.sum()) + 1 > len(each.unique()) for row, each in zip(new, ids, strict=True) if len(each)):
        hint = "a state cannot go back to an earlier segment: sort the tokens by segment, or use qkv.varlen"
        raise MaskError(complaint("mask", repr(mask), "each id in one run of tokens with state=", hint))
    return new


def read_state(
    state: AnyState,
    query: Tensor,
    sizes: tuple[int, int, int, int],
    n: int,
    dims: int,
    keep: Tensor | None,
    resets: Tensor | None,
    initial: Tensor | None,
    normalizes: bool,
    traced: bool,
) -> StateInputs:
    """Check the tensors of a state. sizes: batch, heads_kv, features and columns of the state."""
    batch, heads, features, _ = sizes
    dtype = compute_dtype(query.dtype)
    front, axes = {4: ((batch, heads), "batch, heads_kv, "), 3: ((batch,), "batch, "), 2: ((), "")}[dims]
    token = (*front, n)

    def read(name: str, tensor: Tensor, shapes: dict[tuple[int, ...], str]) -> Tensor:
        check_kind(name, tensor)
        if tensor.device != query.device:
            raise DtypeError(complaint(name, f"device {tensor.device}", f"query's {query.device}"))
        if tuple(tensor.shape) not in shapes:
            wanted = " or ".join(f"{shape}: {text}" for shape, text in shapes.items())
            raise ShapeError(complaint(name, f"shape {tuple(tensor.shape)}", wanted))
        return tensor.to(dtype)

    def masked(tensor: Tensor) -> Tensor:
        if keep is None:
            return tensor
        return tensor.masked_fill(~(keep[:, None] if tensor.dim() == 3 else keep[:, None, :, None]), 0.0)

    gate = beta = None
    if isinstance(state, Decay):
        rate = state.rate
        if isinstance(rate, Tensor):
            gate = -read("rate", rate, {(heads,): "one for each key/value head"})
        elif rate:
            gate = query.new_full((heads,), -rate, dtype=dtype)
    elif state.gate_axes:
        shapes = {1: {token: f"{axes}length"}, 2: {(*token, features): f"{axes}length, features"}}
        allowed = {shape: text for count in state.gate_axes for shape, text in shapes[count].items()}
        gate = read("log_gate", state.log_gate, allowed)  # pyright: ignore[reportAttributeAccessIssue]
        per_feature = tuple(gate.shape) == (*token, features) and 2 in state.gate_axes
        gate = masked(gate.reshape(batch, heads, n, *((features,) if per_feature else ())))
    if state.rule == "delta":
        given = state.beta  # pyright: ignore[reportAttributeAccessIssue]
        beta = masked(read("beta", given, {token: f"{axes}length"}).reshape(batch, heads, n))
    if gate is not None and not traced and gate.numel() and bool((gate.detach() > 0).any()):
        name = "rate" if isinstance(state, Decay) else "log_gate"
        given, hint = f"{float((gate if name == 'log_gate' else -gate).detach().nan_to_num().max()):.6g}", ""
        if name == "rate":
            given = f"{float(-gate.detach().max()):.6g}"
        else:
            hint = "gates are given as logarithms: write gate.log(), or logsigmoid(x) for sigmoid(x)"
        wanted = "0 or more" if name == "rate" else "0 or less"
        raise OptionError(complaint(name, given, wanted, hint))
    if initial is not None:
        shape = {4: sizes, 3: (batch, *sizes[2:]), 2: sizes[2:]}[dims]
        columns = "features, value width" + (" + 1 (the sums of features)" if normalizes else "")
        initial = read("initial_state", initial, {shape: axes + columns}).reshape(sizes)
    return StateInputs(state.rule, gate, beta, initial, keep, resets, sizes, normalizes)


# What to write in place of the arguments of torch, transformers and flash-attn.
_REPLACEMENTS = {
    "is_causal": "write mask=qkv.Causal()",
    "causal": "write mask=qkv.Causal()",
    "attn_mask": "write mask=qkv.Dense(attn_mask) for booleans (True attends), bias=attn_mask for numbers to add",
    "attention_mask": "write mask=qkv.Padding(keep=attention_mask.bool()) for 1 = attend and 0 = padding",
    "key_padding_mask": "write mask=qkv.Padding(drop=key_padding_mask) for True = padding",
    "scale": "write similarity=qkv.Softmax(scale=...)",
    "softmax_scale": "write similarity=qkv.Softmax(scale=...)",
    "softcap": "write similarity=qkv.Softmax(softcap=...)",
    "window_size": "write mask=qkv.Window(left=..., right=...), joined to qkv.Causal() by &",
    "enable_gqa": "leave it out: heads are read off the shapes",
    "dropout_p": "write dropout=...",
}
_REPLACEMENTS_OF = {
    "varlen": {
        "attn_mask": "write mask=, with positions counted inside each document: qkv.Causal(), qkv.Predicate(function)"
    },
    "decode": {
        "is_causal": "leave it out: decode is causal, each token attends to itself and earlier tokens",
        "causal": "leave it out: decode is causal, each token attends to itself and earlier tokens",
        "dropout_p": "leave it out: decode has no dropout",
        "dropout": "leave it out: decode has no dropout",
    },
}
_TORCH_ARGUMENTS = ("is_causal", "attn_mask", "scale", "enable_gqa", "dropout_p")


def raise_unknown_arguments(function: Callable[..., Any], unknown: Mapping[str, Never]) -> NoReturn:
    """Refuse keyword arguments that `function` does not have, with what to write instead."""
    name, value = next(iter(unknown.items()))
    parameters = inspect.signature(function).parameters.values()
    options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    own = function.__name__
    hint = _REPLACEMENTS_OF.get(own, {}).get(name) or _REPLACEMENTS.get(name, "")
    if own == "attention" and name in _TORCH_ARGUMENTS:
        hint += "; qkv.compat.scaled_dot_product_attention takes torch's arguments"
    close = get_close_matches(name, options, 1)
    if not hint and close:
        hint = f"write {close[0]}="
    wanted = f"no such argument: qkv.{own} takes {', '.join(options)}"
    raise OptionTypeError(complaint(name, describe(value), wanted, hint))


def _to_four_dimensions(tensor: Tensor, dims: int) -> Tensor:
    return tensor if dims == 4 else tensor.unsqueeze(1) if dims == 3 else tensor[None, None]


def resolve_mask(mask: Mask, extent: Extent, traced: bool) -> Mask:
    checked = as_mask(mask)
    assert checked is not None
    checked = checked.resolved(extent)
    if not traced:
        checked.check_contents(extent)
    return checked


def _check_options(similarity: AnySimilarity, backend: str, return_lse: bool, return_weights: bool) -> None:
    check_flags(return_lse=return_lse, return_weights=return_weights)
    if not isinstance(backend, str) or backend not in BACKEND_NAMES:
        raise OptionError(complaint("backend", repr(backend), "one of " + ", ".join(BACKEND_NAMES), _BACKEND_HINT))
    if return_lse and not similarity.has_lse:
        given = f"True with {similarity!r}"
        raise OptionError(complaint("return_lse", given, "False", "only Softmax has a log-sum-exp of scores"))


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise OptionTypeError(complaint(name, repr(flag), "True or False"))


def in_transform() -> bool:
    """Whether a transform of torch.func or forward-mode AD is active."""
    return _functorch.maybe_current_level() is not None or _forward_ad._current_level >= 0


def is_traced(*tensors: Tensor) -> bool:
    """Whether torch.compile, torch.export, torch.func, forward-mode AD or a tensor subclass hides the numbers."""
    if is_compiling() or in_transform():
        return True
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not _PARAMETER:
            return True
    return False


def _refuse_dtensors(*tensors: Tensor) -> None:
    """A DTensor has only a part of the sequence, and torch does not mix DTensors with ordinary masks."""
    for tensor in tensors:
        if type(tensor).__name__ == "DTensor":
            hint = "use qkv.parallel.attention, or tensor.to_local() for this rank's part"
            raise DtypeError(complaint("query, key, value", "a DTensor", "ordinary tensors", hint))


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Check types, dtypes, devices and layouts of the three tensors; returns their number of dimensions."""
    try:
        dtype, device, dims = query.dtype, query.device, query.dim()
        sound = (
            dtype in DTYPE_SET
            and key.dtype is dtype
            and value.dtype is dtype
            and key.device == device
            and value.device == device
            and key.dim() == dims
            and value.dim() == dims
            and 2 <= dims <= 4
            and device.type != "meta"
            and not (query.is_nested or key.is_nested or value.is_nested)
            and query.layout is key.layout is value.layout is torch.strided
        )
    except (AttributeError, TypeError):
        sound = False
    if not sound or not isinstance(query, Tensor):
        _raise_tensor_error(query, key, value)
    return query.dim()


def _raise_tensor_error(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Find the first thing that is wrong, and say which tensor it is."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_kind(name, tensor)
        if tensor.dtype is not query.dtype:
            given = f"dtype {tensor.dtype} with query's {query.dtype}"
            hint = "convert with .to(dtype)"
            raise DtypeError(complaint(name, given, "one dtype for query, key and value", hint))
        if tensor.device != query.device:
            given = f"device {tensor.device} with query's {query.device}"
            raise DtypeError(complaint(name, given, "one device for all three"))
    if query.is_meta:
        raise DtypeError(complaint("query", "a meta tensor", "a tensor with contents"))
    dims = query.dim()
    if dims not in (2, 3, 4):
        raise ShapeError(complaint("query", f"{dims} dimensions {tuple(query.shape)}", RANKS))
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dim() != dims:
            given = f"{tensor.dim()} dimensions {tuple(tensor.shape)} with query's {tuple(query.shape)}"
            raise ShapeError(complaint(name, given, f"{dims}, as many as query has"))
    raise DtypeError(complaint("query, key, value", "tensors of an unknown kind", "ordinary dense tensors"))


def _check_sizes(query: Tensor, key: Tensor, value: Tensor) -> None:
    try:
        sizes = check_sizes(query.shape, key.shape, value.shape)
    except ShapeError as error:
        hint = _hint_at_swapped_axes(query.shape, key.shape, value.shape)
        if not hint:
            raise
        raise ShapeError(f"{error} {hint}") from None
    batch, heads, heads_kv, len_q, len_k, width, width_v = sizes
    # In Python's integers, before anything of that size is allocated.
    bytes_out = batch * heads * len_q * max(width, width_v) * query.element_size()
    counts = bytes_out, batch * heads * len_q * len_k, batch * heads_kv * len_k * width
    if any(count > _MAX_INT64 for count in counts):  # the largest of them would compare symbolic sizes in torch.export
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ShapeError(complaint("query, key", shapes, f"at most {_MAX_INT64} scores: the sizes overflow 64 bits"))


def fold_bias(
    similarity: AnySimilarity, bias: Tensor | None, query: Tensor, heads: int
) -> tuple[AnySimilarity, Tensor | None]:
    """A similarity whose own bias, if it is a tensor, is a part of the bias of the call, (1, heads or 1, 1, 1)."""
    if not isinstance(similarity, Sigmoid) or not isinstance(similarity.bias, Tensor):
        return similarity, bias
    check_sink(similarity.bias, query, heads, "bias (of Sigmoid)")
    own = similarity.bias.to(compute_dtype(query.dtype)).reshape(1, -1, 1, 1)
    return Sigmoid(similarity.scale), own if bias is None else bias + own


def check_bias(bias: Tensor, query: Tensor, extent: Extent, similarity: AnySimilarity) -> Tensor:
    if not similarity.has_scores:
        hint = "bias is added to the scores of Softmax and Sigmoid; mask= works with all similarities"
        raise OptionError(complaint("bias", f"a tensor with {similarity!r}", "None", hint))
    wanted = "numbers to add to the scores"
    if not isinstance(bias, Tensor):
        wanted = f"a torch.Tensor of {wanted}, or a function of scores for qkv.attention and qkv.decode"
        raise DtypeError(complaint("bias", type(bias).__name__, wanted))
    if bias.dtype is torch.bool:
        raise MaskTypeError(complaint("bias", "dtype torch.bool", wanted, "write mask=qkv.Dense(...)"))
    if bias.dtype is not query.dtype and bias.dtype is not compute_dtype(query.dtype):
        raise DtypeError(complaint("bias", f"dtype {bias.dtype}", f"query's {query.dtype}", "convert with .to(dtype)"))
    if bias.device != query.device or bias.is_nested or bias.layout is not torch.strided:
        raise DtypeError(complaint("bias", f"{bias.layout} on {bias.device}", f"a dense tensor on {query.device}"))
    check_broadcast("bias", bias, extent.scores, ShapeError)
    bias = bias.reshape(*(1,) * (extent.dims - bias.dim()), *bias.shape)
    # An expanded axis broadcasts just as well with size 1.
    bias = bias[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in bias.stride())].contiguous()
    return _to_four_dimensions(bias, extent.dims)


def check_broadcast(argument: str, tensor: Tensor, scores: tuple[int, ...], error: type[QkvError]) -> None:
    """Refuse a tensor that does not broadcast to the scores."""
    sizes = zip(reversed(tensor.shape), reversed(scores), strict=False)
    if tensor.dim() > len(scores) or not all(have in (1, size) for have, size in sizes):
        wanted = f"one that broadcasts, aligned at the right, to the scores {scores}"
        raise error(complaint(argument, f"shape {tuple(tensor.shape)}", wanted))


def check_dropout(dropout: float, similarity: AnySimilarity) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, Real):
        raise OptionTypeError(complaint("dropout", repr(dropout), "a probability between 0 and 1"))
    dropout = float(dropout)
    if not 0.0 <= dropout <= 1.0:
        raise OptionError(complaint("dropout", dropout, "a probability between 0 and 1", "0.0 turns it off"))
    if dropout and similarity.picks_one_key:
        hint = "argmax has one key per query, and dropping it would leave none"
        raise OptionError(complaint("dropout", f"{dropout} with Argmax()", "0.0", hint))
    return dropout


def check_sink(sink: Tensor, query: Tensor, heads: int, argument: str = "sink") -> None:
    """A tensor with one logit, or one for each query head."""
    if sink.dtype not in DTYPE_SET or sink.device != query.device:
        wanted = f"floating-point logits on {query.device}"
        raise DtypeError(complaint(argument, f"{sink.dtype} on {sink.device}", wanted))
    if sink.numel() != 1 and tuple(sink.shape) != (heads,):
        raise ShapeError(complaint(argument, f"shape {tuple(sink.shape)}", f"({heads},): one logit per query head"))


def check_size(argument: str, given: Any, least: int = 1, most: int | None = None) -> int:
    """An integer, `least` or more, and at most `most`."""
    number = as_integer(argument, given)
    if number < least or (most is not None and number > most):
        limit = "" if most is None else f" and at most {most}"
        raise OptionError(complaint(argument, given, f"an integer, {least} or more{limit}"))
    return number


def _hint_at_swapped_axes(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> str:
    """For shapes that do not fit: which tensors would, if they were (batch, length, heads, width)."""

    def swapped(shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0], shape[2], shape[1], shape[3]

    candidates: list[tuple[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]]
    if value[1:3] != key[1:3]:
        candidates = [("value", (query, key, swapped(value))), ("key", (query, swapped(key), value))]
    elif query[1] == key[2]:
        candidates = [("query", (swapped(query), key, value))]
        if query[2] == key[1]:
            candidates.append(("key and value", (query, swapped(key), swapped(value))))
    else:
        candidates = [("query, key and value", (swapped(query), swapped(key), swapped(value)))]
    fitting = []
    for names, shapes in candidates:
        with suppress(ShapeError):
            check_sizes(*shapes)
            fitting.append(names)
    names = ", or ".join(fitting)
    return f"If {names} came as (batch, length, heads, width): call .transpose(1, 2) first." if names else ""


def check_kind(name: str, tensor: Any) -> None:
    """A dense tensor of floating-point numbers."""
    if not isinstance(tensor, Tensor):
        hint = "torch.as_tensor turns arrays and lists into one"
        raise DtypeError(complaint(name, type(tensor).__name__, "a torch.Tensor", hint))
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise DtypeError(complaint(name, kind, "an ordinary dense tensor", "pad it, or use qkv.varlen"))
    if tensor.dtype not in DTYPE_SET:
        wanted = "float32, float64, bfloat16 or float16"
        raise DtypeError(complaint(name, f"dtype {tensor.dtype}", wanted, f"{name}.float() converts"))
