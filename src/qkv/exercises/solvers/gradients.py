"""Gradients by hand: the Jacobian of softmax, and a loss through attention back to queries, keys, values or weights."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from ...derivation import Step
from .. import attending, exact
from ..attending import Attention
from ..exact import Array, expression
from ..findings import CannotSolve, refuse
from ..masks import index_base
from ..record import Asked, Exercise
from ..solving import Answer, solver
from ..values import bare, columns, read, stacked
from .answers import answered, multiplied, settled, worked
from .attention import QUERY_AND_KEY, given_scores, index_choice, scale_choice

_SCORES, _WEIGHTS = ("scores", "s", "z", "logits"), ("weights", "a", "p", "softmax")


def _probabilities(exercise: Exercise, asked: Asked) -> tuple[Array, str]:
    """Weights that are given, or the softmax of scores, with an expression of them."""
    given = exercise.given("weights")
    if given is not None and given.value is not None:
        values = read(given, exercise)
        if values.ndim == 2 and asked.row is not None:
            values = values[asked.row - index_base(exercise)]
        return values, expression(values)
    scores, allowed = given_scores(exercise, asked)
    weights = exact.softmax(scores, allowed)
    if exact.is_rational(weights):  # of scores such as log 2, which a derivation would show rounded
        return weights, expression(weights)
    return weights, f"softmax({expression(scores)})" if np.all(allowed) else ""


@solver("jacobian")
@settled(index_choice)
def jacobian(exercise: Exercise, asked: Asked) -> Answer:
    """The Jacobian of softmax, diag(a) - a a^T, over the temperature."""
    pair = re.findall(r"\d+", asked.object)
    if not any(given.value is not None for given in exercise.of_role("scores", "vector", "input", "weights")):
        return _entry_formula(asked.object)
    values, text = _probabilities(exercise, asked)
    refuse(values.ndim != 1, "misfit", what="the scores", why="the Jacobian is of one vector")
    found = softmax_backward(values, np.eye(len(values), dtype=int))
    scale = attending.scale_of(exercise, 1, "weights") if exercise.of_role("temperature") else exact.Scale()
    found, factor = scale.apply(found), "" if scale.plain else f"{exact.shown(scale.factor)} "
    text, reason = text and f"{factor}(diag({text}) - {text} {text}^T)", "entry (i, j) is a_i (1[i = j] - a_j)"
    steps = [worked("Jacobian", text, values=found, reason=reason)] if text else []
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
        found = exact.array(np.ones(shape, dtype=int))
    if found.size != np.prod(shape):
        why = f"it has {found.size} entries, not {np.prod(shape)}"
        raise CannotSolve("misfit", what="the upstream gradient", why=why)
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
        if re.match(r"[qkvxwo](?!eight)", name):
            raise CannotSolve("missing", needs="the queries and keys, without which only the scores have a gradient,")
        weights, text = _probabilities(exercise, asked)
        upstream = _upstream(exercise, weights.shape)
        found = attending.scale_of(exercise, 1, "weights").apply(softmax_backward(weights, upstream))
        plain = text and found.ndim == 1 and not exercise.of_role("temperature", "scale")
        texts = (f"(diag({text}) - {text} {text}^T) {expression(upstream)}",) if plain else ()
        reason = "the Jacobian of softmax times the upstream gradient"
        return answered(found, exercise, [worked("scores", *texts, values=found, reason=reason)])
    found, steps = _through_attention(attending.attention(exercise, asked), exercise, name)
    query = exercise.given("query")
    if name == "q" and query is not None and np.ndim(query.value) == 1:
        return answered(found[0], exercise, steps)
    return answered(exact.transposed(found) if columns(exercise) and name in "qkvx" else found, exercise, steps)


def _through_attention(found: Attention, exercise: Exercise, name: str) -> tuple[Array, list[tuple[Step, ...]]]:
    """The gradient with respect to the named part, and the steps that lead to it."""
    if found.similarity != "softmax" or found.query.ndim > 2:
        raise CannotSolve("no_solver", quantity="gradients of anything but softmax attention with one head")
    turn, weights = exact.transposed, found.weights
    known: dict[str, tuple[Array, tuple[Step, ...]]] = {"o": (_upstream(exercise, found.output.shape), ())}
    if found.output_weight is not None:
        through = turn(found.output_weight)
        known["o"] = multiplied("dO", known["o"][0], through, reason="dO W_O^T, the output projection")
    upstream = known["o"][0]
    known["a"] = multiplied("dA", upstream, turn(found.values), reason="dA = dO V^T")
    known["v"] = multiplied("dV", turn(weights), upstream, reason="dV = A^T dO")
    d_weights, d_scores = known["a"][0], softmax_backward(weights, known["a"][0])
    sums = np.broadcast_to(exact.total(exact.product(weights, d_weights)), weights.shape)
    text = rf"{expression(weights)} \odot ({expression(d_weights)} - {expression(sums)})"
    reason = "dS = A ∘ (dA - the row sums of A ∘ dA)"
    known["s"] = d_scores, worked("dS", text, values=d_scores, reason=reason)
    scaled = found.scale.apply(d_scores)
    if not found.scale.plain:
        text = f"({found.scale.text(Fraction(1), exact.shown)}) {expression(d_scores)}"
        known["t"] = scaled, worked("dS times the scale", text, values=scaled)
    known["q"] = multiplied("dQ", scaled, found.key, reason="dQ = dS K, scaled")
    known["k"] = multiplied("dK", turn(scaled), found.query, reason="dK = dS^T Q, scaled")
    wanted = "s" if name in _SCORES else "a" if name in _WEIGHTS else name
    factors = {letter.lower(): (tokens, weight) for letter, tokens, weight in found.factors if weight.ndim == 2}
    if (weight := re.fullmatch(r"w_?\^?\(?([qkv])\)?", name)) and weight[1] in factors:
        reason = "tokens^T times the gradient of their projection"
        known[name] = multiplied(f"d{name}", turn(factors[weight[1]][0]), known[weight[1]][0], reason=reason)
    elif name in ("x", "tokens") and len(factors) == 3 and not exercise.of_role("context"):
        # Side by side, the three products are one.
        parts = [np.concatenate([known[letter][0] for letter in factors], -1),
                 np.concatenate([turn(weight) for _, weight in factors.values()], -2)]  # fmt: skip
        known[name] = multiplied("dX", *parts, reason="the sum of dQ W_Q^T, dK W_K^T and dV W_V^T")
    refuse(wanted not in known, "not_understood", found=f"the gradient with respect to {name or 'nothing'}")
    needed = {"v": "ov", "a": "oa", "s": "oas", "q": "oastq", "k": "oastk"}.get(wanted, "oavstqk")
    return known[wanted][0], [step for part, (_, step) in known.items() if part in needed or part == wanted]
