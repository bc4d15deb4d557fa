"""Answers of several pieces: by their names, "q_1 = (2, 3); k_1 = (5, 7)", as rows of a matrix, or in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ..outcome import Outcome, joined, unread
from ..solving import Answer
from .arrays import Cells, bare_cells, cells_of, written
from .statement import doubted, phrases, plain_text, split_outside, trimmed
from .values import Context, Judge

_TIE = r"\s*(?:\^\s*\{?(?:T|\\top)\}?)?\s*(?:=|:|≈|\\approx(?![A-Za-z])|\bis\b|\bare\b|\bequals?\b)\s*"
_FOLLOWS = r"\s+(?=\\?(?:O|Theta|mathcal|Θ|\d|\[|\())"
# A label begins a clause: in "q^T k = 2" there is none of k.
_BEGINS = r"(?:^|(?<=[,;:.(|\n&])|(?<=[,;:.(|\n&]\s)|(?<=[A-Za-z]{2}\s))"
_OTHER = rf"{_BEGINS}[A-Za-z](?:_(?:\{{[^{{}}]*\}}|\w))?{_TIE}(?=[\[(\\]|-?\d)"


def judge_items(items: Mapping[str, Answer], text: str, context: Context, judge: Judge) -> Outcome:
    """Each piece by its own judge; pieces that are missing make the answer incomplete."""
    plain = plain_text(text)
    if (doubt := doubted(plain)) is not None:
        return Outcome("unread", (doubt,))
    found = pieces(items, plain, context)
    if not found:
        return unread("no_pieces", names=", ".join(items))
    outcomes = {name: _judged(name, item, found.get(name), context, judge) for name, item in items.items()}
    # For argmax attention the output is the answer; the index and the scores are steps to it.
    steps = frozenset(items) - {"output"} if context.asked.quantity == "argmax" else frozenset()
    return joined(outcomes, steps)


def _judged(name: str, item: Answer, given: str | dict[str, str] | None, context: Context, judge: Judge) -> Outcome:
    """One piece, or the rows that were found of it."""
    if given is None:
        return unread("missing_piece", name=name)
    if isinstance(given, str):
        return judge(item, given, replace(context, name=name))
    rows = rows_of(name, item, context)
    return joined({row: _judged(row, rows[row], given.get(row), context, judge) for row in rows})


def pieces(items: Mapping[str, Answer], text: str, context: Context) -> dict[str, str | dict[str, str]]:
    """Name to its text, or to the texts of its rows; by labels, else in order."""
    named = {name: (name, "") for name in items}
    for name, item in items.items():
        named |= {row: (name, row) for row in rows_of(name, item, context) if row not in items}
    text = re.sub(r"\$|\*\*|\\q?quad(?![A-Za-z])|\\[,;:! ]|\\left(?![A-Za-z])|\\right(?![A-Za-z])|`", " ", text)
    text = re.sub(r"[ \t]+", " ", re.sub(r"\\(?:top|intercal)(?![A-Za-z])", "T", text)).strip()
    marks = {(each.start(), each.end(), label) for label in named for each in re.finditer(_pattern(label), text)}
    found: dict[str, str | dict[str, str]] = {}
    # Of two labels of which one holds the other, the longer one is meant.
    inner = {one for one in marks for two in marks if two[0] <= one[0] and one[1] <= two[1] and two[:2] != one[:2]}
    others = {each.start() for each in re.finditer(_OTHER, text)}
    ends = sorted(others | {start for start, _, _ in marks - inner} | {len(text)})
    for start, end, label in sorted(marks - inner):
        piece = text[end : next(each for each in ends if each >= end and each > start)]
        # What stands on the next line, or in the next sentence, leads in what follows.
        piece = re.split(r"\.\s+(?=[A-Z])", split_outside(piece.strip(), "\n")[0])[0]
        piece = re.sub(r"(?:[\s,;.]|\band\b|\bwith\b)+$", "", piece)
        name, row = named[label]
        held = found.setdefault(name, {} if row else piece)
        if row and isinstance(held, dict):
            held[row] = piece if row not in held else f"{held[row]} or {piece}"
        elif not row and isinstance(held, str) and held != piece:
            found[name] = f"{held} or {piece}"  # said twice: right only where both are
    return found or dict(zip(items, _in_order(items, text), strict=False))


def _in_order(items: Mapping[str, Answer], text: str) -> list[str]:
    """As many pieces as there are names: lines, semicolons, commas, or the entries of one list."""
    text = trimmed(text)
    _, tied, end = text.rpartition("=")
    cells: Cells | None = cells_of(end.strip() if tied and text.lstrip()[:1] == "(" else text) or bare_cells(text)
    if isinstance(cells, list) and len(cells) == len(items):
        return [written(cell) for cell in cells]
    for signs in ("\n", ";", ",;\n"):
        parts = [part.strip() for part in split_outside(text, signs) if part.strip()]
        if len(parts) == len(items) and not re.search(r"=|(?<![\\A-Za-z])(?!sqrt|Theta)[A-Za-z]{4,}", text):
            return parts
    return []


def rows_of(name: str, item: Answer, context: Context) -> dict[str, Answer]:
    """The rows of a matrix by their names: q_1, q_2 of Q."""
    matrix = item.form in ("matrix", "tensor") and re.fullmatch(r"[A-Za-z]'?", name) is not None
    return _parts(name.lower() + "_", item, context, "vector") if matrix else {}


def entries_named(answer: Answer, text: str, context: Context) -> dict[str, Answer]:
    """The entries of a vector by the names that a text gives them, "z_{3,1} = 2"; none where it does not."""
    if answer.form != "vector" or context.asked.object:
        return {}
    row = "" if context.asked.row is None else str(context.asked.row)
    of_row = rf"{row}[,\s]*" if row else ""
    label = rf"(?<![A-Za-z\\_^])([a-z])\s*_?\s*\{{?\s*{of_row}\d\s*\}}?\s*=(?!\s*[\[(\\])"
    letters = set(re.findall(label, plain_text(text)))
    return _parts(f"{letters.pop()}_{row}", answer, context, "number") if len(letters) == 1 else {}


def _parts(stem: str, item: Answer, context: Context, form: str) -> dict[str, Answer]:
    """The rows or entries of an array, with names counted from the index base."""
    cells, value, base = cells_of(item.text), item.value, context.exercise.convention("index_base", 1)
    if not isinstance(cells, list) or len(cells) > 100 or any(isinstance(e, str) != (form == "number") for e in cells):
        return {}
    values = value if isinstance(value, list | tuple) and len(value) == len(cells) else [None] * len(cells)
    return {
        f"{stem}{place}": replace(item, text=written(cell), value=each, form=form, also=())
        for place, (cell, each) in enumerate(zip(cells, values, strict=True), base)
    }


def _pattern(label: str) -> str:
    """How a piece is named in a text: z_{3,1} is also z31, "time" is also "running time"."""
    head, _, below = label.partition("_")
    if not below and len(label) > 1:
        names = [*phrases()["names"].get(label, ()), re.escape(label)]
        words, letters = (
            "|".join(name for name in names if (len(name.strip("*\\")) > 1) == long) or r"(?!)"
            for long in (True, False)
        )
        named = rf"(?<![A-Za-z\\_])(?i:(?:the |total |overall )?(?:{words})(?: complexity)?)|{_BEGINS}(?:{letters})"
        return rf"(?:{named})(?:{_TIE}|{_FOLLOWS})"
    signs = r"[\s,]*".join(map(re.escape, re.findall(r"\w", below)))
    script = rf"\s*_?\s*\{{?\s*{signs}\s*\}}?(?!\d)" if below else r"(?!_)"
    return rf"{_BEGINS}{re.escape(head)}{script}{_TIE}"
