"""Normalisation on numbers: layer, root mean square, batch and group norms, their statistics and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ...derivation import Step
from .. import exact
from ..exact import Array, shown
from ..findings import CannotSolve, refuse
from ..record import Asked, Exercise, Given
from ..solving import Answer, solver
from ..values import by, first_of, read, scalar, whole
from .answers import MOST_SHOWN, Choice, answered, settled, worked

_REASONS = (
    "less the mean, over the root of the variance plus epsilon, scaled and shifted",
    "over the root of the mean square plus epsilon, scaled",
)
KINDS = ("layer", "rms", "batch", "group")


def _epsilon(exercise: Exercise, asked: Asked) -> Choice | None:
    if asked.quantity == "norm_statistics" or scalar(exercise, "epsilon") is not None:
        return None
    none, usual = (exercise.changed(Given(role="epsilon", value=value)) for value in (0, "1e-5"))
    mean, variance = (exact.floats(each) for each in norm(none, asked).statistics)
    if np.any((variance > 0) & (variance < 1e-6 * mean**2)):  # numbers that are nearly equal: epsilon decides
        return Choice("epsilon", "1e-5", usual, none, "epsilon 0")
    return Choice("epsilon", "0", none, usual, "epsilon 1e-5")


@dataclass(frozen=True)
class Norm:
    """A norm of `values`, a row for each set of numbers that is normalised together; `back` restores the shape."""

    kind: str
    values: Array
    mean: Array
    variance: Array
    gamma: Array
    beta: Array
    epsilon: Any
    rows: Callable[[Array], Array]
    back: Callable[[Array], Array]
    stored: bool = False

    @property
    def statistics(self) -> tuple[Array, Array]:
        return self.mean, self.variance

    @property
    def deviation(self) -> Array:
        found = exact.function("sqrt", exact.plus(self.variance, self.epsilon))
        refuse(np.any(found == 0), "misfit", what="the input", why="its variance is 0 and so is epsilon")
        return found

    @property
    def normalised(self) -> Array:
        return exact.over(exact.minus(self.values, self.mean), self.deviation)

    @property
    def output(self) -> Array:
        return exact.plus(exact.product(self.normalised, self.gamma), self.beta)


def norm(exercise: Exercise, asked: Asked) -> Norm:
    """The norm that is asked, by the quantity, the object or the structure, of the input."""
    words = f"{asked.quantity} {asked.object}".lower()
    kind = next((each for each in KINDS if each in words), exercise.structure.norm)
    values = first_of(exercise, "input", "vector", "tokens")
    if kind not in KINDS or values is None or not values.ndim:
        raise CannotSolve("missing", needs="the kind of norm" if kind not in KINDS else "the numbers to be normalised")
    shape = inner = values.shape
    axes: tuple[int, ...] = (0, *range(2, len(shape))) if kind == "batch" else (len(shape) - 1,)
    if kind == "group":
        groups, channels = whole(exercise, "groups"), shape[1] if len(shape) > 1 else shape[0]
        if not groups or channels % groups:
            code, why = "missing" if groups is None else "misfit", f"they do not divide {channels} channels"
            raise CannotSolve(code, needs="the number of groups", what=f"{groups} groups", why=why)
        inner = (shape[0] if len(shape) > 1 else 1, groups, channels // groups, *shape[2:])
        axes = tuple(range(2, len(inner)))
    order = (*(axis for axis in range(len(inner)) if axis not in axes), *axes)
    size = math.prod(inner[axis] for axis in axes)

    def rows(array: Array) -> Array:
        full = array.reshape(inner) if array.size == math.prod(inner) else np.broadcast_to(array, inner)
        return np.transpose(full, order).reshape(-1, size)

    def back(array: Array) -> Array:
        full = np.broadcast_to(array, (math.prod(inner) // size, size)).reshape([inner[axis] for axis in order])
        return np.transpose(full, np.argsort(order)).reshape(shape)

    def parameter(role: str, default: int) -> Array:
        """A number, or an array over the last axis (layer, rms) or over channels (batch, group)."""
        given = exercise.given(role)
        found = exact.array(default) if given is None or given.value is None else read(given, exercise)
        channels = inner[1 : 3 if kind == "group" else 2]
        if kind in ("batch", "group") and found.size == math.prod(channels) == max(found.shape, default=0):
            found = found.reshape(*channels, *(1,) * (len(inner) - 1 - len(channels)))
        try:
            return rows(found)
        except ValueError:
            why = f"it is {by(found.shape)}, the input {by(inner)}"
            raise CannotSolve("misfit", what=role.replace("_", " "), why=why) from None

    values = rows(values)
    stored = kind == "batch" and bool(exercise.given("running_mean") and exercise.given("running_variance"))
    if stored:
        mean, variance = (parameter(f"running_{each}", 0)[:, :1] for each in ("mean", "variance"))
    else:
        mean = exact.array([[0]] * len(values)) if kind == "rms" else average(values)
        variance = average(exact.power(exact.minus(values, mean), 2))
    gamma, beta, epsilon = parameter("gamma", 1), parameter("beta", 0), scalar(exercise, "epsilon", Fraction(0))
    return Norm(kind, values, mean, variance, gamma, beta, epsilon, rows, back, stored)


def average(rows: Array) -> Array:
    return exact.over(exact.total(rows), rows.shape[-1])


def _steps(found: Norm, *, output: bool = True) -> list[tuple[Step, ...]]:
    """The mean, the variance and the output of up to six sets of numbers."""
    if found.values.size > MOST_SHOWN or exact.is_float(found.values):
        return [worked(f"{found.kind} norm", values=found.values)]
    steps = []
    results = found.output if output else found.values
    for place, values in enumerate(found.values[:6]):
        words, below = f" {place + 1}" if len(found.values) > 1 else "", f"/{len(values)}"
        mean, variance = shown(found.mean[place, 0]), shown(found.variance[place, 0])
        if found.kind != "rms" and not found.stored:
            text = " + ".join(f"({shown(each)})" for each in values)
            steps.append(worked(f"mean{words}", f"({text}){below}", values=exact.array(found.mean[place, 0])))
        if not found.stored:
            text = " + ".join(f"({shown(each)} - ({mean}))^2" for each in values)
            name = "mean square" if found.kind == "rms" else "variance"
            steps.append(worked(f"{name}{words}", f"({text}){below}", values=exact.array(found.variance[place, 0])))
        if output:
            root = rf"\sqrt{{{variance} + {shown(found.epsilon)}}}"
            rows = zip(values, found.gamma[place], found.beta[place], strict=True)
            text = ", ".join(rf"({shown(g)}) \cdot ({shown(x)} - ({mean}))/{root} + ({shown(b)})" for x, g, b in rows)
            reason = _REASONS[found.kind == "rms"]
            steps.append(worked(f"output{words}", f"({text})", values=results[place], reason=reason))
    return steps


def _apply(exercise: Exercise, asked: Asked) -> Answer:
    found = norm(exercise, asked)
    return answered(found.back(found.output), exercise, _steps(found))


for _kind in KINDS:
    solver(f"{_kind}_norm", ("input|vector|tokens",))(settled(_epsilon)(_apply))


@solver("norm_gradient", ("input|vector|tokens", "upstream"))
@settled(_epsilon)
def norm_gradient(exercise: Exercise, asked: Asked) -> Answer:
    """The gradient of a loss with respect to the input of a norm, or to gamma or beta."""
    found, upstream = norm(exercise, asked), first_of(exercise, "upstream")
    count = 0 if upstream is None else upstream.size
    why = f"it has {count} entries, the input {found.values.size}"
    refuse(count != found.values.size, "misfit", what="the upstream gradient", why=why)
    upstream = found.rows(upstream)
    if part := next((each for each in ("gamma", "beta") if each in asked.object.lower()), ""):
        inner = found.back(exact.product(upstream, found.normalised) if part == "gamma" else upstream)
        feature = 1 if found.kind in ("batch", "group") and inner.ndim > 1 else inner.ndim - 1
        others = tuple(axis for axis in range(inner.ndim) if axis != feature)
        return answered(exact.total(inner, others, keepdims=False), exercise)
    scaled, below = exact.product(upstream, found.gamma), exact.plus(found.variance, found.epsilon)
    steps = _steps(found, output=False)
    if found.stored:
        return answered(found.back(exact.over(scaled, found.deviation)), exercise, steps)
    centred = exact.minus(found.values, found.mean)
    centre = found.mean if found.kind == "rms" else average(scaled)  # the mean of a root mean square counts as 0
    along = average(exact.product(scaled, centred))
    inner = exact.minus(exact.minus(scaled, centre), exact.over(exact.product(centred, along), below))
    result = exact.over(inner, found.deviation)
    if found.values.size <= MOST_SHOWN and not exact.is_float(found.values):
        reason = "the mean is taken off, and the part along the normalised input, over the deviation"
        for place, values in enumerate(result[:6]):
            c, a, v = (shown(each[place, 0]) for each in (centre, along, below))
            pairs = zip(map(shown, scaled[place]), map(shown, centred[place]), strict=True)
            text = ", ".join(rf"({g} - ({c}) - ({x}) \cdot ({a})/({v}))/\sqrt{{{v}}}" for g, x in pairs)
            steps.append(worked("gradient", f"({text})", values=values, reason=reason))
    return answered(found.back(result), exercise, steps)


@solver("norm_statistics", ("input|vector|tokens",))
@settled()
def norm_statistics(exercise: Exercise, asked: Asked) -> Answer:
    """The mean and the variance that a norm uses; for root mean square, the mean square."""
    found = norm(exercise, asked)
    means, variances = (exact.array(each[:, 0] if len(each) > 1 else each[0, 0]) for each in found.statistics)
    steps = _steps(found, output=False) if found.values.size <= MOST_SHOWN else []
    if found.kind == "rms":
        return answered(variances, exercise, steps)
    items = {"mean": answered(means, exercise), "variance": answered(variances, exercise)}
    chosen = items.get(asked.object.strip().lower())
    return chosen or answered(np.stack([means, variances]), exercise, steps, items=items)
