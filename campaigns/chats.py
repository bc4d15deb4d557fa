"""Transcripts as programs, people and bad disks leave them: dialogues in every form, and damaged ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .ledger import ROOT

FOLDERS = ("tests/grading/first", "tests/grading/second")
NAMES = (("User", "Assistant"), ("Student", "Tutor"), ("Ines", "Tutor"), ("Ada", "Bo"), ("用户", "助手"), ("Q", "A"))
FORMS = (
    "**{}:** {}", "**{}**: {}", "{}: {}", "### {}\n\n{}", "> **{}:** {}", "[{}]: {}", "{} said:\n{}", "[10:42] {}: {}",
    "🧑 {}: {}", "<|im_start|>{}\n{}<|im_end|>", "<{}>: {}", "- **{}**: {}", "1. {}: {}", "{} → {}", "{}：{}",
    "\\textbf{{{}:}} {}", "<h3>{}</h3><p>{}</p>", '<div data-message-author-role="{}">{}</div>',
    "## {} 2024-03-01 10:42\n{}",
)  # fmt: skip
SAID = (
    "What is the mean of $q^T k$?", "It is $\\mu^T \\mu$.", "**Answer (a):** $d m^2$", "Why?", "By linearity.", "x",
    "(a) $3$\n(b) $-1$", "Are you sure about part (b)?", "You're right, I missed that.\n\n$$E[z] = m^T m$$",
    "1\\. d", "```\nUser: none\n```", "2<sup>n</sup> of n<sub>t</sub>", "<think>hm</think>It is d.", "a < b",
    "Can you help me with problem 2?", "Of course! I'd be happy to help.", "---\n\n## 2. Second problem",
    "| a | b |\n|---|---|",
)  # fmt: skip
# What a reader may trip over, alone and thousands of times in a row.
PIECES = (
    "<script>", "<sup>", "</sup>", "<!--", "<p ", "<b>", "<think>", "</think>", "<|im_start|>user", "[INST]", "[/INST]",
    "> ", "**", "__", "# ", "User: ", "Tutor: ", "User:\n", "$$", "$", "\\[", "\\item[", "```\n", "~~~\n", "(", "[",
    "{", '{"role": "user", "content": "', '{"', '"a":', "null", "🤖 ", "🧑 ", "1. ", "- ", "(a) ", "---\n", "：",
    "&lt;", "&#", "\t", " ", "\n", "-", "_", "*", "\\", "'", ":", "a", "A ", "0", "10:42 ", "?\n\n", "|", "=", "</div>",
    "\u200d", "\ufeff", "\x00", "\x0b", "\x85", "\u2028", "\u202e", "\u0430", "\ud800", "\U0001f600", "Answer: ",
    "Question: ", "said", "[1] ",
)  # fmt: skip
HEAPS = (
    ("", "\n"), ("User: a\n\nTutor: ", "\n"), ("<p>", "</p>\n"), ("**User:** a\n**Tutor:** b\n", "\nx"), ("", "[x\n"),
    ("Hi\n\n```\n", "\n```\n"), ("Hi\n\n$$\n", "x\n$$\n"), ("User: a\nTutor: $", "x$\n"), ("\n", '{"a'),
)  # fmt: skip
KEYS = (
    "messages", "chat_messages", "conversations", "history", "data", "chunks", "mapping", "current_node", "children",
    "parent", "message", "author", "role", "sender", "from", "content", "parts", "text", "value", "title", "name",
    "type", "metadata", "recipient", "content_type", "prompt", "response", "question", "answer", "root", "0", "1",
)  # fmt: skip
LEAVES = (
    None, True, False, 0, -1, 1.5, 10**30, "", "user", "assistant", "system", "tool", "all", "text", "thoughts", "root",
    "0", "1", "\ud800", "\x00", "<p>a</p>", "x" * 300, "What is it?", "$d$",
)  # fmt: skip


@cache
def whole_ones() -> tuple[bytes, ...]:
    """The conversations of the tests, and the sample."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).iterdir()) if file.suffix != ".toml"]
    return tuple(file.read_bytes() for file in [*files, ROOT / "src/qkv/grading/sample.md"])


def marked(chance: random.Random) -> str:
    """A dialogue with speakers in one form, now and then in two."""
    names, form = chance.choice(NAMES), chance.choice(FORMS)
    turns = []
    for turn in range(chance.randint(1, 7)):
        style = form if chance.random() < 0.9 else chance.choice(FORMS)
        turns.append(style.format(names[turn % 2], chance.choice(SAID)))
    lead = chance.choice(("", "", "# Report\n\nSome words.\n\n", "<html><body>"))
    return lead + chance.choice(("\n\n", "\n", "\r\n\r\n")).join(turns)


def unmarked(chance: random.Random) -> str:
    return "\n\n".join(chance.choices(SAID, k=chance.randint(1, 7)))


