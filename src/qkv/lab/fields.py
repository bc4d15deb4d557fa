"""What a reader may change on a view: one definition reads the address and the API, draws the form and describes both.

A field has three faces: the text that is typed and kept in the address, the value that a view computes with, and the
JSON that the API takes. `read` is the only way from the first two to a value; `write` is its inverse.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from ..errors import OptionError, QkvError, complaint

State = Mapping[str, Any]

LONGEST_NUMBER = 24  # signs of one entry
LARGEST = 10**12  # numerator and denominator of an entry of a matrix: what is exact must stay readable
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_RATIO = re.compile(r"([+-]?\d+)\s*/\s*(\d+)", re.ASCII)


class WrongField(QkvError, ValueError):
    """What was typed into a field, or what it means with the others, cannot be used: said at that field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    label: str
    help: str = ""
    group: str = ""  # fields of one group stand together under this heading
    needs: tuple[str, tuple[str, ...]] | None = None  # (other field, texts of it with which this one matters)

    kind: ClassVar[str] = ""

    @property
    def default_text(self) -> str:
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """The value of a text; raises QkvError."""
        raise NotImplementedError

    def write(self, value: Any) -> str:
        return str(value)

    def from_json(self, given: object) -> str:
        """The text of what the API was given."""
        if isinstance(given, str):
            return given
        raise OptionError(complaint(self.name, _shortly(given), "text"))

    def schema(self) -> dict[str, Any]:
        """JSON Schema of what `from_json` takes."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Number(Field):
    low: float
    high: float
    default: float
    step: float = 1.0
    whole: bool = False
    slider: bool = True
    doubling: bool = False  # the slider moves by powers of two

    kind: ClassVar[str] = "number"

    @property
    def default_text(self) -> str:
        return self.write(self.default)

    @property
    def wanted(self) -> str:
        return (
            f"{'a whole number' if self.whole else 'a number'} from {self.write(self.low)} to {self.write(self.high)}"
        )

    def read(self, text: str) -> int | float:
        value = entry(text, self.name, self.wanted)
        # As people write the ends: 0.1 is not below a lowest of 0.1.
        within = Fraction(repr(self.low)) <= value <= Fraction(repr(self.high))
        if not within or (self.whole and value.denominator != 1):
            raise OptionError(complaint(self.name, text.strip(), self.wanted))
        return int(value) if self.whole else float(value)

    def write(self, value: float) -> str:
        return str(int(value)) if self.whole or float(value).is_integer() else repr(float(value))

    @property
    def exponents(self) -> tuple[int, int]:
        """Powers of two at the ends of the slider."""
        return math.ceil(math.log2(max(self.low, 1))), math.floor(math.log2(self.high))

    def slider_text(self, text: str) -> str:
        """Where the slider stands for a text, also for one that cannot be read."""
        try:
            value = self.read(text)
        except QkvError:
            value = self.default
        return str(round(math.log2(max(value, 1)))) if self.doubling else self.write(value)

    def from_json(self, given: object) -> str:
        if isinstance(given, str):
            return given
        if isinstance(given, bool) or not isinstance(given, (int, float)) or given != given:
            raise OptionError(complaint(self.name, _shortly(given), self.wanted))
        return repr(given)

    def schema(self) -> dict[str, Any]:
        kind = "integer" if self.whole else "number"
        return {"type": kind, "minimum": self.low, "maximum": self.high, "default": self.default}


@dataclass(frozen=True, kw_only=True)
class Choice(Field):
    options: Mapping[str, str]  # text in the address -> what the reader sees
    default: str

    kind: ClassVar[str] = "choice"

    @property
    def default_text(self) -> str:
        return self.default

    def read(self, text: str) -> str:
        if text not in self.options:
            raise OptionError(complaint(self.name, repr(text[:40]), f"one of {', '.join(self.options)}"))
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.options), "default": self.default}


@dataclass(frozen=True, kw_only=True)
class Flag(Field):
    default: bool = False

    kind: ClassVar[str] = "flag"

    @property
    def default_text(self) -> str:
        return self.write(self.default)

    def read(self, text: str) -> bool:
        if text not in ("yes", "no"):
            raise OptionError(complaint(self.name, repr(text[:40]), "yes or no"))
        return text == "yes"

    def write(self, value: bool) -> str:
        return "yes" if value else "no"

    def from_json(self, given: object) -> str:
        if isinstance(given, bool):
            return self.write(given)
        return super().from_json(given)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean", "default": self.default}


@dataclass(frozen=True, kw_only=True)
class Words(Field):
    """A text: one line, or many."""

    default: str = ""
    longest: int = 400
    lines: int = 1
    drop: str = ""  # endings of files whose text may be dropped here, as of an <input accept>
    placeholder: str = ""

    kind: ClassVar[str] = "words"

    @property
    def default_text(self) -> str:
        return self.default

    def read(self, text: str) -> str:
        if len(text) > self.longest:
            raise OptionError(complaint(self.name, f"{len(text)} characters", f"at most {self.longest}"))
        return text.replace("\r\n", "\n")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.longest, "default": self.default}


@dataclass(frozen=True, kw_only=True)
class Matrix(Field):
    """A grid of exact numbers: rows by semicolons, entries by commas, as in "1,0;1/2,-3". The value is a tuple of rows
    of Fraction."""

    default: str
    most_rows: int = 8
    most_columns: int = 8
    rows: str = ""  # what a row and a column are, for labels: "token", "feature"
    columns: str = ""

    kind: ClassVar[str] = "matrix"

    @property
    def default_text(self) -> str:
        return self.default

    def read(self, text: str) -> tuple[tuple[Fraction, ...], ...]:
        lines = text.split(";")
        most = f"at most {self.most_rows} rows and {self.most_columns} columns"
        if len(lines) > self.most_rows:
            raise OptionError(complaint(self.name, f"{len(lines)} rows", most))
        rows = []
        for which, line in enumerate(lines):
            entries = line.split(",")
            if len(entries) > self.most_columns:
                raise OptionError(complaint(self.name, f"{len(entries)} columns", most))
            where = f"{self.name}, row {which + 1}"
            rows.append(tuple(_small(each, f"{where}, column {n + 1}") for n, each in enumerate(entries)))
        if len({len(row) for row in rows}) > 1:
            given = f"rows of {', '.join(str(len(row)) for row in rows)} entries"
            raise OptionError(complaint(self.name, given, "as many entries in every row"))
        return tuple(rows)

    def write(self, value: Sequence[Sequence[Fraction]]) -> str:
        return ";".join(",".join(map(str, row)) for row in value)

    def cells(self, text: str) -> list[list[str]]:
        """What was typed, cell by cell, whether it can be read or not."""
        return [[each.strip() for each in line.split(",")] for line in text.split(";")][: self.most_rows]

    def unread(self, cell: str) -> bool:
        """Whether a cell is one that cannot be read."""
        try:
            _small(cell, self.name)
        except QkvError:
            return True
        return False

    def from_json(self, given: object) -> str:
        if isinstance(given, str):
            return given
        if not isinstance(given, list) or not given or not all(isinstance(row, list) and row for row in given):
            raise OptionError(complaint(self.name, _shortly(given), "a list of rows, each a list of numbers"))
        if len(given) > self.most_rows or max(map(len, given)) > self.most_columns:
            most = f"at most {self.most_rows} rows and {self.most_columns} columns"
            raise OptionError(complaint(self.name, f"{len(given)} rows of up to {max(map(len, given))}", most))
        for each in (each for row in given for each in row):
            if isinstance(each, bool) or not isinstance(each, (int, float, str)):
                raise OptionError(complaint(self.name, _shortly(each), 'numbers, or texts such as "1/3"'))
        return ";".join(",".join(each if isinstance(each, str) else repr(each) for each in row) for row in given)

    def schema(self) -> dict[str, Any]:
        one = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?[0-9]{1,9}(/[1-9][0-9]{0,8})?$"}]}
        row = {"type": "array", "items": one, "minItems": 1, "maxItems": self.most_columns}
        return {"type": "array", "items": row, "minItems": 1, "maxItems": self.most_rows}


def entry(text: str, where: str, wanted: str = "a number such as 2, -0.5 or 1/3") -> Fraction:
    """One number, exactly: whole, decimal or a ratio.

    >>> entry("1/3", "x"), entry(" -0.25 ", "x")
    (Fraction(1, 3), Fraction(-1, 4))
    """
    given = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(given) > LONGEST_NUMBER:
        raise OptionError(complaint(where, f"{len(given)} signs", f"{wanted}, of at most {LONGEST_NUMBER} signs"))
    if _NUMBER.fullmatch(given):
        return Fraction(given)
    if (ratio := _RATIO.fullmatch(given)) and int(ratio[2]):
        return Fraction(int(ratio[1]), int(ratio[2]))
    raise OptionError(complaint(where, repr(given) if given else "nothing", wanted))


def _small(text: str, where: str) -> Fraction:
    value = entry(text, where)
    if max(abs(value.numerator), value.denominator) > LARGEST:
        raise OptionError(complaint(where, text.strip(), "a number of at most twelve digits"))
    return value


@dataclass(frozen=True)
class Typed:
    """What a request asked for: the text of every field, and the state, or what is wrong with which field ("" is the
    whole)."""

    texts: Mapping[str, str]
    state: State | None
    problems: Mapping[str, str]


def typed(fields: Iterable[Field], given: Mapping[str, str]) -> Typed:
    """Defaults where nothing was given. Whatever is wrong, every text is kept."""
    fields = tuple(fields)
    known = {field.name for field in fields}
    problems: dict[str, str] = {}
    if strange := sorted(set(given) - known):
        named = ", ".join(name[:40] for name in strange[:5]) + (" and more" if len(strange) > 5 else "")
        problems[""] = complaint("fields", named, f"some of {', '.join(sorted(known))}")
    texts, values = {}, {}
    for field in fields:
        texts[field.name] = text = given.get(field.name, field.default_text)
        try:
            values[field.name] = field.read(text)
        except QkvError as error:
            problems[field.name] = str(error)
    return Typed(texts, None if problems else values, problems)


def from_json(fields: Iterable[Field], given: object) -> dict[str, str]:
    """The texts of an API's body; raises WrongField."""
    if not isinstance(given, dict):
        raise WrongField("", complaint("body", _shortly(given), "a JSON object, one name for each field"))
    named = {field.name: field for field in fields}
    texts = {}
    for name, value in given.items():
        if name not in named:
            raise WrongField("", complaint("body", repr(str(name)[:40]), f"some of {', '.join(sorted(named))}"))
        try:
            texts[name] = _sayable(name, named[name].from_json(value))
        except QkvError as error:
            raise WrongField(name, str(error)) from None
    return texts


def _sayable(name: str, text: str) -> str:
    """Half of a pair of UTF-16 is no character, and no answer could repeat it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(complaint(name, "half a character (a lone surrogate)", "text")) from None
    return text


def shortened(fields: Iterable[Field], texts: Mapping[str, str]) -> dict[str, str]:
    """Only what is not the default: what an address needs to hold."""
    return {f.name: texts[f.name] for f in fields if f.name in texts and texts[f.name] != f.default_text}


def _shortly(given: object) -> str:
    text = reprlib.repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
