"""Three ways to catch a kernel that reads what it should not.

Fill masked numbers with NaN, infinity and 1e30; fill newly allocated memory with NaN; put the same
numbers into unusual layouts, with NaN in the gaps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

POISONS = (math.nan, math.inf, -math.inf, 1e30)


def unseen_keys(attended: Tensor, heads_kv: int = 1) -> Tensor:
    """Keys that no query attends to: (..., len_q, len_k) → (..., len_k), one row per key/value head.

    With four dimensions, a key is unseen when no query head of its group attends to it.

    >>> unseen_keys(torch.tensor([[True, False, False], [False, True, False]]))
    tensor([False, False,  True])
    """
    seen = attended.any(dim=-2)
    if attended.dim() == 4:
        seen = seen.unflatten(1, (heads_kv, seen.shape[1] // max(1, heads_kv))).any(dim=2)
    return ~seen


def poison_masked(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor, *, poisons: tuple[float, ...] = POISONS
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies whose unattended parts hold NaN, ±inf and 1e30 in turn.

    Args:
        query: (..., len_q, width).
        key: (..., len_k, width).
        value: (..., len_k, width_v).
        attended: boolean (..., len_q, len_k), as in `Oracle.attended`.
        poisons: the numbers to fill with.

    Returns:
        query with the rows filled that attend to nothing; key and value with the rows filled that no query
        attends to.

    >>> x = torch.zeros(3, 2)
    >>> attended = torch.tensor([[True, False, True], [True, False, True], [False, False, False]])
    >>> q, k, v = poison_masked(x, x, x, attended, poisons=(math.nan,))
    >>> [t.isnan().any(-1).tolist() for t in (q, k, v)]
    [[False, False, True], [False, True, False], [False, True, False]]
    """
    unseen = unseen_keys(attended, key.shape[1] if key.dim() == 4 else 1)
    filled = _fill(query, ~attended.any(dim=-1), poisons), _fill(key, unseen, poisons)
    # A different poison than the key's, so that every pair of kinds occurs.
    return *filled, _fill(value, unseen, poisons[1:] + poisons[:1])


def _fill(tensor: Tensor, rows: Tensor, poisons: tuple[float, ...]) -> Tensor:
    """`tensor` with rows (..., n) of (..., n, width) replaced, the poisons taking turns."""
    filled, turns = tensor.clone(), torch.arange(int(rows.sum())) % len(poisons)
    filled[rows] = torch.tensor(poisons, dtype=torch.float64).to(tensor.dtype)[turns, None]
    return filled


_EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted")
_ALLOCATORS = {getattr(torch, name) for name in _EMPTY} | {Tensor.new_empty, Tensor.new_empty_strided}


class _PoisonAllocations(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATORS and made.is_floating_point() and made.device.type != "meta":
            with torch.no_grad():
                made.fill_(math.nan)
        return made


def poisoned_memory() -> AbstractContextManager[Any]:
    """Inside, torch.empty, empty_like, empty_strided, new_empty and similar functions return NaN.

    Returns:
        A context manager.

    >>> with poisoned_memory():
    ...     torch.empty(2), torch.zeros(1).new_empty(1)
    (tensor([nan, nan]), tensor([nan]))

    It covers allocations made from Python in the current thread, including results of native backends,
    which qkv allocates there. Integer tensors are not filled.
    """
    return _PoisonAllocations()


def transposed(tensor: Tensor) -> Tensor:
    """Stored column by column: the second to last axis has stride 1."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def heads_last(tensor: Tensor) -> Tensor:
    """Stored (batch, length, heads, width), as projections return it; unchanged below three axes."""
    if tensor.dim() < 3:
        return tensor.contiguous()
    return tensor.transpose(-2, -3).contiguous().transpose(-2, -3)


def reversed_axes(tensor: Tensor) -> Tensor:
    """Stored with all axes in the opposite order."""
    return tensor.permute(*range(tensor.dim())[::-1]).contiguous().permute(*range(tensor.dim())[::-1])


def strided_columns(tensor: Tensor) -> Tensor:
    """Every second number of a row, with NaN between them."""
    return _inside(tensor, -1, 2, lambda larger, size: larger[..., : 2 * size : 2])


def strided_rows(tensor: Tensor) -> Tensor:
    """Every second row, with NaN between them."""
    return _inside(tensor, -2, 2, lambda larger, size: larger[..., : 2 * size : 2, :])


def sliced(tensor: Tensor) -> Tensor:
    """The middle columns of a wider tensor, as a packed qkv projection is cut; NaN on both sides."""
    return _inside(tensor, -1, 3, lambda larger, size: larger[..., size : 2 * size])


def misaligned(tensor: Tensor) -> Tensor:
    """One element off every alignment, inside a longer storage."""
    storage = tensor.new_full((tensor.numel() + 8,), math.nan)
    view = storage[1 : 1 + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


def expanded(tensor: Tensor) -> Tensor:
    """Stride 0 along every axis whose entries are all equal; contiguous when there is none."""
    view = tensor.contiguous()
    for axis in range(tensor.dim()):
        if view.shape[axis] == 0:
            continue
        first = view.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(tensor), tensor):
            view = first.as_strided(tensor.shape, [0 if a == axis else s for a, s in enumerate(view.stride())])
    return view


def _inside(tensor: Tensor, axis: int, times: int, cut: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Copy into a view of a larger tensor that is full of NaN."""
    shape = list(tensor.shape)
    shape[axis] *= times
    view = cut(tensor.new_full(shape, math.nan), tensor.shape[axis])
    view.copy_(tensor)
    return view


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "transposed": transposed,
    "heads_last": heads_last,
    "reversed_axes": reversed_axes,
    "step_two": strided_columns,
    "step_two_rows": strided_rows,
    "sliced": sliced,
    "misaligned": misaligned,
    "expanded": expanded,
}


def layouts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same numbers in many memory layouts: pairs of a name and a tensor.

    Args:
        tensor: Any shape.

    Returns:
        The pairs, one after another.

    >>> names = [name for name, same in layouts(torch.arange(6.0).reshape(2, 3))]
    >>> names[:3]
    ['contiguous', 'transposed', 'heads_last']
    """
    for name, lay_out in LAYOUTS.items():
        yield name, lay_out(tensor.detach())
