"""The value of a given as exact numbers: an array of fractions and decimals, or of floats where it is large."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import MathsError
from .exact import MOST_EXACT, Array, array, filled, transposed
from .findings import CannotSolve
from .record import Exercise, Given, shape_of

MOST = 2_000_000  # entries of one given
_IDENTITY = re.compile(r"(?:\\?mathbf|\\?bm)?\{?(?:I|identity|the identity(?: matrix)?|eye)\}?(?:_?\{?\(?(\d+)\)?\}?)?")
_INFINITE = re.compile(r"([+-]?)\s*(?:float\(['\"]?)?(?:\\?inf(?:ty|inity)?|∞|np\.inf)['\")]*", re.I)
_UPRIGHT = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathrm|vec|hat|mathit|text)\b|[{}\s@*$]|\\(?:cdot|,|;|left|right)")


def name_of(given: Given) -> str:
    return given.symbol or given.role.replace("_", " ")


def bare(text: str) -> str:
    r"""A symbol or an equation without fonts, braces and spaces.

    >>> bare(r"\mathbf{q}_{i} = W_Q^\top x_i")
    'q_i=W_Q^Tx_i'
    """
    return _UPRIGHT.sub("", text).replace(r"\top", "T").replace("⊤", "T").replace("ᵀ", "^T").replace("^(T)", "^T")


def read(given: Given, exercise: Exercise | None = None, width: int | None = None) -> Array:
    """The numbers of a given; `width` is the size of an identity matrix that does not say it."""
    value = given.value
    if value is None:
        raise CannotSolve("missing", needs=f"a value of {name_of(given)}")
    if isinstance(value, str):
        if found := _IDENTITY.fullmatch(value.strip().replace("$", "")):
            size = int(found[1]) if found[1] else _size(given) or width
            if size is None:
                raise CannotSolve("missing", needs=f"the size of {name_of(given)}")
            return array(np.eye(size, dtype=int).tolist()) if size**2 <= MOST_EXACT else np.eye(size)
        if value.strip()[:1] in "[(" and "," in value:
            value = _listed(value, value)
    shape = shape_of(value)
    size = math.prod(shape)
    if size > MOST:
        raise CannotSolve("too_large", what=name_of(given), size=f"{size} entries", most=MOST)
    known = {} if exercise is None else {each.symbol: each.value for each in exercise.givens if each.symbol}
    if size > MOST_EXACT:
        found = _large(given, value)
    else:
        found = filled((_entry(each, given, known) for each in _flat(value, shape, given)), shape)
    stated = given.shape
    if stated and all(isinstance(each, int) for each in stated) and found.ndim and math.prod(stated) != found.size:  # pyright: ignore[reportCallIssue, reportArgumentType]
        raise CannotSolve("misfit", what=name_of(given), why=f"its shape is {by(shape)}, and {by(stated)} is said")
    return found


def _size(given: Given) -> int | None:
    return given.shape[0] if given.shape and isinstance(given.shape[0], int) else None


def by(shape: tuple[Any, ...]) -> str:
    """A shape in words: 3×2."""
    return "×".join(map(str, shape))


def _listed(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text.replace("(", "[").replace(")", "]"))
    except ValueError:
        return otherwise


def _flat(value: Any, shape: tuple[int, ...], given: Given) -> list[Any]:
    if not shape:
        if isinstance(value, list | tuple):
            raise CannotSolve("misfit", what=name_of(given), why="its rows differ in length")
        return [value]
    if not isinstance(value, list | tuple) or len(value) != shape[0]:
        raise CannotSolve("misfit", what=name_of(given), why="its rows differ in length")
    return [entry for part in value for entry in _flat(part, shape[1:], given)]


def _large(given: Given, value: Any) -> Array:
    try:
        found = np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise CannotSolve("misfit", what=name_of(given), why="its entries are not all numbers in equal rows") from None
    if np.isnan(found).any():
        raise CannotSolve("misfit", what=name_of(given), why="an entry is not a number")
    return found


def _entry(value: Any, given: Given, known: dict[str, Any]) -> Any:
    if isinstance(value, str) and value not in known:
        return number(value, name_of(given))
    if isinstance(value, str):
        meant = known[value]
        return number(str(meant), name_of(given)) if isinstance(meant, int | float | str) else _no_number(value, given)
    if isinstance(value, float):
        if math.isnan(value):
            raise CannotSolve("misfit", what=name_of(given), why="an entry is not a number")
        return Fraction(repr(value)) if math.isfinite(value) else value
    return Fraction(value) if isinstance(value, int | Fraction) else _no_number(value, given)


def _no_number(value: Any, given: Given) -> Any:
    raise CannotSolve("missing", needs=f"a number in place of {value!r} in {name_of(given)}")


def number(text: str, name: str = "a number") -> Any:
    """A text as a fraction, a decimal where it is irrational, or an infinite float.

    >>> number("1/3"), number("1e-3"), str(number("sqrt(2)"))[:6], number("-inf")
    (Fraction(1, 3), Fraction(1, 1000), '1.4142', -inf)
    """
    plain = text.strip().replace("−", "-").replace("–", "-").strip("$")
    if found := _INFINITE.fullmatch(plain):
        return -math.inf if found[1] == "-" else math.inf
    try:
        if len(plain) < 100 and not re.search(r"e[+-]?\d{4}", plain, re.I):
            return Fraction(plain.replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        pass
    from ..maths import parse
    from ..maths.values.evaluate import evaluate

    try:
        found = evaluate(parse(plain, {}), {}, {})
    except (MathsError, ArithmeticError):
        raise CannotSolve("missing", needs=f"a number in place of {plain[:40]!r} in {name}") from None
    if isinstance(found, tuple):
        raise CannotSolve("misfit", what=name, why=f"{plain[:40]!r} is not a number")
    return found


def scalar(exercise: Exercise, role: str, default: Any = None) -> Any:
    """The number of a role, or `default` where it is not given or has no value."""
    given = exercise.given(role)
    if given is None or given.value is None:
        return default
    found = read(given, exercise)
    if found.size != 1:
        raise CannotSolve("misfit", what=name_of(given), why="one number is expected")
    return found.reshape(())[()]


def whole(exercise: Exercise, role: str) -> int | None:
    """A size as a whole number; None where it is not given or is a symbol."""
    found = exercise.size(role)
    if isinstance(found, str):
        try:
            found = number(found)
        except CannotSolve:
            return None
    if found is None:
        return None
    if found != int(found) or found < 0:
        raise CannotSolve("misfit", what=role.replace("_", " "), why=f"{found} is not a whole number")
    return int(found)


def digits(exercise: Exercise) -> int | None:
    """The significant digits that are asked for, where the text says so."""
    found = exercise.convention("digits")
    return max(1, min(int(found), 40)) if found is not None else None


def columns(exercise: Exercise) -> bool:
    return exercise.convention("layout", "rows") == "columns"


def stacked(exercise: Exercise, role: str, width: int | None = None) -> Array | None:
    """The numbers of every given of a role: several vectors are rows, several matrices are stacked (heads).

    Tokens as columns become rows. A single vector or number keeps its shape.
    """
    givens = [given for given in exercise.of_role(role) if given.value is not None]
    if not givens:
        return None
    places = [re.search(r"(\d+)\D*$", given.symbol) for given in givens]
    if len({found[1] for found in places if found}) == len(givens):
        givens = [each for _, each in sorted(zip(places, givens, strict=True), key=lambda pair: int(pair[0][1]))]  # pyright: ignore[reportOptionalSubscript]
    found = [read(given, exercise, width) for given in givens]
    turn = columns(exercise) and not role.endswith("_weight")
    if any(
        isinstance(entry, float) and math.isinf(entry) for each in found if each.dtype == object for entry in each.flat
    ):
        raise CannotSolve("misfit", what=name_of(givens[0]), why="an entry is infinite")
    found = [transposed(each) if turn and each.ndim >= 2 else each for each in found]
    if len(found) == 1:
        return found[0]
    if len({each.shape for each in found}) > 1:
        names = " and ".join(map(name_of, givens[:3]))
        raise CannotSolve("misfit", what=names, why="their shapes differ: " + ", ".join(by(e.shape) for e in found[:3]))
    together = np.stack(found)
    return together[:, None] if together.ndim == 1 and role != "value" else together


def first_of(exercise: Exercise, *roles: str) -> Array | None:
    """The numbers of the first of these roles that is given."""
    return next((found for role in roles if (found := stacked(exercise, role)) is not None), None)
