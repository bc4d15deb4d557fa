"""Reads a question on argmax attention: a query, keys and values in whatever layout they are given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..exact import Matrix, Vector
from ..reading.literals import literals_in, matrices_in, numbers_of

LONGEST = 20_000  # characters; more is no single question

_ARGMAX = (
    r"\barg[\s-]?max|\\arg\s*\\?max|\\operatorname\*?\{arg\s?max|\bhardmax|\bhard[ -](?:attention|selection|lookup)"
)
_BEST = (
    r"\b(?:single |one |only |just )?(?:the )?(?:best|top|winning|highest|largest|greatest|maximal|nearest|closest)"
    r"(?:[ -](?:scor\w+|match\w*|rank\w*|similar\w*))?[ -](?:key|score|match|dot product|inner product|similarity|one)"
    r"|\bwinner[ -]takes?[ -]all|\bkey (?:that|which|with)\b[^.?]{0,40}\b(?:best|most|largest|highest|nearest|closest)"
)
_SELECTS = re.compile(rf"{_ARGMAX}|{_BEST}", re.IGNORECASE)
_LEARNING = re.compile(
    r"\btrain|\bgradient|differentiab|back-?prop|\blearn(?:t|ed|ing|s)?\b|\boptimi[sz]", re.IGNORECASE
)
_ON_TRAINING = re.compile(
    rf"(?:{_ARGMAX})[^?]{{0,300}}(?:{_LEARNING.pattern})[^?]{{0,200}}\?|(?:{_LEARNING.pattern})[^?.]{{0,120}}(?:{_ARGMAX})"
    r"[^?.]{0,80}\?",
    re.IGNORECASE,
)
_ROLE = re.compile(
    r"\b(?P<word>quer(?:y|ies)|keys?|values?)\b|(?<![A-Za-z\\])(?P<sign>[qkvQKV])(?:\s*_?\s*\{?\d\}?)?\s*\}?\$?\s*(?::?=|:|\()",
    re.IGNORECASE,
)


class Question(NamedTuple):
    """What was read: without numbers, only the question on training was asked."""

    confidence: float
    query: Vector | None = None
    keys: Matrix | None = None
    values: Matrix | None = None
    similarity: str = "dot"
    on_training: bool = True


def read_question(text: str) -> Question | None:
    """The question, or None where the text asks something else."""
    text = text[:LONGEST]
    if not _SELECTS.search(text) or not re.search(r"attention|quer(?:y|ies)|\bkeys?\b", text, re.IGNORECASE):
        return None
    similarity = "distance" if re.search(r"distance|nearest|closest", text, re.IGNORECASE) else "dot"
    learning = _LEARNING.search(text) is not None
    for sure, found in ((0.97, _named(text)), (0.9, _in_order(text))):
        given = _fitting(*found)
        if given is not None:
            return Question(sure, *given, similarity, learning)
    return Question(0.5) if _ON_TRAINING.search(text) and re.search(_ARGMAX, text, re.IGNORECASE) else None


def _fitting(query: Matrix | None, keys: Matrix | None, values: Matrix | None) -> tuple[Vector, Matrix, Matrix] | None:
    """Query, keys and values with as many values as keys, as rows; columns are turned where only that fits."""
    if query is None or keys is None or values is None:
        return None
    if len(query) != 1 and all(len(row) == 1 for row in query):
        query = (tuple(row[0] for row in query),)
    if len(query) != 1:
        return None
    wide = len(query[0])
    if len(keys[0]) != wide and len(keys) == wide:
        keys = tuple(zip(*keys, strict=True))
        values = tuple(zip(*values, strict=True)) if len(values) != len(keys) else values
    if len(keys) != len(values) or len(keys[0]) != wide or len(keys) < 2:
        return None
    return query[0], keys, values


def _named(text: str) -> tuple[Matrix | None, Matrix | None, Matrix | None]:
    """What has a name: q = …, k_1 = … or K = …, v_1 = … or V = …."""
    named: dict[str, Matrix] = {}
    for name, rows in matrices_in(text):
        named.setdefault(name, rows)
    return named.get("q") or named.get("Q") or named.get("q_1"), _rows(named, "k"), _rows(named, "v")


def _rows(named: dict[str, Matrix], letter: str) -> Matrix | None:
    if letter.upper() in named:
        return named[letter.upper()]
    if len(named.get(letter, ())) > 1:
        return named[letter]
    rows = []
    while (row := named.get(f"{letter}_{len(rows) + 1}")) is not None and len(row) == 1:
        rows.append(row[0])
    return tuple(rows) if rows and len({len(row) for row in rows}) == 1 else None


def _in_order(text: str) -> tuple[Matrix | None, Matrix | None, Matrix | None]:
    """What follows the words query, keys and values, in lists, sentences or the columns of a table."""
    found: dict[str, list[Vector]] = {"q": [], "k": [], "v": []}
    for role, rows in _with_roles(text):
        if role == "q" and found["q"]:
            continue  # the query is given once
        found[role] += rows
    even = {role: tuple(rows) for role, rows in found.items() if rows and len({len(row) for row in rows}) == 1}
    return even.get("q"), even.get("k"), even.get("v")


def _with_roles(text: str) -> Iterator[tuple[str, Matrix]]:
    """Every vector or matrix with its role: by the word or sign before it, or by the column that it stands in."""
    heading: tuple[str, ...] = ()
    role = ""
    for line in _lines(text):
        places = [(found.start(), (found["word"] or found["sign"])[0].lower()) for found in _ROLE.finditer(line)]
        given = [(start, rows) for start, rows in _given(line, table=len(heading) > 1)]
        named = tuple(dict.fromkeys(sign for _, sign in places))
        if not given:
            # A line of words: two or more of them head the columns of what follows, or pairs.
            heading = named if len(named) > 1 else heading if not named else ()
            role = places[-1][1] if places else role
            continue
        columns = [sign for sign in heading if len(heading) == len(given)]
        for place, (start, rows) in enumerate(given):
            before = [sign for at, sign in places if at < start]
            if columns and not before:
                yield columns[place], rows
                continue
            role = before[-1] if before else role
            if role:
                yield role, rows
        role = places[-1][1] if places else role


def _lines(text: str) -> list[str]:
    """The lines of a text; a matrix or a displayed formula that goes over several is one."""
    lines: list[str] = []
    for line in text.split("\n"):
        whole = lines[-1] if lines else ""
        if lines and (whole.count(r"\begin") > whole.count(r"\end") or _open(whole)):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def _open(line: str) -> bool:
    """Whether a line ends within square brackets, as a list of rows does."""
    return line.count("[") > line.count("]") and len(line) < 2000


def _given(line: str, table: bool) -> Iterator[tuple[int, Matrix]]:
    """The vectors and matrices of a line; in a table also cells of bare numbers."""
    found = [(start, each[0]) for start, literal in literals_in(line) if (each := numbers_of(literal))]
    if found or not table or "|" not in line:
        yield from found
        return
    start = 0
    for cell in line.split("|"):
        bare = re.sub(r"[*`$]", "", cell).strip()
        numbers = numbers_of(f"({bare})") if re.search(r"\d[\s,]+[-−\d]", bare) else None
        if numbers is not None:
            yield start, numbers[0]
        start += len(cell) + 1
