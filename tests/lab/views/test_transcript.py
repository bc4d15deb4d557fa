"""Transcript: the page's ledger is the grader's, its marks stand where the claims do, and a chat is only text."""

import contextlib
import io
import json
import re
import time
from pathlib import Path

import jsonschema
import pytest

from qkv import tutor
from qkv.lab.view import Cancelled, Work
from qkv.lab.views.transcript import MOST_CONVERSATIONS, MOST_TURNS, VIEW
from qkv.lab.worker import answer
from qkv.tutor.sample import sample
from qkv.tutor.transcript import read_text

CHATS = Path(__file__).parents[2] / "tutor"
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
    found = asked(source="own", chat=chat, **more)
    assert not found.problems
    return found


def test_the_sample_has_one_of_each():
    found = asked().result
    (chat,) = found["conversations"]
    told = [(row["part"], row["status"], row["first_right_turn"], row["found_by"]) for row in chat["rows"]]
    assert told == [
        ("a", "needed correction", 4, "student"),
        ("b", "one shot", 2, None),
        ("c", "never right", None, None),
    ]
    assert found["tally"] == {"parts": 3, "one_shot": 1, "corrected": 1, "never": 1, "unread": 0}
    assert [each["name"] for row in chat["rows"] for each in row["misconceptions"]] == [
        "mean read as a scalar", "divided by the variance"
    ]  # fmt: skip
    assert [(rule["rule"], rule["broken"]) for rule in chat["rules"]] == [("no code", False), ("be short", False)]


@pytest.mark.parametrize(
    "name", ["transcripts/04-decoding-headings.md", "transcripts/07-heads-html.json", "second/06-unmarked.txt"]
)
def test_rows_are_the_grader_s_and_marks_stand_in_the_turns(name):
    text = (CHATS / name).read_text(encoding="utf-8")
    ledger = tutor.grade(read_text(text)[0])
    (chat,) = own(text).result["conversations"]
    wanted = ledger.as_dict()
    for row, graded in zip(chat["rows"], wanted["rows"], strict=True):
        for key in ("problem", "part", "status", "first_right_turn", "found_by", "given_up", "stood_firm", "family"):
            assert row[key] == graded[key]
        assert [{key: claim[key] for key in ("turn", "text", "kind", "reason")} for claim in row["claims"]] == graded[
            "claims"
        ]
    assert chat["notes"] == wanted["notes"]
    for turn, said in zip(chat["turns"], ledger.transcript.turns, strict=True):
        assert "".join(piece["text"] for piece in turn["pieces"]) == said.text
    turn_of = {claim["id"]: claim["turn"] for row in chat["rows"] for claim in row["claims"]}
    marked = [(each, turn["index"]) for turn in chat["turns"] for piece in turn["pieces"] for each in piece["claims"]]
    assert all(turn_of[each] == index for each, index in marked)
    # Nearly every claim is found in its turn; a reading that was put together is not.
    assert len(marked) >= 0.8 * len(turn_of)


def test_markup_in_a_chat_is_text():
    said = "what is <script>alert(1)</script> & <img src=x onerror=y>? &lt;script&gt;alert(2)&lt;/script&gt; </div>"
    found = own(f"Student: {said}\n\nTutor: {said} $q^T k$")
    assert found.html.count("&lt;script&gt;alert(2)&lt;/script&gt;") == 2
    assert found.html.count("<div") == found.html.count("</div")


def test_a_path_is_a_text_and_nothing_is_a_complaint(tmp_path):
    secret = tmp_path / "chat.md"
    secret.write_text(sample(), encoding="utf-8")
    assert own(str(secret)).result["tally"]["parts"] == 0
    assert "paste one" in asked(source="own", chat=" \n").problems["chat"]
    assert "JSON that is broken" in asked(source="own", chat='{"messages":[').problems["chat"]
    assert "at most 400000" in asked(source="own", chat="x" * 400_001).problems["chat"]


def test_archives_and_long_chats_are_cut_and_it_is_said():
    one = [{"role": "user", "content": "What is E[q^T k]?"}, {"role": "assistant", "content": "It is 0."}]
    archive = [{"title": f"chat {place}", "messages": one} for place in range(MOST_CONVERSATIONS + 3)]
    found = own(json.dumps(archive)).result
    assert len(found["conversations"]) == MOST_CONVERSATIONS
    assert found["left_out"] == 3
    long = own("Student: why?\n\nTutor: because.\n\n" * MOST_TURNS).result["conversations"][0]
    assert (len(long["turns"]), long["turns_in_all"]) == (MOST_TURNS, 2 * MOST_TURNS)


@pytest.mark.parametrize("texts", [{}, {"source": "own", "chat": sample().replace("s = d", "s = 'd' \\ \"\n")}])
def test_the_program_prints_the_rows(texts):
    found = asked(**texts)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(found.python, "program", "exec"), {})
    wanted = []
    for row in found.result["conversations"][0]["rows"]:
        wanted.append(f"{row['problem']} {row['part']} {row['status']} {row['first_right_turn']} {row['found_by']}")
        wanted += [f"    {claim['turn']} {claim['kind']} {claim['text']!r}" for claim in row["claims"]]
    assert said.getvalue().splitlines() == wanted


def test_progress_is_told_and_a_reader_who_leaves_ends_it():
    said = []
    asked(Work(told=lambda *words: said.append(words)))
    assert ("judging what was said, turn", 3, 5) in said
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        asked(Work(seconds=0.3), source="own", chat=sample() * 100)
    assert time.monotonic() - begun < 5
