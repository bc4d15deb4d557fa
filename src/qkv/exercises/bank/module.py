"""A multi-head attention module with blanks: sizes of layers, heads in the view, which tensors are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from ..mistakes import mistake
from ..record import Asked, Exercise, Given, Option, Structure
from ..solving import Answer, answer
from .family import BankExercise, built, letters, question, spread, words_of

NAME = "module"
# What may be left open, with what belongs there; {names} are those of the sizes.
_PIECES = {
    "in_width": "{width}",
    "out_keys": "{heads} * {key_width}",
    "out_values": "{heads} * {value_width}",
    "output_in": "{heads} * {value_width}",
    "heads": "self.{heads}",
    "queries": "q",
    "keys": "k",
    "head_width": "self.{key_width}",
    "axis": "-1",
    "values": "v",
}
_PRINTED = ("in_width", "out_keys", "output_in", "heads", "queries", "head_width", "axis", "values")
_HEADS_LEFT_OUT = "heads left out of a projection"
_WRONG = {
    "out_keys": (_HEADS_LEFT_OUT,),
    "out_values": (_HEADS_LEFT_OUT,),
    "output_in": (_HEADS_LEFT_OUT,),
    "queries": ("query and key swapped",),
    "keys": ("query and key swapped",),
    "axis": ("softmax over the wrong axis",),
    "values": ("key for value",),
}
# A blank next to the only other one that says what belongs in it would leave both open.
_APART = ({"queries", "keys"}, {"keys", "out_keys"}, {"keys", "head_width"}, {"queries", "head_width"})
_BLANKS = tuple(
    each
    for count in (6, 5, 4)
    for each in combinations(_PIECES, count)
    if not any(pair <= set(each) for pair in _APART)
)
_LISTING = """\
class Attention(nn.Module):
    def __init__(self, {width}, {heads}, {key_width}, {value_width}):
        super().__init__()
        self.{heads} = {heads}
        self.{key_width} = {key_width}
        self.{value_width} = {value_width}
        self.q_proj = nn.Linear({in_width}, {heads} * {key_width})
        self.k_proj = nn.Linear({width}, {out_keys})
        self.v_proj = nn.Linear({width}, {out_values})
        self.o_proj = nn.Linear({output_in}, {width})

    def forward(self, x, {memory}):
        # x       [b, n, {width}]
        # {memory:<7} [b, m, {width}]
        b, n, m = x.shape[0], x.shape[1], {memory}.shape[1]
        q = self.q_proj(x).view(b, n, {view_heads}, self.{key_width}).transpose(1, 2)
        k = self.k_proj({memory}).view(b, m, self.{heads}, self.{key_width}).transpose(1, 2)
        v = self.v_proj({memory}).view(b, m, self.{heads}, self.{value_width}).transpose(1, 2)
        scores = {queries} @ {keys}.transpose(-2, -1) / math.sqrt({divisor})  # [b, {heads}, n, m]
        weights = torch.softmax(scores, dim={axis})  # [b, {heads}, n, m]
        out = weights @ {values}  # [b, {heads}, n, {value_width}]
        out = out.transpose(1, 2).reshape(b, n, self.{heads} * self.{value_width})
        return self.o_proj(out)"""
NAMES = (
    {"width": "d_model", "heads": "n_heads", "key_width": "d_key", "value_width": "d_value", "memory": "memory"},
    {
        "width": "embed_dim",
        "heads": "num_heads",
        "key_width": "key_dim",
        "value_width": "value_dim",
        "memory": "source",
    },
    {"width": "dim", "heads": "n_head", "key_width": "dim_key", "value_width": "dim_value", "memory": "keys"},
    {"width": "width", "heads": "heads", "key_width": "key_size", "value_width": "value_size", "memory": "context"},
)
_OPTIONS = {
    "in_width": ("{heads}", "{heads} * {key_width}"),
    "out_keys": ("{key_width}", "{width}"),
    "out_values": ("{value_width}", "{width}"),
    "output_in": ("{value_width}", "{width}"),
    "heads": ("self.{value_width}", "self.{key_width}"),
    "queries": ("k", "v"),
    "keys": ("q", "v"),
    "head_width": ("self.{value_width}", "self.{heads}"),
    "axis": ("1", "-2"),
    "values": ("q", "k"),
}


def make(seed: int | None) -> BankExercise:
    """Eight blanks, or the variant of a seed."""
    if seed is None:
        return _exercise(None, {"blanks": _PRINTED, "names": NAMES[0]})
    return _exercise(seed, spread(seed, names=NAMES, blanks=_BLANKS))


FAMILIES = {NAME: make}


def listing(names: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """The module with these names of sizes; `labels` are those of the pieces that are left open."""
    pieces = {piece: f"___({labels[piece]})___" if piece in labels else text.format(**names)
              for piece, text in _PIECES.items()}  # fmt: skip
    left = {"view_heads": pieces.pop("heads"), "divisor": pieces.pop("head_width")}
    return _LISTING.format(**pieces, **left, **names)


def _exercise(seed: int | None, shape: Mapping[str, Any]) -> BankExercise:
    words, names = words_of("module"), shape["names"]
    labels = dict(zip(shape["blanks"], letters(), strict=False))
    code = listing(names, labels)
    questions = []
    for piece, label in labels.items():
        first, last = words["hints"][piece]
        data = {"label": label, "first": first, "last": last}
        texts = sorted(text.format(**names) for text in (_PIECES[piece], *_OPTIONS[piece]))
        options = tuple(Option(label=str(place), text=text) for place, text in enumerate(texts, 1))
        questions.append(question(label, "blank", "blank", data, object=label, form="blank", options=options,
                                  mistakes=_WRONG.get(piece, ())))  # fmt: skip
    givens = [Given(symbol=names[role], role=role) for role in ("width", "heads")]  # pyright: ignore
    return built(
        NAME, seed, words, questions,
        givens=[Given(role="listing", value=code), *givens],
        data={"listing": code, "heads_said": f"`{names['heads']}` heads", "memory": names["memory"]},
        structure=Structure(source="cross", variant="mha"),
        kind=shape.values(),
    )  # fmt: skip


def _plant(name: str, change: Callable[[str], str | None]) -> None:
    """A mistake that puts another text into a blank."""

    def wrong(exercise: Exercise, asked: Asked) -> Answer | None:
        right = answer(exercise, asked)
        text = change(right.text)
        return None if text is None else replace(right, text=text, value=text)

    mistake(name, quantities=("blank",))(wrong)


_plant(_HEADS_LEFT_OUT, lambda text: text.rpartition(" * ")[2] if " * " in text else None)
_plant("query and key swapped", lambda text: {"q": "k", "k": "q"}.get(text))
_plant("softmax over the wrong axis", lambda text: {"-1": "-2"}.get(text))
_plant("key for value", lambda text: {"v": "k"}.get(text))
