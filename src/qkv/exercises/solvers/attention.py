"""Attention on numbers: projections, scores, weights, outputs, argmax, other similarities, masks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...derivation import Step
from .. import attending, exact
from ..attending import WEIGHTS, Attention, attention, projected
from ..exact import Array, expression
from ..findings import CannotSolve, Finding, refuse
from ..masks import alternatives, index_base, mask, pairs_formula, symbols_in
from ..record import Asked, Definition, Exercise
from ..solving import Also, Answer, solver
from ..values import bare, columns, digits, first_of, number, read, scalar, whole
from .answers import MOST_SHOWN, Choice, answered, joined_items, multiplied, settled, worked

_SCALES = {"sqrt": "division by the root of the head width", "none": "no scaling"}
_SCALE_FREE = ("argmax", "linear", "relu", "feature_map")
_LETTERS = {"Q": "query", "K": "key", "V": "value"}
QUERY_AND_KEY = ("query|tokens", "key|tokens|context")


def scale_choice(exercise: Exercise, asked: Asked) -> Choice | None:
    """Whether dot products are divided by the root of the head width."""
    given, assumed = exercise.given("scale"), exercise.convention("scale")
    if exercise.said("scale") or (given is not None and given.value is not None):
        return None
    if assumed is None and attending.settled_scale(exercise, asked.quantity) is not None:
        return None
    similarity = exercise.structure.similarity
    if asked.quantity == "argmax" or (similarity in _SCALE_FREE and asked.quantity != "scores"):
        return None
    usual = "none" if asked.quantity in ("scores", "similarity") or similarity != "softmax" else "sqrt"
    taken = usual if assumed is None else assumed
    other = "sqrt" if taken == "none" else "none"
    both = exercise.changed(scale=taken), exercise.changed(scale=other)
    return Choice("the scale of the scores", _SCALES.get(taken, str(taken)), *both, _SCALES[other])


def index_choice(exercise: Exercise, asked: Asked) -> Choice | None:
    """Whether tokens and heads are counted from 1 or from 0."""
    named = [asked.row, *map(int, re.findall(r"\d+", asked.object))]
    if exercise.said("index_base") or named == [None]:
        return None
    base = 0 if 0 in named else int(exercise.convention("index_base", 1))
    both = exercise.changed(index_base=base), exercise.changed(index_base=base if 0 in named else 1 - base)
    return Choice("the first index", str(base), *both, f"indices counted from {1 - base}")


def _side(exercise: Exercise, asked: Asked) -> Choice | None:
    weights = [given for given in exercise.of_role(*WEIGHTS) if given.symbol]
    if not columns(exercise) or not weights or attending.from_left(exercise, weights[0].role) is not None:
        return None
    tokens = next((given.symbol for given in exercise.of_role("tokens", "context") if given.symbol), "x")
    texts = (f"y = {weights[0].symbol}{turn} {tokens}" for turn in ("^T", ""))
    taken, other = (exercise.changed(Definition(text=text)) for text in texts)
    return Choice("the side of the weights", "W^T x", taken, other, "weights that act as W x")


def _tokens(exercise: Exercise, asked: Asked) -> Choice | None:
    if exercise.of_role("query", "key", "value", *WEIGHTS) or not exercise.of_role("tokens", "context"):
        return None
    return Choice("a projection", "queries, keys and values equal to the tokens", exercise)


_settled = settled(scale_choice, index_choice, _side, _tokens)


def picked(exercise: Exercise, asked: Asked, *, with_values: bool = True) -> Attention:
    """Attention for the head and the row that are asked."""
    found = attention(exercise, asked, with_values=with_values)
    head = re.search(r"head\D*(\d+)" if asked.quantity != "heads_output" else r"(\d+)", asked.object.lower())
    if head and found.heads > 1:
        found = found.of("head", int(head[1]) - index_base(exercise))
    row = asked.row if asked.row is not None else next(iter(_indices(asked.object, found)), None)
    return found.of("token", row - index_base(exercise)) if row is not None and found.query.shape[-2] > 1 else found


def _indices(name: str, found: Attention) -> list[int]:
    """The indices of an object such as z_{3,1}, a_2 or (1, 2)."""
    named = re.fullmatch(r"\\?[A-Za-z]*[_(\[]*(\d+)(?:,(\d+))?[)\]]*", bare(name))
    if not named or "head" in name.lower():
        return []
    numbers = [each for each in named.groups() if each]
    if len(numbers) == 1 and len(numbers[0]) == 2 and max(found.query.shape[-2], found.key.shape[-2]) < 10:
        numbers = list(numbers[0])
    return [int(each) for each in numbers]


def _key_picked(asked: Asked, found: Attention, *arrays: Array) -> list[Array]:
    """One entry of scores or weights where the object names it."""
    indices = _indices(asked.object, found)
    place = indices[1] - index_base(found.exercise) if len(indices) == 2 else None
    if place is None:
        return list(arrays)
    if not 0 <= place < arrays[0].shape[-1]:
        raise CannotSolve("misfit", what=f"key {indices[1]}", why=f"there are {arrays[0].shape[-1]} keys")
    return [exact.array(each[..., place]) for each in arrays]


def _heads(found: Attention) -> Iterator[tuple[str, Attention]]:
    """Each head apart with the words that begin its titles."""
    if found.heads == 1:
        yield "", found
    elif found.heads <= 4 and found.query.ndim == 3:
        for head in range(found.heads):
            yield f"head {head + index_base(found.exercise)}: ", found.of("head", head)


def _score_steps(found: Attention) -> Iterator[tuple[Step, ...]]:
    """Projections, dot products and scaled scores."""
    for letter, tokens, weight in found.factors:
        if tokens.ndim == weight.ndim == 2:
            yield multiplied(letter, tokens, weight, reason="tokens times weights")[1]
    for words, head in _heads(found):
        if head.dots.ndim > 2 or found.direct:
            continue
        pair = (head.key, head.query[0], "") if head.one_query else (head.query, head.key, "^T")
        dots, scores = (each[0] if head.one_query else each for each in (head.dots, head.scores))
        text, reason = f"{expression(pair[0])} {expression(pair[1])}{pair[2]}", "the dot product with every key"
        yield worked(f"{words}dot products", text, values=dots, reason=reason)
        if not head.scale.plain or head.bias is not None:
            bias = head.bias if head.bias is None else np.broadcast_to(head.bias, head.dots.shape).reshape(dots.shape)
            added = "" if bias is None else f" + {expression(bias)}"
            roots = bias is None and head.scale.under != 1 and dots.size <= MOST_SHOWN and not exact.is_float(dots)
            result = exact.written(dots, number=head.scale.text) if roots else ""
            text = f"({head.scale.text(Fraction(1), exact.shown)}) {expression(dots)}{added}"
            reason = "times the scale" if bias is None else "times the scale, with the bias"
            yield worked(f"{words}scores", text, values=scores, reason=reason, result=result)


def _similarity_text(found: Attention, row: int, may: Array) -> str:
    """The weights of one query over the keys that it attends to, as an expression; nothing for a single key."""
    if found.similarity == "argmax" or may.sum() < 2:
        return ""
    if found.similarity == "softmax":
        numbers = (found.dots if found.bias is None else found.scores)[row][may]
        recognised = exact.is_rational(found.weights[row]) and not exact.is_rational(numbers)
        if recognised or np.ptp(exact.floats(found.scores[row][may])) > 500:  # weights too small to be compared
            return ""
        scale = found.scale if found.bias is None else exact.Scale()
        return f"softmax({exact.written(numbers, number=lambda dot: scale.text(dot, exact.shown))})"
    similar = [exact.shown(each) for each in found.similarities[row][may]]
    if found.normaliser == "none":
        return f"({', '.join(similar)})"
    below = " + ".join(f"({each})" for each in similar)
    return f"({', '.join(similar)})/({below})" if any(found.weights[row]) else ""


def _weight_steps(found: Attention, *, outputs: bool = False) -> Iterator[tuple[Step, ...]]:
    """The weights of each query, and what they make of the values."""
    allowed = np.broadcast_to(found.allowed, (found.query.shape[-2], found.key.shape[-2]))
    if exact.is_float(found.weights) or allowed.size > MOST_SHOWN or found.allowed.ndim > 2:
        return
    given = found.direct and found.exercise.of_role("weights")
    for words, head in _heads(found):
        for row, may in enumerate(allowed if head.query.ndim == 2 else []):
            name = "" if found.one_query else f" of query {row + index_base(found.exercise)}"
            text, count = _similarity_text(head, row, may), int(may.sum())
            reason = f"{head.similarity.replace('_', ' ')} over {count} keys"
            if head.similarity == "argmax" or count < 2:
                largest = "all weight on the first key with the largest score"
                reason = ("nothing to attend to", "a single key", largest)[min(count, 2)]
            if not given:
                weights, texts = (head.weights[row][may], (text,)) if text else (head.weights[row], ())
                yield worked(f"{words}weights{name}", *texts, values=weights, reason=reason)
            if outputs and text:
                text = f"{expression(exact.transposed(head.values[may]))} {text}"
                yield worked(f"{words}output{name}", text, values=head.outputs[row], reason="values times weights")


def _shaped(found: Attention, values: Array, *, outputs: bool = False) -> Array:
    """One query without its axis; outputs of tokens as columns in columns."""
    if outputs and found.number_values and values.shape[-1] == 1:
        return exact.array(values[..., 0, 0] if found.one_query else values[..., 0])
    if found.one_query:
        return values[..., 0, :]
    return exact.transposed(values) if outputs and columns(found.exercise) else values


def _ties(found: Attention) -> tuple[Finding, ...]:
    """A note where argmax meets equal scores."""
    if found.similarity != "argmax":
        return ()
    kept = exact.floats(exact.masked(found.scores, found.allowed, -np.inf))
    tied = (kept == kept.max(-1, keepdims=True)).sum(-1) > 1
    return (Finding("note", {"text": "several keys have the largest score; the first is taken"}),) if tied.any() else ()


def _turned(found: Attention, values: Array) -> tuple[Also, ...]:
    """Scores and weights of tokens as columns, with a column for each query."""
    if not columns(found.exercise) or found.one_query or values.ndim != 2:
        return ()
    other = answered(exact.transposed(values), found.exercise)
    return (Also(other.text, other.value, "a column for each query"),)


@solver("projections", ("tokens|query|context|key|value",))
@_settled
def projections(exercise: Exercise, asked: Asked) -> Answer:
    """Queries, keys and values."""
    named = re.findall(r"([QKVqkv])(?![A-Za-z])[_^{(]*(\d+)?", asked.object)
    given = [(letter, "") for letter, name in _LETTERS.items() if exercise.of_role(name, f"{name}_weight")]
    found: dict[str, Answer] = {}
    for letter, index in named or given:
        values, factors = projected(exercise, _LETTERS[letter.upper()])
        steps = []
        if factors is not None and factors[0].ndim == factors[1].ndim == 2:
            steps = [multiplied(letter.upper(), *factors, reason="tokens times weights")[1]]
        row = int(index) if index else asked.row
        if row is not None and values.ndim > 1:
            of_head = bool(index) and letter.isupper() and values.ndim == 3
            count, place = values.shape[0 if of_head else -2], row - index_base(exercise)
            refuse(not 0 <= place < count, "misfit", what=f"{letter}_{row}", why=f"there are {count}")
            values = values[place] if of_head else values[..., place, :]
        elif columns(exercise) and values.ndim > 1:
            values = exact.transposed(values)
        found[f"{letter}_{index}" if index else letter] = answered(values, exercise, steps)
    return joined_items(found)


def _with_infinity(values: Array, allowed: Array, digits: int | None = None) -> Answer:
    """Scores with minus infinity where they are not allowed."""
    allowed = np.asarray(allowed, dtype=bool)
    texts = exact.masked(exact.each(lambda each: exact.typed(each, digits), values), allowed, "-inf")
    value = exact.nested(exact.masked(exact.floats(values), allowed, -np.inf))
    return Answer(exact.written(texts, number=str), value, symbols={"inf": "scalar"})


@solver("scores", QUERY_AND_KEY)
@_settled
def scores(exercise: Exercise, asked: Asked) -> Answer:
    """What is given to the softmax."""
    found = picked(exercise, asked, with_values=False)
    allowed = np.broadcast_to(found.allowed, found.scores.shape)
    parts = [_shaped(found, each) for each in (found.scores, found.dots, allowed)]
    if found.one_query and found.key.shape[-2] == 1:
        parts = [exact.array(each[..., 0]) for each in parts]
    values, dots, may = _key_picked(asked, found, *parts)
    answer, also = answered(values, exercise, _score_steps(found)), _turned(found, values)
    if not np.all(may):
        infinite = _with_infinity(values, may, digits(exercise))
        if "mask" in asked.object.lower():
            return replace(answer, text=infinite.text, value=infinite.value, symbols=infinite.symbols)
        also = (*also, Also(infinite.text, infinite.value, "the mask already added", infinite.symbols))
    if found.scale.under != 1 and found.bias is None and exact.is_rational(dots):
        text = exact.written(dots, number=found.scale.text)
        return replace(answer, text=text, also=(Also(answer.text), *also))
    return replace(answer, also=also)


def _attended(exercise: Exercise, asked: Asked) -> Answer:
    """The weights, the output (of the heads joined and projected, or of the one that is named), or all heads'."""
    weights, items = asked.quantity == "weights", {}
    found = picked(exercise, asked, with_values=not weights)
    steps = [*_score_steps(found), *_weight_steps(found, outputs=not weights)]
    if weights:
        (values,) = _key_picked(asked, found, _shaped(found, found.weights))
        return answered(values, exercise, steps, also=_turned(found, values), assumed=_ties(found))
    values = found.joined if asked.quantity == "output" else found.outputs
    if asked.quantity == "heads_output" and found.heads > 1:
        each = {words[:-2]: _shaped(head, head.outputs, outputs=True) for words, head in _heads(found)}
        items = {name: answered(part, exercise) for name, part in each.items()}
    elif not re.search(r"head|concat|before", asked.object.lower()) and found.output_weight is not None:
        reason = "the heads side by side times the output projection"
        values, step = multiplied("output", values, found.output_weight, reason=reason)
        steps.append(step)
    return answered(_shaped(found, values, outputs=True), exercise, steps, items=items, assumed=_ties(found))


