"""Rules that a student sets, and where a tutor breaks them; what is no rule is none."""

import pytest

from qkv.grading.rules import broken_rules
from qkv.reading import AnswerClaim, Chat, Turn


def rules(*turns, claims=()):
    chat = Chat("chat", "plain", tuple(Turn(at, ("student", "tutor")[at % 2], text) for at, text in enumerate(turns)))
    return [(rule.name, rule.turn) for rule in broken_rules(chat, claims)]


def claim(turn, part):
    return AnswerClaim(question="1", part=part, claim="d", quote="d", turn=turn, span=(0, 1), anchor="answer")


@pytest.mark.parametrize(
    "words", ["No code, please.", "Do not write any code.", "I want no code from you anywhere.", "without python code"]
)
def test_code(words):
    listing = "Here:\n```python\nimport torch\nx = torch.ones(2)\n```"
    assert rules(words, listing) == [("code", 1)]
    assert rules(words, "As shown: $x = 1$") == [("code", None)]
    # What the student showed may be quoted, and formulas are no code.
    assert rules(f"{words}\n\n{listing}", listing) == [("code", None)]
    assert rules(words, "```latex\n\\frac{1}{2}\n\\sqrt{2}\n```") == [("code", None)]


@pytest.mark.parametrize("words", ["The course has no coding in it.", "You may use code.", "My code is broken."])
def test_what_sets_no_rule(words):
    assert rules(words, "```python\nimport torch\nprint(1)\n```") == []


def test_answers_before_they_are_asked_for():
    wait = "Here is all of it: (a) What is q? (b) What is k? Please do not answer anything yet."
    assert rules(wait, "(a) d", claims=[claim(1, "a")]) == [("early", 1)]
    assert rules(wait, "I wait.", "Now (a).", "(a) d", claims=[claim(3, "a")]) == [("early", None)]
    assert rules(wait, "I wait.", "Now (a).", "(a) d (b) d", claims=[claim(3, "a"), claim(3, "b")]) == [("early", 3)]


def test_derivations():
    wanted = "Show the derivation every time."
    assert rules(wanted, "(a) $d$\n(b) $2$\n(c) $3$") == [("derivation", 1)]
    derived = "(a) The terms are independent and their variances add, so that the sum of all of them is $d$.\n(b) " * 2
    assert rules(wanted, derived) == [("derivation", None)]
    assert rules("You need not show the derivation.", "(a) $d$\n(b) $2$") == []


def test_length():
    assert rules("Please keep it short.", "word " * 900, claims=[claim(1, "a")]) == [("short", 1)]
    assert rules("Please keep it short.", "word " * 900) == [("short", None)]
    assert rules("Please keep it short.", "word " * 300 + "$x + y$ " * 600, claims=[claim(1, "a")]) == [("short", None)]
    # A tone is no length.
    assert rules("Keep your tone concise and technical.", "word " * 900, claims=[claim(1, "a")]) == []
