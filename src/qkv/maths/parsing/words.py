"""The words, signs and units that the parser knows, loaded from words.json and units.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

Unit: TypeAlias = tuple[Fraction, tuple[tuple[str, int], ...]]


def _load(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _words(name: str) -> frozenset[str]:
    return frozenset(_DATA[name].split())


_DATA = _load("words.json")
LONGEST = 2_000
GREEK: dict[str, str] = _DATA["greek"]
VARIANTS: dict[str, str] = _DATA["variants"]
FUNCTIONS: dict[str, str] = _DATA["functions"]  # names of functions in the tree, by their spellings
UNREAD = _words("unread")  # functions that are not supported; they must not be read as products of letters
RELATIONS: dict[str, str] = _DATA["relations"]
SKIPPED = _words("skipped") | {" "}  # commands that change the layout only
STYLES, TEXTS = _words("styles"), _words("texts")
OLD_STYLES = _words("old_styles")  # commands of old TeX, which style the rest of their group
ACCENTS: dict[str, str] = _DATA["accents"]
SPACES = _words("spaces")  # commands with an argument that has no mathematical meaning
BLOCKS = _words("blocks")  # environments whose lines continue one another
MATRICES = _words("matrices")
OPERATORS: dict[str, tuple[str, str]] = {word: tuple(value.split()) for word, value in _DATA["operators"].items()}
# Commands that are not part of an expression, and the message for each.
REFUSALS = {word: reason for reason, words in _DATA["refusals"].items() for word in words.split()}
SIGNS: dict[str, str] = _DATA["signs"] | dict.fromkeys(_DATA["blanks"], " ")
SIGNS |= {sign: f"\\{name} " for name, sign in GREEK.items()} | {"ς": "\\sigma "}
SENTENCES = _words("sentences")  # a text that has one of these between other words, undeclared, is prose
JOINING = _words("joining")  # words that, in a \\text{}, separate two statements
RAISED, LOWERED, LOOKS_LIKE = (dict(zip(*_DATA[name], strict=True)) for name in ("raised", "lowered", "looks_like"))
PYTHON: dict[str, Any] = _DATA["python"]  # names of Python, NumPy and PyTorch
# Kinds of tokens: those that end an operand, closing brackets by their opening ones, and single signs.
ENDS, CLOSES, FENCES, SIMPLE = _words("ends"), _DATA["closes"], _DATA["fences"], _DATA["simple"]
DEEPENING = _words("deepening")  # rules of the grammar that count as a level of nesting


def _unit(text: str) -> Unit:
    """A factor and base units with exponents: "1000000000 B /s"."""
    factor, *bases = text.split()
    return Fraction(factor), tuple((base.lstrip("/"), -1 if base[0] == "/" else 1) for base in bases)


UNIT_NAMES: dict[Unit, list[str]] = {_unit(text): names.split() for text, names in _load("units.json").items()}
UNITS = {name: unit for unit, names in UNIT_NAMES.items() for name in names}


def _alternatives(words: Iterable[str]) -> str:
    """A pattern for any of these; letters must not follow a word."""
    longest = sorted(words, key=len, reverse=True)
    return "|".join(re.escape(word) + "(?![A-Za-z])" * word.isalpha() for word in longest)


def _patterns() -> SimpleNamespace:
    """The patterns of patterns.txt, compiled."""
    signs = ("TIMES", "DIV", "ODOT", "OTIMES", "PM", "OVER", "ROW")
    related = [word for word in RELATIONS if word.isalpha()]
    operators = [word for word, (kind, _) in OPERATORS.items() if kind in signs]
    tables = {
        "no_argument": ["right", "end", *related, *operators],
        "binary": [*related, "cdot", "times", "odot", "otimes", "pm"],
        "skipped": SKIPPED,
        "styles": STYLES | TEXTS,
        "old_styles": OLD_STYLES,
    }
    found = {name: _alternatives(table) for name, table in tables.items()}
    for line in (Path(__file__).parent / "patterns.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, pattern = line[:17].strip(), line[17:]
            found[name] = re.sub(r"\{\{([a-z_]+)\}\}", lambda reference: found[reference[1]], pattern)
    return SimpleNamespace(**{name: re.compile(pattern) for name, pattern in found.items()})


like = _patterns()
