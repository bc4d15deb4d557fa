"""Exact populations: how many cells of a mask are True, without torch and without looking at each.

A mask is written as alternatives ("or") of conditions ("and"); inclusion and exclusion over a handful
of alternatives needs only the populations of conjunctions. A conjunction of bands is an arithmetic
series; paddings with holes and packed documents cut it into rectangles. Everything else is counted.
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

MOST_ALTERNATIVES = 6  # 63 conjunctions
MOST_RECTANGLES = 2**20
BLOCK = 2**22  # cells that are looked at together
MOST_CELLS = 2**36  # a few minutes; beyond, a wait without end


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
            cells = _conjunction(parts, extent)
            if cells is None:
                break
            total += sign * cells
        else:
            return total
    return _looked_at(mask, extent)


def alternatives(mask: Mask) -> list[tuple[Mask, ...]] | None:
    """The mask as an or of ands, or None when that takes more than a handful."""
    if isinstance(mask, Or):
        options = [alternatives(part) for part in mask.masks]
        if any(option is None for option in options):
            return None
        found = [parts for option in options for parts in option or ()]
    elif isinstance(mask, And):
        found = [()]
        for part in mask.masks:
            option = alternatives(part)
            if option is None or len(option) * len(found) > MOST_ALTERNATIVES:
                return None
            found = [(*left, *right) for left, right in product(found, option)]
    else:
        found = [(mask,)]
    return found if len(found) <= MOST_ALTERNATIVES else None


def count_bands(mask: Mask, extent: Extent) -> list[tuple[int, Band]] | None:
    """Signed bands whose counts add up to the mask's, in any rectangle; None when it is not made of bands."""
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


class Parts(NamedTuple):
    """Masks that are joined by "and", by their kind."""

    band: Band
    holes: tuple[Padding, ...]
    packed: tuple[Segments, ...]


def sorted_out(parts: tuple[Mask, ...], extent: Extent) -> Parts | None:
    """A conjunction by the kinds of its parts, or None when there are others."""
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
    return Parts(band, tuple(holes), tuple(packed))


def _conjunction(parts: tuple[Mask, ...], extent: Extent) -> int | None:
    """The cells that all parts allow, or None when there is no closed form."""
    found = sorted_out(parts, extent)
    if found is None:
        return None
    band, holes, packed = found
    if not holes and not packed:
        return extent.heads * band.population(extent.len_q, extent.len_k, extent.batch)
    total = 0
    for b in range(extent.batch):
        cells = _rectangles(band, b, *_labels(holes, packed, b, extent))
        if cells is None:
            return None
        total += cells
    return extent.heads * total


Runs = dict[int, list[tuple[int, int]]]


def _labels(holes: Sequence[Padding], packed: Sequence[Segments], b: int, extent: Extent) -> tuple[Runs, Runs]:
    """Runs of queries and of keys by label: a query and a key of the same label are not kept apart."""
    import numpy as np

    keys = np.zeros(extent.len_k, dtype=np.int64)
    query_runs: Runs = {0: [(0, extent.len_q)]}
    if packed:
        labels = np.zeros(extent.len_q + extent.len_k, dtype=np.int64)
        for segments in packed:
            ids = np.unique(np.concatenate(segments._labels(b)), return_inverse=True)[1]
            # The same label in all of them: number the pairs anew, so that the numbers stay small.
            labels = np.unique(labels * (int(ids.max(initial=0)) + 1) + ids, return_inverse=True)[1]
        query_runs = _runs(labels[: extent.len_q])
        keys = labels[extent.len_q :]
    for padding in holes:
        keys = np.where(padding._kept()[b], keys, -1)
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


def _rectangles(band: Band, b: int, query_runs: Runs, key_runs: Runs) -> int | None:
    shared = [label for label in query_runs if label in key_runs]
    if not band.is_diagonal:
        # What a query sees does not depend on its place: lengths are enough.
        queries = {label: sum(i1 - i0 for i0, i1 in query_runs[label]) for label in shared}
        return sum(queries[label] * sum(band.count(b, (0, 1), run) for run in key_runs[label]) for label in shared)
    if sum(len(query_runs[label]) * len(key_runs[label]) for label in shared) > MOST_RECTANGLES:
        return None
    return sum(
        band.count(b, rows, keys) for label in shared for rows, keys in product(query_runs[label], key_runs[label])
    )


def blocks(extent: Extent) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Rectangles of rows and keys that cover everything, each of about `BLOCK` cells."""
    outer = max(1, extent.batch * extent.heads)
    wide = max(1, min(extent.len_k, BLOCK // outer))
    tall = max(1, BLOCK // (outer * wide))
    for i0 in range(0, extent.len_q, tall):
        for j0 in range(0, extent.len_k, wide):
            yield (i0, min(extent.len_q, i0 + tall)), (j0, min(extent.len_k, j0 + wide))


def refuse_too_many(mask: Mask, cells: int, most: int, purpose: str) -> None:
    """Looking at every cell has an end."""
    if cells > most:
        hint = "Causal, Window, Padding and Segments have closed forms, Dense and Predicate have none"
        raise MaskError(complaint("mask", f"{mask!r} over {cells} cells", f"at most {most} to {purpose}", hint))


def _looked_at(mask: Mask, extent: Extent) -> int:
    refuse_too_many(mask, extent.cells, MOST_CELLS, "count one by one")
    total = 0
    for rows, keys in blocks(extent):
        grid = NumpyGrid(extent, rows, keys)
        cells = mask._cells(grid)
        shared = 1
        for full, own in zip(grid.shape, cells.shape, strict=True):
            shared *= full if own == 1 else 1
        total += shared * int(cells.sum())
    return total
