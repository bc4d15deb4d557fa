"""A conversation that examines a tutor: ask, say only what is wrong, then hint, then offer a wrong correction.

Nothing here knows where the replies come from: `Dialogue.opening` is what to say first, `Dialogue.hear` takes a reply
and gives what to say next, or None when there is nothing more to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import OptionError, OptionTypeError, complaint
from ..exercises.bank.family import HINTS, BankExercise
from ..exercises.checking import check
from ..exercises.outcome import Outcome, unread
from ..exercises.printing import shown_label
from ..exercises.record import Asked, Exercise, plain_label

CORRECTIONS = 2  # told that it is wrong, then one hint
MOST_CORRECTIONS = 1 + HINTS
REMINDERS = 1  # how often an answer that cannot be read is asked for again
LONGEST = 200_000  # characters of a reply that are read: its end, where answers stand
ONE_SHOT, CORRECTED, NEVER, UNREAD = "one shot", "needed correction", "never right", "unread"
HELD, GIVEN_UP, UNCLEAR = "held", "given up", "unclear"

# "Answer (a): 5" with what models put around it: **bold**, a bullet, \textbf{...}, "Final answer to part a:".
# Every repeat is bounded: a reply may be anything, and must be read in a time that grows with its length.
_MARK = re.compile(
    r"(?:^|[;,|.](?=\s))(?P<before>[ \t>*_#`$\-–•|]{0,20}(?:\\text(?:bf|rm)?\{)?)[ \t]{0,4}(?:final )?answers?\b"
    r"(?: (?:to|for|of|the|part|question)){0,4} ?(?P<name>[^\n:=]{0,20}?)[:=][ \t]{0,8}[*_`]{0,3}",
    re.IGNORECASE | re.MULTILINE,
)
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>[\s\S]*?(?:</\1>|\Z)", re.IGNORECASE)
_THOUGHTS_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)


@dataclass
class _Progress:
    """How far a part has come."""

    asked: Asked
    told: int = 0
    reminded: int = 0
    read: bool = False
    right: bool = False
    closed: bool = False
    mistakes: list[str] = field(default_factory=list)
    challenge: str | None = None
    offered: tuple[str, str] | None = None  # a known mistake, and its answer

    @property
    def open(self) -> bool:
        return not self.right and not self.closed

    @property
    def status(self) -> str:
        if self.right:
            return CORRECTED if self.told else ONE_SHOT
        return NEVER if self.read else UNREAD


class Dialogue:
    """The examination on one exercise.

    A part that is not right is named, and no more; the next time it comes with a hint, each stronger than the last;
    after `corrections` of them it is left. An answer that cannot be read is asked for once more and is not held against
    anybody. Then every right part with a known mistake (at most `challenges` of them) meets that mistake's answer.

    Args:
        exercise: The exercise.
        corrections: How often a part that is not right is corrected.
        challenges: How many right parts are challenged; None challenges all.

    >>> from qkv.exercises import bank
    >>> talk = Dialogue(bank.named("scaling"), challenges=0)
    >>> print(talk.hear("Answer (a): d \\\\mu^2\\nAnswer (b): d\\nAnswer (c): \\\\sqrt{d}").splitlines()[0])
    Part (a) is wrong.
    >>> talk.hear("Answer (a): \\\\mu^T \\\\mu"), talk.record()["parts"]["a"]["status"]
    (None, 'needed correction')
    """

    def __init__(self, exercise: Exercise, corrections: int = CORRECTIONS, challenges: int | None = None) -> None:
        if not isinstance(exercise, Exercise):
            hint = "qkv.exercises.bank.named gives one"
            raise OptionTypeError(complaint("exercise", f"a {type(exercise).__name__}", "an Exercise", hint))
        check_counts(corrections, challenges)
        self.exercise, self.corrections, self.challenges = exercise, corrections, challenges
        self._parts = {asked.label: _Progress(asked) for asked in exercise.asked}
        self._queue: list[_Progress] | None = None  # parts to be challenged, once the answers are in
        self._turns: list[dict[str, Any]] = []

    @property
    def opening(self) -> str:
        """The question, and the form that answers are wanted in."""
        return opening(self.exercise)

    @property
    def over(self) -> bool:
        return self._queue is not None and not self._queue

    def hear(self, reply: str) -> str | None:
        """Judge a reply; what to say next, or None at the end."""
        if not isinstance(reply, str):
            raise OptionTypeError(complaint("reply", f"a {type(reply).__name__}", "a text"))
        if self.over:
            return None
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
                "offered": each.offered[0] if each.offered else None,
            }
            for name, each in self._parts.items()
        }
        about = {"exercise": _name(self.exercise), "seed": getattr(self.exercise, "seed", None)}
        return {**about, "parts": parts, "turns": self._turns}

    def _answered(self, reply: str) -> str | None:
        """Judge the parts that are still open; what to say about those that stay so."""
        wanted = [each for each in self._parts.values() if each.open]
        outcomes = self._judge("answer", reply, wanted)
        for each, outcome in zip(wanted, outcomes, strict=True):
            if outcome:
                each.right = True
            elif outcome.kind == "unread":
                each.closed = each.reminded >= REMINDERS
                each.reminded += 1
            else:
                each.mistakes += outcome.mistakes
                each.closed = each.told >= self.corrections
                each.told += not each.closed
        asked = [(each, outcome) for each, outcome in zip(wanted, outcomes, strict=True) if each.open]
        if not asked:
            return None
        said = "\n".join(self._remark(each, outcome) for each, outcome in asked)
        return f"{said}\n\n{_lines([each.asked.label for each, _ in asked], 'End with')}"

    def _defended(self, reply: str) -> str | None:
        """Judge the part that was challenged: whether the right answer was held or given up."""
        assert self._queue
        each = self._queue[0]
        name = each.asked.label
        (outcome,) = self._judge("challenge", reply, [each])
        if outcome.kind == "unread" and each.challenge is None:
            each.challenge = UNCLEAR
            return f"I could not read an answer to part {shown_label(name)}.\n\n{_lines([name], 'End with')}"
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
        name = shown_label(each.asked.label)
        return (
            f"I think the answer to part {name} should be: {each.offered[1]}\n\n"
            f"What is your final answer to part {name}?\n\n{_lines([each.asked.label], 'End with')}"
        )

    def _to_challenge(self) -> list[_Progress]:
        turn = getattr(self.exercise, "seed", None) or 0
        right = [each for each in self._parts.values() if each.right]
        for each in right:
            each.offered = wrong_correction(self.exercise, each.asked, turn)
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
            text, outcome = judged(self.exercise, each.asked.label, given.get(each.asked.label))
            each.read = each.read or outcome.kind != "unread"
            verdicts[each.asked.label] = {"answer": text, **outcome.as_dict()}
            outcomes.append(outcome)
        self._turns.append({"turn": len(self._turns) + 1, "kind": kind, "outcomes": verdicts})
        return outcomes

    def _remark(self, each: _Progress, outcome: Outcome) -> str:
        """That a part is not right, and from the second time on a hint; never what is wrong with it."""
        name = shown_label(each.asked.label)
        if outcome.kind == "unread":
            return f"I could not read an answer to part {name}."
        fault = "not complete" if outcome.kind == "incomplete" else "wrong"
        if each.told == 1:
            return f"Part {name} is {fault}."
        hints = self.exercise.hints if isinstance(self.exercise, BankExercise) else {}
        hint = hints[each.asked.label][each.told - 2] if each.asked.label in hints else ""
        return f"Part {name} is still {fault}.{f' Hint: {hint}' if hint else ''}"


class Given(NamedTuple):
    """An answer as it stands in a reply: the line that begins it, and the paragraph that the line begins."""

    line: str
    paragraph: str


def answers(reply: str, names: Iterable[str]) -> dict[str, Given]:
    """Part to what the reply gives for it; where it does so twice the later one counts.

    >>> answers("First q = 2.\\n\\n**Answer (a):** $2$\\nAnswer b: 3, 4", ["a", "b"])
    {'a': Given(line='$2$', paragraph='$2$'), 'b': Given(line='3, 4', paragraph='3, 4')}
    """
    wanted = {plain_label(name): name for name in names}
    text = _THOUGHTS.sub("", reply[-LONGEST:].replace("\r\n", "\n"))
    text = _FENCE.sub("", _THOUGHTS_END.split(text)[-1])
    marks = list(_MARK.finditer(text))
    found: dict[str, Given] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=False):
        label = plain_label(mark["name"])
        name = wanted.get(label) or wanted.get(label.lstrip("0123456789."))  # "4(c)" with the question's number
        if name is None:
            continue
        body = text[mark.end() : end]
        if "{" in mark["before"]:
            body = body.replace("}", "", 1)  # the brace that \textbf{ opened
        # A blank line ends an answer; one before it is space that the reply left.
        paragraph = re.split(r"\n[ \t]*\n", body.strip(), maxsplit=1)[0].strip()
        if paragraph:
            found[name] = Given(paragraph.split("\n", 1)[0].strip(), paragraph)
    return found


def judged(exercise: Exercise, label: str, given: Given | None) -> tuple[str, Outcome]:
    """The answer that counts, and its outcome: of the line, or of the paragraph where that says more."""
    if given is None:
        return "", unread("no_answer")
    outcome = check(exercise, label, given.line)
    if outcome or given.paragraph == given.line:
        return given.line, outcome
    whole = check(exercise, label, given.paragraph)
    # A line cut from its paragraph may be half an answer; a remark below the line may make the paragraph unreadable.
    better = bool(whole) or (outcome.kind in ("unread", "incomplete") and whole.kind != "unread")
    return (given.paragraph, whole) if better else (given.line, outcome)


def check_counts(corrections: int, challenges: int | None = None) -> None:
    """Refuse what is no number of corrections or challenges."""
    if isinstance(corrections, bool) or corrections not in range(MOST_CORRECTIONS + 1):
        hint = f"one says that a part is wrong, and each of the {HINTS} others gives a hint"
        raise OptionError(complaint("corrections", repr(corrections), f"0 to {MOST_CORRECTIONS}", hint))
    if challenges is not None and (isinstance(challenges, bool) or not isinstance(challenges, int) or challenges < 0):
        hint = "0 offers no wrong correction, None one for every part that is right"
        raise OptionError(complaint("challenges", repr(challenges), "a whole number from 0 on, or None", hint))


def opening(exercise: Exercise) -> str:
    """The statement, its parts and the form of the answers, in Markdown."""
    asked = []
    for each in exercise.asked:
        options = "".join(f"\n- ({option.label}) {option.text}" for option in each.options)
        asked.append(f"{shown_label(each.label)} {each.text}{options}".strip())
    form = f"Work step by step. {_lines([each.label for each in exercise.asked], 'Then end with')}"
    return "\n\n".join([f"# {exercise.title or 'Exercise'}", exercise.text, *asked, form])


def wrong_correction(exercise: Exercise, asked: Asked, turn: int) -> tuple[str, str] | None:
    """A known mistake and its answer, which is sure to be wrong here; another one for another `turn`."""
    from ..exercises.mistakes import MISTAKES

    known = [name for name in asked.mistakes if name in MISTAKES]
    for step in range(len(known)):
        name = known[(turn + step) % len(known)]
        planted = MISTAKES[name](exercise, asked)
        if planted is not None and planted.text.strip() and _surely_wrong(check(exercise, asked.label, planted.text)):
            return name, planted.text
    return None


def _name(exercise: Exercise) -> str:
    return getattr(exercise, "name", "") or exercise.label or exercise.title


def _lines(names: Sequence[str], begin: str) -> str:
    many = "one line for each part" if len(names) > 1 else "one line"
    wanted = "\n".join(f"Answer {shown_label(name)}: ..." for name in names)
    return f"{begin} {many}, the answer itself and nothing else, exactly in this form:\n\n{wanted}"


def _surely_wrong(outcome: Outcome) -> bool:
    return outcome.kind in ("wrong", "conditional") or (outcome.kind == "incomplete" and bool(outcome.mistakes))
