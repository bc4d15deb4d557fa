"""One linear programme, small and exact: is there a direction in which every gap is positive?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

STEPS = 2_000


def direction(gaps: Sequence[Sequence[Fraction]], width: int) -> list[Fraction] | None:
    """w >= 0 with w·g > 0 for every row g of `gaps`, or None where there is none.

    Maximises t subject to t <= w·g for every g and Σ w <= 1, by the simplex method with Bland's rule, which ends.

    >>> direction([[Fraction(1), Fraction(-2)], [Fraction(-1), Fraction(3)]], 2)
    [Fraction(5, 7), Fraction(2, 7)]
    >>> direction([[Fraction(1), Fraction(-1)], [Fraction(-1), Fraction(1)]], 2) is None
    True
    """
    columns = width + 1
    rows = [[-entry for entry in gap] + [Fraction(1)] for gap in gaps] + [[Fraction(1)] * width + [Fraction(0)]]
    count = len(rows)
    table = [row + [Fraction(i == j) for j in range(count)] + [Fraction(i == count - 1)] for i, row in enumerate(rows)]
    goal = [Fraction(0)] * width + [Fraction(-1)] + [Fraction(0)] * (count + 1)
    basis = [columns + i for i in range(count)]
    for _ in range(STEPS):
        entering = next((j for j in range(columns + count) if goal[j] < 0), None)
        if entering is None:
            break
        ratios = [(row[-1] / row[entering], basis[i], i) for i, row in enumerate(table) if row[entering] > 0]
        _, _, leaving = min(ratios)
        pivot = table[leaving][entering]
        table[leaving] = [entry / pivot for entry in table[leaving]]
        for i, row in enumerate(table):
            if i != leaving and row[entering]:
                factor = row[entering]
                table[i] = [a - factor * b for a, b in zip(row, table[leaving], strict=True)]
        factor = goal[entering]
        goal = [a - factor * b for a, b in zip(goal, table[leaving], strict=True)]
        basis[leaving] = entering
    else:
        raise ValueError("the programme takes too many steps")
    if goal[-1] <= 0:
        return None
    found = [Fraction(0)] * width
    for i, variable in enumerate(basis):
        if variable < width:
            found[variable] = table[i][-1]
    return found
