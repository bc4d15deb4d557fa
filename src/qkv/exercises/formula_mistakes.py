"""Known mistakes of formulas, growth classes, counts, masks and choices, as changes of the record or of the answer."""

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

_MOMENTS = ("mean", "variance", "scale_for_variance")
_GROWTH = ("growth_time", "growth_space", "growth_moved")
_CACHED = ("growth_moved", "growth_space", "cache_bytes", "intensity")
_SIZES = ("batch", "length", "keys_length", "heads", "layers", "window", "degree")
Change = Callable[[Exercise, Asked], tuple[Exercise, Asked] | None]


def _text(right: Answer, text: str) -> Answer:
    """The answer with another text; a formula of numbers is worked out."""
    value = number_in(text)
    unit = f" {right.unit}" if right.unit and right.text.endswith(right.unit) else ""
    shown = text if value is None else f"{value}{unit}"
    return replace(right, text=shown, value=text if value is None else value, items={}, also=(), assumed=())


def _answered(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer | None:
    """A mistake that puts the right answer into a template."""
    right = answer(exercise, asked)
    if entry.get("object", asked.object) != asked.object or not re.search(entry.get("like", ""), right.text):
        return None
    known: dict[str, Any] = {role: exercise.size(role) for role in _SIZES}
    known |= {"head_width": exercise.size("head_width") or exercise.size("width"), "text": right.text}
    known["keys_length"] = known["keys_length"] or known["length"]
    if right.value is not None and not isinstance(right.value, str | tuple):
        known["value"] = Fraction(right.value)
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


def _with(exercise: Exercise, *givens: Given, without: tuple[str, ...] = (), **structure: Any) -> Exercise:
    """The record with other givens in place of those of their roles, and with another structure."""
    roles = {given.role for given in givens} | set(without)
    kept = tuple(given for given in exercise.givens if given.role not in roles)
    other = exercise.structure.model_copy(update=structure)
    return exercise.model_copy(update={"givens": (*kept, *givens), "structure": other})


def _of_record(entry: Mapping[str, Any], exercise: Exercise, asked: Asked) -> Answer:
    """A mistake that solves another record."""
    givens = [Given.model_validate({"role": role, "value": value}) for role, value in entry.get("sizes", {}).items()]
    other = _with(exercise, *givens, without=tuple(entry.get("without", ())), **entry.get("structure", {}))
    pattern, put = entry.get("object", ("$^", ""))
    target = re.sub(pattern, put, asked.object, count=1)
    return answer(other, asked.model_copy(update={"object": target}))


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
    for powers, factor in as_polynomial(parse(inside[2], right.symbols)).terms.items():
        by = size_of(entry["those" if concerned(dict(powers)) else "others"]) or Polynomial({})
        if not by.free_symbols <= names.keys():
            return None
        found += Polynomial({powers: factor}) * by.substituted(
            {role: Polynomial.name(name) for role, name in names.items()}
        )
    return _text(right, f"{inside[1]}({leading(found)})") if found else None


_KINDS: dict[str, Callable[..., Answer | None]] = {
    "answer": _answered,
    "replaced": _replaced,
    "record": _of_record,
    "class": _of_class,
}
for _kind, _entries in tomllib.loads(
    files("qkv.exercises").joinpath("formula_mistakes.toml").read_text("utf-8")
).items():
    for _entry in _entries:
        _wrong: Mistake = partial(_KINDS[_kind], _entry)
        mistake(_entry["name"], quantities=tuple(_entry.get("quantities", _GROWTH)))(_wrong)


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
    return _with(exercise, *(Given(symbol=mean, role="other", value=0) for mean in means)), asked


def _shared(variant: str, exercise: Exercise, asked: Asked) -> tuple[Exercise, Asked]:
    """Other heads of keys and values: as many as queries have, or one."""
    heads = exercise.size("heads")
    count = [Given(role="kv_heads", value=1 if variant == "mqa" else heads)] if isinstance(heads, int) else []
    return _with(exercise, *count, without=("kv_heads",), variant=variant, kv_heads=None), asked


_solving("mean read as a scalar", _MOMENTS, partial(_misread, False))
_solving("mean read as a vector", _MOMENTS, partial(_misread, True))
_solving("means left out of the variance", ("variance",), _centred)
_solving("per-head keys in multi-query attention", _CACHED, partial(_shared, "mha"))
_solving("one key head for all", _CACHED, partial(_shared, "mqa"))


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


# The attention that a mistake is about, the mask that it has, and the one that is put in its place.
_MASKS = {
    "causal mask in an encoder": ("encoder", "", "causal mask"),
    "padding mask forgotten": ("", "padding mask", "no mask"),
    "no causal mask in the decoder": ("decoder", "", "padding mask"),
    "causal mask in cross-attention": ("cross", "", "causal mask"),
}


def _masked(place: str, mask: str, put: str, exercise: Exercise, asked: Asked) -> Answer:
    right = answer(exercise, asked)
    items = {
        name: replace(item, text=put) if name.startswith(place) and mask in ("", item.text) else item
        for name, item in right.items.items()
    }
    text = "; ".join(f"{name}: {item.text}" for name, item in items.items())
    return replace(right, text=text, value=text, items=items)


for _name, _change in _MASKS.items():
    mistake(_name, quantities=("masks_needed",))(partial(_masked, *_change))


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
