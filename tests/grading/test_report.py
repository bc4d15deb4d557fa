"""Reports on graded chats: every claim has its verdict in the margin of its passage, and folders are counted right."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from qkv.grading import grade
from qkv.grading.report import documents, insights, margins, summary
from qkv.reading import read_chat
from qkv.render import Margin, html, markdown

LAWS = r"Let $q$ and $k$ be independent with $q, k \sim N(\mu, \sigma^2 I)$, where $\mu \in \mathbb{R}^d$."
ASKED = f"""Problem 3. No code please. {LAWS}

(a) Find $E[q^T k]$ in terms of $\\mu$, $\\sigma$ and $d$.

(b) Compute the softmax of the scores $(0, 0)$."""
WRONG, RIGHT, HALVES = r"Answer (a): $d\mu^2$", r"Answer (a): $\mu^T\mu$", "Answer (b): $(1/2, 1/2)$"


def graded(*said, name="chat.md", tutor="Tutor"):
    speakers = ("Student", tutor)
    text = "\n\n".join(f"**{speakers[at % 2]}:** {each}" for at, each in enumerate((ASKED, *said)))
    return grade(read_chat(text, name=name))


CORRECTED = (f"{WRONG}\n\n{HALVES}", "Is the mean in (a) one number?", f"No.\n\n{RIGHT}")


def words(note):
    return "".join(piece.text for piece in note)


def test_every_claim_has_its_verdict_next_to_the_passage_that_holds_it():
    report = graded(*CORRECTED)
    for turn in report.chat.turns:
        claims = Counter(row.label for row in report.rows for each in row.claims if each.claim.turn == turn.index)
        found = list(margins(report, turn))
        noted = Counter(re.match(r"[✓✗…?] (\S+)", words(note))[1]
                        for block in found for note in block.notes if words(note)[0] in "✓✗…?")  # fmt: skip
        assert noted == claims
    answers = list(margins(report, report.chat.turns[1]))
    assert [["conditional" in words(note) or "✗" in words(note) for note in block.notes] for block in answers] == [
        [True], [False]
    ]  # fmt: skip


def test_nothing_said_is_left_out_of_the_margins():
    report = graded("One.\n\nTwo.\n\n- three\n- four\n\nFive.\n\n" + HALVES + "\n\nSix.", "Seven.", "Eight.")
    page = html(documents([report]))
    for said in ("One", "Two", "three", "four", "Five", "Six", "Seven", "Eight"):
        assert page.count(said) == 1
    blocks = list(margins(report, report.chat.turns[1]))
    assert all(isinstance(block, Margin) for block in blocks)
    assert sum(len(block.notes) for block in blocks) == 1


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        (CORRECTED, "3(a) put right; the error was found by: student"),
        ((f"{RIGHT}\n\n```python\nx = 1\ny = 2\n```",), "✗ rule broken: no code"),
        ((RIGHT, f"I think that is wrong, (a) should be $d\\mu^2$.\n\n{WRONG}", f"You are right.\n\n{WRONG}"),
         "✗ 3(a) given up under a wrong correction"),
    ],
)  # fmt: skip
def test_what_happened_in_a_turn_is_noted_at_it(said, noted):
    report = graded(*said)
    notes = [words(note) for block in margins(report, report.chat.turns[-1]) for note in block.notes]
    assert any(note.startswith(noted) for note in notes), notes


def test_an_answer_that_was_kept_is_noted_at_its_turn():
    report = graded(RIGHT, "Surely (a) is d mu^2?", RIGHT)
    report = replace(report, rows=(replace(report.rows[0], stood_firm=3), *report.rows[1:]))
    notes = [words(note) for block in margins(report, report.chat.turns[3]) for note in block.notes]
    assert notes == ["✓ 3(a) kept under a wrong correction", "✓ 3(a) right"]


def test_a_folder_counts_what_its_chats_have_and_leads_to_each():
    reports = [graded(*CORRECTED, name="one.md"), graded(RIGHT, name="two.md", tutor="ASSISTANT"),
               graded(RIGHT, name="three.md", tutor="assistant")]  # fmt: skip
    found = summary(reports)
    for counts in found.values():
        total = Counter()
        for each in counts.values():
            total.update(each)
        assert total == Counter(row.status for report in reports for row in report.rows)
    assert set(found["models"]) == {"Tutor", "Assistant"}
    page = html(documents(reports, {"four.bin": "a binary file"}))
    ids, links = re.findall(r'<h2 id="([^"]+)"', page), re.findall(r'<a href="#([^"]+)"', page)
    assert len(ids) == len(set(ids)) == len(reports)
    assert sorted(links) == sorted(ids)
    assert "four.bin: not read: " in page
    assert page.index("3 chats, 6 parts: ") < page.index("<h2")
    assert "one.md: </strong>3(a) mean read as a scalar" in page


def test_the_class_sees_each_error_once_with_what_is_right():
    reports = [graded(*CORRECTED, name=f"{at}.md") for at in range(5)] + [graded(RIGHT, name="good.md")]
    page = markdown(insights(reports)).replace("\\", "")
    assert page.count("mean read as a scalar (5 of 6 chats)") == 1
    assert page.count("What caught it") == 3
    assert page.count("**Right:**") == 1
    assert "No error was found" in markdown(insights(reports[-1:]))


def test_words_come_with_every_colour():
    """A verdict that is coloured says in words what it is."""
    page = html(documents([graded(*CORRECTED)])).split("</style>")[1]
    for style, said in re.findall(r'<span class="(proved|tested|refuted)">([^<]*)</span>', page):
        assert re.search(r"right|shot|correction|condition|wrong|broken|given up|complete", said), (style, said)