solver("weights", QUERY_AND_KEY, ("scores|vector|weights",))(_settled(_attended))
solver("output", QUERY_AND_KEY, ("scores|weights", "value"))(_settled(_attended))
solver("heads_output", QUERY_AND_KEY)(_settled(_attended))


@solver("argmax", QUERY_AND_KEY, ("scores|vector",))
@_settled
def argmax(exercise: Exercise, asked: Asked) -> Answer:
    """Argmax attention: scores, the index of the best key and its value."""
    exercise = exercise.changed(structure={"similarity": "argmax"})
    direct = not exercise.of_role("query", "tokens")
    with_values = not direct and bool(
        exercise.of_role("value", "value_weight")
        or exercise.convention("keys_are_values")
        or not exercise.of_role("query", "key", *WEIGHTS)
    )
    found = picked(exercise, asked, with_values=with_values)
    steps = [*_score_steps(found), *_weight_steps(found)]
    places = np.asarray(_shaped(found, found.weights) == 1).argmax(-1) + index_base(exercise)
    best = answered(np.asarray(places), exercise, steps)
    items = {"scores": answered(_shaped(found, found.scores), exercise), "index": best}
    if with_values:
        items["output"] = answered(_shaped(found, found.output, outputs=True), exercise, steps)
    return replace(items.get("output", best), items={} if direct else items, assumed=_ties(found))


