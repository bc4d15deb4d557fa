"""`qkv check`: whether an answer is right, and if not, why not: against a right answer, or a question of the bank.

Torch, numpy and SymPy are not imported, and the bank only where a question of it is answered.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ..errors import MathsError, OptionError, complaint
from ..maths import compare, parse
from ..render.escapes import clean, json_text
from .errors import UsageError

if TYPE_CHECKING:
    from ..maths import Verdict
    from ..problems import Outcome, Part, Problem

_COLOURS = {"equal": "green", "conditional": "yellow"}
COLOURS = {"right": "green", "conditional": "yellow", "incomplete": "yellow", "unread": "yellow", "wrong": "red"}
WIDEST = 80


def run(
    words: Sequence[str], gold: str | None, lets: Sequence[str], seed: int | None, hint: int | None, as_json: bool
) -> bool:
    """Print the verdict on an answer.

    Returns:
        Whether the answer is right.
    """
    _refuse_options(words)
    if gold is None and not lets and (len(words) != 1 or seed is not None or hint is not None or _is_problem(words[0])):
        return check_part(words, seed, hint, as_json)
    if seed is not None or hint is not None:
        given = "--seed" if seed is not None else "--hint"
        raise UsageError(complaint(given, "it together with --gold or --let", "a problem and a part of the bank"))
    answer, gold = _answer(words), _gold(gold)
    symbols = declared(lets)
    try:
        verdict = compare(gold, answer, symbols)
    except OptionError as error:
        raise UsageError(f"--let: {error}") from None
    if verdict.kind in ("unreadable", "ill-typed"):
        _refuse_broken(gold, symbols)
    if as_json:
        print(json_text(_as_dict(verdict, answer, gold, symbols)))
    else:
        _show(verdict)
    return verdict.kind == "equal"


def declared(lets: Sequence[str]) -> dict[str, str]:
    """Names and types from "name: type"; several names may share one.

    >>> declared(["mu: vector[d]", "a, b: scalar"])
    {'mu': 'vector[d]', 'a': 'scalar', 'b': 'scalar'}
    """
    symbols: dict[str, str] = {}
    for let in lets:
        names, colon, kind = (part.strip() for part in let.partition(":"))
        if not colon or not kind or not all(name.strip() for name in names.split(",")):
            raise UsageError(complaint("--let", repr(let), "a name, a colon and a type", 'for example "mu: vector[d]"'))
        for name in map(str.strip, names.split(",")):
            if name in symbols:
                raise UsageError(complaint("--let", f"{name!r} twice", "each name once"))
            symbols[name] = kind
    return symbols


def _refuse_options(words: Sequence[str]) -> None:
    options = [word for word in words if word.startswith("--")]
    if any(word.split("=")[0] in ("--gold", "--let", "--seed", "--hint", "--json", "--help") for word in options):
        hint = "an answer may begin with a minus sign without a -- before it"
        raise UsageError(complaint("option", f"{options[0]!r} after --", "every option before --", hint))
    if options:
        raise UsageError(complaint("option", repr(options[0]), "--gold, --let, --seed, --hint, --json or --help"))


def _is_problem(word: str) -> bool:
    from ..problems import named

    try:
        return bool(named(word))
    except OptionError:
        return False


def _answer(words: Sequence[str]) -> str:
    if len(words) != 1:
        given = f"{len(words)} words" if words else "nothing"
        hint = r"put it in quotes: qkv check 'mu^T mu' --gold '\|\mu\|^2' --let 'mu: vector[d]'"
        raise UsageError(complaint("ANSWER", given, "one answer", hint))
    return words[0]


def _gold(gold: str | None) -> str:
    if gold is None:
        hint = "or for a question of the bank: qkv check scaling a 'mu^T mu'"
        raise UsageError(complaint("--gold", "nothing", "the right answer, to compare with", hint))
    return gold


def _refuse_broken(gold: str, symbols: Mapping[str, str]) -> None:
    """Raise UsageError where the right answer itself cannot be parsed."""
    try:
        parse(gold, symbols)
    except MathsError as error:
        raise UsageError(f"--gold: {error}") from None


def _parse_error(answer: str, symbols: Mapping[str, str]) -> MathsError | None:
    """The error of parsing the answer, with its place."""
    try:
        parse(answer, symbols)
    except MathsError as error:
        return error
    return None


def _show(verdict: Verdict) -> None:
    colour = _COLOURS.get(verdict.kind, "red")
    evidence = f" ({verdict.evidence})" if verdict.evidence else ""
    typer.echo(f"{typer.style(verdict.kind, fg=colour, bold=True)}{evidence}")
    lines = [verdict.reason]
    if verdict.condition is not None and verdict.condition not in verdict.reason:
        lines.append(f"condition: {verdict.condition}")
    if verdict.counterexample is not None and str(verdict.counterexample) not in verdict.reason:
        lines.append(f"counterexample: {verdict.counterexample}")
    for text in lines:
        typer.echo(clean(text))
    if verdict.where:
        source, caret = clean(verdict.where).split("\n", 1)
        typer.echo(f"{source}\n{typer.style(caret, fg=colour)}")


def _as_dict(verdict: Verdict, answer: str, gold: str, symbols: Mapping[str, str]) -> dict[str, Any]:
    error = _parse_error(answer, symbols) if verdict.where else None
    call = {"gold": gold, "answer": answer, "symbols": dict(symbols)}
    return {**verdict.as_dict(), **call, "span": list(error.span) if error is not None else None}


def check_part(words: Sequence[str], seed: int | None, hint: int | None, as_json: bool) -> bool:
    """Check an answer to a part of a problem, or print a hint for it where no answer is given.

    Returns:
        Whether the answer is right.
    """
    from ..problems.problem import HINTS

    if hint is not None and not 1 <= hint <= HINTS:
        raise UsageError(complaint("--hint", hint, "1, 2 or 3", "1 is a small hint, 3 is nearly the answer"))
    if len(words) not in (2, 3) or (len(words) == 2 and hint is None):
        raise _wrong_count(words, seed)
    problem, part = _problem_and_part(words[0], words[1], seed)
    advice = None if hint is None else part.hints[hint - 1]
    if len(words) == 2:
        _print_hint(problem, part, advice or "", as_json)
        return True
    answer = _answer_from_stdin() if words[2] == "-" else words[2]
    outcome = part.check(answer)
    if as_json:
        print(json_text(outcome_as_dict(problem, part, answer, outcome, advice)))
    else:
        show_outcome(problem, part, outcome, advice)
    return bool(outcome)


def outcome_as_dict(problem: Problem, part: Part, answer: str, outcome: Outcome, hint: str | None) -> dict[str, Any]:
    from ..problems import MISCONCEPTIONS

    about = {"problem": problem.name, "part": part.name, "seed": problem.seed, "answer": answer}
    mistakes = [
        {"name": name, "believed": MISCONCEPTIONS[name].believed, "right": MISCONCEPTIONS[name].right}
        for name in outcome.misconceptions
        if name in MISCONCEPTIONS
    ]
    return {**about, **outcome.as_dict(), "mistakes": mistakes, "hint": hint}


def show_outcome(problem: Problem, part: Part, outcome: Outcome, hint: str | None = None) -> None:
    """Print the verdict, the reason, known mistakes with what is right, and the hint."""
    typer.secho(outcome.kind, fg=COLOURS[outcome.kind], bold=True)
    for line in outcome_lines(outcome):
        print_wrapped(line)
    if hint is not None:
        print_wrapped(f"hint: {prose_text(hint, problem, part)}")


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """The reason, the condition, and the known mistakes by name with what is right."""
    from ..problems import MISCONCEPTIONS

    yield outcome.reason
    if outcome.condition is not None and outcome.condition not in outcome.reason:
        yield f"condition: {outcome.condition}"
    for name in outcome.misconceptions:
        mistake = MISCONCEPTIONS.get(name)
        yield f"known mistake: {name}. {mistake.right}" if mistake else f"known mistake: {name}"


def prose_text(text: str, problem: Problem, part: Part) -> str:
    """Prose with its formulas in Unicode."""
    from ..render.to_text import in_text

    return in_text(text, {**problem.symbols, **part.symbols})


def print_wrapped(text: str) -> None:
    for line in clean(text).splitlines():
        typer.echo(textwrap.fill(line, WIDEST, break_long_words=False, break_on_hyphens=False) if line else "")


def _wrong_count(words: Sequence[str], seed: int | None) -> UsageError:
    wanted, hint = "a problem, a part and an answer in quotes", "qkv check scaling a 'mu^T mu'"
    if len(words) == 1:
        problem = _problem(words[0], seed)
        hint = f"{problem.name} has the parts {', '.join(part.name for part in problem.parts)}"
        return UsageError(complaint(problem.name, "no part and no answer", wanted, hint))
    given = f"{len(words)} words" if len(words) != 2 else "no answer"
    return UsageError(complaint("arguments", given, wanted, hint))


def _problem(name: str, seed: int | None) -> Problem:
    from ..problems import named

    try:
        return named(name, seed)
    except OptionError as error:
        raise UsageError(str(error)) from None


def _problem_and_part(name: str, letter: str, seed: int | None) -> tuple[Problem, Part]:
    problem = _problem(name, seed)
    try:
        return problem, problem.part(letter)
    except OptionError as error:
        raise UsageError(str(error)) from None


def _print_hint(problem: Problem, part: Part, hint: str, as_json: bool) -> None:
    if as_json:
        about = {"problem": problem.name, "part": part.name, "seed": problem.seed, "hint": hint}
        print(json_text(about))
    else:
        print_wrapped(prose_text(hint, problem, part))


def _answer_from_stdin() -> str:
    """An answer of several lines, from the standard input."""
    from ..problems.judging.answers import LONGEST

    if sys.stdin is None:  # the parent process closed it
        hint = "or give the answer in quotes"
        raise UsageError(complaint("-", "a closed standard input", "an answer on the standard input", hint))
    return sys.stdin.read(LONGEST + 1)
