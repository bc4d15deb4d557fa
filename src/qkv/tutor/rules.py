"""The rules that a student sets at the start, and where the tutor breaks them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..problems.judging.answers import Value, Values
from ..problems.judging.chains import Chain
from .focus import mentioned
from .formulas import formulas, without_code
from .labels import sections
from .questions import Question
from .transcript import Transcript, Turn

SHORT = 350  # words of an answer to one part that still are short
_CODE = (
    r"\b(?:no|without|avoid|(?:do not|don't) want(?: to (?:see|have|get))?(?: any)?|"
    r"never (?:use|write|show|give)|(?:do not|don't) (?:\w+ ){0,3}?(?:use|write|give|show|"
    r"include|provide|post|produce)(?: me)?(?: any)?)\s+(?:\w+ ){0,2}?(?:code|coding|"
    r"programming|program|python|pseudo-?code|scripts?|implementations?)\b|\bcode-free\b|\bcode is not allowed"
)
_WAIT = (
    r"\b(?:do not|don't|never) (?:\w+ ){0,2}?(?:answer|solve|start|begin|work on|give)\b[^.\n]{0,80}?\b(?:until|"
    r"yet|before|at this time|for now|only when|till|now|unless)\b|"
    r"\b(?:keep|stay|be) (?:quiet|silent)\b[^.\n]{0,40}\buntil\b|"
    r"\b(?:only (?:answer|solve|respond)|"
    r"(?:answer|solve|respond) only)[^.\n]{0,30}\b(?:when|once|after|what)\b|\bwait (?:until|for) (?:i|me|my|the)\b"
)
_DERIVE = (
    r"\b(?:step[- ]by[- ]step|derivations?|show (?:all )?(?:your |the |every )?(?:work|working|steps?|reasoning)|"
    r"justify (?:each|every|your)|explain (?:each|every) step|every step|full working)\b"
)
_BRIEF = (
    r"\b(?:keep (?:it|them|answers?|your \w+) (?:short|brief|concise)|(?:be|short|brief|concise)[, ]+(?:but|and|brief|"
    r"short|concise)|(?:short|brief|concise) (?:answers?|solutions?|derivations?|explanations?|replies))\b"
)
_GO_AHEAD = re.compile(
    r"\b(?:go (?:ahead|on)|carry on|continue|proceed|now (?:please )?(?:answer|solve|do)|"
    r"(?:please|can you|could you|now) "
    r"(?:answer|solve|start|begin|do)\b(?! not)|let's (?:start|begin|do|go)|start with|begin with|next (?:one|part))\b",
    re.IGNORECASE,
)
_LATER = re.compile(
    r"\byet\b|for now|at this time|\b(?:will|'ll) (?:tell|say|let you know|ask)|until i (?:say|tell|give you the|name)|"
    r"one (?:at a time|by one)",
    re.IGNORECASE,
)
_NO_RULE = re.compile(
    r"\b(?:no|not|without|never|skip|omit|avoid|unnecessary|optional|n't|don't|needn't|doesn't|cannot)\b(?! only)",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"\b(?:has|have|had|is|are|was|were|contains?|includes?|need|know|knows|if)\s+(?:\w+\s+)?$", re.IGNORECASE
)
_RULES = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "code": _CODE, "answered before asked": _WAIT, "no derivation": _DERIVE, "not short": _BRIEF
    }.items()
}  # fmt: skip
_LISTING = re.compile(
    r"^[ \t]*(?:```|~~~)[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<body>[\s\S]*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)",
    re.MULTILINE,
)
_PROGRAM = re.compile(
    r"^\s*(?:\d+\s+)?(?:def \w+\s*\(|class \w+\s*[(:]|import \w+|from [\w.]+ import |for \w+ in .*:\s*$|while .*:\s*$|"
    r"return\b|print\(|function \w+\s*\(|[\w.\[\], ]+ = (?:torch|np|numpy|tf|jnp)\.\w+|[\w.\[\]]+ = [\w.]+\(.*\)\s*$|"
    r"[\w]+ = [\w.]+ @ )",
    re.MULTILINE,
)
_ONE_LINE = re.compile(r"^\s*(?:\w+\s*=\s*)?(?:\w+\.)?einsum\(.*\)\s*$")


@dataclass(frozen=True)
class Rule:
    """A rule of the set-up, by what breaks it: `broken` at `turn` with `evidence`, or kept."""

    name: str
    set_in_turn: int
    broken: bool
    turn: int | None = None
    evidence: str = ""
    part: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.name, "broken": self.broken, "turn": self.turn, "evidence": self.evidence}


def rules_of(transcript: Transcript) -> dict[str, int]:
    """The rules that the student sets, with the turn of each."""
    found: dict[str, int] = {}
    for turn in transcript.of("student"):
        # Rules are set in words; a listing or a long statement below them sets none.
        said = _LISTING.sub("", turn.text)[:6000]
        for name, pattern in _RULES.items():
            if name not in found and any(not _denied(name, said, each) for each in pattern.finditer(said)):
                found[name] = turn.index
    return found


def _denied(name: str, text: str, rule: re.Match[str]) -> bool:
    """Whether the words before a rule say that it is none: "you need not be short", "the course has no coding"."""
    before = re.split(r"[.!?;,:\n]|\b(?:but|and)\b", text[max(0, rule.start() - 80) : rule.start()])[-1]
    return (_STATES if name == "code" else _NO_RULE).search(before) is not None


def broken_rules(transcript: Transcript, questions: Sequence[Question]) -> tuple[Rule, ...]:
    """Every rule of the set-up, with each place where it was broken."""
    rules: list[Rule] = []
    for name, set_in in rules_of(transcript).items():
        finder = {"code": _code, "answered before asked": _early, "no derivation": _bare, "not short": _long}[name]
        breaks = [found for found in finder(transcript, questions) if found[0] > set_in]
        rules += [Rule(name, set_in, True, *found) for found in breaks[:20]] or [Rule(name, set_in, False)]
    return tuple(rules)


def _code(transcript: Transcript, questions: Sequence[Question]) -> list[tuple[int, str, str]]:
    """Listings and function definitions in a tutor's turn; what the student showed before is a quotation."""
    shown = "".join("".join(turn.text.split()) for turn in transcript.of("student"))
    found = []
    for turn in transcript.of("tutor"):
        evidence = _listing(turn, shown)
        if evidence:
            found.append((turn.index, evidence, ""))
    return found


