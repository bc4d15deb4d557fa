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
from math import prod
from typing import Any

from qkv.maths.sizes import whole_size
from qkv.maths.tree import (
    Add,
    Call,
    Constant,
    Contract,
    Covariance,
    Delta,
    Derivative,
    Divide,
    Expect,
    Hadamard,
    Index,
    Multiply,
    Node,
    Number,
    Outer,
    Part,
    Power,
    Size,
    Special,
    Sum,
    Symbol,
    Transpose,
    Written,
    parts_of,
    symbols_of,
)
from qkv.maths.values.arithmetic import (
    DIGITS,
    HALF,
    ONE,
    ZERO,
    Dual,
    NotPolynomial,
    Polynomial,
    Scalar,
    Undefined,
    Unevaluable,
    add,
    argmax,
    as_exact,
    componentwise,
    constant_value,
    contract,
    determinant,
    digits,
    divide,
    entries,
    extent,
    extreme,
    function,
    holds,
    matrix_power,
    multiply,
    power,
    relative_difference,
    scale_product,
    seed_dual,
    sign,
    softmax,
    spend,
    subtract,
    swap_axes,
    transpose,
)

# The trapezoidal rule with a normal density has an error of exp(-2π²/h²), nearly full precision for smooth bodies.
# Every second point makes a coarser grid; its difference from the fine grid estimates the error.
GRIDS = {1: (Fraction(1, 4), 56), 2: (Fraction(1, 2), 16)}
FAR_OUT = Fraction(1000)


