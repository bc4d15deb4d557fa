"""Normalisation on numbers: layer, root mean square, batch and group norms, their statistics and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...derivation import Step
from .. import exact
from ..exact import Array, shown
from ..findings import CannotSolve
from ..record import Asked, Exercise, Given
from ..solving import Answer, solver
from ..values import by, name_of, read, scalar, stacked, whole
from .answers import MOST_SHOWN, Choice, answered, settled, worked

_REASONS = (
    "less the mean, over the root of the variance plus epsilon, scaled and shifted",
    "over the root of the mean square plus epsilon, scaled",
)
KINDS = ("layer", "rms", "batch", "group")


def with_epsilon(exercise: Exercise, value: Any) -> Exercise:
    others = [given for given in exercise.givens if given.role != "epsilon"]
    return exercise.model_copy(update={"givens": (*others, Given(role="epsilon", value=value))})


def _epsilon(exercise: Exercise, asked: Asked) -> Choice | None:
    if asked.quantity == "norm_statistics" or scalar(exercise, "epsilon") is not None:
        return None
    return Choice("epsilon", "0", with_epsilon(exercise, 0), with_epsilon(exercise, "1e-5"), "epsilon 1e-5")


@dataclass(frozen=True)
class Norm:
    """A norm over `axes` of `values` (with an axis of groups where there are groups); parameters are broadcast."""

    kind: str
    values: Array
    axes: tuple[int, ...]
    mean: Array
    variance: Array
    gamma: Array
    beta: Array
    epsilon: Any
    shape: tuple[int, ...]
    stored: bool = False

    @property
    def deviation(self) -> Array:
        found = exact.function("sqrt", exact.plus(self.variance, self.epsilon))
        if np.any(found == 0):
            raise CannotSolve("misfit", what="the input", why="its variance is 0 and so is epsilon")
        return found

    @property
    def normalised(self) -> Array:
        return exact.over(exact.minus(self.values, self.mean), self.deviation)

    @property
    def output(self) -> Array:
        return exact.plus(exact.product(self.normalised, self.gamma), self.beta).reshape(self.shape)

    def average(self, values: Array) -> Array:
        count = math.prod(self.values.shape[axis] for axis in self.axes)
        return exact.over(exact.total(values, self.axes), Fraction(count))

    def parts(self, upstream: Array) -> tuple[Array, Array, Array, Array]:
        """What the gradient is made of: scaled upstream, its mean, the input less its mean, and their mean product."""
        scaled, centred = exact.product(upstream, self.gamma), exact.minus(self.values, self.mean)
        centre = exact.array(0) if self.kind == "rms" else self.average(scaled)
        return scaled, centre, centred, self.average(exact.product(scaled, centred))

    def gradient(self, upstream: Array) -> Array:
        """The gradient with respect to the input."""
        scaled, centre, centred, along = self.parts(upstream)
        if not self.stored and self.deviation.size:
            part = exact.over(exact.product(centred, along), exact.plus(self.variance, self.epsilon))
            scaled = exact.minus(exact.minus(scaled, centre), part)
        return exact.over(scaled, self.deviation)


def norm(exercise: Exercise, asked: Asked) -> Norm:
    """The norm that is asked, by the quantity, the object or the structure, of the input."""
    words = f"{asked.quantity} {asked.object}".lower()
    kind = next((each for each in KINDS if each in words), exercise.structure.norm)
    if kind not in KINDS:
        raise CannotSolve("missing", needs="the kind of norm")
    values = next(
        (each for role in ("input", "vector", "tokens") if (each := stacked(exercise, role)) is not None), None
    )
    if values is None or not values.ndim:
        raise CannotSolve("missing", needs="the numbers to be normalised")
    shape = values.shape
    if kind == "group":
        groups = whole(exercise, "groups")
        channels = shape[1] if len(shape) > 1 else shape[0]
        if groups is None or not groups or channels % groups:
            code, why = "missing" if groups is None else "misfit", f"they do not divide {channels} channels"
            raise CannotSolve(code, needs="the number of groups", what=f"{groups} groups", why=why)
        batch = shape[0] if len(shape) > 1 else 1
        values = values.reshape(batch, groups, channels // groups, *shape[2:])
        axes = tuple(range(2, values.ndim))
    else:
        axes = (0, *range(2, values.ndim)) if kind == "batch" else (values.ndim - 1,)
    count = Fraction(math.prod(values.shape[axis] for axis in axes))
    mean = exact.over(exact.total(values, axes), count)
    mean = exact.product(mean, Fraction(0)) if kind == "rms" else mean
    variance = exact.over(exact.total(exact.power(exact.minus(values, mean), Fraction(2)), axes), count)
    gamma, beta = (_parameter(exercise, *each, values, kind) for each in (("gamma", 1), ("beta", 0)))
    found = Norm(kind, values, axes, mean, variance, gamma, beta, scalar(exercise, "epsilon", Fraction(0)), shape)
    if kind == "batch" and exercise.given("running_mean") and exercise.given("running_variance"):
        mean, variance = (_parameter(exercise, f"running_{each}", 0, values, kind) for each in ("mean", "variance"))
        return replace(found, mean=mean, variance=variance, stored=True)
    return found


def _parameter(exercise: Exercise, role: str, default: int, values: Array, kind: str) -> Array:
    """A number, or an array over the last axis (layer, rms) or over channels (batch, group)."""
    given = exercise.given(role)
    if given is None or given.value is None:
        return exact.array(default)
    found = read(given, exercise)
    if kind in ("batch", "group") and found.ndim == 1 and values.ndim > 1:
        channels = values.shape[1:3] if kind == "group" else values.shape[1:2]
        if found.size == math.prod(channels):
            found = found.reshape(*channels, *(1,) * (values.ndim - 1 - len(channels)))
    pairs = zip(reversed(found.shape), reversed(values.shape), strict=False)
    if found.ndim > values.ndim or any(own not in (1, size) for own, size in pairs):
        raise CannotSolve("misfit", what=name_of(given), why=f"it is {by(found.shape)}, the input {by(values.shape)}")
    return found


def _groups(found: Norm, *arrays: Array) -> list[list[Array]]:
    """For each set of numbers that is normalised together, the entries of every array."""
    rows = []
    for each in (found.values, *arrays):
        full = np.broadcast_to(each, found.values.shape)
        kept = [axis for axis in range(full.ndim) if axis not in found.axes]
        size = math.prod(full.shape[axis] for axis in found.axes)
        rows.append(np.transpose(full, (*kept, *found.axes)).reshape(-1, size))
    return [list(group) for group in zip(*rows, strict=True)]


def _steps(found: Norm, *, output: bool = True) -> list[tuple[Step, ...]]:
    """The mean, the variance and the output of up to six sets of numbers."""
    if found.values.size > MOST_SHOWN or exact.is_float(found.values):
        return [worked(f"{found.kind} norm", values=found.values)]
    steps = []
    result = found.output.reshape(found.values.shape) if output else found.values
    parts = _groups(found, found.mean, found.variance, found.gamma, found.beta, result)
    for place, (values, means, variances, gammas, betas, results) in enumerate(parts[:6], 1):
        words, mean, below = f" {place}" if len(parts) > 1 else "", shown(means[0]), f"/{len(values)}"
        if found.kind != "rms" and not found.stored:
            text = " + ".join(f"({shown(each)})" for each in values)
            steps.append(worked(f"mean{words}", f"({text}){below}", values=exact.array(means[0])))
        if not found.stored:
            text = " + ".join(f"({shown(each)} - ({mean}))^2" for each in values)
            name = "mean square" if found.kind == "rms" else "variance"
            steps.append(worked(f"{name}{words}", f"({text}){below}", values=exact.array(variances[0])))
        if output:
            root = rf"\sqrt{{{shown(variances[0])} + {shown(found.epsilon)}}}"
            rows = zip(values, gammas, betas, strict=True)
            text = ", ".join(rf"({shown(g)}) \cdot ({shown(x)} - ({mean}))/{root} + ({shown(b)})" for x, g, b in rows)
            steps.append(worked(f"output{words}", f"({text})", values=results, reason=_REASONS[found.kind == "rms"]))
    return steps


def _apply(exercise: Exercise, asked: Asked) -> Answer:
    found = norm(exercise, asked)
    return answered(found.output, exercise, _steps(found))


for _kind in KINDS:
    solver(f"{_kind}_norm", ("input|vector|tokens",))(settled(_epsilon)(_apply))


@solver("norm_gradient", ("input|vector|tokens", "upstream"))
@settled(_epsilon)
def norm_gradient(exercise: Exercise, asked: Asked) -> Answer:
    """The gradient of a loss with respect to the input of a norm, or to gamma or beta."""
    found, upstream = norm(exercise, asked), stacked(exercise, "upstream")
    assert upstream is not None
    if upstream.size != found.values.size:
        why = f"it is {by(upstream.shape)}, the input {by(found.shape)}"
        raise CannotSolve("misfit", what="the upstream gradient", why=why)
    part = next((each for each in ("gamma", "beta") if each in asked.object.lower()), "")
    upstream = upstream.reshape(found.values.shape)
    if part:
        inner = (exact.product(upstream, found.normalised) if part == "gamma" else upstream).reshape(found.shape)
        feature = 1 if found.kind in ("batch", "group") and inner.ndim > 1 else inner.ndim - 1
        others = tuple(axis for axis in range(inner.ndim) if axis != feature)
        return answered(exact.total(inner, others, keepdims=False) if others else inner, exercise)
    result, steps = found.gradient(upstream), _steps(found, output=False)
    if found.values.size <= MOST_SHOWN and not exact.is_float(found.values) and not found.stored:
        below = exact.plus(found.variance, found.epsilon)
        reason = "the mean is taken off, and the part along the normalised input, over the deviation"
        for _, *parts, results in _groups(found, *found.parts(upstream), below, result)[:6]:
            columns = zip(*([shown(each) for each in part] for part in parts), strict=True)
            texts = (rf"({g} - ({c}) - ({x}) \cdot ({a})/({v}))/\sqrt{{{v}}}" for g, c, x, a, v in columns)
            steps.append(worked("gradient", f"({', '.join(texts)})", values=results, reason=reason))
    return answered(result.reshape(found.shape), exercise, steps)


@solver("norm_statistics", ("input|vector|tokens",))
@settled()
def norm_statistics(exercise: Exercise, asked: Asked) -> Answer:
    """The mean and the variance that a norm uses; for root mean square, the mean square."""
    found = norm(exercise, asked)
    flat = [np.broadcast_to(each, found.variance.shape).reshape(-1) for each in (found.mean, found.variance)]
    means, variances = (each if each.size > 1 else exact.array(each[0]) for each in flat)
    steps = _steps(found, output=False) if found.values.size <= MOST_SHOWN else []
    if found.kind == "rms":
        return answered(variances, exercise, steps)
    items = {"mean": answered(means, exercise), "variance": answered(variances, exercise)}
    chosen = items.get(asked.object.strip().lower())
    return chosen or answered(np.stack([means, variances]), exercise, steps, items=items)
