"""Attention on numbers: from a record to queries, keys, values, mask and scale, and to scores, weights and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import MathsError
from . import exact
from .exact import Array, Scale
from .findings import CannotSolve, refuse
from .masks import index_base, mask
from .record import Asked, Exercise
from .values import bare, by, name_of, number, read, scalar, stacked, whole

WEIGHTS = ("query_weight", "key_weight", "value_weight")
_INDEX = r"(?:_\w{1,2}?)?(?:\^T)?\(?"
_PRODUCT = re.compile(rf"q{_INDEX}k(?![a-z])|k{_INDEX}q(?![a-z])", re.IGNORECASE)
_ELU = re.compile(r"1\+elu(?:\(\w\))?|elu(?:\(\w\))?\+1", re.IGNORECASE)
_SIMPLE = re.compile(r"(relu|exp)(?:\(\w\))?|e\^\(?\w\)?|max\((?:0,\w|\w,0)\)", re.IGNORECASE)


def from_left(exercise: Exercise, role: str) -> bool | None:
    """Whether the definitions let a weight matrix act from the left (q = W x); None where they do not say."""
    sides: dict[str, bool] = {}
    named = [bare(given.symbol)[:1] for given in exercise.of_role("tokens", "context") if given.symbol]
    tokens = re.compile(re.escape(named[0] if named else "x"), re.IGNORECASE)
    for definition in exercise.definitions:
        right = bare(definition.text).partition("=")[2]
        for given in exercise.of_role(*WEIGHTS, "output_weight"):
            symbol = re.sub(r"[_^]?\(?\d\)?$", "", bare(given.symbol))
            if not symbol or symbol not in right:
                continue
            before, _, after = right.partition(symbol)
            turned = bool(re.match(r"(?:[_^]\(?[\da-z]\)?)?\^T", after))
            if tokens.search(before) and given.role != "output_weight":
                sides.setdefault(given.role, turned)
            elif tokens.search(after) or (given.role == "output_weight" and re.match(r"(\^T)?[\[(\w]", after)):
                sides.setdefault(given.role, not turned)
    return sides.get(role, None if role == "output_weight" else next((sides[each] for each in sides), None))


def projected(exercise: Exercise, name: str) -> tuple[Array, tuple[Array, Array] | None]:
    """Queries, keys or values as given or from tokens, and in that case both factors."""
    direct = stacked(exercise, name)
    if direct is not None:
        return direct, None
    tokens = stacked(exercise, "context") if name != "query" else None
    tokens = stacked(exercise, "tokens") if tokens is None else tokens
    width = None if tokens is None or not tokens.ndim else tokens.shape[-1]
    weight = stacked(exercise, f"{name}_weight", width)
    if tokens is not None and weight is not None:
        return _through(exercise, name, tokens, weight)
    same = {bare(each.text).replace("_i", "").replace("_j", "").lower() for each in exercise.definitions}
    if name == "value" and (exercise.convention("keys_are_values") or "v=k" in same):
        return projected(exercise, "key")
    if tokens is not None and (f"{name[0]}=x" in same or not exercise.of_role(*WEIGHTS, "query", "key", "value")):
        return tokens, None
    raise CannotSolve("missing", needs=f"{name}s" if tokens is None else f"the weight matrix of the {name}s")


def _through(exercise: Exercise, name: str, tokens: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    if weight.ndim == 0:
        tokens = tokens.reshape(-1, 1) if tokens.ndim < 2 else tokens
        weight = exact.product(np.eye(tokens.shape[-1], dtype=int), weight)
    rows, weight = np.atleast_2d(tokens), oriented(exercise, f"{name}_weight", weight, tokens.shape[-1])
    rows = rows[:, None] if weight.ndim == rows.ndim == 3 else rows
    found = exact.times(rows, weight)
    for given in exercise.of_role("bias"):
        if given.of and bare(given.of).lower().lstrip("w_^")[:1] == name[0]:
            found = exact.plus(found, read(given, exercise))
    return (found[..., 0, :] if tokens.ndim == 1 else found), (rows, weight)


def oriented(exercise: Exercise, role: str, weight: Array, width: int) -> Array:
    """A weight matrix as it acts on rows from the right."""
    if weight.ndim < 2 or width not in weight.shape[-2:]:
        what = "the output projection" if role == "output_weight" else f"the weight matrix of the {role[:-7]}s"
        raise CannotSolve("misfit", what=what, why=f"it is {by(weight.shape)}, and what it acts on has width {width}")
    left = from_left(exercise, role)
    if left is None or weight.shape[-1 if left else -2] != width:
        left = weight.shape[-2] != width
    return exact.transposed(weight) if left else weight


@dataclass(frozen=True)
class Attention:
    """What attention computes with: arrays [..., n, d], with heads as the axis before, and all that settles weights.

    `factors` are, for each of Q, K and V that was projected, its letter, the tokens and the weights. `one_query` and
    `number_values` say that the query was one vector, and that each value was one number.
    """

    exercise: Exercise
    query: Array
    key: Array
    value: Array | None
    allowed: Array
    scale: Scale
    bias: Array | None = None
    heads: int = 1
    one_query: bool = False
    number_values: bool = False
    factors: tuple[tuple[str, Array, Array], ...] = ()

    @property
    def similarity(self) -> str:
        named, normaliser = self.exercise.structure.similarity, self.exercise.convention("normaliser")
        if named in ("linear", "exponential") and normaliser == "softmax":
            return "softmax"
        return "exponential" if named == "softmax" and normaliser in ("none", "sum") else named

    @property
    def normaliser(self) -> str:
        return self.exercise.convention("normaliser", "none" if self.similarity == "sigmoid" else "sum")

    @property
    def direct(self) -> bool:
        """Whether scores or weights were given in place of queries and keys."""
        return not self.exercise.of_role("query", "key", "tokens", *WEIGHTS)

    @cached_property
    def dots(self) -> Array:
        return self.query if self.direct else exact.times(self.query, exact.transposed(self.key))

    @cached_property
    def scores(self) -> Array:
        """What is given to the similarity, before the mask."""
        scaled = self.scale.apply(self.dots)
        return scaled if self.bias is None else exact.plus(scaled, self.bias)

    @cached_property
    def similarities(self) -> Array:
        if self.similarity == "feature_map":
            refuse(self.direct, "missing", needs="queries and keys")
            return exact.times(mapped(self.exercise, self.query), exact.transposed(mapped(self.exercise, self.key)))
        if self.similarity == "polynomial":
            offset = scalar(self.exercise, "offset", Fraction(1))
            return exact.power(exact.plus(self.scores, offset), scalar(self.exercise, "degree", Fraction(2)))
        if self.similarity == "sigmoid":
            powers = exact.function("exp", exact.minus(0, self.scores))
            return exact.over(1, exact.plus(1, powers))
        names = {"linear": "", "argmax": "", "softmax": "exp", "exponential": "exp", "relu": "relu"}
        refuse(self.similarity not in names, "not_understood", found=f"a similarity named {self.similarity!r}")
        name = names[self.similarity]
        return exact.function(name, self.scores) if name else self.scores

    @cached_property
    def weights(self) -> Array:
        if self.similarity == "softmax":
            return exact.softmax(self.scores, self.allowed)
        if self.similarity == "argmax":
            return exact.hardest(self.scores, self.allowed)
        kept = exact.masked(self.similarities, self.allowed)
        if self.normaliser == "none":
            return kept
        empty = ~np.broadcast_to(self.allowed, kept.shape).any(-1)
        if self.similarity != "relu" and np.any((exact.total(kept, keepdims=False) == 0) & ~empty):
            raise CannotSolve("misfit", what="the normaliser", why="the similarities of a query add up to 0")
        return exact.shares(kept)

    @property
    def values(self) -> Array:
        if self.value is None:
            raise CannotSolve("missing", needs="values")
        return self.value

    @cached_property
    def outputs(self) -> Array:
        """The output of every head (an axis of heads only where there are several)."""
        return exact.times(self.weights, self.values)

    @property
    def joined(self) -> Array:
        """The heads side by side."""
        if self.heads == 1:
            return self.outputs
        swapped = np.swapaxes(self.outputs, -2, -3)
        return swapped.reshape(*swapped.shape[:-2], -1)

    @cached_property
    def output_weight(self) -> Array | None:
        width = self.outputs.shape[-1] * self.heads
        weight = stacked(self.exercise, "output_weight", width)
        if weight is not None and weight.ndim == 3:
            weight = weight.reshape(-1, weight.shape[-1])
        return None if weight is None else oriented(self.exercise, "output_weight", weight, width)

    @cached_property
    def output(self) -> Array:
        """The heads joined, through the output projection where one is given."""
        return self.joined if self.output_weight is None else exact.times(self.joined, self.output_weight)

    def of(self, name: str, place: int) -> Attention:
        """The same for one "token" (its query) or one "head", counted from 0."""
        count = self.heads if name == "head" else self.query.shape[-2]
        if not 0 <= place < count:
            raise CannotSolve("misfit", what=f"{name} {place + index_base(self.exercise)}", why=f"there are {count}")
        arrays = {each: getattr(self, each) for each in ("query", "key", "value", "bias", "allowed")}
        if name == "head":
            parts = {each: array[..., place, :, :] for each, array in arrays.items() if np.ndim(array) > 2}
            return replace(self, heads=1, **parts)
        rows = {each: arrays[each] for each in ("query", "bias", "allowed") if np.ndim(arrays[each])}
        parts = {each: array[..., [place] if array.shape[-2] > 1 else [0], :] for each, array in rows.items()}
        return replace(self, one_query=True, **parts)


def mapped(exercise: Exercise, values: Array) -> Array:
    """The feature map of every entry: elu(x)+1 unless another is given (relu, exp, x, or any expression in x)."""
    given = exercise.given("expression") or exercise.given("features")
    written = str(given.value) if given else "elu(x) + 1"
    written = written.partition("=")[2] or written
    text = bare(written).replace("\\", "")
    if _ELU.fullmatch(text):
        above = np.asarray(values > 0, dtype=bool)
        return np.where(above, exact.plus(values, Fraction(1)), exact.function("exp", exact.masked(values, ~above)))
    if found := _SIMPLE.fullmatch(text):
        return exact.function("exp" if (found[1] or text)[0].lower() == "e" else "relu", values)
    if text in ("x", "identity"):
        return values
    from ..maths import parse
    from ..maths.values.evaluate import evaluate

    try:
        tree = parse(written, {"x": "scalar"})
        return exact.filled((evaluate(tree, {}, {"x": each}) for each in values.flat), values.shape)
    except (MathsError, ArithmeticError, TypeError):
        raise CannotSolve("not_understood", found=f"a feature map {written[:40]!r}") from None


def attention(exercise: Exercise, asked: Asked, *, with_values: bool = True) -> Attention:
    """Everything that attention needs, from the record; the row of the question is not picked yet."""
    direct = not exercise.of_role("query", "key", "tokens", *WEIGHTS)
    names = () if direct else ("query", "key", "value") if with_values else ("query", "key")
    parts = {name: projected(exercise, name) for name in names}
    value: Array | None = parts["value"][0] if "value" in parts else None
    if direct:
        # Given scores or weights stand in place of the queries; of the keys only the number is known.
        exercise, query, finite = _given_scores(exercise)
        key, value = np.zeros((query.shape[-1], 1)), stacked(exercise, "value") if with_values else None
    else:
        query, key, finite = parts["query"][0], parts["key"][0], True
    # Tokens of width 1 may be written as one list: numbers are then queries, keys or values apart.
    numbers = key.ndim == 1 and (query.ndim == 0 or 1 in (whole(exercise, "head_width"), whole(exercise, "width")))
    one_query = query.ndim == 0 or (query.ndim == 1 and not numbers)
    query, key = (each.reshape(-1, 1) if numbers or not each.ndim else np.atleast_2d(each) for each in (query, key))
    n, m = query.shape[-2], key.shape[-2]
    number_values = value is not None and value.ndim < 2 and value.size == m and (m > 1 or numbers or not value.ndim)
    heads = 1
    if value is not None:
        value = value.reshape(-1, 1) if number_values else np.atleast_2d(value)
    if not direct:
        query, key, value, heads = _in_heads(exercise, query, key, value)
        widths = f"it is {key.shape[-1]}, that of the queries {query.shape[-1]}"
        refuse(query.shape[-1] != key.shape[-1], "misfit", what="the width of the keys", why=widths)
    there = m if value is None else value.shape[-2]
    refuse(there != m, "misfit", what="the number of values", why=f"it is {there}, there are {m} keys")
    allowed, added = mask(exercise, asked, n, m)
    for given in exercise.of_role("bias"):
        if not given.of or given.of.lower() in ("scores", "s", "z"):
            found = read(given, exercise)
            refuse(found.ndim < 2, "not_understood", found="whether the bias belongs to a projection or to the scores")
            added = found if added is None else exact.plus(found, added)
    factors = tuple((name[0].upper(), *found[1]) for name, found in parts.items() if found[1] is not None)
    scale = scale_of(exercise, 1 if direct else query.shape[-1], asked.quantity)
    scale = Scale() if direct and exercise.of_role("weights") else scale
    return Attention(
        exercise, query, key, value, allowed & finite, scale, added, heads, one_query, number_values, factors
    )


def _given_scores(exercise: Exercise) -> tuple[Exercise, Array, Array]:
    """Given weights or scores, which of them are finite, and the record under which they are weights already."""
    givens = [given for given in exercise.of_role("weights", "scores", "vector", "input") if given.value is not None]
    refuse(not givens, "missing", needs="queries and keys, or scores")
    given = next((each for each in givens if each.role == "weights"), givens[0])
    values = read(given, exercise)
    finite = ~np.asarray(values == -np.inf, dtype=bool)
    kept = exact.masked(values, finite)
    known = values.ndim and np.all(np.isfinite(exact.floats(kept)))
    refuse(not known, "misfit", what=name_of(given), why="finite numbers in a row are expected")
    if given.role == "weights":
        exercise = exercise.changed(structure={"similarity": "linear"}, normaliser="none")
    return exercise, kept, np.atleast_2d(finite)


def _in_heads(exercise: Exercise, *arrays: Array) -> tuple[Array, Array, Array | None, int]:
    """Queries, keys and values with an axis of heads where there are several; groups of queries share keys."""
    query, key, value = arrays
    weights = exercise.of_role("query_weight", "query")
    per_head = len(weights) > 1 or any(given.role != "query" and np.ndim(given.value) == 3 for given in weights)
    heads = query.shape[-3] if per_head and query.ndim > 2 else whole(exercise, "heads") or 1
    if heads == 1:
        return query, key, value, 1

    def split(values: Array, count: int, name: str) -> Array:
        *leading, length, width = values.shape
        if values.ndim > 2 and values.shape[-3] == count:
            return values
        refuse(width % count, "misfit", what=f"the width {width} of the {name}", why=f"{count} heads do not divide it")
        return np.swapaxes(values.reshape(*leading, length, count, width // count), -2, -3)

    query = split(query, heads, "queries")
    stated = whole(exercise, "kv_heads") or (1 if exercise.structure.variant == "mqa" else None)
    shared = key.ndim == 2 and stated is None and key.shape[-1] == query.shape[-1]
    count = 1 if shared else stated or (key.shape[-3] if key.ndim > 2 and heads % key.shape[-3] == 0 else heads)
    refuse(heads % count, "misfit", what=f"{count} key/value heads", why=f"they do not divide {heads} query heads")
    named = ((key, "keys"), (value, "values"))
    key, value = (
        None if part is None else np.repeat(split(part, count, name), heads // count, axis=-3) for part, name in named
    )
    return query, key, value, heads


def scale_of(exercise: Exercise, width: int, quantity: str) -> Scale:
    """The scale that the record settles, over the temperature; 1 where nothing settles it."""
    found = settled_scale(exercise, quantity)
    found = Scale.by_root(whole(exercise, "head_width") or width) if found == "sqrt" else found or Scale()
    temperature = scalar(exercise, "temperature", Fraction(1))
    refuse(temperature == 0, "misfit", what="the temperature", why="it is 0")
    return replace(found, factor=found.factor / temperature)


def settled_scale(exercise: Exercise, quantity: str) -> Any:
    """What a given, a convention or a definition says: "sqrt" for the root of the head width, a scale, or None."""
    given = exercise.given("scale")
    said = exercise.convention("scale") if given is None or given.value is None else given.value
    if said is None:
        return next(_defined_scales(exercise, quantity), None)
    if said == "sqrt" or (isinstance(said, str) and re.search(r"(?:sqrt|√)\W*d", said)):
        return "sqrt"
    return Scale() if said == "none" else Scale(number(str(said), "the scale"))


def _defined_scales(exercise: Exercise, quantity: str) -> Iterator[Any]:
    """The scales of the definitions, the one that settles the quantity first."""
    rights = [bare(definition.text).partition("=")[2] or bare(definition.text) for definition in exercise.definitions]
    products = [right for right in rights if _PRODUCT.search(right)]
    later = [right for right in rights if "softmax" in right and right not in products]
    known = {bare(given.symbol): str(given.value) for given in exercise.givens if given.value is not None}
    for right in products if quantity == "scores" else [*later, *products]:
        root = re.search(r"(?:\\?sqrt|√)\(?([A-Za-z]\w*|\d+)", right)
        found = root or re.search(r"/\(?(\d+(?:\.\d+)?|[A-Za-z]\w*)(?![\w(\\])", right)
        value = known.get(found[1], found[1]) if found else ""
        if root:
            yield Scale.by_root(int(value)) if value.isdigit() else "sqrt"
        elif re.fullmatch(r"[\d.]+", value) and not exercise.of_role("temperature"):
            yield Scale(1 / number(value, "the scale"))
    if products:
        yield Scale()
