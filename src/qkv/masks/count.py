"""Exact counts of a mask, without torch: its True cells, the queries that attend, the keys that are attended to.

A mask is written as an "or" of a few "and"s. Inclusion and exclusion then need only the counts of conjunctions.
A conjunction of bands is an arithmetic series; paddings with holes and packed documents cut it into rectangles.
All other masks are counted cell by cell.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.errors import MaskError, complaint
from qkv.masks.band import Band
from qkv.masks.dense import Dense
from qkv.masks.grid import NumpyGrid
from qkv.masks.joined import And, Or
from qkv.masks.padding import Padding
from qkv.masks.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qkv.masks.base import Mask
    from qkv.masks.grid import Extent

MAX_ALTERNATIVES = 6  # 63 conjunctions
MAX_RECTANGLES = 2**20
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
        return mask._count(extent)
    options = alternatives(mask)
    if options is not None:
        total = 0
        for sign, parts in _inclusion_exclusion(options):
            cells = _count_conjunction(parts, extent)
            if cells is None:
                break
            total += sign * cells
        else:
            return total
    return _count_cells(mask, extent)


def alternatives(mask: Mask) -> list[tuple[Mask, ...]] | None:
    """The mask as an "or" of "and"s, or None when that takes more than `MAX_ALTERNATIVES`."""
    if isinstance(mask, Or):
        options = [alternatives(part) for part in mask.masks]
        if any(option is None for option in options):
            return None
        found = [parts for option in options for parts in option or ()]
    elif isinstance(mask, And):
        found = [()]
        for part in mask.masks:
            option = alternatives(part)
            if option is None or len(option) * len(found) > MAX_ALTERNATIVES:
                return None
            found = [(*left, *right) for left, right in product(found, option)]
    else:
        found = [(mask,)]
    return found if len(found) <= MAX_ALTERNATIVES else None


def count_bands(mask: Mask, extent: Extent) -> list[tuple[int, Band]] | None:
    """Signed bands whose counts add up to the mask's in any rectangle; None when the mask is not made of bands."""
    signed: list[tuple[int, Band]] = []
    for sign, parts in _inclusion_exclusion(alternatives(mask) or []):
        band = Band()
        for part in parts:
            own = part.band(extent)
            if own is None:
                return None
            band = band.intersect(own)
        signed.append((sign, band))
    return signed or None


def _inclusion_exclusion(options: list[tuple[Mask, ...]]) -> Iterator[tuple[int, tuple[Mask, ...]]]:
    for size in range(1, len(options) + 1):
        for chosen in combinations(options, size):
            yield (1 if size % 2 else -1), tuple(part for parts in chosen for part in parts)


class Conjunction(NamedTuple):
    """Masks that are joined by "and", grouped by kind."""

    band: Band
    holes: tuple[Padding, ...]
    packed: tuple[Segments, ...]


def group_parts(parts: tuple[Mask, ...], extent: Extent) -> Conjunction | None:
    """The parts of a conjunction by kind, or None when there are other kinds."""
    band, holes, packed = Band(), [], []
    for part in parts:
        own = part.band(extent)
        if own is not None:
            band = band.intersect(own)
        elif isinstance(part, Padding):
            holes.append(part)
        elif isinstance(part, Segments):
            packed.append(part)
        else:
            return None
    return Conjunction(band, tuple(holes), tuple(packed))


def _count_conjunction(parts: tuple[Mask, ...], extent: Extent) -> int | None:
    """How many cells all parts allow, or None when there is no closed form."""
    found = group_parts(parts, extent)
    if found is None:
        return None
    band, holes, packed = found
    if not holes and not packed:
        return extent.heads * band.population(extent.len_q, extent.len_k, extent.batch)
    total = 0
    for b in range(extent.batch):
        cells = _count_rectangles(band, b, *_labelled_runs(holes, packed, b, extent))
        if cells is None:
            return None
        total += cells
    return extent.heads * total


Runs = dict[int, list[tuple[int, int]]]


def _labelled_runs(holes: Sequence[Padding], packed: Sequence[Segments], b: int, extent: Extent) -> tuple[Runs, Runs]:
    """Runs of queries and of keys by label: a query may attend to the keys of its label."""
    import numpy as np

    keys = np.zeros(extent.len_k, dtype=np.int64)
    query_runs: Runs = {0: [(0, extent.len_q)]}
    if packed:
        labels = np.zeros(extent.len_q + extent.len_k, dtype=np.int64)
        for segments in packed:
            ids = np.unique(np.concatenate(segments._ids_of_row(b)), return_inverse=True)[1]
            # A label for each combination of ids, renumbered so that the numbers stay small.
            labels = np.unique(labels * (int(ids.max(initial=0)) + 1) + ids, return_inverse=True)[1]
        query_runs = _runs(labels[: extent.len_q])
        keys = labels[extent.len_q :]
    for padding in holes:
        keys = np.where(padding._keep_array()[b], keys, -1)
    key_runs = _runs(keys)
    key_runs.pop(-1, None)
    return query_runs, key_runs


def _runs(labels: Any) -> Runs:
    import numpy as np

    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    runs: Runs = defaultdict(list)
    for start, stop in pairwise(edges):
        if start < stop:
            runs[int(labels[start])].append((start, stop))
    return runs