@solver("similarity", QUERY_AND_KEY)
@_settled
def similarity(exercise: Exercise, asked: Asked) -> Answer:
    """sim(q, k) of every query and key."""
    found = picked(exercise, asked, with_values=False)
    values, steps = _shaped(found, found.similarities), list(_score_steps(found))
    if found.one_query and values.shape[-1] == 1:
        values, score = exact.array(values[..., 0]), exact.shown(found.scores.flat[0])
        offset, degree = scalar(exercise, "offset", Fraction(1)), scalar(exercise, "degree", Fraction(2))
        texts = {"exponential": f"e^{{{score}}}", "softmax": f"e^{{{score}}}", "sigmoid": f"sigmoid({score})",
                 "polynomial": f"({score} + ({exact.shown(offset)}))^{{{exact.shown(degree)}}}"}  # fmt: skip
        if text := texts.get(found.similarity):
            reason = f"the {found.similarity} similarity of the score"
            steps.append(worked("similarity", text, values=values, reason=reason))
    return answered(values, exercise, steps)


@solver("linear_state", ("key|tokens", "value|value_weight|tokens"))
@settled(index_choice, _side, _tokens)
def linear_state(exercise: Exercise, asked: Asked) -> Answer:
    """The state S and the normaliser z of linear attention after some tokens."""
    keys, values = (projected(exercise, name)[0] for name in ("key", "value"))
    keys = np.atleast_2d(keys)
    values = values.reshape(len(keys), -1) if values.ndim < 2 and values.size % len(keys) == 0 else values
    count = len(keys) if asked.row is None else asked.row - index_base(exercise) + 1
    if not 0 < count <= len(keys) or len(values) != len(keys):
        why = f"there are {len(keys)} keys and {len(values)} values"
        raise CannotSolve("misfit", what=f"token {asked.row if asked.row is not None else count}", why=why)
    features = exercise.structure.similarity == "feature_map" or exercise.of_role("expression", "features")
    kept, added = (attending.mapped(exercise, keys) if features else keys)[:count], values[:count]
    decay = scalar(exercise, "decay")
    if decay is not None:
        kept = exact.product(exact.power(decay, np.arange(count)[::-1, None]), kept)
    reason = "the sum of the outer products of keys and values" + ("" if decay is None else ", decayed")
    state, step = multiplied("S", exact.transposed(kept), added, reason=reason)
    normaliser = exact.total(kept, (0,), keepdims=False)
    items = {"S": answered(state, exercise, [step]), "z": answered(normaliser, exercise)}
    chosen = "z" if asked.object.strip() in ("z", "normaliser") else "S"
    return replace(items[chosen], items={} if asked.object.strip() in ("S", "z") else items)


