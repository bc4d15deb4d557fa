"""How the walk says where a number comes from: dot products written out, powers of e, quotients, weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ...maths.text.words import RAISED
from ..numbers import shown

MOST_TERMS = 8  # of a sum that is written out; a longer one shows its first ones
_FEW = 4
LONGEST = 14  # signs of an exact number in a cell: what is longer is shown as a decimal

_UP = {letter: sign for sign, letter in RAISED.items()}
_DOWN = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


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


def number(value: Fraction | float, exactly: bool) -> str:
    """A number inside a sentence: as a fraction, or rounded.

    >>> number(Fraction(1, 3), True), number(Fraction(1, 3), False), number(-2.0, False)
    ('1/3', '0.3333', '−2')
    """
    text = exact_text(value) if exactly and isinstance(value, Fraction) else None
    return shown(float(value) if text is None else text)


def factor(value: Fraction | float, exactly: bool) -> str:
    """A number inside a product: with brackets where it has a sign or a stroke."""
    text = number(value, exactly)
    return f"({text})" if text[0] == "\N{MINUS SIGN}" or "/" in text or "·" in text else text


def summed(terms: Sequence[str], count: int = 0) -> str:
    """A sum of `count` terms, of which the first are given.

    >>> summed(["2·1", "0·0"]), summed(["1"] * 4, 20)
    ('2·1 + 0·0', '1 + 1 + 1 + 1 + … (16 more)')
    """
    more = f" + … ({count - len(terms)} more)" if count > len(terms) else ""
    return (" + ".join(terms) or "0") + more


def first(count: int) -> int:
    """How many of so many terms are written out."""
    return count if count <= MOST_TERMS else _FEW


def products(left: Sequence[Fraction | float], right: Sequence[Fraction | float], exactly: bool) -> str:
    """A dot product written out.

    >>> products((Fraction(2), Fraction(-2)), (Fraction(1), Fraction(1, 2)), True)
    '2·1 + (−2)·(1/2)'
    """
    pairs = list(zip(left, right, strict=True))[: first(len(left))]
    return summed([f"{factor(a, exactly)}·{factor(b, exactly)}" for a, b in pairs], len(left))


def power(base: str, exponent: str) -> str:
    """
    >>> power("e", "−20"), power("e", "8/√3"), power("(8 + 1)", "2"), power("e", "10¹²")
    ('e⁻²⁰', 'e^(8/√3)', '(8 + 1)²', 'e^(10¹²)')
    """
    plain = exponent.replace("\N{MINUS SIGN}", "-")
    if plain.removeprefix("-").isdecimal():
        return base + "".join(_UP[sign] for sign in plain)
    return f"{base}^({exponent})"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["q₁"]), listed(["q₁", "q₂", "q₃"])
    ('q₁', 'q₁, q₂ and q₃')
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
