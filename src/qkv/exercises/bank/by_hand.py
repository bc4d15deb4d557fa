"""Queries, keys and values by hand: small whole matrices, one token's scores and weighted sum, and two proofs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

from ..record import Structure
from . import family
from .family import BankExercise, built, displayed, drawn, letters, matrix, rows, spread, vector, words_of

NAME = "by-hand"
_SPREAD = 9  # how far apart the scores of a variant are at most: every weight can be seen
_DOCUMENT = {"tokens": 3, "width": 2, "across": 3, "values": 2, "place": 3, "scaled": False, "causal": False,
             "columns": False, "first": "entry", "last": "row"}  # fmt: skip

Matrix = list[list[int]]


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        x, to_queries, to_keys = [[2, 3], [-1, 0], [1, -2]], [[1, 0, 2], [0, 1, -3]], [[0, 0, -1], [-2, 0, 1]]
        return _exercise(None, _DOCUMENT, (x, to_queries, to_keys, [[8, 0], [0, 9]]))
    shape = spread(
        seed + 1,
        tokens=(2, 3, 4),
        columns=(False, True),
        width=(2, 3, 4),
        scaled=(False, True),
        last=("row", "order"),
        across=(2, 3, 4),
        causal=(False, True),
        place=(1, 2, 3),
        first=("entry", "form"),
        values=(2, 3),
    )
    shape["place"] = 1 + shape["place"] % shape["tokens"]
    # The first token of a causal layer sees itself alone, the last one everything; a root that is not whole is no
    # friendly number.
    shape["causal"] = shape["causal"] and 1 < shape["place"] < shape["tokens"]
    shape["across"] = 4 if shape["scaled"] else shape["across"]
    return _exercise(seed, shape, drawn(NAME, seed, lambda draw: _attempt(draw, shape)))


FAMILIES = {NAME: make}


def _attempt(draw: random.Random, shape: Mapping[str, Any]) -> tuple[Matrix, Matrix, Matrix, Matrix] | None:
    n, width, across = shape["tokens"], shape["width"], shape["across"]
    x, wq, wk = rows(draw, n, width, -3, 3), rows(draw, width, across, -2, 2), rows(draw, width, across, -2, 2)
    wv = rows(draw, width, shape["values"], -4, 4)
    if any(not any(line) for each in (x, wq, wk, wv) for line in (*each, *zip(*each, strict=True))):
        return None
    queries, keys, values = _times(x, wq), _times(x, wk), _times(x, wv)
    scores = _times(queries, [list(column) for column in zip(*keys, strict=True)])
    place = shape["place"] - 1
    row, column = scores[place], [line[place] for line in scores]
    seen = row[: place + 1] if shape["causal"] else row
    whole = not shape["scaled"] or not any(score % 2 for line in scores for score in line)
    apart = (max(seen) - min(seen)) / (2 if shape["scaled"] else 1)
    distinct = len(set(seen)) == len(seen) and row != column and queries != keys
    rows_differ = len({tuple(value) for value in values}) == n and len({tuple(token) for token in x}) == n
    return (x, wq, wk, wv) if whole and apart <= _SPREAD and distinct and rows_differ else None


def _exercise(seed: int | None, shape: Mapping[str, Any], weights: tuple[Matrix, ...]) -> BankExercise:
    x, wq, wk, wv = weights
    n, place, columns, scaled = len(x), shape["place"], shape["columns"], shape["scaled"]
    words, shown = words_of("by_hand"), [list(line) for line in zip(*x, strict=True)] if columns else x
    width, across, wide = len(wq), len(wq[0]), len(wv[0])
    names = [f"$x_{i}$" for i in range(1, n + 1)]
    query, key = _times(x, wq)[place - 1], _times(x, wk)[0]
    product = "Q^T K" if columns else "Q K^T"
    below = r" / \sqrt{D_k}" if scaled else ""
    data = {
        "n": n, "count": ("two", "three", "four")[n - 2], "width": width, "across": across, "value_width": wide,
        "token": place, "lines": "columns" if columns else "rows",
        "stacked": "; they are the columns of $X$" if columns else "",
        "tokens": displayed({"X": matrix(shown)} if columns else {
            f"x_{i}": vector(line) for i, line in enumerate(x, 1)}),
        "weights": displayed({f"W_{name}": matrix(weight) for name, weight in zip("QKV", (wq, wk, wv), strict=True)}),
        "notes": (words["causal"] if shape["causal"] else "") + (words["scaled"] if scaled else ""),
        "other_scale": "not divided" if scaled else r"divided by $\sqrt{D_k}$",
        "all_tokens": family.listed(names),
        "first_entry": _written([line[0] for line in wq], x[0]),
        "first_value": vector(_times(x, wv)[0]),
        "score": f"q_i^T k_j{below}",
        "first_score": _written(query, key),
        "x_size": f"{width} by {n}" if columns else f"{n} by {width}",
        "q_size": f"{across} by {n}" if columns else f"{n} by {across}",
        "product": f"{product}{below}",
        "row_of": "column $i$ of $V A^T$" if columns else "row $i$ of $A V$",
        "order": "V A^T = W_V^T (X A^T)" if columns else "A V = (A X) W_V",
        "row_product": r"(V A^T)_{\cdot i}" if columns else "(A V)_i",
        "wrong_scale": "no scaling" if scaled else "scaling where none is asked",
    }  # fmt: skip
    entries = ("vectors", "scores", "sum", "matrices", shape["first"], shape["last"])
    summed = {"row": place, "mistakes": ("mask forgotten",) if shape["causal"] else ()}
    asked = family.questions(letters(), entries, scores={"row": place}, sum=summed)
    return built(
        NAME, seed, words, asked,
        givens=family.given_named(X=("tokens", shown), W_Q=("query_weight", wq), W_K=("key_weight", wk),
                           W_V=("value_weight", wv)),
        data=data,
        structure=Structure(mask="causal" if shape["causal"] else "none", source="self"),
        definitions=[f"{name.lower()}_i = W_{name}^T x_i" for name in "QKV"],
        conventions={"scale": "sqrt" if scaled else "none", "layout": data["lines"], "index_base": 1},
        symbols=_symbols(n, width, across, wide, columns),
        kind=shape.values(),
    )  # fmt: skip


def _symbols(n: int, width: int, across: int, wide: int, columns: bool) -> dict[str, str]:
    """The types of the names in the prose; what the tokens are multiplied by has them as rows."""
    found = {"N": f"natural = {n}", "D": f"natural = {width}", "D_k": f"natural = {across}", "D_v": f"natural = {wide}"}
    found |= {"W_Q": f"matrix[{width},{across}]", "W_K": f"matrix[{width},{across}]", "W_V": f"matrix[{width},{wide}]"}
    found |= {"x": f"matrix[{n},{width}]", "z": f"matrix[{n},{n}]", "a": f"matrix[{n},{n}]", "A": f"matrix[{n},{n}]"}
    for letter, size in (("X", width), ("Q", across), ("K", across), ("V", wide)):
        found[letter] = f"matrix[{size},{n}]" if columns else f"matrix[{n},{size}]"
        if letter != "X":
            found[letter.lower()] = f"matrix[{n},{size}]"
    return found | dict.fromkeys("ij", f"index[{n}]") | {"l": f"index[{across}]", "c": f"index[{wide}]"}


def _times(left: Matrix, right: Matrix) -> Matrix:
    return [[sum(map(mul, line, column)) for column in zip(*right, strict=True)] for line in left]


def _written(left: Sequence[int], right: Sequence[int]) -> str:
    def signed(number: int) -> str:
        return f"({number})" if number < 0 else str(number)

    return " + ".join(rf"{signed(a)} \cdot {signed(b)}" for a, b in zip(left, right, strict=True))