@dataclass(frozen=True)
class Variable:
    """A variable of mean 0, uncorrelated with others: its variance, and whether it is normal."""

    variance: Scalar
    normal: bool

    def moment(self, order: int) -> Scalar:
        if order % 2:
            return ZERO
        result = power(self.variance, Fraction(order // 2))
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
            mirror = subtract(covariance[i][j], covariance[j][i])
            if isinstance(mirror, Fraction) and mirror:
                raise Undefined("a covariance that is not symmetric")
            rest = covariance[i][j]
            for k in nonzero_places(lower[i], j):
                rest = subtract(rest, multiply(multiply(lower[i][k], middle[k]), lower[j][k]))
            if sign(middle[j]) == 0:
                if sign(rest) != 0:
                    raise Undefined("no covariance")
                continue
            lower[i][j] = divide(rest, middle[j])
        rest = covariance[i][i]
        for k in nonzero_places(lower[i], i):
            rest = subtract(rest, multiply(multiply(lower[i][k], lower[i][k]), middle[k]))
        if sign(rest) < 0:
            raise Undefined("a negative variance")
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
            Polynomial({(((self.name, j), 1),): ONE}) if _varies(variable.variance) else ZERO
            for j, variable in enumerate(self.variables)
        ]
        return self.at(variables)


def _varies(variance: Scalar) -> bool:
    """Whether a variance is nonzero, or is differentiated."""
    return isinstance(variance, Dual) or bool(sign(variance))


def random_vector(name: str, mean: Any, covariance: Any, *, normal: bool) -> RandomVector:
    """The random name with this mean and covariance."""
    scalar = not isinstance(mean, tuple)
    centre = (mean,) if scalar else mean
    lower, middle = ldl(((covariance,),) if scalar else covariance)
    return RandomVector(name, centre, lower, tuple(Variable(variance, normal) for variance in middle), scalar)


def expectation(x: Scalar, variables: dict[tuple[str, int], Variable]) -> Scalar:
    """The expectation of a polynomial in the variables, term by term."""
    if isinstance(x, Dual):
        # The moments vary too if a law is differentiated by its parameters: then both parts are dual.
        slope = multiply(Dual(x.level, ZERO, ONE), expectation(x.slope, variables))
        return add(expectation(x.value, variables), slope)
    if not isinstance(x, Polynomial):
        return x
    total: Scalar = ZERO
    for monomial, coefficient in x.terms.items():
        term: Scalar = coefficient
        kept: list[tuple[tuple[str, int], int]] = []
        unknown: dict[str, int] = {}
        for variable, order in monomial:
            if variable in variables:
                if not variables[variable].normal:
                    unknown[variable[0]] = unknown.get(variable[0], 0) + order
                    if unknown[variable[0]] > 2:
                        raise Unevaluable(needs_more_moments(variable[0]))
                term = multiply(term, variables[variable].moment(order))
            else:
                kept.append((variable, order))
        total = add(total, multiply(term, Polynomial({tuple(kept): ONE})) if kept else term)
    return total


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

    spreads = [power(c.variables[j].variance, HALF) for c, j in live]
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
    return join(None, divide(ONE, mass), total), join(None, divide(ONE, coarse_mass), coarse)


def _grid(spread: Scalar, step: Fraction, reach: int) -> list[tuple[Scalar, Scalar]]:
    places = [step * k for k in range(-reach, reach + 1)]
    return [(multiply(spread, x), function("exp", -x * x / 2)) for x in places]


class Sides:
    """On which side of a kink or a pole each node is; if one is on both, the grid cannot be trusted."""

    def __init__(self) -> None:
        self.sides: dict[tuple[Any, ...], Any] = {}

    def note(self, key: tuple[Any, ...], node: Node, value: Any) -> None:
        found = side_of(node, value)
        if found is None or self.sides.setdefault(key, found) == found:
            return
        if isinstance(node, (Divide, Power)):
            raise Undefined("an expectation of a quotient by what may be zero")
        raise Unevaluable("an expectation of what has a kink")


def side_of(node: Node, value: Any) -> Any:
    """What must not change for `node` to be smooth: the sign of a denominator, the position of a maximum."""
    match node:
        case Divide():
            return sign(value)
        case Power(exponent=Number(value=exponent)) if exponent < 0 or exponent.denominator > 1:
            return None if isinstance(value, tuple) else sign(value)
        case Call(name="abs" | "relu" | "sign" | "norm1" | "norm_inf" | "sqrt"):
            return tuple(map(sign, entries(value)))
        case Call(name="max"):
            return argmax(tuple(entries(value)))
        case Call(name="min"):
            return argmax(tuple(subtract(Fraction(0), entry) for entry in entries(value)))
        case Call(name="argmax"):
            rows = value[0] if isinstance(value[0][0], tuple) else value
            return tuple(map(argmax, rows))
    return None


MOST_STEPS = 30_000


def evaluate(node: Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = DIGITS) -> Any:
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

    >>> from qkv.maths.tree import Type
    >>> mu = Symbol(("d",), "mu", Type("vector", ("d",)))
    >>> evaluate(Contract((), Transpose((1, "d"), mu), mu), {"d": 2}, {"mu": (1, 2)})
    Fraction(5, 1)
    """
    return evaluate_with_error(node, sizes, values, precision=precision)[0]


def evaluate_with_error(
    node: Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = DIGITS
) -> tuple[Any, Decimal]:
    """`evaluate`, and the relative error of expectations on a grid; 0 if there was none."""
    with digits(precision):
        try:
            here = Evaluator(sizes, {name: as_exact(value) for name, value in values.items()})
            return here.value(node), max(here.errors, default=Decimal(0))
        except DecimalException as error:
            raise Undefined("a number that is too large") from error
        except NotPolynomial as error:
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
        spend(steps)
        if self.steps[0] > MOST_STEPS:
            raise Unevaluable("it takes too many steps to evaluate")

    def indices_in(self, node: Node) -> tuple[str, ...]:
        """The index names at or below `node`, on which its value may depend."""
        found = self.used.get(id(node))
        if found is None:
            own = {node.name} if isinstance(node, Index) else set()
            found = tuple(sorted(own.union(*map(self.indices_in, parts_of(node)))))
            self.used[id(node)] = found
        return found

    def value(self, node: Node) -> Any:
        key = (id(node), tuple(self.bound.get(name) for name in self.indices_in(node)))
        if key not in self.known:
            self.count(1 + prod(map(self.length, node.shape)) // 4)
            self.known[key] = self.found(node)
        return self.known[key]

    def length(self, size: Size) -> int:
        return whole_size(size, self.sizes)

    def found(self, node: Node) -> Any:
        match node:
            case Number():
                return node.value
            case Symbol():
                return self.symbol(node)
            case Index():
                return self.index(node)
            case Constant():
                return constant_value(node.name)
            case Special():
                return self.special(node)
            case Written():
                flat = [self.value(entry) for entry in node.entries]
                if len(node.shape) == 1:
                    return tuple(flat)
                width = self.length(node.shape[1])
                return tuple(tuple(flat[i : i + width]) for i in range(0, len(flat), width))
            case Add():
                return self.total(self.value(term) for term in node.terms)
            case Multiply():
                return scale_product([self.value(factor) for factor in node.factors])
            case Divide():
                bottom = self.with_side_noted(node, self.value(node.bottom))
                return componentwise(lambda x: divide(x, bottom), self.value(node.top))
            case Contract():
                return contract(self.value(node.left), self.value(node.right), len(node.shape), self.count)
            case Outer():
                left, right = self.value(node.left), self.value(node.right)
                return tuple(tuple(multiply(a, b) for b in right) for a in left)
            case Hadamard():
                return componentwise(multiply, self.value(node.left), self.value(node.right))
            case Power(base=Call(name="norm" | "norm_F") as norm, exponent=Number(value=power)) if power in (2, 4):
                # A polynomial, so that its expectation does not need a root.
                squares = self.total(multiply(x, x) for x in entries(self.value(norm.arguments[0])))
                return self.powered(squares, power / 2)
            case Power():
                return self.powered(self.with_side_noted(node, self.value(node.base)), self.value(node.exponent))
            case Transpose():
                return transpose(self.value(node.body), len(node.body.shape), len(node.shape))
            case Part():
                return self.part(node)
            case Call():
                return self.call(node)
            case Sum():
                return self.summed(node)
            case Delta():
                return Fraction(self.value(node.left) == self.value(node.right))
            case Expect():
                return self.expected(node.body)
            case Covariance():
                return self.covariance(node)
            case Derivative():
                return self.derivative(node)
        raise Unevaluable(f"{type(node).__name__} has no single value")

    def symbol(self, node: Symbol) -> Any:
        if node.name in self.values:
            return self.values[node.name]
        if node.type.definition is not None:
            return self.value(node.type.definition)
        if node.name in self.sizes:
            return Fraction(self.sizes[node.name])
        if node.type.kind == "index" and node.name in self.bound:
            return Fraction(self.bound[node.name])
        raise Unevaluable(f"{node.name} has no value")

    def index(self, node: Index) -> Fraction:
        found = self.bound[node.name] if node.name in self.bound else self.values.get(node.name)
        if found is None:
            raise Unevaluable(f"the index {node.name} has no value")
        if not 1 <= found <= self.length(node.size):
            raise Undefined(f"{node.name} is out of range")
        return Fraction(found)

    def special(self, node: Special) -> Any:
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
        return matrix_power(base, exponent, self.count) if isinstance(base, tuple) else power(base, exponent)

    def place(self, node: Node, length: int) -> int:
        found = self.value(node)
        if not isinstance(found, Fraction) or found.denominator != 1 or not 1 <= found <= length:
            raise Undefined("a subscript that is out of range")
        return int(found) - 1

    def part(self, node: Part) -> Any:
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

    def call(self, node: Call) -> Any:
        arguments = [self.value(argument) for argument in node.arguments]
        if node.map is not None:
            known = self.values.get(node.map.name)
            if not callable(known):
                raise Unevaluable(f"{node.map.name} is a map of which nothing is known")
            return known(*arguments)
        x = arguments[0]
        self.with_side_noted(node, tuple(arguments))
        match node.name:
            case "exp" | "log" | "relu" | "abs" | "sign" | "sqrt":
                return componentwise(lambda entry: function(node.name, entry), x)
            case "softmax":
                return tuple(map(softmax, x)) if isinstance(x[0], tuple) else softmax(x)
            case "max" | "min":
                return extreme(list(entries(tuple(arguments))), node.name)
            case "argmax":
                return tuple(map(argmax, x)) if isinstance(x[0], tuple) else argmax(x)
            case "norm" | "norm_F":
                return power(self.total(multiply(entry, entry) for entry in entries(x)), HALF)
            case "norm1":
                return self.total(function("abs", entry) for entry in entries(x))
            case "norm_inf":
                return extreme([function("abs", entry) for entry in entries(x)], "max")
            case "trace":
                return self.total(x[i][i] for i in range(len(x)))
            case "diag":
                if isinstance(x[0], tuple):
                    return tuple(x[i][i] for i in range(len(x)))
                return tuple(tuple(x[i] if i == j else ZERO for j in range(len(x))) for i in range(len(x)))
            case "sum":
                return self.total(entries(x))
            case "det":
                return determinant(x, self.count)
        raise Unevaluable(f"{node.name} cannot be evaluated")

    def with_side_noted(self, node: Node, value: Any) -> Any:
        """`value`, the argument of a node with a kink or a pole; on a grid its side is recorded."""
        if self.sides is not None:
            self.sides.note((id(node), *(self.bound.get(name) for name in self.indices_in(node))), node, value)
        return value

    def summed(self, node: Sum) -> Any:
        ranges = [range(1, self.length(index.size) + 1) for index in node.indices]
        self.count(prod(map(len, ranges)))
        before = dict(self.bound)
        result = None
        try:
            for places in itertools.product(*ranges):
                self.bound.update(zip((index.name for index in node.indices), places, strict=True))
                if all(holds(sign_, self.value(a), self.value(b)) for sign_, a, b in node.conditions):
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

    def chances(self, *bodies: Node) -> list[RandomVector]:
        found = []
        for name, symbol in symbols_of(*bodies).items():
            law = symbol.type.law
            if law is not None and symbol.type.definition is None:
                mean, covariance = self.value(law.mean), self.value(law.covariance)
                found.append(random_vector(name, mean, covariance, normal=law.normal))
        return found

    def expected(self, body: Node) -> Any:
        return self.averaged([body], lambda inside: inside.value(body))

    def averaged(self, bodies: list[Node], of: Callable[[Evaluator], Any]) -> Any:
        """The expectation of `of` over the random names in `bodies`."""
        chances = self.chances(*bodies)
        if not chances:
            return of(self)
        variables = {(c.name, j): variable for c in chances for j, variable in enumerate(c.variables)}
        try:
            inside = self.with_values(**{c.name: c.symbolic() for c in chances})
            return componentwise(lambda x: expectation(x, variables), of(inside))
        except NotPolynomial:
            outer, self.sides = self.sides, self.sides or Sides()
            try:
                # The tiny weights far out must not raise the precision.
                with extent():
                    fine, coarse = grid_expectation(chances, lambda drawn: of(self.with_values(**drawn)), self.weighted)
            finally:
                self.sides = outer
            self.errors.extend(map(relative_difference, entries(fine), entries(coarse)))
            return fine

    def weighted(self, total: Any, weight: Scalar, value: Any) -> Any:
        term = componentwise(lambda x: multiply(weight, x), value)
        return term if total is None else componentwise(add, total, term)

    def covariance(self, node: Covariance) -> Any:
        def times(a: Any, b: Any) -> Any:
            # Every entry of one times every entry of the other: a number, a vector or a matrix.
            return componentwise(lambda x: componentwise(lambda y: multiply(x, y), b), a)

        def both(inside: Evaluator) -> Any:
            return times(inside.value(node.left), inside.value(node.right))

        means = times(self.expected(node.left), self.expected(node.right))
        return componentwise(subtract, self.averaged([node.left, node.right], both), means)

    def derivative(self, node: Derivative) -> Any:
        target, places = (node.target.body, node.target.indices) if isinstance(node.target, Part) else (node.target, ())
        if not isinstance(target, Symbol):
            raise Unevaluable("a derivative by something that is not a name")
        here = self.value(target)
        level = self.level + 1

        def slope(x: Scalar) -> Scalar:
            return x.slope if isinstance(x, Dual) and x.level == level else ZERO

        def along(path: tuple[int, ...]) -> Any:
            inside = self.with_values(**{target.name: seed_dual(here, path, level)})
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
        return swap_axes(every(inner, path), len(node.body.shape), len(node.shape) - len(node.body.shape))
