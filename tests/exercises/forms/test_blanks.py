"""Blanks of a listing: another way to write the same size is right, another size is wrong, unknown names are unread."""

import pytest

from qkv.exercises import Asked, Exercise, Given, bank
from qkv.exercises.checking import check
from qkv.exercises.solving import Answer

LISTING = """
class Block(nn.Module):
    def __init__(self, width, heads):
        self.width = width
        self.heads = heads
        self.part = width // heads
        self.W_k = nn.Linear(width, ___(a)___)
        self.W_o = nn.Linear(width, width)
"""
RECORD = Exercise(
    givens=(Given(role="listing", value=LISTING),),
    asked=(Asked(label="a", quantity="blank", object="a"),),
)
GOLD = Answer("width", "width", form="blank")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("width", "right"),
        ("self.width", "right"),
        ("heads * self.part", "right"),
        ("self.part", "wrong"),
        ("2 * width", "wrong"),
        ("self.heads", "wrong"),
        # Names that the listing does not assign may stand for anything.
        ("size", "unread"),
        ("d_model", "unread"),
    ],
)
def test_sizes_of_a_listing(given: str, kind: str) -> None:
    outcome = check(RECORD, "a", given, gold=GOLD)
    assert outcome.kind == kind


def test_a_name_that_is_assigned_twice_is_not_judged() -> None:
    twice = LISTING.replace("        self.heads = heads", "        self.heads = heads\n        self.part = 3")
    record = RECORD.model_copy(update={"givens": (Given(role="listing", value=twice),)})
    assert check(record, "a", "self.part", gold=GOLD).kind == "unread"
    assert check(record, "a", "width", gold=GOLD).kind == "right"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(1)", "right"),
        (r"\boxed{(1)}", "right"),
        (r"\text{(1)}", "right"),
        ("option 1", "right"),
        ("(1) [h, d, q]", "right"),
        ("1. [h, d, q]", "right"),
        ("(2)", "wrong"),
        (r"\text{(2)}", "wrong"),
        ("(2) [h, d, q]", "unread"),
        ("1 [d, q]", "unread"),
    ],
)
def test_an_option_is_named_by_its_number_with_or_without_brackets(text, kind):
    assert check(bank.named("decoding"), "a", text).kind == kind
