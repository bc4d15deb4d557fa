"""Attention by hand on somebody's own numbers: matrices from texts or files, checked before anything is computed."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...errors import OptionError, OptionTypeError, ShapeError, complaint
from ..exact import Matrix, Scale, times
from ..problem import Problem
from ..reading.literals import LARGEST_POWER, LONGEST_NUMBER, cells_of, matrices_in, number_of
from .instance import UNSCALED, Instance

LARGEST = 64  # rows and columns of a matrix
LONGEST = 200_000  # characters of a matrix
HEAVIEST = 4_000_000  # bytes of a file
_DOTTED = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){8}""")
NAMES = ("x", "wq", "wk", "wv", "q", "k", "v", "scale", "mask", "token")

__all__ = ["given", "matrices_in", "read_given", "read_matrix"]


def read_matrix(text: str, name: str = "matrix") -> Matrix:
    r"""A matrix as somebody typed it, exactly: rows parted by semicolons or lines, nested lists, or LaTeX.

    >>> read_matrix("2 3; -1 0; 1/2 0.25")[2]
    (Fraction(1, 2), Fraction(1, 4))
    >>> read_matrix("[[1, 0], [0, 1]]") == read_matrix(r"\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}")
    True
    """
    if not isinstance(text, str):
        raise OptionTypeError(complaint(name, f"something of type {type(text).__name__}", "a text such as '2 3; -1 0'"))
    if len(text) > LONGEST:
        raise OptionError(complaint(name, f"{len(text):,} characters", f"at most {LONGEST:,}"))
    found = cells_of(text)
    if found is not None:
        column = found[1] and (text.strip().startswith("\\") and "&" not in text)
        rows = [[cell] for cell in found[0][0]] if column else found[0]
    else:
        plain = text.strip().strip("[]").strip()
        rows = [re.split(r"[,\s]+", line.strip().strip("[](),")) for line in re.split(r"[;\n]", plain) if line.strip()]
    return _checked(
        name, [[_entry(name, cell, r, c) for c, cell in enumerate(row, 1)] for r, row in enumerate(rows, 1)]
    )


def _entry(name: str, cell: Any, row: int, column: int) -> Fraction:
    """One entry, exactly: a number of JSON or TOML, or a text that is one."""
    where = f"{name}, row {row}, column {column}"
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float, Fraction)):
        raise OptionTypeError(complaint(where, f"something of type {type(cell).__name__}", "a number"))
    if isinstance(cell, (int, Fraction)) and abs(cell) < 10**30:
        return Fraction(cell)
    value = number_of(str(cell).strip())  # a float by its shortest digits: 0.1 is a tenth
    if value is None:
        hint = f"of at most {LONGEST_NUMBER} signs, and a power of ten up to {LARGEST_POWER}"
        raise OptionError(complaint(where, repr(str(cell)[:40]), "a number such as 2, -1/2, 0.25 or 1e-3", hint))
    return value


def _checked(name: str, rows: Sequence[Sequence[Fraction]]) -> Matrix:
    if not rows or not rows[0]:
        raise ShapeError(complaint(name, "a matrix without entries", "at least one row with one number"))
    widths = [len(row) for row in rows]
    if len(set(widths)) > 1:
        odd = next(place for place, width in enumerate(widths, 1) if width != widths[0])
        said = f"row 1 of {widths[0]} numbers and row {odd} of {widths[odd - 1]}"
        raise ShapeError(complaint(name, said, "rows of the same length"))
    if len(rows) > LARGEST or widths[0] > LARGEST:
        raise ShapeError(
            complaint(name, f"{len(rows)} × {widths[0]}", f"at most {LARGEST} × {LARGEST} for work by hand")
        )
    return tuple(tuple(row) for row in rows)


