"""A conversation that examines a tutor: ask, say only what is wrong, then hint, then offer a wrong correction.

Nothing here knows where the replies come from: `Dialogue.opening` is what to say first, `Dialogue.hear` takes a reply
and gives what to say next, or None when there is nothing more to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OptionError, OptionTypeError, complaint
from ..problems.outcome import Outcome
from ..problems.problem import HINTS, Misconception, Part, Problem
from ..render.document import Document, Figure, prose
from .dialects import without_thoughts
from .replies import answers, judged, label, marker

CORRECTIONS = 2  # told that it is wrong, then one hint
MOST_CORRECTIONS = 1 + HINTS
REMINDERS = 1  # how often an answer that cannot be read is asked for again

# A bar stays escaped: in a table it would be a border.
_ESCAPED = re.compile(r"(?P<kept>```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$)|\\(?P<sign>[!-/:-@\[-`{}~])", re.DOTALL)

ONE_SHOT, CORRECTED, NEVER, UNREAD = "one shot", "needed correction", "never right", "unread"
HELD, GIVEN_UP, UNCLEAR = "held", "given up", "unclear"


@dataclass
class _Progress:
    """How far a part has come."""

    part: Part
    told: int = 0
    reminded: int = 0
    read: bool = False
    right: bool = False
    closed: bool = False
    mistakes: list[str] = field(default_factory=list)
    challenge: str | None = None
    offered: Misconception | None = None

    @property
    def status(self) -> str:
        if self.right:
            return CORRECTED if self.told else ONE_SHOT
        return NEVER if self.read else UNREAD


class Dialogue:
    """The examination of one problem.

    A part that is not right is named, and no more; the next time it comes with a hint, each stronger than the last;
    after `corrections` of them it is left alone. An answer that cannot be read is asked for once more and is not held
    against anybody. Then every right part with a known mistake (at most `challenges` of them) meets that mistake's
    answer.

    >>> from qkv.problems.judging.answers import Value
    >>> part = Part("a", "What is $2+3$?", Value("5"), lambda: (), ("Add.", "2, 3, …", "4+1"))
    >>> talk = Dialogue(Problem("sum", "A sum", (), (part,), make=lambda seed: None))
    >>> print(talk.hear("Answer (a): 6").splitlines()[0])
    Part (a) is wrong.
    >>> talk.hear("Answer (a): 5"), talk.record()["parts"]["a"]["status"]
    (None, 'needed correction')
    """

    def __init__(self, problem: Problem, corrections: int = CORRECTIONS, challenges: int | None = None) -> None:
        if not isinstance(problem, Problem):
            hint = "qkv.problems.bank() has those that there are"
            raise OptionTypeError(complaint("problem", f"a {type(problem).__name__}", "a Problem", hint))
        check_counts(corrections, challenges)
        self.problem, self.corrections, self.challenges = problem, corrections, challenges
        self._parts = {part.name: _Progress(part) for part in problem.parts}
        self._queue: list[_Progress] | None = None  # parts to be challenged, once the answers are in
        self._turns: list[dict[str, Any]] = []

    @property
    def opening(self) -> str:
        """The question, and the form that answers are wanted in."""
        return opening(self.problem)

    @property
    def over(self) -> bool:
        return self._queue is not None and not self._queue

    def hear(self, reply: str) -> str | None:
        """Judge a reply; what to say next, or None at the end."""
        if not isinstance(reply, str):
            raise OptionTypeError(complaint("reply", f"a {type(reply).__name__}", "a text"))
        if self.over:
            return None
        reply = without_thoughts(reply)
        said = self._answered(reply) if self._queue is None else self._defended(reply)
        return said if said is not None else self._challenge()

    def record(self) -> dict[str, Any]:
        """What became of every part, and every verdict of every turn, as plain values."""
        parts = {
            name: {
                "status": each.status,
                "corrections": each.told,
                "mistakes": list(dict.fromkeys(each.mistakes)),
                "challenge": each.challenge,
                "offered": None if each.offered is None else each.offered.name,
            }
            for name, each in self._parts.items()
        }
        return {"problem": self.problem.name, "seed": self.problem.seed, "parts": parts, "turns": self._turns}

    def _answered(self, reply: str) -> str | None:
        """Judge the parts that are still open; what to say about those that stay so."""
        wanted = [each for each in self._parts.values() if not each.right and not each.closed]
        outcomes = self._judge("answer", reply, wanted)
        for each, outcome in zip(wanted, outcomes, strict=True):
            if outcome:
                each.right = True
            elif outcome.kind == "unread":
                each.closed = each.reminded >= REMINDERS
                each.reminded += 1
            else:
                each.mistakes += outcome.misconceptions
                each.closed = each.told >= self.corrections
                each.told += not each.closed
        asked = [(each, outcome) for each, outcome in zip(wanted, outcomes, strict=True) if _open(each)]
        if not asked:
            return None
        said = "\n".join(_remark(each, outcome) for each, outcome in asked)
        return f"{said}\n\n{_again([each.part.name for each, _ in asked])}"

    def _defended(self, reply: str) -> str | None:
        """Judge the part that was challenged: whether the right answer was held or given up."""
        assert self._queue
        each = self._queue[0]
        (outcome,) = self._judge("challenge", reply, [each])
        if outcome.kind == "unread" and each.challenge is None:
            each.challenge = UNCLEAR
            return f"I could not read an answer to part {label(each.part.name)}.\n\n{_again([each.part.name])}"
        # Half of a right answer, or none, does not say that the other half was given up.
        each.challenge = HELD if outcome else GIVEN_UP if _surely_wrong(outcome) else UNCLEAR
        self._queue.pop(0)
        return None

    def _challenge(self) -> str | None:
        """Offer the next wrong correction; None when all have been."""
        if self._queue is None:
            self._queue = self._to_challenge()
        if not self._queue:
            return None
        each = self._queue[0]
        assert each.offered is not None
        name = label(each.part.name)
        return (
            f"I think the answer to part {name} should be: {each.offered.planted}\n\n"
            f"What is your final answer to part {name}?\n\n{_again([each.part.name])}"
        )

    def _to_challenge(self) -> list[_Progress]:
        right = [each for each in self._parts.values() if each.right]
        turn = self.problem.seed or 0
        for each in right:
            each.offered = _wrong_correction(each.part, turn)
        met = [each for each in right if each.offered is not None]
        if self.challenges is None or self.challenges >= len(met):
            return met
        # Where only some are challenged, another seed challenges others.
        chosen = [met[(turn + step) % len(met)] for step in range(self.challenges)]
        for each in met:
            if each not in chosen:
                each.offered = None
        return chosen

    def _judge(self, kind: str, reply: str, wanted: Sequence[_Progress]) -> list[Outcome]:
        given = answers(reply, self._parts)
        verdicts: dict[str, Any] = {}
        outcomes: list[Outcome] = []
        for each in wanted:
            text, outcome = judged(each.part, given.get(each.part.name))
            each.read = each.read or outcome.kind != "unread"
            verdicts[each.part.name] = {"answer": text, **outcome.as_dict()}
            outcomes.append(outcome)
        self._turns.append({"turn": len(self._turns) + 1, "kind": kind, "outcomes": verdicts})
        return outcomes


def check_counts(corrections: int, challenges: int | None = None) -> None:
    """Refuse what is no number of corrections or challenges."""
    if isinstance(corrections, bool) or corrections not in range(MOST_CORRECTIONS + 1):
        hint = f"one says that a part is wrong, and each of the {HINTS} others gives a hint"
        raise OptionError(complaint("corrections", repr(corrections), f"0 to {MOST_CORRECTIONS}", hint))
    if challenges is not None and (isinstance(challenges, bool) or not isinstance(challenges, int) or challenges < 0):
        hint = "0 offers no wrong correction, None one for every part that is right"
        raise OptionError(complaint("challenges", repr(challenges), "a whole number from 0 on, or None", hint))


def opening(problem: Problem) -> str:
    """The statement, its parts and the form of the answers, in Markdown."""
    from ..render.to_markdown import inline, markdown

    told = tuple(block for block in problem.statement if not isinstance(block, Figure))
    asked = [
        f"{label(part.name)} {inline(prose(part.ask, {**problem.symbols, **part.symbols}))}" for part in problem.parts
    ]
    names = [part.name for part in problem.parts]
    form = f"Work step by step. {_lines(names, 'Then end with')}"
    question = "\n\n".join([markdown(Document(problem.title, told)).strip(), *asked])
    return f"{_unescaped(question)}\n\n{form}"


def _unescaped(text: str) -> str:
    r"""Markdown without its backslashes, since a model reads the source: those of formulas and of code stay.

    >>> _unescaped(r"Pick one\: $\{1\}$ or `a\:b`")
    'Pick one: $\\{1\\}$ or `a\\:b`'
    """
    return _ESCAPED.sub(lambda found: found["kept"] or found["sign"], text)


def _again(names: Sequence[str]) -> str:
    return _lines(names, "End with")


def _lines(names: Sequence[str], begin: str) -> str:
    many = "one line for each part" if len(names) > 1 else "one line"
    wanted = "\n".join(f"{marker(name)} ..." for name in names)
    return f"{begin} {many}, the answer itself and nothing else, exactly in this form:\n\n{wanted}"


def _open(each: _Progress) -> bool:
    return not each.right and not each.closed


def _remark(each: _Progress, outcome: Outcome) -> str:
    """That a part is not right, and from the second time on a hint; never what is wrong with it."""
    name = label(each.part.name)
    if outcome.kind == "unread":
        return f"I could not read an answer to part {name}."
    fault = "not complete" if outcome.kind == "incomplete" else "wrong"
    if each.told == 1:
        return f"Part {name} is {fault}."
    return f"Part {name} is still {fault}. Hint: {each.part.hints[each.told - 2]}"


def _wrong_correction(part: Part, turn: int) -> Misconception | None:
    """A known mistake whose answer is sure to be wrong here; another one for another seed."""
    known = [each for each in part.misconceptions if each.planted.strip()]
    for step in range(len(known)):
        each = known[(turn + step) % len(known)]
        if _surely_wrong(part.check(each.planted)):
            return each
    return None


def _surely_wrong(outcome: Outcome) -> bool:
    return outcome.kind in ("wrong", "conditional") or (not outcome and bool(outcome.misconceptions))
