"""Answers that are mathematics: one object, or several with names. `qkv.maths` compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...maths import Verdict, compare
from ..outcome import Outcome, joined
from ..reading.literals import numbers_of
from .pieces import cleaned, in_order, labelled, stacked, tabled, tidy, without_remarks

LONGEST = 60_000  # characters of an answer; a longer one is no answer to a question of this bank

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


def unreadable(answer: str) -> Outcome | None:
    """The outcome of a text that is no answer at all, or None."""
    if not answer.strip():
        return Outcome("unread", "there is no answer")
    if len(answer) > LONGEST:
        return Outcome("unread", f"the answer has {len(answer):,} characters; at most {LONGEST:,} are read")
    return None


@dataclass(frozen=True)
class Value:
    """One mathematical object: a number, a vector, a matrix, a formula, a rate of growth.

    `gold` is the right answer, `also` are other ones that count as right (another layout, another assumption that the
    question allows); `shown` is what is printed where it is clearer than `gold`. With `plugged`, an expression with
    rounded numbers in it is right as far as their own rounding allows.

    >>> mean = Value(r"\\mu^T \\mu", {"mu": "vector[d]"})
    >>> mean.check(r"\\|\\mu\\|^2").kind, mean.check(r"d\\mu^2").kind
    ('right', 'conditional')
    """

    gold: str
    symbols: Mapping[str, str] = field(default_factory=dict, hash=False)
    also: tuple[str, ...] = ()
    shown: str = ""
    plugged: bool = False

    @property
    def text(self) -> str:
        return self.shown or self.gold

    def check(self, answer: str) -> Outcome:
        if (nothing := unreadable(answer)) is not None:
            return nothing
        whole = cleaned(tidy(answer)) or answer
        verdict = self._compared(whole)
        if verdict.kind in ("unreadable", "ill-typed") and (shorter := without_remarks(whole)) not in ("", whole):
            second = self._compared(shorter)
            verdict = verdict if second.kind == "unreadable" else second
        return from_verdict(verdict)

    def _compared(self, answer: str) -> Verdict:
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
        given = cleaned(tidy(answer))
        if squeezed(wrong) == squeezed(given):
            return True
        return any(
            compare(wrong, text, self.symbols).kind == "equal" for text in {given, without_remarks(given)} if text
        )


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
    if verdict.kind == "ill-typed" and "is not declared" in verdict.reason:
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
        return joined({name: _last_read(value, found.get(name, [])) for name, value in self.items.items()})

    def same(self, wrong: str, answer: str) -> bool:
        expected, found = self.read(wrong), self.read(answer)
        return bool(expected) and all(
            name in found and self.items[name].same(text, found[name]) for name, text in expected.items()
        )

    def read(self, answer: str) -> dict[str, str]:
        """Name to what stands for it in the text."""
        return {name: texts[-1] for name, texts in self._candidates(answer).items()}

    def _candidates(self, answer: str) -> dict[str, list[str]]:
        names, answer = list(self.items), tidy(answer)
        found = labelled(answer, names, self.aliases)
        for more in (stacked(answer, names, self.stems), tabled(answer, names) if len(found) < len(names) else {}):
            for name, texts in more.items():
                found.setdefault(name, texts)
        if found:
            return found
        return {name: [piece] for name, piece in zip(names, in_order(answer, len(names)), strict=False)}


def _last_read(value: Answer, texts: list[str]) -> Outcome:
    """The outcome of the last text that can be read: what is said at the end counts."""
    outcome = Outcome("unread", "missing")
    for text in reversed(texts):
        outcome = value.check(text)
        if outcome.kind != "unread":
            break
    return outcome
