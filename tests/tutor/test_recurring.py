"""Speakers without names: pictures and headings that take turns."""

import pytest

from qkv import tutor
from qkv.tutor.recurring import named

QUESTION = (
    "q and k are independent with mean $\\mu \\in \\mathbb{R}^d$ and covariance $\\sigma^2 I$. (a) What is $E[q^T k]$?"
)
WRONG, RIGHT = "(a) $d\\mu^2$", "(a) I was wrong: $\\mu^T\\mu$."
ASKED = "What kind of object is $\\mu$ in (a)?"


@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        ("🧑‍🎓 ", "🤖 "),
        ("👩: ", "👨: "),
        ("### What I asked\n\n", "### What it said\n\n"),
        ("**My prompt**\n\n", "**Its reply**\n\n"),
        ("## Me, asking\n", "## The machine\n"),
    ],
)
def test_turns_are_told_by_what_recurs(student, teacher):
    chat = "\n\n".join((student + QUESTION, teacher + WRONG, student + ASKED, teacher + RIGHT))
    read = tutor.read("# A log\n\n" + chat)
    assert [turn.speaker for turn in read.turns] == ["student", "tutor", "student", "tutor"]
    (row,) = tutor.grade(read).rows
    assert (row.status, row.first_right_turn, row.found_by) == ("needed correction", 4, "student")


@pytest.mark.parametrize(
    "text",
    [
        "## Introduction\n\nx\n\n## Methods\n\ny\n\n## Introduction\n\nz\n\n## Methods\n\nw",
        "✅ done\n✅ done too\n✅ and this\n❌ not this",
        "no marks at all",
        "",
    ],
)
def test_headings_and_ticks_are_no_speakers(text):
    assert named(text) is None
