"""The final claim of a tutor on a part: found in the sections that answer it, and judged by the part itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..problems.judging.answers import Value, Values
from ..problems.judging.blanks import Einsum, ShapeOf
from ..problems.judging.chains import Chain
from ..problems.judging.choices import Choices
from ..problems.outcome import Outcome
from ..problems.problem import Part
from .asserted import CONCLUDES, MENDS, Said, asserted, masked_formulas, unquoted
from .formulas import equations, formulas, without_code
from .labels import Section

MOST_TRIED = 8  # readings of one claim that are judged
LONGEST = 6_000  # characters of a section that are looked at for an answer in words

_SYNONYMS = {
    "time": r"time|comput\w+|runtime|flops|operations|arithmetic",
    "space": r"space|memory|storage",
    "compute": r"comput\w+|time|flops|operations",
    "memory": r"memory|space|storage|bytes",
    "output": r"output|result|attention output|answer",
    "index": r"index|argmax|position",
}
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
    r"(?:^|\b(?:is|are|be|equals?|becomes?|gives?|get|obtain|yields?|stays?|remains?|namely|by|to|or|and|so|thus|hence|therefore)|"
    r"[:(=→⇒])\W*$",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")


@dataclass(frozen=True)
class Claim:
    """What was claimed of a part in a turn: `text` is the reading that was judged."""

    turn: int
    text: str
    outcome: Outcome
    explicit: bool = False
    section: str = field(default="", repr=False)
    whole: str = field(default="", repr=False)  # all that was judged, where `text` is cut


@dataclass(frozen=True)
class Candidate:
    text: str
    rank: int  # 4 boxed, 3 said to be the answer, 2 the part's own left side, 1 a conclusion, 0 a formula at the end
    place: int = 0


def claimed(part: Part, sections: Sequence[Section], turn: int) -> Claim | None:
    """The final claim of a turn's sections on a part; None where they claim nothing."""
    text = "\n\n".join(section.text for section in sections).strip()
    if not text:
        return None
    kind = part.answer
    if in_words(part) or isinstance(kind, Choices):
        return _worded(part, sections, turn, text)
    if isinstance(kind, Values):
        return _several(part, sections, turn, text)
    if isinstance(kind, Chain):
        return _first_read(part, _chains(text), turn, text)
    if isinstance(kind, ShapeOf | Einsum):
        return _first_read(part, _filled(sections), turn, text)
    if isinstance(kind, Value):
        return _formula(part, sections, turn, text)
    return _several(part, sections, turn, text)


def in_words(part: Part) -> bool:
    """Whether a part is answered by words or by choosing, and not by a formula."""
    return not any(hasattr(part.answer, name) for name in ("symbols", "items", "dims", "spec", "number"))


def completed(part: Part, claim: Claim, before: Claim) -> Claim:
    """A claim that mends or adds to what was said before, taken together with it."""
    if claim.outcome.kind != "incomplete" or not before.whole or not claim.whole:
        return claim
    outcome = part.check(f"{before.whole}\n{claim.whole}")
    return claim if outcome.kind == "unread" else replace(claim, outcome=outcome)


def corrected_within(part: Part, sections: Sequence[Section], turn: int) -> Claim | None:
    """A wrong answer that the same turn takes back: one said to be the answer, with a word of correction after it."""
    text = "\n\n".join(section.text for section in sections)
    mended = MENDS.search(text)
    if mended is None or in_words(part):
        return None
    before = [Section(part.name, text[: mended.start()])]
    claim = claimed(part, before, turn)
    return claim if claim is not None and claim.outcome.kind in ("wrong", "conditional") else None


def candidates(part: Part, sections: Iterable[Section]) -> list[Candidate]:
    """Everything that may be the claim, the likeliest first."""
    found: list[Candidate] = []
    place = 0
    cues = [re.compile(cue, re.IGNORECASE) for cue in part.cues]
    for section in sections:
        text = without_code(section.text)
        listed = section.summary or section.answer
        text = text.strip().split("\n\n")[0] if section.summary else text
        for said in asserted(text):
            place += 1
            found += _of_sentence(said, place, cues, (listed and place == 1) or section.answer or section.summary)
    return sorted(found, key=lambda each: (-each.rank, -each.place))


