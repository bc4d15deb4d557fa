"""The paths by which values come to one output: how many there are, and where they end."""

from __future__ import annotations

from .reach import Patterns, apart


def paths(patterns: Patterns, output: int, residual: bool = True) -> list[list[int]]:
    """How many paths lead from the output to each position: the output's own layer first, the input last.

    Every layer takes each path on by every head and by the residual, so that their number is the bound; two that end
    at one position have met there.

    >>> paths([[[0, 0, 1]], [[0, 0, 1]]], output=2)
    [[0, 0, 1], [0, 1, 1], [1, 2, 1]]
    """
    length = len(patterns[0][0])
    counts = [[int(i == output) for i in range(length)]]
    for layer in reversed(patterns):
        above = counts[-1]
        below = list(above) if residual else [0] * length
        for head in layer:
            for i, j in enumerate(head):
                below[j] += above[i]
        counts.append(below)
    return counts


def bound(heads: int, layers: int, residual: bool = True) -> int:
    """(k+1)ⁿ, and kⁿ without residuals: the most positions that n layers of k heads can reach.

    >>> bound(2, 3), bound(2, 3, residual=False)
    (27, 8)
    """
    return (heads + residual) ** layers


def spread(length: int, heads: int, layers: int, residual: bool = True, wrapped: bool = True) -> Patterns:
    """Heads that reach all that the bound allows: `apart`, where without residuals the first head looks at its own
    position and so does what the residual did.

    >>> spread(5, 1, 1), spread(5, 2, 1, residual=False)
    ([[[4, 0, 1, 2, 3]]], [[[0, 1, 2, 3, 4], [4, 0, 1, 2, 3]]])
    """
    if residual:
        return apart(length, heads, layers, wrapped)
    return [[list(range(length)), *layer] for layer in apart(length, heads - 1, layers, wrapped)]