def given_scores(exercise: Exercise, asked: Asked) -> tuple[Array, Array]:
    """The scores that are given or follow from queries and keys, over the temperature, and which of them count."""
    found = picked(exercise, asked, with_values=False)
    return _shaped(found, found.scores), _shaped(found, np.broadcast_to(found.allowed, found.scores.shape))


def _of_scores(exercise: Exercise, asked: Asked) -> Answer:
    values, allowed = given_scores(exercise, asked)
    name = asked.quantity
    if name != "softmax" and not np.all(allowed):
        raise CannotSolve("misfit", what=name.replace("_", "-"), why="a masked score has no finite logarithm")
    if name == "softmax":
        found = exact.softmax(values, allowed)
    else:
        most = values.max(-1, keepdims=True)
        total = exact.plus(most, exact.function("log", exact.total(exact.function("exp", exact.minus(values, most)))))
        found = exact.minus(values, total) if name == "log_softmax" else exact.array(total[..., 0])
    given = exercise.given("scores") or exercise.given("vector")
    texts = given.value if given and isinstance(given.value, list | tuple) and values.ndim == 1 else ()
    heat = exercise.given("temperature")
    cold = exercise.model_copy(update={"givens": tuple(each for each in exercise.givens if each is not heat)})
    plain = attending.scale_of(cold, 1, name).plain and exercise.given("mask") is None
    typed = plain and len(texts) == len(values) and any(isinstance(each, str) for each in texts)
    below = "" if heat is None else f" / ({heat.value})"
    inner = f"({', '.join(map(str, texts))}){below}" if typed else expression(values)
    text = {"softmax": "softmax({})", "log_softmax": "log(softmax({}))"}.get(name, "logsumexp({})").format(inner)
    shown = allowed.all() and values.size > 1 and (name != "logsumexp" or values.ndim == 1)
    return answered(found, exercise, [worked(name, text, values=found)] if shown else [])


