"""Exercises, worked solutions, sheets and their keys as documents of `qkv.render`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from ..derivation import Derivation
from ..render import document as d
from ..render.escapes import GREEK
from ..render.layout import in_columns
from .bank import BankExercise, named
from .record import Asked, Exercise, Option
from .solving import Answer, Solution, Solved, solve, solve_part

TITLE = "Attention: exercise sheet"
_NAME_LINE = "_" * 34


def solution_document(solution: Solution | Exercise, *, brief: bool = False, parts: Sequence[str] = ()) -> d.Document:
    """The worked solution: each question with its steps and answer, then a table of the answers.

    Args:
        solution: what `solve` gave, or an exercise, which is solved.
        brief: leave out the steps.
        parts: the labels of the questions that are wanted; all of them where it is empty.
    """
    solution = solution if isinstance(solution, Solution) else solve(solution)
    exercise = solution.exercise
    wanted = [solution[label] for label in parts] if parts else solution.parts
    blocks: list[d.Block] = [*statement_blocks(exercise)]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for each in wanted:
        blocks.append(d.Heading(f"Part {shown_label(each.asked.label)}{_points(exercise, each.asked, ', {}')}", 3))
        blocks += question_blocks(exercise, each.asked, labelled=False)
        blocks += worked_blocks(exercise, _without(each, seen), brief=brief)
    rows = tuple((shown_label(each.asked.label), answer_words(exercise, each)) for each in wanted)
    blocks += [d.Heading("Summary of answers"), d.Table(("part", "answer"), rows)]
    if isinstance(exercise, BankExercise):
        blocks += list(_after(exercise))
    return d.Document(title(exercise), tuple(blocks))


def sheet_document(
    exercises: Sequence[Exercise | str],
    seeds: Sequence[int | None] = (),
    *,
    key: bool = False,
    title: str = TITLE,
    copy: int | None = None,
) -> d.Document:
    """A sheet with a line for the name, points and space to write, or with `key` the same with answers.

    Args:
        exercises: exercises, or names of the bank.
        seeds: the seed of each name; None, and where there are fewer seeds than names, the printed exercise.
        key: show the answers in place of the space to write.
        title: the heading of the sheet.
        copy: a number that is printed, so that a sheet finds its key.
    """
    chosen = [named(each, seed) if isinstance(each, str) else each
              for each, seed in zip_longest(exercises, seeds[: len(exercises)])]  # fmt: skip
    number = "" if copy is None else f"Copy {copy:03d}"
    total = sum(map(_total, chosen))
    line = [f"{total} points in all"] if key else [f"Name: {_NAME_LINE}", f"Points: ______ / {total}"]
    blocks: list[d.Block] = [d.Paragraph(" · ".join(filter(None, [*line, number])))]
    for place, exercise in enumerate(chosen, 1):
        blocks.append(d.Heading(f"{place}. {exercise.title} ({_total(exercise)} points)"))
        blocks += statement_blocks(exercise)
        for asked in exercise.asked:
            blocks += question_blocks(exercise, asked)
            blocks.append(
                answer_note(exercise, solve_part(exercise, asked)) if key else d.BlankLines(_lines_for(asked))
            )
    return d.Document(f"{title}: key" if key else title, tuple(blocks))


def joined_documents(documents: Sequence[d.Document], heading: str) -> d.Document:
    """One document of several, each from a new page; one alone stays as it is."""
    if len(documents) == 1:
        return documents[0]
    blocks: list[d.Block] = []
    for place, document in enumerate(documents):
        blocks += [d.PageBreak()] if place else []
        blocks += [d.Heading(document.title), *document.blocks]
    return d.Document(heading, tuple(blocks))


def title(exercise: Exercise) -> str:
    """The title of an exercise, with the seed of a variant."""
    name = exercise.title or exercise.label or "Exercise"
    seed = exercise.seed if isinstance(exercise, BankExercise) else None
    return name if seed is None else f"{name} (variant {seed})"


def statement_blocks(exercise: Exercise) -> Iterator[d.Block]:
    """What is given: the text of the exercise, or what the record says where there is none."""
    if exercise.text:
        yield from text_blocks(exercise.text, symbols_of(exercise))
    else:
        said = [(name, words) for name, words in exercise.understood() if words and name != "asked"]
        yield from (d.Paragraph(f"{name.capitalize()}: {', '.join(words)}.") for name, words in said)


def text_blocks(text: str, symbols: Mapping[str, str]) -> Iterator[d.Block]:
    """Paragraphs, formulas between double dollars, which are placed next to each other, and code between fences."""
    formulas: list[d.Maths] = []
    for piece in re.split(r"\n\s*\n(?=(?:[^`]*```[^`]*```)*[^`]*$)", text.strip()):
        if display := re.fullmatch(r"\$\$(.+)\$\$", piece.strip(), re.DOTALL):
            formulas.append(_displayed(display[1].strip(), symbols))
            continue
        if formulas:
            yield d.Formula(formulas[0], tuple(formulas[1:]))
            formulas = []
        if fenced := re.fullmatch(r"```(\w*)\n(.*)\n```", piece.strip(), re.DOTALL):
            yield d.Code(fenced[2], fenced[1])
        elif piece.strip():
            yield d.Paragraph(spoken(" ".join(piece.split()), symbols))
    if formulas:
        yield d.Formula(formulas[0], tuple(formulas[1:]))


def question_blocks(
    exercise: Exercise, asked: Asked, *, labelled: bool = True, options: bool = True
) -> Iterator[d.Block]:
    """What a question asks, with its label and its points; the options of a choice are below."""
    symbols = symbols_of(exercise)
    bare = asked.quantity.replace("_", " ") + (f" of {asked.object}" if asked.object else "")
    text = asked.text or f"{bare[0].upper()}{bare[1:]}?"
    before, *after = list(text_blocks(text, symbols))
    words = d.inlines(before.words) if isinstance(before, d.Paragraph) else ()
    head = [d.Text(f"{shown_label(asked.label)} ", "strong")] if labelled and asked.label else []
    tail = [d.Text(_points(exercise, asked, " [{}]"))] if labelled and _points(exercise, asked) else []
    yield d.Paragraph((*head, *words, *tail))
    yield from after
    if asked.options and options:
        yield d.Items(
            tuple((d.Text(f"({each.label}) "), *option_words(exercise, asked, each)) for each in asked.options)
        )


def option_words(exercise: Exercise, asked: Asked, option: Option) -> tuple[d.Inline, ...]:
    """An option as it is printed: code where a blank of a listing is asked for."""
    code = asked.form in ("blank", "code")
    return (d.Text(option.text, "code"),) if code else spoken(option.text, symbols_of(exercise))


def worked_blocks(exercise: Exercise, solved: Solved, *, brief: bool = False) -> Iterator[d.Block]:
    """The steps of one question and its answer."""
    if solved.answer is not None and solved.answer.derivation.steps and not brief:
        yield solved.answer.derivation
    yield answer_note(exercise, solved)


def _without(solved: Solved, seen: set[tuple[tuple[str, str], ...]]) -> Solved:
    """A solved question without the chains that an earlier part showed; those that are new are added to `seen`."""
    if solved.answer is None:
        return solved
    keys = {
        tuple((step.title, step.text) for step in chain.steps): chain for chain in solved.answer.derivation.chains()
    }
    new = [step for key, chain in keys.items() if key not in seen for step in chain.steps]
    seen |= set(keys)
    return replace(solved, answer=replace(solved.answer, derivation=Derivation(tuple(new))))


def answer_note(exercise: Exercise, solved: Solved) -> d.Note:
    """The answer in a box, with what was assumed and what follows under other conventions."""
    if solved.answer is None:
        why = "" if solved.refusal is None else solved.refusal.words()
        return d.Note("No answer", (d.Paragraph(f"{why[:1].upper()}{why[1:]}."),))
    answer = solved.answer
    notes = [f"{each[:1].upper()}{each[1:]}." for each in (finding.words() for finding in answer.assumed)]
    notes += [f"With {each.convention}: {each.text}." for each in answer.also if each.convention]
    return d.Note((d.Text("Answer: "), *answer_words(exercise, solved)), tuple(map(d.Paragraph, notes)))


def answer_words(exercise: Exercise, solved: Solved) -> tuple[d.Inline, ...]:
    """The answer as it is printed: mathematics where it is some, code for code, words for words."""
    if solved.answer is None:
        return (d.Text("not solved"),)
    return tuple(_answered(solved.answer, symbols_of(exercise)))


def _answered(answer: Answer, symbols: Mapping[str, str]) -> Iterator[d.Inline]:
    if answer.items:
        for place, (name, item) in enumerate(answer.items.items()):
            yield from ([d.Text("; ")] if place else [])
            yield from spoken(f"${name}$" if "_" in name or len(name) == 1 else name, symbols)
            yield d.Text(": " if item.form == "words" else " = ")
            yield from _answered(item, symbols)
    elif answer.form in ("blank", "code", "shape"):
        yield d.Text(answer.text, "code")
    elif answer.form in ("words", "choice"):
        yield from spoken(answer.text, symbols)
    else:
        # A unit is a word: as mathematics GB would be 1000000000 B.
        text = answer.text.removesuffix(answer.unit).rstrip() if answer.form == "number" else answer.text
        readings = [d.Maths(text, each) for each in (answer.symbols, symbols)]
        yield next((each for each in readings if each.tree() is not None), d.Text(text, "code"))
        if text != answer.text:
            yield d.Text(f" {answer.unit}")
    if answer.unit and not answer.text.endswith(answer.unit):
        yield d.Text(f" {answer.unit}")


def _after(exercise: BankExercise) -> Iterator[d.Block]:
    symbols = symbols_of(exercise)
    for each in exercise.corrections:
        said = (f"Printed for part {shown_label(each.label)}: {each.printed}", f"Right: {each.right}", each.why)
        words = " ".join(f"{sentence.rstrip('.')}." for sentence in said)
        yield d.Note("Correction of the printed solution", (d.Paragraph(spoken(words, symbols)),), "correction")
    if exercise.follow_ups:
        yield d.Heading("Questions to continue with")
        yield d.Items(tuple(spoken(each, symbols) for each in exercise.follow_ups), ordered=True)


def symbols_of(exercise: Exercise) -> dict[str, str]:
    """The types of the names in the prose of an exercise, as far as they are known."""
    return dict(exercise.symbols) if isinstance(exercise, BankExercise) else {}


def spoken(text: str, symbols: Mapping[str, str]) -> tuple[d.Inline, ...]:
    """Prose whose formulas are read with `symbols`, and where that fails with every letter as a number."""
    return tuple(_loosely(piece) if isinstance(piece, d.Maths) else piece for piece in d.prose(text, symbols))


def _loosely(formula: d.Maths) -> d.Maths:
    text = str(formula.source)
    if formula.tree() is not None or len(text) > 60:
        return formula
    names = set(re.findall(r"(?<![A-Za-z\\^])[A-Za-z](?:'|_[A-Za-z0-9])?(?![A-Za-z])", text))
    names |= {name for name in re.findall(r"\\([A-Za-z]+)", text) if name in GREEK}
    symbols = dict.fromkeys(sorted(names), "scalar")
    for name, inside in re.findall(r"(?<![A-Za-z\\])([A-Za-z]{2,})(\([^()]*\))?", text):
        symbols[name] = f"map {', '.join(['scalar'] * (inside.count(',') + 1))} -> scalar" if inside else "scalar"
    loose = replace(formula, symbols=symbols)
    return loose if loose.tree() is not None else formula


def _displayed(text: str, symbols: Mapping[str, str]) -> d.Maths:
    """A displayed formula with vectors as columns and sizes below matrices."""
    maths = _loosely(d.Maths(text, symbols))
    node = maths.tree()
    return maths if node is None else replace(maths, source=in_columns(node), labels=True)


def shown_label(label: str) -> str:
    """
    >>> shown_label("b(ii)"), shown_label("12.1")
    ('(b)(ii)', '(12.1)')
    """
    head, bracket, rest = label.strip().partition("(")
    return f"({head.strip()}){bracket}{rest}" if head else label


def points_of(exercise: Exercise, asked: Asked) -> int:
    """The points of a question; 1 outside the bank."""
    return exercise.points.get(asked.label, 1) if isinstance(exercise, BankExercise) else 1


def _points(exercise: Exercise, asked: Asked, template: str = "{}") -> str:
    if not isinstance(exercise, BankExercise):
        return ""
    points = points_of(exercise, asked)
    return template.format(f"{points} point{'' if points == 1 else 's'}")


def _total(exercise: Exercise) -> int:
    return sum(points_of(exercise, asked) for asked in exercise.asked)


def _lines_for(asked: Asked) -> int:
    """Lines to write on: few for a choice, more for a calculation or a proof."""
    return 2 if asked.options else 8 if asked.form in ("proof", "words") or asked.quantity == "identity" else 5
