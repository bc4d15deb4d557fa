"""The table that the author of a transcript gives of it, beside what the conversation shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .transcript import Transcript

if TYPE_CHECKING:
    from .ledger import Row

MOST_ROWS = 100
_ASKED = re.compile(r"\b(?:question|problem|exercise|task|part|item)s?\b|^#$|^no\.?$|^q$", re.IGNORECASE)
_FARED = re.compile(
    r"\b(?:performance|result|status|outcome|accuracy|verdict|grade|attempt|correct|right)", re.IGNORECASE
)
_ONCE = re.compile(
    r"\bone[- ]?shot|\bfirst (?:try|attempt|time)|\bcorrect\b|\bright\b|\bimmediately|\bat once|✓|✅|\byes\b", re.I
)
_LATER = re.compile(
    r"\bcorrection|\bcorrected|\bhint|\bretr(?:y|ies)|\bsecond (?:try|attempt)|\bneed|\bprompt|\bafter\b", re.I
)
_NEVER = re.compile(r"\bnever|\bwrong|\bincorrect|\bfail|\bnot (?:solved|right|correct)|✗|❌|\bno\b", re.IGNORECASE)


@dataclass(frozen=True)
class AuthorRow:
    """A row of the author's table: what it says, what was recomputed, and how the two agree."""

    question: str
    author: str
    recomputed: str
    remark: str

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("question", "author", "recomputed", "remark")}


def author_rows(text: str) -> list[tuple[str, str]]:
    """The rows of a table of questions and how they went: Markdown or parted by tabs.

    >>> author_rows("| Question | Performance |\\n|---|---|\\n| 1. Scaling | One Shot |")
    [('1. Scaling', 'One Shot')]
    """
    found: list[tuple[str, str]] = []
    columns: tuple[int, int] | None = None
    for line in text.split("\n"):
        cells = _cells(line[:2000])
        if len(cells) < 2:
            columns = None if line.strip() else columns
            continue
        if columns is None:
            asked = next((place for place, cell in enumerate(cells) if _ASKED.search(cell)), None)
            fared = next((place for place, cell in enumerate(cells) if place != asked and _FARED.search(cell)), None)
            columns = None if asked is None or fared is None else (asked, fared)
        elif not all(re.fullmatch(r":?-{2,}:?", cell) for cell in cells) and max(columns) < len(cells):
            found.append((cells[columns[0]].strip("*_ "), cells[columns[1]].strip("*_ ")))
            if len(found) == MOST_ROWS:
                break
    return found


def _cells(line: str) -> list[str]:
    if "\t" in line.strip():
        return [cell.strip() for cell in line.strip().split("\t") if cell.strip()]
    if line.count("|") >= 2 or (line.count("|") == 1 and not line.strip().startswith("|")):
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    return []


def said_status(text: str) -> str:
    """What an author's words say, as one of the statuses; empty where they say none of them.

    >>> said_status("Needed Corrections"), said_status("One Shot"), said_status("fun")
    ('needed correction', 'one shot', '')
    """
    if re.search(r"\b(?:partial|partly|half|mostly|almost|incomplete)", text, re.IGNORECASE):
        return "partly right"
    if _NEVER.search(text) and not _LATER.search(text):
        return "never right"
    if _LATER.search(text) and not re.search(r"\bno (?:correction|hint)|\bwithout", text, re.IGNORECASE):
        return "needed correction"
    return "one shot" if _ONCE.search(text) else ""


def beside(transcript: Transcript, table: Sequence[dict[str, Any]], rows: Sequence[Row]) -> tuple[AuthorRow, ...]:
    """The author's rows beside what was recomputed; a correction that the chat does not show is not in evidence."""
    given = author_rows(transcript.preamble)
    for turn in transcript.turns if not given else ():
        given = given or [each for each in author_rows(turn.text) if said_status(each[1])]
    found = []
    for question, words in given:
        number = re.search(r"\d{1,2}", question)
        mine = next((row for row in table if number and row["problem"] == str(int(number.group()))), None)
        if mine is None:
            name = re.sub(r"[^a-z]+", " ", question.lower()).strip()
            mine = next(
                (row for row in table if name and name in (row["family"].replace("-", " "), row["title"].lower())), None
            )
        if mine is None:
            found.append(AuthorRow(question, words, "", "not in the conversation"))
            continue
        parts = [row for row in rows if row.problem == mine["problem"]]
        found.append(AuthorRow(question, words, mine["status"], _remark(said_status(words), mine["status"], parts)))
    return tuple(found)


def _remark(said: str, status: str, rows: Sequence[Row]) -> str:
    corrected = any(row.status == "needed correction" for row in rows)
    if said == "needed correction" and not corrected:
        return "not in evidence"
    if not said or status == "unread":
        return "cannot be compared"
    if said == "partly right":
        right = sum(row.status == "one shot" for row in rows)
        return "agrees" if 0 < right < len(rows) else "differs"
    return "agrees" if said == status else "differs"