def _matrix(name: str, given_: Any) -> Matrix | None:
    if given_ is None:
        return None
    if isinstance(given_, str):
        return read_matrix(given_, name)
    if hasattr(given_, "tolist"):
        given_ = given_.tolist()
    if not isinstance(given_, Iterable) or isinstance(given_, Mapping):
        raise OptionTypeError(
            complaint(name, f"something of type {type(given_).__name__}", "rows of numbers, or a text")
        )
    rows = list(given_)
    if len(rows) > LARGEST:
        raise ShapeError(complaint(name, f"{len(rows):,} rows", f"at most {LARGEST} × {LARGEST} for work by hand"))
    if rows and not any(isinstance(row, Sequence) and not isinstance(row, str) for row in rows):
        raise ShapeError(complaint(name, "a plain list of numbers", "a list of rows", f"[{rows!r:.40}] is one row"))
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) or not isinstance(row, Sequence):
            raise ShapeError(
                complaint(f"{name}, row {number}", f"something of type {type(row).__name__}", "a list of numbers")
            )
    cells = [
        [_entry(name, cell, r, c) for c, cell in enumerate(row[: LARGEST + 1], 1)] for r, row in enumerate(rows, 1)
    ]
    return _checked(name, cells)


def given(
    *,
    x: Any = None,
    wq: Any = None,
    wk: Any = None,
    wv: Any = None,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    scale: Any = None,
    mask: Any = None,
    token: int | None = None,
) -> Problem:
    """The by-hand problem on your own numbers: tokens `x` (as rows) with three weight matrices, or `q`, `k`, `v`.

    `scale` is None (the plain dot product), "sqrt" (divided by the root of the width) or a number that multiplies;
    `mask` is None, "causal" or rows of 0 and 1 with 1 where a query may see a key; `token` is the one whose attention
    is asked, from 1, the last if none is named.

    >>> given(x="2 3; -1 0; 1 -2", wq="1 0 2; 0 1 -3", wk="0 0 -1; -2 0 1", wv="8 0; 0 9").solve().summary["b"]
    'z_{3,1} = 2; z_{3,2} = 8; z_{3,3} = -20'
    """
    from .family import built

    tokens = {"x": _matrix("x", x), "wq": _matrix("wq", wq), "wk": _matrix("wk", wk), "wv": _matrix("wv", wv)}
    direct = {"q": _matrix("q", q), "k": _matrix("k", k), "v": _matrix("v", v)}
    chosen = _which(tokens, direct)
    if chosen is tokens:
        first, *weights = (rows for rows in tokens.values() if rows is not None)
        made = _projected(first, *weights)
    else:
        made = [rows for rows in direct.values() if rows is not None]
    queries, keys, values = made
    if len(keys) != len(values):
        raise ShapeError(complaint("v", f"{len(values)} rows", f"{len(keys)}, a value for each key"))
    if len(keys[0]) != len(queries[0]):
        raise ShapeError(complaint("k", f"rows of {len(keys[0])}", f"rows of {len(queries[0])}, as the queries have"))
    asked = _token(token, len(queries))
    seen, causal = _mask(mask, len(queries), len(keys))
    if seen is not None and not any(seen[asked - 1]):
        hint = "attention gives it 0; ask for another token"
        raise OptionError(complaint("mask", f"nothing that token {asked} may see", "at least one key", hint))
    points = any(map(_has_decimals, (x, wq, wk, wv, q, k, v, scale)))
    instance = Instance(
        queries, keys, values, asked, scale=_scale(scale, len(keys[0])), seen=seen, causal=causal, decimals=points
    )
    if chosen is tokens:
        instance = replace(instance, x=tokens["x"], wq=tokens["wq"], wk=tokens["wk"], wv=tokens["wv"])
    return built(instance, None, ())


def _has_decimals(given_: Any) -> bool:
    """Whether any number of it was written as a decimal."""
    if isinstance(given_, str):
        return re.search(r"\d\.\d|(?<!\d)\.\d|\de-?\d", given_, re.IGNORECASE) is not None
    if hasattr(given_, "tolist"):
        given_ = given_.tolist()
    if isinstance(given_, Sequence):
        return any(map(_has_decimals, given_))
    return isinstance(given_, float)


def _which(tokens: dict[str, Matrix | None], direct: dict[str, Matrix | None]) -> dict[str, Matrix | None]:
    """Which of the two ways to give the numbers was taken, in full."""
    some = [name for name, rows in {**tokens, **direct}.items() if rows is not None]
    for way, other in ((tokens, direct), (direct, tokens)):
        if all(rows is not None for rows in way.values()) and all(rows is None for rows in other.values()):
            return way
    said = ", ".join(some) or "nothing"
    raise OptionError(complaint("given", said, "x, wq, wk and wv, or q, k and v", "the two ways do not mix"))


