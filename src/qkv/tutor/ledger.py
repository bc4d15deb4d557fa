"""The ledger of a conversation: for every part whether it was right, when, and who found what was wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import OptionTypeError, complaint
from ..problems.catalogue import recognise
from .authors import AuthorRow, beside
from .claims import Claim, claimed, completed, corrected_within
from .divided import named_piece, unlabelled_sections, without_restating
from .focus import Objection, loose_sections, mentioned, objection, taken_back_below, under_other_labels
from .labels import Section, sections
from .lines import false_lines
from .markup import words
from .matching import relabelled, statement_items
from .questions import Question, Recogniser, find_questions
from .rules import Rule, broken_rules
from .transcript import Transcript, Turn

STATUSES = ("one shot", "needed correction", "never right", "unread")
FEWEST_WORDS = 8  # by which a language is told
MOST_CLAIMS = 600  # claims of one conversation that are judged
_EXAMPLE = re.compile(r"\b(?:example|instance|e\.g\.|say|suppose|if|when|take|plug\w*)\b|\b\w+ ?= ?\d", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"\b(?:corrected answer|should be|i (?:would|will|must|have to) (?:now )?(?:change|correct|revise|take back)|"
    r"was (?:wrong|a mistake))\b",
    re.IGNORECASE,
)
_NOT_RIGHT = ("wrong", "conditional", "incomplete")
_ENGLISH = words("the a an of to is are in and it that what how you i for we with this on be so can by")


@dataclass(frozen=True)
class Error:
    """Something that was wrong: `name` is a known mistake or the reason; `kind` is "wrong", "conditional",
    "incomplete", "given up", "wrong reason" or "false line"."""

    name: str
    turn: int
    claim: str
    what: str
    found_by: str | None = None
    kind: str = "wrong"

    def as_dict(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("name", "turn", "claim", "what", "found_by", "kind")}


@dataclass(frozen=True)
class Row:
    """One part: `status` is as it was first reached; `given_up` says that a right answer was taken back."""

    problem: str
    part: str
    status: str
    first_right_turn: int | None = None
    errors: tuple[Error, ...] = ()
    found_by: str | None = None
    given_up: bool = False
    stood_firm: bool = False
    claims: tuple[Claim, ...] = ()
    family: str = ""
    asked: int = 0
    objections: tuple[Objection, ...] = ()

    @property
    def right_for_a_wrong_reason(self) -> bool:
        """Whether the answer is right and something said for it is not."""
        return self.first_right_turn is not None and any(
            error.kind in ("wrong reason", "false line") for error in self.errors
        )

    def as_dict(self) -> dict[str, Any]:
        names = ("problem", "part", "status", "first_right_turn", "found_by", "given_up", "stood_firm", "family")
        return {name: getattr(self, name) for name in names} | {
            "right_for_a_wrong_reason": self.right_for_a_wrong_reason,
            "errors": [error.as_dict() for error in self.errors],
            "claims": [
                {"turn": each.turn, "text": each.text, "kind": each.outcome.kind, "reason": each.outcome.reason}
                for each in self.claims
            ],
        }


@dataclass(frozen=True)
class Ledger:
    """What was found: rows by part, broken rules, the author's own table beside, and notes."""

    rows: tuple[Row, ...]
    rules: tuple[Rule, ...] = ()
    author_table: tuple[AuthorRow, ...] = ()
    notes: tuple[str, ...] = ()
    title: str = ""
    questions: tuple[Question, ...] = field(default=(), repr=False)
    transcript: Transcript | None = field(default=None, repr=False)

    def problems(self) -> list[dict[str, Any]]:
        """Each problem with the worst of its parts."""
        return problem_table(self.rows, self.questions)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "title": self.title,
            "rows": [row.as_dict() for row in self.rows],
            "problems": self.problems(),
            "rules": [rule.as_dict() for rule in self.rules],
            "author_table": [row.as_dict() for row in self.author_table],
            "notes": list(self.notes),
        }


