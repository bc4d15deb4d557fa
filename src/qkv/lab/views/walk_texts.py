"""How the walk says where a number comes from: dot products written out, powers of e, quotients, weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from ...maths.parsing.words import RAISED
from ..numbers import shown

MOST_TERMS = 8  # of a sum that is written out; a longer one shows its first ones
_FEW = 4
LONGEST = 14  # signs of an exact number in a cell: what is longer is shown as a decimal
MOST_DIGITS = 12  # of a decimal that a sentence writes in full

_UP = {letter: sign for sign, letter in RAISED.items()}
_DOWN = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Said(NamedTuple):
    """Words of a sentence, and whether something in them was rounded."""

    text: str
    rounded: bool = False


def subscript(letter: str, place: int) -> str:
    """
    >>> subscript("q", 0), subscript("k", 11)
    ('q₁', 'k₁₂')
    """
    return letter + str(place + 1).translate(_DOWN)


def exact_text(value: Fraction, under: int = 1) -> str | None:
    """A fraction, over a root where `under` is not 1; None where that is too long to be read.

    >>> exact_text(Fraction(-1, 2)), exact_text(Fraction(1, 2), 3), exact_text(Fraction(1, 10**20))
    ('-1/2', '1/√12', None)
    """
    rooted = under != 1 and value
    text = f"{value.numerator}/√{value.denominator**2 * under}" if rooted else str(value)
    return text if len(text) <= LONGEST else None


def number(value: Fraction | float, exactly: bool) -> Said:
    """A number inside a sentence: as a fraction, in full where that is short, or rounded. A float64 always is rounded.

    >>> number(Fraction(1, 3), True).text, number(Fraction(1, 3), False).text, number(-2.0, False).text
    ('1/3', '0.3333', '−2')
    >>> number(Fraction(-9999799952), False), number(Fraction(149962, 10000), False), number(14.9962, True)
    (Said(text='−9,999,799,952', rounded=False), Said(text='14.9962', rounded=False), Said(text='15.00', rounded=True))
    """
    if not isinstance(value, Fraction):
        return Said(shown(value), rounded=True)
    whole = value.denominator == 1  # of many digits, it is read better in groups
    text = (exact_text(value) if exactly and not whole else None) or _in_full(value)
    return Said(shown(float(value)), rounded=True) if text is None else Said(text.replace("-", "\N{MINUS SIGN}"))


def _in_full(value: Fraction) -> str | None:
    if 10**MOST_DIGITS % value.denominator:
        return None
    text = f"{Decimal(value.numerator) / value.denominator:,f}"
    return text if sum(sign.isdigit() for sign in text) <= MOST_DIGITS else None


def factor(value: Fraction | float, exactly: bool) -> Said:
    """A number inside a product: with brackets where it has a sign or a stroke."""
    text, rounded = number(value, exactly)
    bare = text[0] != "\N{MINUS SIGN}" and "/" not in text and "·" not in text
    return Said(text if bare else f"({text})", rounded)


def summed(terms: Sequence[Said], count: int = 0) -> Said:
    """A sum of `count` terms, of which the first are given.

    >>> summed([Said("2·1"), Said("0·0")]).text, summed([Said("1")] * 4, 20).text
    ('2·1 + 0·0', '1 + 1 + 1 + 1 + … (16 more)')
    """
    more = f" + … ({count - len(terms)} more)" if count > len(terms) else ""
    return Said((" + ".join(term.text for term in terms) or "0") + more, any(term.rounded for term in terms))


def first(count: int) -> int:
    """How many of so many terms are written out."""
    return count if count <= MOST_TERMS else _FEW


def products(left: Sequence[Fraction | float], right: Sequence[Fraction | float], exactly: bool) -> Said:
    """A dot product written out.

    >>> products((Fraction(2), Fraction(-2)), (Fraction(1), Fraction(1, 2)), True).text
    '2·1 + (−2)·(1/2)'
    """
    pairs = list(zip(left, right, strict=True))[: first(len(left))]
    factors = [(factor(a, exactly), factor(b, exactly)) for a, b in pairs]
    return summed([Said(f"{a.text}·{b.text}", a.rounded or b.rounded) for a, b in factors], len(left))


def power(base: str, exponent: str) -> str:
    """
    >>> power("e", "−20"), power("e", "8/√3"), power("(8 + 1)", "2"), power("e", "10¹²"), power("e", "1,234")
    ('e⁻²⁰', 'e^(8/√3)', '(8 + 1)²', 'e^(10¹²)', 'e¹²³⁴')
    """
    plain = exponent.replace("\N{MINUS SIGN}", "-").replace(",", "")
    if plain.removeprefix("-").isdecimal():
        return base + "".join(_UP[sign] for sign in plain)
    return f"{base}^({exponent})"


def plus(left: str, right: str) -> str:
    """
    >>> plus("q₁·k₁", "2"), plus("1", "−1/2")
    ('q₁·k₁ + 2', '1 − 1/2')
    """
    minus = "\N{MINUS SIGN}"
    return f"{left} {minus} {right.removeprefix(minus)}" if right.startswith(minus) else f"{left} + {right}"


def chain(start: str, *stages: Said) -> str:
    """What is equal, and where something was rounded before or behind the sign, what is nearly so.

    >>> chain("a", Said("1/3"), Said("0.3333", True)), chain("b", Said("0.3333·3", True), Said("1"), Said("1"))
    ('a = 1/3 ≈ 0.3333', 'b ≈ 0.3333·3 ≈ 1')
    """
    text, before = start, Said(start)
    for stage in stages:
        if stage != before:
            text += f" {'≈' if stage.rounded or before.rounded else '='} {stage.text}"
        before = stage
    return text


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["q₁"]), listed(["q₁", "q₂", "q₃"])
    ('q₁', 'q₁, q₂ and q₃')
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
