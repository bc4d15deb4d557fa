"""Conversations are read whatever they were saved by, and nothing is dropped in silence."""

from __future__ import annotations

import json

import pytest

from qkv.errors import OptionError
from qkv.tutor.transcript import LONGEST_TURN, decoded, read, read_all

SAID = [
    ("student", "What is the mean of $x$?"),
    ("tutor", "It is $m$."),
    ("student", "Why?"),
    ("tutor", "By linearity."),
]


def spoken(text: str) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.text) for turn in read(text).turns]


MARKED = {
    "bold, colon inside": lambda who, text: f"**{who}:** {text}",
    "bold, colon outside": lambda who, text: f"**{who}**: {text}",
    "bold alone": lambda who, text: f"**{who}**\n\n{text}",
    "plain": lambda who, text: f"{who}: {text}",
    "heading": lambda who, text: f"### {who}\n\n{text}",
    "heading with a colon": lambda who, text: f"## {who}:\n{text}",
    "quotation": lambda who, text: f"> **{who}:** {text}",
    "brackets": lambda who, text: f"[{who}]: {text}",
    "said": lambda who, text: f"{who} said:\n{text}",
    "a time before": lambda who, text: f"[10:42] {who}: {text}",
    "a sign before": lambda who, text: f"🧑 {who}: {text}",
}
NAMES = [("User", "Assistant"), ("Student", "Tutor"), ("You", "Model"), ("Me", "AI tutor"), ("Student 1", "Bot")]
NAMES_OF_THEIR_OWN = [("User", "Zelda"), ("Ines", "Tutor"), ("Human", "Study Pal")]


@pytest.mark.parametrize("names", [*NAMES, *NAMES_OF_THEIR_OWN])
@pytest.mark.parametrize("style", MARKED)
def test_marked_speakers(style, names):
    who: dict[str, str] = dict(zip(("student", "tutor"), names, strict=True))
    text = "\n\n".join(MARKED[style](who[speaker], said) for speaker, said in SAID)
    assert spoken(text) == SAID


def test_two_names_that_nobody_knows():
    text = "\n\n".join(f"**{'Ada' if who == 'student' else 'Bo'}:** {said}" for who, said in SAID)
    assert spoken(text) == SAID


def test_words_of_an_explanation_are_no_speakers():
    text = "**User:** Find.\n\n**Tutor:** Here.\n\n**Answer:** 3\n\n**Time:** O(n)\n\n**Answer:** 4\n\n**User:** Bye."
    assert [speaker for speaker, _ in spoken(text)] == ["student", "tutor", "student"]
    assert "**Time:** O(n)" in read(text).turns[1].text


def test_labels_in_code_are_no_speakers():
    text = "User: show it\n\nAssistant: here\n```\nUser: nobody\nAssistant: nobody\n```\nUser: thanks"
    assert [speaker for speaker, _ in spoken(text)] == ["student", "tutor", "student"]


def test_a_heading_above_a_speaker_belongs_to_what_follows():
    text = "**User:** hello\n\n**Tutor:** hi\n\n---\n\n## 2. Second problem\n\n**User:** Solve it.\n\n**Tutor:** Done."
    assert read(text).turns[2].text.startswith("## 2. Second problem")
    assert "Second" not in read(text).turns[1].text


def test_headings_of_one_speaker_are_one_turn():
    text = "## User: 4. Title\n\nAsk.\n\n## Tutor: Solution\n\nOne.\n\n"
    text += "#### Tutor: 4(b) More\n\nTwo.\n\n## User: Next\n\nGo."
    turns = read(text).turns
    assert [turn.speaker for turn in turns] == ["student", "tutor", "student"]
    assert "One." in turns[1].text
    assert "Two." in turns[1].text


def test_what_stands_before_the_first_speaker_is_kept():
    chat = read("# My report\n\nSome words.\n\n**User:** a\n\n**Tutor:** b")
    assert chat.title == "My report"
    assert "Some words." in chat.preamble


UNMARKED = """Can you help me with an exercise on attention?

Of course! I'd be happy to help. Let me know what it says.

For now, just look at problem 2. What would be the mean of $z$?

#### Part (a)

Since expectation is linear,

$$E[z] = d m$$

**Answer (a):** $d m$

Your answer to part a looks off to me. Are you sure that $m$ is one number?

You're right, I missed that $m$ is a vector.

$$E[z] = m^T m$$

Let me know if you want to go on!"""


def test_without_marks_the_words_tell_who_speaks():
    chat = read(UNMARKED)
    assert [turn.speaker for turn in chat.turns] == ["student", "tutor", "student", "tutor", "student", "tutor"]
    assert chat.turns[4].text.startswith("Your answer")
    assert any("no speakers" in note for note in chat.notes)