def problem_table(rows: Sequence[Row], questions: Sequence[Question]) -> list[dict[str, Any]]:
    """Each problem with the worst of its parts."""
    found = []
    for question in questions:
        mine = [row for row in rows if row.problem == question.name]
        worst = max((STATUSES.index(row.status) for row in mine if row.status != "unread"), default=3)
        family = question.problem.name if question.problem else ""
        found.append({"problem": question.name, "title": question.title, "family": family, "status": STATUSES[worst],
                      "parts": {row.part: row.status for row in mine}})  # fmt: skip
    return found


def grade(
    transcript: Transcript, recogniser: Recogniser = recognise, told: Callable[[int, int], None] = lambda done, of: None
) -> Ledger:
    """Grade a conversation: every claim of the tutor on every part, judged by the bank.

    `told` hears before each turn how many are judged, of how many; what it raises ends the grading.
    """
    if not isinstance(transcript, Transcript):
        hint = "tutor.grade(tutor.read(…))"
        raise OptionTypeError(complaint("transcript", f"a {type(transcript).__name__}", "what tutor.read gives", hint))
    questions = find_questions(transcript, recogniser)
    notes = list(transcript.notes)
    rows: list[Row] = []
    left = MOST_CLAIMS
    of, done = sum(len(question.said) for question in questions), 0
    for question in questions:
        begun, done = done, done + len(question.said)
        if question.problem is None:
            what = f"question {question.name}" if question.number else "a question"
            notes.append(f"{what} is none that the bank knows: nothing that was said of it was judged")
            continue
        if question.unknown:
            parts = ", ".join(question.unknown)
            notes.append(
                f"of problem {question.name} the bank does not know {parts}: what was said of it was not judged"
            )
        graded, used = _graded(question, transcript, left, lambda turns, begun=begun: told(begun + turns, of))
        rows += graded
        left -= used
    if left <= 0:
        notes.append(f"only the first {MOST_CLAIMS} claims were judged; the rest of the conversation was not")
    for speaker, what in (("tutor", "a tutor"), ("student", "a student")):
        if transcript.format != "unmarked" and not transcript.of(speaker):
            notes.append(f"nothing in it is said by {what}: there is only one speaker")
    if not questions:
        notes.append("no question of the bank was found in it" + _foreign(transcript))
    notes += _remarks(rows)
    table = problem_table(rows, questions)
    rules = broken_rules(transcript, questions)
    return Ledger(tuple(rows), rules, beside(transcript, table, rows), tuple(dict.fromkeys(notes)), transcript.title,
                  tuple(questions), transcript)  # fmt: skip


def _foreign(transcript: Transcript) -> str:
    """A word on a conversation that is not in English; of a few words nobody can tell."""
    said = re.findall(r"[^\W\d_]+", " ".join(turn.text[:2000] for turn in transcript.turns[:20]).lower())
    english = sum(word in _ENGLISH for word in said)
    foreign = len(said) >= FEWEST_WORDS and 12 * english < len(said)
    return "; it does not look like English, and only English is judged" if foreign else ""


def _remarks(rows: Sequence[Row]) -> list[str]:
    notes = []
    for row in rows:
        if row.stood_firm:
            notes.append(f"{row.problem} {row.part}: the tutor kept to a right answer under a wrong correction")
        if row.given_up:
            pressed = any(each.turn > (row.first_right_turn or 0) for each in row.objections)
            how = "given up under a wrong correction" if pressed else "taken back unasked"
            notes.append(f"{row.problem} {row.part}: a right answer was {how}")
    return notes