for _name in ("softmax", "log_softmax", "logsumexp"):
    solver(_name, ("scores|vector|input",), QUERY_AND_KEY)(settled(scale_choice, index_choice)(_of_scores))


def _lengths(exercise: Exercise) -> tuple[Any, Any]:
    """How many queries and keys there are: numbers, symbols, or what given arrays have."""
    given = exercise.given("mask")
    if given is not None and isinstance(given.value, list | tuple):
        return np.atleast_2d(read(given, exercise)).shape[-2:]
    n: Any = whole(exercise, "length") or exercise.size("length") or whole(exercise, "tokens_count")
    if n is None:
        found = first_of(exercise, "tokens", "query", "scores")
        if found is None or found.ndim < 2:
            raise CannotSolve("missing", needs="the number of tokens")
        n = found.shape[-2]
    return n, whole(exercise, "keys_length") or exercise.size("keys_length") or n


@solver("mask_matrix")
@settled(index_choice)
def mask_matrix(exercise: Exercise, asked: Asked) -> Answer:
    """The mask as a matrix of 0 and 1, or of 0 and minus infinity."""
    n, m = _lengths(exercise)
    for size in (n, m):
        refuse(isinstance(size, str), "missing", needs=f"a number for {size}")
    found = mask(exercise, asked, n, m)[0]
    if asked.row is not None and 0 <= asked.row - index_base(exercise) < len(found):
        found = found[asked.row - index_base(exercise)]
    values = exact.array(found)
    answer = answered(values, exercise, [worked("mask", values=values, reason="1 where a query attends to a key")])
    if "additive" not in asked.object.lower():
        return answer
    infinite = _with_infinity(exact.product(values, 0), found)
    return replace(answer, text=infinite.text, value=infinite.value, symbols=infinite.symbols)


