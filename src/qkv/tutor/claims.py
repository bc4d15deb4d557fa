"""The final claim of a tutor on a part: found in the sections that answer it, and judged by the part itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..problems.argmax.answers import Found
from ..problems.judging.answers import Value, Values
from ..problems.judging.blanks import Einsum, ShapeOf
from ..problems.judging.chains import Chain
from ..problems.judging.choices import Choice, Choices
from ..problems.judging.prose import Ideas
from ..problems.outcome import Outcome
from ..problems.problem import Part
from .asserted import MENDS, asserted, masked_formulas, unquoted
from .candidates import candidates, ends, readings, unboxed, without_boxes
from .formulas import BOLD, equations, formulas, without_code
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
_ORDER = re.compile(r"\s*(?:\\mathcal\{?\s*)?(?:O|\\Theta|Θ)\b")
# "z_{2,1} = 3*0 + 2*1 = 2" on a line of its own, without signs for mathematics.
_WORKED_OUT = re.compile(r"^[ \t*-]*([A-Za-z]_\S+) = [^$\n]*= ?([^=$\n]+)$", re.MULTILINE)
_LEFT_OUT = re.compile(
    r"\b(?:not|neither|nor|never|except|without|out|excluded?|wrong|you (?:describe|say|chose|picked|mean)|"
    r"other (?:method|one)|n't|no)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Claim:
    """What was claimed of a part in a turn: `text` is the reading that was judged."""

    turn: int
    text: str
    outcome: Outcome
    explicit: bool = False
    section: str = field(default="", repr=False)
    whole: str = field(default="", repr=False)  # all that was judged, where `text` is cut


def claimed(part: Part, sections: Sequence[Section], turn: int) -> Claim | None:
    """The final claim of a turn's sections on a part; None where they claim nothing."""
    text = "\n\n".join(section.text for section in sections).strip()
    if not text:
        return None
    kind = part.answer
    if isinstance(kind, Found):
        return _looked_up(part, sections, turn, text)
    if in_words(part) or isinstance(kind, Choices):
        return _worded(part, sections, turn, text)
    if isinstance(kind, Values):
        return _several(part, sections, turn, text)
    if isinstance(kind, Chain):
        named = getattr(kind, "in_own_names", str)(text)
        return _first_read(part, _chains(named), turn, text)
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


def corrected_within(part: Part, sections: Sequence[Section], turn: int, said: str = "") -> Claim | None:
    """A wrong answer that the same turn takes back: one said to be the answer, with a word of correction after it.

    The word may stand below other parts, between two sections on this one: `said` is the whole turn.
    """
    text = "\n\n".join(section.text for section in sections)
    mended = MENDS.search(text)
    if in_words(part):
        return None
    before = [Section(part.name, text[: mended.start()])] if mended is not None else []
    if mended is None:
        places = [section.place for section in sections]
        cut = next((n for n in range(1, len(places)) if MENDS.search(said[places[n - 1] : places[n]])), 0)
        before = list(sections[:cut])
    claim = claimed(part, before, turn)
    return claim if claim is not None and claim.outcome.kind in ("wrong", "conditional") else None


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
        if outcome.kind == "incomplete":
            doubtful = doubtful or claim  # a piece of the answer, where the whole may be said as well
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
    chosen = _chosen(part.answer, plain) if isinstance(part.answer, Choice) else []
    return _first_read(part, [*chosen, *answers[::-1], unquoted(plain), plain, *lines], turn, text)


def _looked_up(part: Part, sections: Sequence[Section], turn: int, text: str) -> Claim | None:
    """Scores, index and output: what its chains come to, with the words between them, else everything as it stands."""
    kept = without_code("\n\n".join(said.text for section in sections for said in asserted(section.text)))
    pieces, done = [], 0
    for span in formulas(kept):
        said = "\n".join(ends(without_boxes(each)) for each in equations(span.text))
        # A displayed line ends a sentence, so that what follows it is not read as its value.
        pieces += [kept[done : span.start], said, ".\n" if span.display else " "]
        done = span.end
    whole = "".join([*pieces, kept[done:]])[:LONGEST]
    return _best_of(part, [whole, unquoted(without_code(text))[:LONGEST]], turn, text)


def _chosen(choice: Choice, text: str) -> list[str]:
    """The sentences that choose options by their labels, and do not leave them out or speak of what others choose."""
    labels = "|".join(re.escape(option.label) for option in choice.options)
    found = [said.text for said in asserted(text) if re.search(rf"\((?:{labels})\)", said.text)]
    return [said for said in found if not _LEFT_OUT.search(masked_formulas(said))][:3]


def _first_read(part: Part, texts: Iterable[str], turn: int, text: str) -> Claim | None:
    """The first of the texts that can be judged."""
    best: Claim | None = None
    for each in [each.strip() for each in texts if each.strip()][:MOST_TRIED]:
        outcome = part.check(each)
        claim = Claim(turn, _told(part, each), outcome, True, text, each)
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
    boxed = [unboxed(span.text) for span in spans if "boxed" in span.text]
    return [each for each in ("\n".join(display), "\n".join(every), *boxed, text[:LONGEST]) if each.strip()]


