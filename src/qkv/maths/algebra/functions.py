"""Powers, absolute values, exponentials, logarithms, signs and maxima of sums of monomials, in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import gcd, isqrt, lcm

from qkv.maths.algebra.heads import arguments, closed, factor_sign, known_sign, random_names, sign_of, single_monomial
from qkv.maths.algebra.monomials import (
    EXPAND,
    LESS,
    REMAKE,
    UNIT,
    Factor,
    Frozen,
    Head,
    Ix,
    Monomial,
    NoValue,
    Poly,
    TooLarge,
    add,
    atom,
    build,
    constant,
    fresh,
    has_root,
    least_order,
    multiply,
    note_root,
    number,
    outputs,
    rename,
    scale,
    subtract,
    times,
    vanishes,
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
    alone = single_monomial(poly)
    if alone is not None:
        return _single_power(*alone, e)
    if e.denominator == 1 and e > 0:
        if e > LARGEST_POWER:
            raise TooLarge(f"a sum to the power {e} is too large to multiply out")
        return multiply(*([poly] * int(e)))
    if e < 0 and vanishes(poly):
        raise NoValue("a division by zero has no value")
    outside, poly = number(1), reduce_denominators(poly)
    if single_monomial(poly) is not None:
        return power(poly, e)
    for _ in range(4):
        content, poly = split_content(poly, whole=e.denominator == 1)
        outside = multiply(outside, power(content, e))
        if constant(content) == 1 or single_monomial(poly) is not None:
            break
    if single_monomial(poly) is not None:
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
    """Record that this is under a root or a logarithm, unless it is random: then it may be negative."""
    head, slots = _as_head(poly)
    if not random_names(head):
        note_root(head, slots)


def _as_head(poly: Poly) -> tuple[Head, tuple[Ix, ...]]:
    """A sum as one head: the head of its only factor, or a head of kind "sum"."""
    alone = single_monomial(poly)
    if alone is not None and alone[1] == 1 and len(alone[0].factors) == 1 and alone[0].factors[0].exponent == 1:
        head, slots, _ = alone[0].factors[0]
    else:
        (head, slots, _), _ = closed("sum", [poly], sign=sign_of(poly))
    return head, least_order(head, slots)


def square_root(poly: Poly) -> Poly | None:
    """a + b or a − b if the sum is a² ± 2ab + b²; None if that is not found.

    >>> x, y = (atom(Head("name", name)) for name in "xy")
    >>> square_root(power(add(x, y), 2)) == add(x, y)
    True
    """
    if len(poly) != 3 or any(monomial.sizes for monomial in poly):
        return None
    for middle in poly:
        one, other = (_root_of_term(monomial, poly) for monomial in poly if monomial != middle)
        if one is None or other is None or abs(poly[middle]) != 2 * one[0] * other[0]:
            continue
        if build(poly[middle], [*one[1], *other[1]], {}) == {middle: poly[middle]}:
            return add(build(*one, {}), scale(build(*other, {}), 1 if poly[middle] > 0 else -1))
    return None


def _root_of_term(monomial: Monomial, poly: Poly) -> tuple[Fraction, list[Factor]] | None:
    """The root of one term, or None if it is not a square."""
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
    sign = Fraction(1 if coefficient > 0 else -1)
    if len(stuck) == 1 and stuck[0].exponent.denominator == 1:
        # ±x^k to the e, with k odd, is ±x to the k e.
        parts.append(_sum_power(build(sign, [stuck[0]._replace(exponent=Fraction(1))], {}), stuck[0].exponent * e))
    elif stuck or sign < 0:
        odd = []
        for head, slots, k in stuck:
            even = k - 1 if k.denominator == 1 else Fraction(0)
            parts.append(power(absolute(atom(head, slots)), even * e))
            odd.append(Factor(head, slots, k - even))
        parts.append(_sum_power(build(sign, odd, {}), e))
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
    """Prime factors with their exponents; a rest beyond small primes counts as one, unless it is a square or cube.

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


