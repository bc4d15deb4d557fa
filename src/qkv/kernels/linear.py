"""Attention by features in time linear in the lengths, on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import FormRefused
from ..shapes import Bool, Float
from .capability import load
from .dtypes import CODE

# The library's numbers for the maps that it knows.
IDENTITY, ELU1, RELU, SQUARED, POWER = range(5)
# An answer from so many bytes on is long enough to ask for large pages of the system's.
_LARGE, _HUGE = 8 << 20, 2 << 20


class Rule(NamedTuple):
    """What φ is: an elementwise map of vectors of this width, or, for POWER, the monomials of (q·k + offset)^degree."""

    map: int
    width: int
    degree: int = 1
    offset: float = 0.0


def state_floats(rule: Rule, width_v: int) -> int:
    """How many float32 the state of one key/value head takes."""
    return _native().linear_state_floats(*rule, width_v)


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
    native = _native()
    batch, heads_kv, len_k, _ = key.shape
    heads_q, len_q = (heads_kv, 0) if query is None else query.shape[1:3]
    key, value = key.resolve_neg(), value.resolve_neg()
    out = None
    if query is not None:
        query = query.resolve_neg()
        out = torch.empty(batch, heads_q, len_q, value.shape[3], dtype=query.dtype, device="cpu")
        if out.nbytes >= _LARGE:
            native.advise_huge(-(-out.data_ptr() // _HUGE) * _HUGE, out.nbytes // _HUGE * _HUGE - _HUGE)
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


def _native():
    native = load().native
    if native is None:
        raise FormRefused("kernels.linear needs the native library", load().reasons)
    return native
