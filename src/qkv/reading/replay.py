"""Recorded readings: claims with their spans as JSON Lines, without the text of the chat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import OptionError, complaint
from ..exercises.findings import Finding
from ..exercises.record import Exercise
from .chat import Chat
from .claims import Anchor, AnswerClaim, Stance
from .support import Admission, located

SCHEMA_VERSION = 1
LARGEST = 16 * 1024 * 1024  # bytes of a recording


class _Recorded(BaseModel):
    """A line of a recording: as `AnswerClaim`, without the quote; the claim is null where it is the quote itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    part: str
    turn: int = Field(ge=0)
    span: tuple[int, int]
    claim: str | None
    stance: Stance = "asserted"
    anchor: Anchor = "none"


class ReplayReader:
    """A reader that takes recorded claims; each goes through the checks that a model's claims go through.

    Args:
        path: A recording, or a folder with one for each chat, named as the chat: `log.md.jsonl` or `log.jsonl`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.findings: list[Finding] = []

    def read(self, chat: Chat, exercises: Mapping[str, Exercise]) -> list[AnswerClaim]:
        """The recorded claims of a chat, in order; those that their quotes do not support have no text.

        Raises:
            OptionError: There is no recording, it belongs to another chat, or a line of it is not as it should be.
        """
        admission = Admission(exercises)
        found = [admission.admitted(claim) for claim in self._claims(chat)]
        self.findings = admission.findings()
        return sorted((claim for claim in found if claim), key=lambda claim: (claim.turn, claim.span))

    def _claims(self, chat: Chat) -> Iterable[AnswerClaim]:
        path = self._file(chat)
        header, *lines = _lines(path)
        if header.get("schema_version") != SCHEMA_VERSION:
            given = repr(header.get("schema_version"))
            raise OptionError(complaint(f"schema_version of {path.name}", given, str(SCHEMA_VERSION)))
        if header.get("chat") != fingerprint(chat):
            hint = "record the claims again: the chat, or how it is divided into turns, has changed"
            raise OptionError(complaint("recording", f"{path.name} of another chat", f"one of {chat.name!r}", hint))
        for number, line in enumerate(lines, 2):
            where = f"line {number} of {path.name}"
            try:
                row = _Recorded.model_validate(line)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"]))
                raise OptionError(complaint(where, f"{place}: {first.get('input')!r}", first["msg"])) from None
            text = chat.turns[row.turn].text if row.turn < len(chat.turns) else ""
            if not 0 <= row.span[0] < row.span[1] <= len(text):
                given = f"span {list(row.span)} of turn {row.turn}"
                raise OptionError(complaint(where, given, f"a span within a turn, of which {len(chat.turns)} exist"))
            quote = text[slice(*row.span)]
            said = quote if row.claim is None else row.claim
            yield AnswerClaim.model_validate(row.model_dump() | {"claim": said, "quote": quote})

    def _file(self, chat: Chat) -> Path:
        names = [f"{chat.name}.jsonl", f"{Path(chat.name).stem}.jsonl"] if self.path.is_dir() else [""]
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        looked = f"no file {' or '.join(filter(None, names)) or self.path.name!r}"
        raise OptionError(complaint("recording", looked, f"a recording of {chat.name!r}"))


def fingerprint(chat: Chat) -> str:
    """What a recording names its chat by: the SHA-256 of the text of all turns."""
    return hashlib.sha256(chat.text.encode("utf-8", "surrogatepass")).hexdigest()


def record(path: str | Path, chat: Chat, claims: Iterable[AnswerClaim], *, reader: str) -> None:
    """Write claims as a recording.

    Args:
        path: The file, JSON Lines.
        chat: The chat that the claims were read from.
        claims: The claims, from any reader or from `from_quotes`.
        reader: Who read: the name of a model or of a person.
    """
    rows: list[dict[str, Any]] = [{"schema_version": SCHEMA_VERSION, "chat": fingerprint(chat), "reader": reader}]
    for claim in claims:
        rows.append(claim.model_dump(exclude={"quote"}))
        rows[-1]["claim"] = None if claim.claim == claim.quote else claim.claim
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(path).write_text(text, encoding="utf-8")


def from_quotes(chat: Chat, exercises: Mapping[str, Exercise], rows: Sequence[Mapping[str, Any]]) -> list[AnswerClaim]:
    """Claims from rows that a person wrote under the project's prompt, with quotes in place of spans.

    Args:
        chat: The chat that was read.
        exercises: The questions by their labels.
        rows: Each with `turn` (counted from 0), `question`, `part`, `quote`, `claim` (None: the quote itself), and, if
            they are not "asserted" and "none", `stance` and `anchor`. A quote may be "beginning [...] end".

    Raises:
        OptionError: A row whose turn, question, part or quote does not exist; the message has its number.
    """
    admission = Admission(exercises)
    found: list[AnswerClaim] = []
    for number, row in enumerate(rows, 1):
        place = admission.place(str(row["question"]), str(row["part"]))
        if place is None:
            given = f"question {row['question']!r}, part {row['part']!r}"
            raise OptionError(complaint(f"row {number}", given, "a part of a question that was given"))
        text = chat.turns[row["turn"]].text if 0 <= row["turn"] < len(chat.turns) else ""
        taken = [each.span for each in found if each.turn == row["turn"] and each.part == place.part]
        if (span := located(row["quote"], text, taken)) is None:
            given = f"the quote {row['quote']!r}"
            raise OptionError(complaint(f"row {number}", given, f"a piece of turn {row['turn']}, to the letter"))
        quote = text[slice(*span)]
        said = quote if row.get("claim") is None else row["claim"]
        fixed = {"question": place.question, "part": place.part, "claim": said, "quote": quote, "span": span}
        found.append(AnswerClaim.model_validate({**row, **fixed}))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON Lines, at least one."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"more than {LARGEST:,} bytes")
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(complaint("recording", f"{path.name} ({error})", "JSON Lines")) from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise OptionError(complaint("recording", path.name, "a line of JSON with the chat, then one for each claim"))
    return rows
