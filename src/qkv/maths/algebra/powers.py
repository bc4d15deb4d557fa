"""Powers and absolute values of sums of monomials: each gives the one form that qkv keeps."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, isqrt, lcm

from qkv.maths.algebra.budget import NoValue, TooLarge, has_root, note_root
from qkv.maths.algebra.clearing import vanishes
from qkv.maths.algebra.heads import closed, factor_sign, known_sign, random_names, sign_of, single
from qkv.maths.algebra.labelling import Factor, Head, Ix, Monomial, least
from qkv.maths.algebra.monomials import (
    Poly,
    add,
    atom,
    build,
    constant,
    multiply,
    number,
    scale,
    times,
)

HALF = Fraction(1, 2)
LARGEST_POWER = 40


def power(poly: Poly, exponent: Fraction | int) -> Poly:
    """poly ** exponent, valid wherever both are defined."""
    e = Fraction(exponent)
    if e == 0:
        return number(1)
    if e == 1:
        return poly
    if not poly:
        if e > 0:
            return {}
        raise NoValue("a division by zero has no value")
    alone = single(poly)
    if alone is not None:
        return _single_power(*alone, e)
    if e.denominator == 1 and e > 0:
        if e > LARGEST_POWER:
            raise TooLarge(f"a sum to the power {e} is too large to multiply out")
        return multiply(*([poly] * int(e)))
    if e < 0 and vanishes(poly):
        raise NoValue("a division by zero has no value")
    outside, poly = number(1), reduced(poly)
    if single(poly) is not None:
        return power(poly, e)
    for _ in range(4):
        content, poly = primitive(poly, whole=e.denominator == 1)
        outside = multiply(outside, power(content, e))
        if constant(content) == 1 or single(poly) is not None:
            break
    if single(poly) is not None:
        return multiply(outside, power(poly, e))
    root = square_root(poly)
    if root is not None:
        return multiply(outside, power(root if e.denominator == 1 else absolute(root), 2 * e))
    return multiply(outside, _sum_power(poly, e))


def _sum_power(poly: Poly, e: Fraction) -> Poly:
    factor, _ = closed("sum", [poly], sign=sign_of(poly))
    if e.denominator % 2 == 0:
        note_nonnegative(poly)
    return atom(factor.head, factor.slots, e)


def note_nonnegative(poly: Poly) -> None:
    """Remember that a root or a logarithm was taken of this; what is random may be negative for all that."""
    head, slots = _whole(poly)
    if not random_names(head):
        note_root(head, slots)


def _whole(poly: Poly) -> tuple[Head, tuple[Ix, ...]]:
    """A sum as one head: its own where it is nothing but that, else that of a sum."""
    alone = single(poly)
    if alone is not None and alone[1] == 1 and len(alone[0].factors) == 1 and alone[0].factors[0].exponent == 1:
        head, slots, _ = alone[0].factors[0]
    else:
        (head, slots, _), _ = closed("sum", [poly], sign=sign_of(poly))
    return head, least(head, slots)


def square_root(poly: Poly) -> Poly | None:
    """a + b or a − b where the sum is a² ± 2ab + b²; None where it is not seen to be.

    >>> x, y = (atom(Head("name", name)) for name in "xy")
    >>> square_root(power(add(x, y), 2)) == add(x, y)
    True
    """
    if len(poly) != 3 or any(monomial.sizes for monomial in poly):
        return None
    for middle in poly:
        one, other = (_halved(monomial, poly) for monomial in poly if monomial != middle)
        if one is None or other is None or abs(poly[middle]) != 2 * one[0] * other[0]:
            continue
        if build(poly[middle], [*one[1], *other[1]], {}) == {middle: poly[middle]}:
            return add(build(*one, {}), scale(build(*other, {}), 1 if poly[middle] > 0 else -1))
    return None


def _halved(monomial: Monomial, poly: Poly) -> tuple[Fraction, list[Factor]] | None:
    """The root of one term, where it is a square."""
    coefficient = poly[monomial]
    if coefficient < 0:
        return None
    top, bottom = isqrt(coefficient.numerator), isqrt(coefficient.denominator)
    if Fraction(top * top, bottom * bottom) != coefficient:
        return None
    halved = [factor._replace(exponent=factor.exponent / 2) for factor in monomial.factors]
    if any(f.exponent.denominator != 1 and known_sign(f.head, f.slots) == "real" for f in halved):
        return None
    return Fraction(top, bottom), halved


def _single_power(monomial: Monomial, coefficient: Fraction, e: Fraction) -> Poly:
    if e.denominator == 1:
        factors = [factor._replace(exponent=factor.exponent * e) for factor in monomial.factors]
        if abs(e) > 10_000 and abs(coefficient) != 1:
            raise TooLarge(f"a number to the power {e} is too large")
        return build(Fraction(coefficient ** int(e)), factors, {})
    parts, stuck = [numeric_power(abs(coefficient), e)], []
    for head, slots, k in monomial.factors:
        if known_sign(head, slots) != "real" or (head.kind == "sum" and k.denominator % 2 == 0):
            plain = head.sign != "real" or head.kind == "sum" or (k * e).denominator == 1
            parts.append(atom(head, slots, k * e) if plain else _sum_power(atom(head, slots), k * e))
        elif k.denominator == 1 and k % 2 == 0:
            parts.append(power(absolute(atom(head, slots)), k * e))
        else:
            stuck.append(Factor(head, slots, k))
    way = Fraction(1 if coefficient > 0 else -1)
    if len(stuck) == 1 and stuck[0].exponent.denominator == 1:
        # ±x^k to the e, with k odd, is ±x to the k e.
        parts.append(_sum_power(build(way, [stuck[0]._replace(exponent=Fraction(1))], {}), stuck[0].exponent * e))
    elif stuck or way < 0:
        odd = []
        for head, slots, k in stuck:
            even = k - 1 if k.denominator == 1 else Fraction(0)
            parts.append(power(absolute(atom(head, slots)), even * e))
            odd.append(Factor(head, slots, k - even))
        parts.append(_sum_power(build(way, odd, {}), e))
    return multiply(*parts)


def numeric_power(value: Fraction, e: Fraction) -> Poly:
    """A positive rational to a rational power, by its prime factors.

    >>> numeric_power(Fraction(9, 4), Fraction(1, 2)) == number(Fraction(3, 2))
    True
    """
    factors = []
    for whole, sign in ((value.numerator, 1), (value.denominator, -1)):
        for prime, k in prime_factors(whole):
            factors.append(Factor(Head("prime", "", (prime,), "positive"), (), sign * k * e))
    return build(Fraction(1), factors, {})


def prime_factors(whole: int) -> list[tuple[int, int]]:
    """Prime factors with their exponents; what is left beyond small primes counts as one, if it is no square or cube.

    >>> prime_factors(360)
    [(2, 3), (3, 2), (5, 1)]
    """
    found, p = [], 2
    while p * p <= whole and p < 2000:
        k = 0
        while whole % p == 0:
            whole, k = whole // p, k + 1
        if k:
            found.append((p, k))
        p += 1 if p == 2 else 2
    if whole > 1:
        for k in (2, 3):
            near = round(whole ** (1 / k)) if whole < 10**15 else 0
            if near**k == whole:
                return [*found, (near, k)]
        found.append((whole, 1))
    return found


def primitive(poly: Poly, whole: bool, inside: frozenset[Ix] = frozenset()) -> tuple[Poly, Poly]:
    """(content, rest): the common factor that may be pulled out of a power of the sum, and what is left.

    `whole`: the power is a whole number; otherwise only what cannot be negative comes out. Nothing that depends on an
    index `inside` does.
    """
    coefficients = list(poly.values())
    content = Fraction(gcd(*(c.numerator for c in coefficients)), lcm(*(c.denominator for c in coefficients)))
    lowest: dict[tuple[Head, tuple[Ix, ...]], Fraction] = {}
    for monomial in poly:
        for head, slots, _ in monomial.factors:
            if all(ix[0] != "b" and ix not in inside for ix in slots):
                lowest.setdefault((head, slots), Fraction(0))
    for key in lowest:
        lowest[key] = min(
            next((f.exponent for f in monomial.factors if (f.head, f.slots) == key), Fraction(0)) for monomial in poly
        )
    common = []
    for (head, slots), k in lowest.items():
        if not whole and known_sign(head, slots) == "real" and k.denominator % 2:
            k -= k % 2
        if k and head.kind not in ("delta", "less"):
            common.append(Factor(head, slots, k))
    inverse = [factor._replace(exponent=-factor.exponent) for factor in common]
    pulled = build(content, common, {})
    rest = times(poly, 1 / content, inverse)
    # A factor that came out is only out if it does not come back by being multiplied out.
    return (pulled, rest) if rest else (number(1), poly)


def reduced(poly: Poly) -> Poly:
    """The sum, shorter where it is a multiple of one of its own denominators."""
    for head, slots in sorted({(f.head, f.slots) for m in poly for f in m.factors if f.head.kind == "sum"}):
        if any(ix[0] == "b" for ix in slots):
            continue
        found = [next((f.exponent for f in m.factors if (f.head, f.slots) == (head, slots)), Fraction(0)) for m in poly]
        low = min(found)
        if low > -1 or low.denominator != 1:
            continue
        content, rest = primitive(times(poly, Fraction(1), [Factor(head, slots, -low)]), whole=True)
        for flip in (1, -1):
            factor, _ = closed("sum", [scale(rest, flip)], sign=head.sign)
            if (factor.head, least(head, factor.slots)) == (head, slots):
                return times(scale(content, flip), Fraction(1), [Factor(head, slots, low + 1)])
    return poly


def absolute(poly: Poly) -> Poly:
    """|poly|."""
    if not poly or sign_of(poly) != "real":
        return poly
    if sign_of(scale(poly, -1)) != "real":
        return scale(poly, -1)
    alone = single(poly)
    if alone is None:
        content, rest = primitive(poly, whole=True)
        if constant(content) == 1:
            for flip in (1, -1):
                if has_root(*_whole(scale(poly, flip))):
                    return scale(poly, flip)
            factor, _ = closed("abs", [poly], sign="nonnegative", even=True)
            return atom(factor.head, factor.slots)
        return multiply(absolute(content), absolute(rest))
    monomial, coefficient = alone
    parts = [number(abs(coefficient))]
    for factor in monomial.factors:
        head, slots, k = factor
        if factor_sign(factor) != "real":
            parts.append(atom(head, slots, k))
        else:
            inner, _ = closed("abs", [atom(head, slots)], sign="nonnegative", even=True)
            parts.append(atom(inner.head, inner.slots, k))
    return multiply(*parts)
