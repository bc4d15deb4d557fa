"""What a formula is made of once only its looks are left: letters, signs, and what stands above and below what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

TIMES, APPLY = "\N{INVISIBLE TIMES}", "\N{FUNCTION APPLICATION}"


@dataclass(frozen=True)
class Letter:
    """One letter, slanted unless `upright`."""

    text: str
    upright: bool = False


@dataclass(frozen=True)
class Word:
    """Several upright letters: the name of a function, or of a thing."""

    text: str


@dataclass(frozen=True)
class Numeral:
    text: str


@dataclass(frozen=True)
class Sign:
    """An operator; `place` is "infix", "prefix" or "postfix"."""

    text: str
    place: str = "infix"


@dataclass(frozen=True)
class Row:
    parts: tuple[Box, ...]


@dataclass(frozen=True)
class Scripts:
    base: Box
    below: Box | None = None
    above: Box | None = None


@dataclass(frozen=True)
class Over:
    """A fraction."""

    top: Box
    bottom: Box


@dataclass(frozen=True)
class Root:
    body: Box


@dataclass(frozen=True)
class Fence:
    left: str
    body: Box
    right: str


@dataclass(frozen=True)
class Big:
    """∑ or ∏ with what it runs over."""

    sign: str
    below: Box
    above: Box | None


@dataclass(frozen=True)
class Grid:
    rows: tuple[tuple[Box, ...], ...]


@dataclass(frozen=True)
class Under:
    """Something with a small label beneath it, as the size of a matrix."""

    body: Box
    label: Box


Box: TypeAlias = Letter | Word | Numeral | Sign | Row | Scripts | Over | Root | Fence | Big | Grid | Under
