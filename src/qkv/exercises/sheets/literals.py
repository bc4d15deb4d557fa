"""Numbers, vectors and matrices as people write them: LaTeX, MATLAB, nested lists, columns of a PDF."""

from __future__ import annotations

import json
import re
from typing import Any

MOST_ENTRIES = 1_000_000
_MOST_CHARACTERS = 200_000  # of a literal that is read sign by sign
_DEEPEST = 8
_MATRIX = r"(?:[bpBvV]?matrix|smallmatrix|array)\*?"
ENVIRONMENT = re.compile(
    rf"\\begin\s*\{{{_MATRIX}\}}(?:\{{[^{{}}]{{0,40}}\}}|\[[^\]]{{0,40}}\])?((?:[^\\]|\\(?!(?:begin|end)\s*\{{))*+)"
    rf"\\end\s*\{{{_MATRIX}\}}"
)
_NOISE = re.compile(r"(?<!\\)\\(?:left|right|[bB]igg?[lr]?|displaystyle|quad|qquad|hline|,|;|!|:|[ ])|\$|~")
_TRANSPOSED = re.compile(
    r"\s*(?:\\right[\])]?)?\s*(?:\^\s*\{?\s*(?:\\(?:top|intercal|mathsf\{T\}|mathrm\{T\})|T|⊤)\s*\}?|ᵀ|⊤|'(?!\w)|\.T\b)"
)
_DECIMAL = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_EXACT = re.compile(r"[+-]?(?:\d{0,12}\*?sqrt\(\d{1,12}\)|\d{1,18})(?:/(?:\d{0,12}\*?sqrt\(\d{1,12}\)|\d{1,18}))?")
_BRACES = r"\s*\{[^{}]*(?:\{[^{}]*\})?\}"
_SCALAR = re.compile(
    rf"[-−]?\s*(?:\\[dt]?frac{_BRACES}{_BRACES}|{_DECIMAL}(?:,\d{{3}})*(?:/(?:\d+|√\d+|\\sqrt\{{\d+\}}))?)(?![\w.]*\w)"
)
_SYMBOL = re.compile(r"-?\\?[A-Za-zα-ω]{1,8}(?:_\{?\w{1,3}\}?)?")
_NESTED = re.compile(r"[\s\d\[\](),.eE+-]+")


def read_number(text: str) -> int | float | str | None:
    r"""A number as written: an int, a float for a decimal, a text for a fraction or a root; None for anything else.

    >>> read_number("-2"), read_number(r"\frac{3}{4}"), read_number("0.25"), read_number("1/√2"), read_number("2,048")
    (-2, '3/4', 0.25, '1/sqrt(2)', 2048)
    """
    text = re.sub(r"[−–‐]", "-", _NOISE.sub("", text)).strip()
    if not 0 < len(text) <= 60:
        return None
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    if re.fullmatch(_DECIMAL, text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    if re.fullmatch(r"([+-]?)\s*(?:\\infty|∞|inf|np\.inf|float\('-?inf'\))", text):
        return float("-inf") if text.startswith("-") or "'-" in text else float("inf")
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]+(?:\{[^{}]*\})?)\}\s*\{([^{}]+(?:\{[^{}]*\})?)\}", r"\1/\2", text)
    text = re.sub(r"\\[dt]?frac(\d)(\d)", r"\1/\2", text)
    text = re.sub(
        r"\\?(?:np\.|math\.)?sqrt\s*[{(]?(\d+)[})]?|√\s*\(?(\d+)\)?", lambda root: f"sqrt({root[1] or root[2]})", text
    )
    text = "".join(text.split()).replace("½", "1/2").replace(r"\cdot", "*")
    return text if _EXACT.fullmatch(text) else None


def read_array(text: str) -> Any:
    """A written number, vector or matrix as nested lists of ints, floats and texts ("1/3"); None for anything else.

    >>> read_array("[[1, 0], [0, 1/2]]"), read_array("[1 2; 3 4]"), read_array("(1, 2)^T"), read_array("(a)")
    ([[1, 0], [0, '1/2']], [[1, 2], [3, 4]], [1, 2], None)
    """
    found = array_at(text, 0)
    return found[0] if found and not text[found[1] :].strip(" .;$\n") else None


