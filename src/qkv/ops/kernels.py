"""Native kernels on torch tensors: finite scan, argmax of scores, softmax and linear attention, pages of a cache.

`cache_append`, `cache_attend` and `NativeStep` are the extension's own functions, bound here once: a decode step calls
them, and a Python wrapper would cost as much as the call. They take what `qkv.cache` has checked. They are None without
the native library; `qkv.ops.reasons()` says why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import DtypeError, ShapeError, complaint
from ..shapes import Bool, Float, Int64
from .loader import load, require_native

# The versions of torch on which the tests run. Others may round, order sums or treat NaN differently.
TESTED_TORCH = ("2.13",)


def warn_untested_torch(version: str) -> None:
    """Warn if this version of torch is not tested."""
    if ".".join(version.split(".")[:2]) not in TESTED_TORCH:
        tested = ", ".join(TESTED_TORCH)
        warnings.warn(f"qkv is tested with torch {tested}; this is torch {version}", RuntimeWarning, stacklevel=2)


warn_untested_torch(torch.__version__)

# The dtype codes of the native library (native/src/dtype.h).
DTYPE_CODE = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}

_NATIVE = load().native
_scan = None if _NATIVE is None else _NATIVE.all_finite
# In elements of the largest size, so that the hot path need not read the element size.
_PARALLEL_FROM = 0 if _NATIVE is None else _NATIVE.finite_parallel_bytes // 8
# Subclasses may have their data elsewhere, or none (FakeTensor).
_PLAIN_TENSORS = frozenset({Tensor, torch.nn.Parameter})


def all_finite(*tensors: Tensor) -> bool:
    """Whether all numbers of all tensors are finite.

    Contiguous floating-point tensors in main memory are scanned by the native library, all others by torch.

    Args:
        tensors: Any number of tensors of any shapes, dtypes, layouts and devices.

    Returns:
        False if there is a NaN or an infinity. Empty tensors are finite.

    >>> all_finite(torch.ones(2, 3), torch.tensor([1.0, 65504.0], dtype=torch.float16))
    True
    >>> all_finite(torch.ones(2, 3), torch.tensor([1.0, float("nan")]))
    False
    """
    for tensor in tensors:
        code = DTYPE_CODE.get(tensor.dtype, -1) if type(tensor) in _PLAIN_TENSORS else -1
        try:
            address = tensor.data_ptr() if code >= 0 and tensor.is_cpu and tensor.is_contiguous() else 0
        except RuntimeError:  # sparse tensors and the wrappers of torch.func have no storage
            address = 0
        if address and _scan is not None:
            count = tensor.numel()
            if not _scan(address, count, code, 1 if count < _PARALLEL_FROM else torch.get_num_threads()):
                return False
        elif not _finite_in_torch(tensor):
            return False
    return True


def _finite_in_torch(tensor: Tensor) -> bool:
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return bool(torch.isfinite(tensor).all())
    if tensor.dtype not in DTYPE_CODE:  # 8-bit floats have no arithmetic
        tensor = tensor.to(torch.float32)
    # One pass: a NaN or an infinity makes the sum non-finite. Finite numbers may too, so that is checked again.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return math.isfinite(total.item()) or bool(torch.isfinite(tensor).all())


_ARGMAX_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def argmax_scores(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    starts: Int64[Tensor, "batch len_q"] | None = None,
    stops: Int64[Tensor, "batch len_q"] | None = None,
) -> Int64[Tensor, "batch heads_q len_q"]:
    """The index of the key with the largest score, for each query, over the keys in its range.

        result[b, h, i] = argmax over starts[b, i] ≤ j < stops[b, i] of Σ_c query[b, h, i, c] · key[b, g, j, c]

    with g = h // (heads_q // heads_kv). Sums are float32, in the order of c for every pair: equal keys tie exactly, the
    lowest index wins, and the result does not depend on threads, on the rest of the batch or on the layout. The extra
    memory is at most a float32 copy of the keys.

    Args:
        query: float32, float16 or bfloat16 on the CPU, of any strides.
        key: As `query`.
        starts: The first key of each query's range; None for the first of all. It may be out of bounds.
        stops: The end of each query's range; None for the number of keys. It may be out of bounds.

    Returns:
        Indices; -1 if no key is in range or every score in range is -inf, -2 if a score in range is NaN. Keys out of
        range have no influence, even if they are NaN.

    Raises:
        BackendRefused: The native library cannot be used.
        DtypeError, ShapeError: A tensor has another dtype, device or shape.

    >>> query = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]])
    >>> key = torch.tensor([[[[1.0, 2.0], [3.0, 2.0], [3.0, 1.0]]]])
    >>> argmax_scores(query, key)
    tensor([[[1, 0, 0]]])
    >>> argmax_scores(query, key, starts=torch.tensor([[2, 1, 3]]))
    tensor([[[ 2,  1, -1]]])
    """
    native = load().native or require_native("qkv.ops.argmax_scores")
    _check_argmax(query, key, starts, stops)
    query, key = query.resolve_neg(), key.resolve_neg()
    starts = None if starts is None else starts.contiguous()
    stops = None if stops is None else stops.contiguous()
    result = torch.empty(query.shape[:3], dtype=torch.int64, device="cpu")
    native.argmax_scores(query, key, result, starts=starts, stops=stops, threads=torch.get_num_threads())
    return result


def _check_argmax(query: Tensor, key: Tensor, starts: Tensor | None, stops: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dtype not in _ARGMAX_DTYPES or tensor.dtype != query.dtype or not tensor.is_cpu:
            given = f"{tensor.dtype} on {tensor.device}"
            raise DtypeError(complaint(name, given, "float32, float16 or bfloat16 on the CPU, the same for both"))
        if tensor.dim() != 4:
            raise ShapeError(complaint(name, tuple(tensor.shape), "four dimensions: batch, heads, length, width"))
    batch, heads_q, len_q, width = query.shape
    heads_kv = key.shape[1]
    if key.shape[0] != batch or key.shape[3] != width or (heads_q % heads_kv if heads_kv else heads_q):
        expected = f"batch {batch}, width {width} and a number of heads that divides {heads_q}"
        raise ShapeError(complaint("key", tuple(key.shape), expected))
    for name, bound in (("starts", starts), ("stops", stops)):
        if bound is None:
            continue
        if bound.dtype != torch.int64 or not bound.is_cpu:
            raise DtypeError(complaint(name, f"{bound.dtype} on {bound.device}", "int64 on the CPU"))
        if bound.shape != (batch, len_q):
            raise ShapeError(complaint(name, tuple(bound.shape), f"{(batch, len_q)}: batch, len_q"))


def softmax_attention(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    value: Float[Tensor, "batch heads_kv len_k width_v"],
    *,
    scale: float,
    softcap: float = 0.0,
    sink: Float[Tensor, " heads_q"] | None = None,
    sigmoid: bool = False,
    offset: float = 0.0,
    decay: Mapping[str, Tensor] | None = None,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    keep: Bool[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    bias: Float[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    return_lse: bool = False,
) -> tuple[Float[Tensor, "batch heads_q len_q width_v"], Float[Tensor, "batch heads_q len_q"] | None]:
    """Softmax attention: out = Σ_j e^(s_j) v_j / Σ_j e^(s_j) and lse = log Σ_j e^(s_j).

    s is scale·q·k, capped by `softcap`, plus `bias`. Sums are float32, with the same bits for any number of threads,
    any other rows in the batch and any layout. Each key and value is read once for all the query heads that share it.
    The caller has checked shapes, dtypes and devices.

    Args:
        query: float32, float16 or bfloat16 on the CPU, of any strides; key and value too.
        key: The keys.
        value: The values.
        scale: The factor of q·k.
        softcap: c, which makes a score c·tanh(score / c); 0 for none.
        sink: A score for each head, whose exponential is added to the denominator.
        sigmoid: out = Σ_j σ(s_j + offset) v_j instead, without a denominator, softcap, sink and lse.
        offset: Added to the scores of σ.
        decay: What `qkv.forgetting.Forgetting.kernel_rule` returns, for gates.
        starts: The first attended key of each batch row.
        stops: The end of the attended keys of each batch row.
        lower: Query i attends to keys j ≥ i + lower.
        upper: Query i attends to keys j < i + upper.
        keep: True attends.
        bias: Added to the scores.
        return_lse: Whether to return lse.

    Returns:
        out and lse; lse is None without `return_lse`.

    Raises:
        BackendRefused: The native library cannot be used.

    >>> query, key, value = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 3, 2), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    >>> softmax_attention(query, key, value, scale=1.0, stops=[2])[0]
    tensor([[[[1.5000]]]])
    """
    native = load().native or require_native("qkv.ops.softmax_attention")
    batch, heads_q, len_q, _ = query.shape
    query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
    # The output gets the memory layout of the query: models transpose it back, which then copies nothing.
    heads_last = query.stride(1) < query.stride(2)
    sizes = (batch, len_q, heads_q) if heads_last else (batch, heads_q, len_q)
    out = torch.empty(*sizes, value.shape[3], dtype=query.dtype, device="cpu")
    out = out.transpose(1, 2) if heads_last else out
    lse = torch.empty(batch, heads_q, len_q, dtype=torch.float32, device="cpu") if return_lse else None
    scores = batch, heads_q, len_q, key.shape[2]
    keep = None if keep is None else keep.expand(scores)
    bias = None if bias is None else bias.to(torch.float32).resolve_neg().expand(scores)
    sink = None if sink is None else sink.to(torch.float32).expand(heads_q).contiguous()
    native.softmax_attention(
        query, key, value, out, lse=lse, starts=starts, stops=stops, lower=lower, upper=upper, keep=keep, bias=bias,
        scale=scale, softcap=softcap, sink=sink, sigmoid=sigmoid, offset=offset, **(decay or {}),
        threads=torch.get_num_threads(),
    )  # fmt: skip
    return out, lse


# The codes of the feature maps that the native library has (native/src/kernel_table.h).
IDENTITY, ELU1, RELU, SQUARED, POWER = range(5)
# Outputs of at least this many bytes use huge pages of memory.
_HUGE_PAGES_FROM, _HUGE_PAGE = 8 << 20, 2 << 20


def _advise_huge(out: Tensor) -> None:
    if out.nbytes >= _HUGE_PAGES_FROM:
        first = -(-out.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
        advise_huge_pages(first, out.nbytes // _HUGE_PAGE * _HUGE_PAGE - _HUGE_PAGE)


class FeatureRule(NamedTuple):
    """A feature map of the native library.

    Args:
        map: IDENTITY, ELU1, RELU or SQUARED, which are elementwise, or POWER, the monomials of (q·k + offset)^degree.
        width: The width of queries and keys.
        degree: The degree of POWER.
        offset: The offset of POWER.
    """

    map: int
    width: int
    degree: int = 1
    offset: float = 0.0


def linear_state_size(rule: FeatureRule, width_v: int) -> int:
    """The number of float32 in the state of one key/value head."""
    return require_native("qkv.ops.kernels.linear_state_size").linear_state_size(rule, width_v)


def linear_attention(
    query: Float[Tensor, "batch heads_q len_q width"] | None,
    key: Float[Tensor, "batch heads_kv len_k width"],
    value: Float[Tensor, "batch heads_kv len_k width_v"],
    rule: FeatureRule,
    *,
    keep: Bool[Tensor, "batch len_k"] | None = None,
    offset: int | None = None,
    normalize: bool = True,
    state: Float[Tensor, "batch heads_kv floats"] | None = None,
    direct: bool = False,
) -> Float[Tensor, "batch heads_q len_q width_v"] | None:
    """Linear attention: V'_i = φ(q_i)·S / φ(q_i)·z with S = Σ_j φ(k_j) v_jᵀ and z = Σ_j φ(k_j) over the attended keys.

    Sums are float32, with the same bits for any number of threads, any other rows in the batch and any layout. The
    caller has checked shapes, dtypes and devices.

    Args:
        query: float32, float16 or bfloat16 on the CPU, of any strides; None to add the keys to the state only.
        key: The keys, of the same dtype.
        value: The values, of the same dtype.
        rule: φ.
        keep: False drops a key for all queries, whatever its numbers are.
        offset: Query i attends to keys j ≤ i + offset; None for all keys.
        normalize: Whether to divide by φ(q_i)·z.
        state: S and z of earlier keys, `linear_state_size` numbers a head, to which these keys are added; zeros are
            the empty state.
        direct: Score these keys one by one; the state is then only read.

    Returns:
        The output; None without queries.

    Raises:
        BackendRefused: The native library cannot be used.

    >>> key, value = torch.ones(1, 1, 3, 2), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    >>> linear_attention(torch.ones(1, 1, 3, 2), key, value, FeatureRule(ELU1, 2), offset=0).flatten()
    tensor([1.0000, 1.5000, 4.0000])
    """
    native = require_native("qkv.ops.kernels.linear_attention")
    batch = key.shape[0]
    heads_q, len_q = (0, 0) if query is None else query.shape[1:3]
    key, value = key.resolve_neg(), value.resolve_neg()
    out = None
    if query is not None:
        query = query.resolve_neg()
        out = torch.empty(batch, heads_q, len_q, value.shape[3], dtype=query.dtype, device="cpu")
        _advise_huge(out)
    keep = None if keep is None else keep.contiguous()
    native.linear_attention(
        rule, query, key, value, out, keep=keep, offset=offset, normalize=normalize, state=state, direct=direct,
        threads=torch.get_num_threads(),
    )  # fmt: skip
    return out


def state_attention(
    query: Float[Tensor, "batch heads_q length width"],
    key: Float[Tensor, "batch heads_kv length width"],
    value: Float[Tensor, "batch heads_kv length width_v"],
    *,
    log_gate: Tensor | None = None,
    beta: Float[Tensor, "batch heads_kv length"] | None = None,
    rule: Literal["linear", "delta"] = "linear",
    state: Float[Tensor, "batch heads_kv width width_v"] | None = None,
    resets: Bool[Tensor, "batch length"] | None = None,
    keep: Bool[Tensor, "batch length"] | None = None,
    threads: int | None = None,
) -> Float[Tensor, "batch heads_q length width_v"]:
    """Attention with a state that decays: S' = diag(e^g) S, S = S' + k uᵀ, o = Sᵀ q for each token in turn.

    u = v by the linear rule, u = β (v - S'ᵀ k) by the delta rule. Sums are float32, with the same bits for any number
    of threads, any other rows in the batch and any layout. The caller has checked shapes, dtypes, devices and g ≤ 0.

    Args:
        query: float32, float16 or bfloat16 on the CPU, of any strides; key and value too.
        key: The keys.
        value: The values.
        log_gate: g, at most 0, -inf too, any of the three dtypes: (heads_kv,) for a constant decay, (batch, heads_kv,
            length), or (batch, heads_kv, length, width) for a gate of each channel; None for 0.
        beta: β of the delta rule, any of the three dtypes; None for 1.
        rule: "linear" or "delta".
        state: S before the first token, float32 and contiguous; it becomes S after the last one. None for 0.
        resets: True where S is 0 before the token, whether the token is kept or not.
        keep: False for a token that changes nothing, whatever its numbers are; its output is 0.
        threads: torch's number if None.

    Returns:
        o, in the memory layout of the query.

    Raises:
        BackendRefused: The native library cannot be used.
        ShapeError: `state` is not contiguous float32 of this shape.

    >>> one = torch.ones(1, 1, 3, 1)
    >>> state_attention(one, one, one, log_gate=torch.tensor([0.5]).log()).flatten()
    tensor([1.0000, 1.5000, 1.7500])
    """
    native = load().native or require_native("qkv.ops.kernels.state_attention")
    batch, heads_q, length, width = query.shape
    heads_kv, width_v = key.shape[1], value.shape[3]
    held = (batch, heads_kv, width, width_v)
    if state is not None and (state.shape != held or state.dtype != torch.float32 or not state.is_contiguous()):
        raise ShapeError(complaint("state", f"{state.dtype} {tuple(state.shape)}", f"contiguous float32 {held}"))
    query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
    heads_last = query.stride(1) < query.stride(2)
    sizes = (batch, length, heads_q) if heads_last else (batch, heads_q, length)
    out = torch.empty(*sizes, width_v, dtype=query.dtype, device="cpu")
    out = out.transpose(1, 2) if heads_last else out
    _advise_huge(out)
    if rule == "delta":
        beta = value.new_ones(()).expand(batch, heads_kv, length) if beta is None else beta.resolve_neg()
    native.state_attention(
        query, key, value, out, log_gate=None if log_gate is None else log_gate.resolve_neg(),
        beta=beta if rule == "delta" else None, keep=None if keep is None else keep.contiguous(),
        resets=None if resets is None else resets.contiguous(), state=state,
        threads=torch.get_num_threads() if threads is None else threads,
    )  # fmt: skip
    return out


cache_append: Callable[..., None] | None = None if _NATIVE is None else _NATIVE.cache_append
cache_attend: Callable[..., None] | None = None if _NATIVE is None else _NATIVE.cache_attend
# A decode step that has been checked: `fits` compares tensors with it; `run` appends, attends and updates the lengths.
NativeStep: Callable[..., Any] | None = None if _NATIVE is None else _NATIVE.DecodeStep


def advise_huge_pages(address: int, count: int) -> None:
    """Ask the system for huge pages behind these bytes; does nothing without the native library."""
    if _NATIVE is not None:
        _NATIVE.advise_huge_pages(address, count)


def populate_memory(address: int, count: int) -> None:
    """Let the system allocate the memory behind these bytes now, and not on first use; their contents stay."""
    if _NATIVE is not None:
        _NATIVE.populate_memory(address, count)


def guard_mapping(address: int, count: int) -> bool:
    """Let bytes of a mapped file that is cut off read as 255; False if a read would end the process instead."""
    return _NATIVE is not None and _NATIVE.guard_mapping(address, count)


def unguard_mapping(address: int) -> None:
    """Forget a mapping that is about to be removed."""
    if _NATIVE is not None:
        _NATIVE.unguard_mapping(address)
