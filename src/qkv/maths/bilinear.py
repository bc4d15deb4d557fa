"""A scalar as a form in independent random names: a constant, a part linear in each, a part bilinear in each pair."""

from __future__ import annotations

from dataclasses import dataclass, field

from qkv.errors import OptionError, complaint
from qkv.maths.combining import dot, number, plus, product, resolved, split, times, transposed, zero
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Covariance,
    Divide,
    Expect,
    Index,
    Multiply,
    Node,
    Outer,
    Part,
    Special,
    Sum,
    Symbol,
    Transpose,
    children,
)

MOST_TERMS = 200
DEEPEST = 60


@dataclass
class Form:
    """constant + Σ_r linear[r]ᵀ r + Σ_{r<s} rᵀ pairs[r, s] s, for a scalar.

    `names` are the random names in the order in which they are met. Where a name is a scalar, its coefficient is one
    too, and a pair of a scalar and a vector has a vector for coefficient.
    """

    names: dict[str, Symbol]
    constant: Node
    linear: dict[str, Node] = field(default_factory=dict)
    pairs: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass
class Affine:
    """constant + Σ_r linear[r] r, for a vector; linear[r] is a matrix (a vector, where r is a scalar)."""

    constant: Node
    linear: dict[str, Node]


def randoms(node: Node) -> dict[str, Symbol]:
    """The random names below, in reading order; what stands in E or Cov is random no more."""
    found: dict[str, Symbol] = {}
    waiting = [node]
    while waiting:
        here = resolved(waiting.pop())
        if isinstance(here, Symbol):
            if here.type.random:
                found.setdefault(here.name, here)
        elif not isinstance(here, Expect | Covariance):
            waiting += reversed(children(here))
    return found


