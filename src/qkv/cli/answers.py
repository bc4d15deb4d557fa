"""`qkv check PROBLEM PART ANSWER`: what became of an answer to a question of the bank."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from ..errors import OptionError, complaint
from ..problems import MISCONCEPTIONS, Outcome, Part, Problem, named
from ..problems.judging.answers import LONGEST
from ..problems.problem import HINTS
from ..render.escapes import clean, json_text
from ..render.to_text import in_text

COLOURS = {"right": "green", "conditional": "yellow", "incomplete": "yellow", "unread": "yellow", "wrong": "red"}
WIDEST = 80


class WrongWord(Exception):
    """A call that is broken: the command ends with 2."""


def run(words: Sequence[str], seed: int | None, hint: int | None, as_json: bool) -> bool:
    """Print what became of the answer; without one, the hint that was asked for."""
    if hint is not None and not 1 <= hint <= HINTS:
        raise WrongWord(complaint("--hint", hint, "1, 2 or 3", "1 is a nudge, 3 is nearly the answer"))
    if len(words) not in (2, 3) or (len(words) == 2 and hint is None):
        raise _wrong_count(words, seed)
    problem, part = _found(words[0], words[1], seed)
    advice = None if hint is None else part.hints[hint - 1]
    if len(words) == 2:
        _print_hint(problem, part, advice or "", as_json)
        return True
    answer = _piped() if words[2] == "-" else words[2]
    outcome = part.check(answer)
    if as_json:
        print(json_text(as_dict(problem, part, answer, outcome, advice)))
    else:
        show(problem, part, outcome, advice)
    return bool(outcome)


def as_dict(problem: Problem, part: Part, answer: str, outcome: Outcome, hint: str | None) -> dict[str, Any]:
    about = {"problem": problem.name, "part": part.name, "seed": problem.seed, "answer": answer}
    mistakes = [
        {"name": name, "believed": MISCONCEPTIONS[name].believed, "right": MISCONCEPTIONS[name].right}
        for name in outcome.misconceptions
        if name in MISCONCEPTIONS
    ]
    return {**about, **outcome.as_dict(), "mistakes": mistakes, "hint": hint}


def show(problem: Problem, part: Part, outcome: Outcome, hint: str | None = None) -> None:
    """The verdict, why, the mistake by name with what is right, and the hint."""
    typer.secho(outcome.kind, fg=COLOURS[outcome.kind], bold=True)
    for line in outcome_lines(outcome):
        say(line)
    if hint is not None:
        say(f"hint: {prose_text(hint, problem, part)}")


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """Why, under which condition, and the known mistakes by name with what is right."""
    yield outcome.reason
    if outcome.condition is not None and outcome.condition not in outcome.reason:
        yield f"condition: {outcome.condition}"
    for name in outcome.misconceptions:
        mistake = MISCONCEPTIONS.get(name)
        yield f"known mistake: {name}. {mistake.right}" if mistake else f"known mistake: {name}"


def prose_text(text: str, problem: Problem, part: Part) -> str:
    """Prose with its formulas in Unicode."""
    return in_text(text, {**problem.symbols, **part.symbols})


def say(text: str) -> None:
    for line in clean(text).splitlines():
        typer.echo(textwrap.fill(line, WIDEST, break_long_words=False, break_on_hyphens=False) if line else "")


def _wrong_count(words: Sequence[str], seed: int | None) -> WrongWord:
    wanted, hint = "a problem, a part and an answer in quotes", "qkv check scaling a 'mu^T mu'"
    if len(words) == 1:
        problem = _named(words[0], seed)
        hint = f"{problem.name} has the parts {', '.join(part.name for part in problem.parts)}"
        return WrongWord(complaint(problem.name, "no part and no answer", wanted, hint))
    said = f"{len(words)} words" if len(words) != 2 else "no answer"
    return WrongWord(complaint("words", said, wanted, hint))


def _named(name: str, seed: int | None) -> Problem:
    try:
        return named(name, seed)
    except OptionError as error:
        raise WrongWord(str(error)) from None


def _found(name: str, letter: str, seed: int | None) -> tuple[Problem, Part]:
    problem = _named(name, seed)
    try:
        return problem, problem.part(letter)
    except OptionError as error:
        raise WrongWord(str(error)) from None


def _print_hint(problem: Problem, part: Part, hint: str, as_json: bool) -> None:
    if as_json:
        about = {"problem": problem.name, "part": part.name, "seed": problem.seed, "hint": hint}
        print(json_text(about))
    else:
        say(prose_text(hint, problem, part))


def _piped() -> str:
    """An answer of several lines, from the standard input."""
    if sys.stdin is None:  # closed by whoever started this
        raise WrongWord(complaint("-", "a closed standard input", "an answer in it", "or put it in quotes"))
    return sys.stdin.read(LONGEST + 1)