def _several(part: Part, sections: Sequence[Section], turn: int, text: str) -> Claim | None:
    """Claims on several objects with names: each is looked for by its name, the last mention first."""
    items = getattr(part.answer, "items", {})
    kept = "\n".join(said.text for section in sections for said in asserted(without_code(section.text)))
    found = _named_after(items, kept)
    for name in items if not found else ():
        value = _named_value(name, kept)
        if value:
            found[name] = value
    boxes = [box for span in formulas(kept) if (box := unboxed(span.text))]
    shown = _best_of(part, ["\n".join(boxes)], turn, text)
    if shown is not None and shown.outcome.kind in ("right", "wrong"):
        return shown  # what is put into boxes is the answer
    tries = ["; ".join(f"{name} = {value}" for name, value in found.items())] if found else []
    tries += [_dollarless(section.text) for section in reversed(sections) if section.answer or section.summary]
    lines = [each for span in formulas(kept) for each in equations(span.text) if "=" in each or "approx" in each]
    tries += ["\n".join(ends(without_boxes(each)) for each in lines)] if isinstance(part.answer, Values) else []
    worked = [f"{name} = {end}" for name, end in _WORKED_OUT.findall(kept)]
    tries += ["\n".join(worked)] if len(worked) > 1 and isinstance(part.answer, Values) else []
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
        claims.append(Claim(turn, _told(part, each), outcome, True, text, each))
        if outcome.kind == "right" or (outcome.kind == "wrong" and outcome.misconceptions):
            break
    return min(claims, key=lambda claim: order.index(claim.outcome.kind), default=None)


def _named_after(names: Iterable[str], text: str) -> dict[str, str]:
    """What stands before each name, where all are so: "$O(n^2)$ time and $O(n)$ memory"."""
    found: dict[str, str] = {}
    for span in formulas(text):
        after = text[span.end : span.end + 40]
        for name in names:
            words = _SYNONYMS.get(name)
            if (
                words
                and _ORDER.match(span.text)
                and re.match(rf"\s*(?:in |of |for )?(?:the )?(?:{words})\b(?!\s*[:=])", after, re.I)
            ):
                found.setdefault(name, equations(span.text)[-1] if equations(span.text) else span.text)
                break
    return found if found and set(found) == set(names) else {}


def _named_value(name: str, text: str) -> str:
    """What stands for a name at its last mention: "Time: $O(n)$" or "the time is O(n)"."""
    words = _SYNONYMS.get(name)
    if words is None:
        return ""
    value = _under_heading(words, text)
    if value:
        return value
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


def _under_heading(words: str, text: str) -> str:
    """The order of growth that stands under a heading of its own: "**Time.** … $$O(n)$$"."""
    headings = "|".join(set(_SYNONYMS.values()))
    begin = re.search(
        rf"^[ \t]*(?:[-*•#]+[ \t]*)*[*_]{{0,2}}(?:the )?(?:{words})\b[^\n.:]{{0,40}}[.:][*_]", text, re.I | re.M
    )
    if begin is None:
        return ""
    rest = text[begin.end() :]
    end = re.search(rf"^[ \t]*(?:[-*•#]+[ \t]*)*[*_]{{1,2}}(?:the )?(?:{headings})\b", rest, re.I | re.M)
    spans = [span for span in formulas(rest[: end.start()] if end else rest) if _ORDER.match(span.text)]
    shown = [span for span in spans if span.display] or spans
    return equations(shown[0].text)[-1] if shown and equations(shown[0].text) else ""


def _dollarless(text: str) -> str:
    """Text with the marks of formulas and of Markdown taken off, equations on lines of their own."""
    pieces, done = [], 0
    for span in formulas(text):
        pieces += [text[done : span.start], ("\n" if span.display else " ") + "\n".join(equations(span.text)) + " "]
        done = span.end
    whole = re.sub(r"^[ \t]*[-*•][ \t]+", "", "".join([*pieces, text[done:]]), flags=re.MULTILINE)
    return re.sub(r"`|^#+ ", "", BOLD.sub("", whole), flags=re.MULTILINE).strip()


def _told(part: Part, text: str) -> str:
    """What of a text was judged, as short as it can be said: the pieces with names, the formula, else the words."""
    kind = part.answer
    if isinstance(kind, Found):
        scores, index, output = kind.read(text)
        told = {"scores": scores, "index": index, "output": output}
        pieces = [f"{name} {said}" for name, said in told.items() if said is not None]
    elif isinstance(kind, Values):
        pieces = [f"{name} = {_short(said, 60)}" for name, said in kind.read(text).items()]
    else:
        pieces = []
    if pieces:
        return "; ".join(pieces)
    spans = [span for span in formulas(text) if span.display]
    if spans and not isinstance(kind, Ideas):
        return _short(" ".join(equations(spans[-1].text)))
    # The heading that a section begins with says nothing.
    said = re.sub(r"\A[^\n.:$]{1,60}\n+", "", text.lstrip(" *_#.:)\n"))
    return _short(said or text)


def _short(text: str, most: int = 300) -> str:
    said = " ".join(re.sub(r"^#+ |(?<=\s)#+ |\$", "", BOLD.sub("", text)).split())
    return said if len(said) <= most else said[: most - 1] + "…"