class Reader:
    """Reads forms; `text` is what the person wrote, for what is said when it is no such form."""

    def __init__(self, text: str, names: dict[str, Symbol]) -> None:
        self.text, self.names = text, names
        self.places = {name: place for place, name in enumerate(names)}

    def refusal(self, why: str) -> OptionError:
        hint = "write it with qᵀk, qᵀAk, aᵀq, sums of these and numbers or sure names before them"
        return OptionError(complaint("expression", self.text, f"at most bilinear in independent vectors: {why}", hint))

    def scalar(self, node: Node, depth: int = 0) -> Form:
        if depth > DEEPEST:
            raise self.refusal("it is nested too deeply")
        node = resolved(node)
        if not randoms(node):
            return Form(self.names, node)
        match node:
            case Symbol():
                return Form(self.names, number(0), {node.name: number(1)})
            case Add(terms=terms):
                return self.added([self.scalar(term, depth + 1) for term in terms])
            case Multiply(factors=factors):
                form = Form(self.names, number(1))
                for factor in factors:
                    form = self.multiplied(form, self.scalar(factor, depth + 1))
                return form
            case Divide(top=top, bottom=bottom) if not randoms(bottom):
                share = Form(self.names, Divide((), number(1), bottom))
                return self.multiplied(share, self.scalar(top, depth + 1))
            case Contract(left=left, right=right):
                return self.dotted(self.vector(left, depth + 1), self.vector(right, depth + 1))
            case Call(name="sum", arguments=(body,)):
                ones = Affine(Special(body.shape, "ones"), {})
                return self.dotted(ones, self.vector(body, depth + 1))
            case Sum(indices=(index,), conditions=(), product=False, body=body):
                return self.summed(index, body, depth)
        raise self.refusal(f"{', '.join(randoms(node))} stands in something that is not linear in it")

    def vector(self, node: Node, depth: int) -> Affine:
        """A vector, or a row as the vector that it is the transpose of."""
        if depth > DEEPEST:
            raise self.refusal("it is nested too deeply")
        node = resolved(node)
        if not randoms(node):
            return Affine(transposed(node) if len(node.shape) == 2 else node, {})
        match node:
            case Symbol():
                return Affine(zero(node.shape), {node.name: Special((*node.shape, *node.shape), "identity")})
            case Transpose(body=body):
                return self.vector(body, depth + 1)
            case Add(terms=terms):
                parts = [self.vector(term, depth + 1) for term in terms]
                linear: dict[str, Node] = {}
                for part in parts:
                    for name, matrix in part.linear.items():
                        linear[name] = plus(linear[name], matrix) if name in linear else matrix
                return Affine(plus(*(part.constant for part in parts)), linear)
            case Multiply(factors=factors):
                return self.stretched(factors, depth)
            case Divide(top=top, bottom=bottom) if not randoms(bottom):
                return self.scaled(Divide((), number(1), bottom), self.vector(top, depth + 1))
            case Contract(left=left, right=right) if len(right.shape) == 1 and not randoms(left):
                return self.mapped(left, self.vector(right, depth + 1))
            case Contract(left=left, right=right) if left.shape[0] == 1 and not randoms(right):
                return self.mapped(transposed(right), self.vector(left, depth + 1))
        raise self.refusal(f"{', '.join(randoms(node))} stands in something that is not linear in it")

    def stretched(self, factors: tuple[Node, ...], depth: int) -> Affine:
        """A vector times scalars, of which all that is random stands in one place."""
        body = next(factor for factor in factors if factor.shape)
        scalars = [factor for factor in factors if not factor.shape]
        sure = times(number(1), *(scalar for scalar in scalars if not randoms(scalar)))
        chances = [scalar for scalar in scalars if randoms(scalar)]
        if not chances:
            return self.scaled(sure, self.vector(body, depth + 1))
        form = self.scalar(chances[0], depth + 1)
        if len(chances) > 1 or form.pairs or randoms(body) or any(self.names[name].shape for name in form.linear):
            raise self.refusal("a vector is multiplied by more than one random thing")
        fixed = self.vector(body, depth + 1).constant
        linear = {name: times(sure, coefficient, fixed) for name, coefficient in form.linear.items()}
        return Affine(times(sure, form.constant, fixed), linear)

    def scaled(self, scalar: Node, form: Affine) -> Affine:
        return Affine(times(scalar, form.constant), {name: times(scalar, m) for name, m in form.linear.items()})

    def mapped(self, matrix: Node, form: Affine) -> Affine:
        return Affine(product(matrix, form.constant), {name: product(matrix, m) for name, m in form.linear.items()})

    def summed(self, index: Index, body: Node, depth: int) -> Form:
        """Σ_i u_i v_i as uᵀv, Σ_i u_i as 1ᵀu."""
        factors = body.factors if isinstance(body, Multiply) else (body,)
        parts = [f.body for f in factors if isinstance(f, Part) and f.indices == (index,) and len(f.body.shape) == 1]
        others = [f for f in factors if not (isinstance(f, Part) and f.indices == (index,))]
        if not 1 <= len(parts) <= 2 or len(parts) + len(others) < len(factors) or any(map(_indexed, others)):
            raise self.refusal(f"the sum over {index.name} is no dot product")
        left = self.vector(parts[0], depth + 1)
        right = self.vector(parts[1], depth + 1) if len(parts) == 2 else Affine(Special((index.size,), "ones"), {})
        return self.multiplied(self.scalar(times(number(1), *others), depth + 1), self.dotted(left, right))

    def added(self, forms: list[Form]) -> Form:
        total = Form(self.names, plus(*(form.constant for form in forms)))
        for form in forms:
            for name, coefficient in form.linear.items():
                self.put(total, name, coefficient)
            for pair, coefficient in form.pairs.items():
                self.put_pair(total, *pair, coefficient)
        if len(total.linear) + len(total.pairs) > MOST_TERMS:
            raise self.refusal(f"it has more than {MOST_TERMS} terms")
        return total

    def multiplied(self, one: Form, other: Form) -> Form:
        if (one.pairs and (other.linear or other.pairs)) or (other.pairs and one.linear):
            raise self.refusal("three random things or more are multiplied")
        form = Form(self.names, times(one.constant, other.constant))
        for sure, chance in ((one.constant, other), (other.constant, one)):
            for name, coefficient in chance.linear.items():
                self.put(form, name, times(sure, coefficient))
            for pair, coefficient in chance.pairs.items():
                self.put_pair(form, *pair, times(sure, coefficient))
        for r, a in one.linear.items():
            for s, b in other.linear.items():
                both = a.shape and b.shape
                self.put_pair(form, r, s, Outer((*a.shape, *b.shape), a, b) if both else times(a, b))
        return form

    def dotted(self, left: Affine, right: Affine) -> Form:
        form = Form(self.names, dot(left.constant, right.constant))
        for sure, chance in ((left.constant, right), (right.constant, left)):
            for name, matrix in chance.linear.items():
                scalar = not self.names[name].shape
                self.put(form, name, dot(matrix, sure) if scalar else product(transposed(matrix), sure))
        for r, m in left.linear.items():
            for s, n in right.linear.items():
                if len(m.shape) == len(n.shape) == 1:
                    self.put_pair(form, r, s, dot(m, n))
                elif len(m.shape) == 1:
                    self.put_pair(form, r, s, product(transposed(n), m))
                else:
                    self.put_pair(form, r, s, product(transposed(m), n))
        return form

    def put(self, form: Form, name: str, coefficient: Node) -> None:
        form.linear[name] = plus(form.linear[name], coefficient) if name in form.linear else plus(coefficient)

    def put_pair(self, form: Form, r: str, s: str, coefficient: Node) -> None:
        if r == s:
            raise self.refusal(f"{r} is multiplied by itself, whose variance needs its fourth moments")
        if self.places[r] > self.places[s]:
            r, s = s, r
            coefficient = transposed(coefficient) if len(coefficient.shape) == 2 else coefficient
        form.pairs[r, s] = plus(form.pairs[r, s], coefficient) if (r, s) in form.pairs else plus(coefficient)


def _indexed(node: Node) -> bool:
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if isinstance(here, Index):
            return True
        waiting += children(here)
    return False


def form_of(node: Node, text: str) -> Form:
    """`node`, a scalar, read as a form; refused where it is none."""
    if node.shape:
        raise OptionError(complaint("expression", text, "a scalar", "moments are those of one number, such as qᵀk"))
    form = Reader(text, randoms(node)).scalar(node)
    zeros = {name for name, coefficient in form.linear.items() if _nothing(coefficient)}
    form.linear = {name: coefficient for name, coefficient in form.linear.items() if name not in zeros}
    form.pairs = {pair: coefficient for pair, coefficient in form.pairs.items() if not _nothing(coefficient)}
    return form


def _nothing(node: Node) -> bool:
    return node == zero(node.shape) or split(node)[1] == Special(node.shape, "zeros")
