"""Numbers that must not matter, and cache that must not be read.

Three ways to catch a kernel that reads what it should not: fill what is masked with NaN, infinity
and 1e30; fill freshly allocated cache with NaN; put the same numbers into unusual layouts, with NaN
in the gaps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

POISONS = (math.nan, math.inf, -math.inf, 1e30)


def unseen_keys(attended: Tensor, heads_kv: int = 1) -> Tensor:
    """Keys that no query attends to: (..., len_q, len_k) → (..., len_k), one line per key/value head.

    With four dimensions, a key is unseen when no query head of its group attends to it.

    >>> unseen_keys(torch.tensor([[True, False, False], [False, True, False]]))
    tensor([False, False,  True])
    """
    seen = attended.any(dim=-2)
    if attended.dim() == 4:
        batch, heads, keys = seen.shape
        seen = seen.reshape(batch, heads_kv, heads // heads_kv if heads_kv else 1, keys).any(dim=2)
    return ~seen


def poison_masked(
    query: Tensor, key: Tensor, value: Tensor, attended: Tensor, *, poisons: tuple[float, ...] = POISONS
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies whose unattended parts hold NaN, ±inf and 1e30 in turn.

    attended: boolean (..., len_q, len_k), as in `Oracle.attended`. Keys and values that no query
    attends to are filled, and so are queries that attend to nothing.

    >>> x = torch.zeros(3, 2)
    >>> attended = torch.tensor([[True, False, True], [True, False, True], [False, False, False]])
    >>> q, k, v = poison_masked(x, x, x, attended, poisons=(math.nan,))
    >>> [t.isnan().any(-1).tolist() for t in (q, k, v)]
    [[False, False, True], [False, True, False], [False, True, False]]
    """
    unseen = unseen_keys(attended, key.shape[1] if key.dim() == 4 else 1)
    return (
        _fill(query, ~attended.any(dim=-1), poisons),
        _fill(key, unseen, poisons),
        # Another poison than the key's, so that every pair of kinds occurs.
        _fill(value, unseen, poisons[1:] + poisons[:1]),
    )


def _fill(tensor: Tensor, rows: Tensor, poisons: tuple[float, ...]) -> Tensor:
    """`tensor` with rows (..., n) of (..., n, width) replaced, the poisons taking turns."""
    filled = tensor.clone()
    count = int(rows.sum())
    turns = torch.tensor(poisons, dtype=torch.float64)[torch.arange(count) % len(poisons)]
    filled[rows] = turns.to(tensor.dtype)[:, None].expand(count, tensor.shape[-1])
    return filled


_ALLOCATORS: set[Any] = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.empty_permuted,
    Tensor.new_empty,
    Tensor.new_empty_strided,
}


class _Poisoning(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATORS and made.is_floating_point() and made.device.type != "meta":
            with torch.no_grad():
                made.fill_(math.nan)
        return made


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, torch.empty, empty_like, empty_strided, new_empty and their like give NaN instead of leftovers.

    >>> with poisoned_memory():
    ...     torch.empty(2), torch.zeros(1).new_empty(1)
    (tensor([nan, nan]), tensor([nan]))

    It holds for allocations made from Python in the current thread, those of native backends included,
    since qkv allocates their results there. Integers keep what they have.
    """
    with _Poisoning():
        yield


def _permuted(tensor: Tensor, order: list[int]) -> Tensor:
    """The same numbers, stored with the axes in another order."""
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)


def transposed(tensor: Tensor) -> Tensor:
    """Stored column by column: the last axis has a stride, the one before it has none."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def heads_last(tensor: Tensor) -> Tensor:
    """Stored (batch, length, heads, width), as projections leave it; below three axes as it is."""
    if tensor.dim() < 3:
        return tensor.contiguous()
    order = [*range(tensor.dim() - 3), tensor.dim() - 2, tensor.dim() - 3, tensor.dim() - 1]
    return _permuted(tensor, order)


def reversed_axes(tensor: Tensor) -> Tensor:
    """Stored with all axes in the opposite order."""
    return _permuted(tensor, list(reversed(range(tensor.dim()))))


def step_two(tensor: Tensor) -> Tensor:
    """Every second number of a row; NaN lies between."""
    return _inside(tensor, -1, lambda room, size: room.narrow(-1, 0, 2 * size)[..., ::2] if size else room[..., :0], 2)


def step_two_rows(tensor: Tensor) -> Tensor:
    """Every second row; NaN lies between."""
    return _inside(tensor, -2, lambda room, size: room[..., ::2, :] if size else room[..., :0, :], 2)


def sliced(tensor: Tensor) -> Tensor:
    """The middle columns of a wider tensor, as a packed qkv projection is cut; NaN on both sides."""
    return _inside(tensor, -1, lambda room, size: room.narrow(-1, size, size), 3)


def misaligned(tensor: Tensor) -> Tensor:
    """One element off every alignment, at the end of a longer storage."""
    room = tensor.new_full((tensor.numel() + 8,), math.nan)
    view = room[1 : 1 + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


def expanded(tensor: Tensor) -> Tensor:
    """Stride 0 along every axis whose entries are all equal; as it is when there is none."""
    view = tensor.contiguous()
    for axis in range(tensor.dim()):
        if view.shape[axis] == 0:
            continue
        first = view.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(tensor), tensor):
            view = first.as_strided(tensor.shape, [0 if a == axis else s for a, s in enumerate(view.stride())])
    return view


def _inside(tensor: Tensor, axis: int, cut: Callable[[Tensor, int], Tensor], times: int) -> Tensor:
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
    "step_two": step_two,
    "step_two_rows": step_two_rows,
    "sliced": sliced,
    "misaligned": misaligned,
    "expanded": expanded,
}


def layouts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same numbers in many cache layouts, each with its name.

    >>> names = [name for name, same in layouts(torch.arange(6.0).reshape(2, 3))]
    >>> names[:3]
    ['contiguous', 'transposed', 'heads_last']
    """
    for name, lay_out in LAYOUTS.items():
        yield name, lay_out(tensor.detach())
