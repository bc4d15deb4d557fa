"""Chats as texts and files: turns, or one error that says what is wrong with them, at once."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from qkv.errors import OptionError
from qkv.grading import GradeReport, grade
from qkv.reading import Chat, read_chat

from .campaign import Batch, Campaign
from .chats import PIECES, damaged, deep, exported, flipped, heaped, marked, unmarked, whole_ones
from .trials import Trial, gathered, try_all

SECONDS = 4.0  # for conversations that are graded too
LONGEST_WORDS = 2000  # of an error


def drawn(chance: random.Random, pool: list[Any]) -> Trial:
    at = chance.random()
    if at < 0.002:
        text = chance.choice(whole_ones()).decode()
        if chance.random() < 0.8:
            return Trial("grade", damaged(chance, text))
        at = chance.randrange(len(text))
        return Trial("grade", text[:at] + heaped(chance) + text[at:])
    if at < 0.012:
        return Trial("file", flipped(chance, chance.choice(whole_ones())))
    if at < 0.05:
        return Trial("file", flipped(chance, small(chance).encode(chance.choice(("utf-8", "utf-16")), "replace")))
    if at < 0.09:
        lines = chance.choice(whole_ones()).decode().split("\n")
        first = chance.randrange(len(lines))
        return Trial("text", damaged(chance, "\n".join(lines[first : first + chance.randint(1, 60)])))
    if at < 0.094:
        return Trial("text", heaped(chance))
    if at < 0.097:
        return Trial("text", deep(chance))
    known = [text for text in chance.choices(pool, k=3) if isinstance(text, str) and len(text) < 3000] if pool else []
    if known and at < 0.45:
        return Trial("text", damaged(chance, chance.choice(known)))
    if at < 0.55:
        return Trial("text", "".join(chance.choices(PIECES, k=chance.randint(0, 20))))
    text = small(chance)
    return Trial("text", text if chance.random() < 0.3 else damaged(chance, text))


def small(chance: random.Random) -> str:
    return chance.choice((marked, exported, unmarked, exported))(chance)


def kept(trial: Trial, folder: Path) -> bool:
    """Whether it was read. Anything but what is promised is raised."""
    try:
        if trial.kind == "file":
            path = folder / "chat"
            path.write_bytes(trial.given)
            found = read_chat(path)
        else:
            found = read_chat(trial.given.encode("utf-8", "replace"), name="chat")
    except OptionError as refused:
        words = str(refused)
    else:
        check(found)
        if trial.kind == "grade":
            assert isinstance(grade(found), GradeReport)
        return True
    assert words.startswith(("chat: got", "file: got")), words
    assert len(words) < LONGEST_WORDS, words
    words.encode()
    return False


def check(chat: Chat) -> None:
    """Turns that are numbered and say something that can be printed and saved."""
    assert chat.turns
    for place, turn in enumerate(chat.turns):
        assert turn.index == place
        assert turn.speaker in ("student", "tutor", "note", "unknown")
        assert turn.text.strip()
        (turn.text + turn.name + turn.time).encode()
    "".join((chat.name, chat.kind, *(finding.words() for finding in chat.findings))).encode()


def run(seed: int, count: int) -> Batch:
    # In memory if possible: a disk would take most of the time.
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as name:
        folder = Path(name)
        return try_all(
            seed,
            count,
            drawn,
            lambda trial: kept(trial, folder),
            ("reading", "documents"),
            SECONDS,
            untraced=("grade",),
        )


CAMPAIGN = Campaign(
    about="read_chat returns numbered, printable turns or an error that names the chat; grade a report",
    unit="transcripts",
    goal=1_000_000,
    batch=20_000,
    run=run,
    gather=gathered,
)
