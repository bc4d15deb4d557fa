"""Segments: several documents packed into one sequence, each attending to itself only."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qkv.errors import MaskError, MaskTypeError, complaint
from qkv.masks.arrays import brief, described, integers, is_tensor, shape_of, to_numpy, version
from qkv.masks.base import Mask

if TYPE_CHECKING:
    from qkv.masks.base import Known
    from qkv.masks.grid import Extent, Grid, Part


class Segments(Mask):
    """A query sees the keys whose id equals its own.

    `query_ids` are integers (batch, len_q), or (len_q,) when all batch rows are packed alike; `key_ids`
    likewise over keys, and are the query ids when left out. Ids may be any integers in any order, and
    each equals itself: give padding an id that no other document has.

    >>> packed = Segments([0, 0, 0, 1, 1])
    >>> packed.population(len_q=5, len_k=5)
    13
    >>> from qkv.masks import Causal
    >>> (packed & Causal()).population(len_q=5, len_k=5)
    9

    A query whose id no key has sees nothing.
    """

    __slots__ = ("key_ids", "query_ids")
    query_ids: Any
    key_ids: Any

    def __init__(self, query_ids: Any, key_ids: Any = None) -> None:
        queries = _ids("query_ids", query_ids, "len_q")
        keys = queries if key_ids is None else _ids("key_ids", key_ids, "len_k")
        signature = ("Segments", shape_of(queries), shape_of(keys))
        self._fill(signature, query_ids=queries, key_ids=keys)

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens_q: Any, cu_seqlens_k: Any = None) -> Segments:
        """From cumulative lengths: document d has the positions `cu_seqlens[d]` to `cu_seqlens[d + 1] - 1`.

        >>> Segments.from_cu_seqlens([0, 3, 5]).query_ids.tolist()
        [0, 0, 0, 1, 1]
        """
        queries = boundaries("cu_seqlens_q", cu_seqlens_q)
        if cu_seqlens_k is None:
            return cls(_spread(queries, cu_seqlens_q))
        keys = boundaries("cu_seqlens_k", cu_seqlens_k)
        if len(keys) != len(queries):
            wanted = f"{len(queries) - 1}, as in cu_seqlens_q"
            raise MaskError(complaint("cu_seqlens_k", f"{len(keys) - 1} documents", wanted))
        return cls(_spread(queries, cu_seqlens_q), _spread(keys, cu_seqlens_k))

    def __repr__(self) -> str:
        keys = "" if self.key_ids is self.query_ids else f", {brief(self.key_ids)}"
        return f"Segments({brief(self.query_ids)}{keys})"

    def _resolve(self, extent: Extent, beside: tuple[int, ...]) -> Mask:
        shared = "key_ids= is needed when keys are not the queries" if self.key_ids is self.query_ids else ""
        named = (("query_ids", self.query_ids, extent.len_q), ("key_ids", self.key_ids, extent.len_k))
        for name, ids, length in named:
            shape = shape_of(ids)
            if shape != (length,) and shape != (extent.batch, length):
                wanted = f"shape {(extent.batch, length)} or {(length,)}"
                raise MaskError(complaint(_called(name), f"shape {shape}", wanted, shared))
        return self

    def _cells(self, grid: Grid) -> Any:
        (i0, i1), (j0, j1) = grid.rows, grid.keys
        queries = grid.hold(_by_row(self.query_ids)[:, None, i0:i1, None])
        return queries == grid.hold(_by_row(self.key_ids)[:, None, None, j0:j1])

    def _allows(self, batch: int, head: int, query: int, key: int, extent: Extent) -> bool:
        return _at(self.query_ids, batch, query) == _at(self.key_ids, batch, key)

    def _part(self, extent: Extent, place: Part) -> Mask:
        own = [ids if ids.ndim == 1 else ids[slice(*place.batch)] for ids in (self.query_ids, self.key_ids)]
        return Segments(own[0][..., slice(*place.rows)], own[1][..., slice(*place.keys)])

    def _bounds(self, extent: Extent, rows: tuple[int, int]) -> tuple[int, int]:
        documents = self.documents_by_row(extent)
        if documents is None:
            return 0, extent.len_k
        met = [(j0, j1) for row in documents for i0, i1, j0, j1 in row if i0 < rows[1] and rows[0] < i1]
        return min((first for first, _ in met), default=0), max((last for _, last in met), default=0)

    def _labels(self, batch: int) -> tuple[Any, Any]:
        """The ids of one batch row's queries and keys, in numpy."""
        queries, keys = (to_numpy(_by_row(ids)) for ids in (self.query_ids, self.key_ids))
        return queries[min(batch, len(queries) - 1)], keys[min(batch, len(keys) - 1)]

    def documents_by_row(self, extent: Extent) -> list[list[tuple[int, int, int, int]]] | None:
        """For each batch row the documents as (first query, last + 1, first key, last + 1).

        None when a document is not one run of queries and one run of keys. Reads the ids.

        >>> from qkv.masks import Extent
        >>> Segments([7, 7, 4], [7, 4, 4, 4]).documents_by_row(Extent(1, 1, 3, 4))
        [[(0, 2, 0, 1), (2, 3, 1, 4)]]
        """
        key = version(self.query_ids), version(self.key_ids), extent.batch
        return self._remembered("documents", key, lambda: self._documents(extent.batch))

    def _documents(self, batch: int) -> list[list[tuple[int, int, int, int]]] | None:
        rows = []
        for b in range(batch):
            queries, keys = (_runs(ids) for ids in self._labels(b))
            if queries is None or keys is None:
                return None
            rows.append([(*queries[label], *keys[label]) for label in queries if label in keys])
        return rows

    def _known(self) -> Known:
        shapes = shape_of(self.query_ids), shape_of(self.key_ids)
        batch = next((shape[0] for shape in shapes if len(shape) == 2), None)
        return batch, None, shapes[0][-1], shapes[1][-1]


