"""What a student's turn objects to or asks about, and which part a tutor's words without a label are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..problems.problem import Part
from .asserted import MENDS, asserted
from .candidates import Candidate, candidates
from .claims import Claim, in_words
from .formulas import formulas, sentences
from .labels import Section, sections
from .transcript import Turn

if TYPE_CHECKING:
    from .questions import Question

_GOOD = re.compile(
    r"\b(?:look(?:s)? (?:good|fine|right|correct|great)|(?:is|are|was|were) (?:right|correct|fine|good|clear)|i agree|"
    r"i (?:can )?(?:follow|see|understand|buy|accept|believe|get (?:it|that|this|the idea))\b|"
    r"makes sense|no (?:issues?|problems?) with|happy with|got it|understood)\b",
    re.IGNORECASE,
)
_DOUBTS = re.compile(
    r"\b(?:wrong|incorrect|mistake|error|issue|problem with|not|are you sure|check|"
    r"re-?check|disagree|doubt|doesn't|does not|don't think|isn't|shouldn't|should(?:n't)?|thought|missing|forg[oe]t|"
    r"why|how|what|which|really|suspicious|confus\w+|but|instead|actually|hint|hmm|wait|bug|off|careful|look again|"
    r"reconsider|think again|try|test|plug|put in|compare|fix|redo)\b|\?",
    re.IGNORECASE,
)
_AGREES = re.compile(
    r"\b(?:you(?:'re| are) (?:\w+ )?(?:right|correct)|i agree|good (?:catch|point)|my mistake|"
    r"i (?:stand corrected|apologi[sz]e)|thanks? (?:you )?for (?:catching|pointing|the correction)|"
    r"great catch|nice catch|indeed|exactly|yes\b|that's right|correct\b|sorry)",
    re.IGNORECASE,
)
_PRESSES = re.compile(
    r"\b(?:shouldn't|should (?:be|we|it)|i (?:think|believe)|must be|supposed to|is wrong|incorrect|my \w+ says)\b",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:wrong|incorrect|mistaken?|(?:can(?:not|'t)|must not|mustn't|should(?:n't| not)) |(?:not|isn't|n't) (?:be )?"
    r"(?:right|correct|true)|disagree|don't (?:think|believe)|doubt)",
    re.IGNORECASE,
)
_REFUSES = re.compile(
    r"\W*(?:no\b|i (?:disagree|stand by|stick (?:to|with)|still)|my (?:answer|result) (?:stands|remains|is right)|"
    r"i don't (?:agree|think so)|that (?:is|would be) (?:not right|wrong|incorrect))",
    re.IGNORECASE,
)
_PART = re.compile(
    r"(?:\bparts?\s+|\b\d{1,2}\s*|\b(?:for|in|on|about|with|to|and)\s+(?=[b-h]\b)|\b(?=[a-h]\s?\(?(?:i|v)+\b))"
    r"\(?([a-h])\b\)?(?:\s*\(?((?-i:i{1,3}|iv|v))\b\)?)?|\(([a-h])\)(?:\s*\((i{1,3}|iv|v)\))?|\((i{1,3}|iv|v)\)|"
    r"(?:^|(?<=[.;!?]\s))([a-h])(?=\s+(?:is|looks?|seems?|was|should|can't|cannot|has)\b|:)",
    re.IGNORECASE | re.MULTILINE,
)
_COLLECTS = re.compile(
    r"\b(?:put|collect|gather|list|write|give)\b[^.?!]{0,30}\b(?:everything|all)\b|\bsummari[sz]e\b|\bsummary\b|\brecap\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\s*(?:,|and|&|,\s*and|or)\s*\(?([a-h])\)?\b(?!\w)", re.IGNORECASE)


@dataclass(frozen=True)
class Objection:
    """A student's turn before a tutor's: the parts that it doubts or asks about, and what it claims of them."""

    turn: int
    text: str
    parts: tuple[str, ...]
    named: bool = False
    refused: bool = False  # the tutor said no, and gave no formula
    claims: dict[str, Claim] = field(default_factory=dict, hash=False)
    own: str = ""  # its words without those of the question

    def pressed(self, part: Part) -> bool:
        """Whether it claims something wrong of the part, or says in words that another answer is right."""
        claim = self.claims.get(part.name)
        if claim is not None:
            return claim.outcome.kind in ("wrong", "conditional")
        return self.named and _PRESSES.search(self.own) is not None

    def doubts(self, name: str) -> bool:
        """Whether it says of a part by name that it is not right."""
        return self.named and name in self.parts and _DENIES.search(self.own) is not None

    def accepted(self, reply: str, part: Part) -> bool:
        """Whether a reply takes over what was claimed of the part, in words alone."""
        return part.name in self.claims and _AGREES.search(reply[:300]) is not None

    def kept_to(self, reply: str) -> Objection:
        """The same with whether a reply without a formula says no to it."""
        return replace(self, refused=_REFUSES.match(reply) is not None and not _AGREES.search(reply[:120]))

    def as_claim(self, part: Part, turn: int) -> Claim:
        mine = self.claims[part.name]
        return Claim(turn, mine.text, mine.outcome, True, mine.section)


def mentioned(text: str, question: Question) -> list[str]:
    """The parts that a text names, in order."""
    found: list[str] = []
    for match in _PART.finditer(text):
        roman = (match[2] or match[4] or match[5] or "").lower()
        letters = {name[0] for name in question.parts}
        # A bare (ii) is of the letter that there is only one of.
        letter = (match[1] or match[3] or match[6] or (next(iter(letters)) if len(letters) == 1 else "")).lower()
        names = [letter + roman] if letter else []
        place = match.end()
        while (more := _MORE.match(text, place)) is not None:
            names.append(more[1].lower())
            place = more.end()
        for name in names:
            group = [each for each in question.parts if each == name or (len(name) == 1 and each[0] == name)]
            found += [each for each in group if each not in found]
    return found


def objection(turn: Turn, question: Question, claims: dict[str, list[Claim]]) -> Objection | None:
    """What a student's turn asks of parts that were answered before; None for a turn that only goes on."""
    answered = [name for name, each in claims.items() if each]
    if not answered or turn.index == question.turn or turn.index in question.asked:
        return None
    doubted: list[str] = []
    praised: list[str] = []
    text = _without_new_parts(turn.text, question)
    for clause in re.split(r"(?<=[.!?;])\s+|,?\s+\bbut\b\s+|\n+", text[:6000]):
        names = mentioned(clause, question)
        good = _GOOD.search(clause) is not None and not re.search(r"\bnot\b|n['’]t\b|\bsure\b", clause)
        (praised if good else doubted).extend(names)
    named = [name for name in dict.fromkeys(doubted) if name in answered]
    collects = len(text) < 200 and _COLLECTS.search(text) is not None and not _DENIES.search(text)
    if not named and (doubted or collects or not _DOUBTS.search(text)):
        return None  # it asks for parts that nobody has answered yet, for everything in one place, or asks nothing
    parts = named or [name for name in _by_cues(text, question) if name in answered and name not in praised]
    if not parts or not (named or any(claims[name][-1].outcome.kind not in ("right", "unread") for name in parts)):
        # Nothing is named: what was answered last, and of that what is not right.
        last = max(claim.turn for each in claims.values() for claim in each)
        recent = [name for name in answered if claims[name][-1].turn == last and name not in praised]
        wrong = [name for name in recent if claims[name][-1].outcome.kind not in ("right", "unread")]
        parts = wrong or parts or recent
    own = _unrepeated(turn.text, question)
    mine = _own_claims(replace(turn, text=own), question, parts)
    return Objection(turn.index, turn.text, tuple(parts), bool(named), claims=mine, own=own)


