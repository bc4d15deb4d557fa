"""A point at which two things differ, in as few words as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .points import Point, Vocabulary
from .tree import Symbol


@dataclass(frozen=True)
class Counterexample:
    """`point` gives each name its value (numbers, or nested tuples of them), `gold` and `answer` what comes out."""

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
            shown[name] = pretty(symbol)
            if symbol.type.kind == "map":
                maps.append(shown[name])
            elif name in place.values and not (symbol.type.random and name not in words.outside):
                known[name] = place.values[name]
        for name in words.indices:
            known[name] = place.values[name]
        note = f"for some {' and '.join(maps)}" if maps else ""
        return Counterexample(known, gold, answer, note, shown)

    def __str__(self) -> str:
        names = self.shown or {}
        parts = [f"{names.get(name, name)} = {written(value)}" for name, value in self.point.items()]
        where = ", ".join([*parts, self.note] if self.note else parts)
        values = f"{written(self.gold)} against {written(self.answer)}"
        return f"{where}: {values}" if where else values

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON: numbers as texts, since fractions are exact."""
        point = {name: plainly(value) for name, value in self.point.items()}
        return {"point": point, "gold": plainly(self.gold), "answer": plainly(self.answer), "text": str(self)}


def pretty(symbol: Symbol) -> str:
    from .writing import plain

    return plain(symbol)


def plainly(value: Any) -> Any:
    return [plainly(part) for part in value] if isinstance(value, tuple) else number(value)


def written(value: Any) -> str:
    """A value as people write it.

    >>> written((Fraction(1), Fraction(3, 2))), written(Decimal(2).sqrt())
    ('(1, 3/2)', '1.41421')
    """
    if isinstance(value, tuple):
        left, right = ("[", "]") if value and isinstance(value[0], tuple) else ("(", ")")
        return f"{left}{', '.join(map(written, value))}{right}"
    return number(value)


def number(value: Fraction | Decimal | str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() < 80:
            return str(value).replace("-", "−")
        value = Decimal(value.numerator) / Decimal(value.denominator)
    near = Fraction(value).limit_denominator(1000) if -60 < value.adjusted() < 12 else Fraction(0)
    if near and abs(Fraction(value) - near) < Fraction(1, 10**35):
        return number(near)
    return f"{value:.6g}".replace("-", "−")
