"""The answer to a lookup: the output, and the scores and the index where they are told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..judging.answers import Value, last_read, squeezed, unreadable
from ..judging.doubts import held
from ..judging.pieces import cleaned, labelled, tidy
from ..outcome import Outcome, joined
from ..reading.literals import ENVIRONMENT, cells_of

_LITERAL = re.compile(ENVIRONMENT.pattern + r"|[\[(][^\[\]()]{1,400}[\])](?:\s?\^\s?\{?(?:T|\\top)\}?|ᵀ)?", re.DOTALL)
_INDEX = re.compile(
    r"(?i:\bind(?:ex|ices)|\barg\s?max\b|\bkey|\bposition|j\^\*|i\^\*|\bslot)(?:\s?(?:is|=|:|number|no\.?|chosen|the|of"
    r"|\\text\{[^{}]{0,20}\}|[($*]|\\arg\\max|\\max|_\s?\{?[ij]\}?|s|scores?|largest|at)){0,5}\s?\$?([1-9][0-9]?)\b(?!\s?[,.]\s?\d)"
)
_OUTPUT = re.compile(
    r"(?i:out(?:put)?|returns?|result|answer|attention(?:\s?\(|\s?=|\s?is)|value (?:is|vector)|gives|yields)"
)

_NAMED = re.compile(
    r"(?i:output|result|returns?|answer)\W{0,12}(?:is\s?)?(?:the\s)?(?:value\s)?\$?(?:\\mathbf\s?\{?)?v\}?_?\{?([1-9])"
)

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_SPOKEN = re.compile(rf"(?i:(?:output|returns?|result|answer|gives)\b[^.]{{0,30}}\b({'|'.join(_ORDINALS)}) value)")
_CHOSEN = re.compile(
    rf"(?i:\b({'|'.join(_ORDINALS)}) (?:key|score|position|entry|one|slot)\b[^.]{{0,30}}"
    r"(?:highest|largest|biggest|greatest|max|wins?))"
)
_BARE = re.compile(r"(?i:scores?)\s?(?:are|is|:|=)?\s?((?:[-−]?\d+(?:\s?,\s?(?:and )?| and )){1,8}[-−]?\d+)")


@dataclass(frozen=True)
class Found:
    """The value that is looked up. Scores and index are held to theirs where the answer has them."""

    output: Value
    index: int
    scores: Value
    places: Mapping[str, Value] = field(hash=False)

    @property
    def text(self) -> str:
        return f"scores {self.scores.text}, index {self.index}, output {self.output.text}"

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        answer = held(answer)
        plain = self.output.check(answer)
        scores, index, output = self.read(answer)
        items: dict[str, Outcome] = {}
        if scores is not None and (said := self.scores.check(scores)).kind == "wrong":
            items["scores"] = said
        for name, texts in labelled(tidy(answer), list(self.places), {}).items():
            # A score is one number: what follows it is said of something else.
            alone = [re.split(r";|\n|,\s*(?=[A-Za-z$\\])|\.\s", text)[0] for text in texts]
            if (said := last_read(self.places[name], alone)).kind == "wrong":
                items[name] = said
        if index is not None and index != self.index:
            items["index"] = Outcome("wrong", f"the largest score stands at {self.index}, not at {index}")
        if plain.kind == "right":
            return joined({**items, "output": plain}) if items else plain
        if output is None:
            # Right scores by themselves are no wrong output.
            alone = scores is not None and squeezed(self.output.stated(answer)).endswith(squeezed(scores))
            told = items or ((index is not None or scores is not None) and (plain.kind != "wrong" or alone))
            missing = Outcome(
                "incomplete" if told else plain.kind, plain.reason if not told else "the output is missing"
            )
            return joined({**items, "output": missing}) if items else missing
        return joined({**items, "output": self.output.check(output)})

    def same(self, wrong: str, answer: str) -> bool:
        if self.output.same(wrong, answer):
            return True
        given = self.read(answer)[2]
        return given is not None and self.output.same(wrong, given)

    def read(self, answer: str) -> tuple[str | None, int | None, str | None]:
        """Scores, index and output, as far as the text has them: the output is the last vector beside the scores."""
        answer = tidy(answer)
        scores: str | None = None
        output: str | None = None
        named = False
        before = 0
        for found in _LITERAL.finditer(answer):
            lead = answer[before : found.start()]
            before = found.end()
            cells = cells_of(found[0])
            if cells is None or not cells[1] or len(cells[0][0]) < 2:
                continue
            told = _OUTPUT.search(lead) is not None
            about = re.search(r"(?i:scores?|logits?|similarit\w+)|(?<![A-Za-z])s\s?\}?\s?[=:]|K\s?\}?\s?q", lead)
            if about is not None and not told:
                scores = cleaned(found[0])
            elif told or not named:
                output, named = cleaned(found[0]), named or told
        value = _NAMED.findall(answer)
        if output is None and value:
            output = f"v_{value[-1]}"
        if output is None and (spoken := _SPOKEN.findall(answer)):
            output = f"v_{_ORDINALS.index(spoken[-1].lower()) + 1}"
        if scores is None and (bare := _BARE.search(answer)) is not None:
            scores = f"({re.sub(r',? and ', ', ', bare[1])})"
        index = [int(place) for place in _INDEX.findall(answer)]
        index = index or [_ORDINALS.index(word.lower()) + 1 for word in _CHOSEN.findall(answer)]
        return scores, index[-1] if index else None, output
