"""Chats into turns: speakers by structure and known names, files of every format, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from qkv.errors import OptionError
from qkv.reading import read_chat, read_chats
from qkv.reading.speakers import marks, role_of


def roles(text: str, name: str = "chat.txt") -> list[str]:
    return [turn.speaker for turn in read_chat(text, name=name).turns]


@pytest.mark.parametrize(
    ("student", "tutor"),
    [
        ("User:", "Assistant:"),
        ("**Student:**", "**Tutor:**"),
        ("### Me:", "### Claude:"),
        ("You said:", "ChatGPT said:"),
        ("User", "Gemini"),
        ("Human:", "DeepSeek:"),
        ("[10:32] Student:", "[10:33] Tutor:"),
        ("Student (follow-up):", "Grok (thinking):"),
        ("USER", "ASSISTANT"),
        ("Usuario:", "Asistente:"),
        ("用户：", "助手："),
        ("Q:", "A:"),
    ],
)
def test_known_names_are_speakers(student: str, tutor: str) -> None:
    text = f"{student}\nWhat is the mean?\n{tutor}\nIt is 5.\n\n{student}\nAnd the variance?\n{tutor}\nIt is 7.\n"
    chat = read_chat(text, name="chat.txt")
    assert [turn.speaker for turn in chat.turns] == ["student", "tutor", "student", "tutor"]
    assert [turn.text.strip() for turn in chat.turns][1] == "It is 5."
    assert not chat.findings


@pytest.mark.parametrize(
    "text",
    [
        "The width is d\nmodel\nand the number of heads h.\nmodel\nagain.",
        "Anna: What is the mean?\nBoris: It is 5.\n",
        "User: a single remark and no reply.",
        "Answer: 5\nNote: check it\nAnswer: 7\n",
        "Time: O(n)\nSpace: O(1)\n",
    ],
)
def test_speakers_are_not_invented(text: str) -> None:
    chat = read_chat(text, name="chat.txt")
    assert [turn.speaker for turn in chat.turns] == ["unknown"]
    assert [finding.code for finding in chat.findings] == ["speakers_unknown"]


def test_three_speakers() -> None:
    text = "Student A: Is it 3?\nStudent B: I get 5.\nTutor: It is 5.\nStudent A: Thanks."
    chat = read_chat(text, name="chat.txt")
    assert [turn.speaker for turn in chat.turns] == ["student", "student", "tutor", "student"]


def test_notes_are_apart() -> None:
    text = (
        "USER:\nSolve 2.\nASSISTANT:\nIt is 7.\nANNOTATION: it was right at once.\nUSER:\nThanks.\nASSISTANT:\nGladly."
    )
    assert roles(text) == ["student", "tutor", "note", "student", "tutor"]
    remark = "Student: x?\nTutor: first\nNote: an aside of one paragraph.\n\nand the tutor goes on\nStudent: ok"
    assert roles(remark) == ["student", "tutor", "note", "tutor", "student"]


def test_names_of_roles() -> None:
    assert role_of("Microsoft Copilot") is None or role_of("Copilot") == "tutor"
    assert [role_of(name) for name in ("Learner", "GPT-4o", "Comment", "System", "Zoe")] == [
        "student", "tutor", "note", "silent", None]  # fmt: skip
    assert marks("no names at all") == []


# --- exports --------------------------------------------------------------------------------------------------------


def message(role: str, text: str, time: float | str | None = None) -> dict:
    return {"role": role, "content": text, **({} if time is None else {"createdAt": time})}


def test_messages_are_ordered_by_time() -> None:
    data = [message("assistant", "second", "2025-03-01T10:01:00Z"), message("user", "first", "2025-03-01T10:00:00Z")]
    assert [turn.text for turn in read_chat(json.dumps(data)).turns] == ["first", "second"]
    unsorted = [message("user", "one"), message("assistant", "two")]
    assert [turn.text for turn in read_chat(json.dumps({"messages": unsorted})).turns] == ["one", "two"]


def test_a_tree_is_followed_to_its_current_node() -> None:
    def node(key: str, parent: str | None, role: str, text: str) -> dict:
        content = {"content_type": "text", "parts": [text]}
        return {"id": key, "parent": parent, "children": [], "message": {"author": {"role": role}, "content": content}}

    nodes = [
        node("r", None, "system", "rules"),
        node("u", "r", "user", "question"),
        node("old", "u", "assistant", "an answer that was edited away"),
        node("new", "u", "assistant", "the answer"),
    ]
    export = {"title": "t", "mapping": {each["id"]: each for each in nodes}, "current_node": "new"}
    chat = read_chat(json.dumps([export]))
    assert (chat.kind, [turn.text for turn in chat.turns]) == ("chatgpt", ["question", "the answer"])


def test_parts_that_were_not_said_are_left_out() -> None:
    content = [{"type": "thinking", "thinking": "secret"}, {"type": "text", "text": "It is 5."}, {"type": "tool_use"}]
    data = {
        "name": "n",
        "chat_messages": [{"sender": "human", "text": "?"}, {"sender": "assistant", "content": content}],
    }
    chat = read_chat(json.dumps(data))
    assert (chat.kind, [turn.text for turn in chat.turns]) == ("claude", ["?", "It is 5."])


def test_branches_are_resolved_to_the_last() -> None:
    def sent(key: str, before: str, sender: str, text: str, at: str) -> dict:
        return {"uuid": key, "parent_message_uuid": before, "sender": sender, "text": text, "created_at": at}

    messages = [
        sent("1", "root", "human", "question", "2025-01-01T00:00:01"),
        sent("2", "1", "assistant", "first try", "2025-01-01T00:00:02"),
        sent("3", "1", "assistant", "second try", "2025-01-01T00:00:03"),
    ]
    assert [turn.text for turn in read_chat(json.dumps({"chat_messages": messages})).turns] == [
        "question",
        "second try",
    ]


@pytest.mark.parametrize("data", [{"a": 1}, [], {}, [1, 2], {"rows": [{"x": 1}]}, "null"])
def test_other_json_is_refused_by_name(data: object) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    if text == "null":
        assert roles(text) == ["unknown"]
        return
    with pytest.raises(OptionError, match=r"messages|JSON"):
        read_chat(text, name="export.json")


def test_broken_json_is_refused() -> None:
    with pytest.raises(OptionError, match="cut off"):
        read_chat('[{"role": "user", "content": "hello"}, {"role": "assis', name="export.json")


@pytest.mark.parametrize("text", ['{"a": [1,2', "[1", "null", "hello", "{]"])
def test_a_file_that_is_named_as_json_is_json_or_refused(text: str) -> None:
    with pytest.raises(OptionError, match="JSON"):
        read_chat(text, name="Export.JSON")
    assert roles(text) == ["unknown"]  # the same text without such a name may be anything


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_web_page_with_roles() -> None:
    tex = '<span class="katex"><math><annotation encoding="application/x-tex">d^2</annotation></math></span>'
    page = (
        "<html><body><nav>menu</nav><div data-message-author-role='user'>Question?</div>"
        f"<div data-message-author-role='assistant'><p>It is {tex}.</p><ul><li>one</li></ul></div></body></html>"
    )
    chat = read_chat(page, name="page.html")
    assert [(turn.speaker, turn.text) for turn in chat.turns] == [
        ("student", "Question?"),
        ("tutor", "It is $d^2$.\n\n- one"),
    ]


def test_a_web_page_without_roles_is_one_text() -> None:
    page = "<!doctype html><html><body><p>User: a?</p><p>Assistant: b</p><script>evil()</script></body></html>"
    assert roles(page, "page.html") == ["student", "tutor"]
    assert "evil" not in read_chat(page, name="page.html").text


def pages(*bodies: str) -> str:
    return "\n\n\n".join(f"--- Page {at} ---\n{body}" for at, body in enumerate(bodies, 1))


def test_margins_of_pages_are_notes() -> None:
    body = "User\nquestion {0}\nClaude\nanswer {0}\n{0}/4\nscribbled remark {0}"
    chat = read_chat(pages(*(body.format(at) for at in range(1, 5))), name="log.txt")
    notes = [turn.text for turn in chat.turns if turn.speaker == "note"]
    assert chat.kind == "pdf"
    assert notes == [f"scribbled remark {at}" for at in range(1, 5)]
    assert all("remark" not in turn.text for turn in chat.turns if turn.speaker != "note")


def test_names_that_every_page_begins_with_stay() -> None:
    chat = read_chat(
        pages("User\nfirst question", "Claude\nan answer", "Claude\nwhich goes on", "User\nthanks"), name="log.txt"
    )
    assert [turn.speaker for turn in chat.turns] == ["student", "tutor", "student"]


def test_lines_printed_several_times_are_collapsed() -> None:
    bodies = [
        f"begin {name}\n" * 4 + f"It is\nIt is {name}:\n{name}:\n" + "words\n" * 9 for name in ("five", "six", "ten")
    ]
    chat = read_chat(pages(*bodies), name="log.txt")
    assert chat.text.split("\n") == [
        line for name in ("five", "six", "ten") for line in (f"begin {name}", f"It is {name}:", "words")
    ]


# --- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   \n\t\n"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="empty"):
        read_chat(text, name="chat.txt")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.txt"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
    with pytest.raises(OptionError, match="binary"):
        read_chat(path)


def test_a_large_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_bytes(b"User: hello\nAssistant: hello\n" * (50 * 1024 * 1024 // 29))
    start = time.process_time()
    with pytest.raises(OptionError, match="at most"):
        read_chat(path)
    assert time.process_time() - start < 0.5
    with pytest.raises(OptionError, match="at most"):
        read_chat("User: hello\n" * 500_000)


def test_a_missing_file_is_a_text() -> None:
    assert roles("no-such-file.md", "") == ["unknown"]
    with pytest.raises(OptionError, match=r"can be read|No such"):
        read_chat(Path("no-such-file.md"))


@pytest.mark.parametrize("sign", ["(", "[", "|", ">", "*", "_", "$", "\\[", "```\n", "- ", "\n", "1", "Q: "])
def test_no_text_takes_long(sign: str) -> None:
    start = time.process_time()
    read_chat("User: a\nAssistant: b\n" + sign * 20_000, name="chat.txt")
    assert time.process_time() - start < 4


# --- several chats, and branches by structure -----------------------------------------------------------------------


def _said(answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": answer}]


def test_every_chat_of_an_export_is_read_and_one_alone_keeps_its_name() -> None:
    export = [{"name": "One", "chat_messages": _said("1")}, {"name": "", "chat_messages": []},
              {"name": " ", "chat_messages": _said("2")}, {"name": "One", "chat_messages": _said("3")}]  # fmt: skip
    chats = read_chats(json.dumps(export), name="all.json")
    assert [chat.name for chat in chats] == ["all.json: One", "all.json: chat (1)", "all.json: One (2)"]
    assert [chat.turns[-1].text for chat in chats] == ["1", "2", "3"]
    with pytest.raises(OptionError, match="3 chats"):
        read_chat(json.dumps(export), name="all.json")
    assert [chat.name for chat in read_chats(json.dumps(export[:2]), name="all.json")] == ["all.json"]


@pytest.mark.parametrize("own", ["id", "uuid", "message_id"])
@pytest.mark.parametrize("before", ["parent", "parent_id", "parentMessageId", "parent_message_uuid"])
def test_an_answer_that_was_generated_again_takes_the_place_of_the_first(own: str, before: str) -> None:
    messages = [{own: "1", before: None, **_said("")[0]}, {own: "2", before: "1", **_said("first")[1]},
                {own: "3", before: "1", **_said("second")[1]}]  # fmt: skip
    assert [turn.text for turn in read_chat(json.dumps({"messages": messages})).turns] == ["What is it?", "second"]


def test_a_model_that_an_export_names_is_the_name_of_the_tutor() -> None:
    messages = _said("1")
    messages[1] |= {"model": "gpt-4o"}
    assert [turn.name for turn in read_chat(json.dumps(messages)).turns] == ["user", "gpt-4o"]