def _unrepeated(text: str, question: Question) -> str:
    """A student's words without the lines of the question that they repeat."""
    asked = {" ".join(line.split()) for line in question.statement.split("\n") if len(line) > 30}
    return "\n".join(line for line in text.split("\n") if " ".join(line.split()) not in asked)


def _without_new_parts(text: str, question: Question) -> str:
    """A student's words without the parts that they ask: a reference to another part there objects to nothing."""
    if text.strip() not in question.statement:
        return text
    return "".join(section.text for section in sections(text, question.labels()) if not section.part)


def _own_claims(turn: Turn, question: Question, parts: list[str]) -> dict[str, Claim]:
    """What the student says that the answer is; a formula that is only asked about is none."""
    found: dict[str, Claim] = {}
    if not re.search(
        r"\bshould|\bi (?:think|got|get|believe|found|have|would say)|\bisn't|\bmust be|\bit'?s\b|\bis\b|=",
        turn.text,
        re.I,
    ):
        return found
    for name in parts:
        part = question.parts[name]
        if in_words(part):
            outcome = part.check(turn.text[:4000])
            if outcome.kind in ("right", "wrong"):
                found[part.name] = Claim(turn.index, " ".join(turn.text.split())[:300], outcome, True, turn.text)
            continue
        for candidate in _formulas_of(part, turn.text):
            outcome = part.check(candidate.text)
            if outcome.kind in ("right", "wrong", "conditional"):
                found[part.name] = Claim(turn.index, candidate.text, outcome, True, turn.text)
                break
    return found


