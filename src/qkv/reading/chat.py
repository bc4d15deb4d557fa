"""A chat as turns: who speaks, and what is said, in order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..documents import read_document
from ..documents.cleaning import clean
from ..documents.document import Draft
from ..documents.reading import MOST_BYTES
from ..errors import OptionError, complaint
from ..exercises.findings import Finding

if TYPE_CHECKING:
    from .exports import Export

Speaker: TypeAlias = Literal["student", "tutor", "note", "unknown"]
MOST_TURNS = 5_000
MOST_CHATS = 1_000  # of one export


@dataclass(frozen=True)
class Turn:
    """One turn: `speaker` is the role, `name` the name as written ("ChatGPT"), `time` as the export has it."""

    index: int
    speaker: Speaker
    text: str
    name: str = ""
    time: str = ""


@dataclass(frozen=True)
class Chat:
    """A chat. `kind` is the format ("plain", "pdf", "html", "chatgpt"); `findings` say what was noticed."""

    name: str
    kind: str
    turns: tuple[Turn, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def text(self) -> str:
        """The text of all turns."""
        return "\n\n".join(turn.text for turn in self.turns)

    def speakers(self) -> tuple[str, ...]:
        """The roles that speak, in order of appearance."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns))


_Said: TypeAlias = tuple[str, str, str, str]  # role, name, text, time


def read_chat(source: str | Path | bytes, name: str = "") -> Chat:
    """Read a chat: a path, bytes, or a text. `read_chats` reads an export of several.

    Args:
        source: A `Path`, a `str` that names a file, bytes, or a text.
        name: What the chat is called; its suffix says the format where bytes or a text are given.

    Returns:
        The chat. A speaker is "unknown" where neither the format nor a known name says who speaks.

    Raises:
        OptionError: The file is missing, empty, too large, binary, or JSON in which no chat or several are found.

    >>> [turn.speaker for turn in read_chat("User: What is Var(q^T k)?\\nAssistant: Answer (a): d").turns]
    ['student', 'tutor']
    """
    chats = read_chats(source, name)
    if len(chats) > 1:
        hint = "qkv grade and read_chats take all of them; else save each as a file"
        raise OptionError(complaint("chat", f"an export of {len(chats):,} chats", "one chat", hint))
    return chats[0]


def read_chats(source: str | Path | bytes, name: str = "") -> list[Chat]:
    """Read every chat of a file, as `read_chat` does; an export may have several, each with its title in its name.

    Args:
        source: A path, a text, or bytes.
        name: The name of the chat, where `source` is no path.

    Returns:
        The chats, in the order of the file.

    Raises:
        OptionError: the file cannot be read, is empty or too large, or is JSON without a chat.

    >>> said = '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]'
    >>> export = f'[{{"title": "One", "messages": {said}}}, {{"title": "Two", "messages": {said}}}]'
    >>> [chat.name for chat in read_chats(export, name="all.json")]
    ['all.json: One', 'all.json: Two']
    """
    is_text = isinstance(source, str) and not _is_file(source)
    if is_text and len(str(source)) > MOST_BYTES:
        raise OptionError(complaint("chat", f"a text of {len(str(source)):,} characters", f"at most {MOST_BYTES:,}"))
    if is_text and not str(source).strip():
        raise OptionError(complaint("chat", "an empty text", "a chat"))
    document = read_document(str(source), name=name or "chat") if is_text else read_document(cast(str, source), name)
    if not document.source.strip():
        raise OptionError(complaint("chat", f"an empty file {document.name!r}", "a chat"))
    from .exports import read_exports
    from .paged import is_paged
    from .webpage import is_webpage, read_webpage

    named = document.name.lower().endswith((".json", ".jsonl"))
    exports = read_exports(document.source, named) if document.kind in ("plain", "markdown") else None
    if exports is not None:
        titles: Counter[str] = Counter()
        return [_exported(document.name, each, titles if len(exports) > 1 else None) for each in exports[:MOST_CHATS]]
    if is_webpage(document.source):
        turns = read_webpage(document.source)
        kind, said = "html", [(role, "", _markdown(text), "") for role, text in turns]
        if [role for role, *_ in said] == ["unknown"]:
            said = _spoken(said[0][2])
    elif is_paged(document.source) or document.kind == "pdf":
        kind, said = "pdf", _from_pages(document.source)
    else:
        kind, said = document.kind, _spoken(document.text)
    return [_chat(document.name, kind, said)]


