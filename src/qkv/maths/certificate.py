"""Proofs: normal forms find the steps of a certificate, and `replay` checks them before anything is called proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product

from qkv.maths import tree as t
from qkv.maths.algebra import normal as forms
from qkv.maths.algebra.heads import arguments
from qkv.maths.algebra.indices import all_places, entry, scope_of
from qkv.maths.algebra.monomials import Factor, Frozen, Ix, Monomial, Poly, budget, outputs, unbind
from qkv.maths.algebra.symmetry import symmetric
from qkv.maths.replay import Refused, replay
from qkv.maths.sizes import size_of
from qkv.maths.tree import Certificate, Step, parts

__all__ = ["Certificate", "prove"]

ONE, MINUS, HALF = (t.Number((), Fraction(value)) for value in (1, -1, Fraction(1, 2)))
UNFOLDED = frozenset({"softmax", "norm", "norm_F", "norm1", "relu", "max", "min"})
# The rules that need the normal form of a node, by its kind.
RULES = {"exp": "definition", "log": "logarithm", "sqrt": "power", "abs": "power"}
FAILURES = (forms.TooLarge, forms.NotNormal, RecursionError)


def prove(gold: t.Node, answer: t.Node, work: int | None = None) -> Certificate | None:
    """A certificate that two trees of one shape are equal and defined in the same places; None if none is found.

    >>> x = t.Symbol(("d",), "x", t.Type("vector", ("d",)))
    >>> dot = t.Contract((), t.Transpose((1, "d"), x), x)
    >>> prove(dot, t.Power((), t.Call((), "norm", (x,)), t.Number((), Fraction(2))))
    Certificate(2 steps)
    """
    multiplied = list(multiplications(gold, answer))
    try:
        if not forms.same(gold, answer, work=work or forms.WORK) and not multiplied:
            return None
    except FAILURES:
        if not multiplied:
            return None
    laws = (symbol.type for symbol in t.symbols_of(gold, answer).values())
    plain = Certificate(gold, answer, (), symmetric(laws).known)
    for made in ((), None, *multiplied):
        try:
            steps, tree = ((*made,), answer) if made is not None else Prover(gold, answer).steps()
            for step in made or ():
                tree = t.Contract(*multiplied_shape(step, tree))
            certificate = replace(plain, steps=(*steps, Step("both", "equal", (), tree)))
            replay(certificate)
            return certificate
        except (Refused, *FAILURES):
            continue
    return None


def multiplied_shape(step: Step, tree: t.Node) -> tuple[t.Shape, t.Node, t.Node]:
    """The shape and the factors of a side after both were multiplied."""
    first, second = (step.result, tree) if step.place == (0,) else (tree, step.result)
    return (first.shape[0], second.shape[1]), first, second


def multiplications(gold: t.Node, answer: t.Node) -> Iterator[tuple[Step, ...]]:
    """Steps that multiply both sides by matrices whose inverses are written in them."""
    found: list[t.Node] = []
    for node in t.walk(gold, answer):
        if isinstance(node, t.Power) and len(node.shape) == 2 and node.exponent == MINUS and node.base not in found:
            found.append(node.base)
    shape = gold.shape
    left = [Step("both", "multiply", (0,), base) for base in found if shape and base.shape[1] == shape[0]]
    right = [Step("both", "multiply", (1,), base) for base in found if shape and base.shape[0] == shape[-1]]
    for step in (*left[:3], *right[:3]):
        yield (step,)
    yield from product(left[:2], right[:2])


class Prover:
    """The steps that rewrite two trees until only their arithmetic is left to compare."""

    def __init__(self, gold: t.Node, answer: t.Node) -> None:
        self.trees = {"gold": gold, "answer": answer}
        self.scope = scope_of(gold, answer)
        self.symbols = t.symbols_of(gold, answer)
        self.found: list[Step] = []
        self.letters = 0

    def steps(self) -> tuple[tuple[Step, ...], t.Node]:
        """The steps for both sides, and the answer after them."""
        self.rewritten("gold", self.trees["gold"], ())
        answer = self.rewritten("answer", self.trees["answer"], ())
        return tuple(self.found), answer

    def step(self, side: str, rule: str, place: tuple[int, ...], result: t.Node) -> t.Node:
        self.found.append(Step(side, rule, place, result))
        return result

    def rewritten(self, side: str, node: t.Node, place: tuple[int, ...]) -> t.Node:
        """The node after its steps: definitions first, then what is inside, then its own rule."""
        while (unfolded := self.unfolded(node)) is not None:
            node = self.step(side, "definition", place, unfolded)
        if isinstance(node, t.Derivative):
            body = self.rewritten(side, node.body, (*place, 0))
            node = replace(node, body=body)
        elif not isinstance(node, t.Power) or not node.shape:
            below = [self.rewritten(side, child, (*place, k)) for k, child in enumerate(parts(node))]
            children = iter(below)
            node = t.rebuilt(node, lambda _: next(children))
        rule = self.rule(node)
        if rule is None:
            return node
        result = self.normal_tree(node)
        return node if result is None or result == node else self.step(side, rule, place, result)

    def rule(self, node: t.Node) -> str | None:
        match node:
            case t.Call(map=None):
                return RULES.get(node.name)
            case t.Power():
                return "inverse" if node.shape and node.exponent == MINUS else None if node.shape else "power"
            case t.Expect() | t.Covariance():
                return "expectation"
            case t.Derivative():
                return "derivative"
        return None

    def unfolded(self, node: t.Node) -> t.Node | None:
        """What a name or a function stands for, as a tree; None for what is not unfolded."""
        if isinstance(node, t.Symbol):
            return node.type.definition
        if not isinstance(node, t.Call) or node.map is not None or node.name not in UNFOLDED:
            return None
        inner = node.arguments[0]
        match node.name:
            case "relu":
                both = t.Add(inner.shape, (inner, t.Call(inner.shape, "abs", (inner,))))
                return t.Multiply(inner.shape, (HALF, both))
            case "softmax":
                rows = self.letter_indices(inner.shape[:-1])
                here, there = (*rows, *self.letter_indices(inner.shape[-1:])), self.letter_indices(inner.shape[-1:])
                below = t.Sum((), there, self.exponential(inner, (*rows, *there)))
                return t.Table(node.shape, here, t.Divide((), self.exponential(inner, here), below))
            case "norm" | "norm_F" | "norm1":
                indices = self.letter_indices(inner.shape)
                part = self.part(inner, indices)
                if node.name == "norm1":
                    return t.Sum((), indices, t.Call((), "abs", (part,)))
                square = t.Power((), part, t.Number((), Fraction(2)))
                return t.Call((), "sqrt", (t.Sum((), indices, square),))
            case "max" | "min" if len(node.arguments) == 2 and not inner.shape:
                a, b = node.arguments
                gap = t.Call((), "abs", (t.Add((), (a, t.Multiply((), (MINUS, b)))),))
                side = gap if node.name == "max" else t.Multiply((), (MINUS, gap))
                return t.Multiply((), (HALF, t.Add((), (a, b, side))))
        return None

    def exponential(self, inner: t.Node, indices: tuple[t.Index, ...]) -> t.Node:
        return t.Call((), "exp", (self.part(inner, indices),))

    def part(self, inner: t.Node, indices: tuple[t.Index, ...]) -> t.Node:
        return t.Part((), inner, indices)

    def letter_indices(self, shape: t.Shape) -> tuple[t.Index, ...]:
        """New indices for the axes of a shape."""
        made = []
        for size in shape:
            self.letters += 1
            made.append(t.Index((), f"@{self.letters}", size))
        return tuple(made)

    def normal_tree(self, node: t.Node) -> t.Node | None:
        """The normal form of a node as a tree of its entries; None if it has none."""
        try:
            with budget():
                scope = scope_of(node, *self.trees.values())
                places = list(all_places(node.shape))
                axes = {ix: size for ix, size in zip(places[0], node.shape, strict=True) if ix[0] == "f"}
                found = [self.tree(entry(node, at, scope), {}) for at in places]
        except FAILURES:
            return None
        if not node.shape:
            return found[0]
        if len(axes) == len(node.shape):
            indices = tuple(t.Index((), ix[1], size) for ix, size in axes.items())
            return t.Table(node.shape, indices, found[0])
        return t.Written(node.shape, tuple(found)) if not axes else None

    # -- from sums of monomials back to trees

    def tree(self, poly: Poly | Frozen, names: Mapping[Ix, t.Index]) -> t.Node:
        items = poly.items() if isinstance(poly, dict) else poly
        terms = [self.term(monomial, coefficient, names) for monomial, coefficient in items]
        if len(terms) == 1:
            return terms[0]
        return t.Add((), tuple(terms)) if terms else t.Number((), Fraction(0))

    def term(self, monomial: Monomial, coefficient: Fraction, names: Mapping[Ix, t.Index]) -> t.Node:
        factors, opens = unbind(monomial)
        inner = dict(names)
        for ix, size in opens.items():
            self.letters += 1
            inner[ix] = t.Index((), f"@{self.letters}", self.size(size))
        made = [self.factor(factor, inner) for factor in factors]
        if coefficient != 1 or not made:
            made.insert(0, t.Number((), coefficient))
        body = made[0] if len(made) == 1 else t.Multiply((), tuple(made))
        return t.Sum((), tuple(inner[ix] for ix in opens), body) if opens else body

    def size(self, size: Frozen) -> t.Size:
        found = size_of(self.tree(size, {}))
        if found is None:
            raise forms.NotNormal("a size that cannot be written")
        return found

    def factor(self, factor: Factor, names: Mapping[Ix, t.Index]) -> t.Node:
        base = self.base(factor, names)
        return base if factor.exponent == 1 else t.Power((), base, t.Number((), factor.exponent))

    def base(self, factor: Factor, names: Mapping[Ix, t.Index]) -> t.Node:
        head, slots, _ = factor
        match head.kind:
            case "name" | "random":
                symbol = self.symbols.get(head.name) or t.Symbol((), head.name, t.Type("natural"))
                return t.Part((), symbol, tuple(self.index(ix, names) for ix in slots)) if slots else symbol
            case "constant":
                return t.Constant((), head.name)
            case "prime":
                return t.Number((), Fraction(head.args[0]))
            case "delta":
                return t.Delta((), *(self.index(ix, names) for ix in slots))
            case "less":
                return t.Call((), "less", tuple(self.index(ix, names) for ix in slots))
            case "place":
                return self.index(slots[0], names)
            case "sum":
                return self.tree(arguments(head, slots)[0], names)
            case "power":
                base, exponent = (self.tree(arg, names) for arg in arguments(head, slots))
                return t.Power((), base, exponent)
            case "abs" | "sign" | "exp" | "log" | "max" | "floor" | "ceil" | "sin" | "cos" | "tan" | "factorial":
                return t.Call((), head.kind, tuple(self.tree(arg, names) for arg in arguments(head, slots)))
            case "map":
                return self.map_call(factor, names)
            case "inverse":
                return self.inverse(factor, names)
        raise forms.NotNormal(f"{head.kind} is not written in certificates")

    def map_call(self, factor: Factor, names: Mapping[Ix, t.Index]) -> t.Node:
        head, slots, _ = factor
        symbol = self.symbols[head.name.rpartition("/")[0]]
        args = []
        for arg, shape in zip(arguments(head, slots), symbol.type.arguments, strict=True):
            args.append(self.array(arg, shape, names))
        call = t.Call(symbol.type.shape, symbol.name, tuple(args), symbol)
        out = tuple(self.index(ix, names) for ix in slots[: outputs(head)])
        return t.Part((), call, out) if out else call

    def array(self, arg: Poly, shape: t.Shape, names: Mapping[Ix, t.Index]) -> t.Node:
        if not shape:
            return self.tree(arg, names)
        indices = self.letter_indices(shape)
        own = {("r", axis): index for axis, index in enumerate(indices)}
        return t.Table(shape, indices, self.tree(arg, {**names, **own}))

    def inverse(self, factor: Factor, names: Mapping[Ix, t.Index]) -> t.Node:
        head, slots, _ = factor
        body, extent = arguments(head, slots)
        size = self.size(tuple(extent.items()))
        matrix = self.array(body, (size, size), names)
        return t.Part((), t.Power((size, size), matrix, MINUS), tuple(self.index(ix, names) for ix in slots[:2]))

    def index(self, ix: Ix, names: Mapping[Ix, t.Index]) -> t.Node:
        kind, key = ix
        if ix in names:
            return names[ix]
        if kind == "c":
            return t.Number((), Fraction(key))
        if kind == "f":
            symbol = self.symbols.get(key)
            if symbol is not None and symbol.type.kind == "index":
                return symbol
            return t.Index((), key, 0)
        raise forms.NotNormal("an index that is not written in certificates")
