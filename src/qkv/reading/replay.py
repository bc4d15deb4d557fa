"""Recorded readings: claims with their spans as JSON Lines, without the text of the chat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import OptionError, complaint
from ..exercises.findings import Finding
from ..exercises.record import Exercise, plain_label
from .chat import Chat
from .claims import AnswerClaim
from .support import Admission, at_quote, at_span

SCHEMA_VERSION = 1


class ReplayReader:
    """A reader that takes recorded claims; each goes through the checks that a model's claims go through.

    Args:
        path: A recording, or a folder with one for each chat, named as the chat: `log.jsonl` for `log.md`.
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
        path = self.path / f"{Path(chat.name).stem}.jsonl" if self.path.is_dir() else self.path
        header, *rows = _lines(path)
        if header.get("schema_version") != SCHEMA_VERSION:
            given = f"{path.name} in schema {header.get('schema_version')!r}"
            raise OptionError(complaint("recording", given, f"one in schema {SCHEMA_VERSION}", "record it again"))
        if header.get("chat") != fingerprint(chat):
            hint = "record it again if the chat, or how it is divided into turns, has changed"
            raise OptionError(complaint("recording", f"{path.name} of another chat", f"one of {chat.name!r}", hint))
        for number, row in enumerate(rows, 2):
            try:
                yield at_span(row, chat.turns[row["turn"]].text)
            except (LookupError, TypeError, ValueError):
                wanted = "question, part, turn, span within the turn, claim, stance and anchor"
                raise OptionError(complaint(f"line {number} of {path.name}", row, wanted)) from None


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

    Returns:
        The claims, in the order of the rows.

    Raises:
        OptionError: A row whose turn, question, part or quote does not exist; the message has its number.
    """
    places = Admission(exercises).places
    found: list[AnswerClaim] = []
    for number, row in enumerate(rows, 1):
        there = (row["question"], plain_label(row["part"])) in places and 0 <= row["turn"] < len(chat.turns)
        claim = at_quote(row, chat.turns[row["turn"]], found) if there else None
        if claim is None:
            wanted = f"a part that exists, and a quote of turn {row['turn']}, to the letter"
            raise OptionError(complaint(f"row {number}", dict(row), wanted))
        found.append(claim)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON Lines, at least one."""
    try:
        header, *rows = [{**json.loads(line)} for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        return [header, *rows]
    except (OSError, TypeError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(complaint("recording", f"{path.name} ({why})", "claims as JSON Lines")) from None
