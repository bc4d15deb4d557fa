"""What must change when the values are made wider: lines of a block with a residual connection, shapes, parameters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ..record import Given, Structure
from .family import BankExercise, built, letters, question, spread, words_of

NAME = "values"
_LISTING = """\
class Block(nn.Module):
    def __init__(self, {width}, {heads}):
        super().__init__()
        self.{heads} = {heads}
        self.{q} = nn.Linear({width}, {width})
        self.{k} = nn.Linear({width}, {width})
        self.{v} = nn.Linear({width}, {width})
        self.{o} = nn.Linear({width}, {width})

    def forward(self, x):
        # x       [b, n, {width}]
        b, n, _ = x.shape
        q = self.{q}(x).view(b, n, {heads}, {width} // {heads}).transpose(1, 2)
        k = self.{k}(x).view(b, n, {heads}, {width} // {heads}).transpose(1, 2)
        v = self.{v}(x).view(b, n, {heads}, {width} // {heads}).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt({width} // {heads})
        {output} = torch.softmax(scores, dim=-1) @ v
        {output} = {output}.transpose(1, 2).reshape(b, n, {width})
        return x + self.{o}({output})"""
_NAMES = (
    {"width": "d", "heads": "h", "q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "output": "out"},
    {"width": "d_model", "heads": "n_heads", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "output": "o"},
    {"width": "embed_dim", "heads": "num_heads", "q": "query", "k": "key", "v": "value", "o": "proj", "output": "y"},
)
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
    listing = _LISTING.format(**names)
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
        NAME, seed, words_of("values"), questions,
        givens=[Given(role="listing", value=listing), *sizes],
        data=data,
        structure=Structure(residual=True, biases=False, variant="mha"),
        kind=shape.values(),
    )  # fmt: skip
