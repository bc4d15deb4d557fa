"""Transcripts that once took minutes, or ended in an error that was nobody's."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest

from qkv.errors import OptionError, OptionTypeError
from qkv.tutor import grade, read

SECONDS = 2.0  # of processor time; each of these takes hundredths


def taken(text: str) -> float:
    before = time.process_time()
    with suppress(OptionError):
        read(text)
    return time.process_time() - before


@pytest.mark.parametrize("white", ["\n", "\t\n", "-\n", "<"])
def test_white_lines_in_a_formula_do_not_take_minutes(white):
    assert taken("Hi\n\n$$\n" + white * 4000 + "x\n") < SECONDS


def test_tags_that_are_never_closed_do_not_take_hours():
    assert taken("<p>" + "<script>" * 50_000 + "\n") < SECONDS


def test_what_an_open_tag_holds_is_kept_and_what_a_closed_one_holds_is_not():
    chat = read("<p>User: <script>a</script>b</p>\n\nTutor: <script>c")
    assert [turn.text for turn in chat.turns] == ["b", "c"]


def test_blanks_before_broken_json_do_not_take_minutes():
    assert taken(" " * 60_000 + "[x\n") < SECONDS


def test_pages_of_nothing_within_a_turn_are_graded_at_once():
    chat = read("User: What is $E[q^T k]$?\n\nTutor: It is" + "\t\n" * 50_000 + "$d$.")
    assert len(chat.turns[1].text) < 200
    before = time.process_time()
    grade(chat)
    assert time.process_time() - before < SECONDS


@pytest.mark.parametrize("lists", [42, 200, 600])
def test_lists_within_lists_are_refused(lists):
    text = "[" * lists + '{"role": "user", "content": "x"}' + "]" * lists
    with pytest.raises(OptionError, match="who says them"):
        read(text)


@pytest.mark.parametrize("children", [3, [["a"]], {"b": 1}, "b", [None]])
def test_a_tree_of_messages_with_children_that_are_none(children):
    said = {"author": {"role": "user"}, "content": {"parts": ["Why?"]}}
    text = json.dumps({"mapping": {"a": {"message": said, "children": children}, "b": 5}})
    assert [turn.text for turn in read(text).turns] == ["Why?"]


def test_a_title_that_is_no_text_is_no_title():
    assert read(json.dumps({"title": [["x"]], "messages": [{"role": "user", "content": "Why?"}]})).title == ""


def test_halves_of_characters_are_replaced_so_that_what_was_read_can_be_saved():
    for text in (json.dumps([{"role": "user", "content": "a\ud800b"}]), "User: a\ud800b\nTutor: c"):
        chat = read(text)
        assert chat.turns[0].text == "a\N{REPLACEMENT CHARACTER}b"
        assert any("halves" in note for note in chat.notes)


@pytest.mark.parametrize("conversation", [1.5, True, ["t"]])
def test_a_conversation_is_a_title_or_a_number(conversation):
    with pytest.raises(OptionTypeError, match="conversation: got"):
        read("User: a\n\nTutor: b", conversation)


def test_a_conversation_that_is_not_there():
    for conversation in ("9" * 5000, 10**5000, -(10**5000), 0, -1, 2, "x" * 9999, "\ud800"):
        with pytest.raises(OptionError, match="conversation: got") as caught:
            read("User: a\n\nTutor: b", conversation)
        assert len(str(caught.value).encode()) < 300
