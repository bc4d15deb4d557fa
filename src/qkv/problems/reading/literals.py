"""Numbers, vectors and matrices as people write them: LaTeX, nested lists, brackets, plain rows. Never evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

Rows = tuple[tuple[Fraction, ...], ...]

LONGEST_NUMBER = 40  # characters; more digits than that are no number for work by hand
LARGEST_POWER = 30  # of ten, in 2e-3 and 2*10^{-3}
DEEPEST = 8  # brackets within brackets; no matrix has more
_READ = 20_000  # characters of a running text that are looked at
_LABELS = 400  # names in it

_MATRIX = r"(?:[bpBvV]?matrix|smallmatrix|array)\*?"
ENVIRONMENT = re.compile(
    rf"\\begin\s*\{{{_MATRIX}\}}(?:\{{[^{{}}]{{0,40}}\}}|\[[^\]]{{0,40}}\])?(.{{0,4000}}?)\\end\s*\{{{_MATRIX}\}}",
    re.DOTALL,
)
_DECIMAL = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:(?:e|\*?10\^)\{?([+-]?\d{1,4})\}?)?")
_NOISE = re.compile(r"(?<!\\)\\(?:left|right|[bB]igg?[lr]?|displaystyle|quad|qquad|,|;|!|:| )|\$|~|\\mathrm\{~?\}")


def number_of(text: str) -> Fraction | None:
    r"""A number as it was written, exactly; None for what is none (nan and infinity among them).

    >>> number_of("-1/2"), number_of(r"\frac{3}{4}"), number_of("0.25"), number_of("−2e1"), number_of("nan")
    (Fraction(-1, 2), Fraction(3, 4), Fraction(1, 4), Fraction(-20, 1), None)
    """
    text = text.replace("−", "-").replace("–", "-").replace("×", "*").replace(r"\times", "*").replace(r"\cdot", "*")
    text = _NOISE.sub("", text)
    if re.search(r"[\d.]\s+[\d.]", text):
        return None
    text = "".join(text.split())
    if not 0 < len(text) <= LONGEST_NUMBER:
        return None
    text = re.sub(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}", r"\1/\2", text)
    text = re.sub(r"\\[dt]?frac(\d)(\d)", r"\1/\2", text)
    above, over, below = text.strip("{}").partition("/")
    top, bottom = _decimal(above), _decimal(below) if over else Fraction(1)
    return None if top is None or not bottom else top / bottom


def _decimal(text: str) -> Fraction | None:
    found = _DECIMAL.fullmatch(text.removeprefix("(").removesuffix(")"))
    if found is None or not text.isascii() or abs(int(found[3] or 0)) > LARGEST_POWER:
        return None
    value = Fraction(found[2].removesuffix(".")) * Fraction(10) ** int(found[3] or 0)
    return -value if found[1] == "-" else value


def cells_of(text: str, depth: int = DEEPEST) -> tuple[list[list[str]], bool] | None:
    r"""The entries of one written vector or matrix as texts, row by row; true for a vector (one row).

    >>> cells_of(r"\begin{bmatrix} 2 \\ 3 \end{bmatrix}"), cells_of("[[1, 0], [0, 1]]"), cells_of("[1, 2]^T")
    (([['2', '3']], True), ([['1', '0'], ['0', '1']], False), ([['1', '2']], True))
    """
    text = re.sub(r"\s*(?:\^\s*(?:T|\{\s*(?:T|\\top|\\intercal)\s*\}|\\top|\\intercal)|ᵀ)\s*$", "", text.strip())
    text = _NOISE.sub(" ", text).strip()
    if found := ENVIRONMENT.fullmatch(text):
        rows = [re.split(r"&", row) for row in re.split(r"\\\\(?:\[[^\]]{0,20}\])?|\\cr\b", found[1]) if row.strip()]
        rows = [[cell.replace(r"\hline", "").strip() for cell in row] for row in rows]
        if rows and all(len(row) == 1 for row in rows):
            return [[row[0] for row in rows]], True
        return (rows, len(rows) == 1) if rows else None
    if not depth or len(text) < 2 or text[0] + text[-1] not in ("()", "[]", "{}") or _closing(text) != len(text) - 1:
        return None
    inner = text[1:-1].strip().rstrip(",")
    if ENVIRONMENT.fullmatch(inner):
        return cells_of(inner)
    pieces = split_outside(inner, ",;")
    nested = [cells_of(piece, depth - 1) for piece in pieces] if inner[:1] in ("(", "[", "{", "\\") else [None]
    if all(nested) and any(piece.strip()[0] in "([{" for piece in pieces):
        rows = [cells[0][0] for cells in nested if cells is not None and len(cells[0]) == 1]
        if len(rows) != len(pieces):
            return None
        # A list of columns [[1], [2]] is a vector.
        return ([[row[0] for row in rows]], True) if all(len(row) == 1 for row in rows) else (rows, False)
    if ";" in inner and text[0] == "[":
        rows = [_spaced(row) for row in inner.split(";") if row.strip()]
        return ([[row[0] for row in rows]], True) if all(len(row) == 1 for row in rows) else (rows, len(rows) == 1)
    return ([_spaced(inner)], True) if inner else None


def _spaced(row: str) -> list[str]:
    """The cells of a row, parted by commas, else by spaces."""
    parted = split_outside(row, ",")
    if len(parted) == 1 and all(number_of(cell) is not None for cell in row.split()):
        parted = row.split()
    return [cell.strip() for cell in parted]


def split_outside(text: str, signs: str) -> list[str]:
    """The text cut at `signs` that stand in no brackets and in no matrix."""
    pieces, depth, begun, start = [], 0, 0, 0
    for place, sign in enumerate(text):
        if sign == "\\":
            begun += text.startswith(r"\begin", place) - text.startswith(r"\end{", place)
        depth += (sign in "([{") - (sign in ")]}")
        if sign in signs and depth <= 0 and begun <= 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def _closing(text: str, start: int = 0) -> int:
    """Where the bracket that opens at `start` is closed; -1 where it never is."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return -1


