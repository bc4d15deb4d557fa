"""`Segments`: several documents packed into one sequence, each attending to itself only."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from qkv.errors import MaskError, MaskTypeError, complaint
from qkv.masks.base import Mask, Sizes, hull
from qkv.masks.grid import Extent, Grid, Range, Region, as_integers, brief_repr, describe, is_tensor, shape_of, to_numpy


class Segments(Mask):
    """A query attends to the keys whose id equals its own.

    Args:
        query_ids: integers (batch, len_q), or (len_q,) when all batch rows are packed alike. Ids may be any integers
            in any order. Padding attends to padding of the same id: give it an id that no document has.
        key_ids: the same over keys, (batch, len_k) or (len_k,); the query ids when left out.

    >>> packed = Segments([0, 0, 0, 1, 1])
    >>> packed.population(len_q=5, len_k=5)
    13
    >>> from qkv.masks import Causal
    >>> (packed & Causal()).population(len_q=5, len_k=5)
    9

    A query whose id no key has attends to nothing.
    """

    __slots__ = ("key_ids", "query_ids")
    query_ids: Any
    key_ids: Any

    def __init__(self, query_ids: Any, key_ids: Any = None) -> None:
        queries = _read_ids("query_ids", query_ids, "len_q")
        keys = queries if key_ids is None else _read_ids("key_ids", key_ids, "len_k")
        super().__init__(query_ids=queries, key_ids=keys)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens_q: Any, cu_seqlens_k: Any = None) -> Segments:
        """From cumulative lengths: document d has the positions `cu_seqlens[d]` to `cu_seqlens[d + 1] - 1`.

        Args:
            cu_seqlens_q: integers (documents + 1,) that start at 0 and never decrease.
            cu_seqlens_k: the same over keys; `cu_seqlens_q` when left out.

        >>> Segments.from_cu_seqlens([0, 3, 5]).query_ids.tolist()
        [0, 0, 0, 1, 1]
        """
        queries = boundaries("cu_seqlens_q", cu_seqlens_q)
        keys = None if cu_seqlens_k is None else boundaries("cu_seqlens_k", cu_seqlens_k)
        if keys is not None and len(keys) != len(queries):
            wanted = f"{len(queries) - 1}, as in cu_seqlens_q"
            raise MaskError(complaint("cu_seqlens_k", f"{len(keys) - 1} documents", wanted))
        return cls(_ids_from_boundaries(queries, cu_seqlens_q), _ids_from_boundaries(keys, cu_seqlens_k))

    def __repr__(self) -> str:
        keys = "" if self.key_ids is self.query_ids else f", {brief_repr(self.key_ids)}"
        return f"Segments({brief_repr(self.query_ids)}{keys})"

    def _resolve(self, extent: Extent, offsets: tuple[int, ...]) -> Mask:
        shared = "give key_ids= when there are other keys than queries" if self.key_ids is self.query_ids else ""
        named = (("query_ids", self.query_ids, extent.len_q), ("key_ids", self.key_ids, extent.len_k))
        for name, ids, length in named:
            if (shape := shape_of(ids)) not in ((length,), (extent.batch, length)):
                wanted = f"shape {(extent.batch, length)} or {(length,)}"
                raise MaskError(complaint(_argument(name), f"shape {shape}", wanted, shared))
        return self

    def cells(self, grid: Grid) -> Any:
        queries, keys = _with_batch(self.query_ids), _with_batch(self.key_ids)
        return grid.cut(queries[:, None, :, None]) == grid.cut(keys[:, None, None])

    def _cut(self, extent: Extent, region: Region) -> Mask:
        own = [ids if ids.ndim == 1 else ids[slice(*region.batch)] for ids in (self.query_ids, self.key_ids)]
        return Segments(own[0][..., slice(*region.rows)], own[1][..., slice(*region.keys)])

    def _bounds(self, extent: Extent, rows: Range) -> Range:
        documents = self.documents_by_row(extent)
        if documents is None:
            return 0, extent.len_k
        return hull((j0, j1) for row in documents for i0, i1, j0, j1 in row if i0 < rows[1] and rows[0] < i1)

    def _ids_of_row(self, batch: int) -> tuple[Any, Any]:
        """The ids of one batch row's queries and keys, in numpy."""
        queries, keys = (to_numpy(_with_batch(ids)) for ids in (self.query_ids, self.key_ids))
        return queries[min(batch, len(queries) - 1)], keys[min(batch, len(keys) - 1)]

    def documents_by_row(self, extent: Extent) -> list[list[tuple[int, int, int, int]]] | None:
        """For each batch row the documents as (first query, last query + 1, first key, last key + 1).

        None when a document is not one run of queries and one run of keys. Reads the ids.

        >>> from qkv.masks import Extent
        >>> Segments([7, 7, 4], [7, 4, 4, 4]).documents_by_row(Extent(1, 1, 3, 4))
        [[(0, 2, 0, 1), (2, 3, 1, 4)]]
        """
        return self._cached("documents", extent.batch, lambda: self._documents(extent.batch))

    def _documents(self, batch: int) -> list[list[tuple[int, int, int, int]]] | None:
        rows = []
        for b in range(batch):
            queries, keys = (_runs(ids) for ids in self._ids_of_row(b))
            if queries is None or keys is None:
                return None
            rows.append([(*queries[label], *keys[label]) for label in queries if label in keys])
        return rows

    def _own_sizes(self) -> Sizes:
        shapes = shape_of(self.query_ids), shape_of(self.key_ids)
        batch = next((shape[0] for shape in shapes if len(shape) == 2), None)
        return batch, None, shapes[0][-1], shapes[1][-1]


