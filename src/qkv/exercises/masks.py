"""Masks on numbers: the grammar of `Structure.mask` and given matrices, as the keys that each query attends to."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np

from . import exact
from .exact import Array
from .findings import CannotSolve, refuse
from .record import Asked, Exercise
from .values import by, number, read

Terms: TypeAlias = list[tuple[str, list[str]]]
MOST_PAIRS = 4_000_000  # pairs of a query and a key
_TERM = re.compile(r"\s*\(*\s*(none|causal|window|padding)\s*(?:\(([^()]*)\))?\s*\)*\s*")


def index_base(exercise: Exercise) -> int:
    return int(exercise.convention("index_base", 1))


def mask(exercise: Exercise, asked: Asked, n: int, m: int) -> tuple[Array, Array | None]:
    """Which keys each query attends to, [..., n, m], and what an additive mask adds to the scores."""
    if n * m > MOST_PAIRS:
        raise CannotSolve("too_large", what="the matrix of queries and keys", size=f"{n * m} entries", most=MOST_PAIRS)
    given = exercise.given("mask")
    if given is None or isinstance(given.value, str):
        return _from_terms(exercise, asked, n, m), None
    values = np.atleast_2d(read(given, exercise))
    if values.shape[-1] != m or values.shape[-2] not in (1, n):
        raise CannotSolve("misfit", what="the mask", why=f"it is {by(values.shape)}, the scores are {n}×{m}")
    if np.all((values == 0) | (values == 1)):
        return np.asarray(values == 1, dtype=bool), None
    allowed = np.asarray(values > -1000, dtype=bool)
    refuse(allowed.all(), "not_understood", found="a mask that is neither 0 and 1 nor 0 and minus infinity")
    added = exact.masked(values, allowed)
    return allowed, None if np.all(added == 0) else added


def alternatives(exercise: Exercise) -> list[Terms]:
    """The mask as alternatives of terms that must all hold, each a name and its arguments."""
    given = exercise.given("mask")
    text = str(given.value) if given is not None and isinstance(given.value, str) else exercise.structure.mask
    found = []
    for alternative in text.split("|"):
        terms = [_TERM.fullmatch(term) for term in alternative.split("&")]
        refuse(not all(terms), "not_understood", found=f"a mask {text!r}")
        found.append([(term[1], re.findall(r"[^,\s]+", term[2] or "")) for term in terms if term])
    return found


def _from_terms(exercise: Exercise, asked: Asked, n: int, m: int) -> Array:
    keys, found = np.arange(m), np.zeros((n, m), dtype=bool)
    for terms in alternatives(exercise):
        moving = any(name in ("causal", "window") for name, _ in terms)
        places = (_places(exercise, asked, n, m) if moving else np.arange(n))[:, None]
        allowed = np.ones((n, m), dtype=bool)
        for name, arguments in terms:
            if len(arguments) != {"window": 2, "padding": 1}.get(name, 0):
                raise CannotSolve("not_understood", found=f"the mask {name}({', '.join(arguments)})")
            sides = [m if side in ("inf", "-1") else int(number(side, f"the mask {name}")) for side in arguments]
            if name == "causal":
                allowed &= keys <= places
            elif name == "padding":
                allowed &= keys < sides[0]
            elif name == "window":
                allowed &= (keys >= places - sides[0]) & (keys <= places + sides[1])
        found |= allowed
    return found


def _places(exercise: Exercise, asked: Asked, n: int, m: int) -> Array:
    """The positions of the queries among the keys."""
    if n == m:
        return np.arange(n)
    if exercise.structure.phase in ("decode", "prefill") and n <= m:
        return np.arange(m - n, m)
    given = exercise.given("query")
    named = re.search(r"(\d+)\D*$", given.symbol) if given else None
    place = asked.row if asked.row is not None else int(named[1]) if named else None
    if n == 1 and place is not None and 0 <= place - index_base(exercise) < m:
        return np.array([place - index_base(exercise)])
    raise CannotSolve("unsettled", convention=f"which of the {m} keys the {n} queries are aligned with")


def symbols_in(terms: Terms) -> list[str]:
    """Sides of windows and paddings that are symbols."""
    sides = (side for _, arguments in terms for side in arguments)
    return [side for side in sides if re.fullmatch(r"[A-Za-z]\w*", side) and side != "inf"]


def pairs_formula(n: Any, m: Any, terms: Terms) -> str:
    """The number of pairs under all terms, for windows shorter than the sequence; empty where none is simple."""
    kept = dict(term for term in terms if term[0] != "none")
    if not kept:
        return f"{n}^2" if n == m else f"{n} \\cdot {m}"
    if any(side.isdigit() and isinstance(n, int) and int(side) >= n for sides in kept.values() for side in sides):
        return ""
    if "padding" in kept:
        return f"{n} \\cdot {kept['padding'][0]}" if len(kept) == 1 else ""
    if n != m:
        return ""
    if "window" not in kept:
        return f"{n} ({n} + 1)/2"
    left, right = kept["window"]
    right = "0" if "causal" in kept else right
    parts = f"{n} ({left} + {right} + 1) - {left} ({left} + 1)/2 - {right} ({right} + 1)/2"
    return parts.replace(" + 0 + 1)", " + 1)").replace(" - 0 (0 + 1)/2", "")
