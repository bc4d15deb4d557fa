"""Which queries see anything, and which keys are seen by anybody: what has to be read at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.errors import MaskError, complaint
from qkv.masks.band import Band
from qkv.masks.count import MOST_CELLS, Parts, alternatives, blocks, refuse_too_many, sorted_out
from qkv.masks.grid import NumpyGrid

if TYPE_CHECKING:
    from qkv.masks.base import Mask
    from qkv.masks.grid import Extent

MOST_POSITIONS = 2**28  # that are held one by one


class Reach(NamedTuple):
    """queries: of all heads, that see a key. keys: of all groups of heads that share them, that a query sees."""

    queries: int
    keys: int


def reach(mask: Mask, extent: Extent, groups: int) -> Reach:
    """How many queries see a key and how many keys are seen, over the batch; `groups` of heads share their keys.

    >>> from qkv.masks import Extent, Window
    >>> reach(Window(left=2, right=0, offset=90), Extent(batch=1, heads=6, len_q=1, len_k=100), groups=2)
    Reach(queries=6, keys=6)
    """
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    options = alternatives(mask)
    parts = None if options is None else [sorted_out(option, extent) for option in options]
    if parts is None or any(part is None for part in parts):
        return _looked_at(mask, extent, groups)
    known = [part for part in parts if part is not None]
    if len(known) == 1 and not known[0].holes and not known[0].packed:
        return _of_band(known[0].band, extent, groups)
    if extent.len_q + extent.len_k > MOST_POSITIONS:
        given = f"{mask!r} over {extent.len_q} queries and {extent.len_k} keys"
        raise MaskError(complaint("mask", given, f"at most {MOST_POSITIONS} of them to look at one by one"))
    queries = keys = 0
    for b in range(extent.batch):
        seeing = seen = False
        for part in known:
            one_sees, one_is_seen = _of_parts(part, b, extent)
            seeing, seen = seeing | one_sees, seen | one_is_seen
        queries, keys = queries + int(seeing.sum()), keys + int(seen.sum())  # pyright: ignore[reportAttributeAccessIssue]
    return Reach(extent.heads * queries, groups * keys)


def _of_band(band: Band, extent: Extent, groups: int) -> Reach:
    queries = keys = 0
    rows = range(extent.batch) if band.starts is not None or band.stops is not None else (0,)
    times = extent.batch if len(rows) == 1 else 1
    for b in rows:
        low, high = band.bounds_for_rows(b, 0, extent.len_q, extent.len_k)
        start, stop = Band(starts=band.starts, stops=band.stops).interval(b, 0, extent.len_k)
        # Query i sees something when start < i + upper and i + lower < stop.
        first = 0 if band.upper is None else max(0, start - band.upper + 1)
        behind = extent.len_q if band.lower is None else min(extent.len_q, stop - band.lower)
        keys += times * (high - low)
        queries += times * (max(0, behind - first) if low < high else 0)
    return Reach(extent.heads * queries, groups * keys)


def _of_parts(part: Parts, b: int, extent: Extent) -> tuple[Any, Any]:
    """For each query of a batch row whether it sees a key, for each key whether it is seen."""
    import numpy as np

    query_labels, key_labels = np.zeros(extent.len_q, np.int64), np.zeros(extent.len_k, np.int64)
    for segments in part.packed:
        ids = np.unique(np.concatenate(segments._labels(b)), return_inverse=True)[1]
        both = np.concatenate([query_labels, key_labels]) * (int(ids.max(initial=0)) + 1) + ids
        both = np.unique(both, return_inverse=True)[1]
        query_labels, key_labels = both[: extent.len_q], both[extent.len_q :]
    kept = np.ones(extent.len_k, bool)
    for padding in part.holes:
        kept &= padding._kept()[b]
    start, stop = Band(starts=part.band.starts, stops=part.band.stops).interval(b, 0, extent.len_k)
    kept[:start] = kept[stop:] = False
    lower = -extent.len_q if part.band.lower is None else part.band.lower
    upper = extent.len_k if part.band.upper is None else part.band.upper
    queries, keys = np.arange(extent.len_q), np.arange(extent.len_k)
    sees = _finds(query_labels, queries + lower, queries + upper, key_labels[kept], keys[kept])
    seen = kept & _finds(key_labels, keys - upper + 1, keys - lower + 1, query_labels, queries)
    return sees, seen


def _finds(labels: Any, low: Any, high: Any, other_labels: Any, places: Any) -> Any:
    """For each label whether another of the same label stands at a place from low to high - 1."""
    import numpy as np

    found = np.zeros(len(labels), bool)
    for label in np.intersect1d(labels, other_labels):
        mine, there = labels == label, places[other_labels == label]
        found[mine] = np.searchsorted(there, low[mine]) < np.searchsorted(there, high[mine])
    return found


def _looked_at(mask: Mask, extent: Extent, groups: int) -> Reach:
    import numpy as np

    refuse_too_many(mask, extent.cells, MOST_CELLS, "look at one by one")
    seeing = np.zeros((extent.batch, extent.heads, extent.len_q), bool)
    seen = np.zeros((extent.batch, extent.heads, extent.len_k), bool)
    for rows, keys in blocks(extent):
        grid = NumpyGrid(extent, rows, keys)
        cells = mask._cells(grid)
        seeing[:, :, rows[0] : rows[1]] |= cells.any(3)
        seen[:, :, keys[0] : keys[1]] |= cells.any(2)
    shared = seen.reshape(extent.batch, groups, -1, extent.len_k).any(2) if extent.heads else seen
    return Reach(int(seeing.sum()), int(shared.sum()))
