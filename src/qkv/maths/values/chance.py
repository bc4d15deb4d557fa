"""Expectations at a point: every random name is its mean plus a triangular matrix times independent variables.

Where a law is normal those variables are, and a polynomial has its expectation from their moments, exactly; anything
else is summed over a fine grid where they are few. Where only mean and covariance are known nothing beyond them is
assumed: a name may then occur twice in a product, and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Overflow
from fractions import Fraction
from typing import Any

from qkv.maths.values.arithmetic import (
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
FAR = Fraction(1000)


@dataclass(frozen=True)
class Variable:
    """A variable of mean 0 that is not correlated with others: its variance, and whether it is normal."""

    variance: Scalar
    normal: bool

    def moment(self, order: int) -> Scalar:
        if order % 2:
            return ZERO
        result = power(self.variance, Fraction(order // 2))
        for odd in range(1, order, 2):
            result = multiply(Fraction(odd), result)
        return result


def filled(row: list[Scalar], stop: int) -> list[int]:
    """The places before `stop` that are not zero: few where a covariance is diagonal."""
    return [k for k in range(stop) if not isinstance(row[k], Fraction) or row[k]]


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
            for k in filled(lower[i], j):
                rest = subtract(rest, multiply(multiply(lower[i][k], middle[k]), lower[j][k]))
            if sign(middle[j]) == 0:
                if sign(rest) != 0:
                    raise Undefined("no covariance")
                continue
            lower[i][j] = divide(rest, middle[j])
        rest = covariance[i][i]
        for k in filled(lower[i], i):
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
            for j in filled(self.lower[i], i + 1):
                total = add(total, multiply(self.lower[i][j], drawn[j]))
            values.append(total)
        return values[0] if self.scalar else tuple(values)

    def symbolic(self) -> Any:
        variables: list[Scalar] = [
            Polynomial({(((self.name, j), 1),): ONE}) if _varies(variable.variance) else ZERO
            for j, variable in enumerate(self.variables)
        ]
        return self.at(variables)


def _varies(variance: Scalar) -> bool:
    """Whether there is a variance here, or next to here where it is differentiated."""
    return isinstance(variance, Dual) or bool(sign(variance))


def chance(name: str, mean: Any, covariance: Any, *, normal: bool) -> Chance:
    """The random name with this mean and covariance."""
    scalar = not isinstance(mean, tuple)
    centre = (mean,) if scalar else mean
    lower, middle = triangular(((covariance,),) if scalar else covariance)
    return Chance(name, centre, lower, tuple(Variable(variance, normal) for variance in middle), scalar)


def expectation(x: Scalar, variables: dict[tuple[str, int], Variable]) -> Scalar:
    """Of a polynomial in the variables, term by term."""
    if isinstance(x, Dual):
        # The moments may vary too, where a law is differentiated by what it is made of: both parts are then dual.
        slope = multiply(Dual(x.level, ZERO, ONE), expectation(x.slope, variables))
        return add(expectation(x.value, variables), slope)
    if not isinstance(x, Polynomial):
        return x
    total: Scalar = ZERO
    for monomial, coefficient in x.terms.items():
        term: Scalar = coefficient
        kept: list[tuple[tuple[str, int], int]] = []
        unknown: dict[str, int] = {}
        for variable, order in monomial:
            if variable in variables:
                if not variables[variable].normal:
                    unknown[variable[0]] = unknown.get(variable[0], 0) + order
                    if unknown[variable[0]] > 2:
                        raise Unevaluable(beyond(variable[0]))
                term = multiply(term, variables[variable].moment(order))
            else:
                kept.append((variable, order))
        total = add(total, multiply(term, Polynomial({tuple(kept): ONE})) if kept else term)
    return total


def beyond(name: str) -> str:
    return f"only the mean and covariance of {name} are known, and more of its law is needed"


def enumerated(
    chances: list[Chance], body: Callable[[dict[str, Any]], Any], join: Callable[..., Any]
) -> tuple[Any, Any]:
    """The expectation of any body on a grid; `join(total, weight, value)` adds up.

    Given twice: by all the values, and by the coarser grid. The body is asked for its value far out as well, which
    counts for nothing: it is there to see whether what it divides by has another sign there.
    """
    live = [(c, j) for c in chances for j, v in enumerate(c.variables) if sign(v.variance)]
    for c, j in live:
        if not c.variables[j].normal:
            raise Unevaluable(beyond(c.name))
    if len(live) > max(GRIDS):
        raise Unevaluable("an expectation over too many dimensions")

    def value_at(drawn_values: Sequence[Scalar]) -> Any:
        drawn: dict[str, list[Scalar]] = {c.name: [ZERO] * len(c.variables) for c in chances}
        for (c, j), value in zip(live, drawn_values, strict=True):
            drawn[c.name][j] = value
        return body({c.name: c.at(drawn[c.name]) for c in chances})

    spreads = [power(c.variables[j].variance, HALF) for c, j in live]
    for signs in itertools.product((ZERO, ONE, -ONE), repeat=len(live)):
        try:
            value_at([multiply(side * FAR, spread) for side, spread in zip(signs, spreads, strict=True)])
        except Overflow:
            continue
    step, reach = GRIDS[max(1, len(live))]
    choices = [_grid(spread, step, reach) for spread in spreads]
    total, mass = None, ZERO
    coarse, coarse_mass = None, ZERO
    for places in itertools.product(*(range(len(choice)) for choice in choices)):
        outcome = [choice[place] for choice, place in zip(choices, places, strict=True)]
        weight: Scalar = ONE
        for _, probability in outcome:
            weight = multiply(weight, probability)
        value = value_at([drawn for drawn, _ in outcome])
        total = join(total, weight, value)
        mass = add(mass, weight)
        if not any(place % 2 for place in places):
            coarse = join(coarse, weight, value)
            coarse_mass = add(coarse_mass, weight)
    return join(None, divide(ONE, mass), total), join(None, divide(ONE, coarse_mass), coarse)


def _grid(spread: Scalar, step: Fraction, reach: int) -> list[tuple[Scalar, Scalar]]:
    places = [step * k for k in range(-reach, reach + 1)]
    return [(multiply(spread, x), function("exp", -x * x / 2)) for x in places]