def array_at(text: str, start: int) -> tuple[Any, int] | None:
    """The vector, matrix or number that begins at a place, and where it ends; a factor of a product is none."""
    opened = re.compile(r"(?:[\s$`&]|\\left|\\[bB]igg?l?|\\quad|\\,|\\;|\\!)*(?=\S)").match(text, start)
    begin = opened.end() if opened else start
    if text.startswith(r"\begin", begin):
        whole = ENVIRONMENT.match(text, begin)
        value, end = (_environment(whole[1]), whole.end()) if whole else (None, begin)
    elif text[begin : begin + 1] in tuple("[({") or text.startswith(r"\{", begin):
        end = closing(text, begin + text.startswith(r"\{", begin)) + 1
        value = _bracketed(text[begin:end].replace("\\{", "{").replace("\\}", "}")) if end > begin else None
    else:
        found = _SCALAR.match(text, begin)
        return (read_number(found.group()), found.end()) if found else None
    if value is None:
        return None
    if turned := _TRANSPOSED.match(text, end):
        end = turned.end()
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = [list(column) for column in zip(*value, strict=True)]
    # The first factor of a product is not the value.
    factor = re.compile(
        r"[ ]*(?:\\right[\])]?)?[ ]*(?:\\cdot|\\times|@|\*)?[ ]*(?:\\left[ ]*)?(?:\\begin\s*\{[bpv]?matrix|\[[\d\s-])"
    )
    return None if factor.match(text, end) and not re.match(r"\s*,", text[end:]) else (value, end)


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed; -1 where it never is."""
    depth = 0
    for found in re.compile(r"[\[\](){}]").finditer(text, start):
        depth += 1 if found.group() in "[({" else -1
        if depth == 0:
            return found.start()
    return -1


def _environment(inner: str) -> Any:
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]{0,20}\])?|\\cr\b", inner.replace(r"\hline", "")) if row.strip()]
    return _rows([[_entry(cell, symbols=True) for cell in re.split(r"(?<!\\)&", row)] for row in rows])


def _entry(text: str, symbols: bool = False) -> int | float | str | None:
    value = read_number(text)
    cleaned = _NOISE.sub("", text).strip()
    return cleaned if value is None and symbols and _SYMBOL.fullmatch(cleaned) else value


def _rows(rows: list[list[Any]]) -> Any:
    """Rows as a matrix; one column is a vector, and so is one row."""
    if not rows or len({len(row) for row in rows}) != 1 or any(entry is None for row in rows for entry in row):
        return None
    if len(rows[0]) == 1:
        return [row[0] for row in rows]
    return rows[0] if len(rows) == 1 else rows


def _bracketed(text: str, depth: int = _DEEPEST) -> Any:
    text = text.strip()
    if _NESTED.fullmatch(text) and "," in text:
        try:
            value = json.loads(re.sub(r"(?<=[\d.]),?\s*\]", "]", text.replace("(", "[").replace(")", "]")))
        except (ValueError, RecursionError):
            value = None
        if value is not None:
            return value if _even(value) else None
    if not depth or len(text) > _MOST_CHARACTERS or len(text) < 2 or text[0] + text[-1] not in ("()", "[]", "{}"):
        return None
    inner = _NOISE.sub(" ", text[1:-1]).strip().rstrip(",")
    if whole := ENVIRONMENT.fullmatch(inner):
        return _environment(whole[1])
    pieces = split_outside(inner, ",")
    if inner[:1] in ("[", "(", "{") or inner.startswith(r"\begin"):
        written = [piece for piece in pieces if piece.strip()]
        inside = [ENVIRONMENT.fullmatch(piece.strip()) for piece in written]
        parts = [_environment(whole[1]) if whole else _bracketed(_TRANSPOSED.sub("", piece), depth - 1)
                 for whole, piece in zip(inside, written, strict=True)]  # fmt: skip
        return parts if parts and all(isinstance(part, list) for part in parts) and _even(parts) else None
    if ";" in inner and text[0] == "[":
        return _rows([_cells(row) for row in inner.split(";") if row.strip()])
    lines = [line for line in inner.splitlines() if line.strip()]
    if len(lines) > 1 and "," not in inner:
        return _rows([_cells(line) for line in lines])
    cells = _cells(inner)
    return cells if None not in cells and (len(cells) > 1 or text[0] == "[") else None


def _cells(row: str) -> list[Any]:
    """The entries of a row, parted by commas, else by spaces."""
    parted = split_outside(row, ",")
    return [_entry(cell) for cell in (row.split() if len(parted) == 1 else parted)]


def _even(value: Any) -> bool:
    """Whether nested lists have one shape, numbers for entries, and not too many of them."""
    entries, level = 1, [value]
    while level and isinstance(level[0], list):
        if any(not isinstance(each, list) or len(each) != len(level[0]) for each in level) or not level[0]:
            return False
        entries *= len(level[0])
        level = [entry for each in level for entry in each] if entries <= MOST_ENTRIES else []
    return bool(level) and not any(isinstance(each, list) or each is None for each in level)


def split_outside(text: str, sign: str) -> list[str]:
    """The text cut at a sign that stands in no brackets and in no environment."""
    pieces, depth, begun, start = [], 0, 0, 0
    for found in re.finditer(rf"[\[\](){{}}{re.escape(sign)}]|\\(?:begin|end)\b", text):
        what = found.group()
        if what[0] == "\\":
            begun += 1 if what == r"\begin" else -1
        elif what == sign:
            if depth <= 0 and begun <= 0:
                pieces.append(text[start : found.start()])
                start = found.end()
        else:
            depth += 1 if what in "[({" else -1
    return [*pieces, text[start:]]
