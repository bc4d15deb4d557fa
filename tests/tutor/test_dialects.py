"""Marks of speakers that chat programs have of their own, and labels that were escaped on the way."""

from __future__ import annotations

import pytest

from qkv.tutor.dialects import unescaped_labels
from qkv.tutor.transcript import read

SAID = [("student", "What is the mean of $x$?"), ("tutor", "It is $m$."), ("student", "Why?"), ("tutor", "So.")]
FORMS = {
    "tags": lambda who, text: f"<{who}> {text}",
    "brackets": lambda who, text: f"[{who}] {text}",
    "list": lambda who, text: f"- {who}: {text}",
    "dash": lambda who, text: f"{who} - {text}",
    "special tokens": lambda who, text: f"<|im_start|>{who.lower()}\n{text}<|im_end|>",
    "LaTeX": lambda who, text: rf"\textbf{{{who}:}} {text}",
    "no-break space": lambda who, text: f"{who}\xa0: {text}",
    "wide colon": lambda who, text: f"{who}：{text}",
    "page": lambda who, text: f'<div data-message-author-role="{who.lower()}"><p>{text}</p></div>',
}


@pytest.mark.parametrize("form", FORMS)
def test_speakers_are_read(form):
    names = {"student": "User", "tutor": "Assistant"}
    text = "\n\n".join(FORMS[form](names[who], said) for who, said in SAID)
    assert [(turn.speaker, turn.text) for turn in read(text).turns] == SAID


def test_instructions_in_brackets():
    text = "".join(f"[INST] {said} [/INST]" if who == "student" else f" {said} </s><s>" for who, said in SAID)
    assert [(turn.speaker, turn.text) for turn in read(text).turns] == SAID


def test_a_quotation_that_goes_on_without_its_mark():
    text = "> **User:** Find it.\nIt has two lines.\n\nAnd another.\n\n> **Tutor:** Here.\nDone."
    turns = read(text).turns
    assert [turn.speaker for turn in turns] == ["student", "tutor"]
    assert "And another." in turns[0].text


@pytest.mark.parametrize(
    "line", ["My answers: x", "My try: x", "Context: x", "Constraints: x", "Edit: x", "Deadline: x", "Q1: x\nQ2: y"]
)
def test_lines_of_a_student_are_nobody(line):
    turns = read(f"Student: Find it.\n{line}\n\nTutor: Here.\n\nStudent: Thanks.\n\nTutor: Bye.").turns
    assert [turn.speaker for turn in turns] == ["student", "tutor", "student", "tutor"]
    assert line in turns[0].text


def test_thoughts_are_not_said():
    assert read("User: Find.\n\nAssistant: <think>maybe 3</think>It is 2.").turns[1].text == "It is 2."


def test_mathematics_is_no_label():
    assert unescaped_labels(r"\(d\) is the width") == r"\(d\) is the width"
    assert unescaped_labels("\\(a\\) one\n\\(b\\) two") == "(a) one\n(b) two"
