"""Replay a certificate: check a proof by rules that share only the tree with the prover.

Two trees are proved equal if their entries are equal as polynomials, in which every function is an unknown unless a
step of the certificate applies a rule at its place, and if the two are defined in the same places. Nothing is evaluated
at points.

`terms` has the arithmetic of entries; both files together are the replayer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import permutations, product
from typing import Any, TypeAlias

from qkv.maths import tree as t
from qkv.maths.terms import (
    HALF,
    LARGEST_POWER,
    NOT_NEGATIVE,
    ONE,
    Arithmetic,
    Array,
    Atom,
    Entries,
    Need,
    Others,
    Poly,
    Refused,
    Slot,
    Slots,
    Term,
    constant,
    is_call,
    laws,
    lone,
    number,
    require,
    scale,
)
from qkv.maths.tree import Certificate, parts

__all__ = ["Refused", "replay"]

MINUS = t.Number((), Fraction(-1))
ENTRYWISE = frozenset({"exp", "log", "abs", "sign", "relu", "floor", "ceil", "factorial", "sin", "cos", "tan"})
LAWS = {"exp": "exponential", "log": "logarithm", "abs": "absolute value"}
LAWS |= dict.fromkeys(["softmax", "norm", "norm_F", "norm1", "relu", "max", "min", "argmax"], "definition")
WAYS = ("multiply from the left", "multiply from the right")
SQUARED = frozenset({"abs", "norm", "norm_F"})
GIVEN = {"positive": ">", "natural": ">", "nonnegative": ">="}
FOLDED = ("folded",)  # a place at which no step is taken
KINKED = frozenset({"abs", "relu", "max", "min", "norm", "norm_F", "norm1", "norm_inf", "floor", "ceil", "argmax"})


MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
Below: TypeAlias = Callable[..., Poly]
Place: TypeAlias = tuple[Any, ...]


def replay(certificate: Certificate) -> None:
    """Check a certificate.

    Raises:
        Refused: If a step does not fit its place, or the steps do not prove the claim.
    """
    try:
        Replayer(certificate).check(certificate.gold, certificate.answer)
    except MALFORMED as problem:
        malformed = Refused(f"the certificate is malformed: {type(problem).__name__}")
        raise problem if isinstance(problem, Refused) else malformed from None


def node_at(node: t.Node, place: Place) -> t.Node:
    """The node at a place, by the positions of children; the child of a name is its definition."""
    for position in place:
        named = node.type.definition if isinstance(node, t.Symbol) else None
        below = parts(node) if named is None else [named]
        require(0 <= position < len(below), f"there is no place {place}")
        node = below[position]
    return node


def rule_for(node: t.Node) -> str | None:
    """The rule that rewrites a node; None for arithmetic and for what stays an unknown."""
    match node:
        case t.Symbol():
            return "definition" if node.type.definition is not None else None
        case t.Call(map=None):
            return LAWS.get(node.name)
        case t.Power():
            return "power" if not isinstance(node.exponent, t.Number) else None
        case t.Expect() | t.Covariance():
            return "expectation"
    return "derivative" if isinstance(node, t.Derivative) else None


def is_plain(node: t.Node) -> bool:
    return isinstance(node, t.Number) and node.value.denominator == 1


class Replayer:
    """One claim: the rules that its certificate applies, its entries, and where they are defined."""

    def __init__(self, certificate: Certificate) -> None:
        self.sums = Arithmetic(certificate, self.outside)
        self.env: dict[str, Slot] = {}
        self.rules = {(step.side, *step.place): step.rule for step in certificate.steps}
        require(len(self.rules) == len(certificate.steps), "two steps at one place")
        self.used: set[Place] = set()
        self.inverted: list[t.Node] = []

    def check(self, gold: t.Node, answer: t.Node) -> None:
        """Refuse the certificate unless its steps prove the claim."""
        self.require_same_domains(gold, answer)
        sides = [lambda at: self.entry(gold, at, ("gold",)), lambda at: self.entry(answer, at, ("answer",))]
        shape = gold.shape
        trees = {"gold": gold, "answer": answer}
        for place, way in ((p, WAYS.index(rule)) for p, rule in self.rules.items() if rule in WAYS):
            node = node_at(trees[place[0]], place[1:])
            base = parts(node)[0]
            inverse = isinstance(node, t.Power) and node.exponent == MINUS and base in self.inverted
            require(inverse and len(shape) > way and base.shape[1 - way] == shape[way], "no inverse that fits")
            sides = [self.multiplied(side, base, (*place, 0), way) for side in sides]
            self.used.add(place)
        sizes = zip(shape, answer.shape, strict=True)
        require(
            all(x == y or self.sums.equal(self.sums.size(x), self.sums.size(y)) for x, y in sizes), "the shapes differ"
        )
        for at in self.sums.slots_of(shape):
            require(self.sums.equal(sides[0](at), sides[1](at)), "the two sides are not equal")
        for place in self.rules.keys() - self.used:  # in an entry that is not used
            fits = self.rules[place] == rule_for(node_at(trees[place[0]], place[1:]))
            require(fits, f"the rule {self.rules[place]} does not fit its place")

    def multiplied(self, side: Entries, base: t.Node, place: Place, way: int) -> Entries:
        """The entries of a side times a matrix, from the left (0) or the right (1)."""
        matrix = partial(self.entry, base, place=place)
        return self.chained(side, matrix, base.shape) if way else self.chained(matrix, side, base.shape)

    def applies(self, node: t.Node, place: Place) -> bool:
        """Whether a step of the certificate applies the rule of a node at its place."""
        rule = self.rules.get(place) if place else "any"
        if rule is None or rule in WAYS:
            return False
        require(not place or rule == rule_for(node), f"the rule {rule} does not fit its place")
        self.used.add(place)
        return True

    def outside(self, node: t.Node, at: Slots = (), place: Place = ()) -> Poly:
        """The entry of a definition or a law: no index around its use is visible."""
        env, self.env = self.env, {}
        try:
            return self.entry(node, at, place)
        finally:
            self.env = env

    def inside(self, names: Mapping[str, Slot], made: Callable[[], Any]) -> Any:
        """What `made` gives where `names` are bound."""
        before, self.env = self.env, {**self.env, **names}
        try:
            return made()
        finally:
            self.env = before

    def entry(self, node: t.Node, at: Slots = (), place: Place = ()) -> Poly:
        """The entry of a tree at one slot for each axis; without a place, every rule is applied."""
        self.sums.spend()
        if len({id(child) for child in parts(node)}) < len(parts(node)):
            node = t.rebuilt(node, replace)  # so that no two children are one object
        below = {id(child): (*place, k) for k, child in enumerate(parts(node))} if place else {}

        def of(child: t.Node, at: Slots = ()) -> Poly:
            return self.entry(child, at, below.get(id(child), ()))

        found = self.rewritten(node, at, place, of) if rule_for(node) and self.applies(node, place) else None
        if found is not None:
            return found
        match node:
            case t.Number(value=value):
                return number(value)
            case t.Constant(name="e" | "pi"):
                return self.sums.atom("call", "pi") if node.name == "pi" else self.sums.exponential(number(1))
            case t.Symbol():
                index = node.type.kind == "index" and not node.shape
                return (
                    self.sums.atom("place", "", (("f", node.name),)) if index else self.sums.atom("name", node.name, at)
                )
            case t.Index():
                return self.sums.atom("place", "", (self.slot(node),))
            case t.Special():
                return self.sums.atom("delta", "", at) if node.name == "identity" else number(node.name == "ones")
            case t.Written():
                return self.written_entry(node, at, of)
            case t.Add():
                return self.sums.add(*(of(term, at) for term in node.terms))
            case t.Multiply():
                return self.sums.multiply(*(of(factor, at if factor.shape else ()) for factor in node.factors))
            case t.Divide():
                return self.sums.multiply(of(node.top, at), self.sums.power(of(node.bottom), -1))
            case t.Contract(left=left, right=right):
                rows = len(node.shape) - (len(right.shape) - 1)
                first = at[:rows] if rows else (("c", 1),) * (len(left.shape) - 1)
                rest = at[rows:]
                return self.sums.summed(
                    left.shape[-1:], lambda k: self.sums.multiply(of(left, first + k), of(right, k + rest))
                )
            case t.Outer() | t.Hadamard():
                first, second = (at[:1], at[1:]) if isinstance(node, t.Outer) else (at, at)
                return self.sums.multiply(of(node.left, first), of(node.right, second))
            case t.Transpose(body=body):
                turned = at[::-1] if len(body.shape) == len(at) == 2 else at[1:]
                return of(body, turned if len(at) == 2 else (("c", 1), at[0]))
            case t.Part():
                return of(node.body, self.part_slots(node, at))
            case t.Power():
                return self.power_entry(node, at, of)
            case t.Sum():
                return self.sum_entry(node, at, of)
            case t.Delta():
                return self.sums.atom("delta", "", (self.slot(node.left), self.slot(node.right)))
            case t.Call():
                return self.call_entry(node, at, of)
            case t.Expect() | t.Covariance() | t.Derivative():
                return self.sums.atom("call", type(node).__name__, at, (self.array(child, of) for child in parts(node)))
        raise Refused(f"{type(node).__name__} has no entries")

    def rewritten(self, node: t.Node, at: Slots, place: Place, of: Below) -> Poly | None:
        """What the rule of a node gives; None where the node stays an unknown."""
        match node:
            case t.Symbol(type=t.Type(definition=t.Node() as definition)):
                return self.outside(definition, at, (*place, 0) if place else ())
            case t.Call():
                return self.unfolded(node, at, of)
            case t.Power() if not node.shape:
                base, above = of(node.base), of(node.exponent)
                positive = constant(above) is None and self.sums.sign(base) == 2
                return self.sums.exponential(self.sums.multiply(above, self.sums.logarithm(base))) if positive else None
            case t.Expect():
                return mean(self, of(node.body, at))
            case t.Covariance():
                cut = len(node.left.shape)
                left, right = of(node.left, at[:cut]), of(node.right, at[cut:])
                both = mean(self, self.sums.multiply(left, right))
                return self.sums.subtract(both, self.sums.multiply(mean(self, left), mean(self, right)))
            case t.Derivative():
                return derivative(self, node, at, of)
        return None

    def slot(self, node: t.Node) -> Slot:
        if isinstance(node, t.Index):
            return self.env.get(node.name, ("f", node.name))
        if isinstance(node, t.Symbol) and node.type.kind == "index":
            return ("f", node.name)
        if isinstance(node, t.Number) and is_plain(node):
            return ("c", int(node.value))
        raise Refused("a subscript that is computed")

    def array(self, node: t.Node, of: Below) -> Array:
        axes = tuple(self.sums.variable(size) for size in node.shape)
        return Array(axes, of(node, axes))

    def written_entry(self, node: t.Written, at: Slots, of: Below) -> Poly:
        made = []
        for item, where in zip(node.entries, product(*(range(1, int(size) + 1) for size in node.shape)), strict=True):
            marks = [self.sums.atom("delta", "", (slot, ("c", k))) for slot, k in zip(at, where, strict=True)]
            made.append(self.sums.multiply(*marks, of(item)) if all(marks) else ())
        return self.sums.add(*made)

    def part_slots(self, node: t.Part, at: Slots) -> Slots:
        rest = list(at)
        if len(node.indices) == 2 and node.indices[1] is None and node.indices[0] is not None and len(at) == 2:
            rest = rest[1:]  # the row as (1, d)
        indices = (*node.indices, *[None] * (len(node.body.shape) - len(node.indices)))
        return tuple(rest.pop(0) if index is None else self.slot(index) for index in indices)

    def power_entry(self, node: t.Power, at: Slots, of: Below) -> Poly:
        above = of(node.exponent)
        exponent = constant(above)
        if not node.shape:
            base = of(node.base)
            args = (Array((), base), Array((), above))
            return (
                self.sums.power(base, exponent) if exponent is not None else self.sums.atom("call", "power", (), args)
            )
        if exponent == -1:
            base = self.array(node.base, of)
            require(bool(base.body), "the inverse of zero has no value")
            return self.sums.atom("inverse", "", at, (base,))
        require(exponent in range(LARGEST_POWER), "a matrix to a power that is not read")
        entries: Entries = partial(self.sums.atom, "delta", "")
        for _ in range(int(exponent or 0)):
            entries = self.chained(entries, partial(of, node.base), node.shape)
        return entries(at)

    def chained(self, left: Entries, right: Entries, shape: t.Shape) -> Entries:
        return lambda at: self.sums.summed(shape[:1], lambda k: self.sums.multiply(left(at[:1] + k), right(k + at[1:])))

    def sum_entry(self, node: t.Sum, at: Slots, of: Below) -> Poly:
        names, sizes = [index.name for index in node.indices], tuple(index.size for index in node.indices)
        require(not node.product, "a product of many factors")

        def term() -> Poly:
            kept = [self.condition(sign, self.slot(a), self.slot(b)) for sign, a, b in node.conditions]
            return self.sums.multiply(*kept, of(node.body, at)) if all(kept) else ()

        return self.sums.summed(sizes, lambda slots: self.inside(dict(zip(names, slots, strict=True)), term))

    def condition(self, sign: str, x: Slot, y: Slot) -> Poly:
        """1 where the relation of two indices holds, else 0."""
        require(sign in ("=", "!=", "<", ">", "<=", ">="), f"a sum under the condition {sign}")
        x, y = (y, x) if sign in (">", "<=") else (x, y)
        found = self.sums.atom("delta" if sign in ("=", "!=") else "less", "", (x, y))
        return found if sign in ("=", "<", ">") else self.sums.subtract(number(1), found)

    def call_entry(self, node: t.Call, at: Slots, of: Below) -> Poly:
        """A function as an unknown; what is linear in its argument is arithmetic."""
        if node.map is not None:
            return self.sums.atom("map", node.map.name, at, (self.array(arg, of) for arg in node.arguments))
        if node.name in ("sqrt", "trace", "sum", "diag"):
            return self.unfolded(node, at, of) or ()
        if node.name in ENTRYWISE:
            return self.sums.function(node.name, of(node.arguments[0], at))
        if node.name == "softmax":
            below = self.sums.variable(node.shape[-1])
            inner = of(node.arguments[0], (*at[:-1], below))
            return self.sums.atom("call", "softmax", at[-1:], (Array((below,), inner),))
        return self.sums.atom("call", node.name, at, (self.array(arg, of) for arg in node.arguments))

    def unfolded(self, node: t.Call, at: Slots, of: Below) -> Poly | None:
        """What a function is by its definition and its laws; None if it stays an unknown."""
        first, whole = node.arguments[0], node.arguments[0].shape
        match node.name:
            case "sqrt" | "relu":
                inner = of(first, at)
                return self.sums.power(inner, HALF) if node.name == "sqrt" else self.sums.larger(inner, (), 1)
            case "exp" | "log" | "abs":
                laws = {"exp": self.sums.exponential, "log": self.sums.logarithm, "abs": self.sums.absolute}
                return laws[node.name](of(first, at))
            case "softmax":
                below = self.sums.summed(whole[-1:], lambda k: self.sums.exponential(of(first, at[:-1] + k)))
                return self.sums.multiply(self.sums.exponential(of(first, at)), self.sums.power(below, -1))
            case "norm" | "norm_F":
                return self.sums.power(self.sums.summed(whole, lambda at: self.sums.power(of(first, at), 2)), HALF)
            case "norm1":
                return self.sums.summed(whole, lambda at: self.sums.absolute(of(first, at)))
            case "trace" | "sum":
                shape, twice = (whole[:1], 2) if node.name == "trace" else (whole, 1)
                return self.sums.summed(shape, lambda at: of(first, at * twice))
            case "diag":
                same = self.sums.atom("delta", "", at) if len(at) == 2 else number(1)
                return self.sums.multiply(same, of(first, at[:1] if len(at) == 2 else at * 2))
        slots = [(arg, at) for arg in node.arguments for at in self.sums.slots_of(arg.shape)]
        known = [value for arg, at in slots if (value := constant(of(arg, at))) is not None]
        if len(known) == len(slots) and all(s[0] == "c" for _, at in slots for s in at):
            best = (min if node.name == "min" else max)(known)
            return number(known.index(best) + 1 if node.name == "argmax" else best)
        two = len(node.arguments) == 2 and not whole
        return self.sums.larger(of(first), of(node.arguments[1]), 1 if node.name == "max" else -1) if two else None

    def squares(self, node: t.Node) -> Poly:
        return self.sums.summed(node.shape, lambda at: self.sums.power(self.entry(node, at), 2))

    def require_same_domains(self, gold: t.Node, answer: t.Node) -> None:
        """Refuse if one tree may be undefined where the other is defined; note what is under roots.

        A declared name has a value of its kind, so what its definition needs is given. An inverse that is written
        exists, unless the form of the matrix shows that it is singular.
        """
        given: list[Need] = []
        for symbol in self.sums.symbols.values():
            definition, kind = symbol.type.definition, GIVEN.get(symbol.type.kind)
            if definition is not None:
                given += self.needs(definition, {})
                given += self.split_need(kind, self.outside(definition), frozenset()) if kind else ()
        self.sums.given += given
        sides = [list(self.needs(node, {})) for node in (gold, answer)]
        self.env = {}
        for mine, other in (sides, sides[::-1]):
            for need in mine:
                fine = any(self.implies(have, need) for have in (*other, *given)) or self.is_rank_one_factor(need)
                require(fine, "one side may be undefined where the other has a value")
        self.sums.given += [*sides[0], *sides[1]]

    def needs(self, node: t.Node, env: Mapping[str, Slot]) -> Iterator[Need]:
        """What must hold for a tree to have a value."""
        self.sums.spend()
        self.env = dict(env)
        free = frozenset(slot for slot in env.values() if slot[0] == "v")
        match node:
            case t.Divide(bottom=bottom):
                yield from self.need("!=", bottom, (), free)
            case t.Power() if node.shape:
                if constant(self.entry(node.exponent)) not in range(LARGEST_POWER):
                    require(self.may_have_inverse(node.base), "an inverse of what has too low a rank")
                    self.inverted += [] if env else [node.base]
            case t.Power():
                above = self.entry(node.exponent)
                value = constant(above)
                if value is not None:
                    for sign in ["!="] * (value < 0) + [">="] * (value.denominator % 2 == 0):
                        yield from self.need(sign, node.base, (), free)
                else:
                    known = (self.sums.is_whole(above) and self.sums.sign(above)) or self.sums.sign(
                        self.entry(node.base)
                    ) == 2
                    require(bool(known), "where a power has a value is not known")
            case t.Call(name="log" | "sqrt", map=None):
                at = tuple(self.sums.variable(size) for size in node.shape)
                yield from self.need(">" if node.name == "log" else ">=", node.arguments[0], at, free | set(at))
            case t.Call(name="factorial" | "tan", map=None):
                raise Refused(f"where {node.name} has a value is not known")
            case t.Call(name="norm" | "norm_F", map=None):
                self.sums.given.append((">=", self.squares(node.arguments[0]), free))
            case t.Derivative():
                self.require_smooth(node.body)
            case t.Part(body=body, indices=indices):  # a number as a subscript lies within its axis
                for size, index in zip(body.shape, indices, strict=False):
                    if isinstance(index, t.Number):
                        yield from self.split_need(
                            ">=", self.sums.subtract(self.sums.size(size), self.entry(index)), free
                        )
        if isinstance(node, t.Sum):
            env = {**env, **{index.name: self.sums.variable(index.size) for index in node.indices}}
        below = [need for child in parts(node) for need in self.needs(child, env)]
        require(not below or not getattr(node, "conditions", ()), "a sum under conditions of what may be undefined")
        if isinstance(node, t.Expect | t.Covariance):
            self.env = dict(env)
            self.entry(node, tuple(self.sums.variable(size) for size in node.shape))  # an unknown mean may not exist
            random = (laws(self.sums, atom) for _, poly, _ in below for term in poly for atom, _ in term.factors)
            require(not any(random), "an expectation of what may be undefined by chance")
        yield from below

    def require_smooth(self, body: t.Node) -> None:
        """Refuse a derivative of what is not smooth everywhere: kinks, and roots of what may be zero."""
        squared = {id(n.base) for n in t.walk(body) if isinstance(n, t.Power) and self.tree_sign(n)}
        for node in t.walk(body):
            called = node.name if isinstance(node, t.Call) and node.map is None else ""
            root = called == "sqrt" or (isinstance(node, t.Power) and not node.shape and not is_plain(node.exponent))
            smooth = called not in KINKED or (called in SQUARED and id(node) in squared)
            require(smooth and (not root or self.is_positive(parts(node)[0])), "a derivative at a kink")

    def is_positive(self, node: t.Node) -> bool:
        """Whether a sum of what is not negative has a positive term, under roots and powers too."""
        if isinstance(node, t.Power | t.Multiply) or (isinstance(node, t.Call) and node.name == "sqrt"):
            return all(map(self.is_positive, parts(node)[: 1 if isinstance(node, t.Power) else None]))
        terms = node.terms if isinstance(node, t.Add) else (node,)
        known = [self.sums.sign(self.entry(term)) or self.tree_sign(term) for term in terms]
        return min(known) > 0 and max(known) == 2

    def need(self, sign: str, node: t.Node, at: Slots, free: Others) -> Iterator[Need]:
        """The needs of a sign of an entry; names that show it are not unfolded."""
        shown = 2 if not node.shape and self.is_positive(node) else self.tree_sign(node)
        known = self.sums.sign(self.entry(node, at, FOLDED)) or shown
        inner = self.entry(node, at)
        if known == 0 or (known == 1 and sign != ">="):
            yield from self.split_need(sign, inner, free)
        elif not self.sums.sign(inner):
            self.sums.given.append((">=", inner, free))

    def tree_sign(self, node: t.Node) -> int:
        """1 if the form of a scalar tree shows that it is not negative."""
        match node:
            case t.Power(exponent=t.Number(value=value), shape=()):
                return int(value.denominator % 2 == 0 or (value.denominator == 1 and value % 2 == 0))
            case t.Add(shape=()) | t.Multiply(shape=()) | t.Divide(shape=()):
                signs = [
                    self.tree_sign(child) or self.sums.sign(self.entry(child, (), FOLDED)) for child in parts(node)
                ]
                return min(1, *signs)
            case t.Sum(shape=()):
                names = {index.name: self.sums.variable(index.size) for index in node.indices}
                return self.inside(names, lambda: self.tree_sign(node.body))
        return int(isinstance(node, t.Call) and node.map is None and node.name in NOT_NEGATIVE)

    def may_have_inverse(self, node: t.Node) -> bool:
        """Whether a matrix has full rank for some values of its names, at every size, as far as its form tells."""
        inner = [child for child in parts(node) if len(child.shape) == 2]
        match node:
            case t.Symbol():
                return node.type.definition is None or self.may_have_inverse(node.type.definition)
            case t.Contract(left=left):
                fixed = isinstance(left.shape[-1], int) and not isinstance(node.shape[0], int)
                return not fixed and all(self.may_have_inverse(m) for m in inner if m.shape == node.shape)
            case t.Add():
                return any(map(self.may_have_inverse, inner))
            case t.Sum():
                return all(isinstance(index.size, str) for index in node.indices)
            case t.Written():
                return not all(isinstance(entry, t.Number) for entry in node.entries)
        known = getattr(node, "name", "") in ("identity", "diag")
        return known or (bool(inner) and all(map(self.may_have_inverse, inner)))

    def split_need(self, sign: str, poly: Poly, free: Others) -> Iterator[Need]:
        """A need in its simplest parts; what is certain is left out."""
        known = self.sums.sign(poly) or (2 if sign == "!=" and self.sums.sign(scale(poly, -1)) == 2 else 0)
        if known == 2 or (known and sign == ">="):
            return
        sign = "!=" if known and sign == ">" else sign
        if constant(poly) is not None:
            require(bool(poly) and sign == "!=", "one of the two has no value anywhere")
            return
        alone = poly[0] if len(poly) == 1 and not poly[0].bound else Term(ONE)
        open_ = [(atom, k) for atom, k in alone.factors if self.sums.atom_sign(atom) < 2]
        for atom, k in open_ if sign == "!=" or len(open_) == 1 else ():
            way = ONE if alone.coefficient > 0 else -ONE
            if atom.kind in ("poly", "abs") and (sign == "!=" or (way > 0 and atom.kind == "poly" and k.numerator % 2)):
                yield from self.split_need(sign, atom.args[0].body, free)
            elif sign == "!=":
                yield (sign, lone(atom), free)
            elif k.denominator == 1 and k % 2 == 0:
                require(way > 0, "a root of what is not positive")
                yield from self.split_need("!=", lone(atom), free) if sign == ">" else ()
            else:
                yield (sign, scale(lone(atom), way), free) if k.denominator == 1 else (sign, poly, free)
        if not open_ or (sign != "!=" and len(open_) > 1):
            yield (sign, poly, free)

    def is_rank_one_factor(self, need: Need) -> bool:
        """Whether 1 + vᵀA⁻¹u ≠ 0 is needed where (A + u vᵀ)⁻¹ is written: det(A + u vᵀ) = det(A)(1 + vᵀA⁻¹u)."""
        for base in self.inverted if need[0] == "!=" else ():
            for rest, outer in permutations(base.terms, 2) if isinstance(base, t.Add) and len(base.terms) == 2 else ():
                (factor, inverse), (times, pair) = map(self.scaled, (rest, outer))
                if isinstance(pair, t.Outer):
                    if not isinstance(inverse, t.Special):
                        inverse, factor = t.Power(base.shape, rest, MINUS), number(1)
                    row = t.Contract((1, base.shape[1]), t.Transpose((1, base.shape[0]), pair.right), inverse)
                    form = self.sums.multiply(times, self.entry(t.Contract((), row, pair.left)))
                    if not self.sums.subtract(need[1], self.sums.add(factor, form)):
                        return True
        return False

    def scaled(self, node: t.Node) -> tuple[Poly, t.Node]:
        """The scalar factors of a matrix, and the matrix."""
        factors = node.factors if isinstance(node, t.Multiply) else (node,)
        return self.sums.multiply(*(self.entry(one) for one in factors if not one.shape)), factors[-1]

    def implies(self, have: Need, need: Need) -> bool:
        stronger = {">": (">",), ">=": (">", ">="), "!=": (">", "!=")}[need[0]]
        flips = (1, -1) if need[0] == have[0] == "!=" else (1,) if have[0] in stronger else ()
        if not all(self.sums.sign(self.sums.sizes[slot]) == 2 for slot in have[2]):  # a sum may be empty
            return have == need
        pairs = ((self.sums.monic(need[1]), scale(self.sums.monic(have[1]), flip)) for flip in flips)
        found = (self.sums.matched_polys(left, right, dict.fromkeys(need[2]), have[2]) for left, right in pairs)
        return any(True for matched in found for _ in matched)


def mean(check: Replayer, poly: Poly) -> Poly:
    """The expectation of a sum of polynomials, exponentials and absolute values of linear forms."""
    return check.sums.add(*(mean_of_term(check, term) for term in poly))


def mean_of_term(check: Replayer, term: Term) -> Poly:
    groups: dict[str, list[Slots]] = {}
    fixed, forms, exponent = [], [], ()
    for atom, power in term.factors:
        if not laws(check.sums, atom):
            fixed.append((atom, power))
        elif atom.kind == "name" and power.denominator == 1 and 0 < power <= LARGEST_POWER:
            groups.setdefault(atom.name, []).extend([atom.slots] * int(power))
        elif is_call(atom, "exp"):
            exponent = check.sums.add(exponent, scale(atom.args[0].body, power))
        else:
            require(atom.kind == "abs" and power == 1, "an expectation that is not of a polynomial")
            forms.append((atom.args[0].body, False))
    forms += [(exponent, True)] if exponent else []
    moved = {name for form, _ in forms for m in form for atom, _ in m.factors for name in laws(check.sums, atom)}
    require(len(forms) < 2 and moved.isdisjoint(groups), "an expectation of functions that depend on each other")
    made = [check.sums.term(ONE, (), tuple(fixed)), *(moment(check, name, tuple(at)) for name, at in groups.items())]
    for form, above in forms:  # linear in normal names
        for inner in form:
            moving = [(atom, k) for atom, k in inner.factors if laws(check.sums, atom)]
            plain = len(moving) <= 1 and all(atom.kind == "name" and k == 1 for atom, k in moving)
            normal = all(getattr(check.sums.symbols[atom.name].type.law, "normal", False) for atom, _ in moving)
            require(plain and normal, "not linear in normal names")
        centre = mean(check, form)
        spread = check.sums.subtract(mean(check, check.sums.multiply(form, form)), check.sums.multiply(centre, centre))
        require(above or not centre, "the mean of an absolute value around another mean than zero")
        below = scale(check.sums.power(check.sums.atom("call", "pi"), -1), 2)
        width = check.sums.power(check.sums.multiply(spread, below), HALF) if not above else ()
        made.append(check.sums.exponential(check.sums.add(centre, scale(spread, HALF))) if above else width)
    return check.sums.bind(scale(check.sums.multiply(*made), term.coefficient), term.bound)


def moment(check: Replayer, name: str, slots: tuple[Slots, ...]) -> Poly:
    """E of a product of components: the mean of the first times the rest, plus its covariance with each other one."""
    if not slots:
        return number(1)
    law, first, rest = check.sums.symbols[name].type.law, slots[0], slots[1:]
    if law is None or not (law.normal or len(slots) <= 2):
        raise Refused("a moment that the law does not give")
    made = [check.sums.multiply(check.outside(law.mean, first), moment(check, name, rest))]
    for k, other in enumerate(rest):
        pair = check.outside(law.covariance, first + other)
        made.append(check.sums.multiply(pair, moment(check, name, rest[:k] + rest[k + 1 :])))
    return check.sums.add(*made)


def derivative(check: Replayer, node: t.Derivative, at: Slots, of: Below) -> Poly:
    """The product rule and the chain rule, by one component of a name."""
    target, cut = node.target, len(node.body.shape)
    symbol = target.body if isinstance(target, t.Part) else target
    if not isinstance(symbol, t.Symbol) or symbol.name in check.sums.symmetric:
        raise Refused("a derivative by what is not a free name")
    fixed = symbol.type.definition or symbol.type.law or symbol.type.kind in ("natural", "index")
    require(not fixed, "a derivative by what is not a free name")
    rest, indices = list(at[cut:]), target.indices if isinstance(target, t.Part) else ()
    indices = (*indices, *[None] * (len(symbol.shape) - len(indices)))
    chosen = tuple(rest.pop(0) if index is None else check.slot(index) for index in indices)
    require(not rest, "a derivative by a row")
    return differentiated(check, of(node.body, at[:cut]), symbol.name, chosen)


def differentiated(check: Replayer, poly: Poly, name: str, slots: Slots) -> Poly:
    made = []
    for term in poly:
        for place, (atom, power) in enumerate(term.factors):
            rest = (*term.factors[:place], *term.factors[place + 1 :], (atom, power - 1))
            outer = check.sums.term(term.coefficient * power, (), rest)
            made.append(check.sums.bind(check.sums.multiply(outer, slope(check, atom, name, slots)), term.bound))
    return check.sums.add(*made)


def slope(check: Replayer, atom: Atom, name: str, slots: Slots) -> Poly:
    if atom.kind == "name":
        definition = check.sums.symbols[atom.name].type.definition if atom.name in check.sums.symbols else None
        require(definition is None or name not in t.names(definition), "a derivative of a name that is not unfolded")
        pairs = zip(atom.slots, slots, strict=True) if atom.name == name else ()
        return check.sums.multiply(*(check.sums.atom("delta", "", pair) for pair in pairs)) if atom.name == name else ()
    require(not is_call(atom, "Expect", "Covariance", "Derivative"), "a derivative of an expectation")
    bodies = [differentiated(check, arg.body, name, slots) for arg in atom.args]
    if not any(bodies):
        return ()
    require(len(bodies) == 1 and not atom.args[0].axes, "a derivative that is not known")
    require(atom.kind == "poly" or is_call(atom, "exp", "log"), "a derivative that is not known")
    outer = (
        lone(atom) if is_call(atom, "exp") else check.sums.power(atom.args[0].body, -1 if atom.kind == "call" else 0)
    )
    return check.sums.multiply(outer, bodies[0])
