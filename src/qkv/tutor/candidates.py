"""What may be the claim of a text: its formulas, by how they are put, the likeliest first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from ..problems.problem import Part
from ..problems.reading.literals import split_outside
from .asserted import CONCLUDES, MENDS, Said, asserted, masked_formulas
from .formulas import BOLD, Formula, equations, formulas, without_code
from .labels import Section

MOST_BOXES = 8  # boxes of one formula

_OR = re.compile(
    r"\\text\{\s*,?\s*or(?: equivalently)?\s*\}|(?:^|[\s,(;])(?:or,? equivalently|equivalently|or also|or)\b[,:]?|"
    r"\bi\.e\.,?",
    re.IGNORECASE,
)
_WHY = re.compile(
    r"[,;(]?\s*\b(?:because|since|where|which|due to|assuming|as long as|when|thanks to|by linearity|by independence|"
    r"for (?:each|all|every|any)|with (?:high|the)|that is)\b",
    re.IGNORECASE,
)
_VERB = re.compile(r"(?::|\b(?:is|are|equals?|becomes?|be|gives?|get|obtain|yields?|namely|should be))\s*\**\s*", re.I)
_STATES = re.compile(
    r"(?:^|\b(?:is|are|be|equals?|becomes?|gives?|get|obtain|yields?|stays?|remains?|namely|by|to|or|and|so|thus|hence|"
    r"therefore|in total|altogether|overall|total)|"
    r"[:(=→⇒])\W*$",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"^(?!.*\\sum).*\bE\W{0,3}\[?[^=]*_\{?[ij]\b")  # the mean of one entry is not that of a sum
_ORDER = re.compile(r"\s*(?:\\mathcal\{?\s*)?(?:O|\\Theta|Θ)\b")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")


@dataclass(frozen=True)
class Candidate:
    text: str
    rank: int  # 4 boxed, 3 said to be the answer, 2 the part's own left side, 1 a conclusion, 0 a formula at the end
    place: int = 0


def candidates(part: Part, sections: Iterable[Section]) -> list[Candidate]:
    """Everything that may be the claim, the likeliest first."""
    found: list[Candidate] = []
    place = 0
    cues = [re.compile(cue, re.IGNORECASE) for cue in part.cues]
    sections = list(sections)
    mended = any(MENDS.search(section.text) for section in sections)
    for section in sections:
        text = without_code(section.text)
        text = text.strip().split("\n\n")[0] if section.summary else text
        done = -1
        for order, said in enumerate(asserted(text)):
            place += 1
            # Below "Answer (a):" the first paragraph with a formula is the answer; what follows it remarks on it.
            first = done < 0 or "\n\n" not in text[done : said.start].strip("\n") or said.concludes or said.answers
            more = _of_sentence(said, place, cues, section.summary or (section.answer and first))
            if order == 0 and section.part and not section.answer and not mended:
                more = [_stated_at_once(each, said) for each in more]
            more = [each for each in more if not _to_be_solved(each.text, getattr(part.answer, "unknown", ""))]
            done = said.start if more and done < 0 else done
            found += more
    return sorted(found, key=lambda each: (-each.rank, -each.place))


def _stated_at_once(candidate: Candidate, said: Said) -> Candidate:
    """A bare value that follows the label is the answer, and what follows it says why."""
    words = re.search(r"[A-Za-z]{2,}", masked_formulas(said.text))
    bare = bool(formulas(said.text)) and not words and "=" not in candidate.text
    return replace(candidate, rank=2) if bare and candidate.rank < 2 else candidate


def _to_be_solved(equation: str, unknown: str) -> bool:
    """Whether an equation only ties the unknown to what is known: "d / s^2 = 1" is no answer for s."""
    members = split_outside(equation, "=")
    own = (
        [re.search(rf"(?<![\w\\]){re.escape(unknown)}(?!\w)", member) is not None for member in members]
        if unknown
        else []
    )
    return len(own) > 1 and any(own) and not any(member.strip(" $*`") == unknown for member in members)


def _of_sentence(said: Said, place: int, cues: list[re.Pattern[str]], listed: bool) -> list[Candidate]:
    found: list[Candidate] = []
    spans = formulas(said.text)
    boxes = [box for box in (unboxed(span.text) for span in spans) if box] or (
        [box] if (box := unboxed(said.text)) else []
    )
    if boxes:
        return [Candidate(box, 4, place) for box in boxes]
    start, stop = _without_reasons(said.text)
    inside = [span for span in spans if start <= span.start < stop]
    masked = masked_formulas(said.text)
    stated = [span for span in inside if span.display or "=" in span.text or _STATES.search(masked[: span.start])]
    # "There are d terms, so the variance is x": what is only mentioned is no claim beside what is concluded.
    concluded = max((found.end() for found in CONCLUDES.finditer(masked)), default=0)
    last = [span for span in stated if span.start >= concluded]
    pieces = [(equation, span.display) for span in last or stated or inside for equation in equations(span.text)]
    if not concluded and (added := _added_up(masked, said.text, inside)):
        pieces = [(added, False)]
    if not spans:
        plain = _plain_claim(said.text[start:stop])
        pieces = [(plain, False)] if plain else []
    for order, (piece, display) in enumerate(pieces):
        known = any(cue.search(f"{_left(piece)} =") for cue in cues) if "=" in piece or "approx" in piece else False
        known = known and not _ENTRY.search(_left(piece))
        rank = (
            3 if said.answers or listed else 2 if known and not said.wanted else 1 if said.concludes or display else 0
        )
        if said.wanted and not listed and not said.answers:
            rank = min(rank, 0)
        # In "the answer is x, or y" the first is the claim; elsewhere the last formula of a sentence is.
        found.append(Candidate(piece, rank, 1000 * place + (-order if rank == 3 else order)))
    return found


def _added_up(masked: str, text: str, spans: list[Formula]) -> str:
    """Orders of growth that a sentence adds up: "projections O(x) + attention O(y)", "O(x) for … and O(y) for …"."""
    if len(spans) < 2 or not all(_ORDER.match(span.text) for span in spans):
        return ""
    between = [masked[one.end : other.start] for one, other in pairwise(spans)]
    parts = all(
        re.match(r"\W*(?:for|from|in|by)\b[^.;:]*(?:,|\band\b|\bplus\b)", each) for each in between
    ) and re.match(r"\W*(?:for|from|in|by)\b", masked[spans[-1].end :])
    if parts or all(re.search(r"\+|\bplus\b", each) for each in between):
        return " + ".join(span.text for span in spans)
    return ""


def _without_reasons(text: str) -> tuple[int, int]:
    """Where the claim of a sentence begins and ends: reasons before it ("since …, it is x") and after it left out."""
    masked = masked_formulas(text)
    start = 0
    because = _WHY.match(masked) or re.match(r"\W*(?:by|using|from|with|given|as|for|after)\b", masked, re.IGNORECASE)
    if because is not None:
        comma = re.search(r"[,:]\s", masked[because.end() :])
        if comma is None:
            opened = re.match(r"\W*(?:where|because|since|which)\b", masked, re.IGNORECASE)
            return (len(text), len(text)) if opened else (0, len(text))
        start = because.end() + comma.end()
    after = _WHY.search(masked, start + 1)
    return start, after.start() if after is not None else len(text)


def unboxed(text: str) -> str:
    """What the last box of a text holds."""
    for found in list(_BOXED.finditer(text))[: -MOST_BOXES - 1 : -1]:
        depth = 1
        for place in range(found.end(), min(len(text), found.end() + 3000)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[found.end() : place].strip()
    return ""


def without_boxes(text: str) -> str:
    """A formula with what its boxes hold in the place of the boxes."""
    for found in list(_BOXED.finditer(text))[: -MOST_BOXES - 1 : -1]:
        held = unboxed(text[found.start() :])
        text = text[: found.start()] + held + text[found.end() + len(held) + 1 :] if held else text
    return text


def ends(chain: str) -> str:
    """The first and the last member of a chain: what is named, and what it comes to."""
    members = split_outside(chain, "=")
    listed = len(split_outside(chain, ",;")) > 1
    return chain if listed or len(members) < 3 else f"{members[0]} = {members[-1]}"


def _left(equation: str) -> str:
    """The left side of an equation."""
    return re.split(r"(?<![<>!\\])=|\\approx|≈", equation, maxsplit=1)[0].strip()


def _plain_claim(text: str) -> str:
    """The mathematics of a sentence without marks: what follows its last verb or the whole where it is an equation."""
    text = BOLD.sub("", text).replace("`", "").strip().rstrip(".")
    text = re.sub(r"^\s*[-•]\s+", "", text)
    text = re.sub(r"\b(?:the )?(?:positive )?square root of (?:the )?([\w\\{}]+)", r"sqrt(\1)", text)
    verbs = list(_VERB.finditer(text))
    tail = text[verbs[-1].end() :] if verbs else text
    if "=" in text and "=" not in tail:
        match = re.search(r"(\S+(?:\s*[\^(\[]\S+)?)\s*=\s*([^,;]+)", text)
        tail = match.group() if match else tail
    tail = re.sub(r"\s\([^()=^]*[a-z]{3,}[^()]*\)\s*$", "", tail.strip())
    return re.sub(r"^(?:by|with|to|it's)\s+", "", tail.strip(" ,;:"))


def readings(text: str) -> list[str]:
    """The readings of a claim: "x (or equivalently y)" has two.

    >>> readings("mu^T mu, or equivalently x")
    ['mu^T mu', 'x']
    """
    pieces = [
        piece.strip(" ()$,;.*`") if "(" not in piece.strip(" ()") else piece.strip(" $,;.*`")
        for piece in _OR.split(text)
    ]
    return [piece for piece in pieces if re.search(r"\w", piece)][:4] or [text]
