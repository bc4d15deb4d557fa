"""Who says what, where no speakers are marked: told from who asks and who explains, paragraph by paragraph."""

from __future__ import annotations

import re

CHANGE = 2.0  # what a change of speaker costs, in the units of the weights below
LOOKED_AT = 4000  # characters of a paragraph that are weighed
MOST = 10_000  # paragraphs

_ATTACHED = re.compile(
    r"^\W*(?:(?:pdf|file|image|attachment|attached)\b[\s:]*)?[\w\\ ()-]{1,80}\."
    r"(?:pdf|docx?|png|jpe?g|ipynb|tex|md|txt)\W*$",
    re.IGNORECASE,
)
_SUGGESTED = re.compile(r"^\s*[↳→➤»]\s")
_POLITE = r"(?:(?:yes|no|yep|please|thanks)[^\w\n]+){0,2}"

# Positive for the student, negative for the tutor. What stands before the first word of a line ends with the line:
# if it went on over empty lines, each of them would be a beginning, and the time would grow with their square.
_SIGNS: tuple[tuple[float, re.Pattern[str]], ...] = tuple(
    (weight, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for weight, pattern in (
        (3.0, r"\b(?:can|could|would|will) you (?:please )?(?:help|explain|solve|show|check|walk|derive|give)"),
        (2.5, r"\byour (?:response|answer|solution|derivation|result|reasoning|work|claim|part|reply)s?\b"),
        (2.5, r"\b(?:what|how) (?:would|is|are|about|kind|do|does|should)\b[^?\n]{0,200}\?"),
        (2.0, r"\b(?:i (?:noticed?|think|don't|disagree|believe|got)|isn't it|you (?:said|wrote|forgot)|please)\b"),
        (2.0, r"^[ \t]*(?:hey|hi|hello|ok(?:ay)?|wait|hmm|thanks?|thank you|great, |now)\b[^\n]{0,200}"),
        (2.0, r"\b(?:i'll|i will|i'm) (?:begin|start|giv|provid|past|upload|send|looking)"),
        (1.5, r"\b(?:for now|one[- ]by[- ]one|(?:first|next) problem|let's move on|my (?:homework|class))\b"),
        (2.5, r"\b(?:are you (?:sure|certain)|did you (?:forget|mean|use|check)|why (?:is|did|do|does|not))\b"),
        (2.0, rf"^[^\w\n]*{_POLITE}(?:question|problem|exercise) \d+ ?(?::|\.|goes|is|reads)"),
        (1.5, r"\([a-d]\)[^?\n]{5,300}\?"),
        (1.0, r"\?(?:\s|$)"),
        (-4.0, r"^[ \t]*#{1,6}\s"),
        (-3.0, r"\$\$|\\\[|\\begin\{"),
        (-3.0, r"\byou(?:'re| are) (?:\w+ )?(?:right|correct)\b|\b(?:good|great) (?:catch|question)|\bi apologi[sz]e"),
        (-1.5, r"\bmy (?:mistake|earlier|previous)|\bi (?:missed|misread)\b|\bthanks? (?:you )?for catching"),
        (-3.0, r"\b(?:i'd be|i would be|i am|i'm) (?:happy|glad|delighted) to|\bhappy to help|\blet me know\b"),
        (-3.0, r"\*\*\s*(?:final )?(?:answer|part|solution|step|result|summary)|\bsummary of answers|\bfinal answer"),
        (-2.5, r"\b(?:ready for|would you like|could you share|you'd like to|do you want me|feel free)\b"),
        (-3.0, r"^[ \t]*(?:sure|certainly|of course|absolutely|gladly|(?:with|my) pleasure|understood|happy to)\b"),
        (-2.0, r"^[ \t]*(?:great!|let's (?:dive|look|work|start|go)|fair (?:point|question))"),
        (-2.5, r"\b(?:paste|send|share|post|show me|tell me|drop|upload|type) (?:me )?(?:the|your|it|which|what)\b"),
        (-1.5, r"^[ \t]*(?:since|because|thus|therefore|hence|so|where|now assume|recall|note that|using|by |from )"),
        (-1.5, r"^[ \t]*(?:we (?:have|get|want|need|look|can)|set |and$|still )"),
        (-1.0, r"\$[^$\n]{1,300}=[^$\n]{1,300}\$"),
        (-1.0, r"^[ \t]*[-*]\s+\(?[a-h]\)"),
        (-2.0, r"(?:^[ \t]*(?:[-*]\s+)?\(?[a-h]\)[*:.]*[ \t]*\$[^$\n]{1,300}\$[.,;]?[ \t]*(?:\n|\Z)){2}"),
        (-2.5, r"^[ \t]*(?:[-*]\s+)?\(?[a-h]\)[*:.]*\s*\$[^$\n]{1,300}\$[.,;]?\s*$"),
        (4.5, r"\A\s*(?:your |part )?\(?[a-h]\)? (?:is|looks|seems) (?:\w+ )?(?:wrong|off|incorrect|odd)\b.{0,80}\Z"),
        (-2.5, r"^[ \t]*(?:apologies|sorry|my apologies|oops|good point|fair)\b"),
    )
)  # fmt: skip


def paragraphs(text: str) -> list[str]:
    """A text cut at empty lines; code and displayed formulas stay whole."""
    found: list[list[str]] = [[]]
    fenced = formula = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and line.count("$$") % 2:
            formula = not formula
        if line.strip() or fenced or formula:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


def weight(paragraph: str) -> float:
    """How much a paragraph speaks for the student (above 0) or for the tutor.

    >>> weight("Can you help me with problem 1?") > 0 > weight("**Answer (a):** $d$")
    True
    """
    head = paragraph[:LOOKED_AT]
    total = sum(value for value, sign in _SIGNS if sign.search(head))
    return total - (1.0 if len(paragraph) > 1500 else 0.0)


def alternating(text: str) -> tuple[list[tuple[str, str, str]], tuple[str, ...]]:
    """The turns of a text without marks: the likeliest speakers, where changing costs and the student begins.

    The second value says what was left out.
    """
    pieces = [piece for piece in paragraphs(text) if not _SUGGESTED.match(piece)]
    if not pieces:
        return [], ()
    left = len(pieces) - MOST
    notes = (f"only the first {MOST:,} paragraphs were read: {left:,} were left out",) if left > 0 else ()
    pieces = pieces[:MOST]
    speakers = _likeliest(pieces)
    turns: list[tuple[str, list[str]]] = []
    for speaker, piece in zip(speakers, pieces, strict=True):
        if re.fullmatch(r"\s*(?:[-*_]\s*){3,}", piece):
            continue
        if turns and turns[-1][0] == speaker:
            turns[-1][1].append(piece)
        else:
            turns.append((speaker, [piece]))
    return [(speaker, "\n\n".join(said), "") for speaker, said in turns], notes


def _likeliest(pieces: list[str]) -> list[str]:
    """Viterbi's way through the paragraphs: two speakers, a cost for every change."""
    score = {"student": 0.0, "tutor": -1e9}
    back: list[dict[str, str]] = []
    for place, piece in enumerate(pieces):
        attached = len(piece) < 200 and bool(_ATTACHED.match(piece))
        rule = re.fullmatch(r"\s*(?:[-*_]\s*){3,}", piece) is not None
        here = 0.0 if place == 0 or rule else (2.0 if attached else weight(piece))
        cost = CHANGE / 3 if rule else CHANGE
        best: dict[str, float] = {}
        came: dict[str, str] = {}
        for speaker, other in (("student", "tutor"), ("tutor", "student")):
            stay, change = score[speaker], score[other] - (cost if place else 1e9)
            came[speaker] = speaker if stay >= change else other
            best[speaker] = max(stay, change) + (here if speaker == "student" else -here) / 2
        score = best
        back.append(came)
    speaker = max(score, key=lambda name: score[name])
    way = [speaker]
    for came in reversed(back[1:]):
        speaker = came[speaker]
        way.append(speaker)
    return way[::-1]
