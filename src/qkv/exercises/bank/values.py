"""What must change when the values are made wider: lines of a block with a residual connection, shapes, parameters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ..record import Given, Structure
from .family import BankExercise, built, given_sizes, letters, questions, spread, words_of

NAME = "values"
_WORDS = words_of("values")
_NAMES: list[dict[str, str]] = _WORDS["names"]
_ASKED = (("changes",), ("changes", "value_shape", "parameters"), ("value_shape", "output_shape", "score_shape"),
          ("changes", "output_shape"), ("value_shape", "score_shape", "parameters"))  # fmt: skip


def make(seed: int | None) -> BankExercise:
    """Values of twice the width, or the variant of a seed."""
    if seed is None:
        return _exercise(None, {"factor": 2, "names": _NAMES[0], "asked": _ASKED[0]}, random.Random(0))
    shape = spread(seed, asked=_ASKED, names=_NAMES, factor=(2, 3, 4), size=(64, 128, 256, 512))
    return _exercise(seed, shape, random.Random(f"{NAME}:{seed}"))


FAMILIES = {NAME: make}


def _exercise(seed: int | None, shape: Mapping[str, Any], draw: random.Random) -> BankExercise:
    names, factor = shape["names"], shape["factor"]
    width, size = names["width"], shape.get("size", 512)
    listing = _WORDS["code"]["listing"].format(**names)
    wider = (Given(symbol=names["v"], role="value_width", value=f"{factor} {width}"),)
    numbers = (Given(symbol=width, role="width", value=size), Given(role="value_width", value=factor * size))
    asked = questions(letters(), shape["asked"], **{ask: {"changes": wider} for ask in shape["asked"]} | {
        "parameters": {"changes": numbers}})  # fmt: skip
    often = {2: "twice", 3: "three times", 4: "four times"}[factor]
    data = {**names, "listing": listing, "factor": factor, "times": often, "value_layer": f"self.{names['v']}",
            "size": size}  # fmt: skip
    return built(
        NAME, seed, _WORDS, asked,
        givens=[Given(role="listing", value=listing), *given_sizes(width=width, heads=names["heads"])],
        data=data,
        structure=Structure(residual=True, biases=False, variant="mha"),
        kind=shape.values(),
    )  # fmt: skip