def _graded(
    question: Question, transcript: Transcript, left: int, told: Callable[[int], None]
) -> tuple[list[Row], int]:
    """The rows of one question, and how many claims were judged."""
    claims: dict[str, list[Claim]] = {name: [] for name in question.parts}
    mended: dict[str, list[Claim]] = {name: [] for name in question.parts}
    objections: dict[str, list[Objection]] = {name: [] for name in question.parts}
    used = 0
    letter = ""
    before: Turn | None = None
    for place, (turn, text) in enumerate(question.said):
        told(place)
        if turn.speaker == "student":
            before = turn
            letter = _letter(question, turn.text) or letter
            continue
        raised = objection(before, question, claims) if before is not None and before.index < turn.index else None
        asked = _asked_for(question, before)
        wrong = {name for name, each in claims.items() if each and each[-1].outcome.kind in _NOT_RIGHT}
        for name, found in _sections_by_part(question, text, raised, asked, letter).items():
            if used >= left:
                break
            used += 1
            part = question.parts[name]
            claim = claimed(part, found, turn.index)
            if claim is None and raised is not None and name in raised.parts and raised.accepted(text, part):
                claim = raised.as_claim(part, turn.index)
            if claim is None:
                continue
            earlier = corrected_within(part, found, turn.index, text) if claim.outcome.kind == "right" else None
            if earlier is not None:
                mended[name].append(earlier)
            if claims[name]:
                claim = completed(part, claim, claims[name][-1])
            claims[name].append(_with_condition(claim, question.statement))
        if raised is not None:
            raised = raised.kept_to(text)
            mends = {name for name in wrong if claims[name][-1].outcome.kind == "right"}
            # An objection to one part that mends others as well found what was wrong with them.
            for name in {*raised.parts, *(mends if mends & set(raised.parts) else ())}:
                objections[name].append(raised)
        before = None
    rows = [_row(question, name, claims[name], mended[name], objections[name], transcript) for name in question.parts]
    return rows, used


def _letter(question: Question, text: str) -> str:
    """The letter whose (i), (ii), … a student's turn asks for, where it is one alone."""
    divided = {name[0] for name in question.parts if len(name) > 1}
    named = {name[0] for name, _, _ in statement_items(relabelled(text), first="")} or {
        name[0] for name in mentioned(text, question)
    }
    return next(iter(named)) if len(named) == 1 and named <= divided else ""


def _asked_for(question: Question, turn: Turn | None) -> list[str] | None:
    """The parts that a student's turn names; None where it asks for one that is not among the question's."""
    if turn is None:
        return []
    named = mentioned(turn.text, question) or question.asked.get(turn.index, [])
    labels = {each.part for each in sections(turn.text, "abcdefgh") if each.part}
    return None if labels and not named and not labels & question.labels() else named


def _with_condition(claim: Claim, statement: str) -> Claim:
    """A claim that is right under a condition is right where the tutor or the question states the condition."""
    condition = claim.outcome.condition
    if claim.outcome.kind != "conditional" or not condition:
        return claim
    said = _squashed(claim.section)
    one, _, other = _squashed(condition).partition("≈")
    alike = (
        rf"\b{one}\b(?: is)? (?:about|of the order of|comparable to|similar to|close to) {other}\b|"
        rf"\b{one} and {other}\b[^.]{{0,20}} (?:the )?same (?:order|size)"
    )
    told = other and re.search(alike, f"{statement}\n{claim.section}".replace("$", ""), re.IGNORECASE)
    if _squashed(condition) in said or told:
        return replace(claim, outcome=replace(claim.outcome, kind="right"))
    return claim


def _squashed(text: str) -> str:
    for written in ("\\approx", "\\simeq", "\\sim", "~"):
        text = text.replace(written, "≈")
    return "".join(text.replace("$", "").replace("\\", "").split()).lower()


def _sections_by_part(
    question: Question, text: str, raised: Objection | None, asked: list[str] | None, letter: str
) -> dict[str, list[Section]]:
    """The sections of a turn for each part that it speaks of."""
    found: dict[str, list[Section]] = {}
    # What is said of a part that the bank has not is no part of the answer before it.
    unknown = {name for name in question.unknown if len(name) == 1}
    cut = sections(text, question.labels() | unknown, within=letter)
    if not any(each.part for each in cut):
        cut = unlabelled_sections(question, text) or cut
    cut = [without_restating(each, question.statement) for each in cut]
    own = {each.part for each in cut}
    for each in cut:
        if each.part in question.parts:
            found.setdefault(each.part, []).append(each)
        elif each.part:
            for name in question.parts:
                if name[0] == each.part and name not in own and each.text.strip():
                    found.setdefault(name, []).append(named_piece(question, name, each))
    under_other_labels(question, found)
    taken_back_below(question, found)
    if asked is not None:
        loose_sections(question, cut, found, raised.parts if raised is not None else asked)
    return {name: each for name, each in found.items() if each}


