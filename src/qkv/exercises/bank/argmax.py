"""Argmax attention: the value of the best key by hand, and what that does to training."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..record import Structure
from . import family
from .family import BankExercise, built, displayed, drawn, matrix, rows, spread, vector, words_of

NAME = "argmax"
_DOCUMENT = {"n": 4, "wide": 3, "out": 3, "padded": False, "tied": False, "asked": "training", "stacked": False}
Lookup = tuple[list[int], list[list[int]], list[list[int]]]


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        keys, values = [[1, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]], [[2, 0, 1], [1, 4, 3], [0, -1, 4], [1, 0, -1]]
        return _exercise(None, _DOCUMENT, ([1, 1, 2], keys, values))
    shape = spread(
        seed,
        n=(3, 4, 5),
        asked=("training", "learners", "temperature", "straight"),
        wide=(2, 3, 4),
        padded=(False, True),
        best=(0, 1, 2, 3),
        out=(2, 3, 4),
        stacked=(False, True),
        tied=(False, False, True),
    )
    shape["best"] %= shape["n"] - shape["tied"]
    return _exercise(seed, shape, drawn(NAME, seed, lambda draw: _attempt(draw, shape)))


FAMILIES = {NAME: make}


def _attempt(draw: random.Random, shape: Mapping[str, Any]) -> Lookup | None:
    """Small whole numbers; a pad at the end has the largest score, so that forgetting the mask shows."""
    n, wide, tied = shape["n"], shape["wide"], shape["tied"]
    (query,), keys = rows(draw, 1, wide, -1, 3), rows(draw, n, wide, -2, 5)
    scores = _scores(query, keys)
    best, order = max(scores), sorted(set(scores), reverse=True)
    chosen = scores.index(best) == shape["best"] and scores.count(best) == 1 + tied
    # The softmax average must not round to the value itself, nor the score be the index or 0.
    close = max(order[:1]) - min(order[:2]) <= 8 and best not in (0, shape["best"], shape["best"] + 1)
    if not (any(query) and len(order) == n - tied and chosen and close):
        return None
    if shape["padded"]:
        keys.append([entry + (part > 0) - (part < 0) for entry, part in zip(keys[shape["best"]], query, strict=True)])
    values = rows(draw, len(keys), shape["out"], -2, 5)
    different = {tuple(each) for each in (*keys, *values)}
    return (query, keys, values) if len(different) == 2 * len(keys) else None


def _scores(query: Sequence[int], keys: Sequence[Sequence[int]]) -> list[int]:
    return [sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]


def _exercise(seed: int | None, shape: Mapping[str, Any], lookup: Lookup) -> BankExercise:
    query, keys, values = lookup
    words, n, wide, out = words_of("argmax"), len(keys), len(query), len(values[0])
    apart = {f"{name}_{i}": vector(line) for i, pair in enumerate(zip(keys, values, strict=True), 1)
             for name, line in zip("kv", pair, strict=True)}  # fmt: skip
    together = {"K": matrix(keys), "V": matrix(values)}
    data = {
        "query": vector(query),
        "rows_of": " the rows of" if shape["stacked"] else "",
        "keys_and_values": displayed(together if shape["stacked"] else apart),
        "n": n,
        "best_score": max(_scores(query, keys)[: shape["n"]]),
        "padding": words["padded"] if shape["padded"] else "",
    }
    mistakes = ["key for value"] * (wide == out) + ["mask forgotten"] * shape["padded"]
    asked = family.questions("ab", ("lookup", shape["asked"]), lookup={"mistakes": mistakes})
    return built(
        NAME, seed, words, asked,
        givens=family.given_named(q=("query", query), K=("key", keys), V=("value", values)),
        data=data,
        structure=Structure(similarity="argmax", mask=f"padding({shape['n']})" if shape["padded"] else "none"),
        conventions={"index_base": 1},
        symbols={"q": f"vector[{wide}]", "k": f"matrix[{n},{wide}]", "v": f"matrix[{n},{out}]",
                 "K": f"matrix[{n},{wide}]", "V": f"matrix[{n},{out}]", "j": f"index[{n}]"},
        kind=shape.values(),
    )  # fmt: skip