def _listing(turn: Turn, shown: str) -> str:
    rest, last = [], 0
    for block in _LISTING.finditer(turn.text):
        rest.append(turn.text[last : block.start()])
        last = block.end()
        lines = [line for line in block["body"].split("\n") if line.strip()]
        new = [line for line in lines if "".join(line.split()) not in shown and not _ONE_LINE.match(line)]
        if not new or block["language"].lower() in ("latex", "tex", "math", "text", "markdown", "md"):
            continue
        if block["language"] or _PROGRAM.search("\n".join(new)):
            return f"a listing: {_first(new)}"
    rest.append(turn.text[last:])
    plain = "\n".join(rest)
    defined = re.search(
        r"^[ \t>]*(?:def \w+\([^)\n]{0,200}\)[^\n]{0,40}:|class \w+[(:]|import \w+\s*$)[^\n]*", plain, re.MULTILINE
    )
    if defined is not None and "".join(defined.group().split()) not in shown:
        return f"a definition: {_first([defined.group()])}"
    indented = [line for line in plain.split("\n") if line.startswith(("    ", "\t")) and _PROGRAM.match(line)]
    new = [line for line in indented if "".join(line.split()) not in shown]
    return f"indented code: {_first(new)}" if len(new) > 1 else ""


def _first(lines: list[str]) -> str:
    line = " ".join(lines[0].split())
    return line if len(line) <= 80 else line[:79] + "…"