def _exported(name: str, export: Export, titles: Counter[str] | None) -> Chat:
    """One chat of an export; where there are several, its title goes into its name, with a number if it comes again."""
    if titles is not None:
        title = " ".join(export.title.split())[:80] or "chat"
        titles[title] += 1
        name = f"{name}: {title}{f' ({titles[title]})' if titles[title] > 1 or not export.title else ''}"
    said = [(each.role, each.name, _markdown(each.text), each.time) for each in export.messages]
    return _chat(name, export.program, said)


def _is_file(text: str) -> bool:
    try:
        return "\n" not in text and len(text) < 1000 and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _markdown(text: str) -> str:
    return read_document(text, name="message.md").text.strip() if text.strip() else ""


def _from_pages(source: str) -> list[_Said]:
    """The turns of a PDF's text; the notes of a page follow the turn in which the page ends."""
    from .paged import columns, read_pages

    text, notes = read_pages(source)
    marked = ""
    done = 0
    for at, (place, _) in enumerate(notes):
        marked += text[done:place] + f"{chr(0xE000 + at % 6000)}\n"
        done = place
    draft = Draft(marked + text[done:])
    clean(draft)
    found: list[_Said] = []
    for role, name, text, time in _merged(_spoken(draft.text)):
        ends = [ord(sign) - 0xE000 for sign in re.findall("[\ue000-\uf76f]", text)]
        found.append((role, name, columns(re.sub("[\ue000-\uf76f]\n?", "", text)), time))
        found += [("note", "", _cleaned(notes[at][1]), "") for at in ends if at < len(notes)]
    return found


def _merged(said: Iterable[_Said]) -> list[_Said]:
    """Turns with those joined that one speaker has in a row: a name is printed again on every page."""
    found: list[_Said] = []
    for role, name, text, time in said:
        if found and found[-1][:2] == (role, name):
            found[-1] = (role, name, f"{found[-1][2].rstrip()}\n{text.lstrip()}", time)
        else:
            found.append((role, name, text, time))
    return found


def _cleaned(text: str) -> str:
    draft = Draft(text)
    clean(draft)
    return draft.text


def _spoken(text: str) -> list[_Said]:
    """The turns of a text by the names in it; one of the role "unknown" where no two known speakers take turns."""
    from .speakers import marks

    found = marks(text)
    if not found:
        return [("unknown", "", text, "")]
    said: list[_Said] = [("unknown", "", text[: found[0].start], "")]
    for mark, following in zip(found, [*found[1:], None], strict=True):
        body = text[mark.said : following.start if following else len(text)]
        if mark.role == "note" and mark.weak and (after := re.search(r"\n[ ]*\n", body)):
            # A remark of one paragraph: the speaker before it goes on.
            said += [("note", mark.name, body[: after.start()], ""), (*said[-1][:2], body[after.end() :], "")]
        else:
            said.append((mark.role, mark.name, body, ""))
    return said


def _chat(name: str, kind: str, said: Iterable[_Said]) -> Chat:
    kept: list[Turn] = []
    roles = ("student", "tutor", "note", "unknown")
    for role, speaker, text, time in said:
        if text.strip() and role in roles and len(kept) < MOST_TURNS:
            kept.append(Turn(len(kept), cast(Speaker, role), _trimmed(text), speaker, time))
    if not kept:
        raise OptionError(complaint("chat", f"{name!r}, in which nothing is said", "a chat"))
    return Chat(name, kind, tuple(kept), tuple(_findings(kept)))


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def _findings(turns: Sequence[Turn]) -> Iterable[Finding]:
    spoken = {turn.speaker for turn in turns} - {"note"}
    if spoken == {"unknown"}:
        yield Finding("speakers_unknown")
    elif len(names := {turn.name for turn in turns if turn.speaker in ("student", "tutor") and turn.name}) > 2:
        yield Finding("several_speakers", {"names": ", ".join(sorted(names))})
