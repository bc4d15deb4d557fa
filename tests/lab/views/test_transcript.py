"""Transcript: the page's rows are the grader's, its marks stand where the claims do, and a chat is only text."""

import contextlib
import io
import json
import re
import time

import jsonschema
import pytest

from qkv.grading import grade
from qkv.lab.view import Cancelled, Work
from qkv.lab.views.transcript import MOST_TURNS, VIEW, sample
from qkv.lab.worker import answer
from qkv.reading import read_chat
from tests.helpers.labelled_chats import FOLDERS

SCHEMA = jsonschema.Draft202012Validator(
    {"type": "object", "properties": dict(VIEW.schema), "required": list(VIEW.schema), "additionalProperties": False}
)


def asked(work=None, **texts):
    """The answer of the view, which every test holds to its schema."""
    found = answer(VIEW, texts, work or Work(seconds=60), draw=True)
    if found.result is not None:
        json.dumps(found.result, allow_nan=False)
        SCHEMA.validate(found.result)
        assert not re.search(r"<(script|style|img|iframe)|<[^>]*\s(style|on\w+)=", found.html)
    return found


def own(chat, **more):
    found = asked(chat=chat, **more)
    assert not found.problems
    return found


def test_the_sample_has_one_of_each():
    found = asked().result
    told = [(row["label"], row["status"], row["first_right"], row["found_by"]) for row in found["rows"]]
    assert told == [
        ("1(a)", "needed correction", 7, "student"),
        ("1(b)", "one shot", 5, None),
        ("1(c)", "never right", None, None),
    ]
    assert found["tally"] == {"parts": 3, "one_shot": 1, "needed_correction": 1, "never_right": 1, "unread": 0}
    assert [each["name"] for row in found["rows"] for each in row["mistakes"]] == [
        "mean read as a scalar", "divided by the variance"
    ]  # fmt: skip
    assert [(rule["kept"], rule["broken"]) for rule in found["rules"]] == [("no code", False), ("be short", False)]


@pytest.mark.parametrize("name", ["first/04-decoding-headings.md", "first/09-by-hand-boxed.md"])
def test_rows_are_the_grader_s_and_marks_stand_in_the_turns(name):
    text = (FOLDERS[0].parent / name).read_text(encoding="utf-8")
    report = grade(read_chat(text.encode(), name="chat"))
    found = own(text).result
    assert [(row["label"], row["status"]) for row in found["rows"]] == [(row.label, row.status) for row in report.rows]
    for turn, said in zip(found["turns"], report.chat.turns, strict=True):
        assert "".join(piece["text"] for piece in turn["pieces"]) == said.text
    claims = {claim["id"]: claim for row in found["rows"] for claim in row["claims"]}
    marked = [(each, turn["index"]) for turn in found["turns"] for piece in turn["pieces"] for each in piece["claims"]]
    assert {each for each, _ in marked} == set(claims)
    assert all(claims[each]["turn"] == index for each, index in marked)


def test_the_questions_of_a_sheet():
    text = "User: Solve problem 2.\n\nAssistant: Answer: (1/2, 1/2)"
    assert own(text).result["tally"]["parts"] == 0
    found = own(text, sheet="## Problem 2\n\nCompute the softmax of the scores $(0, 0)$.").result
    assert [row["label"] for row in found["rows"]] == ["2"]
    assert "sheet" in asked(chat=text, sheet="Thanks for the fish.").problems


def test_markup_in_a_chat_is_text():
    said = "what is <script>alert(1)</script> & <img src=x onerror=y>? &lt;script&gt;alert(2)&lt;/script&gt; </div>"
    found = own(f"Student: {said}\n\nTutor: {said} $q^T k$")
    assert found.html.count("<div") == found.html.count("</div")


def test_a_path_is_a_text_and_nothing_is_a_complaint(tmp_path):
    secret = tmp_path / "chat.md"
    secret.write_text(sample(), encoding="utf-8")
    assert own(str(secret)).result["tally"]["parts"] == 0
    assert "paste one" in asked(chat=" \n").problems["chat"]
    assert "JSON that is broken" in asked(chat='{"messages":["a", "b"').problems["chat"]
    assert "at most 400000" in asked(chat="x" * 400_001).problems["chat"]


def test_long_chats_are_cut_and_it_is_said():
    long = own("Student: why?\n\nTutor: because.\n\n" * MOST_TURNS).result
    assert (len(long["turns"]), long["turns_in_all"]) == (MOST_TURNS, 2 * MOST_TURNS)


@pytest.mark.parametrize("texts", [{}, {"chat": sample().replace("s = d", "s = 'd' \\ \"\n")}])
def test_the_program_prints_the_rows(texts):
    found = asked(**texts)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(found.python, "program", "exec"), {})
    wanted = [f"{row['label']} {row['status']}" for row in found.result["rows"]]
    lines = [line for line in said.getvalue().splitlines() if not line.startswith(" ")]
    assert [" ".join(line.split()[:-2]) for line in lines] == wanted


def test_progress_is_told_and_a_reader_who_leaves_ends_it():
    said = []
    asked(Work(told=lambda *words: said.append(words)))
    assert any(words[0] == "judging claims" for words in said)
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        asked(Work(seconds=0.0), chat=sample())
    assert time.monotonic() - begun < 5
