"""Numbers, vectors and matrices as people write them: LaTeX, MATLAB, nested lists, columns of a PDF."""

from __future__ import annotations

import json
import re
from typing import Any

from ...documents.patterns import Table
from ..forms.statement import closing, split_outside

_TABLE = Table("qkv.exercises.sheets", "literals.toml", 0)
MOST_ENTRIES = 1_000_000
_MOST_CHARACTERS = 200_000  # of a literal that is read sign by sign
_DEEPEST = 8


def read_number(text: str) -> int | float | str | None:
    r"""A number as written: an int, a float for a decimal, a text for a fraction or a root; None for anything else.

    >>> read_number("-2"), read_number(r"\frac{3}{4}"), read_number("0.25"), read_number("1/√2"), read_number("2,048")
    (-2, '3/4', 0.25, '1/sqrt(2)', 2048)
    """
    text = _TABLE["noise"].sub("", text).strip()
    if not 0 < len(text) <= 60:
        return None
    for pattern, put in _TABLE.data["typed"].items():
        text = re.sub(pattern, put, text)
    if _TABLE["thousands"].fullmatch(text):
        text = text.replace(",", "")
    if _TABLE["decimal"].fullmatch(text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    if _TABLE["infinite"].fullmatch(text):
        return float("-inf" if "-" in text else "inf")
    text = "".join(text.split())
    return text if _TABLE["exact"].fullmatch(text) else None


def read_array(text: str) -> Any:
    """A written number, vector or matrix as nested lists of ints, floats and texts ("1/3"); None for anything else.

    >>> read_array("[[1, 0], [0, 1/2]]"), read_array("[1 2; 3 4]"), read_array("(1, 2)^T"), read_array("(a)")
    ([[1, 0], [0, '1/2']], [[1, 2], [3, 4]], [1, 2], None)
    """
    found = array_at(text, 0)
    return found[0] if found and not text[found[1] :].strip(" .;$\n") else None


def array_at(text: str, start: int) -> tuple[Any, int] | None:
    """The vector, matrix or number that begins at a place, and where it ends; a factor of a product is none."""
    opened = _TABLE["opening"].match(text, start)
    begin = opened.end() if opened else start
    escaped = text.startswith(r"\{", begin)
    if whole := _TABLE["environment"].match(text, begin):
        value, end = _environment(whole[1]), whole.end()
    elif escaped or text[begin : begin + 1] in tuple("[({"):
        end = closing(text, begin + escaped) + 1
        value = _bracketed(text[begin:end].replace("\\{", "{").replace("\\}", "}"))
    else:
        found = _TABLE["scalar"].match(text, begin)
        return (read_number(found.group()), found.end()) if found else None
    if value is None:
        return None
    if turned := _TABLE["transposed"].match(text, end):
        end = turned.end()
        if value and isinstance(value[0], list):
            value = [list(column) for column in zip(*value, strict=True)]
    # The first factor of a product is not the value.
    return None if _TABLE["product"].match(text, end) else (value, end)


def _environment(inner: str) -> Any:
    rows = [row for row in _TABLE["row_end"].split(inner.replace(r"\hline", "")) if row.strip()]
    return _rows([[_entry(cell) for cell in re.split(r"(?<!\\)&", row)] for row in rows])


def _entry(text: str) -> int | float | str | None:
    """An entry of an environment: a number or a symbol."""
    value, cleaned = read_number(text), _TABLE["noise"].sub("", text).strip()
    return cleaned if value is None and _TABLE["symbol"].fullmatch(cleaned) else value


def _rows(rows: list[list[Any]]) -> Any:
    """Rows as a matrix; one column is a vector, and so is one row."""
    if len(_shape(rows) or ()) != 2:
        return None
    return [row[0] for row in rows] if len(rows[0]) == 1 else rows[0] if len(rows) == 1 else rows


def _bracketed(text: str, depth: int = _DEEPEST) -> Any:
    text = text.strip()
    if whole := _TABLE["environment"].fullmatch(text):
        return _environment(whole[1])
    if 0 < text.count(",") < MOST_ENTRIES and _TABLE["nested"].fullmatch(text):
        try:
            value = json.loads(re.sub(r"(?<=[\d.]),?\s*\]", "]", text.replace("(", "[").replace(")", "]")))
            return value if _shape(value) else None
        except (ValueError, RecursionError):
            pass  # "[1 2, 3]" or "[01, 2]": read below
    if not depth or len(text) > _MOST_CHARACTERS or len(text) < 2 or text[0] + text[-1] not in ("()", "[]", "{}"):
        return None
    inner = _TABLE["noise"].sub(" ", text[1:-1]).strip().rstrip(",")
    if inner.startswith(("[", "(", "{", r"\begin")):
        pieces = [_TABLE["transposed"].sub("", piece) for piece in split_outside(inner, ",") if piece.strip()]
        parts = [_bracketed(piece, depth - 1) for piece in pieces]
        if len(parts) == 1 and inner[0] == "\\":
            return parts[0]
        return parts if len(_shape(parts) or ()) > 1 else None
    lines = [line for line in (inner.split(";") if text[0] == "[" else [inner]) if line.strip()]
    if len(lines) == 1 and "," not in inner:
        lines = [line for line in inner.splitlines() if line.strip()]
    if len(lines) > 1:
        return _rows([_cells(line) for line in lines])
    cells = _cells(inner)
    return cells if None not in cells and (len(cells) > 1 or text[0] == "[") else None


def _cells(row: str) -> list[Any]:
    """The entries of a row, parted by commas, else by spaces."""
    parted = split_outside(row, ",")
    return [read_number(cell) for cell in (row.split() if len(parted) == 1 else parted)]


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they are uneven or empty, or an entry is missing."""
    if not isinstance(value, list):
        return None if value is None else ()
    shapes = {_shape(each) for each in value}
    shape = shapes.pop() if len(shapes) == 1 else None
    return None if shape is None else (len(value), *shape)