def split_content(poly: Poly, whole: bool, inside: frozenset[Ix] = frozenset()) -> tuple[Poly, Poly]:
    """(content, rest): the common factor that can be taken out of a power of the sum, and the rest.

    `whole`: the power is a whole number; otherwise only nonnegative factors are taken out. Factors that depend on an
    index in `inside` are not taken out.
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
    # The rest may vanish when it is expanded; then nothing is taken out.
    return (pulled, rest) if rest else (number(1), poly)


def reduce_denominators(poly: Poly) -> Poly:
    """The sum, simplified if it is a multiple of one of its denominators."""
    for head, slots in sorted({(f.head, f.slots) for m in poly for f in m.factors if f.head.kind == "sum"}):
        if any(ix[0] == "b" for ix in slots):
            continue
        found = [next((f.exponent for f in m.factors if (f.head, f.slots) == (head, slots)), Fraction(0)) for m in poly]
        low = min(found)
        if low > -1 or low.denominator != 1:
            continue
        content, rest = split_content(times(poly, Fraction(1), [Factor(head, slots, -low)]), whole=True)
        for flip in (1, -1):
            factor, _ = closed("sum", [scale(rest, flip)], sign=head.sign)
            if (factor.head, least_order(head, factor.slots)) == (head, slots):
                return times(scale(content, flip), Fraction(1), [Factor(head, slots, low + 1)])
    return poly


def absolute(poly: Poly) -> Poly:
    """|poly|."""
    if not poly or sign_of(poly) != "real":
        return poly
    if sign_of(scale(poly, -1)) != "real":
        return scale(poly, -1)
    alone = single_monomial(poly)
    if alone is None:
        content, rest = split_content(poly, whole=True)
        if constant(content) == 1:
            for flip in (1, -1):
                if has_root(*_as_head(scale(poly, flip))):
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


def _hide_axes(slots: tuple[Ix, ...]) -> tuple[tuple[Ix, ...], dict[Ix, Ix]]:
    """Slots in which the axes of an outer argument cannot be confused with this head's, and the inverse renaming."""
    hidden = {ix: fresh() for ix in slots if ix[0] == "r"}
    return tuple(hidden.get(ix, ix) for ix in slots), {value: key for key, value in hidden.items()}


def sign(poly: Poly) -> Poly:
    """The sign: −1, 0 or 1."""
    if not poly:
        return {}
    for flip in (1, -1):
        if sign_of(scale(poly, flip)) == "positive":
            return number(flip)
    alone = single_monomial(poly)
    if alone is not None:
        monomial, coefficient = alone
        return multiply(number(1 if coefficient > 0 else -1), *(_factor_sign_atom(f) for f in monomial.factors))
    content, rest = split_content(poly, whole=True)
    if constant(content) != 1:
        return multiply(sign(content), sign(rest))
    factor, flip = closed("sign", [poly], odd=True)
    return scale(atom(factor.head, factor.slots), flip)


def _factor_sign_atom(factor: Factor) -> Poly:
    head, slots, _ = factor
    if known_sign(head, slots) == "positive":
        return number(1)
    inner, flip = closed("sign", [atom(head, slots)], odd=True)
    times = 2 if head.sign == "real" and factor_sign(factor) != "real" else 1
    return scale(atom(inner.head, inner.slots, times), flip**times)


def exponential(poly: Poly) -> Poly:
    """exp of a sum, as a product over its terms: exp(k·m) = exp(m)^k."""
    parts = [number(1)]
    for monomial, coefficient in poly.items():
        factors = monomial.factors
        if len(factors) == 1 and factors[0].head.kind == "log" and factors[0].exponent == 1 and not monomial.sizes:
            (inside,) = arguments(factors[0].head, factors[0].slots)
            parts.append(power(inside, coefficient))
            continue
        factor, _ = closed("exp", [{monomial: Fraction(1)}], sign="positive")
        parts.append(atom(factor.head, factor.slots, coefficient))
    return multiply(*parts)


