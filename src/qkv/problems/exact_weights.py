"""Attention in fractions: similarities, their sums and the weights of small exact scores, where these are fractions.

`seen` says for each query which keys it may attend to. What is not seen weighs 0 and is no part of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .exact import Matrix, Vector

Seen = Sequence[Sequence[bool]]


def raised(scores: Matrix, degree: int, offset: Fraction) -> Matrix:
    """(q·k + offset)^degree of every score.

    >>> raised(((Fraction(2), Fraction(-1)),), 2, Fraction(1))
    ((Fraction(9, 1), Fraction(0, 1)),)
    """
    return tuple(tuple((score + offset) ** degree for score in row) for row in scores)


def rectified(rows: Matrix) -> Matrix:
    """max(x, 0) of every entry."""
    return tuple(tuple(max(entry, Fraction(0)) for entry in row) for row in rows)


def sums(similarities: Matrix, seen: Seen) -> Vector:
    """What stands below the fraction for each query."""
    return tuple(
        sum((each for each, may in zip(row, marks, strict=True) if may), Fraction(0))
        for row, marks in zip(similarities, seen, strict=True)
    )


def shares(similarities: Matrix, seen: Seen) -> Matrix:
    """Each similarity over the sum of its row; where that sum is 0 the weights are 0.

    >>> [str(weight) for weight in shares(((Fraction(1), Fraction(2), Fraction(5)),), ((True, True, False),))[0]]
    ['1/3', '2/3', '0']
    """
    return tuple(
        tuple(each / below if may and below else Fraction(0) for each, may in zip(row, marks, strict=True))
        for row, marks, below in zip(similarities, seen, sums(similarities, seen), strict=True)
    )


def hardest(scores: Matrix, seen: Seen) -> Matrix:
    """All weight on the largest score that is seen, the first among equals.

    >>> [int(weight) for weight in hardest(((Fraction(1), Fraction(3), Fraction(3)),), ((True, True, True),))[0]]
    [0, 1, 0]
    """
    return tuple(_one_hot(row, marks) for row, marks in zip(scores, seen, strict=True))


def _one_hot(row: Vector, marks: Sequence[bool]) -> Vector:
    places = [place for place, may in enumerate(marks) if may]
    best = max(places, key=lambda place: row[place], default=None)
    return tuple(Fraction(int(place == best)) for place in range(len(row)))
