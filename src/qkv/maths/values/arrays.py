"""Vectors and matrices as nested tuples of numbers of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from qkv.maths.values.arithmetic import (
    ONE,
    ZERO,
    Dual,
    Number,
    Polynomial,
    Scalar,
    Undefined,
    Unevaluable,
    add,
    divide,
    multiply,
    negative,
    sign,
    subtract,
)


def componentwise(change: Callable[..., Scalar], *arrays: Any) -> Any:
    """`change` done to entries that stand at the same place."""
    if not isinstance(arrays[0], tuple):
        return change(*arrays)
    return tuple(componentwise(change, *parts) for parts in zip(*arrays, strict=True))


def entries(array: Any) -> Iterator[Scalar]:
    """The numbers of nested tuples, row by row.

    >>> list(entries(((1, 2), (3, 4))))
    [1, 2, 3, 4]
    """
    if isinstance(array, tuple):
        for part in array:
            yield from entries(part)
    else:
        yield array


def plain_entries(array: Any) -> Iterator[Number]:
    """The same where nothing is left open: Unevaluable for a polynomial in random variables and for a slope."""
    for entry in entries(array):
        if isinstance(entry, Polynomial | Dual):
            raise Unevaluable("a value that is no plain number")
        yield entry


def dot(left: tuple[Scalar, ...], right: tuple[Scalar, ...]) -> Scalar:
    total: Scalar = ZERO
    for a, b in zip(left, right, strict=True):
        total = add(total, multiply(a, b))
    return total


def product(left: Any, right: Any, count: Callable[[int], None]) -> Any:
    """The product of two matrices; `count` is told the number of multiplications."""
    columns = tuple(zip(*right, strict=True))
    count(len(left) * len(columns) * len(right))
    return tuple(tuple(dot(row, column) for column in columns) for row in left)


def contracted(left: Any, right: Any, dimensions: int, count: Callable[[int], None]) -> Any:
    """Matrix times matrix, matrix times vector, row times vector, with as many axes as `dimensions` says."""
    count(len(left) * len(right))
    result: Any
    if not isinstance(left[0], tuple):
        result = dot(left, right)
    elif isinstance(right[0], tuple):
        result = product(left, right, count)
    else:
        result = tuple(dot(row, right) for row in left)
    while dimensions < depth(result):
        result = result[0] if len(result) == 1 else tuple(part[0] for part in result)
    return result


def depth(array: Any) -> int:
    return 1 + depth(array[0]) if isinstance(array, tuple) else 0


def transposed(array: Any, before: int, after: int) -> Any:
    if before == 1:
        return (array,)
    if before == 2 and after == 1:
        return array[0]
    return tuple(zip(*array, strict=True)) if before == 2 else array


def triangle(matrix: Any, beside: Any, count: Callable[[int], None]) -> tuple[list[list[Scalar]], Scalar]:
    """Gauss and Jordan on the rows of `matrix` with those of `beside` to their right; also the determinant."""
    size = len(matrix)
    rows = [list(left) + list(right) for left, right in zip(matrix, beside, strict=True)]
    determinant: Scalar = ONE
    for place in range(size):
        pivot = next((i for i in range(place, size) if sign(rows[i][place])), None)
        if pivot is None:
            return rows, ZERO
        if pivot != place:
            rows[place], rows[pivot] = rows[pivot], rows[place]
            determinant = negative(determinant)
        top = rows[place][place]
        determinant = multiply(determinant, top)
        rows[place] = [divide(entry, top) for entry in rows[place]]
        for i in range(size):
            if i != place:
                factor = rows[i][place]
                count(size)
                rows[i] = [subtract(a, multiply(factor, b)) for a, b in zip(rows[i], rows[place], strict=True)]
    return rows, determinant


def inverse(matrix: Any, count: Callable[[int], None]) -> Any:
    size = len(matrix)
    identity = [[ONE if i == j else ZERO for j in range(size)] for i in range(size)]
    rows, scale = triangle(matrix, identity, count)
    if not isinstance(scale, type(ONE)) or scale:
        return tuple(tuple(row[size:]) for row in rows)
    raise Undefined("a matrix without an inverse")


def determinant(matrix: Any, count: Callable[[int], None]) -> Scalar:
    return triangle(matrix, [[] for _ in matrix], count)[1]


def raised(base: Any, exponent: Any, count: Callable[[int], None]) -> Any:
    """A square matrix to a whole power."""
    if not isinstance(exponent, Fraction) or exponent.denominator != 1 or abs(exponent) > 64:
        raise Unevaluable("a matrix to a power that is no small whole number")
    if exponent < 0:
        base = inverse(base, count)
    result = tuple(tuple(Fraction(i == j) for j in range(len(base))) for i in range(len(base)))
    for _ in range(abs(int(exponent))):
        result = product(result, base, count)
    return result


def multiplied(factors: list[Any]) -> Any:
    """Scalars times at most one array."""
    number: Scalar = ONE
    array = None
    for factor in factors:
        if not isinstance(factor, tuple):
            number = multiply(number, factor)
        elif array is None:
            array = factor
        else:
            raise Unevaluable("a product of two arrays")
    return number if array is None else componentwise(lambda x: multiply(number, x), array)
