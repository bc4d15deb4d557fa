"""What every family of the bank is held to, whatever it asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from qkv.maths import compare
from qkv.problems.misconceptions import MISCONCEPTIONS
from qkv.problems.problem import Problem


def seeds(count: int = 6) -> tuple[int | None, ...]:
    """The documents' question and some variants."""
    return (None, *range(count))


def right_answers_are_right(problem: Problem) -> None:
    for part in problem.parts:
        outcome = part.check(part.answer.text)
        assert outcome, (problem.seed, part.name, part.answer.text, outcome.reason)
        assert not outcome.misconceptions


def planted_mistakes_are_named(problem: Problem) -> None:
    for part in problem.parts:
        assert part.misconceptions or part.name == "a", (problem.seed, part.name)
        for known in part.misconceptions:
            assert known.name in MISCONCEPTIONS, known.name
            outcome = part.check(known.planted)
            assert outcome.kind in ("wrong", "conditional", "incomplete"), (problem.seed, part.name, known, outcome)
            assert known.name in outcome.misconceptions, (problem.seed, part.name, known, outcome)


def chains_hold(problem: Problem) -> None:
    for part in problem.parts:
        steps = part.steps()
        assert steps
        for step in steps:
            assert step.what
            assert step.why
            for before, after in zip(step.chain, step.chain[1:], strict=False):
                verdict = compare(before, after, step.symbols)
                assert verdict.kind == "equal", (problem.seed, part.name, before, after, verdict.reason)
            if step.chain:
                assert step.latex


def words_are_there(problem: Problem) -> None:
    assert problem.title
    assert problem.statement
    assert problem.sources
    assert 2 <= len(problem.follow_ups) <= 3
    for part in problem.parts:
        assert len(part.hints) == 3
        assert part.ask
        assert part.explanation
        assert part.points > 0
        for hint in part.hints:
            assert hint
            assert part.answer.text not in hint.split("$"), (problem.seed, part.name, hint)


def variants_differ(make: Callable[[int | None], Problem], over: Iterable[int]) -> None:
    statements, before = set(), None
    for seed in over:
        problem = make(seed)
        assert problem.structure != before, seed
        before = problem.structure
        statements.add(repr(problem.statement))
    assert len(statements) == len(list(over))


def as_text(problem: Problem) -> str:
    """The problem as a sheet has it: the statement in Markdown, then the parts."""
    from qkv.render.document import Document
    from qkv.render.to_markdown import markdown

    shown = re.sub(r"\\([:()\[\]])", r"\1", markdown(Document(problem.title, problem.statement)))
    return shown + "\n" + "\n\n".join(f"({part.name}) {part.ask}" for part in problem.parts)
