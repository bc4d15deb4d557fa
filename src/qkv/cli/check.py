"""`qkv check`: whether an answer is right, and if not, why not: against a right answer, or for a question.

The question is one of the bank or of an exercise file. Torch is not imported, NumPy and SymPy only by solvers.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import MathsError, OptionError, complaint
from ..maths import compare, parse
from ..render.escapes import clean, json_text
from .errors import UsageError

if TYPE_CHECKING:
    from ..exercises import Asked, Exercise
    from ..exercises.outcome import Outcome
    from ..maths import Verdict

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
    if gold is None and not lets and (len(words) != 1 or seed is not None or hint is not None or _is_known(words[0])):
        return check_part(words, seed, hint, as_json)
    if seed is not None or hint is not None:
        given = "--seed" if seed is not None else "--hint"
        raise UsageError(complaint(given, "it together with --gold or --let", "an exercise and a part"))
    answer, gold = _answer(words), _gold(gold)
    symbols = declared(lets)
    try:
        verdict = compare(gold, answer, symbols)
    except OptionError as error:
        raise UsageError(re.sub(r"^symbols\[('.*?')\]: got", r"--let: for \1 got", str(error))) from None
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


def _is_known(word: str) -> bool:
    from ..exercises import bank

    return _is_file(word) or word.strip().lower() in bank.names()


def _is_file(word: str) -> bool:
    return Path(word).suffix.lower() in (".toml", ".json")


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
        reason, _, place = str(error).partition("\n")
        if names := getattr(error, "undeclared", ()):
            reason += f". Hint: --let '{names[0]}: scalar' declares it, and vector[d] or matrix[n,d] are types too"
        raise UsageError(f"--gold: {reason}\n{place}".rstrip()) from None


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
        print_wrapped(text)
    if verdict.where:
        source, caret = clean(verdict.where).split("\n", 1)
        typer.echo(f"{source}\n{typer.style(caret, fg=colour)}")


def _as_dict(verdict: Verdict, answer: str, gold: str, symbols: Mapping[str, str]) -> dict[str, Any]:
    error = _parse_error(answer, symbols) if verdict.where else None
    call = {"gold": gold, "answer": answer, "symbols": dict(symbols)}
    return {**verdict.as_dict(), **call, "span": list(error.span) if error is not None else None}


def check_part(words: Sequence[str], seed: int | None, hint: int | None, as_json: bool) -> bool:
    """Check an answer to a part of an exercise, or print a hint for it where no answer is given.

    Returns:
        Whether the answer is right.
    """
    from ..exercises.checking import check

    if hint is not None and not 1 <= hint <= 3:
        raise UsageError(complaint("--hint", hint, "1, 2 or 3", "1 is a small hint, 3 is nearly the answer"))
    if len(words) not in (2, 3) or (len(words) == 2 and hint is None):
        raise _wrong_count(words, seed)
    exercise = _exercise(words[0], seed)
    asked = exercise.only(words[1]).asked[0]
    advice = None if hint is None else _hint(exercise, asked, hint)
    about = {"exercise": _name(exercise), "part": asked.label, "seed": getattr(exercise, "seed", None)}
    if len(words) == 2:
        print(json_text({**about, "hint": advice})) if as_json else print_wrapped(_prose(advice or "", exercise))
        return True
    answer = _answer_from_stdin() if words[2] == "-" else words[2]
    outcome = check(exercise, asked.label, answer)
    if as_json:
        print(json_text({**about, "answer": answer, **outcome.as_dict(), "hint": advice}))
    else:
        typer.secho(outcome.kind, fg=COLOURS[outcome.kind], bold=True)
        for line in outcome_lines(outcome):
            print_wrapped(line)
        if advice is not None:
            print_wrapped(f"hint: {_prose(advice, exercise)}")
    return bool(outcome)


def outcome_lines(outcome: Outcome, *, spoilers: bool = True) -> Iterator[str]:
    """What was found, and the known mistakes by name with what is right."""
    from dataclasses import replace

    from ..exercises.outcome import known_mistakes

    yield replace(outcome, mistakes=()).words(spoilers=spoilers)
    for name in outcome.mistakes:
        known = known_mistakes().get(name)
        if known is not None:
            yield f"known mistake: {known.believed}. {known.right.capitalize()}." if spoilers else known.question


def print_wrapped(text: str) -> None:
    for line in clean(text).splitlines():
        typer.echo(textwrap.fill(line, WIDEST, break_long_words=False, break_on_hyphens=False) if line else "")


def _prose(text: str, exercise: Exercise) -> str:
    """Prose with its formulas in Unicode."""
    from ..render.to_text import in_text

    return in_text(text, getattr(exercise, "symbols", {}))


def _name(exercise: Exercise) -> str:
    return getattr(exercise, "name", "") or exercise.label or exercise.title


def _hint(exercise: Exercise, asked: Asked, strength: int) -> str:
    from ..exercises import bank

    if not isinstance(exercise, bank.BankExercise):
        raise UsageError(complaint("--hint", "an exercise file", "an exercise of the bank", "files have no hints"))
    return bank.hint(exercise, asked.label, strength)


def _wrong_count(words: Sequence[str], seed: int | None) -> UsageError:
    wanted, hint = "an exercise, a part and an answer in quotes", "qkv check scaling a 'mu^T mu'"
    if len(words) == 1:
        exercise = _exercise(words[0], seed)
        hint = f"{words[0]} has the parts {', '.join(asked.label for asked in exercise.asked)}"
        return UsageError(complaint(words[0], "no part and no answer", wanted, hint))
    given = f"{len(words)} words" if len(words) > 2 else "no answer" if words else "nothing"
    return UsageError(complaint("arguments", given, wanted, hint))


def _exercise(name: str, seed: int | None) -> Exercise:
    """An exercise of the bank, or of a file."""
    from ..exercises import Exercise, bank

    if not _is_file(name):
        return bank.named(name, seed)
    if seed is not None:
        raise UsageError(complaint("--seed", "it with a file", "an exercise of the bank"))
    try:
        return Exercise.load(name)
    except OSError as error:
        raise UsageError(complaint(name, error.strerror or "an error", "an exercise as TOML or JSON")) from None


def _answer_from_stdin() -> str:
    """An answer of several lines, from the standard input."""
    from ..exercises.forms.statement import LONGEST

    if sys.stdin is None:  # the parent process closed it
        hint = "or give the answer in quotes"
        raise UsageError(complaint("-", "a closed standard input", "an answer on the standard input", hint))
    return sys.stdin.read(LONGEST + 1)
