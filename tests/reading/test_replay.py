"""Recordings: written without the text of the chat, read again to the same claims, refused where they do not fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import OptionError
from qkv.grading import from_bank, grade
from qkv.reading import AnswerClaim, ReplayReader, from_quotes, read_chat, record

CHAT = read_chat(
    "User: Please solve problem 1 and problem 2.\n\nAssistant: The mean is d μ². It is d μ² in a box, too.\n\n"
    "User: What is mu?\n\nAssistant: So (a) is $\\mu^T \\mu$, and softmax training fails because its gradient is zero.",
    name="talk.md",
)
QUESTIONS = from_bank(["1=scaling", "2=argmax"])
ROWS = [
    {"turn": 1, "question": "1", "part": "a", "quote": "d μ²", "claim": "d \\mu^2", "anchor": "label"},
    {"turn": 1, "question": "1", "part": "a", "quote": "d μ²", "claim": "d \\mu^2", "anchor": "box"},
    {"turn": 3, "question": "1", "part": "a", "quote": "$\\mu^T \\mu$", "claim": "\\mu^T\\mu", "anchor": "answer"},
    {"turn": 3, "question": "2", "part": "b", "quote": "softmax [...] zero", "claim": None, "anchor": "answer"},
]


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "talk.jsonl"
    record(path, CHAT, from_quotes(CHAT, QUESTIONS, ROWS), reader="a person")
    return path


def test_claims_come_back_as_they_were_written_and_are_judged(recorded):
    claims = from_quotes(CHAT, QUESTIONS, ROWS)
    assert ReplayReader(recorded).read(CHAT, QUESTIONS) == claims
    assert ReplayReader(recorded.parent).read(CHAT, QUESTIONS) == claims
    assert claims[0].span != claims[1].span
    assert claims[3].claim == claims[3].quote == CHAT.turns[3].text[slice(*claims[3].span)]
    assert grade(CHAT, QUESTIONS, ReplayReader(recorded)).rows[0].status == "needed correction"


def test_a_recording_has_no_text_of_the_chat(recorded):
    text = recorded.read_text("utf-8")
    assert "quote" not in text
    assert "gradient is zero" not in text
    assert json.loads(text.splitlines()[0])["reader"] == "a person"


def test_a_recorded_claim_has_to_be_supported(tmp_path):
    rows = [ROWS[0] | {"claim": "d^2 \\mu^2"}, ROWS[2] | {"claim": "d"}]
    record(tmp_path / "it.jsonl", CHAT, from_quotes(CHAT, QUESTIONS, rows), reader="a person")
    reader = ReplayReader(tmp_path / "it.jsonl")
    assert [claim.claim for claim in reader.read(CHAT, QUESTIONS)] == ["", ""]
    assert [(each.code, each.data["count"]) for each in reader.findings] == [("claims_unsupported", 2)]
    assert all(row.status == "unread" for row in grade(CHAT, QUESTIONS, reader).rows)


def test_a_recording_of_another_chat_is_refused(recorded):
    other = read_chat("User: problem 1\n\nAssistant: The mean is d.", name="talk.md")
    with pytest.raises(OptionError, match="of another chat") as refused:
        ReplayReader(recorded).read(other, QUESTIONS)
    assert "schema" not in str(refused.value)
    recorded.write_text(recorded.read_text().replace('"schema_version": 1', '"schema_version": 7', 1))
    with pytest.raises(OptionError, match="in schema 7, wanted one in schema 1") as refused:
        ReplayReader(recorded).read(CHAT, QUESTIONS)
    assert "another chat" not in str(refused.value)
    with pytest.raises(OptionError, match=r"other\.jsonl"):
        ReplayReader(recorded.parent).read(read_chat("User: a\nAssistant: b", name="other.md"), QUESTIONS)


@pytest.mark.parametrize(
    "change",
    [
        {"span": [0, 100_000]}, {"span": [-4, 2]}, {"span": [5, 5]}, {"span": [9, 5]}, {"span": 3}, {"turn": 99},
        {"turn": -1}, {"turn": "x"}, {"stance": "sure"}, {"anchor": 1}, {"claim": 3}, {"verdict": "right"},
    ],
)  # fmt: skip
def test_a_line_that_is_not_as_it_should_be_is_named(recorded, change):
    header, first, *rest = recorded.read_text("utf-8").splitlines()
    line = json.dumps(json.loads(first) | change)
    recorded.write_text("\n".join([header, line, *rest]), "utf-8")
    with pytest.raises(OptionError, match=r"line 2 of talk\.jsonl"):
        ReplayReader(recorded).read(CHAT, QUESTIONS)


@pytest.mark.parametrize("text", ["", "not json", "[1]", "3", '{"chat": 1}', "[" * 100_000, "\ud800"])
def test_a_file_that_is_no_recording_is_refused(tmp_path, text):
    (tmp_path / "it.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(OptionError, match="recording"):
        ReplayReader(tmp_path / "it.jsonl").read(CHAT, QUESTIONS)


@pytest.mark.parametrize("change", [{"quote": "d μ³"}, {"quote": ""}, {"part": "z"}, {"question": "9"}, {"turn": 9}])
def test_a_row_that_does_not_fit_the_chat_is_named(change):
    with pytest.raises(OptionError, match="row 2"):
        from_quotes(CHAT, QUESTIONS, [ROWS[0], ROWS[1] | change])


SPANS = st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda each: (each[0], each[0] + each[1]))


@given(span=SPANS, claim=st.text(max_size=20), anchor=st.sampled_from(["label", "box", "none"]))
def test_any_claim_in_words_comes_back(tmp_path_factory, span, claim, anchor):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    quote = CHAT.turns[3].text[slice(*span)]
    made = AnswerClaim(question="2", part="b", claim=claim, quote=quote, turn=3, span=span, anchor=anchor)
    record(path, CHAT, [made], reader="a person")
    # The answer of a part in words is taken from the quote, whatever a recording says.
    (found,) = ReplayReader(path).read(CHAT, QUESTIONS)
    assert found.model_copy(update={"claim": claim}) == made
    assert set(found.claim.split()) <= set(quote.split())
    assert claim or not found.claim
