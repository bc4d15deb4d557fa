"""Is there a NaN or an infinity anywhere?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .capability import load
from .dtypes import CODE

_native = load().native
_scan = None if _native is None else _native.all_finite
# In elements of any size, so that the hot path need not ask for it.
_LARGE = 0 if _native is None else _native.finite_parallel_bytes // 8
# Other classes may keep their numbers elsewhere, or nowhere (FakeTensor).
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


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
        code = CODE.get(tensor.dtype, -1) if type(tensor) in _PLAIN else -1
        try:
            address = tensor.data_ptr() if code >= 0 and tensor.is_cpu and tensor.is_contiguous() else 0
        except RuntimeError:  # sparse tensors and torch.func's wrappers have no memory of their own
            address = 0
        if address and _scan is not None:
            count = tensor.numel()
            if not _scan(address, count, code, 1 if count < _LARGE else torch.get_num_threads()):
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
    # One pass over memory: a NaN or an infinity is never lost in a sum. Finite numbers may overflow it.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return math.isfinite(total.item()) or bool(torch.isfinite(tensor).all())
