"""Answers that are mathematics: one object, or several with names. `qkv.maths` compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from ...maths import Verdict, compare, equal
from ..outcome import Outcome, joined
from ..reading.literals import cells_of, number_of, numbers_of, split_outside
from .cutting import unboxed
from .doubts import held, only_denied, unsettled, worded
from .pieces import cleaned, in_order, labelled, named_together, stacked, tabled, tidy, without_remarks
from .sentences import Said, claims
from .spoken import as_vector, written

LONGEST = 60_000  # characters of an answer; a longer one is no answer to a question of this bank

MOST_CLAIMS = 12  # formulas of a sentence that are tried

_SENTENCE = re.compile(r"[.;]\$?\s+(?=[A-Z])")
_UNREAD = ("unreadable", "ill-typed")
# What makes a comma part of a formula, and no end of an answer.
_TOGETHER = re.compile(r"[=<>≤≥≈∈]|\\(?:[lg]eq?|in|to|dots|ldots|cdots|begin|forall)\b|\.\.")
_KINDS = {"equal": "right", "conditional": "conditional", "different": "wrong", "ill-typed": "wrong"}


class Answer(Protocol):
    """The right answer to a part, and how another is held to it."""

    @property
    def text(self) -> str:
        """The right answer as one would type it; `check` accepts it."""
        ...

    def check(self, answer: str) -> Outcome:
        """Whether `answer` is right, and if not why not; never raises for what is in the text."""
        ...

    def same(self, wrong: str, answer: str) -> bool:
        """Whether `answer` says what `wrong`, another answer to this question, says."""
        ...


def unreadable(answer: str, prose: bool = False) -> Outcome | None:
    """The outcome of a text that is no answer at all, or None; a formula is none beside a relation or a denial."""
    if not answer.strip():
        return Outcome("unread", "there is no answer")
    if len(answer) > LONGEST:
        return Outcome("unread", f"the answer has {len(answer):,} characters; at most {LONGEST:,} are read")
    if only_denied(answer, prose):
        return Outcome("unread", "it says what is not the answer, and nothing beside it")
    return None if prose else unsettled(answer)


@dataclass(frozen=True)
class Value:
    """One mathematical object: a number, a vector, a matrix, a formula, a rate of growth.

    `gold` is the right answer, `also` are other ones that count as right (another layout, another assumption that the
    question allows); `shown` is what is printed where it is clearer than `gold`. With `plugged`, an expression with
    rounded numbers in it is right as far as their own rounding allows. An answer may stand in a sentence: `unknown` is
    the name that is asked for, which says nothing by itself; `asides` is a regular expression for other quantities:
    what is said of them is not the answer.

    >>> mean = Value(r"\\mu^T \\mu", {"mu": "vector[d]"})
    >>> mean.check(r"\\|\\mu\\|^2").kind, mean.check(r"d\\mu^2").kind
    ('right', 'conditional')
    """

    gold: str
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    also: tuple[str, ...] = ()
    shown: str = ""
    plugged: bool = False
    unknown: str = ""
    asides: str = ""

    @property
    def text(self) -> str:
        return self.shown or self.gold

    def check(self, answer: str) -> Outcome:
        # Its sentences say what a "not" is said of.
        for nothing in (unreadable(answer, prose=True), unsettled(answer)):
            if nothing is not None:
                return nothing
        return from_verdict(_read(self, answer)[1])

    def stated(self, answer: str) -> str:
        """The formula of a text that is taken for the answer."""
        return _read(self, answer)[0]

    def _found(self, answer: str) -> tuple[str, Verdict]:
        """The formula that is taken for the answer, and the verdict on it."""
        answer = tidy(held(answer))
        whole = unboxed(cleaned(answer) or answer)
        if (several := self._several(whole)) is not None:
            return whole, several
        verdict = self.compared(whole)
        if verdict.kind == "equal" and "it is not equal to" in verdict.reason:
            return whole, Verdict("unreadable", None, "two sides of an equation in it are not equal", answer=whole)
        for other in self._otherwise(whole) if verdict.kind != "equal" else ():
            if (second := self.compared(other)).kind == "equal" or (
                second.kind not in _UNREAD and verdict.kind in _UNREAD
            ):
                return other, second
        if verdict.kind not in _UNREAD:
            return whole, verdict
        first: tuple[str, Verdict] | None = None
        for said in self._claims(answer):
            text, found = self._as_equation(said.text)
            if found.kind not in _UNREAD or undeclared(found):
                # A conclusion with a name of its own is not passed over for something said before it.
                return text, self._either(said, answer, found)
            first = first or (text, found)
        shorter = without_remarks(whole)
        if shorter not in ("", whole) and (second := self.compared(shorter)).kind not in _UNREAD:
            return shorter, second
        if first is not None and (first[1].kind == "ill-typed" or verdict.kind == "unreadable"):
            return first
        return whole, verdict

    def _otherwise(self, whole: str) -> Iterator[str]:
        """What a text may be as mathematics, where it is a list of numbers, words or code."""
        cells = cells_of(self.text)
        listed = as_vector(whole, len(cells[0][0])) if cells and cells[1] else ""
        yield from (other for other in (listed, written(whole)) if other not in ("", whole))

    def _several(self, whole: str) -> Verdict | None:
        """The verdict on formulas beside each other that are not equal, "d, 2d": none of them is the answer."""
        pieces = split_outside(re.sub(r"[;\n]", ",", whole), ",") if len(whole) < 400 else []
        if not 1 < len(pieces) < 5 or _TOGETHER.search(whole) or cells_of(self.text) is not None or worded(whole):
            return None
        kinds = [self.compared(piece.strip()).kind for piece in pieces]
        if "equal" in kinds and "different" in kinds:
            return Verdict("unreadable", None, "it gives more answers than one, and they differ", answer=whole)
        return None

    def _claims(self, answer: str) -> Iterator[Said]:
        names = {name.partition("_")[0] if len(name) == 1 else name for name in self.symbols}
        several = cells_of(self.text) is not None
        for place, said in enumerate(claims(answer, names)):
            left, tied, _ = said.text.partition("=")
            aside = self.asides and re.search(self.asides, left if tied else said.before, re.IGNORECASE)
            own = self.unknown and squeezed(left) == squeezed(self.unknown)
            if several and number_of(said.text) is not None:
                continue  # one number is no vector
            if place < MOST_CLAIMS and squeezed(said.text) != squeezed(self.unknown) and (own or not aside):
                yield said

    def _as_equation(self, text: str) -> tuple[str, Verdict]:
        """A formula against the right one; of an equation that cannot be read as a whole, its end."""
        verdict = self.compared(text)
        end = split_outside(text, "=")[-1].strip()
        if verdict.kind in _UNREAD and end not in ("", text):
            second = self.compared(end)
            return (end, second) if second.kind != "unreadable" else (text, verdict)
        return text, verdict

    def _either(self, said: Said, answer: str, verdict: Verdict) -> Verdict:
        """An answer that names two with an "or" between them is right where both are."""
        if not said.either or verdict.kind != "equal":
            return verdict
        others = [self.compared(each.text) for each in claims(answer, self.symbols) if each is not said]
        return next((other for other in others if other.kind == "different"), verdict)

    def compared(self, answer: str) -> Verdict:
        """The verdict on a text that is nothing but mathematics."""
        if self.gold[:1] in ("(", "[") and answer[:1] == self.gold[0]:
            # Long lists of numbers that are the same need no algebra.
            right, given = numbers_of(self.gold), numbers_of(answer)
            if right is not None and right == given:
                return Verdict("equal", "proved", "the numbers are the same", gold=self.gold, answer=answer)
        verdict = compare(self.gold, answer, self.symbols)
        if verdict.kind == "equal":
            return verdict
        for other in self.also:
            second = compare(other, answer, self.symbols)
            if second.kind == "equal":
                return second
        if self.plugged and verdict.kind == "different":
            from .rounding import within_own_rounding

            if within_own_rounding(self.gold, answer, self.symbols):
                reason = "right within the rounding of the numbers that were put in"
                return replace(verdict, kind="equal", evidence="tested", reason=reason, counterexample=None)
        return verdict

    def same(self, wrong: str, answer: str) -> bool:
        given = self.stated(answer)
        return squeezed(wrong) == squeezed(given) or equal(wrong, given, self.symbols)


@lru_cache(maxsize=64)
def _read(value: Value, answer: str) -> tuple[str, Verdict]:
    """Each known mistake is compared with the formula that was judged: it is looked for once."""
    return value._found(answer)


def undeclared(verdict: Verdict) -> bool:
    """Whether a formula has a name that the question does not have."""
    refused = verdict.kind in ("ill-typed", "unreadable") and "is not declared" in verdict.reason
    return refused or bool(verdict.renaming)


def squeezed(text: str) -> str:
    """A text without what makes no difference to a reader: two answers that cannot be typed may still be the same.

    >>> squeezed(r"\\mathbf{W}_Q^\\top \\mathbf X") == squeezed("W_Q^T X")
    True
    """
    for sign in ("mathbf", "boldsymbol", "bm", "left", "right", "quad", "cdot", "top"):
        text = text.replace(f"\\{sign}", "T" if sign == "top" else "")
    return "".join(sign for sign in text.replace("ᵀ", "^T") if sign not in " \t\n{}$*,;.")


def from_verdict(verdict: Verdict) -> Outcome:
    """What `qkv.maths` says, as the outcome of an answer."""
    kind = _KINDS.get(verdict.kind, "unread")
    if undeclared(verdict):
        kind = "unread"  # words, or a name that the question does not have: nobody can say what is meant by it
    return Outcome(kind, verdict.reason, condition=verdict.condition, verdict=verdict)


@dataclass(frozen=True)
class Values:
    """Several objects, each with a name: "q_1 = (2, 3, -5); k_1 = (-6, 0, 1)".

    Without names the pieces are taken in order, one a line or parted by semicolons or commas. `aliases` are regular
    expressions for other ways to name a piece; `stems` are labels of what holds several pieces, such as Q for the rows
    q_1, q_2. What is missing makes an answer incomplete, not wrong.

    >>> pair = Values({"q_1": Value("(2, 3)"), "k_1": Value("(5, 7)")})
    >>> pair.check("k1 = (5, 7), q1 = (2, 3)").kind, pair.check("q_1 = (2, 3)").kind, pair.check("(2,3); (5,8)").kind
    ('right', 'incomplete', 'wrong')
    """

    items: Mapping[str, Answer] = field(hash=False)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    stems: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        return "; ".join(f"{name} = {value.text}" for name, value in self.items.items())

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        found = self._candidates(answer)
        if not found:
            wanted = ", ".join(self.items) if len(self.items) <= 12 else f"{next(iter(self.items))} and so on"
            return Outcome("unread", f"no piece could be found; write {wanted} each with its value, one a line")
        return joined({name: last_read(value, found.get(name, [])) for name, value in self.items.items()})

    def same(self, wrong: str, answer: str) -> bool:
        expected, found = self.read(wrong), self.read(answer)
        return bool(expected) and all(
            name in found and self.items[name].same(text, found[name]) for name, text in expected.items()
        )

    def read(self, answer: str) -> dict[str, str]:
        """Name to what stands for it in the text."""
        return {name: texts[-1] for name, texts in self._candidates(answer).items()}

    def _candidates(self, answer: str) -> dict[str, list[str]]:
        names, answer = list(self.items), unboxed(tidy(held(answer)).strip())
        if together := named_together(answer, names):
            return together
        found = labelled(answer, names, self.aliases)
        tables = tabled(answer, names) if len(found) < len(names) and "|" in answer else {}
        for more in (stacked(answer, names, self.stems), tables):
            for name, texts in more.items():
                found.setdefault(name, texts)
        if found:
            return found
        return {name: [piece] for name, piece in zip(names, in_order(answer, len(names)), strict=False)}


def last_read(value: Answer, texts: list[str]) -> Outcome:
    """The outcome of the last text that can be read: what is said at the end counts."""
    outcome = Outcome("unread", "missing")
    for text in reversed(texts):
        # What the next sentence says, or the words behind the formula that the label began, is said of something else.
        formula = text.partition("$")[0] if text.count("$") % 2 else text
        for piece in dict.fromkeys((_SENTENCE.split(formula, 1)[0], _SENTENCE.split(text, 1)[0], text)):
            outcome = value.check(piece)
            if outcome.kind != "unread":
                return outcome
    return outcome
