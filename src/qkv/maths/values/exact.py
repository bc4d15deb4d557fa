"""What a typed tree comes to where sizes and names have values: exactly, or to sixty digits.

This walks the tree itself and shares nothing with the normal forms, so that each can be held against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, DecimalException
from fractions import Fraction
from math import prod
from typing import Any

from qkv.maths.extents import whole
from qkv.maths.substitution import beneath, symbols_of
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
)
from qkv.maths.values.arithmetic import (
    DIGITS,
    HALF,
    ONE,
    ZERO,
    Dual,
    NotPolynomial,
    Scalar,
    Undefined,
    Unevaluable,
    add,
    digits,
    divide,
    extent,
    function,
    multiply,
    power,
    spend,
    subtract,
)
from qkv.maths.values.arrays import componentwise, contracted, determinant, entries, multiplied, raised, transposed
from qkv.maths.values.chance import Chance, chance, enumerated, expectation
from qkv.maths.values.elementary import apart, argmax, constant, exact, extreme, holds, seeded, softmax, under
from qkv.maths.values.turning import Turns

STEPS = 30_000


def evaluate(node: Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = DIGITS) -> Any:
    """`node` at a point: a Fraction, or a Decimal where it is irrational, or nested tuples of those.

    `values` gives a name a number, nested tuples, or for a map a function of such; a random name needs one only outside
    of expectations. Undefined is raised where there is no value at this point, Unevaluable where no way leads to one.

    >>> from qkv.maths.tree import Type
    >>> mu = Symbol(("d",), "mu", Type("vector", ("d",)))
    >>> evaluate(Contract((), Transpose((1, "d"), mu), mu), {"d": 2}, {"mu": (1, 2)})
    Fraction(5, 1)
    """
    return evaluate_with_error(node, sizes, values, precision=precision)[0]


def evaluate_with_error(
    node: Node, sizes: Mapping[str, int], values: Mapping[str, Any], *, precision: int = DIGITS
) -> tuple[Any, Decimal]:
    """The same, and how far an expectation on a grid may be off, relatively; 0 where there was none."""
    with digits(precision):
        try:
            here = Evaluator(sizes, {name: exact(value) for name, value in values.items()})
            return here.value(node), max(here.errors, default=Decimal(0))
        except DecimalException as error:
            raise Undefined("a number that is too large") from error
        except NotPolynomial as error:
            raise Unevaluable("a random name outside of an expectation") from error


class Evaluator:
    """One point: sizes, values, the indices that are bound at the moment, and what has been found already."""

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Any]) -> None:
        self.sizes, self.values = sizes, dict(values)
        self.bound: dict[str, int] = {}
        self.known: dict[tuple[int, tuple[int | None, ...]], Any] = {}
        self.used: dict[int, tuple[str, ...]] = {}
        self.steps = [0]
        self.errors: list[Decimal] = []
        self.turns: Turns | None = None
        self.level = 0

    def beside(self, **values: Any) -> Evaluator:
        """The same point with other values for some names."""
        other = Evaluator(self.sizes, {**self.values, **values})
        other.bound, other.used, other.steps, other.level = dict(self.bound), self.used, self.steps, self.level
        other.errors, other.turns = self.errors, self.turns
        return other

    def count(self, steps: int) -> None:
        self.steps[0] += steps
        spend(steps)
        if self.steps[0] > STEPS:
            raise Unevaluable("it takes too many steps to evaluate")

    def indices_in(self, node: Node) -> tuple[str, ...]:
        """The index names at or below `node`: what its value may hang on."""
        found = self.used.get(id(node))
        if found is None:
            mine = {node.name} if isinstance(node, Index) else set()
            found = tuple(sorted(mine.union(*map(self.indices_in, beneath(node)))))
            self.used[id(node)] = found
        return found

    def value(self, node: Node) -> Any:
        key = (id(node), tuple(self.bound.get(name) for name in self.indices_in(node)))
        if key not in self.known:
            self.count(1 + prod(map(self.length, node.shape)) // 4)
            self.known[key] = self.found(node)
        return self.known[key]

    def length(self, size: Size) -> int:
        return whole(size, self.sizes)

    def found(self, node: Node) -> Any:
        match node:
            case Number():
                return node.value
            case Symbol():
                return self.symbol(node)
            case Index():
                return self.index(node)
            case Constant():
                return constant(node.name)
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
                return multiplied([self.value(factor) for factor in node.factors])
            case Divide():
                bottom = self.watched(node, self.value(node.bottom))
                return componentwise(lambda x: divide(x, bottom), self.value(node.top))
            case Contract():
                return contracted(self.value(node.left), self.value(node.right), len(node.shape), self.count)
            case Outer():
                left, right = self.value(node.left), self.value(node.right)
                return tuple(tuple(multiply(a, b) for b in right) for a in left)
            case Hadamard():
                return componentwise(multiply, self.value(node.left), self.value(node.right))
            case Power(base=Call(name="norm" | "norm_F") as norm, exponent=Number(value=power)) if power in (2, 4):
                # A polynomial, so that its expectation needs no root.
                squares = self.total(multiply(x, x) for x in entries(self.value(norm.arguments[0])))
                return self.powered(squares, power / 2)
            case Power():
                return self.powered(self.watched(node, self.value(node.base)), self.value(node.exponent))
            case Transpose():
                return transposed(self.value(node.body), len(node.body.shape), len(node.shape))
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
        return raised(base, exponent, self.count) if isinstance(base, tuple) else power(base, exponent)

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
        self.watched(node, tuple(arguments))
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

    def watched(self, node: Node, value: Any) -> Any:
        """`value`, on which node turns over; on a grid it is noted on which side of a turn it is."""
        if self.turns is not None:
            self.turns.note((id(node), *(self.bound.get(name) for name in self.indices_in(node))), node, value)
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

    def chances(self, *bodies: Node) -> list[Chance]:
        found = []
        for name, symbol in symbols_of(*bodies).items():
            law = symbol.type.law
            if law is not None and symbol.type.definition is None:
                mean, covariance = self.value(law.mean), self.value(law.covariance)
                found.append(chance(name, mean, covariance, normal=law.normal))
        return found

    def expected(self, body: Node) -> Any:
        return self.averaged([body], lambda inside: inside.value(body))

    def averaged(self, bodies: list[Node], of: Callable[[Evaluator], Any]) -> Any:
        """The mean of what `of` gives when the random names in `bodies` are drawn."""
        chances = self.chances(*bodies)
        if not chances:
            return of(self)
        variables = {(c.name, j): variable for c in chances for j, variable in enumerate(c.variables)}
        try:
            inside = self.beside(**{c.name: c.symbolic() for c in chances})
            return componentwise(lambda x: expectation(x, variables), of(inside))
        except NotPolynomial:
            outer, self.turns = self.turns, self.turns or Turns()
            try:
                # How small the weights far out are says nothing of the digits that the mean needs.
                with extent():
                    fine, coarse = enumerated(chances, lambda drawn: of(self.beside(**drawn)), self.weighted)
            finally:
                self.turns = outer
            self.errors.extend(map(apart, entries(fine), entries(coarse)))
            return fine

    def weighted(self, total: Any, weight: Scalar, value: Any) -> Any:
        term = componentwise(lambda x: multiply(weight, x), value)
        return term if total is None else componentwise(add, total, term)

    def covariance(self, node: Covariance) -> Any:
        def times(a: Any, b: Any) -> Any:
            # Every entry of one by every entry of the other: a number, a vector or a matrix, as the axes of both say.
            return componentwise(lambda x: componentwise(lambda y: multiply(x, y), b), a)

        def both(inside: Evaluator) -> Any:
            return times(inside.value(node.left), inside.value(node.right))

        means = times(self.expected(node.left), self.expected(node.right))
        return componentwise(subtract, self.averaged([node.left, node.right], both), means)

    def derivative(self, node: Derivative) -> Any:
        target, places = (node.target.body, node.target.indices) if isinstance(node.target, Part) else (node.target, ())
        if not isinstance(target, Symbol):
            raise Unevaluable("a derivative by what is no name")
        here = self.value(target)
        level = self.level + 1

        def slope(x: Scalar) -> Scalar:
            return x.slope if isinstance(x, Dual) and x.level == level else ZERO

        def along(path: tuple[int, ...]) -> Any:
            inside = self.beside(**{target.name: seeded(here, path, level)})
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
        return under(every(inner, path), len(node.body.shape), len(node.shape) - len(node.body.shape))
