"""`qkv practice`: ask questions, give hints, check answers, and store what was difficult."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.console import Console

from ..errors import complaint
from ..exercises import progress as kept
from ..exercises.bank import BankExercise, hint, named, names
from ..exercises.bank.family import HINTS
from ..exercises.checking import check
from ..exercises.forms.statement import LONGEST
from ..exercises.printing import question_blocks, spoken, statement_blocks, symbols_of, title, worked_blocks
from ..exercises.record import Asked
from ..exercises.solving import solve_part
from ..render import document as d
from ..render.escapes import clean, json_text
from ..render.to_terminal import show
from .check import COLOURS, WIDEST
from .errors import UsageError

HELP = "Type an answer (a line that ends in \\ continues), or hint, skip, solution, help, quit."
ADVICE = "hint gives a hint, solution shows the solution"
_SEEDS = 1_000_000


class Ended(Exception):
    """The learner quits, or the input ends."""


@dataclass
class Session:
    """The questions that were asked, and how each ended; `before` is the stored progress, `now` this session's."""

    before: kept.Progress
    now: kept.Progress = field(default_factory=kept.Progress)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def note(
        self, exercise: BankExercise, asked: Asked, ended: str, tries: int, hints: int, mistakes: Counter[str]
    ) -> None:
        for progress in (self.before, self.now):
            progress.record(exercise.name, asked.label).note(ended, mistakes)
        about = {"exercise": exercise.name, "part": asked.label, "seed": exercise.seed, "ended": ended}
        self.asked.append({**about, "tries": tries, "hints": hints, "mistakes": dict(mistakes)})

    def as_dict(self) -> dict[str, Any]:
        counts = Counter(each["ended"] for each in self.asked)
        mistakes: Counter[str] = Counter()
        for each in self.asked:
            mistakes.update(each["mistakes"])
        return {
            "questions": self.asked,
            "ended": {name: counts[name] for name in kept.ENDINGS},
            "mistakes": dict(mistakes),
        }


class Practice:
    """A conversation: questions on `console`, answers from the standard input."""

    def __init__(self, console: Console, session: Session) -> None:
        self.console, self.session = console, session

    def ask(self, exercise: BankExercise, asked: Asked) -> None:
        """Ask one question until the answer is right, skipped or shown."""
        show(d.Document("", tuple(question_blocks(exercise, asked))), self.console)
        tries, hints, mistakes = 0, 0, Counter[str]()
        while True:
            try:
                answer = self.answer()
            except (Ended, KeyboardInterrupt):
                if tries:  # a question that was tried counts as skipped
                    self.session.note(exercise, asked, "skipped", tries, hints, mistakes)
                raise
            word = answer.strip().lower().lstrip(":/")
            if word in ("help", "?"):
                self.say(HELP)
            elif word == "hint":
                hints = min(hints + 1, HINTS)
                self.say(
                    f"Hint {hints} of {HINTS}: ", *spoken(hint(exercise, asked.label, hints), symbols_of(exercise))
                )
            elif word == "skip":
                self.session.note(exercise, asked, "skipped", tries, hints, mistakes)
                return
            elif word in ("solution", "solve"):
                self.solution(exercise, asked)
                self.session.note(exercise, asked, "shown", tries, hints, mistakes)
                return
            elif word:
                outcome = check(exercise, asked.label, answer)
                self.console.print(outcome.kind, style=f"bold {COLOURS[outcome.kind]}")
                self.say(outcome.words(spoilers=bool(outcome)))
                mistakes.update(outcome.mistakes)
                # An answer that could not be read does not count as a try.
                tries += outcome.kind != "unread"
                if outcome:
                    ended = "at once" if tries == 1 and not hints else "after tries"
                    self.session.note(exercise, asked, ended, tries, hints, mistakes)
                    return
                if tries == 3:
                    self.say(f"{ADVICE}, skip asks the next question.")

    def answer(self) -> str:
        """Read an answer: a line that ends in a backslash continues. The end of the input ends the practice."""
        lines: list[str] = []
        while True:
            self.console.print("… " if lines else "> ", end="", style="bold")
            line = sys.stdin.readline(LONGEST + 1)
            if not line:
                self.console.print()
                raise Ended
            line = line.rstrip("\r\n")
            if not sys.stdin.isatty():
                self.console.print(clean(line), markup=False)
            # Two backslashes are a LaTeX line break: only one continues the line.
            goes_on = line.endswith("\\") and not line.endswith("\\\\")
            lines.append(line[:-1] if goes_on else line)
            if not goes_on:
                break
        if lines[0].strip().lower() in ("quit", "exit", ":q", ":quit", "/quit"):  # q alone may be an answer
            raise Ended
        return "\n".join(lines)

    def solution(self, exercise: BankExercise, asked: Asked) -> None:
        show(d.Document("", tuple(worked_blocks(exercise, solve_part(exercise, asked)))), self.console)

    def say(self, *words: str | d.Inline) -> None:
        pieces = tuple(d.Text(word) if isinstance(word, str) else word for word in words)
        show(d.Document("", (d.Paragraph(pieces),)), self.console)


