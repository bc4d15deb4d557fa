"""Attention with a kernel for softmax: when it is finite, its features, the rewritten equation, the costs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..record import Given, Structure
from .family import BankExercise, built, given_sizes, given_values, letters, questions, spread, vector, words_of

NAME = "kernels"
_DOCUMENT = {"asked": ("condition", "kernel", "map", "rewrite", "softmax_cost", "linear_cost"), "kernel": (2, 1),
             "n": "N", "d": "D", "m": "M", "vectors": ("q", "k"), "tied": True}  # fmt: skip
_LABELS = ("a", "b(i)", "b(ii)", "b(iii)", "c", "d")
# The feature map is asked of quadratic kernels alone: a cubic one's is too long to write down.
_ASKED = (
    _DOCUMENT["asked"],
    ("similarity", "count", "linear_cost", "linear_form"),
    ("kernel", "count", "softmax_cost", "elu_cost"),
    ("condition", "count", "rewrite", "elu_cost", "linear_cost"),
)


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        return _exercise(None, _DOCUMENT, _LABELS, random.Random(0))
    shape = spread(
        seed + 1,
        asked=_ASKED,
        kernel=((2, 1), (2, 0), (3, 1), (3, 0)),
        n=("N", "n", "S", "L", "T"),
        d=("D", "d", "p", "g"),
        tied=(True, False),
        m=("M", "m", "w", "u"),
        vectors=(("q", "k"), ("x", "y")),
    )
    if shape["kernel"][0] != 2:
        shape["asked"] = tuple(dict.fromkeys("count" if ask == "map" else ask for ask in shape["asked"]))
    return _exercise(seed, shape, list(letters()), random.Random(f"{NAME}:{seed}"))


FAMILIES = {NAME: make}


def _exercise(seed: int | None, shape: Mapping[str, Any], labels: Sequence[str], draw: random.Random) -> BankExercise:
    (degree, constant), (q, k) = shape["kernel"], shape["vectors"]
    n, d, m = shape["n"], shape["d"], shape["m"]
    query, key = _friendly(draw)
    dot = sum(a * b for a, b in zip(query, key, strict=True))
    data = {
        "n": n, "d": d, "m": m, "q": q, "k": k, "r": degree, "c": constant,
        "kind": {2: "quadratic", 3: "cubic"}[degree],
        "exactly": "of at most" if constant else "of exactly",
        "rest": "; the dot product itself has weight 2 as well, and a 1 is left" if constant else "",
        "tied": f", with ${m}$ about as large as ${d}$" if shape["tied"] else f", in terms of ${n}$, ${d}$ and ${m}$",
        "query": vector(query), "key": vector(key), "dot": dot,
    }  # fmt: skip
    givens = [*given_sizes(length=n, head_width=d, value_width=m), *given_values(degree=degree, offset=constant)]
    givens += [Given(symbol=q, role="query", shape=(d,)), Given(symbol=k, role="key", shape=(d,))]
    sizes = dict.fromkeys((n, d, m, "F", "r"), "natural")
    constants = "constant left out of the kernel" if constant else "constant added to the kernel"
    sizes_asked = {"in_terms_of": (n, d, m)}
    elu = (Given(role="features", value="elu(x) + 1"), Given(symbol=d, role="feature_count", value=d))
    pair = (Given(symbol=q, role="query", value=query), Given(symbol=k, role="key", value=key))
    asked = questions(
        labels, shape["asked"],
        kernel={"in_terms_of": (q, k), "mistakes": (constants, "degree not applied")},
        map={"in_terms_of": (q,)},
        count={"in_terms_of": (d,)},
        softmax_cost=sizes_asked,
        linear_cost={**sizes_asked, "changes": given_sizes(value_width=d if shape["tied"] else "")},
        elu_cost={**sizes_asked, "changes": elu},
        similarity={"mistakes": (constants,), "changes": pair},
    )  # fmt: skip
    return built(
        NAME, seed, words_of("kernels"), asked,
        givens=givens,
        data=data,
        structure=Structure(similarity="polynomial", phase="training"),
        conventions={"scale": "none"},
        symbols={**sizes, "c": "scalar", q: f"vector[{d}]", k: f"vector[{d}]", "Q": f"matrix[{n},{d}]",
                 "K": f"matrix[{n},{d}]", "V": f"matrix[{n},{m}]", "phi": f"map vector[{d}] -> vector[F]",
                 "sim": f"map vector[{d}], vector[{d}] -> scalar", "i": f"index[{n}]"},
        kind=shape.values(),
    )  # fmt: skip


def _friendly(draw: random.Random) -> tuple[list[int], list[int]]:
    """Two vectors whose dot product is no number that a power leaves as it is."""
    while True:
        width = draw.choice((2, 3))
        query = [draw.choice((-2, -1, 1, 2, 3)) for _ in range(width)]
        key = [draw.choice((-1, 0, 1, 2)) for _ in range(width)]
        dot = sum(a * b for a, b in zip(query, key, strict=True))
        if 2 <= abs(dot) <= 6 and dot != -2:
            return query, key
