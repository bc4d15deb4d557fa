"""Answers in every style are found: the right part, the text as it was written, and the quote to the letter."""

from __future__ import annotations

from functools import cache

import pytest

from qkv.exercises import bank
from qkv.exercises.checking import check
from qkv.exercises.forms.statement import squeezed
from qkv.exercises.solving import answer
from qkv.reading import Chat, ExplicitReader, read_chat

from .styles import STYLES

FAMILIES = ("scaling", "decoding", "heads")
UNREAD = ("words", "proof")


@cache
def answers(name: str) -> tuple[bank.BankExercise, dict[str, str]]:
    exercise = bank.named(name, 5)
    found = {asked.label: answer(exercise, asked) for asked in exercise.asked}
    return exercise, {label: each.text for label, each in found.items() if each.form not in UNREAD and not each.items}


@cache
def judged(name: str, label: str, claim: str) -> str:
    return check(answers(name)[0], label, claim).kind


def labelled(label: str) -> str:
    """ "a(ii)" as it stands between brackets in a chat: "a)(ii"."""
    return label.replace("(", ")(").removesuffix(")")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_found(style: str, name: str) -> None:
    exercise, right = answers(name)
    text = STYLES[style]("7", {labelled(label): each for label, each in right.items()})
    chat = read_chat(text, name="chat")
    claims = ExplicitReader().read(chat, {"6": bank.named("argmax"), "7": exercise})
    assert {claim.question for claim in claims} == {"7"}
    for label, wanted in right.items():
        mine = [claim for claim in claims if claim.part == label and claim.claim]
        assert mine, f"({label}) {wanted} is not found in\n{text}"
        assert any(squeezed(claim.claim).endswith(squeezed(wanted).removeprefix("torch")) for claim in mine)
        assert all(judged(name, label, claim.claim) == "right" for claim in mine if claim.counts)
        assert any(claim.counts for claim in mine)
    assert_quoted(chat, claims)


@pytest.mark.parametrize("style", STYLES)
def test_wrong_answers_are_found_as_they_are(style: str) -> None:
    """The reader does not mend: what is wrong in the chat is wrong in the claim."""
    exercise = bank.named("scaling")
    chat = read_chat(STYLES[style]("3", {"b": "d^3", "c": "5 d"}), name="chat")
    claims = [claim for claim in ExplicitReader().read(chat, {"3": exercise}) if claim.counts]
    assert [(claim.part, squeezed(claim.claim)) for claim in claims] == [("b", squeezed("d^3")), ("c", squeezed("5 d"))]
    if style == "table":
        assert all(check(exercise, claim.part, claim.claim).kind == "wrong" for claim in claims)


def assert_quoted(chat: Chat, claims: list) -> None:
    for claim in claims:
        start, stop = claim.span
        assert chat.turns[claim.turn].text[start:stop] == claim.quote
        assert chat.turns[claim.turn].speaker in ("tutor", "unknown")