def _count_rectangles(band: Band, b: int, query_runs: Runs, key_runs: Runs) -> int | None:
    shared = [label for label in query_runs if label in key_runs]
    if not band.is_diagonal:
        # The keys of a query do not depend on its position: lengths are enough.
        queries = {label: sum(i1 - i0 for i0, i1 in query_runs[label]) for label in shared}
        return sum(queries[label] * sum(band.count(b, (0, 1), run) for run in key_runs[label]) for label in shared)
    if sum(len(query_runs[label]) * len(key_runs[label]) for label in shared) > MAX_RECTANGLES:
        return None
    return sum(
        band.count(b, rows, keys) for label in shared for rows, keys in product(query_runs[label], key_runs[label])
    )


def blocks(extent: Extent) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
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


def _count_cells(mask: Mask, extent: Extent) -> int:
    check_cell_count(mask, extent.cells, MAX_CELLS, "count one by one")
    total = 0
    for rows, keys in blocks(extent):
        grid = NumpyGrid(extent, rows, keys)
        cells = mask._cells(grid)
        shared = 1
        for full, own in zip(grid.shape, cells.shape, strict=True):
            shared *= full if own == 1 else 1
        total += shared * int(cells.sum())
    return total


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
    options = alternatives(mask)
    parts = None if options is None else [group_parts(option, extent) for option in options]
    if parts is None or any(part is None for part in parts):
        return _reach_of_cells(mask, extent, groups)
    known = [part for part in parts if part is not None]
    if len(known) == 1 and not known[0].holes and not known[0].packed:
        return _reach_of_band(known[0].band, extent, groups)
    if extent.len_q + extent.len_k > MAX_POSITIONS:
        given = f"{mask!r} over {extent.len_q} queries and {extent.len_k} keys"
        raise MaskError(complaint("mask", given, f"at most {MAX_POSITIONS} of them to list one by one"))
    queries = keys = 0
    for b in range(extent.batch):
        attend = attended = False
        for part in known:
            part_queries, part_keys = _attended_in_row(part, b, extent)
            attend, attended = attend | part_queries, attended | part_keys
        queries, keys = queries + int(attend.sum()), keys + int(attended.sum())  # pyright: ignore[reportAttributeAccessIssue]
    return Reach(extent.heads * queries, groups * keys)


def _reach_of_band(band: Band, extent: Extent, groups: int) -> Reach:
    queries = keys = 0
    rows = range(extent.batch) if band.starts is not None or band.stops is not None else (0,)
    times = extent.batch if len(rows) == 1 else 1
    for b in rows:
        low, high = band.bounds_for_rows(b, 0, extent.len_q, extent.len_k)
        start, stop = Band(starts=band.starts, stops=band.stops).interval(b, 0, extent.len_k)
        # Query i attends to some key when start < i + upper and i + lower < stop.
        first = 0 if band.upper is None else max(0, start - band.upper + 1)
        behind = extent.len_q if band.lower is None else min(extent.len_q, stop - band.lower)
        keys += times * (high - low)
        queries += times * (max(0, behind - first) if low < high else 0)
    return Reach(extent.heads * queries, groups * keys)


def _attended_in_row(part: Conjunction, b: int, extent: Extent) -> tuple[Any, Any]:
    """For each query of a batch row whether it attends to a key; for each key whether a query attends to it."""
    import numpy as np

    query_labels, key_labels = np.zeros(extent.len_q, np.int64), np.zeros(extent.len_k, np.int64)
    for segments in part.packed:
        ids = np.unique(np.concatenate(segments._ids_of_row(b)), return_inverse=True)[1]
        both = np.concatenate([query_labels, key_labels]) * (int(ids.max(initial=0)) + 1) + ids
        both = np.unique(both, return_inverse=True)[1]
        query_labels, key_labels = both[: extent.len_q], both[extent.len_q :]
    kept = np.ones(extent.len_k, bool)
    for padding in part.holes:
        kept &= padding._keep_array()[b]
    start, stop = Band(starts=part.band.starts, stops=part.band.stops).interval(b, 0, extent.len_k)
    kept[:start] = kept[stop:] = False
    lower = -extent.len_q if part.band.lower is None else part.band.lower
    upper = extent.len_k if part.band.upper is None else part.band.upper
    queries, keys = np.arange(extent.len_q), np.arange(extent.len_k)
    attend = _has_match(query_labels, queries + lower, queries + upper, key_labels[kept], keys[kept])
    attended = kept & _has_match(key_labels, keys - upper + 1, keys - lower + 1, query_labels, queries)
    return attend, attended


def _has_match(labels: Any, low: Any, high: Any, other_labels: Any, positions: Any) -> Any:
    """For each label whether an equal one in `other_labels` has a position from low to high - 1."""
    import numpy as np

    found = np.zeros(len(labels), bool)
    for label in np.intersect1d(labels, other_labels):
        mine, there = labels == label, positions[other_labels == label]
        found[mine] = np.searchsorted(there, low[mine]) < np.searchsorted(there, high[mine])
    return found


def _reach_of_cells(mask: Mask, extent: Extent, groups: int) -> Reach:
    import numpy as np

    check_cell_count(mask, extent.cells, MAX_CELLS, "compute one by one")
    attend = np.zeros((extent.batch, extent.heads, extent.len_q), bool)
    attended = np.zeros((extent.batch, extent.heads, extent.len_k), bool)
    for rows, keys in blocks(extent):
        grid = NumpyGrid(extent, rows, keys)
        cells = mask._cells(grid)
        attend[:, :, rows[0] : rows[1]] |= cells.any(3)
        attended[:, :, keys[0] : keys[1]] |= cells.any(2)
    shared = attended.reshape(extent.batch, groups, -1, extent.len_k).any(2) if extent.heads else attended
    return Reach(int(attend.sum()), int(shared.sum()))
