"""Coding tasks: the call that a test prints, as givens and a quantity; nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..record import Given
from .arrays import Call, Interpreted, interpret
from .asked import data, find_asked, plain

FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_RADIUS = re.compile(
    r"radius|i\s*-\s*w\b.{0,60}i\s*\+\s*w\b|(?:both|either|each) sides?|\|\s*i\s*-\s*j\s*\|", re.IGNORECASE | re.DOTALL
)
# Words of a task that may make its function another one than its name says.
_OTHER = re.compile(
    r"\b(?:same as|mask\w*|window\w*|bias\w*|causal\w*|without|not?|instead|except|columns?|first axis|axis 0|dropout|"
    r"temperature|unscaled|cache\w*|rotary|gradient|backward|random\w*|head\w*|add\w*|subtract\w*|shift\w*)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
_ON_ATTENTION = ("projections", "scores", "weights", "output", "heads_output")


@dataclass(frozen=True)
class Task:
    """What a test of a coding task asks: a quantity, its givens, the mask of a window, and the decimals it prints."""

    quantity: str
    givens: tuple[Given, ...]
    mask: str = ""
    decimals: int | None = None
    understood: bool = True


def read_task(text: str, context: str) -> Task | None:
    """The test that the code of a text prints; None where the text is no such test, or the function is not known."""
    code = "\n".join(match[1] for match in FENCED.finditer(text))
    prose = FENCED.sub("", text).strip()
    if not code.strip():
        return None
    if len(prose) > 40:  # a task that says in its own words what its code prints
        if _OTHER.search(plain(prose)):
            return None
        context = f"{context}\n\n{prose}"
    found = interpret(code)
    printed = [call for call in found.calls if call.printed]
    if len(printed) != 1:
        return None
    call = printed[0]
    short = call.function.split(".")[-1]
    entry = next((each for each in data()["function"] if re.fullmatch(each["name"], short, re.IGNORECASE)), {})
    quantity = entry.get("quantity") or _from_words(context)
    if not quantity:
        return None
    givens, unknown = _givens(call, found, entry, context, quantity)
    if len(prose) > 40:
        said = {each.quantity for each in find_asked(prose).wanted}
        values = {number for given in givens for number in _NUMBER.findall(str(given.value))}
        unknown = unknown or not entry or bool(said - {quantity}) or bool({*_NUMBER.findall(plain(prose))} - values)
    window = next((given for given in givens if given.role == "window"), None)
    mask = ""
    if window is not None:
        unknown = unknown or not _RADIUS.search(context)
        mask = f"window({window.value}, {window.value})"
        givens = tuple(given for given in givens if given is not window)
    return Task(quantity, givens, mask, call.digits, not (unknown or found.findings))


def _from_words(context: str) -> str:
    wanted = {each.quantity for each in find_asked(FENCED.sub("", context)).wanted}
    named = {"savings"} & wanted or wanted  # the FLOPs behind a saving are steps on the way
    return next(iter(named)) if len(named) == 1 else ""


def _givens(
    call: Call, found: Interpreted, entry: dict[str, Any], context: str, quantity: str
) -> tuple[tuple[Given, ...], bool]:
    """The arguments of a call by their roles, and whether one of them is not known."""
    made = {target: each for each in found.calls for target in each.targets}
    names = _parameter_names(call, context)
    order = entry.get("order") or _described(context)
    givens: list[Given] = []
    unknown = False
    for place, argument in enumerate(call.arguments):
        name = argument.keyword or (names[place] if place < len(names) else "")
        role = _role(name or argument.text, quantity, entry)
        if not role and argument.value is not None and not argument.text.isidentifier() and place < len(order):
            role = order[place]
        if argument.value is not None and role:
            givens.append(_given(role, argument.text if argument.text.isidentifier() else name, argument.value))
        elif argument.text in made:
            givens += [each for each in _projected(made[argument.text], quantity) if each not in givens]
        elif argument.text not in ("None", "True", "False"):
            unknown = True
    return tuple(givens), unknown


def _projected(call: Call, quantity: str) -> Iterator[Given]:
    for argument in call.arguments:
        role = _role(argument.text, quantity, {})
        if role and argument.value is not None:
            yield _given(role, argument.text, argument.value)


def _given(role: str, symbol: str, value: Any) -> Given:
    plain = role in ("mask", "gamma", "beta")
    return Given(symbol=symbol if symbol.isidentifier() else "", role=role, value=_squeezed(value) if plain else value)  # pyright: ignore[reportArgumentType]


def _squeezed(value: Any) -> Any:
    """A vector without the axes of length one that are there for broadcasting."""
    from ..record import shape_of

    shape = shape_of(value)
    if sum(length > 1 for length in shape) > 1 or len(shape) < 2:
        return value
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return [each[0] if isinstance(each, list) and len(each) == 1 else each for each in map(_innermost, value)]


def _innermost(value: Any) -> Any:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _role(name: str, quantity: str, entry: dict[str, Any]) -> str:
    if name in entry.get("names", {}):
        return entry["names"][name]
    for role, pattern in data()["parameters"].items():
        if re.fullmatch(pattern, name):
            if role != "input":
                return role
            on_scores = "softmax" in quantity or quantity == "logsumexp"
            return "tokens" if quantity in _ON_ATTENTION else "scores" if on_scores else "input"
    return ""


def _parameter_names(call: Call, context: str) -> list[str]:
    """The names of a function's parameters where the task writes its head, or a call of it with names alone."""
    short = re.escape(call.function.split(".")[-1])
    for match in re.finditer(rf"{short}\(([\w\s,:=.]*)\)", context):
        names = [re.split(r"[:=]", each)[0].strip() for each in match[1].split(",")]
        if len(names) >= len(call.arguments) and all(name.isidentifier() for name in names):
            return names
    named = re.findall(
        r"(?:^|[\s,;(`])([a-z_]+)\s*=\s*[\d\[]", " ".join(match[1] for match in FENCED.finditer(context))
    )
    return named if len(named) == len(call.arguments) and len(set(named)) == len(named) else []


def _described(context: str) -> list[str]:
    """The roles of a task's arguments in the order in which its text describes them."""
    for sentence in re.findall(r"\bgiven\b([^.]*)", FENCED.sub("", context), re.IGNORECASE):
        found: dict[int, list[str]] = {}
        for each in data()["described"]:
            match = re.search(each["when"].replace(" ", r"\s*"), sentence, re.IGNORECASE)
            if match and not {role for roles in found.values() for role in roles} & set(each["roles"]):
                found[match.start()] = each["roles"]
        if len(found) > 1:
            return [role for place in sorted(found) for role in found[place]]
    return []