def _projected(x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix) -> list[Matrix]:
    for name, weight in (("wq", wq), ("wk", wk), ("wv", wv)):
        if len(weight) != len(x[0]):
            hint = f"tokens are rows: x is {len(x)} × {len(x[0])}, so {name} has {len(x[0])} rows"
            raise ShapeError(complaint(name, f"{len(weight)} × {len(weight[0])}", f"{len(x[0])} rows", hint))
    if len(wq[0]) != len(wk[0]):
        raise ShapeError(complaint("wk", f"{len(wk[0])} columns", f"{len(wq[0])}, as wq has: queries meet keys"))
    return [times(x, weight) for weight in (wq, wk, wv)]


def _token(token: Any, rows: int) -> int:
    if token is None:
        return rows
    if isinstance(token, bool) or not isinstance(token, int) or not 1 <= token <= rows:
        raise OptionError(complaint("token", repr(token), f"a whole number from 1 to {rows}"))
    return token


def _scale(scale: Any, width: int) -> Scale:
    if scale is None or scale is False or scale in ("none", "1", 1):
        return UNSCALED
    if scale is True or (isinstance(scale, str) and re.fullmatch(r"(?:1/)?sqrt(?:\(?d(?:_?k)?\)?)?", scale.strip())):
        return Scale.by_root(width)
    factor = _entry("scale", scale, 1, 1) if isinstance(scale, (int, float, Fraction)) else number_of(str(scale))
    if factor is None or factor <= 0:
        hint = "'sqrt' divides by the square root of the width"
        raise OptionError(complaint("scale", repr(scale), "'sqrt', or a number above 0", hint))
    return Scale(factor)


def _mask(mask: Any, queries: int, keys: int) -> tuple[tuple[tuple[bool, ...], ...] | None, bool]:
    if mask is None or mask == "none":
        return None, False
    listed = mask if isinstance(mask, str) or not hasattr(mask, "tolist") else mask.tolist()
    if isinstance(listed, str) and listed.strip().lower() == "causal":
        if queries != keys:
            raise OptionError(_two_readings(queries, keys))
        return tuple(tuple(key <= query for key in range(keys)) for query in range(queries)), True
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        listed = [_whole(row) for row in listed]
    rows = _matrix("mask", listed)
    assert rows is not None
    if len(rows) != queries or len(rows[0]) != keys:
        raise ShapeError(complaint("mask", f"{len(rows)} × {len(rows[0])}", f"{queries} × {keys}, queries by keys"))
    if any(entry not in (0, 1) for row in rows for entry in row):
        raise OptionError(complaint("mask", "numbers other than 0 and 1", "1 where a query may see a key, else 0"))
    return tuple(tuple(bool(entry) for entry in row) for row in rows), False


def _two_readings(queries: int, keys: int) -> str:
    """The queries may be the first positions or the last: both as masks, where there are few enough to write."""
    said = f"causal with {queries} quer{'y' if queries == 1 else 'ies'} and {keys} key{'' if keys == 1 else 's'}"
    ways = []
    for name, past in (("first", 0), ("last", keys - queries)):
        rows = [" ".join(str(int(key <= query + past)) for key in range(keys)) for query in range(queries)]
        ways.append(f'if the queries are the {name} positions, mask = "{"; ".join(rows)}"')
    few = f", {'; '.join(ways)}" if queries * keys <= 24 and queries < keys else " with 0 and 1"
    hint = f"say which key each query sees with a mask of rows, in a file for --given{few}"
    return complaint("mask", said, "as many queries as keys", hint)


def _whole(row: Any) -> Any:
    """A row of a mask with 0 and 1 for false and true."""
    if not isinstance(row, Sequence) or isinstance(row, str):
        return row
    return [int(cell) if isinstance(cell, bool) else cell for cell in row]


