"""`qkv check`: is an answer right, and if not, why not. Neither torch, numpy nor SymPy is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ..errors import MathsError, OptionError, complaint
from ..maths import compare, parse
from ..render.escapes import clean, json_text

if TYPE_CHECKING:
    from ..maths import Verdict

_COLOURS = {"equal": "green", "conditional": "yellow"}


class WrongWord(Exception):
    """A call that is broken: the command ends with 2."""


def run(
    words: Sequence[str], gold: str | None, lets: Sequence[str], seed: int | None, hint: int | None, as_json: bool
) -> bool:
    """Print the verdict on an answer; whether it is right."""
    _refuse_options(words)
    if gold is None and not lets and (len(words) != 1 or seed is not None or hint is not None or _is_problem(words[0])):
        from . import answers

        try:
            return answers.run(words, seed, hint, as_json)
        except answers.WrongWord as error:
            raise WrongWord(str(error)) from None
    if seed is not None or hint is not None:
        given = "--seed" if seed is not None else "--hint"
        raise WrongWord(complaint(given, "beside --gold or --let", "a problem and a part of the bank"))
    answer, gold = _answer(words), _gold(gold)
    symbols = declared(lets)
    try:
        verdict = compare(gold, answer, symbols)
    except OptionError as error:
        raise WrongWord(f"--let: {error}") from None
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
            raise WrongWord(complaint("--let", repr(let), "a name, a colon and a type", 'for example "mu: vector[d]"'))
        for name in map(str.strip, names.split(",")):
            if name in symbols:
                raise WrongWord(complaint("--let", f"{name!r} twice", "each name once"))
            symbols[name] = kind
    return symbols


def _refuse_options(words: Sequence[str]) -> None:
    options = [word for word in words if word.startswith("--")]
    if any(word.split("=")[0] in ("--gold", "--let", "--seed", "--hint", "--json", "--help") for word in options):
        hint = "an answer that begins with a minus sign needs no -- before it"
        raise WrongWord(complaint("option", f"{options[0]!r} after --", "every option before --", hint))
    if options:
        raise WrongWord(complaint("option", repr(options[0]), "--gold, --let, --seed, --hint, --json or --help"))


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
        raise WrongWord(complaint("ANSWER", given, "one answer", hint))
    return words[0]


def _gold(gold: str | None) -> str:
    if gold is None:
        hint = "or for a question of the bank: qkv check scaling a 'mu^T mu'"
        raise WrongWord(complaint("--gold", "nothing", "the right answer, to compare with", hint))
    return gold


def _refuse_broken(gold: str, symbols: Mapping[str, str]) -> None:
    """No answer can be judged by a right answer that makes no sense: the call is wrong, and not the answer."""
    try:
        parse(gold, symbols)
    except MathsError as error:
        raise WrongWord(f"--gold: {error}") from None


def _fault(answer: str, symbols: Mapping[str, str]) -> MathsError | None:
    """Where the answer, read as it stands, goes wrong."""
    try:
        parse(answer, symbols)
    except MathsError as error:
        return error
    return None


def _show(verdict: Verdict) -> None:
    colour = _COLOURS.get(verdict.kind, "red")
    evidence = f" ({verdict.evidence})" if verdict.evidence else ""
    typer.echo(f"{typer.style(verdict.kind, fg=colour, bold=True)}{evidence}")
    said = [verdict.reason]
    if verdict.condition is not None and verdict.condition not in verdict.reason:
        said.append(f"condition: {verdict.condition}")
    if verdict.counterexample is not None and str(verdict.counterexample) not in verdict.reason:
        said.append(f"counterexample: {verdict.counterexample}")
    for text in said:
        typer.echo(clean(text))
    if verdict.where:
        source, caret = clean(verdict.where).split("\n", 1)
        typer.echo(f"{source}\n{typer.style(caret, fg=colour)}")


def _as_dict(verdict: Verdict, answer: str, gold: str, symbols: Mapping[str, str]) -> dict[str, Any]:
    fault = _fault(answer, symbols) if verdict.where else None
    asked = {"gold": gold, "answer": answer, "symbols": dict(symbols)}
    return {**verdict.as_dict(), **asked, "span": list(fault.span) if fault is not None else None}
