"""Native kernels on torch tensors: finite scan, argmax of scores, softmax and linear attention, and a cache's pages.

The functions for a cache's pages are the library's own, bound here once: one decode step calls both, and a Python
wrapper around each would cost as much as the call. They take addresses and sizes that `qkv.cache` has checked; None
stands for a function that is not available, and `qkv.ops.reasons()` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import BackendRefused, DtypeError, ShapeError, complaint
from ..shapes import Bool, Float, Int64
from .loader import load

# The native library's numbers for dtypes (native/src/dtype.h).
CODE = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}

# The strides that go with address 0.
NOTHING = (0, 0, 0, 0)


_NATIVE = load().native
_scan = None if _NATIVE is None else _NATIVE.all_finite
# In elements of any size, so that the hot path need not ask for it.
_PARALLEL_FROM = 0 if _NATIVE is None else _NATIVE.finite_parallel_bytes // 8
# Other classes may keep their numbers elsewhere, or nowhere (FakeTensor).
_PLAIN_TENSORS = frozenset({Tensor, torch.nn.Parameter})


def all_finite(*tensors: Tensor) -> bool:
    """Whether ∀ x ∈ tensors: |x| < ∞, for tensors of any shapes, dtypes, layouts and devices.

    Contiguous floating-point tensors in main memory are scanned by the native library, all others by torch.
    Empty tensors, and no tensors at all, are finite.

    >>> all_finite(torch.ones(2, 3), torch.tensor([1.0, 65504.0], dtype=torch.float16))
    True
    >>> all_finite(torch.ones(2, 3), torch.tensor([1.0, float("nan")]))
    False
    """
    for tensor in tensors:
        code = CODE.get(tensor.dtype, -1) if type(tensor) in _PLAIN_TENSORS else -1
        try:
            address = tensor.data_ptr() if code >= 0 and tensor.is_cpu and tensor.is_contiguous() else 0
        except RuntimeError:  # sparse tensors and torch.func's wrappers have no cache of their own
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
    if tensor.dtype not in CODE:  # eight bits have no arithmetic
        tensor = tensor.to(torch.float32)
    # One pass over cache: a NaN or an infinity is never lost in a sum. Finite numbers may overflow it.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return math.isfinite(total.item()) or bool(torch.isfinite(tensor).all())


_ARGMAX_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def argmax_scores(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    starts: Int64[Tensor, "batch len_q"] | None = None,
    stops: Int64[Tensor, "batch len_q"] | None = None,
) -> Int64[Tensor, "batch heads_q len_q"]:
    """For each query the index of the key with the largest score, over the keys in its range.

        result[b, h, i] = argmax over starts[b, i] ≤ j < stops[b, i] of Σ_c query[b, h, i, c] · key[b, g, j, c]

    with g = h // (heads_q // heads_kv). No `starts`: from the first key; no `stops`: to the last. Sums are float32,
    one rounding after the other in the order of c, for every pair alike: equal keys tie exactly, the lowest index
    wins, and the answer does not depend on threads, on the rest of the batch or on the layout.

    -1 where nothing is in range or every score in range is -inf; -2 where a score in range is NaN. Keys out of
    range cannot matter, NaN included; ranges may reach beyond the keys. float32, float16 and bfloat16 tensors in
    main memory, of any strides; the extra memory is a float32 copy of the keys at most.

    >>> query = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]])
    >>> key = torch.tensor([[[[1.0, 2.0], [3.0, 2.0], [3.0, 1.0]]]])
    >>> argmax_scores(query, key)
    tensor([[[1, 0, 0]]])
    >>> argmax_scores(query, key, starts=torch.tensor([[2, 1, 3]]))
    tensor([[[ 2,  1, -1]]])
    """
    native = load().native
    if native is None:
        raise BackendRefused("kernels.argmax_scores needs the native library", load().reasons)
    _check_argmax(query, key, starts, stops)
    query, key = query.resolve_neg(), key.resolve_neg()
    starts = None if starts is None else starts.contiguous()
    stops = None if stops is None else stops.contiguous()
    result = torch.empty(query.shape[:3], dtype=torch.int64, device="cpu")
    native.argmax_scores(
        CODE[query.dtype],
        query.shape,
        key.shape,
        query.data_ptr(),
        query.stride(),
        key.data_ptr(),
        key.stride(),
        0 if starts is None else starts.data_ptr(),
        0 if stops is None else stops.data_ptr(),
        result.data_ptr(),
        torch.get_num_threads(),
    )
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
        wanted = f"batch {batch}, width {width} and a number of heads that divides {heads_q}"
        raise ShapeError(complaint("key", tuple(key.shape), wanted))
    for name, bound in (("starts", starts), ("stops", stops)):
        if bound is None:
            continue
        if bound.dtype != torch.int64 or not bound.is_cpu:
            raise DtypeError(complaint(name, f"{bound.dtype} on {bound.device}", "int64 on the CPU"))
        if bound.shape != (batch, len_q):
            raise ShapeError(complaint(name, tuple(bound.shape), f"{(batch, len_q)}: batch, len_q"))


def attend_plain(
    query: Float[Tensor, "batch heads_q len_q width"],
    key: Float[Tensor, "batch heads_kv len_k width"],
    value: Float[Tensor, "batch heads_kv len_k width_v"],
    *,
    scale: float,
    softcap: float | None = None,
    sink: Float[Tensor, " heads_q"] | None = None,
    starts: Sequence[int] | None = None,
    stops: Sequence[int] | None = None,
    lower: int | None = None,
    upper: int | None = None,
    keep: Bool[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    bias: Float[Tensor, "#batch #heads_q #len_q #len_k"] | None = None,
    return_lse: bool = False,
) -> tuple[Float[Tensor, "batch heads_q len_q width_v"], Float[Tensor, "batch heads_q len_q"] | None]:
    """out = Σ_j e^(s_j) v_j / Σ_j e^(s_j) and lse = log Σ_j e^(s_j), s = scale·q·k, then softcap, then + bias.

    Query i of row b sees the keys j with starts[b] ≤ j < stops[b], i + lower ≤ j < i + upper and keep[b, h, i, j], as
    far as each is given. float32, float16 and bfloat16 tensors in main memory of any strides; sums are float32, and
    the same bits for any number of threads, any batch companions and any layout. Each key and value is read once for
    all the query heads that share it. A sink adds to the lower sum. The caller has checked the shapes.

    >>> query, key, value = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 3, 2), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    >>> attend_plain(query, key, value, scale=1.0, stops=[2])[0]
    tensor([[[[1.5000]]]])
    """
    native = load().native
    if native is None:
        raise BackendRefused("kernels.attend_plain needs the native library", load().reasons)
    batch, heads_q, len_q, _ = query.shape
    query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
    # An answer as its query lies in memory: models turn it back, which then moves nothing.
    heads_last = query.stride(1) < query.stride(2)
    sizes = (batch, len_q, heads_q) if heads_last else (batch, heads_q, len_q)
    out = torch.empty(*sizes, value.shape[3], dtype=query.dtype, device="cpu")
    lse = torch.empty(batch, heads_q, len_q, dtype=torch.float32, device="cpu") if return_lse else None
    scores = batch, heads_q, len_q, key.shape[2]
    keep = None if keep is None else keep.expand(scores)
    bias = None if bias is None else bias.to(torch.float32).resolve_neg().expand(scores)
    sink = None if sink is None else sink.to(torch.float32).expand(heads_q).contiguous()
    bounds = [None if bound is None else np.asarray(bound, dtype=np.int64) for bound in (starts, stops)]
    native.attend_plain(
        CODE[query.dtype],
        query.shape,
        key.shape,
        value.shape[3],
        query.data_ptr(),
        query.stride(),
        key.data_ptr(),
        key.stride(),
        value.data_ptr(),
        value.stride(),
        out.data_ptr(),
        0 if lse is None else lse.data_ptr(),
        *(0 if bound is None else bound.ctypes.data for bound in bounds),
        lower,
        upper,
        0 if keep is None else keep.data_ptr(),
        NOTHING if keep is None else keep.stride(),
        0 if bias is None else bias.data_ptr(),
        NOTHING if bias is None else bias.stride(),
        scale,
        softcap or 0.0,
        0 if sink is None else sink.data_ptr(),
        heads_last,
        torch.get_num_threads(),
    )
    return out.transpose(1, 2) if heads_last else out, lse


# The library's numbers for the maps that it knows.
IDENTITY, ELU1, RELU, SQUARED, POWER = range(5)
# An answer from so many bytes on is long enough to ask for large pages of the system's.
_HUGE_PAGES_FROM, _HUGE_PAGE = 8 << 20, 2 << 20


class Rule(NamedTuple):
    """What φ is: an elementwise map of vectors of this width, or, for POWER, the monomials of (q·k + offset)^degree."""

    map: int
    width: int
    degree: int = 1
    offset: float = 0.0


def state_floats(rule: Rule, width_v: int) -> int:
    """How many float32 the state of one key/value head takes."""
    return _native_for_linear().linear_state_floats(*rule, width_v)


def linear(
    query: Float[Tensor, "batch heads_q len_q width"] | None,
    key: Float[Tensor, "batch heads_kv len_k width"],
    value: Float[Tensor, "batch heads_kv len_k width_v"],
    rule: Rule,
    *,
    keep: Bool[Tensor, "batch len_k"] | None = None,
    offset: int | None = None,
    normalize: bool = True,
    state: Float[Tensor, "batch heads_kv floats"] | None = None,
    direct: bool = False,
) -> Float[Tensor, "batch heads_q len_q width_v"] | None:
    """V'_i = φ(q_i)·S / φ(q_i)·z with S = Σ_j φ(k_j) v_jᵀ and z = Σ_j φ(k_j), over the keys j that query i sees.

    offset: j ≤ i + offset, or all for None. keep: False where a key counts for nobody, whatever it holds. state: what
    came before, of `state_floats` numbers a head, to which these keys are added; zeros are nothing. direct: these keys
    are scored one by one, and the state is only read. query: None only adds to the state.
    float32, float16 and bfloat16 tensors in main memory of any strides; sums are float32, and the same bits for any
    number of threads, any batch companions and any layout. The caller has checked the shapes.

    >>> key, value = torch.ones(1, 1, 3, 2), torch.tensor([[[[1.0], [2.0], [9.0]]]])
    >>> linear(torch.ones(1, 1, 3, 2), key, value, Rule(ELU1, 2), offset=0).flatten()
    tensor([1.0000, 1.5000, 4.0000])
    """
    native = _native_for_linear()
    batch, heads_kv, len_k, _ = key.shape
    heads_q, len_q = (heads_kv, 0) if query is None else query.shape[1:3]
    key, value = key.resolve_neg(), value.resolve_neg()
    out = None
    if query is not None:
        query = query.resolve_neg()
        out = torch.empty(batch, heads_q, len_q, value.shape[3], dtype=query.dtype, device="cpu")
        if out.nbytes >= _HUGE_PAGES_FROM:
            native.advise_huge(
                -(-out.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE, out.nbytes // _HUGE_PAGE * _HUGE_PAGE - _HUGE_PAGE
            )
    keep = None if keep is None else keep.contiguous()
    native.linear(
        *rule,
        CODE[key.dtype],
        (batch, heads_q, heads_kv, len_q),
        (len_k, value.shape[3]),
        0 if query is None else query.data_ptr(),
        (0, 0, 0, 0) if query is None else query.stride(),
        key.data_ptr(),
        key.stride(),
        value.data_ptr(),
        value.stride(),
        0 if keep is None else keep.data_ptr(),
        offset,
        normalize,
        0 if out is None else out.data_ptr(),
        0 if state is None else state.data_ptr(),
        direct,
        torch.get_num_threads(),
    )
    return out


def _native_for_linear():
    native = load().native
    if native is None:
        raise BackendRefused("kernels.linear needs the native library", load().reasons)
    return native


memory_append: Callable[..., None] | None = None if _NATIVE is None else _NATIVE.memory_append
memory_attend: Callable[..., None] | None = None if _NATIVE is None else _NATIVE.memory_attend
# A step that was checked: `fits` says whether tensors look the same, `run` appends, attends and counts.
NativeStep: Callable[..., Any] | None = None if _NATIVE is None else _NATIVE.Step


def advise_huge(address: int, count: int) -> None:
    """Ask for large pages of memory behind these bytes; without the native library nothing is asked."""
    if _NATIVE is not None:
        _NATIVE.advise_huge(address, count)


def populate(address: int, count: int) -> None:
    """Have the system find the cache behind these bytes now; what is in it stays. Without the library, later."""
    if _NATIVE is not None:
        _NATIVE.populate(address, count)
