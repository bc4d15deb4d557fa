"""Expectations at a point: every random name is its mean plus a triangular matrix times independent variables.

Where a law is normal those variables are; where only mean and covariance are known they take two values each, unevenly,
so that nothing holds of them by symmetry alone. A polynomial has its expectation from their moments, exactly; anything
else is summed over the two values, or over a fine grid where they are normal and few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .arithmetic import (
    HALF,
    ONE,
    ZERO,
    Dual,
    Polynomial,
    Scalar,
    Undefined,
    Unevaluable,
    add,
    divide,
    function,
    multiply,
    power,
    sign,
    subtract,
)

# Trapezoids against a normal density are right to exp(-2π²/h²): nearly all the digits for smooth bodies. Every second
# point is a coarser grid of its own, and what the two differ by says how far the finer can be trusted.
GRIDS = {1: (Fraction(1, 4), 56), 2: (Fraction(1, 2), 16)}
OUTCOMES = 1024


@dataclass(frozen=True)
class Variable:
    """An independent variable of mean 0: its variance, and `tilt` (None where it is normal)."""

    variance: Scalar
    tilt: Fraction | None

    def ends(self) -> tuple[tuple[Scalar, Scalar], tuple[Scalar, Scalar]]:
        """The two values of a variable that is not normal, each with its probability."""
        assert self.tilt is not None
        up, down = self.tilt, divide(self.variance, self.tilt)
        both = add(up, down)
        return (up, divide(down, both)), (multiply(Fraction(-1), down), divide(up, both))

    def moment(self, order: int) -> Scalar:
        if self.tilt is not None:
            (a, p), (b, q) = self.ends()
            return add(multiply(p, power(a, Fraction(order))), multiply(q, power(b, Fraction(order))))
        if order % 2:
            return ZERO
        result = power(self.variance, Fraction(order // 2))
        for odd in range(1, order, 2):
            result = multiply(Fraction(odd), result)
        return result


def triangular(covariance: tuple[tuple[Scalar, ...], ...]) -> tuple[list[list[Scalar]], list[Scalar]]:
    """L with ones on its diagonal and D such that L D Lᵀ is the covariance; Undefined where that is none."""
    size = len(covariance)
    lower: list[list[Scalar]] = [[ONE if i == j else ZERO for j in range(size)] for i in range(size)]
    middle: list[Scalar] = []
    for i in range(size):
        for j in range(i):
            mirror = subtract(covariance[i][j], covariance[j][i])
            if isinstance(mirror, Fraction) and mirror:
                raise Undefined("a covariance that is not symmetric")
            rest = covariance[i][j]
            for k in range(j):
                rest = subtract(rest, multiply(multiply(lower[i][k], middle[k]), lower[j][k]))
            if sign(middle[j]) == 0:
                if sign(rest) != 0:
                    raise Undefined("no covariance")
                continue
            lower[i][j] = divide(rest, middle[j])
        rest = covariance[i][i]
        for k in range(i):
            rest = subtract(rest, multiply(multiply(lower[i][k], lower[i][k]), middle[k]))
        if sign(rest) < 0:
            raise Undefined("a negative variance")
        middle.append(rest)
    return lower, middle


@dataclass(frozen=True)
class Chance:
    """One random name at a point: mean, lower triangle, and its variables."""

    name: str
    mean: tuple[Scalar, ...]
    lower: list[list[Scalar]]
    variables: tuple[Variable, ...]
    scalar: bool

    def at(self, drawn: list[Scalar]) -> Any:
        values = []
        for i, centre in enumerate(self.mean):
            total = centre
            for j in range(i + 1):
                total = add(total, multiply(self.lower[i][j], drawn[j]))
            values.append(total)
        return values[0] if self.scalar else tuple(values)

    def symbolic(self) -> Any:
        variables: list[Scalar] = [
            Polynomial({(((self.name, j), 1),): ONE}) if sign(variable.variance) else ZERO
            for j, variable in enumerate(self.variables)
        ]
        return self.at(variables)


def chance(name: str, mean: Any, covariance: Any, *, normal: bool, tilt: int) -> Chance:
    """The random name with this mean and covariance; `tilt` chooses among laws where it is not normal."""
    scalar = not isinstance(mean, tuple)
    centre = (mean,) if scalar else mean
    lower, middle = triangular(((covariance,),) if scalar else covariance)
    leaning = None if normal else Fraction(tilt % 3 + 2, 2)
    return Chance(name, centre, lower, tuple(Variable(variance, leaning) for variance in middle), scalar)


def expectation(x: Scalar, variables: dict[tuple[str, int], Variable]) -> Scalar:
    """Of a polynomial in the variables, term by term."""
    if isinstance(x, Dual):
        return Dual(x.level, expectation(x.value, variables), expectation(x.slope, variables))
    if not isinstance(x, Polynomial):
        return x
    total: Scalar = ZERO
    for monomial, coefficient in x.terms.items():
        term: Scalar = coefficient
        kept: list[tuple[tuple[str, int], int]] = []
        for variable, order in monomial:
            if variable in variables:
                term = multiply(term, variables[variable].moment(order))
            else:
                kept.append((variable, order))
        total = add(total, multiply(term, Polynomial({tuple(kept): ONE})) if kept else term)
    return total


def enumerated(
    chances: list[Chance], body: Callable[[dict[str, Any]], Any], join: Callable[..., Any]
) -> tuple[Any, Any]:
    """The expectation of any body, by the values that the variables can take; `join(total, weight, value)` adds up.

    Given twice: by all the values, and by the coarser grid (None where there is no grid, and the first is exact).
    """
    live = [(c, j) for c in chances for j, v in enumerate(c.variables) if sign(v.variance)]
    normals = sum(c.variables[j].tilt is None for c, j in live)
    if normals > max(GRIDS):
        raise Unevaluable("an expectation over too many dimensions")
    step, reach = GRIDS[normals] if normals else (ONE, 0)
    choices: list[list[tuple[Scalar, Scalar]]] = []
    for c, j in live:
        variable = c.variables[j]
        choices.append(list(variable.ends()) if variable.tilt is not None else _grid(variable, step, reach))
    outcomes = 1
    for choice in choices:
        outcomes *= len(choice)
    if outcomes > 4 * OUTCOMES:
        raise Unevaluable("an expectation over too many outcomes")
    total, mass = None, ZERO
    coarse, coarse_mass = None, ZERO
    spaced = [variable.tilt is None for variable in (c.variables[j] for c, j in live)]
    for places in itertools.product(*(range(len(choice)) for choice in choices)):
        outcome = [choice[place] for choice, place in zip(choices, places, strict=True)]
        weight: Scalar = ONE
        drawn: dict[str, list[Scalar]] = {c.name: [ZERO] * len(c.variables) for c in chances}
        for (c, j), (value, probability) in zip(live, outcome, strict=True):
            drawn[c.name][j] = value
            weight = multiply(weight, probability)
        values = {c.name: c.at(drawn[c.name]) for c in chances}
        value = body(values)
        total = join(total, weight, value)
        mass = add(mass, weight)
        if normals and not any(place % 2 for place, even in zip(places, spaced, strict=True) if even):
            coarse = join(coarse, weight, value)
            coarse_mass = add(coarse_mass, weight)
    result = join(None, divide(ONE, mass), total)
    return result, join(None, divide(ONE, coarse_mass), coarse) if normals else None


def _grid(variable: Variable, step: Fraction, reach: int) -> list[tuple[Scalar, Scalar]]:
    spread = power(variable.variance, HALF)
    places = [step * k for k in range(-reach, reach + 1)]
    return [(multiply(spread, x), function("exp", -x * x / 2)) for x in places]