def _argument(name: str) -> str:
    return f"{name} (of a Segments mask)"


def _read_ids(argument: str, given: Any, length: str) -> Any:
    ids = as_integers(_argument(argument), given, f"(batch, {length}) or ({length},)")
    if ids.ndim not in (1, 2):
        wanted = f"shape (batch, {length}) or ({length},)"
        raise MaskError(complaint(_argument(argument), f"shape {shape_of(ids)}", wanted))
    return ids


def _runs(ids: Any) -> dict[int, tuple[int, int]] | None:
    """The run of each id, (first, last + 1); None when an id comes back after another one."""
    import numpy as np

    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)] if len(ids) else [0]
    runs = {int(ids[first]): (first, last) for first, last in pairwise(edges)}
    return runs if len(runs) == len(edges) - 1 else None


def _with_batch(ids: Any) -> Any:
    return ids if ids.ndim == 2 else ids[None]


def boundaries(argument: str, given: Any) -> list[int]:
    """Cumulative lengths as Python integers, checked to start at 0 and never decrease."""
    wanted, hint = "integers that start at 0 and never decrease", "put a 0 before the cumulative lengths"
    if given is None:
        raise MaskTypeError(complaint(argument, None, wanted))
    array = to_numpy(as_integers(argument, given, "(documents + 1,)"))
    if array.ndim != 1:
        raise MaskError(complaint(argument, describe(given), f"one dimension of {wanted}"))
    numbers = array.tolist()
    if not numbers or numbers[0] != 0:
        first = f"{numbers[0]} first" if numbers else "an empty list"
        raise MaskError(complaint(argument, first, wanted, hint))
    for index, (one, following) in enumerate(pairwise(numbers), 1):
        if following < one:
            found = f"{one} and then {following} at index {index}"
            raise MaskError(complaint(argument, found, wanted, "give cumulative lengths, not lengths"))
    return numbers


def _ids_from_boundaries(boundaries: list[int] | None, given: Any) -> Any:
    """The document of every position: a tensor on the device of `given` when that is a tensor, else a numpy array."""
    if boundaries is None:
        return None
    import numpy as np

    ids = np.repeat(np.arange(len(boundaries) - 1), np.diff(boundaries))
    if not is_tensor(given):
        return ids
    import torch

    return torch.from_numpy(ids).to(given.device)
