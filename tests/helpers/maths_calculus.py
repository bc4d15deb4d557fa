"""Random trees with expectations, covariances, derivatives, maps, products over an index and determinants."""

from __future__ import annotations

from collections.abc import Callable

from qkv.maths.tree import (
    Add,
    Call,
    Covariance,
    Derivative,
    Expect,
    Index,
    Multiply,
    Node,
    Part,
    Shape,
    Size,
    Sum,
    Transpose,
)
from tests.helpers.maths_trees import AXES, MAPS, NAMED, RANDOM, VECTORS, Trees, whole


class Calculus(Trees):
    """Trees in which every other node is of these kinds; random names occur in expectations only."""

    drawn = False

    def leaf(self, shape: Shape, bound: tuple[Index, ...] = ()) -> Node:
        found = [symbol for symbol in RANDOM.values() if symbol.shape == shape]
        if not shape:
            found += [Part((), symbol, (whole(k),)) for symbol in RANDOM.values() for k in (1, 2) if symbol.shape]
            found += [Part((), RANDOM["U"], (index,)) for index in bound if index.size == "n"]
        if self.drawn and found and self.chance.random() < 0.7:
            return self.chance.choice(found)
        return super().leaf(shape, bound)

    def tree(self, shape: Shape, depth: int, bound: tuple[Index, ...] = ()) -> Node:
        pick = self.chance.choice

        def sub(*inner: Size) -> Node:
            return self.tree(inner, depth - 1, bound)

        ways: list[Callable[[], Node]] = []
        if not self.drawn:
            ways.append(lambda: self.averaged(lambda: Expect(shape, sub(*shape))))
        if not shape:
            axis = pick(AXES)
            ways += [
                lambda: self.slope(depth, bound),
                lambda: Call((), "sim", (sub("n"), sub()), MAPS["sim"]),
                lambda: self.product(depth, bound),
                lambda: Call((), "det", (sub(axis, axis),)),
            ]
            if not self.drawn:
                ways += [lambda: self.averaged(lambda: Covariance((), sub(), sub()))] * 2
        if shape == ("d",):
            ways.append(lambda: Call(shape, "phi", (sub("n"),), MAPS["phi"]))
        if len(shape) == 2 and not self.drawn:
            ways.append(lambda: self.averaged(lambda: Covariance(shape, sub(shape[0]), sub(shape[1]))))
        if depth > 0 and ways and self.chance.random() < 0.5:
            return pick(ways)()
        return super().tree(shape, depth, bound)

    def _step(self, node: Node) -> Node:
        shape = node.shape
        match node:
            case Expect(body=Add(terms=terms)):
                return Add(shape, tuple(Expect(shape, term) for term in terms))
            case Covariance(left=left, right=right) if not shape:
                apart = Multiply((), (whole(-1), Expect((), right), Expect((), left)))
                return Add((), (Expect((), Multiply((), (left, right))), apart))
            case Covariance(left=left, right=right):
                return Transpose(shape, Covariance(shape[::-1], right, left))
            case Derivative(body=Add(terms=terms), target=target):
                return Add((), tuple(Derivative((), term, target) for term in terms))
            case Derivative(body=Multiply(factors=(a, b)), target=target):
                parts = ((Derivative((), a, target), b), (a, Derivative((), b, target)))
                return Add((), tuple(Multiply((), part) for part in parts))
            case Call(name="det", arguments=(body,)):
                return Call((), "det", (Transpose(body.shape, body),))
            case Sum(product=True, indices=indices, body=Multiply(factors=factors)):
                return Multiply((), tuple(Sum((), indices, factor, product=True) for factor in factors))
            case Sum(product=True):
                return node
        return super()._step(node)

    def averaged(self, make: Callable[[], Node]) -> Node:
        self.drawn = True
        try:
            return make()
        finally:
            self.drawn = False

    def slope(self, depth: int, bound: tuple[Index, ...]) -> Node:
        """By a scalar, or by a component; where a law mentions it, by a parameter of that law."""
        targets: list[Node] = [NAMED[name] for name in "xyp"]
        targets += [Part((), VECTORS[size][0], (whole(k),)) for size in ("n", 2) for k in (1, 2)]
        targets += [Part((), VECTORS[index.size][0], (index,)) for index in bound]
        return Derivative((), self.tree((), depth - 1, bound), self.chance.choice(targets))

    def product(self, depth: int, bound: tuple[Index, ...]) -> Node:
        index = self.index(self.chance.choice(AXES))
        return Sum((), (index,), self.tree((), depth - 1, (*bound, index)), product=True)