def read_given(path: str | os.PathLike[str]) -> Problem:
    """The problem of a file: .toml or .json with the names of `given` (lists or texts), or .npz of arrays."""
    file = Path(path)
    kind = file.suffix.lower()
    readers = {".toml": _toml, ".json": _json, ".npz": _npz}
    if kind not in readers:
        raise OptionError(complaint("path", repr(file.name), "a file that ends in .toml, .json or .npz"))
    if not file.is_file():
        raise OptionError(complaint("path", repr(file.name), "a file that is there"))
    if file.stat().st_size > HEAVIEST:
        raise OptionError(complaint("path", f"{file.stat().st_size:,} bytes", f"at most {HEAVIEST:,}"))
    found = readers[kind](file)
    if not isinstance(found, dict):
        raise OptionTypeError(
            complaint(file.name, f"something of type {type(found).__name__}", f"names with values: {', '.join(NAMES)}")
        )
    known = {_short(name): value for name, value in found.items()}
    strange = [name for name in found if _short(name) not in NAMES]
    if strange:
        raise OptionError(complaint(file.name, repr(strange[0]), f"one of {', '.join(NAMES)}"))
    return given(**known)


def _short(name: str) -> str:
    return re.sub(r"[\s_^{}]", "", str(name)).lower()


def _toml(file: Path) -> Any:
    text = _text(file)
    # A name of thousands of dotted parts would take tomllib minutes and gigabytes; no name here has any.
    if _DOTTED.search(text):
        raise OptionError(complaint(file.name, "a name with many dots", f"one of {', '.join(NAMES)}"))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(complaint(file.name, f"no TOML ({error})", "lines such as x = [[2, 3], [-1, 0]]")) from None


def _json(file: Path) -> Any:
    try:
        return json.loads(_text(file), parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise OptionError(complaint(file.name, f"no JSON ({error})", '{"x": [[2, 3], [-1, 0]], ...}')) from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError(complaint(file.name, "bytes that are no text", "a text in UTF-8")) from None


def _npz(file: Path) -> dict[str, Any]:
    import zipfile

    import numpy

    try:
        with numpy.load(file, allow_pickle=False) as archive:
            entries = {name: (zipped.file_size, name) for zipped in archive.zip.infolist()
                       for name in [zipped.filename.removesuffix(".npy")]}  # fmt: skip
            heavy = next((name for size, name in entries.values() if size > HEAVIEST), None) or _lying(archive.zip)
            if heavy is not None:
                raise OptionError(complaint(f"{file.name}, {heavy}", "a huge array", f"at most {LARGEST} × {LARGEST}"))
            return {name: _array(name, archive[name]) for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, KeyError, EOFError) as error:
        if isinstance(error, OptionError | ShapeError):
            raise
        raise OptionError(complaint(file.name, "no archive of plain arrays", "one that numpy.savez wrote")) from None


def _lying(archive: Any) -> str | None:
    """An entry whose header tells of more numbers than a matrix has: memory is taken by what it says."""
    from numpy.lib import format as layout

    for entry in archive.infolist():
        with archive.open(entry) as member:
            version = layout.read_magic(member)
            read = layout.read_array_header_1_0 if version == (1, 0) else layout.read_array_header_2_0
            shape, _, kind = read(member)
        if math.prod(shape) > LARGEST**2 or kind.itemsize > HEAVIEST:
            return entry.filename.removesuffix(".npy")
    return None


def _array(name: str, array: Any) -> Any:
    """An array as rows, a single entry as itself."""
    if array.dtype.kind not in "biufU":
        raise OptionTypeError(complaint(name, f"an array of {array.dtype}", "an array of numbers"))
    if array.ndim == 0:
        return array.item()
    if array.ndim != 2:
        raise ShapeError(complaint(name, f"an array of {array.ndim} dimensions", "one of rows and columns"))
    if max(array.shape) > LARGEST:
        raise ShapeError(complaint(name, " × ".join(map(str, array.shape)), f"at most {LARGEST} × {LARGEST}"))
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        return [
            list(map(str, row)) for row in array
        ]  # 0.1 of 32 bits is 0.1, and not the number of 64 bits nearest to it
    return array.tolist()
