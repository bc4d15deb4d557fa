"""Known mistakes of formulas, growth classes, counts, blanks and choices, as changes of the record or of the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..maths import parse
from .mistakes import Mistake, mistake
from .record import Asked, Exercise, Given
from .solvers.formulas import Terms, inverse, leading, number, number_in, plus, show, symbol, terms_of, times
from .solving import Answer, answer

_MOMENTS = ("mean", "variance", "scale_for_variance")
_GROWTH = ("growth_time", "growth_space", "growth_moved")


def _text(right: Answer, text: str) -> Answer:
    value = number_in(text)
    return replace(right, text=text, value=text if value is None else value, items={}, also=(), assumed=())


def _of_text(change: Callable[[str], str | None]) -> Mistake:
    """A mistake that changes the text of the right answer."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        found = change(right.text)
        return None if found is None else _text(right, found)

    return wrong


def _of_record(change: Callable[[Exercise, Asked], tuple[Exercise, Asked] | None]) -> Mistake:
    """A mistake that solves another record."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        changed = change(exercise, asked)
        return None if changed is None else answer(*changed)

    return wrong


def _with(exercise: Exercise, *givens: Given, without: tuple[str, ...] = (), **structure: Any) -> Exercise:
    """The record with other givens in place of those of their roles, and with another structure."""
    roles = {given.role for given in givens} | set(without)
    kept = tuple(given for given in exercise.givens if given.role not in roles)
    other = exercise.structure.model_copy(update=structure)
    return exercise.model_copy(update={"givens": (*kept, *givens), "structure": other})


def _asking(exercise: Exercise, asked: Asked, **fields: Any) -> tuple[Exercise, Asked]:
    return exercise, asked.model_copy(update=fields)


def _misread(vector: bool) -> Callable[[Exercise, Asked], tuple[Exercise, Asked] | None]:
    """Means read as vectors, or as one number for all components."""

    def change(exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
        width = next(given.shape for given in exercise.givens if given.law)
        givens = []
        for given in exercise.givens:
            fields: dict[str, Any] = {}
            if given.law and vector:
                fields["law"] = re.sub(r"\s*1_\{\w+\}", "", given.law)
            elif given.role == "other" and given.shape is not None:
                fields["shape"] = width if vector else ()
            givens.append(given.model_copy(update=fields))
        return exercise.model_copy(update={"givens": tuple(givens)}), asked

    return change


def _centred(exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
    means = [given.symbol for given in exercise.of_role("other") if given.shape is not None]
    return _with(exercise, *(Given(symbol=mean, role="other", value=0) for mean in means)), asked


def _one_vector(exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked] | None:
    vectors = re.fullmatch(r"(\w)\^T (\w)", asked.object)
    return _asking(exercise, asked, object=f"{vectors[1]}^T {vectors[1]}") if vectors else None


def _terms_not_added(exercise: Exercise, asked: Asked) -> Answer | None:
    right = answer(exercise, asked)
    width = next((given.shape[0] for given in exercise.givens if given.law and given.shape), None)
    if isinstance(width, int):
        return _text(right, str(Fraction(right.value) / width))
    return _text(right, re.sub(rf"(?<!\w){re.escape(str(width))}(?!\w)", "(1)", right.text)) if width else None


mistake("mean read as a scalar", quantities=_MOMENTS)(_of_record(_misread(False)))
mistake("mean read as a vector", quantities=_MOMENTS)(_of_record(_misread(True)))
mistake("means left out of the variance", quantities=("variance",))(_of_record(_centred))
mistake("query and key taken for one vector", quantities=("mean",))(_of_record(_one_vector))
mistake("terms not added", quantities=("variance",))(_terms_not_added)
mistake("standard deviation for variance", quantities=("variance",))(_of_text(lambda text: f"sqrt({text})"))
mistake("divided by the variance", quantities=("scale_for_variance",))(_of_text(lambda text: f"({text})^2"))
mistake("factor for divisor", quantities=("scale_for_variance",))(_of_text(lambda text: f"1/({text})"))


@mistake("no scaling", quantities=_MOMENTS)
def _not_divided(exercise: Exercise, asked: Asked) -> Answer | None:
    if asked.quantity == "scale_for_variance":
        return _text(answer(exercise, asked), "1")
    bare = re.sub(r"\s*/\s*sqrt\(\w+\)", "", asked.object)
    return answer(*_asking(exercise, asked, object=bare)) if bare != asked.object else None


@mistake("factor not squared", quantities=("variance",))
def _factor_once(exercise: Exercise, asked: Asked) -> Answer | None:
    factor, right = re.match(r"(\d+) ", asked.object), answer(exercise, asked)
    return _text(right, f"({right.text})/{factor[1]}") if factor else None


def _classes(change: Callable[[Terms, Callable[[str], str]], Terms | None]) -> Mistake:
    """A mistake that changes the terms of a growth class; names of sizes are found by their roles."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        inside = re.fullmatch(r"(\w+)\((.*)\)", right.text)
        if inside is None:
            return None
        terms = terms_of(parse(inside[2], right.symbols))

        def name(role: str) -> str:
            found = exercise.size(role)
            return found if isinstance(found, str) else ""

        found = change(terms, name)
        return None if not found or found == terms else _text(right, f"{inside[1]}({show(leading(found))})")

    return wrong


