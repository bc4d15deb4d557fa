"""A part that has parts of its own, answered at once: "b" for "b(i)" and "b(ii)"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .judging.answers import unreadable
from .outcome import Outcome, joined
from .problem import Part, plain_name

_NUMBERS = {"i": "1", "ii": "2", "iii": "3", "iv": "4", "v": "5", "vi": "6"}


@dataclass(frozen=True)
class Together:
    """The answers to several parts in one text: labelled by their numbers, one a line, or in sentences."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "\n".join(f"{_label(part)} {part.answer.text}" for part in self.parts)

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        texts = taken_apart(answer, [_label(part) for part in self.parts])
        outcomes = {part.name: part.check(text) for part, text in zip(self.parts, texts, strict=True)}
        names = dict.fromkeys(name for outcome in outcomes.values() for name in outcome.misconceptions)
        return replace(joined(outcomes), misconceptions=tuple(names))

    def same(self, wrong: str, answer: str) -> bool:
        labels = [_label(part) for part in self.parts]
        pairs = zip(self.parts, taken_apart(wrong, labels), taken_apart(answer, labels), strict=True)
        return all(part.answer.same(one, other) for part, one, other in pairs)


@dataclass(frozen=True)
class Several(Part):
    """A part whose mistakes are those of the parts that it joins."""

    def check(self, answer: str) -> Outcome:
        return self.answer.check(answer)


def together(name: str, parts: Sequence[Part]) -> Part:
    """The parts as one."""
    return Several(
        name,
        "\n".join(f"{_label(part)} {part.ask}" for part in parts),
        Together(tuple(parts)),
        lambda: tuple(step for part in parts for step in part.steps()),
        (_all(parts, 0), _all(parts, 1), _all(parts, 2)),
        sum(part.points for part in parts),
        (),
        {key: text for part in parts for key, text in part.symbols.items()},
        tuple(cue for part in parts for cue in part.cues),
        " ".join(part.explanation for part in parts if part.explanation),
    )


def _all(parts: Sequence[Part], strength: int) -> str:
    return " ".join(f"{_label(part)} {part.hints[strength]}" for part in parts)


def _label(part: Part) -> str:
    return f"({plain_name(part.name)[1:]})"


def taken_apart(answer: str, labels: Sequence[str]) -> list[str]:
    """The text of each label, in order; the whole text for each where it is not taken apart.

    >>> taken_apart("(i) x; (ii) y", ["(i)", "(ii)"]), taken_apart("x and y", ["(i)", "(ii)"])
    (['x;', 'y'], ['x and y', 'x and y'])
    """
    starts: dict[str, tuple[int, int]] = {}
    for label in labels:
        roman = label.strip("()")
        number = _NUMBERS.get(roman, roman)
        begun = max((end for _, end in starts.values()), default=0)
        found = re.compile(
            rf"(?:^|(?<=[\s;,.(*]))\(?(?:{re.escape(roman)}|{number})\s?[).:]\**\s*", re.IGNORECASE | re.MULTILINE
        ).search(answer, begun)
        if found is not None:
            starts[label] = found.span()
    if len(starts) > 1 or (starts and not answer[: min(starts.values())[0]].strip(" *")):
        # What has a label of its own says nothing of the others.
        ends = dict(zip(starts, [*(begin for begin, _ in starts.values()), len(answer)][1:], strict=True))
        return [answer[starts[label][1] : ends[label]].strip(" \n*") if label in starts else "" for label in labels]
    lines = [line.strip(" -*•\t") for line in re.split(r"\n+|;\s", answer) if line.strip(" -*•\t")]
    return lines if len(lines) == len(labels) else [answer] * len(labels)