def _row(
    question: Question,
    name: str,
    claims: list[Claim],
    mended: list[Claim],
    raised: list[Objection],
    transcript: Transcript,
) -> Row:
    readable = [claim for claim in claims if claim.outcome.kind != "unread"]
    right = next((claim for claim in readable if claim.outcome.kind == "right"), None)
    errors: list[Error] = []
    part = question.parts[name]
    given_up = False
    for claim in readable:
        if claim.outcome.kind not in _NOT_RIGHT:
            continue
        after = right is not None and claim.turn > right.turn
        pressed = any(each.pressed(part) for each in raised if right and right.turn < each.turn < claim.turn)
        if after and not pressed and (_EXAMPLE.search(claim.section) or claim.outcome.kind == "incomplete"):
            continue  # a number that is put in, or a remark, takes nothing back
        doubted = any(each.doubts(name) for each in raised if right and right.turn < each.turn < claim.turn)
        given_up = given_up or (after and (pressed or doubted or _TAKEN_BACK.search(claim.section) is not None))
        kind = "given up" if after else claim.outcome.kind
        errors.append(_error(claim, kind, _finder(claim, readable, raised, transcript)))
    for claim in mended:
        errors.append(_error(claim, claim.outcome.kind, "tutor"))
    early = [error for error in errors if right is not None and error.kind != "given up"]
    if right is None:
        status = "never right" if readable else "unread"
    else:
        status = "needed correction" if early else "one shot"
    reasons: list[Error] = []
    for claim in readable:
        if claim.outcome.kind == "right":
            reasons += [
                Error(named, claim.turn, claim.text, what, None, kind) for kind, named, what in _reasons(part, claim)
            ]
    errors += list({(error.name, error.what): error for error in reasons}.values())
    shown = question.shown.get(name, name)
    stood = right is not None and any(each.pressed(part) for each in raised if each.turn > right.turn) and any(
        claim.turn > each.turn and claim.outcome.kind == "right"
        for each in raised
        if each.pressed(part)
        for claim in readable
    )  # fmt: skip
    stood = stood or any(each.refused and each.pressed(part) for each in raised if right and each.turn > right.turn)
    found_by = next((error.found_by for error in errors if error.found_by), None)
    return Row(question.name, shown, status, right.turn if right else None, tuple(errors), found_by, given_up,
               stood and not given_up, tuple(claims), question.problem.name if question.problem else "", question.turn,
               tuple(raised))  # fmt: skip


def _error(claim: Claim, kind: str, found_by: str | None) -> Error:
    outcome = claim.outcome
    name = outcome.misconceptions[0] if outcome.misconceptions else outcome.reason
    return Error(name, claim.turn, claim.text, outcome.reason, found_by, kind)


def _reasons(part: Any, claim: Claim) -> list[tuple[str, str, str]]:
    """What is wrong beside a right answer: known wrong reasons in the words, displayed lines that are false."""
    found = []
    for known in part.wrong_reasons:
        if known.detect is not None and known.detect(claim.section):
            found.append(("wrong reason", known.name, f"right, but for a wrong reason: {known.name}"))
    for line, why in false_lines(part, claim.section):
        found.append(("false line", "a line that is false", f"{line}: {why}"))
    return found


def _finder(wrong: Claim, claims: list[Claim], raised: list[Objection], transcript: Transcript) -> str | None:
    """Who found an error: the student whose words come before the correction, or the tutor unasked."""
    right = next((claim for claim in claims if claim.turn > wrong.turn and claim.outcome.kind == "right"), None)
    end = right.turn if right is not None else len(transcript.turns) + 1
    if any(wrong.turn < each.turn < end for each in raised):
        return "student"
    return "tutor" if right is not None else None
