"""Expectations and slopes in numbers: every law is replaced by a discrete one with the same moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from qkv.maths.tree import Covariance, Derivative, Expect, Node, Part, Symbol, children

Values: TypeAlias = dict[str, Any]
Evaluate: TypeAlias = Callable[[Node, Values], Any]

# Five points match the moments of a normal variable up to order 9; two uneven ones match mean and variance only.
PLACES, WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
NORMAL = list(zip(PLACES, WEIGHTS / WEIGHTS.sum(), strict=True))
UNEVEN = [(2.0, 0.2), (-0.5, 0.8)]
STEP = 1e-4
ROUNDING = 1e-12


def random_in(node: Node) -> dict[str, Symbol]:
    """The random names on whose values a tree depends: those inside an expectation are not among them."""
    if isinstance(node, Symbol):
        return {node.name: node} if node.type.law is not None else {}
    if isinstance(node, Expect | Covariance):
        return {}
    return {name: symbol for child in children(node) for name, symbol in random_in(child).items()}


def average(symbols: Iterable[Symbol], values: Values, of: Evaluate, body: Callable[[Values], Any]) -> Any:
    """The mean of `body` when the random names are drawn, each by its law at these values."""
    drawn = [list(_outcomes(symbol, values, of)) for symbol in symbols]
    total: Any = 0
    for chosen in product(*drawn):
        weight = float(np.prod([probability for _, _, probability in chosen]))
        total = total + weight * body(values | {name: value for name, value, _ in chosen})
    return total


def _outcomes(symbol: Symbol, values: Values, of: Evaluate) -> Iterator[tuple[str, Any, float]]:
    law = symbol.type.law
    assert law is not None
    mean, covariance = (np.asarray(of(part, values), float) for part in (law.mean, law.covariance))
    lower = np.linalg.cholesky(covariance.reshape(mean.size, mean.size))
    for places in product(NORMAL if law.normal else UNEVEN, repeat=mean.size):
        moved = mean + (lower @ np.array([place for place, _ in places])).reshape(mean.shape)
        yield symbol.name, moved, float(np.prod([probability for _, probability in places]))


def expectation(body: Node, values: Values, of: Evaluate) -> Any:
    return average(random_in(body).values(), values, of, lambda inner: of(body, inner))


def covariance(node: Covariance, values: Values, of: Evaluate) -> Any:
    symbols = (random_in(node.left) | random_in(node.right)).values()
    times = np.outer if node.left.shape else np.multiply
    together = average(symbols, values, of, lambda inner: times(of(node.left, inner), of(node.right, inner)))
    found = together - times(expectation(node.left, values, of), expectation(node.right, values, of))
    # Independent variables have covariance 0: a rounding error must not give it a sign.
    return np.where(np.abs(found) < ROUNDING * (1 + np.abs(together)), 0.0, found)


def slope(node: Derivative, values: Values, of: Evaluate) -> Any:
    """The derivative of a body by a scalar or a component, from four points around it."""
    target = node.target
    symbol = target.body if isinstance(target, Part) else target
    assert isinstance(symbol, Symbol)
    at = tuple(int(of(index, values)) - 1 for index in target.indices if index) if isinstance(target, Part) else ()

    def moved(steps: int) -> Any:
        array = np.array(values[symbol.name], float)
        array[at] += steps * STEP
        return of(node.body, values | {symbol.name: array})

    return (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * STEP)
