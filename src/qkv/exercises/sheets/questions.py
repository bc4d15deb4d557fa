"""The parts of a sheet as questions: one exercise for each number, with the record of each of its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from ..record import Asked, Exercise, plain_label
from ..rubrics import asked_in
from .asked import TABLE
from .reading import Reading

NOT_UNDERSTOOD = "not_understood"  # the quantity of a part that the reader of sheets did not understand
_LABEL = re.compile(
    r"(?:[A-Za-z]{2,}[ #.]*)?(?P<question>\d+(?:\.\d+)*|[A-Z](?![A-Za-z])|)[ .:]*(?P<part>.*)", re.DOTALL
)


class SheetQuestion(Exercise):
    """A question of a sheet with its parts; `records` has the record of each part by its plain label.

    Parts of one question may give other values to the same symbols, so that each is solved by its own record. `told`
    has the texts that they refer to. `printed` is the whole sheet, with hints and notes, which chats repeat.
    """

    records: dict[str, Exercise] = Field(default_factory=dict)
    told: dict[str, str] = Field(default_factory=dict, repr=False)
    printed: str = Field(default="", repr=False)


def grouped(readings: Sequence[Reading], number: str | None = None) -> dict[str, Exercise]:
    """Readings of questions and parts, as one exercise for each question.

    Args:
        readings: what `read_sheet` gives.
        number: The number of the question, where all readings are parts of one.
    """
    leaves: dict[str, dict[str, Reading]] = {}
    for reading in readings:
        question, part = split_label(reading.exercise.label)
        if number is not None:
            part = ".".join(filter(None, (question.removeprefix(number).lstrip("."), part)))
            question = number
        leaves.setdefault(question, {}).setdefault(part, _explained(reading))
    found = {}
    for place, (question, parts) in enumerate(leaves.items(), 1):
        parts = _lettered(parts)
        label = question or str(place)
        found[label] = _question(label, parts)
    return found


def _explained(reading: Reading) -> Reading:
    """A question that asks for words, with the rubric that is for it."""
    exercise = reading.exercise
    if exercise.asked or not (rubric := asked_in(exercise.text)):
        return reading
    asked = Asked(label=exercise.label, quantity="words", rubric=rubric, text=exercise.text)
    return replace(reading, exercise=exercise.model_copy(update={"asked": (asked,)}))


def split_label(label: str) -> tuple[str, str]:
    """The question and the part of a label.

    >>> split_label("6(b)(ii)"), split_label("12.1"), split_label("a"), split_label("Question 3")
    (('6', 'b(ii)'), ('12.1', ''), ('', 'a'), ('3', ''))
    """
    found = _LABEL.fullmatch(label.strip())
    if found is None or (len(label.strip()) > 1 and label.strip().isalpha()):
        return "", label.strip().strip("()")
    part = found["part"].strip()
    first = re.match(r"\((\w+)\)(.*)", part, re.DOTALL)
    return found["question"], f"{first[1]}{first[2]}" if first else part


def _question(label: str, parts: Mapping[str, Reading]) -> SheetQuestion:
    records = {plain_label(part): reading.exercise for part, reading in parts.items()}
    first = next(iter(parts.values())).exercise
    return SheetQuestion(
        label=label,
        title=next((reading.exercise.title for reading in parts.values() if reading.exercise.title), ""),
        text=first.text,
        givens=first.givens,
        definitions=first.definitions,
        structure=first.structure,
        asked=tuple(_part(part, reading) for part, reading in parts.items()),
        records=records,
        told={plain_label(part): reading.told for part, reading in parts.items()},
    )


def _part(label: str, reading: Reading) -> Asked:
    """A part as one question, also where it asks for several things."""
    asked = reading.exercise.asked
    if not asked:
        return Asked(label=label, quantity=NOT_UNDERSTOOD, text=reading.exercise.text, confidence=0)
    quantity = "+".join(dict.fromkeys(each.quantity for each in asked))
    what = ", ".join(dict.fromkeys(each.object for each in asked if each.object))
    return asked[0].model_copy(update={"label": label, "quantity": quantity, "object": what})


def named_asked(asked: Sequence[Asked]) -> dict[str, Asked]:
    """The things that a part asks for by name: their objects where these differ, else their quantities."""
    apart = len({each.object for each in asked}) == len(asked) and len({each.quantity for each in asked}) == 1
    return {each.object if apart else each.quantity.rpartition("_")[2]: each for each in asked}


def _lettered(parts: dict[str, Reading]) -> dict[str, Reading]:
    """Parts 1, 2, 3 as a, b, c where one of them speaks of "part (b)"."""
    numbers = [part for part in parts if part.isdigit()]
    speaks = any(TABLE["part_by_letter"].search(reading.exercise.text) for reading in parts.values())
    if not numbers or numbers != [str(place) for place in range(1, len(numbers) + 1)] or not speaks:
        return parts
    return {chr(96 + int(part)) if part.isdigit() else part: reading for part, reading in parts.items()}
