"""What happens to softmax and its gradients when scores are not scaled: moments, Jacobian, its size, consequences."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..record import Given
from .family import BankExercise, built, given_values, letters, questions, spread, vector, words_of

NAME = "saturation"
_DOCUMENT = {"d": "d_head", "s": "s", "n": "n", "vectors": ("q", "k"), "deviation": 1,
             "asked": ("moments", "jacobian", "norm", "bound", "words")}  # fmt: skip
_FORMULAS = (
    ("moments", "scale", "words"),
    ("moments", "jacobian", "norm"),
    ("jacobian", "norm", "bound", "words"),
    _DOCUMENT["asked"],
)
_NUMBERS = (("weights", "matrix", "size"), ("weights", "entry", "upstream"), ("weights", "hotter", "matrix"))


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed: in formulas, or at numbers."""
    if seed is None:
        return _in_formulas(None, _DOCUMENT, [f"a({roman})" for roman in ("i", "ii", "iii", "iv", "v")])
    if seed % 2:
        shape = spread(seed // 2, asked=_NUMBERS, keys=(3, 4, 2), s=("s", "z", "l"), row=(1, 2), column=(2, 1))
        return _at_numbers(seed, shape, random.Random(f"{NAME}:{seed}"))
    shape = spread(
        seed // 2,
        asked=_FORMULAS,
        d=("d_k", "d", "D", "d_h", "p"),
        s=("s", "z", "l"),
        n=("n", "N", "T"),
        vectors=(("q", "k"), ("x", "y")),
        deviation=(1, 2, 3),
    )
    return _in_formulas(seed, shape, list(letters()))


FAMILIES = {NAME: make}


def _in_formulas(seed: int | None, shape: Mapping[str, Any], labels: list[str]) -> BankExercise:
    (q, k), d, s, n, deviation = shape["vectors"], shape["d"], shape["s"], shape["n"], shape["deviation"]
    law = f"iid with mean 0 and standard deviation {deviation}"
    givens = [Given(symbol=name, role="law", law=law, shape=(d,)) for name in (q, k)]
    givens += [Given(symbol=s, role="scores", shape=(n,)), Given(symbol="a", role="weights", shape=(n,))]
    givens.append(Given(symbol=n, role="keys_length"))
    return built(
        NAME, seed, words_of("saturation"), questions(labels, shape["asked"]),
        givens=givens,
        data={"q": q, "k": k, "d": d, "s": s, "n": n, "deviation": deviation, "each": deviation**4},
        symbols={d: "natural", n: "natural", q: f"vector[{d}]", k: f"vector[{d}]", s: f"vector[{n}]",
                 "a": f"vector[{n}]", "i": f"index[{n}]", "j": f"index[{n}]", "epsilon": "positive"},
        kind=("formulas", *shape.values()),
    )  # fmt: skip


def _at_numbers(seed: int, shape: Mapping[str, Any], draw: random.Random) -> BankExercise:
    keys, s = shape["keys"], shape["s"]
    counts = draw.sample(range(1, 9), keys)
    row, column, power = shape["row"], shape["column"], draw.choice((2, 3))
    upstream = draw.sample((-2, -1, 0, 1, 2, 3), keys)
    inner = sum(Fraction(count * each, sum(counts)) for count, each in zip(counts, upstream, strict=True))
    data = {
        "count": ("two", "three", "four")[keys - 2], "s": s, "counts": vector(counts), "total": sum(counts),
        "logs": vector([rf"\ln {count}" for count in counts]), "row": row, "column": column, "power": power,
        "upstream": vector(upstream), "inner": inner,
    }  # fmt: skip
    scores = [f"ln({count})" for count in counts]
    hotter = {"changes": given_values(temperature=f"1/{power}")}
    givens = [Given(symbol=s, role="scores", value=scores)]
    givens += [Given(role="upstream", of="a", value=upstream)] if "upstream" in shape["asked"] else []
    return built(
        NAME, seed, words_of("saturation"), questions(letters(), shape["asked"], hotter=hotter),
        givens=givens,
        data=data,
        conventions={"index_base": 1},
        symbols={s: f"vector[{keys}]", "a": f"vector[{keys}]", "i": f"index[{keys}]", "j": f"index[{keys}]"},
        kind=("numbers", *shape.values()),
        statement="numbers",
    )  # fmt: skip
