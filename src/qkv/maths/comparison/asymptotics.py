"""Asymptotic classes O, Θ, Ω in several variables, all at least 1, that grow independently of each other.

A term n^a (log n)^b is a point with one coordinate per variable: its power, with logarithms as infinitesimal powers and
exponentials as infinite ones. A term is O of a sum of others if in every direction of growth one of those is at
least as large. This is a linear programme over fractions; the direction in which it fails is the counterexample.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, reduce
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

from qkv.maths import tree as t
from qkv.maths.certificate import prove
from qkv.maths.comparison.counterexample import Counterexample, number_text, pretty_symbol
from qkv.maths.comparison.trial import decide
from qkv.maths.sizes import names_in
from qkv.maths.values.arithmetic import Undefined, Unevaluable, digits, divide, fraction, plain_entries
from qkv.maths.values.evaluate import evaluate

if TYPE_CHECKING:
    from qkv.maths.comparison.verdict import Verdict

SIMPLEX_STEPS = 2_000


def positive_direction(gaps: Sequence[Sequence[Fraction]], width: int) -> list[Fraction] | None:
    """w >= 0 with w·g > 0 for every row g of `gaps`, or None.

    Maximises t subject to t <= w·g for every g and Σ w <= 1, by the simplex method with Bland's rule, which terminates.

    >>> positive_direction([[Fraction(1), Fraction(-2)], [Fraction(-1), Fraction(3)]], 2)
    [Fraction(5, 7), Fraction(2, 7)]
    >>> positive_direction([[Fraction(1), Fraction(-1)], [Fraction(-1), Fraction(1)]], 2) is None
    True
    """
    columns = width + 1
    rows = [[-entry for entry in gap] + [Fraction(1)] for gap in gaps] + [[Fraction(1)] * width + [Fraction(0)]]
    count = len(rows)
    table = [row + [Fraction(i == j) for j in range(count)] + [Fraction(i == count - 1)] for i, row in enumerate(rows)]
    goal = [Fraction(0)] * width + [Fraction(-1)] + [Fraction(0)] * (count + 1)
    basis = [columns + i for i in range(count)]
    for _ in range(SIMPLEX_STEPS):
        entering = next((j for j in range(columns + count) if goal[j] < 0), None)
        if entering is None:
            break
        ratios = [(row[-1] / row[entering], basis[i], i) for i, row in enumerate(table) if row[entering] > 0]
        _, _, leaving = min(ratios)
        pivot = table[leaving][entering]
        table[leaving] = [entry / pivot for entry in table[leaving]]
        for i, row in enumerate(table):
            if i != leaving and row[entering]:
                factor = row[entering]
                table[i] = [a - factor * b for a, b in zip(row, table[leaving], strict=True)]
        factor = goal[entering]
        goal = [a - factor * b for a, b in zip(goal, table[leaving], strict=True)]
        basis[leaving] = entering
    else:
        raise ValueError("the linear programme takes too many steps")
    if goal[-1] <= 0:
        return None
    found = [Fraction(0)] * width
    for i, variable in enumerate(basis):
        if variable < width:
            found[variable] = table[i][-1]
    return found


# Far apart, so that no power that can be written is as small as a logarithm or as large as an exponential.
LOGARITHM, EXPONENTIAL = Fraction(1, 10**12), Fraction(10**12)
SMALLEST_POWER, LARGEST_POWER = Fraction(1, 10**6), Fraction(10**5)
MOST_TERMS = 300
LARGEST_PRIME = 10_000
GROWTH_STEPS = ((1, 2, 3), (4, 5, 6), (8, 9, 10), (14, 15, 16))
WORDS = {"O": "O", "Theta": "Θ", "Omega": "Ω"}
MEANINGS = {
    "O": "O is an upper bound only",
    "Theta": "Θ is a bound from both sides",
    "Omega": "Ω is a lower bound only",
}

Term: TypeAlias = frozenset[tuple[str, Fraction]]
Terms: TypeAlias = dict[Term, Fraction]
CONSTANT: Term = frozenset()
ONE: Terms = {CONSTANT: Fraction(1)}


class NoRate(ValueError):
    """An expression whose growth cannot be determined."""


@dataclass(frozen=True)
class Growth:
    """A quotient of two sums of terms; if it is not `exact`, coefficients are right up to positive constants."""

    top: Terms
    bottom: Terms
    exact: bool = True

    def plus(self, other: Growth) -> Growth:
        exact = self.exact and other.exact
        left, right = multiply_terms(self.top, other.bottom, exact), multiply_terms(other.top, self.bottom, exact)
        return Growth(sum_terms(left, right, exact), multiply_terms(self.bottom, other.bottom, exact), exact)

    def times(self, other: Growth) -> Growth:
        exact = self.exact and other.exact
        return Growth(
            multiply_terms(self.top, other.top, exact), multiply_terms(self.bottom, other.bottom, exact), exact
        )

    def inverse(self) -> Growth:
        if not self.top:
            raise NoRate("a division by zero")
        return Growth(self.bottom, self.top, self.exact)


def multiply_term(a: Term, b: Term) -> Term:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, Fraction(0)) + power
    return frozenset((name, power) for name, power in powers.items() if power)


def add_term(terms: Terms, key: Term, coefficient: Fraction, exact: bool) -> None:
    """Add a term in place; terms may cancel only if they are exact."""
    before = terms.pop(key, Fraction(0))
    if before * coefficient < 0 and not exact:
        raise NoRate("a difference of terms that may cancel")
    if before + coefficient:
        terms[key] = before + coefficient


def multiply_terms(a: Terms, b: Terms, exact: bool = True) -> Terms:
    if len(a) * len(b) > MOST_TERMS * 8:
        raise NoRate("it has too many terms")
    result: Terms = {}
    for first, c in a.items():
        for second, k in b.items():
            add_term(result, multiply_term(first, second), c * k, exact)
    return result


def sum_terms(a: Terms, b: Terms, exact: bool = True) -> Terms:
    result = dict(a)
    for key, c in b.items():
        add_term(result, key, c, exact)
    return result


def raise_growth(inside: Growth, exponent: Fraction) -> Growth:
    """A quotient to a positive power: multiplied out if that is small, else term by term, which grows alike."""
    if exponent.denominator == 1 and exponent <= 6:
        result = Growth(ONE, ONE)
        for _ in range(int(exponent)):
            result = result.times(inside)
        return result
    exact = inside.exact and all(len(side) == 1 and set(side.values()) == {1} for side in (inside.top, inside.bottom))
    top, bottom = (
        {frozenset((name, p * exponent) for name, p in term): Fraction(1) for term in dominant_terms(side)}
        for side in (inside.top, inside.bottom)
    )
    return Growth(top, bottom, exact)


def dominant_terms(terms: Terms) -> list[Term]:
    """The terms with a positive coefficient; NoRate if a negative term is not dominated by one of them.

    One term must dominate it alone: n² + d² − 2nd vanishes for n = d, although nd is at most n² + d².
    """
    positive = [term for term, c in terms.items() if c > 0]
    for term, c in terms.items():
        if c < 0 and not any(dominated(term, [other]) for other in positive):
            raise NoRate("a difference of terms of which neither outgrows the other")
    return positive


def dominated(term: Term, others: list[Term]) -> bool:
    return outgrowing_direction(term, others) is None


def outgrowing_direction(term: Term, others: list[Term]) -> dict[str, Fraction] | None:
    """A direction in which `term` outgrows all the others, or None."""
    names = sorted({name for one in (term, *others) for name, _ in one})
    here = dict(term)
    gaps = []
    for other in others:
        there = dict(other)
        gaps.append([here.get(name, Fraction(0)) - there.get(name, Fraction(0)) for name in names])
    for simple in itertools.product((0, 1, 2), repeat=min(len(names), 4)) if len(names) <= 4 else ():
        if all(sum(w * g for w, g in zip(simple, gap, strict=True)) > 0 for gap in gaps):
            return dict(zip(names, map(Fraction, simple), strict=True))
    found = positive_direction(gaps, len(names))
    return None if found is None else dict(zip(names, found, strict=True))


def growth(node: t.Node) -> Growth:
    """The growth of an expression whose names are all sizes."""
    if node.shape:
        raise NoRate("it is not a scalar")
    if not grows(node):
        return constant_growth(node)
    match node:
        case t.Symbol(name=name, type=type_):
            if type_.definition is not None:
                return growth(type_.definition)
            return Growth({frozenset({(name, Fraction(1))}): Fraction(1)}, ONE)
        case t.Index(size=size) if isinstance(size, str) and names_in(size) == (size,):
            return Growth({frozenset({(size, Fraction(1))}): Fraction(1)}, ONE, exact=False)
        case t.Add(terms=many):
            return reduce(Growth.plus, map(growth, many))
        case t.Multiply(factors=many):
            return reduce(Growth.times, map(growth, many))
        case t.Divide(top=a, bottom=b):
            return growth(a).times(growth(b).inverse())
        case t.Power(base=base, exponent=exponent):
            return growth_of_power(base, exponent)
        case t.Call(name=name, arguments=arguments):
            return growth_of_call(name, arguments)
        case t.Sum(indices=indices, body=body, product=False, conditions=()):
            inside = growth(body)
            if t.free_indices(body) and list(inside.bottom) != [CONSTANT]:
                raise NoRate("a sum over an index that it divides by")
            return reduce(Growth.times, map(growth, indices), inside)
    raise NoRate("it is not a sum of products of powers and logarithms")


def grows(node: t.Node) -> bool:
    """Whether a node has an index or a name that is not defined by numbers alone."""
    return any(isinstance(n, t.Index) or (isinstance(n, t.Symbol) and n.type.definition is None) for n in t.walk(node))


def constant_growth(node: t.Node) -> Growth:
    """The growth of a node without names, which is constant."""
    try:
        value = fraction(evaluate(node, {}, {}))
    except (Undefined, Unevaluable) as error:
        raise NoRate("a constant without a value") from error
    return Growth({CONSTANT: value} if value else {}, ONE)


def growth_of_power(base: t.Node, exponent: t.Node) -> Growth:
    if grows(exponent):
        if grows(base):
            raise NoRate("a name to the power of a name")
        return growth_of_exponential(logarithm_of(base), exponent)
    by = constant_growth(exponent).top.get(CONSTANT, Fraction(0))
    inside = growth(base)
    return raise_growth(inside if by > 0 else inside.inverse(), abs(by))


def logarithm_of(base: t.Node) -> Fraction:
    """The logarithm of a constant from those of its primes, so that log 4 is exactly twice log 2."""
    match base:
        case t.Number(value=value) if value > 0:
            return _of_whole(value.numerator) - _of_whole(value.denominator)
        case t.Symbol(type=t.Type(definition=t.Node() as definition)):
            return logarithm_of(definition)
        case t.Constant(name="e"):
            return Fraction(1)
        case t.Multiply(factors=factors) if not any(isinstance(f, t.Number) and f.value <= 0 for f in factors):
            return sum(map(logarithm_of, factors), Fraction(0))
        case t.Divide(top=top, bottom=bottom):
            return logarithm_of(top) - logarithm_of(bottom)
        case t.Power(base=inner, exponent=t.Number(value=by)):
            return by * logarithm_of(inner)
        case t.Call(name="sqrt", arguments=(inner,)):
            return logarithm_of(inner) / 2
        case t.Call(name="exp", arguments=(t.Number(value=by),)):
            return by
    return constant_growth(t.Call((), "log", (base,))).top.get(CONSTANT, Fraction(0))


def _of_whole(number: int) -> Fraction:
    """The sum of the logarithms of the prime factors, each fixed, so that equal products have equal sums."""
    found = Fraction(0)
    for prime in itertools.chain((2,), range(3, LARGEST_PRIME, 2)):
        if prime * prime > number:
            break
        while number % prime == 0:
            found += _of_prime(prime)
            number //= prime
    return found + _of_prime(number) if number > 1 else found


@lru_cache(maxsize=512)
def _of_prime(prime: int) -> Fraction:
    with digits():
        return Fraction(Decimal(prime).ln())


def growth_of_exponential(rate: Fraction, exponent: t.Node) -> Growth:
    """The growth of exp(rate · exponent) for an exponent that is linear in the names."""
    inside = growth(exponent)
    if list(inside.bottom) != [CONSTANT] or not inside.exact:
        raise NoRate("an exponent that is not linear")
    scale = rate / inside.bottom[CONSTANT]
    powers: dict[str, Fraction] = {}
    for term, coefficient in inside.top.items():
        if term == CONSTANT:
            continue
        if len(term) != 1 or next(iter(term))[1] != 1:
            raise NoRate("an exponent that is not linear")
        powers[next(iter(term))[0]] = EXPONENTIAL * scale * coefficient
    key = frozenset((name, power) for name, power in powers.items() if power)
    return Growth({key: Fraction(1)}, ONE, exact=CONSTANT not in inside.top)


def growth_of_call(name: str, arguments: tuple[t.Node, ...]) -> Growth:
    if name == "exp":
        return growth_of_exponential(Fraction(1), arguments[0])
    if name == "sqrt":
        return growth_of_power(arguments[0], t.Number((), Fraction(1, 2)))
    inside = [replace(growth(argument), exact=False) for argument in arguments]
    if name == "log":
        return Growth(growth_of_logarithm(inside[0]), ONE, exact=False)
    if name == "max":
        return reduce(Growth.plus, inside)
    if name == "min":
        return reduce(Growth.plus, [one.inverse() for one in inside]).inverse()
    raise NoRate(f"{name} has no rate that qkv knows")


def growth_of_logarithm(inside: Growth) -> Terms:
    """The logarithm of a sum of products is the sum of the logarithms of its names, up to constants."""
    if list(inside.bottom) != [CONSTANT]:
        raise NoRate("a logarithm of a quotient")
    result: Terms = {}
    for term in dominant_terms(inside.top):
        for name, power in term:
            if power < SMALLEST_POWER:
                raise NoRate("a logarithm of what may be small")
            # The logarithm of an exponential is its exponent, of a power a logarithm.
            inner = Fraction(1) if power > LARGEST_POWER else LOGARITHM
            result[frozenset({(name, inner)})] = Fraction(1)
    return result or {CONSTANT: Fraction(1)}


def outgrowth(a: Growth, b: Growth) -> dict[str, Fraction] | None:
    """A direction in which `a` outgrows `b`, or None if a = O(b)."""
    exact = a.exact and b.exact
    left, right = (
        dominant_terms(multiply_terms(a.top, b.bottom, exact)),
        dominant_terms(multiply_terms(b.top, a.bottom, exact)),
    )
    if len(left) > MOST_TERMS or len(right) > MOST_TERMS:
        raise NoRate("it has too many terms")
    if not left:
        return None
    if not right:
        return {}
    return next((found for term in left if (found := outgrowing_direction(term, right)) is not None), None)


def compare_growth(gold: t.Node, answer: t.Node, found: Verdict) -> Verdict:
    """The verdict if one side or both are O, Θ or Ω."""
    if not isinstance(gold, t.Order):
        return found.different("a value is expected, and the answer only says how fast it grows")
    given = answer.body if isinstance(answer, t.Order) else answer
    if given.shape:
        return found.different("a rate of growth is expected, and the answer is not a scalar")
    try:
        right, mine = growth(gold.body), growth(given)
        if bool(right.top) != bool(mine.top):
            whose = "the right one" if mine.top else "the answer"
            reason = f"{whose} is 0 throughout, which is below every rate of growth, and the other is not"
            return found.different(reason)
        faster, slower = outgrowth(mine, right), outgrowth(right, mine)
    except NoRate as problem:
        return compare_unknown_rates(gold, answer, str(problem), found)
    for direction_, how in ((faster, "faster"), (slower, "slower")):
        if direction_ is not None:
            reason, point = ratio_along(direction_, gold.body, given, how)
            return found.different(reason, point)
    if isinstance(answer, t.Order) and answer.kind != gold.kind:
        names = WORDS[gold.kind], WORDS[answer.kind]
        reason = (
            f"the rate is right, but {names[0]} is expected and {names[1]} is given: "
            f"{MEANINGS[answer.kind]}, {MEANINGS[gold.kind]}"
        )
        return found.different(reason)
    reason = "both grow at the same rate" if isinstance(answer, t.Order) else "it grows at the expected rate"
    # Only equal bodies have a certificate.
    certificate = prove(gold.body, given)
    evidence = "tested" if certificate is None else "proved"
    return replace(found, kind="equal", evidence=evidence, reason=reason, certificate=certificate)


def compare_unknown_rates(gold: t.Order, answer: t.Node, problem: str, found: Verdict) -> Verdict:
    """The verdict if a rate is unknown: equal bodies are still in the same class."""
    body = answer.body if isinstance(answer, t.Order) else answer
    alike = not isinstance(answer, t.Order) or answer.kind == gold.kind
    outcome = decide(gold.body, body) if alike else None
    if outcome is not None and outcome.equal:
        how = {"evidence": outcome.evidence, "certificate": outcome.certificate}
        return replace(found, kind="equal", reason="both are the class of the same function", **how)
    return found.unread(f"qkv cannot tell the growth: {problem}")


def ratio_along(
    ray_: Mapping[str, Fraction], gold: t.Node, answer: t.Node, how: str
) -> tuple[str, Counterexample | None]:
    """The reason with the ratio of the two along a direction, and the last point of it."""
    symbols = t.symbols_of(gold, answer)
    free = [name for name, s in symbols.items() if s.type.definition is None]
    shown = {name: pretty_symbol(symbols[name]) for name in free}
    scale = lcm(1, *(weight.denominator for weight in ray_.values()))
    weights = {name: int(ray_.get(name, Fraction(0)) * scale) for name in free}
    moving = [name for name in free if weights[name]]
    # Names that do not grow are 1, or 2 if a logarithm of 1 prevents a value.
    for steps, still in itertools.product(GROWTH_STEPS, (1, 2)) if max(weights.values(), default=0) <= 8 else ():
        rows = [{n: Fraction(4 ** (step * w) if w else still) for n, w in weights.items()} for step in steps]
        try:
            pairs = [(evaluate(gold, {}, row), evaluate(answer, {}, row)) for row in rows]
            with digits():
                ratios = list(plain_entries(tuple(divide(mine, right) for right, mine in pairs)))
        except (Undefined, Unevaluable):
            continue
        if ratios != sorted(ratios, reverse=how == "slower") or ratios[0] == ratios[-1]:
            continue
        path = ", ".join(f"{shown[n]} = {', '.join(number_text(row[n]) for row in rows)}" for n in moving)
        rest = ", ".join(f"{shown[name]} = {still}" for name in free if name not in moving)
        place = f"{path} with {rest}" if rest else path
        quotients = ", ".join(number_text(ratio) for ratio in ratios)
        reason = f"the answer grows {how}: along {place} its ratio to the right one is {quotients}"
        return reason, Counterexample(rows[-1], *pairs[-1], shown=shown)
    where = " and ".join(shown[name] for name in moving)
    return f"the answer grows {how} than it should as {where} grows" if where else f"the answer grows {how}", None