def exported(chance: random.Random) -> str:
    """A dialogue as chat programs export it, of which some values are something else."""
    said = [(("user", "assistant")[turn % 2], chance.choice(SAID)) for turn in range(chance.randint(1, 6))]
    listed = [{"role": role, "content": text} for role, text in said]
    match chance.randrange(6):
        case 0:
            data: Any = listed
        case 1:
            data = {"title": "t", "messages": listed}
        case 2:
            data = {"name": "n", "chat_messages": [{"sender": role, "text": text} for role, text in said]}
        case 3:
            data = _tree(said)
        case 4:
            data = [_tree(said), {"conversations": [{"from": "human", "value": text} for _, text in said]}]
        case _:
            data = [{"prompt": "What?", "response": text} for _, text in said]
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        data = other_value(chance, data)
    if chance.random() < 0.1 and isinstance(data, list):
        return "\n".join(json.dumps(each) for each in data)
    return json.dumps(data, ensure_ascii=chance.random() < 0.5)


def _tree(said: list[tuple[str, str]]) -> dict[str, Any]:
    nodes: dict[str, Any] = {"root": {"message": None, "parent": None, "children": ["0"]}}
    for place, (role, text) in enumerate(said):
        message = {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}, "metadata": {}}
        up, down = str(place - 1) if place else "root", [str(place + 1)] if place + 1 < len(said) else []
        nodes[str(place)] = {"message": message, "parent": up, "children": down}
    return {"title": "t", "mapping": nodes, "current_node": str(len(said) - 1)}


def leaf(chance: random.Random) -> Any:
    return chance.choice(LEAVES)


def other_value(
    chance: random.Random, data: Any, leaf: Callable[[random.Random], Any] = leaf, keys: Sequence[str] = KEYS
) -> Any:
    """The same JSON but for one value or one name in it."""
    if not isinstance(data, dict | list) or not data or chance.random() < 0.1:
        return any_value(chance, leaf, keys)
    if isinstance(data, list):
        at = chance.randrange(len(data))
        return [*data[:at], other_value(chance, data[at], leaf, keys), *data[at + 1 :]]
    at = chance.choice(list(data))
    if chance.random() < 0.15:
        return {(chance.choice(keys) if key == at else key): value for key, value in data.items()}
    return {**data, at: other_value(chance, data[at], leaf, keys)}


def any_value(chance: random.Random, leaf: Callable[[random.Random], Any], keys: Sequence[str], level: int = 3) -> Any:
    at = chance.random()
    if level and at < 0.15:
        return {chance.choice(keys): any_value(chance, leaf, keys, level - 1) for _ in range(chance.randint(0, 4))}
    if level and at < 0.3:
        return [any_value(chance, leaf, keys, level - 1) for _ in range(chance.randint(0, 4))]
    return leaf(chance)


def deep(chance: random.Random) -> str:
    """Brackets within brackets, closed or not."""
    times = chance.choice((10, 200, 900, 990, 3000, 50_000))
    before, after = chance.choice((("[", "]"), ('{"messages":', "}"), ('[{"data":', "}]"), ('{"content":[', "]}")))
    inner = chance.choice(('{"role": "user", "content": "x"}', "", "1", '""'))
    text = before * times + inner + after * chance.choice((times, times - 1))
    return f'[{{"role": "user", "content": {text}}}]' if chance.random() < 0.3 else text


def heaped(chance: random.Random) -> str:
    """A few pieces over and over, so that what takes time by the square of a length is seen to."""
    piece = "".join(chance.choices(PIECES, k=chance.choice((1, 1, 2, 3))))
    text = piece * (chance.choice((500, 5_000, 60_000)) // len(piece))
    before, after = chance.choice(HEAPS)
    return before + text + after


def damaged(chance: random.Random, text: str) -> str:
    """Pieces dropped, doubled, put in, lines in another order, letters that only look the same."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(text))
        to = min(len(text), at + chance.choice((1, 5, 40, 400)))
        match chance.randrange(7):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:]
            case 2:
                text = text[:at] + "".join(chance.choices(PIECES, k=chance.randint(1, 3))) + text[at:]
            case 3:
                lines = text.split("\n")
                chance.shuffle(lines)
                text = "\n".join(lines)
            case 4:
                text = text[:at]
            case 5:
                text = text[:at] + marked(chance) + text[at:]
            case _:
                text = text.translate(str.maketrans("aeopc:*", chance.choice(("аеорс:*", "aeopc：＊", "äëöpç:∗"))))
    return text


def flipped(chance: random.Random, data: bytes) -> bytes:
    """Bytes that are others, and the wrong mark of an encoding in front."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.choice((0, 0xFF, 0xC0, 0x80, chance.randrange(256)))
    marks = (b"", b"", b"", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\xff\xfe\0\0", b"PK\x03\x04", b"\x1f\x8b")
    return chance.choice(marks) + bytes(changed)
