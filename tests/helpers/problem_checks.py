"""What holds of every family: its own answers are right, planted ones are named, every link of a chain follows."""

from collections.abc import Iterable

from qkv.maths import compare
from qkv.problems.misconceptions import MISCONCEPTIONS
from qkv.problems.problem import Problem


def told(problem: Problem) -> str:
    """The statement as somebody would put it into a chat."""
    lines = []
    for block in problem.statement:
        pieces = [block.maths] if hasattr(block, "maths") else block.words
        lines.append("".join(f"${piece.source}$" if hasattr(piece, "source") else piece.text for piece in pieces))
    return "\n".join([*lines, *(f"({part.name}) {part.ask}" for part in problem.parts)])


def assert_sound(problem: Problem) -> None:
    for part in problem.parts:
        where = problem.name, problem.seed, part.name
        own = part.check(part.answer.text)
        assert own, (*where, own)
        assert not own.misconceptions, (*where, own)
        for known in part.misconceptions:
            assert known.name in MISCONCEPTIONS, known.name
            outcome = part.check(known.planted)
            assert not outcome, (*where, known, outcome)
            assert known.name in outcome.misconceptions, (*where, known, outcome)
        for hint in part.hints:
            assert f"${part.answer.text}$" not in hint, (*where, hint)
        assert all((part.explanation, part.cues, part.ask)), where


def assert_proved(problem: Problem) -> None:
    for part in problem.parts:
        steps = part.steps()
        assert steps, part.name
        for step in steps:
            assert all((step.what, step.why))
            for left, right in zip(step.chain, step.chain[1:], strict=False):
                verdict = compare(left, right, step.symbols)
                growth = any(mark in left for mark in ("O(", "\\Theta(", "\\Omega("))
                fine = ("proved", "tested") if growth else ("proved",)
                assert verdict.evidence in fine, (problem.seed, part.name, left, right, verdict)


def assert_varied(problems: Iterable[Problem]) -> None:
    before = None
    statements = set()
    for problem in problems:
        assert problem.structure != before, problem.seed
        before = problem.structure
        said = repr(problem.statement)
        assert said not in statements, problem.seed
        statements.add(said)
