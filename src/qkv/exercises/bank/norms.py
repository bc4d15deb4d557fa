"""Normalisation: which inputs an output depends on, numbers by hand, and the length of what comes out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import isqrt
from typing import Any

from ..record import Given, Option, Structure
from .family import BankExercise, Question, built, filled, given_values, question, spread, vector, words_of

NAME = "norms"
_WORDS = words_of("norms")
# Whole numbers that add up to 0 and whose mean square is a square.
_SPREADS = ((1, -1), (1, 1, -1, -1), (5, -1, -1, -3), (4, -1, -1, -1, -1), (3, 1, 0, -1, -3), (1, 1, 1, -1, -1, -1))
_CLAIMS = {
    "layer": (r"\|y - \beta \mathbf{1}\| = \gamma \sqrt{d}", r"\|x - \mu \mathbf{1}\|^2 = d \sigma^2"),
    "rms": (r"\|y\| = \gamma \sqrt{d}", r"\|x\|^2 = d \rho^2"),
}
_NORMS = {
    "layer": ("layer norm", "layer norm over the batch"),
    "rms": ("rms norm", "layer norm over the batch"),
    "batch": ("batch norm", "batch norm over the features"),
    "evaluation": ("batch norm in evaluation", "batch statistics in evaluation"),
}
_PLACES = {  # which of the indices b, t and j an option shares with the output
    2: {"i": (True, True, True), "ii": (False, True, True), "iii": (True, True, False), "iv": (False, True, False)},
    3: {"i": (True, True, True), "ii": (False, True, True), "iii": (True, False, True), "iv": (True, True, False)},
}
_DOCUMENT = {"norms": ("layer", "batch"), "axes": 2, "claim": "layer", "numbers": "", "asked": ""}


def make(seed: int | None) -> BankExercise:
    """The printed exercise, or the variant of a seed."""
    if seed is None:
        return _exercise(None, _DOCUMENT, random.Random(0))
    shape = spread(
        seed,
        norms=(("layer", "batch"), ("batch", "rms"), ("rms", "evaluation"), ("evaluation", "layer")),
        numbers=("layer", "rms", "batch"),
        axes=(2, 3),
        claim=("layer", "rms", ""),
        asked=("apply", "statistics", "apply"),
        spread=_SPREADS,
        size=(1, 2, 3),
    )
    if shape["numbers"] == "rms":
        shape["asked"] = "apply"
    return _exercise(seed, shape, random.Random(f"{NAME}:{seed}"))


FAMILIES = {NAME: make}


def _exercise(seed: int | None, shape: Mapping[str, Any], draw: random.Random) -> BankExercise:
    axes = shape["axes"]
    asked = [_dependence(f"a({sign})", norm, axes) for sign, norm in zip(("i", "ii"), shape["norms"], strict=True)]
    if shape["claim"]:
        claim, squared = _CLAIMS[shape["claim"]]
        asked.append(question("b", "proof", "", {"claimed": claim, "squared": squared}))
    if shape["numbers"]:
        asked.append(_numbers("c" if shape["claim"] else "b", shape, draw))
    claimed = _WORDS[f"{shape['claim']}_claim"] if shape["claim"] else ""
    return built(
        NAME, seed, _WORDS, asked,
        data={"tensor": _WORDS["two_axes" if axes == 2 else "three_axes"], "claim": claimed},
        structure=Structure(norm="rms" if shape["claim"] == "rms" else "layer"),
        givens=[Given(symbol="x", role="input", shape=("B", "D") if axes == 2 else ("B", "T", "D"))],
        symbols={"B": "natural", "D": "natural", "T": "natural", "d": "natural", "gamma": "nonnegative",
                 "beta": "scalar", "mu": "scalar", "sigma": "positive", "rho": "positive", "epsilon": "nonnegative",
                 "z": "vector[d]", "x": "vector[d]", "y": "vector[d]"},
        kind=shape.values(),
    )  # fmt: skip


def _dependence(label: str, norm: str, axes: int) -> Question:
    names = ("b", "t", "j") if axes == 3 else ("b", "", "j")
    options = []
    for sign, same in _PLACES[axes].items():
        indices = [name if kept else f"{name}'" for name, kept in zip(names, same, strict=True) if name]
        differs = " and ".join(f"${name[0]}' \\ne {name[0]}$" for name in indices if "'" in name)
        text = f"$x_{{{','.join(indices)}}}$" + (f" with {differs}" if differs else "")
        options.append(Option(label=sign, text=text))
    of, wrong = _NORMS[norm]
    data = {"output": f"y_{{{','.join(filter(None, names))}}}", "norm": _WORDS["norms"][norm]}
    data |= {"over": _WORDS["over"][norm], "wrong": wrong}
    return question(label, "dependence", "", data, object=of, options=tuple(options), several=True,
                    mistakes=() if norm == "evaluation" else ("only itself",))  # fmt: skip


def _numbers(label: str, shape: Mapping[str, Any], draw: random.Random) -> Question:
    """A norm of small whole numbers whose deviation is whole."""
    kind, apart, size = shape["numbers"], list(shape["spread"]), shape["size"]
    draw.shuffle(apart)
    root = isqrt(sum(each * each for each in apart) // len(apart))
    centre = 0 if kind == "rms" else draw.choice((-4, -3, -2, 2, 3, 5, 7))
    x = [centre + size * each for each in apart]
    if kind == "rms":
        x = [each * draw.choice((-1, 1)) for each in x]
    gamma, beta = root * draw.choice((2, -1, 3, -2)), 0 if kind == "rms" else draw.choice((-3, -2, -1, 1, 2, 4))
    rms = kind == "rms"
    data = {"x": vector(x), "gamma": gamma, "beta": beta, "n": len(x), "divisor": root * size, "mean": centre}
    data |= {
        "given": filled(_WORDS["givens"][kind], data),
        "order": "Leave the mean" if rms else "Subtract the mean",
        "root": "root of the mean square" if rms else "standard deviation",
        "centre": "" if rms else f" and the mean {centre}",
    }
    values = Given(symbol="u", role="input", value=[[each] for each in x] if kind == "batch" else x)
    changes = (values, *given_values(epsilon=0, gamma=gamma, beta=beta))
    if shape["asked"] == "statistics":
        return question(label, "statistics", "", data, object=kind, changes=changes)
    mistakes = [] if root * size == 1 else ["divided by the variance in a norm"]
    mistakes += ["scale left out", *([] if rms else ["shift left out", "mean not taken off"])]
    return question(label, "apply", f"{kind}_norm", data, changes=changes, mistakes=tuple(mistakes))
