"""The bank for other programs: plain values, JSON Lines, Moodle XML, QTI 1.2 and PrairieLearn folders.

What a platform can check by itself (choices, numbers) it checks; other answers go to it as free text with the right
answer and the worked solution for whoever grades, and to PrairieLearn with qkv's own checker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import OptionError, complaint
from ...maths import tree as t
from ...render import document as d
from ..judging.answers import Answer, Value, Values
from ..judging.choices import Choice
from ..judging.counts import Count
from ..problem import Part, Problem, Solution, Step
from .documents import answered, labelled, question, spoken, worked


class Field(NamedTuple):
    """A number that an answer has, where it stands, and how far off another may be."""

    label: str
    value: Fraction
    tolerance: Fraction


def identifier(problem: Problem, part: Part | None = None) -> str:
    """A name that no other question of the bank has.

    >>> from qkv.problems.printing.exports import identifier
    >>> from qkv.problems import Problem
    >>> identifier(Problem("toy", "A toy", (), (), lambda seed: None, seed=7))
    'toy-7'
    """
    seed = "document" if problem.seed is None else str(problem.seed)
    letters = "" if part is None else "-" + "".join(sign for sign in part.name.lower() if sign.isalnum())
    return f"{problem.name}-{seed}{letters}"


def solution_as_dict(solution: Solution, parts: Sequence[str] = ()) -> dict[str, Any]:
    """A worked solution as plain values: exact numbers are texts such as 3/2."""
    problem = solution.problem
    wanted = {problem.part(name).name for name in parts}
    solved = [each for each in solution.parts if not wanted or each.part.name in wanted]
    return {
        **about(problem),
        "parts": [
            {
                **_asked(problem, each.part),
                "steps": [_step(step) for step in each.steps],
                "answer": each.answer,
                "explanation": each.part.explanation,
            }
            for each in solved
        ],
        "summary": {each.part.name: each.answer for each in solved},
        "follow_ups": list(problem.follow_ups),
    }


def about(problem: Problem) -> dict[str, Any]:
    """What a problem is, without its parts."""
    return {
        "name": problem.name,
        "title": problem.title,
        "seed": problem.seed,
        "sources": list(problem.sources),
        "symbols": dict(problem.symbols),
        "statement": _markdown(problem.statement),
    }


def json_lines(problems: Sequence[Problem]) -> str:
    """One part a line: the question, the right answer, hints, and the known mistakes with what they lead to."""
    return "".join(f"{json.dumps(_line(problem, part), ensure_ascii=False)}\n" for problem, part in _parts(problems))


def fields(part: Part) -> tuple[Field, ...]:
    """The numbers of an answer that is nothing else, in order; empty for any other."""
    answer = part.answer
    named = answer.items if isinstance(answer, Values) else {"": answer}
    found: list[Field] = []
    for name, value in named.items():
        entries = _numbers(value)
        if not entries:
            return ()
        several = len(entries) > 1
        found += [
            Field(f"{name}[{place}]" if several else name, number, unit)
            for place, (number, unit) in enumerate(entries, 1)
        ]
    return tuple(found)


def solution_blocks(problem: Problem, part: Part) -> Iterator[d.Block]:
    """The worked solution of one part, for whoever grades it."""
    for step in part.steps():
        symbols = {**problem.symbols, **part.symbols, **step.symbols}
        yield d.Paragraph((*spoken(step.what, symbols), d.Text(" "), *spoken(step.why, symbols)))
        yield from worked(step, symbols)
    yield d.Paragraph((d.Text("Answer: ", "strong"), *answered(problem, part)))


def question_blocks(problem: Problem, part: Part, options: bool = True) -> Iterator[d.Block]:
    """The statement and one part of it, to stand alone."""
    yield from labelled(problem.statement)
    asked = list(question(problem, part))
    choice = isinstance(part.answer, Choice)
    yield from asked[:-1] if choice and not options else asked


def export(problems: Sequence[Problem], form: str) -> dict[str, bytes]:
    """The files of an export, by their names in the folder."""
    if form not in FORMATS:
        raise OptionError(complaint("format", repr(form), f"one of {', '.join(FORMATS)}"))
    return FORMATS[form](problems)


def _jsonl(problems: Sequence[Problem]) -> dict[str, bytes]:
    return {"problems.jsonl": json_lines(problems).encode()}


def _moodle(problems: Sequence[Problem]) -> dict[str, bytes]:
    from .to_moodle import moodle

    return {"moodle.xml": moodle(problems)}


def _qti(problems: Sequence[Problem]) -> dict[str, bytes]:
    from .to_qti import qti

    return {"qti.zip": qti(problems)}


def _prairielearn(problems: Sequence[Problem]) -> dict[str, bytes]:
    from .to_prairielearn import prairielearn

    return prairielearn(problems)


FORMATS: dict[str, Callable[[Sequence[Problem]], dict[str, bytes]]] = {
    "moodle": _moodle,
    "qti": _qti,
    "prairielearn": _prairielearn,
    "jsonl": _jsonl,
}


def save_export(problems: Sequence[Problem], form: str, folder: Path) -> list[Path]:
    """Write an export below a folder that is there; every file whole."""
    from ...render.saving import write

    files = {folder / name: content for name, content in export(problems, form).items()}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    return list(write(files))


def _parts(problems: Sequence[Problem]) -> Iterator[tuple[Problem, Part]]:
    return ((problem, part) for problem in problems for part in problem.parts)


def _line(problem: Problem, part: Part) -> dict[str, Any]:
    return {
        "id": identifier(problem, part),
        **about(problem),
        **_asked(problem, part),
        "answer": part.answer.text,
        "explanation": part.explanation,
        "hints": list(part.hints),
        "misconceptions": [{"name": each.name, "answer": each.planted} for each in part.misconceptions],
        "steps": [_step(step) for step in part.steps()],
    }


def _asked(problem: Problem, part: Part) -> dict[str, Any]:
    asked: dict[str, Any] = {"part": part.name, "ask": part.ask, "points": part.points}
    if isinstance(part.answer, Choice):
        asked["options"] = {option.label: option.text for option in part.answer.options}
    return {**asked, "kind": type(part.answer).__name__.lower()}


def _step(step: Step) -> dict[str, Any]:
    latex = step.latex if step.chain else ""
    return {
        "what": step.what,
        "why": step.why,
        "chain": list(step.chain),
        "relation": step.relation,
        "latex": latex,
        "value": plain_value(step.value),
    }


def plain_value(value: Any) -> Any:
    """An exact value as JSON can hold it.

    >>> plain_value((1, Fraction(3, 2), ("x", None)))
    [1, '3/2', ['x', None]]
    """
    if isinstance(value, Mapping):
        return {str(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain_value(each) for each in value]
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _numbers(value: Answer) -> list[tuple[Fraction, Fraction]]:
    if isinstance(value, Count):
        return [(Fraction(value.number), Fraction(0))]
    if not isinstance(value, Value):
        return []
    node = d.Maths(value.gold, value.symbols).tree()
    entries = node.entries if isinstance(node, t.Written) else (node,)
    found = []
    for entry in entries:
        if not isinstance(entry, t.Number):
            return []
        found.append((entry.value, Fraction(0) if entry.unit is None else entry.unit / 2))
    return found


def _markdown(blocks: Sequence[d.Block]) -> str:
    from ...render.to_markdown import markdown

    return markdown(d.Document("", tuple(blocks))).removeprefix("#").strip()
