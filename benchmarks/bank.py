"""The bank: every variant solved, its own answer checked right, every planted mistake named; sheets and keys as PDF."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from qkv.exercises import bank
from qkv.exercises.bank import BankExercise
from qkv.exercises.checking import check, planted
from qkv.exercises.printing import joined_documents, sheet_document
from qkv.exercises.solving import Answer, remembering, solve_part
from qkv.maths.comparison.verdict import unexplained
from qkv.render import pdf

SHEETS = 200
ON_A_SHEET = ("by-hand", "scaling", "argmax")


@dataclass
class Row:
    """One family: variants and their kinds, questions, what was solved and right, mistakes planted and named."""

    family: str
    variants: int
    kinds: int = 0
    questions: int = 0
    solved: int = 0
    right: int = 0
    planted: int = 0
    named: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return self.questions == self.solved == self.right and self.planted == self.named


def run(variants: int = 1000, families: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """A row of figures for each family, over the printed exercise and this many variants."""
    return [asdict(tried(name, variants)) for name in families or bank.names()]


def tried(name: str, variants: int) -> Row:
    row, kinds, start = Row(name, variants), set(), perf_counter()
    for seed in (None, *range(variants)):
        exercise = bank.named(name, seed)
        kinds.add(exercise.kind)
        with remembering(), unexplained():  # a verdict without its remarks is the same verdict
            row.failures += [f"{name} {seed}: {problem}" for problem in problems(exercise, row)]
    row.kinds, row.seconds = len(kinds), perf_counter() - start
    return row


def problems(exercise: BankExercise, row: Row) -> list[str]:
    """What fails in one exercise, in words; the counts are added to the row."""
    found = []
    for asked in exercise.asked:
        row.questions += 1
        solved = solve_part(exercise, asked)
        if solved.answer is None:
            found.append(f"({asked.label}) {solved.refusal.words() if solved.refusal else 'not solved'}")
            continue
        row.solved += 1
        outcome = check(exercise, asked.label, own_text(solved.answer))
        row.right += bool(outcome)
        found += [] if outcome else [f"({asked.label}) {solved.answer.text}: {outcome}"]
        if solved.answer.form == "words":
            continue  # the mistakes of an explanation are statements of its rubric
        for mistake in asked.mistakes:
            wrong = planted(exercise, asked, mistake)
            if wrong is None:
                continue  # it leads to the right answer with these numbers
            row.planted += 1
            named = mistake in check(exercise, asked.label, wrong.text).mistakes
            row.named += named
            found += [] if named else [f"({asked.label}) {mistake} is not named for {wrong.text}"]
    return found


def own_text(found: Answer) -> str:
    """The answer as it would be given: a proof is the chain of its steps."""
    return " = ".join(step.text for step in found.derivation.steps) if found.form == "proof" else found.text


def sheets(copies: int = SHEETS) -> float:
    """Seconds to write sheets of three variants each, and their keys, as two PDF files."""
    start = perf_counter()
    for key in (False, True):
        made = [sheet_document(ON_A_SHEET, [copy] * len(ON_A_SHEET), key=key, copy=copy) for copy in range(copies)]
        pdf(joined_documents(made, "Sheets"))
    return perf_counter() - start
