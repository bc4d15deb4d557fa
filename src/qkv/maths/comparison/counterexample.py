"""A point at which two values differ, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from qkv.maths.printing import plain
from qkv.maths.tree import Symbol
from qkv.maths.values.arithmetic import DIGITS, FINEST, decimal
from qkv.maths.values.arithmetic import digits as precise
from qkv.maths.values.points import Point, Vocabulary

MOST_SHOWN = 12


@dataclass(frozen=True)
class Counterexample:
    """The values of the names at a point, as numbers or nested tuples, and the values of gold and answer there."""

    point: Mapping[str, Any]
    gold: Any
    answer: Any
    note: str = ""
    shown: Mapping[str, str] | None = None

    @staticmethod
    def at(place: Point, words: Vocabulary, gold: Any, answer: Any) -> Counterexample:
        known: dict[str, Any] = {}
        shown: dict[str, str] = {}
        for name in words.sizes:
            known[name] = Fraction(place.sizes[name])
        maps = []
        for name, symbol in words.symbols.items():
            shown[name] = pretty_symbol(symbol)
            if symbol.type.kind == "map":
                maps.append(shown[name])
            elif name in place.values and not (symbol.type.random and name not in words.outside):
                known[name] = place.values[name]
        for name in words.indices:
            known[name] = place.values[name]
        note = f"for some {' and '.join(maps)}" if maps else ""
        return Counterexample(known, gold, answer, note, shown)

    @property
    def where(self) -> str:
        """The point as text: "d = 2, μ = (1, 0)"."""
        names = self.shown or {}
        parts = [f"{names.get(name, name)} = {value_text(value)}" for name, value in self.point.items()]
        return ", ".join([*parts, self.note] if self.note else parts)

    def __str__(self) -> str:
        where, values = self.where, versus_text(self.gold, self.answer)
        return f"{where}: {values}" if where else values

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON; numbers are texts, because fractions are exact."""
        point = {name: json_value(value) for name, value in self.point.items()}
        return {"point": point, "gold": json_value(self.gold), "answer": json_value(self.answer), "text": str(self)}


def pretty_symbol(symbol: Symbol) -> str:
    return plain(symbol)


def json_value(value: Any) -> Any:
    return [json_value(part) for part in value] if isinstance(value, tuple) else number_text(value)


def versus_text(gold: Any, answer: Any) -> str:
    """Two values that differ, with enough digits to see it, or with their difference.

    >>> versus_text(Fraction(1), Decimal("1.00000000001"))
    '1 against 1.00000000001'
    >>> versus_text(Fraction(1), Decimal("1") + Decimal("1e-27"))
    '1 against 1.00000, which differ by 1e−27'
    """
    for digits in (6, 12, 18):
        first, second = value_text(gold, digits), value_text(answer, digits)
        if first != second and not differ_only_in_zeros(first, second):
            return f"{first} against {second}"
    text = f"{value_text(gold)} against {value_text(answer)}"
    if isinstance(gold, Fraction) and isinstance(answer, Fraction) and gold != answer:
        return f"{text}, which differ by {number_text(abs(gold - answer))}"
    if isinstance(gold, (Fraction, Decimal)) and isinstance(answer, (Fraction, Decimal)):
        with precise(FINEST):
            gap = abs(decimal(gold) - decimal(answer))
        return f"{text}, which differ by {gap:.3g}".replace("e-", "e−") if gap else text
    return text


def differ_only_in_zeros(first: str, second: str) -> bool:
    """Whether two numbers differ only in trailing zeros: 1 and 1.00000."""
    return _without_zeros(first) == _without_zeros(second)


def _without_zeros(text: str) -> str:
    """A number without trailing zeros after the decimal point."""
    digits, e, exponent = text.partition("e")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + e + exponent


def either_text(values: Sequence[Any]) -> str:
    """The values of a tree with ±, as text."""
    return " or ".join(dict.fromkeys(map(value_text, values)))


def value_text(value: Any, digits: int = 6) -> str:
    """A value as text; of a long vector only the ends.

    >>> value_text((Fraction(1), Fraction(3, 2))), value_text(Decimal(2).sqrt())
    ('(1, 3/2)', '1.41421')
    """
    if isinstance(value, tuple):
        left, right = ("[", "]") if value and isinstance(value[0], tuple) else ("(", ")")
        long = len(value) > MOST_SHOWN
        shown = [value_text(part, digits) for part in (value[:3] if long else value)]
        return f"{left}{', '.join([*shown, '…', value_text(value[-1], digits)] if long else shown)}{right}"
    return number_text(value, digits)


def number_text(value: Fraction | Decimal | str, digits: int = 6) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() < 80:
            return str(value).replace("-", "−")
        with precise(max(DIGITS, digits)):
            value = Decimal(value.numerator) / Decimal(value.denominator)
    near = Fraction(value).limit_denominator(1000) if -60 < value.adjusted() < 12 else Fraction(0)
    if near and digits < 60 and abs(Fraction(value) - near) < Fraction(1, 10**35):
        return number_text(near)
    return f"{value:.{digits}g}".replace("-", "−")
