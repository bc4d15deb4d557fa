"""`evaluate`: the value of a typed tree for given sizes and names, exactly or to sixty digits.

This walks the tree itself and shares nothing with the normal forms, so that each can be checked against the other.

Expectations: every random name is its mean plus a triangular matrix times independent variables. For a normal law the
expectation of a polynomial follows exactly from their moments; anything else is summed over a fine grid, if the
variables are few. If only mean and covariance are known, a name may occur at most twice in a product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, DecimalException, Overflow
from fractions import Fraction
from math import comb, prod
from typing import Any

from qkv.maths import tree as t
from qkv.maths.sizes import whole_range, whole_size
from qkv.maths.values import arithmetic as arith
from qkv.maths.values.arithmetic import ONE, ZERO, Scalar, Unevaluable, add, componentwise, entries, multiply, sign

# The trapezoidal rule with a normal density has an error of exp(-2π²/h²), nearly full precision for smooth bodies.
# Every second point makes a coarser grid; its difference from the fine grid estimates the error.
GRIDS = {1: (Fraction(1, 4), 56), 2: (Fraction(1, 2), 16)}
FAR_OUT = Fraction(1000)


@dataclass(frozen=True)
class Variable:
    """A variable of mean 0, uncorrelated with others: its variance, and whether it is normal."""

    variance: Scalar
    normal: bool

    def moment(self, order: int, tilt: Scalar = ZERO) -> Scalar:
        """E[zⁿ exp(c z)] with c the tilt: exp(c² s²/2) E[(z + c s²)ⁿ]."""
        if isinstance(tilt, Fraction) and not tilt:
            return self.central_moment(order)
        shift = multiply(tilt, self.variance)
        total: Scalar = ZERO
        for k in range(order + 1):
            rest = multiply(Fraction(comb(order, k)), self.central_moment(k))
            total = add(total, multiply(rest, arith.power(shift, Fraction(order - k))))
        return multiply(total, arith.function("exp", multiply(multiply(tilt, shift), arith.HALF)))

    def central_moment(self, order: int) -> Scalar:
        if order % 2:
            return ZERO
        result = arith.power(self.variance, Fraction(order // 2))
        for odd in range(1, order, 2):
            result = multiply(Fraction(odd), result)
        return result


def nonzero_places(row: list[Scalar], stop: int) -> list[int]:
    """The positions before `stop` that are not zero; few if a covariance is diagonal."""
    return [k for k in range(stop) if not isinstance(row[k], Fraction) or row[k]]


def ldl(covariance: tuple[tuple[Scalar, ...], ...]) -> tuple[list[list[Scalar]], list[Scalar]]:
    """Unit lower triangular L and diagonal D with L D Lᵀ = covariance; Undefined if it is not a covariance."""
    size = len(covariance)
    lower: list[list[Scalar]] = [[ONE if i == j else ZERO for j in range(size)] for i in range(size)]
    middle: list[Scalar] = []
    for i in range(size):
        for j in range(i):
            mirror = arith.subtract(covariance[i][j], covariance[j][i])
            if isinstance(mirror, Fraction) and mirror:
                raise arith.Undefined("a covariance that is not symmetric")
            rest = covariance[i][j]
            for k in nonzero_places(lower[i], j):
                rest = arith.subtract(rest, multiply(multiply(lower[i][k], middle[k]), lower[j][k]))
            if sign(middle[j]) == 0:
                if sign(rest) != 0:
                    raise arith.Undefined("no covariance")
                continue
            lower[i][j] = arith.divide(rest, middle[j])
        rest = covariance[i][i]
        for k in nonzero_places(lower[i], i):
            rest = arith.subtract(rest, multiply(multiply(lower[i][k], lower[i][k]), middle[k]))
        if sign(rest) < 0:
            raise arith.Undefined("a negative variance")
        middle.append(rest)
    return lower, middle


@dataclass(frozen=True)
class RandomVector:
    """One random name at a point: mean, lower triangle, and its variables."""

    name: str
    mean: tuple[Scalar, ...]
    lower: list[list[Scalar]]
    variables: tuple[Variable, ...]
    scalar: bool

    def at(self, drawn: list[Scalar]) -> Any:
        values = []
        for i, centre in enumerate(self.mean):
            total = centre
            for j in nonzero_places(self.lower[i], i + 1):
                total = add(total, multiply(self.lower[i][j], drawn[j]))
            values.append(total)
        return values[0] if self.scalar else tuple(values)

    def symbolic(self) -> Any:
        variables: list[Scalar] = [
            arith.Polynomial({(((self.name, j), 1),): ONE})
            if isinstance(variable.variance, arith.Dual) or sign(variable.variance)
            else ZERO
            for j, variable in enumerate(self.variables)
        ]
        return self.at(variables)


def random_vector(name: str, mean: Any, covariance: Any, *, normal: bool) -> RandomVector:
    """The random name with this mean and covariance."""
    scalar = not isinstance(mean, tuple)
    centre = (mean,) if scalar else mean
    lower, middle = ldl(((covariance,),) if scalar else covariance)
    return RandomVector(name, centre, lower, tuple(Variable(variance, normal) for variance in middle), scalar)


def expectation(x: Scalar, variables: dict[tuple[str, int], Variable]) -> Scalar:
    """The expectation of a polynomial in the variables, term by term."""
    if isinstance(x, arith.Dual):
        # The moments vary too if a law is differentiated by its parameters: then both parts are dual.
        slope = multiply(arith.Dual(x.level, ZERO, ONE), expectation(x.slope, variables))
        return add(expectation(x.value, variables), slope)
    if not isinstance(x, arith.Polynomial):
        return x
    total: Scalar = ZERO
    for monomial, coefficient in x.terms.items():
        term: Scalar = coefficient
        kept: list[tuple[tuple[str, int], int]] = []
        unknown: dict[str, int] = {}
        powers = {variable: order for variable, order in monomial if not isinstance(variable[0], arith.Form)}
        tilts: dict[tuple[str, int], Scalar] = {}
        for (form, _), order in ((v, order) for v, order in monomial if isinstance(v[0], arith.Form)):
            assert isinstance(form, arith.Form)
            known = [variables.get(variable) for variable in form.slopes]
            if not all(v is not None and v.normal for v in known):
                raise Unevaluable(needs_more_moments(" and ".join(sorted({name for name, _ in form.slopes}))))
            if form.kind == "abs":
                if order > 1 or not powers.keys().isdisjoint(form.slopes) or len(monomial) > 1 + len(powers):
                    raise arith.NotPolynomial
                term = multiply(term, absolute_mean(form, variables))
                continue
            term = multiply(term, arith.function("exp", multiply(Fraction(order), form.constant)))
            for variable, slope in form.slopes.items():
                tilts[variable] = add(tilts.get(variable, ZERO), multiply(Fraction(order), slope))
        for variable in dict.fromkeys((*powers, *tilts)):
            order = powers.get(variable, 0)
            if variable in variables:
                if not variables[variable].normal:
                    unknown[variable[0]] = unknown.get(variable[0], 0) + order
                    if unknown[variable[0]] > 2:
                        raise Unevaluable(needs_more_moments(variable[0]))
                term = multiply(term, variables[variable].moment(order, tilts.get(variable, ZERO)))
            else:
                kept.append((variable, order))
        total = add(total, multiply(term, arith.Polynomial({tuple(kept): ONE})) if kept else term)
    return total


def absolute_mean(form: arith.Form, variables: dict[tuple[str, int], Variable]) -> Scalar:
    """E|m + s z| of a standard normal z: s √(2/π) exp(−m²/2s²) + m erf(m/(s√2))."""
    variance: Scalar = ZERO
    for variable, slope in form.slopes.items():
        variance = add(variance, multiply(multiply(slope, slope), variables[variable].variance))
    if sign(variance) == 0:
        return arith.function("abs", form.constant)
    ratio = arith.divide(multiply(form.constant, form.constant), multiply(Fraction(2), variance))
    around = arith.divide(multiply(Fraction(2), variance), arith.constant_value("pi"))
    found = multiply(arith.power(around, arith.HALF), arith.function("exp", arith.negative(ratio)))
    mean = arith.plain_number(arith.power(ratio, arith.HALF))
    if mean is None:
        raise Unevaluable("a derivative of the mean of an absolute value")
    return add(found, multiply(arith.function("abs", form.constant), arith.special("erf", mean))) if mean else found


def needs_more_moments(name: str) -> str:
    return f"only the mean and covariance of {name} are known, and more of its law is needed"


def grid_expectation(
    chances: list[RandomVector], body: Callable[[dict[str, Any]], Any], join: Callable[..., Any]
) -> tuple[Any, Any]:
    """The expectation of any body on a grid and on the coarser one; `join(total, weight, value)` adds up.

    The body is evaluated far out as well, with weight 0, to see whether a denominator changes its sign there.
    """
    live = [(c, j) for c in chances for j, v in enumerate(c.variables) if sign(v.variance)]
    for c, j in live:
        if not c.variables[j].normal:
            raise Unevaluable(needs_more_moments(c.name))
    if len(live) > max(GRIDS):
        raise Unevaluable("an expectation over too many dimensions")

    def value_at(drawn_values: Sequence[Scalar]) -> Any:
        drawn: dict[str, list[Scalar]] = {c.name: [ZERO] * len(c.variables) for c in chances}
        for (c, j), value in zip(live, drawn_values, strict=True):
            drawn[c.name][j] = value
        return body({c.name: c.at(drawn[c.name]) for c in chances})

    spreads = [arith.power(c.variables[j].variance, arith.HALF) for c, j in live]
    for signs in itertools.product((ZERO, ONE, -ONE), repeat=len(live)):
        try:
            value_at([multiply(side * FAR_OUT, spread) for side, spread in zip(signs, spreads, strict=True)])
        except Overflow:
            continue
    step, reach = GRIDS[max(1, len(live))]
    choices = [_grid(spread, step, reach) for spread in spreads]
    total, mass = None, ZERO
    coarse, coarse_mass = None, ZERO
    for places in itertools.product(*(range(len(choice)) for choice in choices)):
        outcome = [choice[place] for choice, place in zip(choices, places, strict=True)]
        weight: Scalar = ONE
        for _, probability in outcome:
            weight = multiply(weight, probability)
        value = value_at([drawn for drawn, _ in outcome])
        total = join(total, weight, value)
        mass = add(mass, weight)
        if not any(place % 2 for place in places):
            coarse = join(coarse, weight, value)
            coarse_mass = add(coarse_mass, weight)
    return join(None, arith.divide(ONE, mass), total), join(None, arith.divide(ONE, coarse_mass), coarse)


def _grid(spread: Scalar, step: Fraction, reach: int) -> list[tuple[Scalar, Scalar]]:
    places = [step * k for k in range(-reach, reach + 1)]
    return [(multiply(spread, x), arith.function("exp", -x * x / 2)) for x in places]


class Sides:
    """On which side of a kink or a pole each node is; if one is on both, the grid cannot be trusted."""

    def __init__(self) -> None:
        self.sides: dict[tuple[Any, ...], Any] = {}

    def note(self, key: tuple[Any, ...], node: t.Node, value: Any) -> None:
        found = side_of(node, value)
        if found is None or self.sides.setdefault(key, found) == found:
            return
        if isinstance(node, (t.Divide, t.Power)):
            raise arith.Undefined("an expectation of a quotient by what may be zero")
        raise Unevaluable("an expectation of what has a kink")


def side_of(node: t.Node, value: Any) -> Any:
    """What must not change for `node` to be smooth: the sign of a denominator, the position of a maximum."""
    match node:
        case t.Divide():
            return sign(value)
        case t.Power(exponent=t.Number(value=exponent)) if exponent < 0 or exponent.denominator > 1:
            return None if isinstance(value, tuple) else sign(value)
        case t.Call(name="floor" | "ceil"):
            return tuple(arith.function(node.name, entry) for entry in entries(value))
        case t.Call(name="abs" | "relu" | "sign" | "norm1" | "norm_inf" | "sqrt"):
            return tuple(map(sign, entries(value)))
        case t.Call(name="max"):
            return arith.argmax(tuple(entries(value)))
        case t.Call(name="min"):
            return arith.argmax(tuple(arith.subtract(Fraction(0), entry) for entry in entries(value)))
        case t.Call(name="argmax"):
            rows = value[0] if isinstance(value[0][0], tuple) else value
            return tuple(map(arith.argmax, rows))
    return None


MOST_STEPS = 30_000


def evaluate(
    node: t.Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = arith.DIGITS
) -> Any:
    """The value of a tree at a point.

    Args:
        node: A tree from `parse`.
        sizes: Values of the names in sizes.
        values: For each name a number or nested tuples, for a map a function of these. A random name needs a value only
            outside of expectations.
        precision: Digits of decimals.

    Returns:
        A Fraction, a Decimal if the value is irrational, or nested tuples of these.

    Raises:
        Undefined: If there is no value at this point.
        Unevaluable: If the tree cannot be evaluated at any point.

    >>> mu = t.Symbol(("d",), "mu", t.Type("vector", ("d",)))
    >>> evaluate(t.Contract((), t.Transpose((1, "d"), mu), mu), {"d": 2}, {"mu": (1, 2)})
    Fraction(5, 1)
    """
    return evaluate_with_error(node, sizes, values, precision=precision)[0]


def evaluate_with_error(
    node: t.Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = arith.DIGITS
) -> tuple[Any, Decimal]:
    """`evaluate`, and the relative error of expectations on a grid; 0 if there was none."""
    with arith.digits(precision):
        try:
            here = Evaluator(sizes, {name: arith.as_exact(value) for name, value in values.items()})
            return here.value(node), max(here.errors, default=Decimal(0))
        except DecimalException as error:
            raise arith.Undefined("a number that is too large") from error
        except arith.NotPolynomial as error:
            raise Unevaluable("a random name outside of an expectation") from error


class Evaluator:
    """Evaluates at one point: sizes, values, the indices that are bound now, and values found before."""

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Any]) -> None:
        self.sizes, self.values = sizes, dict(values)
        self.bound: dict[str, int] = {}
        self.known: dict[tuple[int, tuple[int | None, ...]], Any] = {}
        self.used: dict[int, tuple[str, ...]] = {}
        self.steps = [0]
        self.errors: list[Decimal] = []
        self.sides: Sides | None = None
        self.level = 0

    def with_values(self, **values: Any) -> Evaluator:
        """An evaluator at the same point with other values for some names."""
        other = Evaluator(self.sizes, {**self.values, **values})
        other.bound, other.used, other.steps, other.level = dict(self.bound), self.used, self.steps, self.level
        other.errors, other.sides = self.errors, self.sides
        return other

    def count(self, steps: int) -> None:
        self.steps[0] += steps
        arith.spend(steps)
        if self.steps[0] > MOST_STEPS:
            raise Unevaluable("it takes too many steps to evaluate")

    def indices_in(self, node: t.Node) -> tuple[str, ...]:
        """The index names at or below `node`, on which its value may depend."""
        found = self.used.get(id(node))
        if found is None:
            own = {node.name} if isinstance(node, t.Index) else set()
            found = tuple(sorted(own.union(*map(self.indices_in, t.parts_of(node)))))
            self.used[id(node)] = found
        return found

    def value(self, node: t.Node) -> Any:
        key = (id(node), tuple(self.bound.get(name) for name in self.indices_in(node)))
        if key not in self.known:
            self.count(1 + prod(map(self.length, node.shape)) // 4)
            self.known[key] = self.found(node)
        return self.known[key]

    def length(self, size: t.Size) -> int:
        return whole_size(size, self.sizes)

    def found(self, node: t.Node) -> Any:
        match node:
            case t.Number():
                return node.value
            case t.Symbol() | t.Index() | t.Special() | t.Part() | t.Call() | t.Sum() | t.Covariance() | t.Derivative():
                return getattr(self, type(node).__name__.lower())(node)
            case t.Constant():
                return arith.constant_value(node.name)
            case t.Written():
                flat = [self.value(entry) for entry in node.entries]
                if len(node.shape) == 1:
                    return tuple(flat)
                width = self.length(node.shape[1])
                return tuple(tuple(flat[i : i + width]) for i in range(0, len(flat), width))
            case t.Add():
                return self.total(self.value(term) for term in node.terms)
            case t.Multiply():
                return arith.scale_product([self.value(factor) for factor in node.factors])
            case t.Divide():
                bottom = self.with_side_noted(node, self.value(node.bottom))
                return componentwise(lambda x: arith.divide(x, bottom), self.value(node.top))
            case t.Contract():
                return arith.contract(self.value(node.left), self.value(node.right), len(node.shape), self.count)
            case t.Outer():
                left, right = self.value(node.left), self.value(node.right)
                return tuple(tuple(multiply(a, b) for b in right) for a in left)
            case t.Hadamard():
                return componentwise(multiply, self.value(node.left), self.value(node.right))
            case t.Power(base=t.Call(name="norm" | "norm_F") as norm, exponent=t.Number(value=by)) if by in (2, 4):
                # A polynomial, so that its expectation does not need a root.
                return self.powered(self.total(multiply(x, x) for x in entries(self.value(norm.arguments[0]))), by / 2)
            case t.Power():
                return self.powered(self.with_side_noted(node, self.value(node.base)), self.value(node.exponent))
            case t.Transpose():
                return arith.transpose(self.value(node.body), len(node.body.shape), len(node.shape))
            case t.Delta():
                return Fraction(self.value(node.left) == self.value(node.right))
            case t.Expect():
                return self.expected(node.body)
        raise Unevaluable(f"{type(node).__name__} has no single value")

    def symbol(self, node: t.Symbol) -> Any:
        if node.name in self.values:
            return self.values[node.name]
        if node.type.definition is not None:
            return self.value(node.type.definition)
        if node.name in self.sizes:
            return Fraction(self.sizes[node.name])
        if node.type.kind == "index" and node.name in self.bound:
            return Fraction(self.bound[node.name])
        raise Unevaluable(f"{node.name} has no value")

    def index(self, node: t.Index) -> Fraction:
        found = self.bound[node.name] if node.name in self.bound else self.values.get(node.name)
        if found is None:
            raise Unevaluable(f"the index {node.name} has no value")
        if not 1 <= found <= self.length(node.size):
            raise arith.Undefined(f"{node.name} is out of range")
        return Fraction(found)

    def special(self, node: t.Special) -> Any:
        lengths = [self.length(size) for size in node.shape]
        if node.name == "identity":
            return tuple(tuple(Fraction(i == j) for j in range(lengths[1])) for i in range(lengths[0]))
        array: Any = ZERO if node.name == "zeros" else ONE
        for length in reversed(lengths):
            self.count(length)
            array = (array,) * length
        return array

    def total(self, terms: Iterable[Any]) -> Any:
        result = None
        for term in terms:
            result = term if result is None else componentwise(add, result, term)
        return result

    def powered(self, base: Any, exponent: Any) -> Any:
        return (
            arith.matrix_power(base, exponent, self.count) if isinstance(base, tuple) else arith.power(base, exponent)
        )

    def place(self, node: t.Node, length: int) -> int:
        found = self.value(node)
        if not isinstance(found, Fraction) or found.denominator != 1 or not 1 <= found <= length:
            raise arith.Undefined("a subscript that is out of range")
        return int(found) - 1

    def part(self, node: t.Part) -> Any:
        array = self.value(node.body)
        first = node.indices[0]
        if first is None:
            if node.indices[1] is None:
                return array
            column = self.place(node.indices[1], len(array[0]))
            return tuple(row[column] for row in array)
        row = array[self.place(first, len(array))]
        if len(node.indices) == 1:
            return row
        second = node.indices[1]
        return (row,) if second is None else row[self.place(second, len(row))]

    def call(self, node: t.Call) -> Any:
        arguments = [self.value(argument) for argument in node.arguments]
        if node.map is not None:
            known = self.values.get(node.map.name)
            if not callable(known):
                raise Unevaluable(f"{node.map.name} is a map of which nothing is known")
            return known(*arguments)
        x = arguments[0]
        self.with_side_noted(node, tuple(arguments))
        match node.name:
            case name if name in arith.ENTRYWISE:
                return componentwise(lambda entry: arith.function(node.name, entry), x)
            case "softmax":
                return tuple(map(arith.softmax, x)) if isinstance(x[0], tuple) else arith.softmax(x)
            case "max" | "min":
                return arith.extreme(list(entries(tuple(arguments))), node.name)
            case "argmax":
                return tuple(map(arith.argmax, x)) if isinstance(x[0], tuple) else arith.argmax(x)
            case "norm" | "norm_F":
                return arith.power(self.total(multiply(entry, entry) for entry in entries(x)), arith.HALF)
            case "norm1":
                return self.total(arith.function("abs", entry) for entry in entries(x))
            case "norm_inf":
                return arith.extreme([arith.function("abs", entry) for entry in entries(x)], "max")
            case "trace":
                return self.total(x[i][i] for i in range(len(x)))
            case "diag":
                if isinstance(x[0], tuple):
                    return tuple(x[i][i] for i in range(len(x)))
                return tuple(tuple(x[i] if i == j else ZERO for j in range(len(x))) for i in range(len(x)))
            case "sum":
                return self.total(entries(x))
            case "det":
                return arith.determinant(x, self.count)
        raise Unevaluable(f"{node.name} cannot be evaluated")

    def with_side_noted(self, node: t.Node, value: Any) -> Any:
        """`value`, the argument of a node with a kink or a pole; on a grid its side is recorded."""
        if self.sides is not None:
            self.sides.note((id(node), *(self.bound.get(name) for name in self.indices_in(node))), node, value)
        return value

    def sum(self, node: t.Sum) -> Any:
        # A sum to 0 or below is empty.
        ranges = [range(1, whole_range(index.size, self.sizes) + 1) for index in node.indices]
        self.count(prod(map(len, ranges)))
        before = dict(self.bound)
        result = None
        try:
            for places in itertools.product(*ranges):
                self.bound.update(zip((index.name for index in node.indices), places, strict=True))
                if all(arith.holds(sign_, self.value(a), self.value(b)) for sign_, a, b in node.conditions):
                    term = self.value(node.body)
                    join = multiply if node.product else add
                    result = term if result is None else componentwise(join, result, term)
        finally:
            self.bound = before
        if result is not None:
            return result
        array: Any = ONE if node.product else ZERO
        for size in reversed(node.shape):
            array = (array,) * self.length(size)
        return array

    def chances(self, *bodies: t.Node) -> list[RandomVector]:
        found = []
        for name, symbol in t.symbols_of(*bodies).items():
            law = symbol.type.law
            if law is not None and symbol.type.definition is None:
                mean, covariance = self.value(law.mean), self.value(law.covariance)
                found.append(random_vector(name, mean, covariance, normal=law.normal))
        return found

    def expected(self, body: t.Node) -> Any:
        return self.averaged([body], lambda inside: inside.value(body))

    def averaged(self, bodies: list[t.Node], of: Callable[[Evaluator], Any]) -> Any:
        """The expectation of `of` over the random names in `bodies`."""
        chances = self.chances(*bodies)
        if not chances:
            return of(self)
        variables = {(c.name, j): variable for c in chances for j, variable in enumerate(c.variables)}
        try:
            inside = self.with_values(**{c.name: c.symbolic() for c in chances})
            return componentwise(lambda x: expectation(x, variables), of(inside))
        except arith.NotPolynomial:
            outer, self.sides = self.sides, self.sides or Sides()
            try:
                # The tiny weights far out must not raise the precision.
                with arith.extent():
                    fine, coarse = grid_expectation(chances, lambda drawn: of(self.with_values(**drawn)), self.weighted)
            finally:
                self.sides = outer
            self.errors.extend(map(arith.relative_difference, entries(fine), entries(coarse)))
            return fine

    def weighted(self, total: Any, weight: Scalar, value: Any) -> Any:
        term = componentwise(lambda x: multiply(weight, x), value)
        return term if total is None else componentwise(add, total, term)

    def covariance(self, node: t.Covariance) -> Any:
        def times(a: Any, b: Any) -> Any:
            # Every entry of one times every entry of the other: a number, a vector or a matrix.
            return componentwise(lambda x: componentwise(lambda y: multiply(x, y), b), a)

        def both(inside: Evaluator) -> Any:
            return times(inside.value(node.left), inside.value(node.right))

        means = times(self.expected(node.left), self.expected(node.right))
        return componentwise(arith.subtract, self.averaged([node.left, node.right], both), means)

    def derivative(self, node: t.Derivative) -> Any:
        part = node.target
        target, places = (part.body, part.indices) if isinstance(part, t.Part) else (part, ())
        if not isinstance(target, t.Symbol):
            raise Unevaluable("a derivative by something that is not a name")
        here = self.value(target)
        level = self.level + 1

        def slope(x: Scalar) -> Scalar:
            return x.slope if isinstance(x, arith.Dual) and x.level == level else ZERO

        def along(path: tuple[int, ...]) -> Any:
            inside = self.with_values(**{target.name: arith.seed_dual(here, path, level)})
            inside.level = level
            return componentwise(slope, inside.value(node.body))

        def every(array: Any, path: tuple[int, ...]) -> Any:
            if not isinstance(array, tuple):
                return along(path)
            return tuple(every(part, (*path, i)) for i, part in enumerate(array))

        path: tuple[int, ...] = ()
        inner = here
        for place in places:
            if place is None:
                raise Unevaluable("a derivative by a whole row")
            path = (*path, self.place(place, len(inner)))
            inner = inner[path[-1]]
        return arith.swap_axes(every(inner, path), len(node.body.shape), len(node.shape) - len(node.body.shape))
