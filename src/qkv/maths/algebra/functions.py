"""Exponentials, logarithms, signs and maxima of sums of monomials, and how a head is made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from qkv.maths.algebra.budget import NoValue
from qkv.maths.algebra.heads import arguments, closed, factor_sign, known_sign, sign_of, single
from qkv.maths.algebra.labelling import Factor, Frozen, Head, Ix, Monomial
from qkv.maths.algebra.monomials import (
    EXPAND,
    LESS,
    REMAKE,
    UNIT,
    Poly,
    add,
    atom,
    build,
    constant,
    fresh,
    multiply,
    number,
    outputs,
    rename,
    scale,
    subtract,
)
from qkv.maths.algebra.powers import HALF, absolute, note_nonnegative, numeric_power, power, prime_factors, primitive


def _hidden(slots: tuple[Ix, ...]) -> tuple[tuple[Ix, ...], dict[Ix, Ix]]:
    """Slots in which the axes of an argument further out cannot meet those of this head's own, and the way back."""
    hidden = {ix: fresh() for ix in slots if ix[0] == "r"}
    return tuple(hidden.get(ix, ix) for ix in slots), {value: key for key, value in hidden.items()}


def sign(poly: Poly) -> Poly:
    """The sign: −1, 0 or 1."""
    if not poly:
        return {}
    for flip in (1, -1):
        if sign_of(scale(poly, flip)) == "positive":
            return number(flip)
    alone = single(poly)
    if alone is not None:
        monomial, coefficient = alone
        return multiply(number(1 if coefficient > 0 else -1), *(_factor_sign_atom(f) for f in monomial.factors))
    content, rest = primitive(poly, whole=True)
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
    """exp of a sum: a product over its terms, exp(k·m) = exp(m)^k."""
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
    """The natural logarithm; what is known to be positive comes apart."""
    if not poly:
        raise NoValue("the logarithm of zero has no value")
    alone = single(poly)
    if alone is None:
        content, rest = primitive(poly, whole=False)
        return _opaque_log(poly) if constant(content) == 1 else add(logarithm(content), logarithm(rest))
    monomial, coefficient = alone
    parts = []
    for whole, way in ((abs(coefficient).numerator, 1), (abs(coefficient).denominator, -1)):
        for prime, k in prime_factors(whole):
            parts.append(scale(_opaque_log(number(prime)), way * k))
    stuck = []
    for head, slots, k in monomial.factors:
        if head.kind == "exp":
            parts.append(scale(arguments(head, slots)[0], k))
        elif head.kind == "prime":
            parts.append(scale(_opaque_log(number(head.args[0])), k))
        elif known_sign(head, slots) != "real" or (head.kind == "sum" and k.denominator % 2 == 0):
            inside = arguments(head, slots)[0] if head.kind == "sum" else atom(head, slots)
            parts.append(scale(_opaque_log(inside), k))
        elif k.denominator == 1 and k % 2 == 0:
            parts.append(scale(logarithm(absolute(atom(head, slots))), k))
        else:
            stuck.append(Factor(head, slots, k))
    if stuck or coefficient < 0:
        parts.append(_opaque_log(build(Fraction(1 if coefficient > 0 else -1), stuck, {})))
    return add(*parts)


def _opaque_log(poly: Poly) -> Poly:
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
    """base ** exponent where the exponent is no number."""
    value = constant(exponent)
    if value is not None:
        return power(base, value)
    if sign_of(base) == "positive":
        return exponential(multiply(exponent, logarithm(base)))
    if not base and sign_of(exponent) == "positive":
        return {}
    alone = single(base)
    if alone is not None and _comes_apart(*alone) and counts(exponent):
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


def _comes_apart(monomial: Monomial, coefficient: Fraction) -> bool:
    """Whether a product is more than one head by itself; roots keep together."""
    powers = [factor.exponent for factor in monomial.factors]
    return bool(powers) and (coefficient != 1 or powers != [1]) and all(k.denominator == 1 for k in powers)


def counts(poly: Poly) -> bool:
    """Whether a sum is a whole number for sure: made of naturals, by adding and multiplying."""
    return all(
        coefficient.denominator == 1
        and all(f.head.sign == "natural" and f.exponent.denominator == 1 and f.exponent > 0 for f in monomial.factors)
        for monomial, coefficient in poly.items()
    )


def rebuilt(head: Head, slots: tuple[Ix, ...], change: Callable[[list[Poly]], list[Poly]] = list) -> Poly:
    """What the head is at its slots, made anew, after a change of its arguments."""
    slots, back = _hidden(slots)
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


def _floor_out(factor: Factor, step: int) -> tuple[int, Factor]:
    """The whole multiple of `step` in the exponent, and the factor with what is left of it."""
    times = factor.exponent // step
    return int(times) * step, factor._replace(exponent=factor.exponent - times * step)


def _with_rest(poly: Poly, rest: Factor) -> Poly:
    return multiply(poly, build(Fraction(1), [rest], {}))


def _expand_sum(factor: Factor) -> Poly:
    whole, rest = _floor_out(factor, 1)
    return _with_rest(power(arguments(factor.head, factor.slots)[0], whole), rest)


def _expand_abs(factor: Factor) -> Poly:
    whole, rest = _floor_out(factor, 2)
    return _with_rest(power(arguments(factor.head, factor.slots)[0], whole), rest)


def _expand_prime(factor: Factor) -> Poly:
    whole, rest = _floor_out(factor, 1)
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


def _plain(body: Frozen) -> bool:
    """Whether a sum is one monomial, of which whole powers come apart."""
    return len(body) == 1 and not body[0][0].sizes


def _numbers(slots: tuple[Ix, ...]) -> bool:
    return all(ix[0] == "c" for ix in slots)


REMAKE.update(dict.fromkeys(("sum", "abs", "sign", "exp", "log", "max", "power", "map", "inverse", "det"), rebuilt))
REMAKE.update(dict.fromkeys(("largest", "argmax", "product", "expect"), rebuilt))
EXPAND.update(
    {
        "sum": (lambda f: f.exponent >= 1 or (f.exponent < 0 and _plain(f.head.args[0])), _expand_sum),
        "abs": (lambda f: not 0 <= f.exponent < 2, _expand_abs),
        "prime": (lambda f: not 0 <= f.exponent < 1, _expand_prime),
        "sign": (lambda f: f.exponent > 2 and f.exponent.denominator == 1, _expand_sign),
        "less": (lambda f: f.exponent != 1 or f.slots[0] == f.slots[1] or _numbers(f.slots), _expand_less),
        "place": (
            lambda f: _numbers(f.slots),
            lambda f: numeric_power(Fraction(f.slots[0][1]), f.exponent),
        ),
    }
)
