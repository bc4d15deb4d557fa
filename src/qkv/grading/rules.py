"""Rules that a student sets at the start ("no code"), and where the tutor breaks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..reading import AnswerClaim, Chat, Turn
from .phrases import pattern, phrases

SHORT = 500  # words outside formulas, of an answer to one part, that still may be called short
MOST_BREAKS = 20
_SET_WITHIN = 6000  # characters of a turn in which a rule is set


@dataclass(frozen=True)
class Rule:
    """A rule of the set-up: `kept` is the rule in words; `turn` and `evidence` say where it was broken."""

    name: str
    kept: str
    set_in: int
    turn: int | None = None
    evidence: str = ""

    @property
    def broken(self) -> bool:
        return self.turn is not None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "broken": self.broken}


def broken_rules(chat: Chat, claims: Sequence[AnswerClaim]) -> tuple[Rule, ...]:
    """Every rule that the student sets, with each place where it was broken."""
    finders = {"code": _code, "early": _early, "derivation": _bare, "short": _long}
    found: list[Rule] = []
    for name, (entry, set_in) in _rules_of(chat).items():
        breaks = [(turn, why) for turn, why in finders[name](chat, claims, set_in) if turn > set_in][:MOST_BREAKS]
        found += [Rule(name, entry["kept"], set_in, *each) for each in breaks] or [Rule(name, entry["kept"], set_in)]
    return tuple(found)


def _rules_of(chat: Chat) -> dict[str, tuple[dict[str, str], int]]:
    found: dict[str, tuple[dict[str, str], int]] = {}
    for turn in chat.turns:
        if turn.speaker != "student":
            continue
        # Rules are set in words; a listing or a long statement below them sets none.
        said = pattern("listing").sub("", turn.text)[:_SET_WITHIN]
        for name, entry in phrases()["rules"].items():
            places = re.finditer(entry["says"], said, re.IGNORECASE)
            if name not in found and any(not _denied(entry, said, each.start()) for each in places):
                found[name] = entry, turn.index
    return found


def _denied(entry: dict[str, str], text: str, place: int) -> bool:
    """Whether the words before say that it is no rule: "you need not be short", "the course has no coding"."""
    before = pattern("end_of_clause").split(text[max(0, place - 80) : place])[-1]
    return re.search(entry["unless"], before, re.IGNORECASE) is not None


def _tutor(chat: Chat) -> list[Turn]:
    return [turn for turn in chat.turns if turn.speaker == "tutor"]


def _code(chat: Chat, claims: Sequence[AnswerClaim], set_in: int) -> Iterator[tuple[int, str]]:
    """Listings and definitions in a tutor's turn; what the student showed before is a quotation."""
    shown = "".join("".join(turn.text.split()) for turn in chat.turns if turn.speaker == "student")
    for turn in _tutor(chat):
        if evidence := _listing(turn.text, shown):
            yield turn.index, evidence


def _listing(text: str, shown: str) -> str:
    for block in pattern("listing").finditer(text):
        new = [line for line in block["body"].split("\n") if line.strip() and "".join(line.split()) not in shown]
        code = block["language"] or pattern("code_line").search("\n".join(new))
        if new and code and not pattern("prose_listing").match(block["language"]) and len(new) > 1:
            return _first(new)
    plain = pattern("listing").sub("", text)
    defined = pattern("definition").search(plain)
    return _first([defined.group()]) if defined and "".join(defined.group().split()) not in shown else ""


def _first(lines: list[str]) -> str:
    line = " ".join(lines[0].split())
    return line if len(line) <= 80 else f"{line[:79]}…"


def _early(chat: Chat, claims: Sequence[AnswerClaim], set_in: int) -> Iterator[tuple[int, str]]:
    """Answers before the student asked for their part, in a later turn than the one that sets the rule."""
    from .grade import concerns

    for turn in _tutor(chat):
        asked = [each.text for each in chat.turns if each.speaker == "student" and set_in < each.index < turn.index]
        early = [
            claim
            for claim in claims
            if claim.turn == turn.index and claim.counts and claim.part
            and not any(concerns(text, claim.question, claim.part) for text in asked)
        ]  # fmt: skip
        if early:
            yield turn.index, ", ".join(dict.fromkeys(f"{each.question}({each.part})" for each in early))


def _bare(chat: Chat, claims: Sequence[AnswerClaim], set_in: int) -> Iterator[tuple[int, str]]:
    """Answers to several parts with nothing that derives them: no chain of equations and hardly a word."""
    for turn in _tutor(chat):
        parts = len({each["letter"] for each in pattern("part").finditer(turn.text)})
        words = re.findall(r"[A-Za-z]{3,}", pattern("formula").sub(" ", turn.text))
        if parts > 1 and turn.text.count("=") <= parts and len(words) < 8 * parts:
            yield turn.index, _first([turn.text])


def _long(chat: Chat, claims: Sequence[AnswerClaim], set_in: int) -> Iterator[tuple[int, str]]:
    parts: dict[int, set[tuple[str, str]]] = {}
    for claim in claims:
        parts.setdefault(claim.turn, set()).add((claim.question, claim.part))
    for turn in _tutor(chat):
        words = len(re.findall(r"[^\W\d_]{2,}", pattern("formula").sub(" ", turn.text)))
        if words > SHORT * max(1, len(parts.get(turn.index, ()))) and turn.index in parts:
            yield turn.index, f"{words:,} words"
