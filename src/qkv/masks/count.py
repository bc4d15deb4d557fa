"""Exact counts of a mask, without torch: its True cells, the queries that attend, the keys that are attended to.

A mask is written as an "or" of a few "and"s. Inclusion and exclusion then need only the counts of conjunctions.
A conjunction of bands is an arithmetic series; with packed documents or holes in the keys, it is counted query by
query. All other masks are counted cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import prod
from typing import Any, NamedTuple

from qkv.errors import MaskError, complaint
from qkv.masks.band import Band
from qkv.masks.base import Mask
from qkv.masks.dense import Dense
from qkv.masks.grid import Extent, NumpyGrid, Range, Region
from qkv.masks.joined import And, Or
from qkv.masks.segments import Segments

MAX_ALTERNATIVES = 6  # 63 conjunctions
BLOCK_CELLS = 2**22  # cells that are computed together
MAX_CELLS = 2**36  # takes a few minutes
MAX_POSITIONS = 2**28  # queries and keys that are listed one by one


def count(mask: Mask, extent: Extent) -> int:
    """The number of True cells.

    >>> from qkv.masks import Causal, Extent, Padding, Window
    >>> sinks = Causal() & (Window(left=4095) | Padding(lengths=[4]))
    >>> count(sinks, Extent(batch=1, heads=1, len_q=10**6, len_k=10**6))
    4091597050
    """
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    if isinstance(mask, Dense):
        shared = (full for full, own in zip(extent.shape, mask._four_sizes(extent.dims), strict=True) if own == 1)
        return int(mask.keep.sum()) * prod(shared)
    signed = signed_conjunctions(mask, extent)
    if signed is not None:
        return sum(sign * part.count(extent) for sign, part in signed)
    tiles = _tiles(mask, extent, "count one by one")
    return sum(int(cells.sum()) * prod(grid.shape) // max(1, cells.size) for grid, cells in tiles)


def alternatives(mask: Mask) -> list[tuple[Mask, ...]] | None:
    """The mask as an "or" of "and"s, or None when that takes more than `MAX_ALTERNATIVES`."""
    if not isinstance(mask, And | Or):
        return [(mask,)]
    options = [alternatives(part) or [()] * (MAX_ALTERNATIVES + 1) for part in mask.masks]
    if (sum if isinstance(mask, Or) else prod)(map(len, options)) > MAX_ALTERNATIVES:
        return None
    if isinstance(mask, Or):
        return [parts for option in options for parts in option]
    return [tuple(part for parts in chosen for part in parts) for chosen in product(*options)]


class Conjunction(NamedTuple):
    """Masks that are joined by "and": a band, masks of keys alone, and packed documents."""

    band: Band
    holes: list[Mask]
    packed: list[Segments]

    def count(self, extent: Extent) -> int:
        """How many cells all parts allow."""
        if not self.holes and not self.packed:
            return extent.heads * self.band.population(extent.len_q, extent.len_k, extent.batch)
        return extent.heads * sum(int(self.matches(b, extent)[0].sum()) for b in range(extent.batch))

    def matches(self, b: int, extent: Extent) -> tuple[Any, Any]:
        """For each query of a batch row its number of keys, for each key its number of queries."""
        import numpy as np

        labels = np.zeros(extent.len_q + extent.len_k, np.int64)
        for segments in self.packed:
            ids = np.unique(np.concatenate(segments._ids_of_row(b)), return_inverse=True)[1]
            # A label for each combination of ids, renumbered so that the numbers stay small.
            labels = np.unique(labels * (int(ids.max(initial=0)) + 1) + ids, return_inverse=True)[1]
        kept = np.ones(extent.len_k, bool)
        for mask in self.holes:
            row = Region((b, b + 1), (0, 1), (0, 1), (0, extent.len_k))
            kept &= mask.cells(NumpyGrid(extent, row.rows, row.keys).over(extent, row))[0, 0, 0]
        start, stop = self.band.ends(b, extent.len_k)
        kept[:start] = kept[stop:] = False
        lower = -extent.len_q if self.band.lower is None else self.band.lower
        upper = extent.len_k if self.band.upper is None else self.band.upper
        queries, keys = np.arange(extent.len_q), np.arange(extent.len_k)
        of_queries, of_keys = labels[: extent.len_q], labels[extent.len_q :]
        here = _count_matches(of_queries, queries + lower, queries + upper, of_keys[kept], keys[kept], extent.len_k)
        there = _count_matches(of_keys, keys - upper + 1, keys - lower + 1, of_queries, queries, extent.len_q)
        return here, there * kept


def _count_matches(labels: Any, low: Any, high: Any, other_labels: Any, positions: Any, length: int) -> Any:
    """For each label, how many equal ones in `other_labels` have a position from low to high - 1."""
    import numpy as np

    places = np.sort(other_labels * (length + 1) + positions)
    first, behind = (labels * (length + 1) + np.clip(at, 0, length) for at in (low, np.maximum(low, high)))
    return np.searchsorted(places, behind) - np.searchsorted(places, first)


def signed_conjunctions(mask: Mask, extent: Extent) -> list[tuple[int, Conjunction]] | None:
    """Conjunctions whose counts, with their signs, add up to the mask's; None when it has no such form."""
    options = alternatives(mask) or []
    signed: list[tuple[int, Conjunction]] = []
    for size in range(1, len(options) + 1):
        for chosen in combinations(options, size):
            found = _conjunction([part for parts in chosen for part in parts], extent)
            if found is None:
                return None
            signed.append((1 if size % 2 else -1, found))
    return signed or None


