"""Rules of the set-up are found, and so is where a tutor breaks them; the author's table stands beside."""

from __future__ import annotations

import pytest

from qkv.tutor import grade, insights, read
from qkv.tutor.authors import author_rows, said_status
from qkv.tutor.rules import rules_of

from .test_ledger import LAW, answers, chat

DERIVED = {
    "a": r"$E[q^T k] = \sum_i E[q_i] E[k_i] = \mu^T \mu$",
    "b": r"$\text{Var}(q^T k) = \sum_{i=1}^d 1 = d$",
    "c": r"$\text{Var}(q^T k / s) = d / s^2 = 1$, so $s = \sqrt{d}$",
}
LISTING = "\n\n```python\nimport numpy as np\nprint(np.mean([1, 2]))\n```"


def broken(text: str) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for rule in grade(read(text)).rules:
        found.setdefault(rule.name, []).extend([rule.turn] if rule.broken else [])
    return found


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("There should be no coding at any point.", "code"),
        ("Please don't write any code.", "code"),
        ("Answer without Python code.", "code"),
        ("Do not answer any problem until I give it to you.", "answered before asked"),
        ("Only answer when I paste a problem.", "answered before asked"),
        ("Show all your work.", "no derivation"),
        ("I want step-by-step solutions.", "no derivation"),
        ("Keep it short.", "not short"),
        ("Give short but clear answers.", "not short"),
    ],
)
def test_rules_in_other_words(words, name):
    assert rules_of(read(chat("Hello.", "Hi.", words, "Fine."))) == {name: 3}
    assert not rules_of(read(chat("I like problems about code and waiting.", words)))


def test_code_where_none_is_allowed():
    rule = "No code, please."
    assert broken(chat(rule, "Fine.", LAW, answers(**DERIVED) + LISTING)) == {"code": [4]}
    assert broken(chat(rule, "Fine.", LAW, answers(**DERIVED))) == {"code": []}
    # Before the rule nothing is broken; the student's own listing and a line that is asked for are no code.
    assert broken(chat(LAW, answers(**DERIVED) + LISTING, rule, "Fine.")) == {"code": []}
    assert broken(chat(rule + LISTING, "You gave:" + LISTING, LAW, answers(**DERIVED))) == {"code": []}
    line = '\n\n```\nq = torch.einsum("bd,hdq->bhq", x, W_q)\n```'
    assert broken(chat(rule, "Fine.", LAW, answers(**DERIVED) + line)) == {"code": []}
    assert broken(chat(rule, "Fine.", LAW, answers(**DERIVED) + "\n\ndef f(x):\n    return x\n")) == {"code": [4]}


def test_answers_before_the_question():
    rule = "Do not answer anything until I give you the problem."
    assert broken(chat(rule, "Fine.", LAW, answers())) == {"answered before asked": []}
    early = "Fine. By the way:\n\n(a) $x = 1$\n\n(b) $y = 2$"
    assert broken(chat(rule, early, LAW, answers())) == {"answered before asked": [2]}


def test_answers_without_a_derivation():
    rule = "Show a derivation for everything."
    assert broken(chat(rule, "Fine.", LAW, answers())) == {"no derivation": [4]}
    assert broken(chat(rule, "Fine.", LAW, answers(**DERIVED))) == {"no derivation": []}


@pytest.mark.parametrize(
    "table",
    ["| Question | Performance |\n|---|---|\n| 1. Scores | Needed Correction |\n| 9. Other | One Shot |",
     "Question\tModel Performance\n1. Scores\tNeeded Correction\n9. Other\tOne Shot"],
)  # fmt: skip
def test_the_authors_table_stands_beside(table):
    assert author_rows(table) == [("1. Scores", "Needed Correction"), ("9. Other", "One Shot")]
    conversation = chat(f"## 1. Scores\n\n{LAW}", answers())
    found = grade(read(f"# Report\n\n{table}\n\n{conversation}")).author_table
    assert [(row.recomputed, row.remark) for row in found] == [
        ("one shot", "not in evidence"), ("", "not in the conversation")
    ]  # fmt: skip
    corrected = chat(f"## 1. Scores\n\n{LAW}", answers(b="$d^2$"), "Is (b) right?", "No: (b) is $d$.")
    assert grade(read(f"# Report\n\n{table}\n\n{corrected}")).author_table[0].remark == "agrees"


@pytest.mark.parametrize(
    ("words", "status"),
    [("One-shot", "one shot"), ("correct on the first try", "one shot"), ("Needed corrections", "needed correction"),
     ("right after a hint", "needed correction"), ("never solved", "never right"), ("wrong", "never right"),
     ("", ""), ("blue", "")],
)  # fmt: skip
def test_what_authors_say(words, status):
    assert said_status(words) == status


def test_a_page_for_the_class():
    from qkv.render.to_html import html
    from qkv.render.to_markdown import markdown

    asked = "In (a), what kind of object is $\\mu$? <script>alert(1)</script>"
    ledger = grade(read(chat(LAW, answers(a=r"$d\mu^2$"), asked, r"A vector: (a) is $\mu^T\mu$.")))
    page = insights(ledger)
    for written in (html(page), markdown(page, [])):
        assert "mean read as a scalar" in written
        assert "what kind of object" in written
        assert "<script>" not in written
    assert "No error" in markdown(insights(grade(read(chat(LAW, answers())))), [])


def test_a_problem_that_comes_with_the_word_to_wait():
    wait = f"Do not answer anything yet, I will tell you when. {LAW}"
    assert broken(chat(wait, answers(**DERIVED)))["answered before asked"] == [2]
    assert (
        broken(chat(wait, "I wait.", "Now (a), (b) and (c) please.", answers(**DERIVED)))["answered before asked"] == []
    )
    assert broken(chat(wait, "I wait.", "Go ahead.", answers(**DERIVED)))["answered before asked"] == []
    asked = f"Do not answer until I ask. Here I ask: {LAW}"
    assert broken(chat(asked, answers(**DERIVED)))["answered before asked"] == []


def test_what_json_says_of_a_rule():
    rule = grade(read(chat("No code, please.", "Fine.", LAW, answers(**DERIVED) + LISTING))).as_dict()["rules"][0]
    assert rule == {"rule": "code", "broken": True, "turn": 4, "evidence": "a listing: import numpy as np"}


@pytest.mark.parametrize(
    "said",
    [
        "Only give the final answers, no derivation.",
        "You don't need to show your work.",
        "The course has no coding part.",
        "You do not have to be short.",
    ],
)
def test_what_is_no_rule(said):
    assert rules_of(read(f"Student: {said}\n\nTutor: Fine.")) == {}


def test_one_rule_after_another():
    said = "No code, show a derivation for each part. Don't answer before I ask and keep it short."
    assert set(rules_of(read(f"Student: {said}\n\nTutor: Fine."))) == {
        "code", "no derivation", "answered before asked", "not short"
    }  # fmt: skip