def _early(transcript: Transcript, questions: Sequence[Question]) -> list[tuple[int, str, str]]:
    """Parts that were answered before their problem was given, or before the student asked for them."""
    found = []
    first = min((question.turn for question in questions if question.turn), default=len(transcript.turns) + 1)
    for turn in transcript.of("tutor"):
        if turn.index >= first:
            break
        marked = [each for each in sections(turn.text, "abcdef") if each.part]
        if marked or sum(span.display for span in formulas(turn.text)) > 1:
            found.append((turn.index, "an answer before any problem was given", ""))
    for question in questions:
        for turn, _ in question.said:
            if turn.speaker == "tutor" and turn.index < question.turn:
                found.append((turn.index, f"problem {question.name} was answered before it was given", question.name))
        found += _unasked(transcript, question)
    return found


def _unasked(transcript: Transcript, question: Question) -> list[tuple[int, str, str]]:
    """Parts of a problem that came with the word to wait, answered before the student named them or said to go on."""
    given = transcript.turns[question.turn - 1] if 0 < question.turn <= len(transcript.turns) else None
    told = _RULES["answered before asked"].search(given.text) if given is not None else None
    if told is not None and not _LATER.search(given.text[told.start() : told.end() + 120] if given else ""):
        return []  # "until I ask", and then the question asks
    if given is None or told is None or given.speaker != "student" or _GO_AHEAD.search(given.text, told.end()):
        return []
    found = []
    asked: set[str] = set()
    for turn, text in question.said:
        if turn.index <= given.index:
            continue
        if turn.speaker == "student":
            named = set(mentioned(turn.text, question))
            asked |= set(question.parts) if _GO_AHEAD.search(turn.text) and not named else named
            continue
        names = [each.part for each in sections(text, question.labels()) if len(each.text.split()) > 3]
        early = [name for name in dict.fromkeys(names) if name and not any(each.startswith(name) for each in asked)]
        if early:
            shown = ", ".join(question.shown.get(name, name) for name in early)
            found.append((turn.index, f"problem {question.name}: {shown} was answered unasked", question.name))
    return found


def _bare(transcript: Transcript, questions: Sequence[Question]) -> list[tuple[int, str, str]]:
    """Answers to a whole problem with nothing that derives them: no chain, no second formula, hardly a word."""
    found = []
    answered: set[str] = set()
    for question in questions:
        for turn, text in question.said:
            if turn.speaker != "tutor" or question.name in answered:
                continue
            marked = [each for each in sections(text, question.labels()) if each.part in question.labels()]
            by_part: dict[str, str] = {}
            for each in marked:
                by_part[each.part] = by_part.get(each.part, "") + "\n" + each.text
            if not by_part and len(question.parts) == 1:
                by_part = {next(iter(question.parts)): text}
            if not by_part:
                continue
            answered.add(question.name)
            by_part = {name: said for name, said in by_part.items() if _is_derived(question, name)}
            bare = [name for name, said in by_part.items() if not _derives(without_code(said))]
            chained = any(without_code(said).count("=") > 1 for said in by_part.values())
            # Where most parts have none and no chain is anywhere, there is none.
            if by_part and (len(bare) == len(by_part) or (3 * len(bare) >= 2 * len(by_part) and not chained)):
                names = ", ".join(question.shown.get(name, name) for name in bare)
                found.append((turn.index, f"problem {question.name}: no derivation of {names}", question.name))
    return found


def _is_derived(question: Question, name: str) -> bool:
    """Whether a part is one that is derived: a blank to fill or a choice is not."""
    parts = [part for key, part in question.parts.items() if key == name or key[0] == name]
    return any(isinstance(part.answer, Value | Values | Chain) for part in parts)


def _derives(text: str) -> bool:
    spans = formulas(text)
    equals = sum(span.text.count("=") for span in spans) or text.count("=")
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\$[^$]*\$|`[^`\n]*`", " ", text))
    return equals > 1 or len(words) > 8


def _long(transcript: Transcript, questions: Sequence[Question]) -> list[tuple[int, str, str]]:
    """Answers far longer than short ones are."""
    found = []
    for question in questions:
        for turn, text in question.said:
            words = len(text.split())
            most = SHORT * max(1, len(question.parts))
            if turn.speaker == "tutor" and question.parts and words > most:
                found.append((turn.index, f"{words:,} words on problem {question.name}", question.name))
    return found