@solver("pairs_count")
@settled()
def pairs_count(exercise: Exercise, asked: Asked) -> Answer:
    """How many pairs of a query and a key a mask allows."""
    n, m = _lengths(exercise)
    if exercise.structure.mask == "none" and exercise.convention("pairs") == "causal":
        exercise = exercise.changed(structure={"mask": "causal"})
    given, either = exercise.given("mask"), alternatives(exercise)
    names = [each for each in (n, m, *symbols_in(either[0])) if isinstance(each, str)]
    matrix = given is not None and not isinstance(given.value, str)
    formula = pairs_formula(n, m, either[0]) if len(either) == 1 and not matrix else ""
    refuse(names and not formula, "no_solver", quantity=f"a formula for the pairs of {exercise.structure.mask}")
    if names:
        windows = any(term == "window" for term, _ in either[0])
        note = Finding("note", {"text": "the window is taken to be shorter than the sequence"})
        symbols = {bare(name): "natural" for name in names}
        return Answer(formula, formula, "formula", symbols=symbols, assumed=(note,) if windows else ())
    count = exact.array(number(formula) if formula else int(mask(exercise, asked, n, m)[0].sum()))
    steps = worked("pairs", *[formula] * bool(formula), values=count, reason="pairs that the mask allows")
    return answered(count, exercise, [steps])