def _called(name: str) -> str:
    return f"{name} (of a Segments mask)"


def _ids(argument: str, given: Any, length: str) -> Any:
    ids = integers(_called(argument), given, f"(batch, {length}) or ({length},)")
    if ids.ndim not in (1, 2):
        wanted = f"shape (batch, {length}) or ({length},)"
        raise MaskError(complaint(_called(argument), f"shape {shape_of(ids)}", wanted))
    return ids


def _runs(ids: Any) -> dict[int, tuple[int, int]] | None:
    """Where each id stands, first and last + 1; None when one comes back after another."""
    import numpy as np

    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)] if len(ids) else [0]
    runs = {int(ids[first]): (first, last) for first, last in pairwise(edges)}
    return runs if len(runs) == len(edges) - 1 else None


def _by_row(ids: Any) -> Any:
    return ids if ids.ndim == 2 else ids[None]


def _at(ids: Any, batch: int, position: int) -> int:
    return int(ids[batch, position] if ids.ndim == 2 else ids[position])


def boundaries(argument: str, given: Any) -> list[int]:
    """Cumulative lengths as plain integers, checked: from 0, never falling."""
    wanted = "integers that start at 0 and never fall"
    numbers = to_numpy(integers(argument, given, "(documents + 1,)")).tolist() if given is not None else None
    if numbers is None:
        raise MaskTypeError(complaint(argument, None, wanted))
    if not isinstance(numbers, list) or any(isinstance(number, list) for number in numbers):
        raise MaskError(complaint(argument, described(given), f"one dimension of {wanted}"))
    if not numbers or numbers[0] != 0:
        first = f"{numbers[0]} first" if numbers else "nothing"
        raise MaskError(complaint(argument, first, wanted, "put a 0 before the cumulated lengths"))
    for place, (one, next_one) in enumerate(pairwise(numbers)):
        if next_one < one:
            given_text = f"{one} and then {next_one} at place {place + 1}"
            raise MaskError(complaint(argument, given_text, wanted, "these are cumulated lengths, not lengths"))
    return numbers


def _spread(boundaries: list[int], given: Any) -> Any:
    """The id of every position, where the boundaries were given: in torch on their device, or in numpy."""
    import numpy as np

    ids = np.repeat(np.arange(len(boundaries) - 1), np.diff(boundaries))
    if not is_tensor(given):
        return ids
    import torch

    return torch.from_numpy(ids).to(given.device)