def _only(terms: Terms, wanted: Callable[[dict[str, Fraction]], bool]) -> Terms:
    return {powers: factor for powers, factor in terms.items() if wanted(dict(powers))}


def _attends(name: Callable[[str], str]) -> Callable[[dict[str, Fraction]], bool]:
    """Whether a term is one of scores and weighted sums: it has both lengths, or the length of the cache."""
    queries, keys = name("length"), name("keys_length")

    def attends(powers: dict[str, Fraction]) -> bool:
        return powers.get(queries, 0) == 2 if not keys else keys in powers and (not queries or queries in powers)

    return attends


def _without(terms: Terms, name: str) -> Terms:
    return plus(*({tuple((each, power) for each, power in powers if each != name): Fraction(1)} for powers in terms))


def _scaled(terms: Terms, by: Terms | None, wanted: Callable[[dict[str, Fraction]], bool]) -> Terms:
    """The terms with some of them multiplied."""
    return plus(*(times({powers: factor}, by or number(1)) if wanted(dict(powers)) else {powers: factor}
                  for powers, factor in terms.items()))  # fmt: skip


def _replaced(terms: Terms, old: str, new: str, wanted: Callable[[dict[str, Fraction]], bool]) -> Terms:
    return _scaled(terms, times(symbol(new), inverse(symbol(old)) or number(1)), wanted)


mistake("projections forgotten", quantities=_GROWTH)(_classes(lambda terms, name: _only(terms, _attends(name))))
mistake("scores forgotten", quantities=_GROWTH)(
    _classes(lambda terms, name: _only(terms, lambda powers: not _attends(name)(powers)))
)
mistake("batch forgotten", quantities=_GROWTH)(_classes(lambda terms, name: _without(terms, name("batch"))))
mistake("weights not read", quantities=_GROWTH)(
    _classes(lambda terms, name: _only(terms, lambda powers: name("batch") in powers))
)
mistake("one query counted", quantities=("growth_time",))(
    _classes(lambda terms, name: _scaled(terms, inverse(symbol(name("length"))), lambda powers: True))
)
mistake("queries, keys and values not counted in space", quantities=("growth_space",))(
    _classes(lambda terms, name: _only(terms, lambda powers: powers.get(name("length"), 0) == 2))
)
mistake("work of attention divided by the heads", quantities=_GROWTH)(
    _classes(lambda terms, name: _scaled(terms, inverse(symbol(name("heads"))), _attends(name)))
)
mistake("heads projected one by one", quantities=_GROWTH)(
    _classes(lambda terms, name: _scaled(terms, inverse(symbol(name("heads"))), lambda p: not _attends(name)(p)))
)
mistake("key length squared", quantities=_GROWTH)(
    _classes(lambda terms, name: _replaced(terms, name("length"), name("keys_length"), _attends(name)))
)
mistake("scores still counted", quantities=("growth_time",))(
    _of_record(
        lambda exercise, asked: _asking(_with(exercise, similarity="softmax"), asked, object="softmax attention")
    )
)
mistake("d features instead of d squared", quantities=("growth_time",))(
    _of_record(lambda exercise, asked: (_with(exercise, Given(role="degree", value=1)), asked))
)
mistake("quadratic features assumed", quantities=("growth_time",))(
    _of_record(lambda exercise, asked: (
        _with(exercise, Given(role="degree", value=2), without=("feature_count", "features")), asked))
)  # fmt: skip