def run(wanted: Sequence[str], seed: int | None, rounds: int, reset: bool, as_json: bool) -> None:
    if reset:
        word = kept.forget()
        print(json_text({"reset": word}, indent=None)) if as_json else typer.echo(word)
        return
    chosen = _chosen(wanted)
    if sys.stdin is None:  # the parent process closed it
        raise UsageError(complaint("standard input", "closed", "a terminal, or a file with one answer per line"))
    progress, word = kept.load()
    # With --json the conversation goes to stderr: stdout holds the summary alone.
    console = Console(highlight=False, stderr=as_json)
    if console.width > WIDEST:
        console.width = WIDEST
    session = Session(progress)
    practice = Practice(console, session)
    if word:
        practice.say(word)
    practice.say(HELP)
    try:
        shown = None
        for exercise, asked in _questions(chosen, seed, rounds, progress):
            if exercise is not shown:
                console.print()
                show(d.Document(title(exercise), tuple(statement_blocks(exercise))), console)
                shown = exercise
            console.print()
            practice.ask(exercise, asked)
    except (Ended, KeyboardInterrupt):
        console.print()
    if session.asked and (word := kept.save(session.now)):
        practice.say(word)
    if as_json:
        print(json_text(session.as_dict()))
    else:
        show(_summary(session), console)


def _chosen(wanted: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(named(name).name for name in wanted)) or list(names())


def _questions(
    chosen: Sequence[str], seed: int | None, rounds: int, progress: kept.Progress
) -> Iterator[tuple[BankExercise, Asked]]:
    """Exercises, those that went wrong before more often; of each the parts that need practice."""
    draw = random.Random(seed)
    next_seed = draw.randrange(_SEEDS) if seed is None else seed
    left, last = rounds, ""
    while left:
        names_left = [name for name in chosen if name != last] or list(chosen)
        needs = [_need(name, progress) for name in names_left]
        last = draw.choices(names_left, needs)[0]
        exercise = named(last, next_seed)
        next_seed = draw.randrange(_SEEDS) if seed is None else next_seed + 1
        wanting = [asked for asked in exercise.asked if progress.need(exercise.name, asked.label) >= 1]
        for asked in (wanting or exercise.asked)[:left]:
            yield exercise, asked
            left -= 1


def _need(name: str, progress: kept.Progress) -> float:
    """How much an exercise needs practice: as its most needed part; one that was never asked counts 1."""
    known = [record.need for key, record in progress.records.items() if key.startswith(f"{name}/")]
    return max(known, default=1.0)


def _summary(session: Session) -> d.Document:
    found = session.as_dict()
    asked = len(session.asked)
    if not asked:
        return d.Document("No question was answered.", ())
    rows = tuple((name, str(count)) for name, count in found["ended"].items() if count)
    blocks: list[d.Block] = [d.Table(("ended", "questions"), rows, right=frozenset({1}))]
    if found["mistakes"]:
        listed = tuple(f"{name} ({count})" for name, count in found["mistakes"].items())
        blocks += [d.Paragraph("Mistakes to review:"), d.Items(listed)]
    missed = [f"{each['exercise']} {each['part']}" for each in session.asked if each["ended"] in ("skipped", "shown")]
    if missed:
        blocks.append(d.Paragraph(f"To practise again: {', '.join(dict.fromkeys(missed))}."))
    return d.Document(f"{asked} question{'' if asked == 1 else 's'}", tuple(blocks))
