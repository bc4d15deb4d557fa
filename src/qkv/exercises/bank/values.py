"""What must change when the values are made wider: lines of a block with a residual connection, shapes, parameters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ..record import Given, Structure
from .family import BankExercise, built, letters, question, spread, words_of

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
    width, heads = names["width"], names["heads"]
    size = shape.get("size", 512)
    listing = _WORDS["code"]["listing"].format(**names)
    wider = (Given(symbol=names["v"], role="value_width", value=f"{factor} {width}"),)
    numbers = (Given(symbol=width, role="width", value=size), Given(role="value_width", value=factor * size))
    asked = {
        "changes": {"quantity": "listing_changes", "object": names["v"], "changes": wider, "form": "words"},
        "value_shape": {"quantity": "shape", "object": "v", "changes": wider},
        "output_shape": {"quantity": "shape", "object": names["output"], "changes": wider},
        "score_shape": {"quantity": "shape", "object": "scores", "changes": wider},
        "parameters": {"quantity": "parameters", "object": "attention", "changes": numbers},
    }
    questions = [question(label, ask, **asked[ask]) for label, ask in zip(letters(), shape["asked"], strict=False)]
    often = {2: "twice", 3: "three times", 4: "four times"}[factor]
    data = {**names, "listing": listing, "factor": factor, "times": often, "value_layer": f"self.{names['v']}",
            "size": size}  # fmt: skip
    sizes = [Given(symbol=width, role="width"), Given(symbol=heads, role="heads")]
    return built(
        NAME, seed, _WORDS, questions,
        givens=[Given(role="listing", value=listing), *sizes],
        data=data,
        structure=Structure(residual=True, biases=False, variant="mha"),
        kind=shape.values(),
    )  # fmt: skip
