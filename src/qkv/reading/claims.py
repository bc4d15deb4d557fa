"""What a reader finds in a chat: which answer is said to which part, where, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from ..exercises.record import Exercise
from .chat import Chat

Stance: TypeAlias = Literal["asserted", "denied", "quoted", "asked"]
Anchor: TypeAlias = Literal["label", "box", "table", "summary", "answer", "equation", "none"]


class AnswerClaim(BaseModel):
    """One answer that stands in a chat.

    `claim` is what `qkv.exercises.checking.check` judges; `quote` is the chat's text to the letter, at `span` of the
    turn. `anchor` says what ties the claim to the part; "none" means that the place may be about something else, or
    that the claim has names that the question does not have. An empty claim says that an answer stands there which
    could not be read: an answer before or behind it is then not the whole story. Claims in a student's turn are the
    student's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str = Field(description="the label of the exercise, as among the exercises that were given")
    part: str = Field(description="the label of the part; empty where the exercise has one part without a label")
    claim: str = Field(description="the answer as formal text: a formula, a number, a class, a shape, a choice, words")
    quote: str = Field(description="the text of the turn that the claim was read from, to the letter")
    turn: int = Field(description="the index of the turn", ge=0)
    span: tuple[int, int] = Field(description="where the quote begins and ends in the text of the turn")
    stance: Stance = "asserted"
    anchor: Anchor = "none"

    @property
    def counts(self) -> bool:
        """Whether the claim may be held against the one who made it: asserted, at an anchored place."""
        return self.stance == "asserted" and self.anchor != "none"


class Reader(Protocol):
    """Whatever finds claims in a chat. It never sees an answer and never judges."""

    def read(self, chat: Chat, exercises: Mapping[str, Exercise]) -> list[AnswerClaim]:
        """The claims of a chat, in order; `exercises` are the questions by their labels."""
        ...
