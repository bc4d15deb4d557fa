"""Rules for several factors of one product: i < j, sign times value, a sum divided by itself, A times A⁻¹."""

from __future__ import annotations

from fractions import Fraction

from qkv.maths.algebra.functions import HALF, absolute
from qkv.maths.algebra.heads import arguments, closed, single_monomial
from qkv.maths.algebra.monomials import (
    DELTA,
    LESS,
    TOGETHER,
    Factor,
    Frozen,
    Head,
    Ix,
    Poly,
    add,
    atom,
    bind,
    build,
    canonical,
    fresh,
    least_order,
    rename_factor,
    replace_factor,
    scale,
)


def ordered_pair(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """[i < j], [j < i] and δ_ij add up to 1, so only one of the first two is kept."""
    for place, factor in enumerate(factors):
        if factor.head != LESS:
            continue
        x, y = factor.slots
        others = factors[:place] + factors[place + 1 :]
        turned = [*others, factor._replace(slots=(y, x))]
        half = False
        if x[0] == y[0] == "b":
            if sizes[x[1]] != sizes[y[1]]:
                continue
            here, there = canonical(factors, sizes), canonical(turned, sizes)
            if here < there:
                continue
            half = here == there
        elif y[0] != "b" and (x[0] == "b" or x > y):
            half = False
        else:
            continue
        free = build(coefficient, others, sizes)
        equal = build(coefficient, [*others, Factor(DELTA, (x, y))], sizes)
        apart = add(free, scale(equal, -1))
        return scale(apart, HALF) if half else add(apart, build(-coefficient, turned, sizes))
    return None


def sign_and_value(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """sign(x) |x| = x and sign(x) x = |x|, at x = 0 too."""
    for place, factor in enumerate(factors):
        if factor.head.kind != "sign" or factor.exponent not in (1, 2):
            continue
        for other, value in enumerate(factors):
            if other == place or value.exponent < 1:
                continue
            if value.head.kind == "abs" and (value.head.args, value.slots) == (factor.head.args, factor.slots):
                become = _argument
            elif (factor.head, factor.slots) == _sign_of(value):
                become = _absolute_value
            else:
                continue
            rest = [f for k, f in enumerate(factors) if k not in (place, other)]
            rest.append(factor._replace(exponent=factor.exponent - 1))
            rest.append(value._replace(exponent=value.exponent - 1))
            return replace_factor(coefficient, rest, sizes, become, value)
    return None


def _argument(factor: Factor) -> Poly:
    return arguments(factor.head, factor.slots)[0]


def _absolute_value(factor: Factor) -> Poly:
    return absolute(atom(factor.head, factor.slots))


def _sign_of(value: Factor) -> tuple[Head, tuple[Ix, ...]] | None:
    """The head and the ordered slots of the sign of a factor to the power 1; sign(F_ij) differs from sign(F_ji)."""
    if value.head.sign != "real" or value.head.kind == "sum":
        return None
    opens: dict[Ix, Ix] = {ix: fresh() for ix in value.slots if ix[0] == "b"}
    inner = rename_factor(value._replace(exponent=Fraction(1)), opens)
    made, _ = closed("sign", [build(Fraction(1), [inner], {})], odd=True)
    back = rename_factor(made, {new: ix for ix, new in opens.items()})
    return back.head, least_order(back.head, back.slots)


def sum_over_itself(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """Σ_j f_ij / Σ_k f_ik = 1, also where i is bound: the weights of a softmax add up to one."""
    for place, below in enumerate(factors):
        if below.head.kind != "sum" or below.exponent > -1 or len(below.head.args[0]) != 1:
            continue
        ((inner, times),) = below.head.args[0]
        if len(inner.sizes) != 1:
            continue
        wanted = sorted((f.head, f.exponent) for f in inner.factors)
        for k, size in sizes.items():
            users = [f for f in factors if ("b", k) in f.slots]
            if size != inner.sizes[0] or below in users or sorted((f.head, f.exponent) for f in users) != wanted:
                continue
            opens: dict[Ix, Ix] = {("b", other): fresh() for other in sizes}
            top = bind(build(Fraction(1), [rename_factor(f, opens) for f in users], {}), opens["b", k], size)
            found, _ = closed("sum", [scale(top, times)], sign=below.head.sign)
            here = rename_factor(below, opens)
            if (found.head, least_order(found.head, found.slots)) != (here.head, least_order(here.head, here.slots)):
                continue
            rest = [f for n, f in enumerate(factors) if f not in users and n != place]
            rest.append(below._replace(exponent=below.exponent + 1))
            return build(coefficient / times, rest, {n: s for n, s in sizes.items() if n != k})
    return None


def matrix_and_inverse(coefficient: Fraction, factors: list[Factor], sizes: dict[int, Frozen]) -> Poly | None:
    """Σ_j A_ij (A⁻¹)_jk = δ_ik for a matrix that is a name."""
    for inverse in factors:
        if inverse.head.kind != "inverse" or inverse.exponent != 1 or len(inverse.slots) != 2:
            continue
        alone = single_monomial(dict(inverse.head.args[0]))
        if alone is None or alone[1] != 1 or len(alone[0].factors) != 1 or alone[0].factors[0].exponent != 1:
            continue
        matrix = alone[0].factors[0]
        if matrix.slots != (("r", 0), ("r", 1)):
            continue
        for other in factors:
            if other.head != matrix.head or other.exponent != 1:
                continue
            for end in (0, 1):
                met = _meeting_index(inverse, other, end)
                if met is None or sum(met[0] in f.slots for f in factors) != 2:
                    continue
                joint, x, y = met
                rest = [f for f in factors if f not in (inverse, other)]
                left = {k: size for k, size in sizes.items() if k != joint[1]}
                return build(coefficient, [*rest, Factor(DELTA, (x, y))], left)
    return None


def _meeting_index(inverse: Factor, matrix: Factor, end: int) -> tuple[Ix, Ix, Ix] | None:
    """The bound index that slot `end` of an inverse shares with its matrix, and the other slot of each."""
    joint, x = inverse.slots[end], inverse.slots[1 - end]
    if joint[0] != "b" or joint == x:
        return None
    ways = (0, 1) if matrix.head.symmetry else (1 - end,)
    for way in ways:
        if matrix.slots[way] == joint and matrix.slots[1 - way] != joint:
            return joint, x, matrix.slots[1 - way]
    return None


TOGETHER.extend([ordered_pair, sign_and_value, sum_over_itself, matrix_and_inverse])
