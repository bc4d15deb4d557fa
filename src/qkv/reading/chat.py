"""A chat as turns: who speaks, and what is said, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..exercises.findings import Finding

Speaker: TypeAlias = Literal["student", "tutor", "note", "unknown"]


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