def logarithm(poly: Poly) -> Poly:
    """The natural logarithm; logarithms of products of positive factors are expanded."""
    if not poly:
        raise NoValue("the logarithm of zero has no value")
    alone = single_monomial(poly)
    if alone is None:
        content, rest = split_content(poly, whole=False)
        return _log_head(poly) if constant(content) == 1 else add(logarithm(content), logarithm(rest))
    monomial, coefficient = alone
    parts = []
    for whole, way in ((abs(coefficient).numerator, 1), (abs(coefficient).denominator, -1)):
        for prime, k in prime_factors(whole):
            parts.append(scale(_log_head(number(prime)), way * k))
    stuck = []
    for head, slots, k in monomial.factors:
        if head.kind == "exp":
            parts.append(scale(arguments(head, slots)[0], k))
        elif head.kind == "prime":
            parts.append(scale(_log_head(number(head.args[0])), k))
        elif known_sign(head, slots) != "real" or (head.kind == "sum" and k.denominator % 2 == 0):
            inside = arguments(head, slots)[0] if head.kind == "sum" else atom(head, slots)
            parts.append(scale(_log_head(inside), k))
        elif k.denominator == 1 and k % 2 == 0:
            parts.append(scale(logarithm(absolute(atom(head, slots))), k))
        else:
            stuck.append(Factor(head, slots, k))
    if stuck or coefficient < 0:
        parts.append(_log_head(build(Fraction(1 if coefficient > 0 else -1), stuck, {})))
    return add(*parts)


def _log_head(poly: Poly) -> Poly:
    note_nonnegative(poly)
    factor, _ = closed("log", [poly])
    return atom(factor.head, factor.slots)


def largest(args: Iterable[Poly]) -> Poly:
    """max of several scalars; of two, (a + b + |a − b|)/2."""
    kept: list[Poly] = []
    best: Fraction | None = None
    for arg in args:
        value = constant(arg)
        if value is not None:
            best = value if best is None else max(best, value)
        elif arg not in kept:
            kept.append(arg)
    if best is not None:
        kept.append(number(best))
    if len(kept) == 1:
        return kept[0]
    if len(kept) == 2:
        a, b = kept
        return scale(add(a, b, absolute(subtract(a, b))), HALF)
    factor, _ = closed("max", kept, unordered=True)
    return atom(factor.head, factor.slots)


def symbolic_power(base: Poly, exponent: Poly) -> Poly:
    """base ** exponent for an exponent that is not a number."""
    value = constant(exponent)
    if value is not None:
        return power(base, value)
    if sign_of(base) == "positive":
        return exponential(multiply(exponent, logarithm(base)))
    if not base and sign_of(exponent) == "positive":
        return {}
    alone = single_monomial(base)
    if alone is not None and _is_product(*alone) and is_whole(exponent):
        # (xy)ⁿ = xⁿ yⁿ, for a whole n.
        apart = [power(symbolic_power(atom(f.head, f.slots), exponent), f.exponent) for f in alone[0].factors]
        return multiply(symbolic_power(number(alone[1]), exponent), *apart)
    parts = []
    for monomial, coefficient in exponent.items():
        if monomial == UNIT:
            parts.append(power(base, coefficient))
            continue
        whole = coefficient.denominator == 1
        inside: Poly = {monomial: Fraction(1) if whole else coefficient}
        factor, _ = closed("power", [base, inside], sign="nonnegative" if sign_of(base) != "real" else "real")
        parts.append(atom(factor.head, factor.slots, coefficient if whole else 1))
    return multiply(*parts)


def _is_product(monomial: Monomial, coefficient: Fraction) -> bool:
    """Whether a monomial is more than a single head, and has no roots."""
    powers = [factor.exponent for factor in monomial.factors]
    return bool(powers) and (coefficient != 1 or powers != [1]) and all(k.denominator == 1 for k in powers)


