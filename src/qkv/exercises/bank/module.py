"""A multi-head attention module with blanks: sizes of layers, heads in the view, which tensors are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from ..mistakes import mistake
from ..record import Asked, Exercise, Given, Structure
from ..solving import Answer, answer
from .family import BankExercise, built, given_sizes, letters, numbered, question, spread, words_of

NAME = "module"
_WORDS = words_of("module")
NAMES: list[dict[str, str]] = _WORDS["names"]
PIECES: dict[str, Any] = _WORDS["pieces"]
# A blank next to the only other one that says what belongs in it would leave both open.
_APART = ({"queries", "keys"}, {"keys", "out_keys"}, {"keys", "head_width"}, {"queries", "head_width"})
_BLANKS = tuple(
    each for count in (6, 5, 4) for each in combinations(PIECES, count) if not any(pair <= set(each) for pair in _APART)
)


def make(seed: int | None) -> BankExercise:
    """Eight blanks, or the variant of a seed."""
    if seed is None:
        return _exercise(None, {"blanks": _WORDS["code"]["printed"], "names": NAMES[0]})
    return _exercise(seed, spread(seed, names=NAMES, blanks=_BLANKS))


FAMILIES = {NAME: make}


def listing(names: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """The module with these names of sizes; `labels` are those of the pieces that are left open."""
    pieces = {name: f"___({labels[name]})___" if name in labels else piece["right"].format(**names)
              for name, piece in PIECES.items()}  # fmt: skip
    left = {"view_heads": pieces.pop("heads"), "divisor": pieces.pop("head_width")}
    return _WORDS["code"]["listing"].format(**pieces, **left, **names)


def _exercise(seed: int | None, shape: Mapping[str, Any]) -> BankExercise:
    names = shape["names"]
    labels = dict(zip(shape["blanks"], letters(), strict=False))
    code = listing(names, labels)
    questions = []
    for name, label in labels.items():
        piece = PIECES[name]
        data = {"label": label, "first": piece["hints"][0], "last": piece["hints"][1]}
        texts = sorted(text.format(**names) for text in (piece["right"], *piece["also"]))
        questions.append(question(label, "blank", "blank", data, object=label, form="blank", options=numbered(texts),
                                  mistakes=tuple(piece["mistakes"])))  # fmt: skip
    return built(
        NAME, seed, _WORDS, questions,
        givens=[Given(role="listing", value=code), *given_sizes(width=names["width"], heads=names["heads"])],
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


_plant("heads left out of a projection", lambda text: text.rpartition(" * ")[2] if " * " in text else None)
_plant("query and key swapped", lambda text: {"q": "k", "k": "q"}.get(text))
_plant("softmax over the wrong axis", lambda text: {"-1": "-2"}.get(text))
_plant("key for value", lambda text: {"v": "k"}.get(text))