def mapping(said):
    nodes = {"root": {"message": None, "parent": None, "children": ["0"]}}
    for place, (who, text) in enumerate(said):
        nodes[str(place)] = {
            "message": {
                "author": {"role": "user" if who == "student" else "assistant"},
                "content": {"content_type": "text", "parts": [text]},
            },
            "parent": str(place - 1) if place else "root",
            "children": [str(place + 1)] if place + 1 < len(said) else [],
        }
    # A branch that was given up, and something that the program said to itself.
    nodes["old"] = {"message": {"author": {"role": "assistant"}, "content": {"parts": ["old"]}}, "parent": "0",
                    "children": []}  # fmt: skip
    nodes["0"]["children"].insert(0, "old")
    return {"title": "chat", "mapping": nodes, "current_node": str(len(said) - 1)}


def role(who):
    return "user" if who == "student" else "assistant"


EXPORTS = {
    "tree": mapping,
    "tree in an archive": lambda said: [mapping(said)],
    "tree without a current node": lambda said: {**mapping(said), "current_node": None},
    "messages": lambda said: {"messages": [{"role": role(who), "content": text} for who, text in said]},
    "list": lambda said: [{"role": role(who), "content": text} for who, text in said],
    "parts": lambda said: [{"role": role(who), "content": [{"type": "text", "text": text}]} for who, text in said],
    "sender": lambda said: {
        "name": "n",
        "chat_messages": [{"sender": "human" if who == "student" else "assistant", "text": text} for who, text in said],
    },
    "from": lambda said: {
        "conversations": [{"from": "human" if who == "student" else "gpt", "value": text} for who, text in said]
    },
    "history": lambda said: {"history": [{"speaker": who, "text": text} for who, text in said]},
    "system": lambda said: [{"role": "system", "content": "be kind"}, *EXPORTS["list"](said)],
    "tool": lambda said: [*EXPORTS["list"](said)[:2], {"role": "tool", "content": "x"}, *EXPORTS["list"](said)[2:]],
}


@pytest.mark.parametrize("style", EXPORTS)
def test_exports(style):
    assert spoken(json.dumps(EXPORTS[style](SAID))) == SAID


def test_json_lines_and_pages_of_html():
    lines = "\n".join(json.dumps({"role": role(who), "content": text}) for who, text in SAID)
    assert spoken(lines) == SAID
    page = "<html><head><style>p {}</style></head><body>" + "".join(
        f"<h3>{'User' if who == 'student' else 'Assistant'}</h3><p>{text}</p><script>alert('User: no')</script>"
        for who, text in SAID
    )
    assert spoken(page + "</body></html>") == SAID
    assert spoken(json.dumps([{"role": "user", "content": "<p>a &lt; b</p>"}])) == [("student", "a < b")]


def test_several_conversations():
    text = json.dumps([{**mapping(SAID), "title": name} for name in ("first", "second")])
    assert [chat.title for chat in read_all(text)] == ["first", "second"]
    assert read(text, "second").title == read(text, 2).title == "second"
    with pytest.raises(OptionError, match="first"):
        read(text, "third")


def test_files(tmp_path):
    text = "\n\n".join(f"**{'User' if who == 'student' else 'Tutor'}:** {said}" for who, said in SAID)
    for name, data in {
        "utf-8": text.encode(),
        "mark": b"\xef\xbb\xbf" + text.encode(),
        "utf-16": text.encode("utf-16"),
        "windows": text.replace("\n", "\r\n").encode(),
        "old": text.replace("\n", "\r").encode(),
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert [(turn.speaker, turn.text) for turn in read(path).turns] == SAID
    (tmp_path / "latin").write_bytes("**User:** Müller?\n\n**Tutor:** Ja.".encode("latin-1"))
    assert any("replaced" in note for note in read(tmp_path / "latin").notes)


@pytest.mark.parametrize("content", [b"", b" \n\t\n", b"\0\1\2\3", b"%PDF-1.7 x", b"\x89PNG\r\n"])
def test_files_that_are_no_conversation(tmp_path, content):
    path = tmp_path / "chat"
    path.write_bytes(content)
    with pytest.raises(OptionError, match="transcript: got"):
        read(path)


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(OptionError, match="that is there"):
        read(tmp_path / "none.md")
    with pytest.raises(OptionError, match="folder"):
        read(tmp_path)


def test_what_is_too_long_is_cut_and_said():
    chat = read("User: " + "x" * (LONGEST_TURN + 5) + "\nTutor: y")
    assert len(chat.turns[0].text) == LONGEST_TURN
    assert any("turn 1 is cut" in note and "5" in note for note in chat.notes)


def test_what_is_not_utf8_is_replaced():
    text, notes = decoded(b"a\xffb")
    assert text == "a\N{REPLACEMENT CHARACTER}b"
    assert "1 characters" in notes[0]


@pytest.mark.parametrize("poison", ["(" * 50_000, "\\[" * 25_000, "x**" * 25_000, "> " * 25_000, "<p " * 20_000,
                                    "[" * 50_000, "{" * 50_000, "a:" * 900, "\n#" * 900, "```\n" * 999])  # fmt: skip
def test_poison_is_read(poison):
    chat = read(poison + "\n")
    assert chat.turns
