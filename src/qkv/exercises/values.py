"""The value of a given as exact numbers: an array of fractions and decimals, or of floats where it is large."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import MathsError
from .exact import MOST_EXACT, Array, array, each, floats, is_float, transposed
from .findings import CannotSolve, refuse
from .record import Exercise, Given

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
    value, name = given.value, name_of(given)
    if value is None:
        raise CannotSolve("missing", needs=f"a value of {name}")
    if isinstance(value, str):
        if found := _IDENTITY.fullmatch(value.strip().replace("$", "")):
            stated = given.shape[0] if given.shape and isinstance(given.shape[0], int) else width
            refuse(not (found[1] or stated), "missing", needs=f"the size of {name}")
            unit = np.eye(int(found[1] or stated or 0), dtype=int)
            return array(unit if unit.size <= MOST_EXACT else unit.astype(float))
        if value.strip()[:1] in "[(" and "," in value:
            with suppress(ValueError):
                value = json.loads(value.replace("(", "[").replace(")", "]"))
    known = {} if exercise is None else {other.symbol: other.value for other in exercise.givens if other.symbol}

    def entry(value: Any) -> Any:
        value = known.get(value, value) if isinstance(value, str) else value
        if isinstance(value, int | Fraction):
            return Fraction(value)
        if isinstance(value, str) or (isinstance(value, float) and not math.isnan(value)):
            return number(str(value), name)
        if isinstance(value, float | list | tuple):
            why = "an entry is not a number" if isinstance(value, float) else "its rows differ in length"
            raise CannotSolve("misfit", what=name, why=why)
        raise CannotSolve("missing", needs=f"a number in place of {value!r} in {name}")

    cells = np.array(value, dtype=object)
    refuse(cells.size > MOST, "too_large", what=name, size=f"{cells.size} entries", most=MOST)
    if cells.size <= MOST_EXACT:
        cells = each(entry, cells)
    else:
        try:
            cells = floats(cells)
        except (TypeError, ValueError):
            raise CannotSolve("misfit", what=name, why="its entries are not all numbers in equal rows") from None
        refuse(np.isnan(cells).any(), "misfit", what=name, why="an entry is not a number")
    stated = [size for size in given.shape or () if isinstance(size, int)]
    if cells.ndim and stated and len(stated) == len(given.shape or ()) and math.prod(stated) != cells.size:
        raise CannotSolve("misfit", what=name, why=f"its shape is {by(cells.shape)}, and {by(stated)} is said")
    return cells


def by(shape: Sequence[Any]) -> str:
    """A shape in words: 3×2."""
    return "×".join(map(str, shape))


def number(text: str, name: str = "a number") -> Any:
    """A text as a fraction, a decimal where it is irrational, or an infinite float.

    >>> number("1/3"), number("1e-3"), str(number("sqrt(2)"))[:6], number("-inf")
    (Fraction(1, 3), Fraction(1, 1000), '1.4142', -inf)
    """
    plain = text.strip().replace("−", "-").replace("–", "-").strip("$")
    if found := _INFINITE.fullmatch(plain):
        return -math.inf if found[1] == "-" else math.inf
    if len(plain) < 100 and not re.search(r"e[+-]?\d{4}", plain, re.I):
        with suppress(ValueError, ZeroDivisionError):
            return Fraction(plain.replace(" ", ""))
    from ..maths import parse
    from ..maths.values.evaluate import evaluate

    try:
        found = evaluate(parse(plain, {}), {}, {})
    except (MathsError, ArithmeticError):
        raise CannotSolve("missing", needs=f"a number in place of {plain[:40]!r} in {name}") from None
    refuse(isinstance(found, tuple), "misfit", what=name, why=f"{plain[:40]!r} is not a number")
    return found


def scalar(exercise: Exercise, role: str, default: Any = None) -> Any:
    """The number of a role, or `default` where it is not given or has no value."""
    given = exercise.given(role)
    if given is None or given.value is None:
        return default
    found = read(given, exercise)
    refuse(found.size != 1, "misfit", what=name_of(given), why="one number is expected")
    return found.reshape(())[()]


def whole(exercise: Exercise, role: str) -> int | None:
    """A size as a whole number; None where it is not given or is a symbol."""
    found: Any = exercise.size(role)
    try:
        found = number(found) if isinstance(found, str) else found
    except CannotSolve:
        return None
    if found is not None and (found != int(found) or found < 0):
        raise CannotSolve("misfit", what=role.replace("_", " "), why=f"{found} is not a whole number")
    return None if found is None else int(found)


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
    places = [int(found[1]) for given in givens if (found := re.search(r"(\d+)\D*$", given.symbol))]
    if len(set(places)) == len(givens):
        givens = [givens[places.index(place)] for place in sorted(places)]
    found = [read(given, exercise, width) for given in givens]
    if any(isinstance(entry, float) for array in found if not is_float(array) for entry in array.flat):
        raise CannotSolve("misfit", what=name_of(givens[0]), why="an entry is infinite")
    if columns(exercise) and not role.endswith("_weight"):
        found = [transposed(array) if array.ndim >= 2 else array for array in found]
    if len(found) == 1:
        return found[0]
    if len({array.shape for array in found}) > 1:
        names, shapes = " and ".join(map(name_of, givens[:3])), ", ".join(by(array.shape) for array in found[:3])
        raise CannotSolve("misfit", what=names, why=f"their shapes differ: {shapes}")
    together = np.stack(found)
    return together[:, None] if together.ndim == 1 and role != "value" else together


def first_of(exercise: Exercise, *roles: str) -> Array | None:
    """The numbers of the first of these roles that is given."""
    return next((found for role in roles if (found := stacked(exercise, role)) is not None), None)