def numbers_of(text: str) -> tuple[Rows, bool] | None:
    """A written vector or matrix of numbers, exactly, and whether it is a vector; None for anything else."""
    cells = cells_of(text)
    if cells is None:
        return None
    rows = [[number_of(cell) for cell in row] for row in cells[0]]
    if not rows or len({len(row) for row in rows}) != 1 or any(entry is None for row in rows for entry in row):
        return None
    return tuple(tuple(entry for entry in row if entry is not None) for row in rows), cells[1]


_LABEL = re.compile(
    r"(?<![A-Za-z\\])(?:\\(?:mathbf|boldsymbol|bm|vec|mathrm|mathit|hat)\s*\{?\s*|\{\s*\\bf\s+)?"
    r"(?P<letter>[A-Za-z])\s*\}?"
    r"\s*(?:_\s*\{?\s*(?:\\(?:mathrm|text)\s*\{)?(?P<below>[A-Za-z0-9]{1,3})\s*\}{0,2}|(?P<digit>[0-9]{1,2})"
    r"|(?P<small>[₀-₉ᵢⱼₖ]{1,2})|\^?\s*\{?\s*(?:\\(?:mathrm|text)\s*\{)?(?P<role>[QKVqkv])\s*\}{0,2})?"
    r"(?:\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?|ᵀ)?[*`$\s]*&?\s*(?::?=|:|\\approx)\s*&?"
)
_SMALL = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_OPENING = re.compile(r"(?:\s|\$|\\left|\\[bB]igg?l?|\\quad|\\,|\\;|\\!|`)*(\\\{|\\begin\s*\{|[\[({])")

_FACTOR = re.compile(r"(?:\s|\\right[\])]?)*(?:\\cdot\s*|\\times\s*)?(?:\\left\s*)?(?:\\begin|\[)")


def matrices_in(text: str) -> list[tuple[str, Rows]]:
    r"""Every named vector and matrix of numbers in a running text, in order; a vector is one row, a set of vectors has
    a row for each. Names come as W_Q, x_1, q.

    >>> matrices_in(r"let $\mathbf{x}_1 = \begin{bmatrix} 2 \\ 3 \end{bmatrix}$, and W_Q = [[1, 0], [0, 1/2]].")[0]
    ('x_1', ((Fraction(2, 1), Fraction(3, 1)),))
    """
    text = text[:_READ]
    found: list[tuple[str, Rows]] = []
    for label in islice(_LABEL.finditer(text), _LABELS):
        below = label["below"] or label["digit"] or label["role"] or (label["small"] or "").translate(_SMALL)
        name = f"{label['letter']}_{below}" if below else label["letter"]
        for literal in _literals(text, label.end()):
            rows = _set_of(literal) or (numbers_of(literal) or (None,))[0]
            if rows is not None:
                found.append((name, rows))
                break
    return found


def _literals(text: str, start: int) -> Iterator[str]:
    """What may be the literal after a label: the first, or a later member of a chain of equal signs."""
    for _ in range(4):
        opened = _OPENING.match(text, start)
        if opened is None:
            return
        begin = opened.start(1)
        if text.startswith(r"\begin", begin):
            whole = ENVIRONMENT.match(text, begin)
            end = whole.end() if whole else -1
        elif text.startswith(r"\{", begin):
            end = text.find(r"\}", begin, begin + 4000) + 2
        else:
            end = _closing(text[: begin + 4000], begin) + 1
        if end <= begin:
            return
        if _FACTOR.match(text, end):  # the first factor of a product is not the value
            return
        yield text[begin:end]
        following = re.compile(r"(?:\s|\\right)*=").match(text, end)
        if following is None:
            return
        start = following.end()


def literals_in(text: str) -> list[tuple[int, str]]:
    """Every vector and matrix of numbers in a text, with its place; single numbers in brackets are none.

    >>> literals_in("keys (1, 2) and [3, 4] of (a) and (5)")
    [(5, '(1, 2)'), (16, '[3, 4]')]
    """
    found: list[tuple[int, str]] = []
    done = 0
    for opened in islice(re.finditer(r"\\begin\s*\{|[\[({]", text[:_READ]), 20 * _LABELS):
        start = opened.start()
        if start < done:
            continue
        if opened.group().startswith("\\"):
            whole = ENVIRONMENT.match(text, start)
            end = whole.end() if whole else -1
        else:
            end = _closing(text[: start + 2000], start) + 1
        if end <= start:
            continue
        numbers = numbers_of(text[start:end])
        if numbers is not None and sum(len(row) for row in numbers[0]) > 1:
            found.append((start, text[start:end]))
            done = end
    return found


def _set_of(text: str) -> Rows | None:
    r"""Vectors in braces, one a row."""
    if not text.startswith((r"\{", "{")):
        return None
    inner = text.removeprefix("\\").removeprefix("{").removesuffix("}").removesuffix("\\").removesuffix(r"\right")
    vectors = [numbers_of(piece) for piece in split_outside(inner, ",") if _NOISE.sub("", piece).strip()]
    rows = [vector[0][0] for vector in vectors if vector is not None and vector[1]]
    if not rows or len(rows) != len(vectors) or len({len(row) for row in rows}) != 1:
        return None
    return tuple(rows)
