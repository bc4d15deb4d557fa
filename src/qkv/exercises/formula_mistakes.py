"""Known mistakes that are changes of the record, or of the answer's text: those of the data file, and a few more."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.resources import files
from typing import Any

from ..cost.polynomial import Polynomial
from ..maths import parse
from .listings import size_of
from .mistakes import Mistake, mistake
from .record import Asked, Exercise, Given
from .solvers.formulas import as_polynomial, leading, number_in
from .solvers.growth import regime
from .solving import Answer, answer
from .units import dimension_of, factor, with_unit

_MOMENTS = ("mean", "variance", "scale_for_variance")
_GROWTH = ("growth_time", "growth_space", "growth_moved")
_SIZES = ("batch", "length", "keys_length", "heads", "layers", "window", "degree")
Change = Callable[[Exercise, Asked], tuple[Exercise, Asked] | None]


def _text(right: Answer, text: str) -> Answer:
    """The answer with another text; a formula of numbers is worked out."""
    value, shown = number_in(text), text
    if value is not None:
        # A value is in base units where the text has a prefix: 12288 and "12.288 kB".
        shown = with_unit(value, right.unit, dimension_of(right.unit)) if right.unit else str(value)
    return replace(right, text=shown, value=text if value is None else value, items={}, also=(), assumed=())


def _answered(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer | None:
    """A mistake that puts the right answer into a template."""
    right = answer(exercise, asked)
    if entry.get("object", asked.object) != asked.object or not re.search(entry.get("like", ""), right.text):
        return None
    if _excluded(entry, exercise):
        return None
    known: dict[str, Any] = {role: exercise.size(role) for role in _SIZES}
    known |= {"head_width": exercise.size("head_width") or exercise.size("width"), "text": right.text}
    known["keys_length"] = known["keys_length"] or known["length"]
    if right.value is not None and not isinstance(right.value, str | tuple):
        known["value"] = Fraction(right.value)
    if right.unit in ("kB", "MB", "GB", "TB"):
        known["unit_ratio"] = Fraction(factor(right.unit, "B")) / factor(right.unit, "B", binary=True)
    if asked.quantity == "jacobian_norm":
        known["keys_length"] = right.text.partition("^")[0]
    try:
        return _text(right, entry["text"].format_map({name: each for name, each in known.items() if each is not None}))
    except KeyError:
        return None


def _replaced(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer:
    """A mistake that replaces patterns in the text of the right answer."""
    right = answer(exercise, asked)
    text = right.text
    for pattern, put in entry["changes"]:
        text = re.sub(pattern, put, text)
    return _text(right, text)


def _excluded(entry: Mapping[str, Any], exercise: Exercise) -> bool:
    """Whether the record lacks a size that the mistake needs, or has one with which it does not happen."""
    needs, unless = entry.get("needs", ()), entry.get("unless", ())
    return None in map(exercise.size, needs) or any(exercise.size(role) is not None for role in unless)


def _of_record(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer | None:
    """A mistake that solves another record; a size may be that of another role."""
    sizes = {role: exercise.size(value) if isinstance(value, str) else value
             for role, value in entry.get("sizes", {}).items()}  # fmt: skip
    if _excluded(entry, exercise):
        return None
    givens = [Given.model_validate({"role": role, "value": value}) for role, value in sizes.items()]
    changes = {"without": entry.get("without", ()), "structure": entry.get("structure"), **entry.get("said", {})}
    pattern, put = entry.get("object", ("$^", ""))
    target = re.sub(pattern, put, asked.object, count=1)
    return answer(exercise.changed(*givens, **changes), asked.model_copy(update={"object": target}))


def _of_class(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer | None:
    """A mistake that multiplies some of the terms of a growth class."""
    right = answer(exercise, asked)
    inside = re.fullmatch(r"(\w+)\((.*)\)", right.text)
    if inside is None:
        return None
    names = {role: size for role in _SIZES if isinstance(size := exercise.size(role), str)}
    queries, keys = names.get("length", ""), names.get("keys_length", "")

    def concerned(powers: Mapping[str, Any]) -> bool:
        if entry["of"] == "attends" and keys:
            return keys in powers and (not queries or queries in powers)
        return names.get("batch") in powers if entry["of"] == "batch" else powers.get(queries, 0) == 2

    found = Polynomial({})
    for powers, times in as_polynomial(parse(inside[2], right.symbols)).terms.items():
        by = size_of(entry["those" if concerned(dict(powers)) else "others"]) or Polynomial({})
        if not by.free_symbols <= names.keys():
            return None
        found += Polynomial({powers: times}) * by.substituted(
            {role: Polynomial.name(name) for role, name in names.items()}
        )
    return _text(right, f"{inside[1]}({leading(found)})") if found else None


def _masked(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer:
    """A mistake that puts another mask where one belongs."""
    right, put = answer(exercise, asked), entry["put"]
    items = {
        name: replace(item, text=put) if name.startswith(entry["at"]) and entry["mask"] in ("", item.text) else item
        for name, item in right.items.items()
    }
    return Answer.joined(items, ": ", form=right.form)


_KINDS: dict[str, Callable[..., Answer | None]] = {
    "answer": _answered,
    "replaced": _replaced,
    "record": _of_record,
    "class": _of_class,
    "masks": _masked,
}
for _kind, _entries in tomllib.loads(
    files("qkv.exercises").joinpath("formula_mistakes.toml").read_text("utf-8")
).items():
    for _entry in _entries:
        _wrong: Mistake = partial(_KINDS[_kind], _entry)
        mistake(*_entry.get("names", [_entry.get("name")]), quantities=tuple(_entry.get("quantities", _GROWTH)))(_wrong)


def _solving(name: str, quantities: tuple[str, ...], change: Change) -> None:
    """Register a mistake that solves another record."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        changed = change(exercise, asked)
        return None if changed is None else answer(*changed)

    mistake(name, quantities=quantities)(wrong)


