"""Answers that say which mask goes on which attention, and the scenarios that ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..outcome import Outcome, joined
from ..problem import Misconception
from .answers import unreadable
from .choices import folded
from .doubts import flatly_denied, held

ENCODER, DECODER, CROSS = "encoder self-attention", "decoder self-attention", "cross-attention"
PADDING, CAUSAL = "padding", "causal"
LONGEST_PIECE = 600  # characters between two commas
MOST = 200  # clauses that are read, and pieces of one

_STACKED = r"(?:'s)?(?: stack| side| block| layer)?s?(?:'s)?"
_PLACES = (
    (
        CROSS,
        (
            rf"(?:decoder{_STACKED} |encoder{_STACKED} )?(?:decoder[-/ to]+encoder |encoder[-/ to]+decoder )?cross[- "
            rf"]?attention|"
            r"(?:encoder[-/ ]+(?:to[- ])?decoder|decoder[-/ ]+(?:to[- ])?encoder)(?:'s)? (?:multi[- ]?head )?attention|"
            r"attention (?:over|to|on) (?:the )?(?:source|encoder|memory)(?:'s)?(?: outputs?| states)?|"
            r"source[- ]attention|"
            r"(?:decoder|target)(?:'s)? (?:\w+ )?(?:attends?|looks?|attending|looking) (?:to|at|over|into) (?:the )?"
            r"(?:source|encoder|memory)(?:'s)?(?: outputs?| states)?|cross(?= ?:| \()"
        ),
    ),
    (
        ENCODER,
        (
            rf"encoder{_STACKED}(?: \(?(?:masked |multi[- ]?head |bidirectional )*self[- ]?attention\)?)?"
            r"(?![- ]?decoder| (?:inputs?|outputs?|tokens?|states)\b)"
        ),
    ),
    (DECODER, rf"decoder{_STACKED}(?: \(?(?:masked |multi[- ]?head |causal )*self[- ]?attention\)?)?(?![- ]?encoder)"),
    ("self", r"self[- ]?attention"),
)
_MASKS = {
    PADDING: r"(?:key[- ]?)?pad(?:ding|ded|s)?\b(?:[- ]mask\w*)?|key_padding_mask",
    CAUSAL: r"causal(?:ity|ly)?(?:[- ]mask\w*)?|look[- ]?ahead(?:[- ]mask\w*)?|future[- ]mask\w*|autoregressive "
    r"mask\w*|(?:lower[- ])?triangular(?:[- ]mask\w*)?|subsequent[- ]mask\w*|mask\w* (?:out )?(?:the )?future|"
    r"hid(?:e|es|ing|den) (?:the |all )?(?:future|later|subsequent)(?: \w+)?|"
    r"(?:future|later|subsequent) (?:target )?(?:tokens?|positions?|words?|keys?)? ?(?:is |are |"
    r"get )?(?:hidden|masked)",
}
_DENIED_BEFORE = (
    r"(?:\bno|\bnot|\bwithout|\bneither|\bnor|\bnever|\binstead of|\brather than|n't)(?: "
    r"(?:needs?|use|apply|require|have|a|an|the|any|on|in|also|separate|additional|extra|explicit|key|both|be|with|"
    r"combined|reason|to)){0,4} $"
)
_DENIED_AFTER = (
    r"^\W*(?:masks?\W+)?(?:(?:is|are|was|would be|itself|alone|here|there|then|usually|also)\W+){0,3}"
    r"(?:not\b|n't|unnecessary|redundant|optional|superfluous|omitted|no longer|never|needless|irrelevant)"
    r"|^\W*(?:masks?\W+)?(?:isn't|aren't|need not|does not|do not|doesn't|don't|can be (?:omitted|dropped|left out))"
)


_NEEDED = r"\b(?:need(?:s|ed)?|requir\w+|necessary|must|ha(?:s|ve) to)\b"
_SPARED = r"(?:\bnot|n't|\bno longer|\bnever|\bno\b[^,;]{0,30})\s+(?:\w+ ){0,2}(?:need|requir|necessary|must|have to)"


class _Said(NamedTuple):
    """Place to the masks that are put there, that are denied there, that are called needed; attentions elsewhere."""

    put: dict[str, frozenset[str]]
    denied: dict[str, frozenset[str]]
    insisted: dict[str, frozenset[str]]
    elsewhere: tuple[str, ...]


@dataclass(frozen=True)
class Masks:
    """Place to the masks that it needs; `allowed` are those that do no harm there.

    >>> both = Masks({ENCODER: frozenset({PADDING}), DECODER: frozenset({CAUSAL})}, {DECODER: frozenset({PADDING})})
    >>> both.check("padding mask on the encoder self-attention, causal mask on the decoder self-attention").kind
    'right'
    >>> both.check("Encoder: causal mask. Decoder: causal and padding masks.").reason
    'encoder self-attention: the causal mask does not belong there and the padding mask is missing'
    """

    table: Mapping[str, frozenset[str]] = field(hash=False)
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        return "; ".join(f"{place}: {_named(put)}" for place, put in self.table.items())

    def check(self, answer: str) -> Outcome:
        for nothing in (unreadable(answer, prose=True), flatly_denied(answer)):
            if nothing is not None:
                return nothing
        said = self._said(answer)
        if said.elsewhere:
            return Outcome("wrong", f"there is no {said.elsewhere[0]} in this model; it has {' and '.join(self.table)}")
        if not said.put:
            return Outcome("unread", f"nothing is said of masks on {' or on '.join(self.table)}")
        return joined({place: self._judged(place, said) for place in self.table})

    def _judged(self, place: str, said: _Said) -> Outcome:
        if (put := said.put.get(place)) is None:
            return Outcome("unread", "missing")
        wanted = self.table[place]
        more = put - wanted - self.allowed.get(place, frozenset())
        less = wanted - put
        if not more and not less:
            if spare := put - wanted & frozenset(said.insisted.get(place, ())):
                condition = "pads stand on the left, before the tokens"
                reason = f"the {min(spare)} mask is needed only if {condition}: a causal mask hides pads on the right"
                return Outcome("conditional", reason, condition=condition)
            return Outcome("right", f"{_named(put)}, as it should be")
        if not put and less and not less & said.denied.get(place, frozenset(wanted)):
            return Outcome("incomplete", f"it says only which mask is not there; the {_named(less)} is missing")
        faults = [f"the {name} mask does not belong there" for name in sorted(more)]
        faults += [f"the {name} mask is missing" for name in sorted(less)]
        return Outcome("wrong", " and ".join(faults))

    def same(self, wrong: str, answer: str) -> bool:
        believed, given = self.read(wrong), self.read(answer)
        return bool(believed) and all(given.get(place) == put for place, put in believed.items())

    def read(self, answer: str) -> dict[str, frozenset[str]]:
        """Place to masks, clause by clause; a clause that names no place speaks of the place before it."""
        return self._said(answer).put

    def _said(self, answer: str) -> _Said:
        found: dict[str, set[str]] = {}
        denied: dict[str, set[str]] = {}
        insisted: dict[str, set[str]] = {}
        elsewhere: list[str] = []
        places: tuple[str, ...] = tuple(self.table) if len(self.table) == 1 else ()
        stack = ""
        spared = any(PADDING in more for more in self.allowed.values())
        for clause in _clauses(answer):
            here, stack = self._places(clause, stack)
            if spared and re.search(r"\bleft\b", clause):
                continue  # what would hold if pads stood on the left
            put, spoken, taken = _put(clause)
            if here:
                places = here
            elif put and (foreign := self._elsewhere(clause)):
                elsewhere.append(foreign)
                continue
            for place in places if spoken else ():
                found.setdefault(place, set()).update(put)
                denied.setdefault(place, set()).update(taken)
                if re.search(_NEEDED, clause) and not re.search(_SPARED, clause):
                    insisted.setdefault(place, set()).update(put)
        kept, left, more = (
            {place: frozenset(put) for place, put in each.items() if place in self.table}
            for each in (found, denied, insisted)
        )
        return _Said(kept, left, more, tuple(elsewhere))

    def _elsewhere(self, clause: str) -> str:
        """An attention that a clause names outright and that this model has not."""
        if re.search(r"\bunlike\b|\bin contrast\b|\bcompared\b", clause):
            return ""
        for place, pattern in _PLACES[:-1]:
            named = re.search(rf"(?<![\w-])(?:{pattern})", clause)
            if place not in self.table and named and "attention" in named[0]:
                return place
        return ""

    def _places(self, clause: str, stack: str) -> tuple[tuple[str, ...], str]:
        """The places that a clause names, and the stack that a bare "self-attention" after it belongs to."""
        if re.search(
            r"\beverywhere\b|\b(?:all|every|each|both|any)\b[^.]{0,12}(?:attentions?|modules?|stacks?)\b", clause
        ):
            return tuple(self.table), stack
        taken: list[tuple[int, int, str]] = []
        for place, pattern in _PLACES:
            for found in re.finditer(rf"(?<![\w-]){pattern}", clause):
                if all(found.end() <= start or found.start() >= end for start, end, _ in taken):
                    taken.append((found.start(), found.end(), place))
        names = [place for _, _, place in sorted(taken)]
        named = [place for place in names if place in (ENCODER, DECODER)]
        stack = named[-1] if named else stack
        if "self" in names:
            own = (stack,) if stack in self.table else tuple(p for p in self.table if p != CROSS)
            names = [place for name in names for place in (own if name == "self" and not named else (name,))]
        return tuple(dict.fromkeys(place for place in names if place in self.table)), stack


def _named(put: frozenset[str]) -> str:
    return " and ".join(f"{name} mask" for name in sorted(put)) or "no mask"


def _clauses(answer: str) -> list[str]:
    """Clauses of a text: each names a place with its masks, or goes on about the place before it."""
    text = folded(held(answer, prose=True)).replace("_", " ").replace("key padding mask", "padding mask")
    # Whose padding it is names no place: "the encoder's padding mask".
    text = re.sub(r"\b(?:encoder|decoder|source|target|input)(?:'s)?(?:[- ]side)? (?:key )?(?=pad)", "", text)
    text = re.sub(r"\((?:e\.g\.|i\.e\.|such as|from|of) [^()]*\)", " ", re.sub(r"\battn\b", "attention", text))
    text = re.sub(r"\be\.g\.|\bi\.e\.", " ", text)
    text = re.sub(r"\s(?=[1-9]\)\s)", "; ", text)  # a list that was written in one line
    # A reason names masks that it does not place.
    text = re.sub(r"\bbecause\b[^.;\n]*|\bsince\b[^.,;\n]*", " ", text)
    # Where pads stand names no mask: "with padding on the right".
    text = re.sub(
        r"\bright[- ]pad\w*(?! mask)|\bpad(?:s|ded|ding)? (?:tokens )?(?:\w+ )?(?:on|at|to) the (?:right|end)\b",
        " ",
        text,
    )
    clauses: list[str] = []
    for sentence in re.split(r"[.;\n]|\bwhile\b|\bwhereas\b|\bhowever\b|\bbut\b", text)[:MOST]:
        merged: list[tuple[str, bool, bool]] = []  # a clause, whether it names a place, whether a mask
        for piece in [half for part in re.split(r",|\|", sentence)[:MOST] for half in _halves(part)]:
            place, mask = _has_place(piece), _has_mask(piece)
            last, placed, masked = merged[-1] if merged else ("", True, True)
            list_of_places = place and not mask and not re.search(r":|^ ?(?:in|for|on|at)\b", piece)
            if merged and (list_of_places or not ((place and mask) or (placed and masked))):
                merged[-1] = (f"{last},{piece}", placed or place, masked or mask)
            elif piece.strip():
                merged.append((piece, place, mask))
        clauses += [clause for clause, _, _ in merged]
    return clauses[:MOST]


def _halves(piece: str) -> list[str]:
    """A piece cut at every "and" that joins two whole statements, each with a place and a mask."""
    if len(piece) > LONGEST_PIECE:
        return [piece[:LONGEST_PIECE]]
    halves = [""]
    for part in re.split(r"\band\b", piece):
        whole = _has_place(halves[-1]) and _has_mask(halves[-1]) and _has_place(part) and _has_mask(part)
        halves = [*halves, part] if whole else [*halves[:-1], f"{halves[-1]}and{part}" if halves[-1] else part]
    return halves


def _has_place(text: str) -> bool:
    return "everywhere" in text or any(re.search(rf"(?<![\w-]){pattern}", text) for _, pattern in _PLACES)


def _has_mask(text: str) -> bool:
    return any(re.search(rf"(?<!\w)(?:{pattern})", text) for pattern in _MASKS.values())


_NO_MASK = r"\bno masks?\b|\bnone\b|\bunmasked\b|\bno mask(?:ing)? (?:is|at all)\b|\bneither\b"
_BOTH = (
    r"\bboth(?: (?:masks?|of them|kinds?|types?|are|is|apply|needed|used|required))?\W*(?:$|"
    r"\b(?:masks?|of|are|is|apply)\b)"
)


def _put(clause: str) -> tuple[set[str], bool, set[str]]:
    """The masks that a clause puts somewhere, whether it speaks of masks at all, and those that it denies."""
    if re.search(_NO_MASK, clause):
        return set(), True, {PADDING, CAUSAL}
    if re.search(_BOTH, clause) and not _has_mask(clause):
        return {PADDING, CAUSAL}, True, set()
    put: set[str] = set()
    named: set[str] = set()
    for name, pattern in _MASKS.items():
        for found in re.finditer(rf"(?<!\w)(?:{pattern})", clause):
            named.add(name)
            before, after = clause[max(0, found.start() - 80) : found.start()], clause[found.end() : found.end() + 80]
            if not re.search(_DENIED_BEFORE, before) and not re.search(_DENIED_AFTER, after):
                put.add(name)
    only = [
        name
        for name, pattern in _MASKS.items()
        if re.search(rf"\bonly (?:the |a |use |apply |needs? )*(?:{pattern})", clause)
    ]
    kept = set(only) & put if only else put
    return kept, bool(named), ({PADDING, CAUSAL} if only else named) - kept


@dataclass(frozen=True)
class Scenario:
    """A model in use: what is asked about, which masks it needs and why."""

    name: str
    words: str
    table: Mapping[str, frozenset[str]] = field(hash=False)
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    why: str = ""

    @property
    def answer(self) -> Masks:
        return Masks(self.table, self.allowed)

    def misconceptions(self) -> tuple[Misconception, ...]:
        """The known mistakes as answers to this scenario, where they are mistakes."""
        wrong: list[tuple[str, str, frozenset[str]]] = []
        for place, needed in self.table.items():
            if place == DECODER:
                wrong.append(("no causal mask in the decoder", place, needed - {CAUSAL} or frozenset({PADDING})))
            else:
                name = "causal mask in an encoder" if place == ENCODER else "causal mask in cross-attention"
                wrong.append((name, place, needed | {CAUSAL}))
            if PADDING in needed:
                wrong.append(("padding mask forgotten", place, needed - {PADDING}))
        return tuple(Misconception(name, f"{place}: {_named(put)}") for name, place, put in wrong)


_PAD, _CAUSE, _NONE = frozenset({PADDING}), frozenset({CAUSAL}), frozenset()
_ENCODED = "an encoder sees its whole input, so that only pads are hidden"
_ORDERED = "a position must not see the tokens after it"

SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        Scenario("encoder", "A Transformer encoder that classifies texts of different lengths.", {ENCODER: _PAD},
                 why=f"{_ENCODED}."),
        Scenario("decoder", "A Transformer decoder that learns to continue texts of different lengths, padded on the "
                 "right.", {DECODER: _CAUSE}, {DECODER: _PAD},
                 f"{_ORDERED}; pads on the right come after every real token and are hidden by that already."),
        Scenario("translation", "A Transformer encoder-decoder that learns to translate, source and target padded on "
                 "the right.", {ENCODER: _PAD, DECODER: _CAUSE, CROSS: _PAD}, {DECODER: _PAD},
                 f"{_ENCODED}; in the decoder {_ORDERED}; the keys of cross-attention are the source's, pads "
                 f"included."),
        Scenario("left padding", "A Transformer decoder that continues a batch of prompts of different lengths, padded "
                 "on the left.", {DECODER: _PAD | _CAUSE}, {},
                 f"{_ORDERED}; pads on the left come before the real tokens, and a causal mask does not hide them."),
        Scenario("equal lengths", "A Transformer encoder-decoder that learns to translate; all sources have one length "
                 "and all targets too, so that nothing is padded.", {ENCODER: _NONE, DECODER: _CAUSE, CROSS: _NONE}, {},
                 f"there are no pads; in the decoder {_ORDERED}."),
        Scenario("source in one length", "A Transformer encoder-decoder that writes captions: sources are images, all "
                 "cut into the same number of patches; captions are padded on the right.",
                 {ENCODER: _NONE, DECODER: _CAUSE, CROSS: _NONE}, {DECODER: _PAD},
                 f"patches are never padded, so that neither encoder nor cross-attention needs a mask; in the decoder "
                 f"{_ORDERED}."),
        Scenario("targets padded left", "A Transformer encoder-decoder that learns to summarise, sources and targets "
                 "both padded on the left.", {ENCODER: _PAD, DECODER: _PAD | _CAUSE, CROSS: _PAD}, {},
                 f"{_ENCODED}; in the decoder {_ORDERED}, and pads on the left come before them; cross-attention has "
                 f"the "
                 "source's pads among its keys."),
        Scenario("retrieval", "A Transformer encoder that turns sentences of different lengths into vectors for a "
                              "search.",
                 {ENCODER: _PAD}, why=f"{_ENCODED}."),
    )
}  # fmt: skip