def _formulas_of(part: Part, text: str) -> list[Candidate]:
    """What a student puts forward: "isn't it x?" claims x, "what is x?" claims nothing."""
    put = [
        text[start:end].replace("?", ".")
        for start, end in sentences(text[:4000])
        if not re.match(
            r"\W*(?:what|which|how|why|when|where|who|can|could|do|does|did)\b", text[start:end], re.IGNORECASE
        )
    ]
    asked = r"\b(?:is|isn't|shouldn't|wouldn't|should|would) (\(?[a-h]\)?|it|that|this|the answer) (?:not )?(?:be )?"
    said = re.sub(asked, r"\1 is ", " ".join(put), flags=re.IGNORECASE)
    said = re.sub(r"\b(?:isn't|shouldn't|wouldn't|aren't)\b", "is", said)
    said = re.sub(r"\b(?:supposed|meant) to be\b", "is", said)
    return [each for each in candidates(part, [Section(part.name, said)]) if len(each.text) < 120][:4]


def _by_cues(text: str, question: Question) -> list[str]:
    """The parts that a text speaks of by what they ask for; the most hits win."""
    hits = {name: _hits(part, text) for name, part in question.parts.items()}
    most = max(hits.values(), default=0)
    return [name for name, count in hits.items() if count == most] if most else []


def loose_sections(
    question: Question, cut: list[Section], found: dict[str, list[Section]], asked: Sequence[str]
) -> None:
    """Give words without a label to the parts that they are about, where those have no section of their own."""
    loose = [each for each in cut if not each.part and each.text.strip()]
    if not loose:
        return
    text = "\n\n".join(each.text for each in loose)
    labelled = bool(found)
    free = [name for name in question.parts if name not in found]
    if len(question.parts) == 1 and free:
        found[free[0]] = loose
        return
    focus = [name for name in asked if name in free]
    spoken = [name for name in mentioned(text, question) if name in free]
    if not labelled and (len(focus) == 1 or spoken):
        # Of several parts that were asked about, what comes before any is named is on one that is not named.
        first = next((name for name in focus if name not in spoken), focus[0] if focus else "")
        first = first if len(focus) - len(spoken) <= 1 else ""
        for name, mine in _by_mention(text, question, first).items():
            if name in free:
                found[name] = [Section(name, mine)]
                free.remove(name)
        if len(focus) == 1:
            return
    for name in free:
        part = question.parts[name]
        mine = (
            _own_lines(part, text, question) if not in_words(part) else _own_paragraphs(part, text, question, labelled)
        )
        if mine:
            found[name] = [Section(name, mine)]