def _conjunction(parts: list[Mask], extent: Extent) -> Conjunction | None:
    found = Conjunction(Band(), [], [])
    for part in parts:
        own = part.band(extent)
        if own is not None:
            found = found._replace(band=found.band.intersect(own))
        elif part._depends_on_keys_only(extent):
            found.holes.append(part)
        elif isinstance(part, Segments):
            found.packed.append(part)
        else:
            return None
    return found


def blocks(extent: Extent) -> Iterator[tuple[Range, Range]]:
    """Rectangles of queries and keys that cover the scores, each of about `BLOCK_CELLS` cells."""
    outer = max(1, extent.batch * extent.heads)
    wide = max(1, min(extent.len_k, BLOCK_CELLS // outer))
    tall = max(1, BLOCK_CELLS // (outer * wide))
    for i0 in range(0, extent.len_q, tall):
        for j0 in range(0, extent.len_k, wide):
            yield (i0, min(extent.len_q, i0 + tall)), (j0, min(extent.len_k, j0 + wide))


def check_cell_count(mask: Mask, cells: int, most: int, purpose: str) -> None:
    """Refuse to compute more cells than is reasonable."""
    if cells > most:
        hint = "Causal, Window, Padding and Segments have closed forms, Dense and Predicate have none"
        raise MaskError(complaint("mask", f"{mask!r} over {cells} cells", f"at most {most} to {purpose}", hint))


def _tiles(mask: Mask, extent: Extent, purpose: str) -> Iterator[tuple[NumpyGrid, Any]]:
    """Tiles that cover the scores, each with its cells."""
    outer = mask.cells(NumpyGrid(extent, (0, 0), (0, 0))).shape[:2]  # a size of 1 is shared by all
    check_cell_count(mask, prod(outer) * extent.len_q * extent.len_k, MAX_CELLS, purpose)
    for rows, keys in blocks(extent._replace(batch=outer[0], heads=outer[1])):
        grid = NumpyGrid(extent, rows, keys)
        yield grid, mask.cells(grid)


class Reach(NamedTuple):
    """What has to be read at all.

    queries: how many attend to at least one key, over batch and query heads.
    keys: how many are attended to, over batch and key/value heads.
    """

    queries: int
    keys: int


def reach(mask: Mask, extent: Extent, groups: int) -> Reach:
    """How many queries attend to a key, and how many keys are attended to; `groups` is the number of key/value heads.

    >>> from qkv.masks import Extent, Window
    >>> reach(Window(left=2, right=0, offset=90), Extent(batch=1, heads=6, len_q=1, len_k=100), groups=2)
    Reach(queries=6, keys=6)
    """
    mask = mask.resolved(extent)
    mask.check_contents(extent)
    parts = [_conjunction(list(option), extent) for option in alternatives(mask) or []]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return _reach_of_cells(mask, extent, groups)
    if len(known) == 1 and not known[0].holes and not known[0].packed:
        return _reach_of_band(known[0].band, extent, groups)
    if extent.len_q + extent.len_k > MAX_POSITIONS:
        given = f"{mask!r} over {extent.len_q} queries and {extent.len_k} keys"
        raise MaskError(complaint("mask", given, f"at most {MAX_POSITIONS} of them to list one by one"))
    import numpy as np

    queries = keys = 0
    for b in range(extent.batch):
        of_queries, of_keys = (sum(counts) for counts in zip(*(part.matches(b, extent) for part in known), strict=True))
        queries, keys = queries + np.count_nonzero(of_queries), keys + np.count_nonzero(of_keys)
    return Reach(extent.heads * int(queries), groups * int(keys))


def _reach_of_band(band: Band, extent: Extent, groups: int) -> Reach:
    queries = keys = 0
    times = extent.batch if band.is_uniform else 1
    for b in range(1 if band.is_uniform else extent.batch):
        low, high = band.bounds_for_rows(b, 0, extent.len_q, extent.len_k)
        first, behind = band.transposed.bounds_for_rows(0, *band.ends(b, extent.len_k), extent.len_q)
        keys += times * (high - low)
        queries += times * (behind - first)
    return Reach(extent.heads * queries, groups * keys)


def _reach_of_cells(mask: Mask, extent: Extent, groups: int) -> Reach:
    import numpy as np

    attend = np.zeros((extent.batch, extent.heads, extent.len_q), bool)
    attended = np.zeros((extent.batch, extent.heads, extent.len_k), bool)
    for grid, cells in _tiles(mask, extent, "compute one by one"):
        attend[:, :, slice(*grid.rows)] |= cells.any(3)
        attended[:, :, slice(*grid.keys)] |= cells.any(2)
    shared = attended.reshape(extent.batch, groups, -1, extent.len_k).any(2) if extent.heads else attended
    return Reach(int(attend.sum()), int(shared.sum()))
