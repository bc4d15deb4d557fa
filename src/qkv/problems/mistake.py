"""What a known mistake is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """`believed` is the mistake in a sentence, `right` what is so, `question` what a tutor may ask to have it seen."""

    believed: str
    right: str
    question: str