def is_whole(poly: Poly) -> bool:
    """Whether a sum is certainly a whole number: a polynomial in naturals with whole coefficients."""
    return all(
        coefficient.denominator == 1
        and all(f.head.sign == "natural" and f.exponent.denominator == 1 and f.exponent > 0 for f in monomial.factors)
        for monomial, coefficient in poly.items()
    )


def rebuild_head(head: Head, slots: tuple[Ix, ...], change: Callable[[list[Poly]], list[Poly]] = list) -> Poly:
    """The head at its slots, rebuilt after `change` of its arguments."""
    slots, back = _hide_axes(slots)
    args = change(arguments(head, slots))
    match head.kind:
        case "sum":
            made = args[0]
        case "abs":
            made = absolute(args[0])
        case "sign":
            made = sign(args[0])
        case "exp":
            made = exponential(args[0])
        case "log":
            made = logarithm(args[0])
        case "max":
            made = largest(args)
        case "power":
            made = symbolic_power(args[0], args[1])
        case _:
            factor, flip = closed(head.kind, args, name=head.name, out=slots[: outputs(head)], sign=head.sign)
            made = scale(atom(factor.head, factor.slots), flip)
    return rename(made, back)


def _whole_steps(factor: Factor, step: int) -> tuple[int, Factor]:
    """The largest multiple of `step` in the exponent, and the factor with the rest of the exponent."""
    times = factor.exponent // step
    return int(times) * step, factor._replace(exponent=factor.exponent - times * step)


def _with_rest(poly: Poly, rest: Factor) -> Poly:
    return multiply(poly, build(Fraction(1), [rest], {}))


def _expand_sum(factor: Factor) -> Poly:
    whole, rest = _whole_steps(factor, 1)
    return _with_rest(power(arguments(factor.head, factor.slots)[0], whole), rest)


def _expand_abs(factor: Factor) -> Poly:
    whole, rest = _whole_steps(factor, 2)
    return _with_rest(power(arguments(factor.head, factor.slots)[0], whole), rest)


def _expand_prime(factor: Factor) -> Poly:
    whole, rest = _whole_steps(factor, 1)
    return _with_rest(number(Fraction(factor.head.args[0]) ** whole), rest)


def _expand_sign(factor: Factor) -> Poly:
    return atom(factor.head, factor.slots, 2 - factor.exponent % 2)


def _expand_less(factor: Factor) -> Poly:
    x, y = factor.slots
    if x == y:
        return {}
    if x[0] == y[0] == "c":
        return number(x[1] < y[1])
    return atom(LESS, factor.slots)


def _is_one_monomial(body: Frozen) -> bool:
    """Whether a sum is one monomial without bound indices."""
    return len(body) == 1 and not body[0][0].sizes


def _all_numbers(slots: tuple[Ix, ...]) -> bool:
    return all(ix[0] == "c" for ix in slots)


REMAKE.update(
    dict.fromkeys(("sum", "abs", "sign", "exp", "log", "max", "power", "map", "inverse", "det"), rebuild_head)
)
REMAKE.update(dict.fromkeys(("largest", "argmax", "product", "expect"), rebuild_head))
EXPAND.update(
    {
        "sum": (lambda f: f.exponent >= 1 or (f.exponent < 0 and _is_one_monomial(f.head.args[0])), _expand_sum),
        "abs": (lambda f: not 0 <= f.exponent < 2, _expand_abs),
        "prime": (lambda f: not 0 <= f.exponent < 1, _expand_prime),
        "sign": (lambda f: f.exponent > 2 and f.exponent.denominator == 1, _expand_sign),
        "less": (lambda f: f.exponent != 1 or f.slots[0] == f.slots[1] or _all_numbers(f.slots), _expand_less),
        "place": (
            lambda f: _all_numbers(f.slots),
            lambda f: numeric_power(Fraction(f.slots[0][1]), f.exponent),
        ),
    }
)