def _misread(vector: bool, exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
    """Means read as vectors, or as one number for all components."""
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


def _centred(exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
    means = [given.symbol for given in exercise.of_role("other") if given.shape is not None]
    return exercise.changed(*(Given(symbol=mean, role="other", value=0) for mean in means)), asked


_solving("mean read as a scalar", _MOMENTS, partial(_misread, False))
_solving("mean read as a vector", _MOMENTS, partial(_misread, True))
_solving("means left out of the variance", ("variance",), _centred)


@mistake("terms not added", quantities=("variance",))
def _terms_not_added(exercise: Exercise, asked: Asked) -> Answer | None:
    right = answer(exercise, asked)
    width = next((given.shape[0] for given in exercise.givens if given.law and given.shape), None)
    if isinstance(width, int):
        return _text(right, f"({right.value})/{width}")
    return _text(right, re.sub(rf"(?<!\w){re.escape(width)}(?!\w)", "(1)", right.text)) if width else None


@mistake("factor not squared", quantities=("variance",))
def _factor_once(exercise: Exercise, asked: Asked) -> Answer | None:
    factor, right = re.match(r"(\d+) ", asked.object), answer(exercise, asked)
    return _text(right, f"({right.text})/{factor[1]}") if factor else None


@mistake("softmax not normalised", quantities=("softmax",))
def _exponentials(exercise: Exercise, asked: Asked) -> Answer | None:
    from . import exact
    from .solvers.attention import given_scores

    values = exact.function("exp", given_scores(exercise, asked)[0])
    whole = [round(float(each)) for each in values.flat]
    near = all(abs(float(each) - count) < 1e-9 * count for each, count in zip(values.flat, whole, strict=True))
    return _text(answer(exercise, asked), f"({', '.join(map(str, whole))})") if near and values.ndim == 1 else None


def _chosen(last: int | None, exercise: Exercise, asked: Asked) -> Answer | None:
    labels = tuple(option.label for option in asked.options[:last])
    text = ", ".join(f"({label})" for label in labels)
    return replace(answer(exercise, asked), text=text, value=labels) if labels else None


mistake("only itself", quantities=("dependence",))(partial(_chosen, 1))
mistake("mean of every axis", quantities=("dependence",))(partial(_chosen, None))


@mistake("d features instead of d squared", quantities=("feature_map",))
def _as_many_as_components(exercise: Exercise, asked: Asked) -> Answer | None:
    right, width = answer(exercise, asked), exercise.size("head_width") or exercise.size("width")
    name = re.search(r"([a-z])_1", right.text)
    end = ", 1" if right.text.endswith("1)") else ""
    return _text(right, rf"({name[1]}_1, \dots, {name[1]}_{{{width}}}{end})") if name else None


def _diagonal(once: bool, exercise: Exercise, asked: Asked) -> Answer | None:
    """On numbers: the squares of the diagonal alone, or every pair off it once."""
    right = answer(exercise, asked)
    if isinstance(right.value, str):
        return None
    rows = answer(exercise, asked.model_copy(update={"quantity": "jacobian"})).value
    own = sum((Fraction(row[place]) ** 2 for place, row in enumerate(rows)), Fraction(0))
    return _text(right, str((right.value + own) / 2 if once else own))


mistake("only the diagonal", quantities=("jacobian_norm",))(partial(_diagonal, False))
mistake("pairs counted once", quantities=("jacobian_norm",))(partial(_diagonal, True))


@mistake("bottleneck mixed up", quantities=("bottleneck",))
def _mixed_up(exercise: Exercise, asked: Asked) -> Answer:
    width, _ = regime(asked.object or asked.text)
    other = "sequences long, width small" if width == 1 else "width large, sequences short"
    return answer(exercise, asked.model_copy(update={"object": other}))


@mistake("model width for head width", quantities=_MOMENTS)
def _whole_width(exercise: Exercise, asked: Asked) -> Answer | None:
    """The width of the model where a head's belongs; only where both are given."""
    head, whole = exercise.given("head_width"), exercise.given("width")
    if head is None or whole is None:
        return None
    wide = head.model_copy(update={"value": whole.value, "symbol": whole.symbol})
    givens = tuple(
        given.model_copy(update={"shape": None}) if given.law else wide if given is head else given
        for given in exercise.givens
        if given is not whole
    )
    return answer(exercise.model_copy(update={"givens": givens}), asked)