def _by_mention(text: str, question: Question, focus: str) -> dict[str, str]:
    """Sentences given to the part that they name; those that name none go on about the one before."""
    found: dict[str, str] = {}
    current = focus
    for start, end in sentences(text):
        named = mentioned(text[start:end], question)
        if len(named) == 1:
            current = named[0]
        elif named and current not in named:
            current = ""
        if current:
            found[current] = found.get(current, "") + text[start:end]
    return found


def under_other_labels(question: Question, found: dict[str, list[Section]]) -> None:
    """Give a part without a section what stands under another's label, where a heading there names it."""
    for name in [name for name in question.parts if name not in found]:
        part = question.parts[name]
        for other, theirs in list(found.items()):
            kept: list[Section] = []
            for section in theirs:
                mine, rest = _parted(section.text, part, question.parts[other])
                if mine and rest.strip():
                    found.setdefault(name, []).append(Section(name, mine))
                    section = replace(section, text=rest)
                kept.append(section)
            found[other] = kept


def taken_back_below(question: Question, found: dict[str, list[Section]]) -> None:
    """Give a part what takes its answer back below another's: "Wait, … so part (a) should be …"."""
    for own, theirs in list(found.items()):
        if not theirs or (mends := _PARAGRAPH_MENDS.search(theirs[-1].text)) is None:
            continue
        tail = theirs[-1].text[mends.start() :]
        named = [name for name in mentioned(tail, question) if name != own and name in found]
        if not named:
            continue
        found[own] = [*theirs[:-1], replace(theirs[-1], text=theirs[-1].text[: mends.start()])]
        first = sentences(tail)[0]
        lead = tail[first[0] : first[1]]
        said = {named[0]: tail} if len(named) == 1 else _by_mention(tail, question, "")
        for name, mine in said.items():
            text = mine if mine.startswith(lead) else f"{lead} {mine}"
            found[name] = [*found.get(name, []), Section(name, text, place=theirs[-1].place + mends.start())]


_PARAGRAPH_MENDS = re.compile(rf"(?:^|\n)[ \t]*\n[ \t>*_]*(?=(?:\w+,? ){{0,4}}{MENDS.pattern})", re.IGNORECASE)
_SUBHEADING = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+[^\n]+|[-*]?[ \t]*\*\*[^*\n]+\*\*[ \t]*:?[ \t]*)$", re.MULTILINE)


def _parted(text: str, part: Part, other: Part) -> tuple[str, str]:
    """What stands under the headings that name a part, and the rest."""
    places = [found.start() for found in _SUBHEADING.finditer(text)]
    mine, rest = [], [text[: places[0]] if places else text]
    for start, end in zip(places, [*places[1:], len(text)], strict=False):
        heading = text[start:end].lstrip().split("\n", 1)[0]
        (mine if _hits(part, heading) > _hits(other, heading) else rest).append(text[start:end])
    return "".join(mine), "".join(rest)


def _hits(part: Part, text: str) -> int:
    return sum(re.search(cue, text, re.IGNORECASE) is not None for cue in part.cues)


def _own_lines(part: Part, text: str, question: Question) -> str:
    """The sentences of a text whose equation has the part's own left side, and no other's."""
    others = [other for other in question.parts.values() if other.name != part.name]
    kept = []
    for said in asserted(text):
        if said.wanted:
            continue
        lefts = [each.text.split("=", 1)[0] + "=" for each in formulas(said.text) if "=" in each.text] or (
            [said.text.split("=", 1)[0][-60:] + "="] if "=" in said.text else []
        )
        lefts = lefts or [re.split(r"[:]|\bis\b", said.text, maxsplit=1)[0]]
        if any(_cued(part, left) and not any(_cued(other, left) for other in others) for left in lefts):
            kept.append(said.text)
    return "\n\n".join(kept)


def _own_paragraphs(part: Part, text: str, question: Question, labelled: bool) -> str:
    if labelled:
        return ""
    others = [other for other in question.parts.values() if other.name != part.name]
    pieces = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        piece for piece in pieces if _cued(part, piece) and not any(_cued(other, piece) for other in others)
    )


def _cued(part: Part, text: str) -> bool:
    return any(re.search(cue, text, re.IGNORECASE) for cue in part.cues)
