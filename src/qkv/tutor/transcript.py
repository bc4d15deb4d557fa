"""A conversation of a student with a tutor: read from a file or a text, whatever it was saved by."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError, OptionTypeError, complaint

LARGEST = 64 * 2**20  # bytes of a file that are read
LONGEST_TURN = 200_000  # characters of a turn that are kept
MOST_TURNS = 20_000
MOST_LINES = 500_000  # of a text that is no export
WANTED = 'begin each turn on a line of its own with who says it, as in "Student: …" and "Tutor: …"'


# Half of a character, which JSON can escape and no text can be saved with.
_HALF = re.compile("[\ud800-\udfff]")
# More white than a page has, which whoever looks for the beginning of a sentence would go over again and again.
_WHITE = re.compile(r"(\s{100})\s+")
_SOLUTION = re.compile(r"^[ \t#*_>-]*solutions?\b[ \t]*\d*[*_]*[ \t]*(?:[:.]|$)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """What one speaker says at a time: `index` counts from 1 over both, `speaker` is "student" or "tutor"."""

    index: int
    speaker: str
    text: str
    name: str = ""


@dataclass(frozen=True)
class Transcript:
    """The turns in order; `preamble` is what stands before the first, `notes` say what was left out or replaced."""

    turns: tuple[Turn, ...]
    title: str = ""
    format: str = "marked"
    preamble: str = ""
    notes: tuple[str, ...] = ()

    def of(self, speaker: str) -> tuple[Turn, ...]:
        """The turns of one speaker."""
        return tuple(turn for turn in self.turns if turn.speaker == speaker)


def read(source: str | os.PathLike[str], conversation: str | int | None = None) -> Transcript:
    """One conversation: from a file where `source` is a path, else from the text itself.

    An archive may hold several: `conversation` is a title or a number from 1, and the first is taken without it.

    >>> [turn.speaker for turn in read("Student: What is E[q^T k]?\\n\\nTutor: It is mu^T mu.").turns]
    ['student', 'tutor']
    """
    if not (conversation is None or isinstance(conversation, str | int)) or isinstance(conversation, bool):
        raise OptionTypeError(complaint("conversation", repr(conversation), "a title or a number from 1"))
    found = read_all(source)
    if conversation is None:
        return found[0]
    number = _number(conversation)
    wanted = "" if isinstance(conversation, int) else conversation.casefold().strip()
    for place, each in enumerate(found, 1):
        if place == number or (number is None and each.title.casefold().strip() == wanted):
            return each
    titles = ", ".join(repr(each.title[:60] or f"number {place}") for place, each in enumerate(found[:12], 1))
    given = f"number {number}" if number is not None else repr(wanted[:60])
    raise OptionError(complaint("conversation", given, f"one of the {len(found)} there are", titles))


def _number(conversation: str | int) -> int | None:
    """Which conversation is meant by its number, 0 where it is beyond all; None for a title."""
    if isinstance(conversation, str):
        if not conversation.isdecimal():
            return None
        return int(conversation) if len(conversation) < 10 else 0
    return conversation if -1 <= conversation < 10**9 else 0


def read_all(source: str | os.PathLike[str]) -> tuple[Transcript, ...]:
    """Every conversation of a file or text."""
    if isinstance(source, str) and (not source.strip() or "\n" in source or not _is_path(source)):
        return read_text(source)
    if not isinstance(source, str | os.PathLike):
        raise OptionTypeError(complaint("transcript", f"a {type(source).__name__}", "a path or a text"))
    path = Path(source)
    if not _is_there(path):
        raise OptionError(complaint("transcript", repr(str(source)), "a file that is there", "check the name"))
    if path.is_dir():
        raise OptionError(complaint("transcript", f"the folder {str(source)!r}", "a file", "name one file in it"))
    if not path.is_file():
        raise OptionError(complaint("transcript", repr(str(source)), "an ordinary file"))
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        why = (error.strerror or "it cannot be opened").lower()
        raise OptionError(complaint("transcript", repr(str(source)), "a file that can be read", why)) from None
    text, notes = decoded(data[:LARGEST])
    if len(data) > LARGEST:
        left = path.stat().st_size - LARGEST
        notes = (*notes, f"the file is larger than {LARGEST:,} bytes: the last {left:,} were not read")
    return read_text(text, notes)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_path(text: str) -> bool:
    """Whether a single line without a line break names a file; what is too long for a name is a text."""
    try:
        if len(text) >= 4096 or Path(text).exists():
            return len(text) < 4096
        return not re.search(r"[\s:]", text.strip()) and text.lstrip()[0] not in "{["
    except (OSError, ValueError):
        return False


def decoded(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Bytes as text: UTF-8, UTF-16 or UTF-32 by their marks; what cannot be read is replaced, and a note says so."""
    for mark, name in ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"),
                       (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig")):  # fmt: skip
        if data.startswith(mark):
            text = data.decode(name, errors="replace")
            break
    else:
        sample = data[:65536]
        if b"\0" in sample or sample.startswith((b"%PDF", b"PK\x03\x04", b"\x89PNG", b"\x1f\x8b")):
            hint = "save the conversation as Markdown, plain text or JSON"
            raise OptionError(complaint("transcript", "a binary file", "a text", hint))
        text = data.decode("utf-8", errors="replace")
    lost = text.count("\N{REPLACEMENT CHARACTER}")
    notes = (f"{lost:,} characters are not UTF-8 and were replaced",) if lost else ()
    return text.replace("\r\n", "\n").replace("\r", "\n"), notes


def read_text(text: str, notes: tuple[str, ...] = ()) -> tuple[Transcript, ...]:
    """Every conversation of a text: a JSON export, marked speakers, or paragraphs without any marks."""
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise OptionError(complaint("transcript", "an empty text", "a conversation"))
    from .exports_of_chats import conversations

    exported = conversations(text)
    if exported is not None:
        return _with_turns(finished(turns, title, "export", "", notes + more) for title, turns, more in exported)
    from . import recurring
    from .dialects import with_names
    from .markup import untagged
    from .speakers import labelled
    from .unmarked import alternating

    plain, more = first_lines(untagged(with_names(text)))
    notes += more
    marked = labelled(plain)
    if marked is None and (renamed := recurring.named(plain)) is not None:
        marked = labelled(renamed)
    if marked is not None:
        preamble, turns = marked
        return _with_turns([finished(turns, first_heading(preamble), "marked", preamble, notes)])
    turns, more = alternating(plain)
    # A title, and then one long text: nobody asks and nobody answers.
    titled = len(turns) == 2 and len(turns[0][1]) < 80 and "?" not in turns[0][1] and len(turns[1][1]) > 2000
    if titled or (len(_SOLUTION.findall(plain)) > 1 and len(turns) < 6):
        more = (*more, "it looks like a worksheet, and not like a conversation")
    both = len({speaker for speaker, _, _ in turns}) > 1
    said = "who says what was told from the words" if both else WANTED
    guessed = (*notes, f"no speakers are marked: {said}", *more)
    return _with_turns([finished(turns, first_heading(plain), "unmarked", plain[:LONGEST_TURN], guessed)])


def _with_turns(found: Iterable[Transcript]) -> tuple[Transcript, ...]:
    kept = tuple(each for each in found if each.turns)
    if not kept:
        raise OptionError(complaint("transcript", "a text in which nobody says anything", "a conversation"))
    return kept


def first_lines(text: str) -> tuple[str, tuple[str, ...]]:
    """As many lines as are read, and a note where there are more."""
    lines = text.split("\n", MOST_LINES)
    if len(lines) <= MOST_LINES:
        return text, ()
    left = lines.pop().count("\n") + 1
    return "\n".join(lines), (f"only the first {MOST_LINES:,} lines were read: {left:,} were left out",)


def finished(
    turns: list[tuple[str, str, str]], title: str, kind: str, preamble: str, notes: tuple[str, ...]
) -> Transcript:
    """Turns numbered, and cut where one is too long."""
    from .dialects import unescaped_labels, without_thoughts

    kept: list[Turn] = []
    halves = 0

    def whole(text: str) -> str:
        nonlocal halves
        text, found = _HALF.subn("\N{REPLACEMENT CHARACTER}", text)
        halves += found
        return _WHITE.sub(r"\1", text)

    title, preamble = whole(title), whole(preamble)
    for speaker, text, name in turns:
        text, name = whole(unescaped_labels(without_thoughts(text)).strip()), whole(name)
        if not text:
            continue
        index = len(kept) + 1
        if index > MOST_TURNS:
            notes = (*notes, f"only the first {MOST_TURNS:,} turns were read, of {len(turns):,}")
            break
        if len(text) > LONGEST_TURN:
            left = len(text) - LONGEST_TURN
            notes = (*notes, f"turn {index} is cut: {left:,} of its {len(text):,} characters were left out")
            text = text[:LONGEST_TURN]
        kept.append(Turn(index, speaker, text, name))
    if halves:
        notes = (*notes, f"{halves:,} halves of characters were replaced")
    return Transcript(tuple(kept), title, kind, preamble, notes)


def first_heading(text: str) -> str:
    """The heading that a text begins with, or nothing."""
    first = text.strip()[:200].split("\n", 1)[0]
    return first.strip("# *").strip() if first.startswith("#") else ""
