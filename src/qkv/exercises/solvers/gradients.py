"""Gradients by hand: the Jacobian of softmax, and a loss through attention back to queries, keys, values or weights."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from .. import attending, exact
from ..attending import Attention
from ..exact import Array, expression
from ..findings import CannotSolve
from ..masks import index_base
from ..record import Asked, Exercise
from ..solving import Answer, solver
from ..values import bare, columns, read, stacked
from .answers import answered, settled, worked
from .attention import QUERY_AND_KEY, given_scores, index_choice, scale_choice

_SCORES, _WEIGHTS = ("scores", "s", "z", "logits", "x"), ("weights", "a", "p", "softmax")


def _probabilities(exercise: Exercise, asked: Asked) -> tuple[Array, str]:
    """Weights that are given, or the softmax of scores, with an expression of them."""
    given = exercise.given("weights")
    if given is not None and given.value is not None:
        values = read(given, exercise)
        if values.ndim == 2 and asked.row is not None:
            values = values[asked.row - index_base(exercise)]
        return values, expression(values)
    scores, allowed = given_scores(exercise, asked)
    return exact.softmax(scores, allowed), f"softmax({expression(scores)})" if np.all(allowed) else ""


@solver("jacobian")
@settled(index_choice)
def jacobian(exercise: Exercise, asked: Asked) -> Answer:
    """The Jacobian of softmax, diag(a) - a a^T, over the temperature."""
    pair = re.findall(r"\d+", asked.object)
    if not any(given.value is not None for given in exercise.of_role("scores", "vector", "input", "weights")):
        return _entry_formula(asked.object)
    values, text = _probabilities(exercise, asked)
    if values.ndim != 1:
        raise CannotSolve("misfit", what="the scores", why="the Jacobian is of one vector")
    column = values[:, None]
    found = exact.minus(exact.masked(np.broadcast_to(column, (len(values),) * 2), np.eye(len(values), dtype=bool)),
                        exact.times(column, exact.transposed(column)))  # fmt: skip
    scale = attending.scale_of(exercise, 1, "weights") if exercise.of_role("temperature") else exact.Scale()
    found, factor = scale.apply(found), "" if scale.plain else f"{exact.shown(scale.factor)} "
    steps = [worked("Jacobian", f"{factor}(diag({text}) - {text} {text}^T)", values=found, exercise=exercise,
                    reason="the derivative of a_i by s_j is a_i (1[i = j] - a_j)")] if text else []  # fmt: skip
    if len(pair) == 2:
        i, j = (int(each) - index_base(exercise) for each in pair)
        if not (0 <= i < len(values) and 0 <= j < len(values)):
            raise CannotSolve("misfit", what=asked.object, why=f"there are {len(values)} scores")
        return answered(found[i, j], exercise, steps)
    return answered(found, exercise, steps)


def _entry_formula(name: str) -> Answer:
    """The Jacobian, or one entry of it, as a formula in the weights."""
    pair = re.findall(r"[as]_?(\w)", bare(name))
    text = "diag(a) - a a^T"
    if len(pair) == 2:
        i, j = pair
        different = f"-a_{i} a_{j}" if i.isdigit() and j.isdigit() else rf"a_{i} (\delta_{{{i}{j}}} - a_{j})"
        text = f"a_{i} (1 - a_{i})" if i == j else different
    return Answer(text, text, "formula", symbols={"a": "vector[n]"})


def _upstream(exercise: Exercise, shape: tuple[int, ...]) -> Array:
    """The gradient that comes from the loss: given, or ones where the loss is the sum of the outputs."""
    found = stacked(exercise, "upstream")
    if found is None:
        losses = [str(given.value) for given in exercise.of_role("expression")]
        losses += [definition.text for definition in exercise.definitions]
        if not any(re.search(r"\bsum\b|\\sum|Σ", loss) and not re.search(r"\^|exp|softmax", loss) for loss in losses):
            raise CannotSolve("missing", needs="the gradient of the loss with respect to the output")
        found = exact.filled([Fraction(1)] * int(np.prod(shape)), shape)
    if found.size != int(np.prod(shape)):
        raise CannotSolve(
            "misfit", what="the upstream gradient", why=f"it has {found.size} entries, not {np.prod(shape)}"
        )
    return found.reshape(shape)


def softmax_backward(weights: Array, upstream: Array) -> Array:
    """a ∘ (g - sum of a ∘ g) along the last axis."""
    return exact.product(weights, exact.minus(upstream, exact.total(exact.product(weights, upstream))))


@solver("gradient", ("scores|weights|vector|input",), QUERY_AND_KEY)
@settled(scale_choice, index_choice)
def gradient(exercise: Exercise, asked: Asked) -> Answer:
    """The gradient of a loss with respect to the object."""
    name = re.sub(r"^(?:d\s*L?\s*/?\s*d|grad(?:ient)?\s*(?:of|wrt)?)\s*", "", bare(asked.object)).lower()
    if re.fullmatch(r"d?a_?\w/d?s_?\w|a_?\w,s_?\w", name):
        return jacobian(exercise, asked)
    if not exercise.of_role("query", "key", "tokens"):
        weights, text = _probabilities(exercise, asked)
        upstream = _upstream(exercise, weights.shape)
        found = attending.scale_of(exercise, 1, "weights").apply(softmax_backward(weights, upstream))
        plain = text and found.ndim == 1 and not exercise.of_role("temperature", "scale")
        texts = (f"(diag({text}) - {text} {text}^T) {expression(upstream)}",) if plain else ()
        reason = "the Jacobian of softmax times the upstream gradient"
        return answered(found, exercise, [worked("scores", *texts, values=found, exercise=exercise, reason=reason)])
    found, steps = _through_attention(attending.attention(exercise, asked), exercise, name)
    found = found[..., 0, :] if found.ndim > 1 and found.shape[-2] == 1 and name == "q" and _single(exercise) else found
    return answered(exact.transposed(found) if columns(exercise) and name in "qkvx" else found, exercise, steps)


def _single(exercise: Exercise) -> bool:
    given = exercise.given("query")
    return given is not None and np.ndim(given.value) == 1


def _through_attention(found: Attention, exercise: Exercise, name: str) -> tuple[Array, list[tuple]]:
    if found.similarity != "softmax" or found.query.ndim > 2:
        raise CannotSolve("no_solver", quantity="gradients of anything but softmax attention with one head")
    upstream = _upstream(exercise, found.output.shape)
    steps: list[tuple] = []

    def step(title: str, text: str, values: Array, reason: str) -> Array:
        steps.append(worked(title, text, values=values, exercise=exercise, reason=reason))
        return values

    if found.output_weight is not None:
        turned = exact.transposed(found.output_weight)
        text = f"{expression(upstream)} {expression(turned)}"
        upstream = step("dO", text, exact.times(upstream, turned), "through the output projection: dO W_O^T")
    weights, turn = found.weights, exact.transposed
    texts = [expression(each) for each in (upstream, found.values, weights, found.query, found.key)]
    factor = found.scale.text(Fraction(1), exact.shown)
    d_value = step("dV", f"{texts[2]}^T {texts[0]}", exact.times(turn(weights), upstream), "dV = A^T dO")
    d_weights = step("dA", f"{texts[0]} {texts[1]}^T", exact.times(upstream, turn(found.values)), "dA = dO V^T")
    d_scores, rows = softmax_backward(weights, d_weights), exact.total(exact.product(weights, d_weights))
    spread = expression(np.broadcast_to(rows, weights.shape))
    text = rf"{texts[2]} \odot ({expression(d_weights)} - {spread})"
    step("dS", text, d_scores, "dS = A ∘ (dA - the row sums of A ∘ dA)")
    by = expression(d_scores)
    scaled = found.scale.apply(d_scores)
    d_query = step("dQ", f"({factor}) {by} {texts[4]}", exact.times(scaled, found.key), "dQ = dS K times the scale")
    d_key = step("dK", f"({factor}) {by}^T {texts[3]}", exact.times(turn(scaled), found.query),
                 "dK = dS^T Q times the scale")  # fmt: skip
    order = {"v": 1, "weights": 2, "scores": 3, "q": 4, "k": 5}
    known = {"q": d_query, "k": d_key, "v": d_value, "weights": d_weights, "scores": d_scores}
    chosen = "scores" if name in _SCORES[:-1] else "weights" if name in _WEIGHTS else name
    if chosen in known:
        start = 1 if found.output_weight is not None else 0
        kept = {"v": [1], "weights": [2], "scores": [2, 3], "q": [2, 3, 4], "k": [2, 3, 5]}[chosen]
        return known[chosen], steps[:start] + [steps[start + place - 1] for place in sorted({order[chosen], *kept})]
    if projected := re.fullmatch(r"w_?\^?(?:\()?([qkv])\)?", name):
        letter = projected[1]
        for each, tokens, weight in found.factors:
            if each.lower() == letter and tokens.ndim == weight.ndim == 2:
                text = f"{expression(tokens)}^T {expression(known[letter])}"
                return step(f"dW_{each}", text, exact.times(turn(tokens), known[letter]), f"dW = X^T d{each}"), steps
    if name in ("x", "tokens") and len(found.factors) == 3 and not exercise.of_role("context"):
        parts = [exact.times(known[each.lower()], turn(weight)) for each, _, weight in found.factors]
        text = " + ".join(f"{expression(known[each.lower()])} {expression(turn(w))}" for each, _, w in found.factors)
        return step(
            "dX", text, exact.plus(exact.plus(*parts[:2]), parts[2]), "dX = the sum of dQ W^T, dK W^T, dV W^T"
        ), steps
    raise CannotSolve("not_understood", found=f"the gradient with respect to {name or 'nothing'}")