def _shared(variant: str) -> Callable[[Exercise, Asked], tuple[Exercise, Asked] | None]:
    """Other heads of keys and values: as many as queries have, or one."""

    def change(exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
        heads = exercise.size("heads")
        count = Given(role="kv_heads", value=1 if variant == "mqa" else heads)
        numeric = isinstance(heads, int)
        changed = _with(exercise, *([count] if numeric else []), without=("kv_heads",), variant=variant, kv_heads=None)
        return changed, asked

    return change


_CACHED = ("growth_moved", "growth_space", "cache_bytes", "intensity")
mistake("per-head keys in multi-query attention", quantities=_CACHED)(_of_record(_shared("mha")))
mistake("one key head for all", quantities=_CACHED)(_of_record(_shared("mqa")))


def _counted(change: Callable[[Fraction, Exercise], Any]) -> Mistake:
    """A mistake that changes one number."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        if isinstance(right.value, str | tuple) or right.value is None:
            return None
        found = Fraction(change(Fraction(right.value), exercise))
        unit = f" {right.unit}" if right.unit and right.text.endswith(right.unit) else ""
        return replace(right, text=f"{found}{unit}", value=found, also=(), assumed=())

    return wrong


def _size(exercise: Exercise, role: str) -> int:
    found = exercise.size(role)
    if not isinstance(found, int):
        raise ArithmeticError(role)
    return found


mistake("keys without values", quantities=("cache_bytes",))(_counted(lambda value, _: value / 2))
mistake("batch forgotten", quantities=("cache_bytes",))(
    _counted(lambda value, exercise: value / _size(exercise, "batch"))
)
mistake("top left for bottom right", quantities=("pairs_count",))(
    _counted(lambda _, exercise: Fraction(_size(exercise, "length") * (_size(exercise, "length") + 1), 2))
)
mistake("every new token seen", quantities=("pairs_count",))(
    _counted(lambda _, exercise: _size(exercise, "length") * _size(exercise, "keys_length"))
)
mistake("a token does not see itself", quantities=("pairs_count",))(
    _counted(lambda value, exercise: value - _size(exercise, "length"))
)
mistake("scores without the weighted sum", quantities=("crossing",))(_counted(lambda value, _: 2 * value))
mistake("keys and values not projected", quantities=("crossing",))(_counted(lambda value, _: value / 2))

_REACH = ("receptive_field",)
mistake("residual forgotten", quantities=_REACH)(
    _of_record(lambda exercise, asked: (_with(exercise, residual=False), asked))
)
mistake("end of the sequence forgotten", quantities=_REACH)(
    _of_record(lambda exercise, asked: (_with(exercise, without=("length",)), asked))
)


@mistake("layers added instead of multiplied", quantities=_REACH)
def _added(exercise: Exercise, asked: Asked) -> Answer:
    heads, layers = exercise.size("heads"), exercise.size("layers")
    factor = str(heads + 1) if isinstance(heads, int) else f"({heads} + 1)"
    numeric = isinstance(heads, int) and isinstance(layers, int)
    text = str((heads + 1) * layers) if numeric else f"{factor} {layers}"  # pyright: ignore[reportOperatorIssue]
    return _text(answer(exercise, asked), text)


mistake("layers multiplied in a window", quantities=_REACH)(
    _counted(lambda _, exercise: _size(exercise, "window") ** _size(exercise, "layers"))
)

_KERNELS = ("kernel", "similarity")
for _name, _given in {
    "constant left out of the kernel": Given(role="offset", value=0),
    "constant added to the kernel": Given(role="offset", value=1),
    "degree not applied": Given(role="degree", value=1),
}.items():
    mistake(_name, quantities=_KERNELS)(
        _of_record(lambda exercise, asked, given=_given: (_with(exercise, given), asked))
    )


@mistake("softmax not normalised", quantities=("softmax",))
def _exponentials(exercise: Exercise, asked: Asked) -> Answer | None:
    from . import exact
    from .solvers.attention import given_scores

    values = exact.function("exp", given_scores(exercise, asked)[0])
    whole = [round(float(each)) for each in values.flat]
    near = all(abs(float(each) - count) < 1e-9 * count for each, count in zip(values.flat, whole, strict=True))
    return _text(answer(exercise, asked), f"({', '.join(map(str, whole))})") if near and values.ndim == 1 else None


_AS_NORM = {
    "layer norm over the batch": "batch norm",
    "batch norm over the features": "layer norm",
    "batch statistics in evaluation": "batch norm",
}
for _name, _other in _AS_NORM.items():
    mistake(_name, quantities=("dependence",))(
        _of_record(lambda exercise, asked, other=_other: _asking(exercise, asked, object=other))
    )


def _chosen(pick: Callable[[Asked], tuple[str, ...]]) -> Mistake:
    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        labels = pick(asked)
        text = ", ".join(f"({label})" for label in labels)
        return replace(answer(exercise, asked), text=text, value=labels) if asked.options else None

    return wrong


mistake("only itself", quantities=("dependence",))(_chosen(lambda asked: (asked.options[0].label,)))
mistake("mean of every axis", quantities=("dependence",))(
    _chosen(lambda asked: tuple(option.label for option in asked.options))
)


@mistake("d features instead of d squared", quantities=("feature_map",))
def _as_many_as_components(exercise: Exercise, asked: Asked) -> Answer | None:
    right, width = answer(exercise, asked), exercise.size("head_width") or exercise.size("width")
    if asked.object == "count":
        return _text(right, str(width))
    name = re.search(r"([a-z])_1", right.text)
    end = ", 1" if right.text.endswith("1)") else ""
    return _text(right, rf"({name[1]}_1, \dots, {name[1]}_{{{width}}}{end})") if name else None


@mistake("ordered products counted", quantities=("feature_map",))
def _ordered(exercise: Exercise, asked: Asked) -> Answer | None:
    if asked.object != "count":
        return None
    width = exercise.size("head_width") or exercise.size("width")
    return _text(answer(exercise, asked), f"{width}^{exercise.size('degree')}")


def _numerator(text: str) -> str | None:
    """What a fraction divides."""
    if not text.startswith(r"\frac{"):
        return None
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if place > len(r"\frac") and depth == 0:
            return text[len(r"\frac{") : place]
    return None


def _by_columns(text: str) -> str | None:
    top = re.fullmatch(r"(\\sum_\{j=1\}\^\{(\w+)\}) \((.*)\) V_j", _numerator(text) or "")
    if top is None:
        return None
    below = top[3].replace("_i", "_l")
    return rf"{top[1]} \frac{{{top[3]}}}{{\sum_{{l=1}}^{{{top[2]}}} {below}}} V_j"


mistake("square roots of two left out", quantities=("feature_map",))(
    _of_text(lambda text: text.replace("sqrt(2) ", "") if "sqrt(2)" in text else None)
)
mistake("normalisation left out", quantities=("kernel_form",))(_of_text(_numerator))
mistake("query and key swapped", quantities=("kernel_form",))(
    _of_text(lambda text: text.replace("Q_i", "K@").replace("K_j", "Q_j").replace("K@", "K_i"))
)
mistake("softmax over the wrong axis", quantities=("kernel_form",))(_of_text(_by_columns))
mistake("only the diagonal", quantities=("jacobian",))(
    _of_text(lambda text: re.sub(r"(\w+) \1\^T", r"diag(\1)^2", text) if text.startswith("diag") else None)
)
mistake("sign turned", quantities=("jacobian",))(
    _of_text(lambda text: f"-({text})" if text.startswith("diag") else None)
)


def _norm_of(change: Callable[[Fraction, Fraction], Fraction], formula: Callable[[str], str], bound: str) -> Mistake:
    """A mistake in the squared norm of the Jacobian: on numbers from all squares and those of the diagonal."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        if asked.object == "bound":
            return _text(right, bound.format(n=right.text.partition("^")[0])) if bound else None
        if isinstance(right.value, str):
            return _text(right, formula(right.text))
        rows = answer(exercise, asked.model_copy(update={"quantity": "jacobian"})).value
        return _text(
            right,
            str(change(Fraction(right.value), sum((Fraction(row[i]) ** 2 for i, row in enumerate(rows)), Fraction(0)))),
        )

    return wrong


_OFF = r"2 \sum"
for _name, _parts in {
    "only the diagonal": (lambda _, own: own, lambda text: text.partition(f" + {_OFF}")[0], "{n} epsilon^2"),
    "pairs counted once": (lambda whole, own: (whole + own) / 2, lambda text: text.replace(_OFF, _OFF[2:]), ""),
    "bound not squared": (lambda whole, _: whole, lambda text: text, "{n} epsilon"),
}.items():
    mistake(_name, quantities=("jacobian_norm",))(_norm_of(*_parts))
