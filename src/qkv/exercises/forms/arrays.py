"""Vectors, matrices and tensors as people write them, as nested lists of the texts of their entries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from .statement import PATTERNS, closing, split_outside

Cells: TypeAlias = "list[Any] | str"
MOST = 10_000  # entries

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?"


def cells_of(text: str) -> Cells | None:
    r"""The entries of one written array, nested; None for any other text. A column is a list of its entries.

    >>> cells_of(r"\begin{bmatrix} 2 \\ 3 \end{bmatrix}"), cells_of("[[1 0]\n [0 1]]"), cells_of("np.array([1., 2])")
    ([['2'], ['3']], [['1', '0'], ['0', '1']], ['1.', '2'])
    """
    text = text.strip()
    if (
        (call := PATTERNS["array_call"].match(text))
        and text.endswith(")")
        and closing(text, call.end() - 1) == len(text) - 1
    ):
        return cells_of(split_outside(text[call.end() : -1], ",")[0])
    if turned := PATTERNS["turned"].search(text):
        found = cells_of(text[: turned.start()])
        # The transpose of a list or of a row is the vector; of other matrices, `qkv.maths` takes care.
        return found if (found is not None and len(lengths(found) or (2, 2)) == 1) or is_line(found) else None
    if found := PATTERNS["environment"].fullmatch(text):
        if r"\begin" in found[1]:
            return None
        rows = [row for row in re.split(r"\\\\(?:\[[^\]]{0,20}\])?|\\cr\b", found[1]) if row.strip(" \n\t&")]
        return [_row(row.replace(r"\hline", "")) for row in rows] or None
    if len(text) < 2 or text[0] + text[-1] not in ("()", "[]") or closing(text, 0) != len(text) - 1:
        return None
    inner = text[1:-1].strip().rstrip(",")
    if PATTERNS["environment"].fullmatch(inner):
        return cells_of(inner)
    # The rows of a printed array have no commas between them.
    pieces = split_outside(re.sub(r"\]\s*\[", "],[", inner), ",") if inner[:1] in "[(" else []
    nested = [cells_of(piece) for piece in pieces]
    if nested and all(isinstance(each, list) for each in nested):
        return [each for each in nested if each is not None]
    if ";" in inner and text[0] == "[":
        return [_row(row) for row in inner.split(";") if row.strip()]
    return _row(inner) if inner else None


def bare_cells(text: str) -> Cells | None:
    """Entries without brackets: "2, 8 and -20", or rows of numbers, one a line."""
    lines = [line.strip(" ,;") for line in text.splitlines() if line.strip(" ,;")]
    if len(lines) > 1:
        rows = [cells_of(line) or _row(line) for line in lines]
        return rows if all(isinstance(row, list) and len(row) > 1 for row in rows) else None
    text = re.sub(r",?\s+and\s+", ",", text)
    pieces = [piece.strip() for piece in split_outside(text, ",;")]
    if len(pieces) == 1:
        pieces = _row(text)
    if len(pieces) < 2 or not all(pieces):
        return None
    nested = [cells_of(piece) for piece in pieces]
    if any(nested) or re.search(r"(?<![\\A-Za-z])(?!sqrt|exp|log)[A-Za-z]{3,}", text):
        return [each for each in nested if each is not None] if all(nested) else None
    return pieces


def _row(row: str) -> list[Any]:
    """The cells of a row, parted by ampersands or commas, else by spaces between numbers."""
    cells = [cell.strip() for cell in split_outside(row, "&,")]
    if len(cells) == 1 and re.fullmatch(rf"{_NUMBER}(?:\s+{_NUMBER})+", row.strip()):
        return row.split()
    return cells


def lengths(cells: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None where rows differ in length.

    >>> lengths([["1", "2"], ["3", "4"]]), lengths([["1"], ["2", "3"]])
    ((2, 2), None)
    """
    if not isinstance(cells, list | tuple):
        return ()
    inner = {lengths(cell) for cell in cells}
    found = next(iter(inner)) if len(inner) == 1 else None
    return None if found is None else (len(cells), *found)


def is_line(cells: Any) -> bool:
    """Whether at most one axis is longer than 1: a vector, however it is laid out."""
    shape = lengths(cells)
    return shape is not None and sum(size > 1 for size in shape) <= 1


def entries(cells: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each entry with its place, counted from 1."""
    if not isinstance(cells, list | tuple):
        yield place, cells
        return
    for index, cell in enumerate(cells, 1):
        yield from entries(cell, (*place, index))


def written(cells: Any) -> str:
    """
    >>> written(["1", "2"]), written([["1"], ["2"]])
    ('(1, 2)', '[[1], [2]]')
    """
    if not isinstance(cells, list | tuple):
        return str(cells)
    inner = ", ".join(f"[{written(cell)[1:-1]}]" if isinstance(cell, list | tuple) else str(cell) for cell in cells)
    return f"({inner})" if lengths(cells) and len(lengths(cells) or ()) == 1 else f"[{inner}]"