def _of_sentence(said: Said, place: int, cues: list[re.Pattern[str]], listed: bool) -> list[Candidate]:
    found: list[Candidate] = []
    spans = formulas(said.text)
    boxes = [box for box in (_unboxed(span.text) for span in spans) if box] or (
        [box] if (box := _unboxed(said.text)) else []
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
    if not spans:
        plain = _plain_claim(said.text[start:stop])
        pieces = [(plain, False)] if plain else []
    for order, (piece, display) in enumerate(pieces):
        known = any(cue.search(f"{_left(piece)} =") for cue in cues) if "=" in piece or "approx" in piece else False
        rank = (
            3 if said.answers or listed else 2 if known and not said.wanted else 1 if said.concludes or display else 0
        )
        if said.wanted and not listed and not said.answers:
            rank = min(rank, 0)
        # In "the answer is x, or y" the first is the claim; elsewhere the last formula of a sentence is.
        found.append(Candidate(piece, rank, 1000 * place + (-order if rank == 3 else order)))
    return found


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


def _unboxed(text: str) -> str:
    """What the last box of a text holds."""
    for found in list(_BOXED.finditer(text))[: -MOST_TRIED - 1 : -1]:
        depth = 1
        for place in range(found.end(), min(len(text), found.end() + 3000)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[found.end() : place].strip()
    return ""


def _left(equation: str) -> str:
    """The left side of an equation."""
    return re.split(r"(?<![<>!\\])=|\\approx|≈", equation, maxsplit=1)[0].strip()


def _plain_claim(text: str) -> str:
    """The mathematics of a sentence without marks: what follows its last verb or the whole where it is an equation."""
    text = re.sub(r"\*\*|__|`", "", text).strip().rstrip(".")
    text = re.sub(r"^\s*[-•]\s+", "", text)
    verbs = list(_VERB.finditer(text))
    tail = text[verbs[-1].end() :] if verbs else text
    if "=" in text and "=" not in tail:
        match = re.search(r"(\S+(?:\s*[\^(\[]\S+)?)\s*=\s*([^,;]+)", text)
        tail = match.group() if match else tail
    tail = re.sub(r"\s\([^()=^]*[a-z]{3,}[^()]*\)\s*$", "", tail.strip())
    return tail.strip(" ,;:")


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


def _judged(part: Part, text: str) -> tuple[Outcome, str]:
    """The outcome of a claim: as the first reading that can be read, unless another one is refuted."""
    first: tuple[Outcome, str] | None = None
    for reading in readings(text):
        outcome = _checked(part, reading)
        if outcome.kind == "unread":
            continue
        if first is None:
            first = (outcome, reading)
        elif first[0].kind == "right" and outcome.kind == "wrong" and outcome.misconceptions:
            return outcome, reading
    return first or (_checked(part, text), text)


def _checked(part: Part, text: str) -> Outcome:
    """The outcome of a reading; of a chain that cannot be read as a whole, that of its end."""
    outcome = _unread_if_undeclared(part.check(text))
    if outcome.kind == "unread" and "=" in text:
        end = _unread_if_undeclared(part.check(text.rpartition("=")[2].strip()))
        return end if end.kind != "unread" else outcome
    return outcome


def _unread_if_undeclared(outcome: Outcome) -> Outcome:
    """A name or an index that nobody declared makes a claim one that cannot be read, and not a wrong one."""
    verdict = outcome.verdict
    if verdict is None or verdict.kind != "ill-typed" or outcome.misconceptions:
        return outcome
    unknown = re.search(r"is not declared|are not declared|nothing says how far", outcome.reason)
    return replace(outcome, kind="unread") if unknown else outcome


def _formula(part: Part, sections: Sequence[Section], turn: int, text: str) -> Claim | None:
    """A claim that is one mathematical object."""
    tried = 0
    unread: Claim | None = None
    doubtful: Claim | None = None
    for candidate in candidates(part, sections):
        if tried == MOST_TRIED:
            break
        tried += 1
        outcome, reading = _judged(part, candidate.text)
        claim = Claim(turn, reading, outcome, candidate.rank >= 2, text)
        if outcome.kind == "unread":
            unread = unread or (claim if candidate.rank >= 2 else None)
            continue
        if candidate.rank >= 1 or outcome.kind == "right" or outcome.misconceptions:
            # What is said to follow may be a step on the way, where something right is said as well.
            if candidate.rank == 1 and outcome.kind != "right" and not outcome.misconceptions:
                doubtful = doubtful or claim
                continue
            return claim
        if not _left_is_other(candidate.text):
            doubtful = doubtful or claim
    return doubtful or unread


def _left_is_other(equation: str) -> bool:
    """Whether an equation has a left side, so that it may be about something else."""
    return "=" in equation


def _worded(part: Part, sections: Sequence[Section], turn: int, text: str) -> Claim | None:
    """An explanation: the section said to be the answer where it can be read, else everything, else a formula."""
    plain = without_code(text)[:LONGEST]
    answers = [section.text for section in sections if section.answer or section.summary]
    lines = [equation for span in reversed(formulas(plain)) for equation in equations(span.text) if "=" in equation]
    return _first_read(part, [*answers[::-1], unquoted(plain), plain, *lines], turn, text)


def _first_read(part: Part, texts: Iterable[str], turn: int, text: str) -> Claim | None:
    """The first of the texts that can be judged."""
    best: Claim | None = None
    for each in [each.strip() for each in texts if each.strip()][:MOST_TRIED]:
        outcome = part.check(each)
        claim = Claim(turn, _short(each), outcome, True, text, each)
        if outcome.kind in ("right", "wrong", "conditional"):
            return claim
        if best is None or best.outcome.kind == "unread":
            best = claim
    return best


def _filled(sections: Sequence[Section]) -> list[str]:
    """The texts that may fill a blank: in code marks, in formulas, then the line itself, the last section first."""
    found: list[str] = []
    for section in reversed(sections):
        lines = [said.text for said in asserted(section.text)] or [section.text]
        marked = [code for line in lines for code in re.findall(r"`([^`\n]+)`", line)]
        marked += [line for line in lines if "einsum" in line or "->" in line]
        marked += [span.text for line in lines for span in formulas(line)]
        found += marked + lines
    return found


def _chains(text: str) -> list[str]:
    """The displayed mathematics of a proof as one text, then all of it, then the words as well."""
    spans = formulas(text)
    display = [equation for span in spans if span.display for equation in equations(span.text)]
    every = [equation for span in spans for equation in equations(span.text) if "=" in equation]
    boxed = [_unboxed(span.text) for span in spans if "boxed" in span.text]
    return [each for each in ("\n".join(display), "\n".join(every), *boxed, text[:LONGEST]) if each.strip()]


def _several(part: Part, sections: Sequence[Section], turn: int, text: str) -> Claim | None:
    """Claims on several objects with names: each is looked for by its name, the last mention first."""
    items = getattr(part.answer, "items", {})
    kept = "\n".join(said.text for section in sections for said in asserted(without_code(section.text)))
    found: dict[str, str] = {}
    for name in items:
        value = _named_value(name, kept)
        if value:
            found[name] = value
    tries = ["; ".join(f"{name} = {value}" for name, value in found.items())] if found else []
    tries += [_dollarless(section.text) for section in reversed(sections) if section.answer or section.summary]
    tries += [_dollarless(kept)[:LONGEST], _dollarless(text)[:LONGEST]]
    if not isinstance(part.answer, Values):
        tries += [
            equation
            for span in reversed(formulas(kept))
            for equation in reversed(equations(span.text))
            if "=" in equation
        ]
    return _best_of(part, tries, turn, text)


def _best_of(part: Part, tries: Sequence[str], turn: int, text: str) -> Claim | None:
    """The reading that says most: right before wrong, both before what is not whole."""
    order = ("right", "wrong", "conditional", "incomplete", "unread")
    claims: list[Claim] = []
    for each in [each for each in tries if each.strip()][:MOST_TRIED]:
        outcome = part.check(each)
        claims.append(Claim(turn, _short(each), outcome, True, text, each))
        if outcome.kind == "right" or (outcome.kind == "wrong" and outcome.misconceptions):
            break
    return min(claims, key=lambda claim: order.index(claim.outcome.kind), default=None)


def _named_value(name: str, text: str) -> str:
    """What stands for a name at its last mention: "Time: $O(n)$" or "the time is O(n)"."""
    words = _SYNONYMS.get(name)
    if words is None:
        return ""
    value = ""
    for found in re.finditer(
        rf"\b(?:{words})\b[^\n.;:=$]{{0,60}}?(?:[:=]|\bis\b|\bof\b|\bare\b|(?=\$))\**\s*([^\n;]+)", text, re.I
    ):
        rest = found.group(1)
        spans = formulas(rest)
        order = re.match(r"[^$\n]{0,40}?([OΘ]\s*\((?:[^()]|\([^()]*\))*\))", rest)
        if spans and spans[0].start < 40:
            value = equations(spans[0].text)[-1] if equations(spans[0].text) else value
        elif order is not None:
            value = order.group(1)
    return value


def _dollarless(text: str) -> str:
    """Text with the marks of formulas and of Markdown taken off, equations on lines of their own."""
    pieces, done = [], 0
    for span in formulas(text):
        pieces += [text[done : span.start], ("\n" if span.display else " ") + "\n".join(equations(span.text)) + " "]
        done = span.end
    whole = re.sub(r"^[ \t]*[-*•][ \t]+", "", "".join([*pieces, text[done:]]), flags=re.MULTILINE)
    return re.sub(r"\*\*|__|`|^#+ ", "", whole, flags=re.MULTILINE).strip()


def _short(text: str, most: int = 300) -> str:
    said = " ".join(re.sub(r"\*\*|__|^#+ |(?<=\s)#+ |\$", "", text).split())
    return said if len(said) <= most else said[: most - 1] + "…"
