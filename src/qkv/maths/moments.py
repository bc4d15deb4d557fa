"""Mean and variance of qᵀk and similar scalars, for independent random vectors with any means and covariances.

A scalar that is at most bilinear, S = c + Σ_r b_rᵀx_r + Σ_{r<s} x_rᵀA_rs x_s, needs only the means μ_r and the
covariances Σ_r. With x_r = μ_r + z_r its linear parts become g_r = b_r + Σ_s A_rs μ_s, every cross term has a single
factor z of mean zero, and so

    E[S] = c + Σ_r b_rᵀμ_r + Σ_{r<s} μ_rᵀA_rs μ_s
    Var(S) = Σ_r g_rᵀΣ_r g_r + Σ_{r<s} tr(Σ_r A_rs Σ_s A_rsᵀ).

For S = qᵀk: E = μ_qᵀμ_k and Var = tr(Σ_qΣ_k) + μ_qᵀΣ_kμ_q + μ_kᵀΣ_qμ_k.

The first functions build simplified trees (no added 0, no identity factor, σ²σ² as σ⁴) for formulas that are shown;
equality is decided by normal forms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product as combinations
from typing import NamedTuple

from qkv.errors import OptionError, complaint
from qkv.maths.parsing.parse import parse
from qkv.maths.printing import latex
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
    Number,
    Outer,
    Part,
    Power,
    Size,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
    children,
)


def number(value: int | Fraction) -> Number:
    return Number((), Fraction(value))


def resolve(node: Node) -> Node:
    """A name replaced by its definition, as long as it has one."""
    while isinstance(node, Symbol) and node.type.definition is not None:
        node = node.type.definition
    return node


def is_zero(node: Node) -> bool:
    node = resolve(node)
    if isinstance(node, Multiply):
        return any(is_zero(factor) for factor in node.factors)
    return node == Special(node.shape, "zeros") or (isinstance(node, Number) and node.value == 0)


def is_identity(node: Node) -> bool:
    node = resolve(node)
    return isinstance(node, Special) and node.name == "identity"


def zero_of(shape: tuple[Size, ...]) -> Node:
    return Special(shape, "zeros") if shape else number(0)


def split(node: Node) -> tuple[list[Node], Node | None]:
    """The scalar factors of a node, and its vector or matrix (None for a scalar)."""
    node = resolve(node) if isinstance(resolve(node), Multiply | Special | Number) else node
    if isinstance(node, Multiply):
        parts = [split(factor) for factor in node.factors]
        bodies = [body for _, body in parts if body is not None]
        return [scalar for scalars, _ in parts for scalar in scalars], bodies[0] if bodies else None
    if isinstance(node, Divide) and node.shape:
        scalars, body = split(node.top)
        return [*scalars, Power((), node.bottom, number(-1))], body
    return ([], node) if node.shape else ([node], None)


def times(*nodes: Node) -> Node:
    """The product of scalars and at most one vector or matrix: numbers first, powers of one base merged.

    >>> sigma = Power((), Symbol((), "sigma", Type("positive")), number(2))
    >>> times(sigma, number(1), sigma) == Power((), Symbol((), "sigma", Type("positive")), number(4))
    True
    """
    scalars: list[Node] = []
    bodies: list[Node] = []
    for node in nodes:
        found, body = split(node)
        scalars += found
        bodies += [] if body is None else [body]
    shape = bodies[0].shape if bodies else ()
    coefficient = Fraction(1)
    powers: dict[Node, Fraction] = {}
    for scalar in scalars:
        base, exponent = scalar, Fraction(1)
        if isinstance(scalar, Power) and isinstance(scalar.exponent, Number):
            base, exponent = scalar.base, scalar.exponent.value
        if isinstance(base, Number) and base.unit is None and exponent.denominator == 1 and base.value:
            coefficient *= base.value ** int(exponent)
        else:
            powers[base] = powers.get(base, Fraction(0)) + exponent
    if coefficient == 0 or any(is_zero(factor) for factor in (*powers, *bodies)):
        return zero_of(shape)
    above = [Power((), b, number(e)) if e != 1 else b for b, e in powers.items() if e > 0]
    below = [Power((), b, number(-e)) if e != -1 else b for b, e in powers.items() if e < 0]
    factors = [*([number(coefficient)] if coefficient != 1 else []), *above, *bodies]
    top = factors[0] if len(factors) == 1 else Multiply(shape, tuple(factors)) if factors else number(1)
    if not below:
        return top
    return Divide(shape, top, below[0] if len(below) == 1 else Multiply((), tuple(below)))


def plus(*nodes: Node) -> Node:
    """The sum, with equal terms collected.

    >>> x = Symbol((), "x", Type("scalar"))
    >>> plus(x, number(0), x) == Multiply((), (number(2), x))
    True
    """
    collected: dict[Node, Fraction] = {}
    for node in nodes:
        for term in node.terms if isinstance(node, Add) else (node,):
            if is_zero(term):
                continue
            coefficient, rest = Fraction(1), term
            if isinstance(term, Multiply) and isinstance(term.factors[0], Number) and term.factors[0].unit is None:
                coefficient, others = term.factors[0].value, term.factors[1:]
                rest = others[0] if len(others) == 1 else Multiply(term.shape, others)
            collected[rest] = collected.get(rest, Fraction(0)) + coefficient
    terms = [times(number(coefficient), rest) for rest, coefficient in collected.items() if coefficient]
    if len(terms) < 2:
        return terms[0] if terms else zero_of(nodes[0].shape)
    return Add(nodes[0].shape, tuple(terms))


def transposed(node: Node) -> Node:
    scalars, body = split(node)
    assert body is not None
    turned = body.shape[::-1] if len(body.shape) == 2 and body.shape[0] != 1 else (1, *body.shape)
    turned = body.shape[1:] if len(body.shape) == 2 and body.shape[0] == 1 else turned
    if isinstance(body, Transpose):
        body = body.body
    elif isinstance(body, Outer):
        body = Outer(turned, body.right, body.left)
    elif isinstance(body, Contract) and len(body.shape) == 2 and len(body.right.shape) == 2:
        body = product(transposed(body.right), transposed(body.left))
    elif isinstance(body, Special):
        body = Special(turned, body.name)
    else:
        body = Transpose(turned, body)
    return times(*scalars, body)


def product(left: Node, right: Node) -> Node:
    """A matrix times a matrix or a vector; a row times a column is a scalar."""
    left_scalars, left_body = split(left)
    right_scalars, right_body = split(right)
    assert left_body is not None
    assert right_body is not None
    shape = (left_body.shape[0], *right_body.shape[1:])
    if left_body.shape[0] == 1 and len(right_body.shape) == 1:
        shape = ()
    if is_zero(left_body) or is_zero(right_body):
        return zero_of(shape)
    if is_identity(left_body):
        body = right_body
    elif is_identity(right_body):
        body = left_body
    elif isinstance(left_body, Outer):
        body = (
            times(dot(left_body.right, right_body), left_body.left)
            if len(right_body.shape) == 1
            else Outer(shape, left_body.left, product(transposed(right_body), left_body.right))
        )
    else:
        body = Contract(shape, left_body, right_body)
    return times(*left_scalars, *right_scalars, body)


def dot(left: Node, right: Node) -> Node:
    """leftᵀ right of two vectors, or the product of two scalars."""
    if left.shape == ():
        return times(left, right)
    left_scalars, left_body = split(left)
    right_scalars, right_body = split(right)
    assert left_body is not None
    assert right_body is not None
    if is_zero(left_body) or is_zero(right_body):
        return number(0)
    ones = [isinstance(resolve(body), Special) for body in (left_body, right_body)]
    scalars = (*left_scalars, *right_scalars)
    if all(ones):
        return times(*scalars, dimension(left_body.shape[0]))
    return times(*scalars, Contract((), Transpose((1, *left_body.shape), left_body), right_body))


def trace(matrix: Node) -> Node:
    scalars, body = split(matrix)
    assert body is not None
    if is_zero(body):
        return number(0)
    if is_identity(body):
        return times(*scalars, dimension(body.shape[0]))
    if isinstance(body, Outer):
        return times(*scalars, dot(body.right, body.left))
    return times(*scalars, Call((), "trace", (body,)))


def dimension(size: Size) -> Node:
    """A size as a scalar: 3, d, or the expression of a text such as n+1."""
    if isinstance(size, int):
        return number(size)
    if re.fullmatch(r"[^\W\d]\w*'*", size):
        return Symbol((), size, Type("natural"))
    names = re.findall(r"[^\W\d]\w*'*", size)
    return parse(size, dict.fromkeys(names, "natural"))


MOST_TERMS = 200
DEEPEST = 60


@dataclass
class BilinearForm:
    """constant + Σ_r linear[r]ᵀ r + Σ_{r<s} rᵀ pairs[r, s] s, for a scalar.

    `names` are the random names in source order. The coefficient of a scalar name is a scalar, and that of a scalar and
    a vector is a vector.
    """

    names: dict[str, Symbol]
    constant: Node
    linear: dict[str, Node] = field(default_factory=dict)
    pairs: dict[tuple[str, str], Node] = field(default_factory=dict)


@dataclass
class Affine:
    """constant + Σ_r linear[r] r, for a vector; linear[r] is a matrix (a vector, if r is a scalar)."""

    constant: Node
    linear: dict[str, Node]


def random_symbols(node: Node) -> dict[str, Symbol]:
    """The random names in a node, in source order; those inside E or Cov do not count."""
    found: dict[str, Symbol] = {}
    pending = [node]
    while pending:
        here = resolve(pending.pop())
        if isinstance(here, Symbol):
            if here.type.random:
                found.setdefault(here.name, here)
        elif not isinstance(here, Expect | Covariance):
            pending += reversed(children(here))
    return found


class FormReader:
    """Reads trees as bilinear forms; `text` is the source, for error messages."""

    def __init__(self, text: str, names: dict[str, Symbol]) -> None:
        self.text, self.names = text, names
        self.places = {name: place for place, name in enumerate(names)}

    def refusal(self, why: str) -> OptionError:
        hint = "write it with qᵀk, qᵀAk, aᵀq, sums of these, with numbers or fixed names as factors"
        return OptionError(complaint("expression", self.text, f"at most bilinear in independent vectors: {why}", hint))

    def scalar(self, node: Node, depth: int = 0) -> BilinearForm:
        if depth > DEEPEST:
            raise self.refusal("it is nested too deeply")
        node = resolve(node)
        if not random_symbols(node):
            return BilinearForm(self.names, node)
        match node:
            case Symbol():
                return BilinearForm(self.names, number(0), {node.name: number(1)})
            case Add(terms=terms):
                return self.added([self.scalar(term, depth + 1) for term in terms])
            case Multiply(factors=factors):
                form = BilinearForm(self.names, number(1))
                for factor in factors:
                    form = self.multiplied(form, self.scalar(factor, depth + 1))
                return form
            case Divide(top=top, bottom=bottom) if not random_symbols(bottom):
                share = BilinearForm(self.names, Divide((), number(1), bottom))
                return self.multiplied(share, self.scalar(top, depth + 1))
            case Contract(left=left, right=right):
                return self.dotted(self.vector(left, depth + 1), self.vector(right, depth + 1))
            case Call(name="sum", arguments=(body,)):
                ones = Affine(Special(body.shape, "ones"), {})
                return self.dotted(ones, self.vector(body, depth + 1))
            case Sum(indices=(index,), conditions=(), product=False, body=body):
                return self.summed(index, body, depth)
        raise self.refusal(f"{', '.join(random_symbols(node))} occurs in something that is not linear in it")

    def vector(self, node: Node, depth: int) -> Affine:
        """A vector, or the transpose of a row, as an affine form."""
        if depth > DEEPEST:
            raise self.refusal("it is nested too deeply")
        node = resolve(node)
        if not random_symbols(node):
            return Affine(transposed(node) if len(node.shape) == 2 else node, {})
        match node:
            case Symbol():
                return Affine(zero_of(node.shape), {node.name: Special((*node.shape, *node.shape), "identity")})
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
            case Divide(top=top, bottom=bottom) if not random_symbols(bottom):
                return self.scaled(Divide((), number(1), bottom), self.vector(top, depth + 1))
            case Contract(left=left, right=right) if len(right.shape) == 1 and not random_symbols(left):
                return self.mapped(left, self.vector(right, depth + 1))
            case Contract(left=left, right=right) if left.shape[0] == 1 and not random_symbols(right):
                return self.mapped(transposed(right), self.vector(left, depth + 1))
        raise self.refusal(f"{', '.join(random_symbols(node))} occurs in something that is not linear in it")

    def stretched(self, factors: tuple[Node, ...], depth: int) -> Affine:
        """A vector times scalars, of which at most one factor is random."""
        body = next(factor for factor in factors if factor.shape)
        scalars = [factor for factor in factors if not factor.shape]
        sure = times(number(1), *(scalar for scalar in scalars if not random_symbols(scalar)))
        chances = [scalar for scalar in scalars if random_symbols(scalar)]
        if not chances:
            return self.scaled(sure, self.vector(body, depth + 1))
        form = self.scalar(chances[0], depth + 1)
        if (
            len(chances) > 1
            or form.pairs
            or random_symbols(body)
            or any(self.names[name].shape for name in form.linear)
        ):
            raise self.refusal("a vector is multiplied by more than one random factor")
        fixed = self.vector(body, depth + 1).constant
        linear = {name: times(sure, coefficient, fixed) for name, coefficient in form.linear.items()}
        return Affine(times(sure, form.constant, fixed), linear)

    def scaled(self, scalar: Node, form: Affine) -> Affine:
        return Affine(times(scalar, form.constant), {name: times(scalar, m) for name, m in form.linear.items()})

    def mapped(self, matrix: Node, form: Affine) -> Affine:
        return Affine(product(matrix, form.constant), {name: product(matrix, m) for name, m in form.linear.items()})

    def summed(self, index: Index, body: Node, depth: int) -> BilinearForm:
        """Σ_i u_i v_i as uᵀv, Σ_i u_i as 1ᵀu."""
        factors = body.factors if isinstance(body, Multiply) else (body,)
        parts = [f.body for f in factors if isinstance(f, Part) and f.indices == (index,) and len(f.body.shape) == 1]
        others = [f for f in factors if not (isinstance(f, Part) and f.indices == (index,))]
        if not 1 <= len(parts) <= 2 or len(parts) + len(others) < len(factors) or any(map(_has_index, others)):
            raise self.refusal(f"the sum over {index.name} is not a dot product")
        left = self.vector(parts[0], depth + 1)
        right = self.vector(parts[1], depth + 1) if len(parts) == 2 else Affine(Special((index.size,), "ones"), {})
        return self.multiplied(self.scalar(times(number(1), *others), depth + 1), self.dotted(left, right))

    def added(self, forms: list[BilinearForm]) -> BilinearForm:
        total = BilinearForm(self.names, plus(*(form.constant for form in forms)))
        for form in forms:
            for name, coefficient in form.linear.items():
                self.put(total, name, coefficient)
            for pair, coefficient in form.pairs.items():
                self.put_pair(total, *pair, coefficient)
        if len(total.linear) + len(total.pairs) > MOST_TERMS:
            raise self.refusal(f"it has more than {MOST_TERMS} terms")
        return total

    def multiplied(self, one: BilinearForm, other: BilinearForm) -> BilinearForm:
        if (one.pairs and (other.linear or other.pairs)) or (other.pairs and one.linear):
            raise self.refusal("three or more random factors are multiplied")
        form = BilinearForm(self.names, times(one.constant, other.constant))
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

    def dotted(self, left: Affine, right: Affine) -> BilinearForm:
        form = BilinearForm(self.names, dot(left.constant, right.constant))
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

    def put(self, form: BilinearForm, name: str, coefficient: Node) -> None:
        form.linear[name] = plus(form.linear[name], coefficient) if name in form.linear else plus(coefficient)

    def put_pair(self, form: BilinearForm, r: str, s: str, coefficient: Node) -> None:
        if r == s:
            raise self.refusal(f"{r} is multiplied by itself, whose variance needs its fourth moments")
        if self.places[r] > self.places[s]:
            r, s = s, r
            coefficient = transposed(coefficient) if len(coefficient.shape) == 2 else coefficient
        form.pairs[r, s] = plus(form.pairs[r, s], coefficient) if (r, s) in form.pairs else plus(coefficient)


def _has_index(node: Node) -> bool:
    pending = [node]
    while pending:
        here = pending.pop()
        if isinstance(here, Index):
            return True
        pending += children(here)
    return False


def form_of(node: Node, text: str) -> BilinearForm:
    """A scalar as a bilinear form; OptionError if it is not one."""
    if node.shape:
        raise OptionError(complaint("expression", text, "a scalar", "moments are those of one number, such as qᵀk"))
    form = FormReader(text, random_symbols(node)).scalar(node)
    zeros = {name for name, coefficient in form.linear.items() if _is_nothing(coefficient)}
    form.linear = {name: coefficient for name, coefficient in form.linear.items() if name not in zeros}
    form.pairs = {pair: coefficient for pair, coefficient in form.pairs.items() if not _is_nothing(coefficient)}
    return form


def _is_nothing(node: Node) -> bool:
    return node == zero_of(node.shape) or split(node)[1] == Special(node.shape, "zeros")


MOST_CASES = 200_000

ANY_LAW = {
    "q": "random vector[d] ~ (mu_q, Sigma_q)",
    "k": "random vector[d] ~ (mu_k, Sigma_k)",
    "mu_q": "vector[d]",
    "mu_k": "vector[d]",
    "Sigma_q": "matrix[d,d]",
    "Sigma_k": "matrix[d,d]",
}
VECTOR_MEAN = {
    "q": "random vector[d] ~ N(mu, sigma^2 I)",
    "k": "random vector[d] ~ N(mu, sigma^2 I)",
    "mu": "vector[d]",
    "sigma": "positive",
}
SCALAR_MEAN = {
    "q": "random vector[d] ~ N(m 1_d, sigma^2 I)",
    "k": "random vector[d] ~ N(m 1_d, sigma^2 I)",
    "m": "scalar",
    "sigma": "positive",
}
STANDARD = {"q": "random vector[d] ~ N(0, I)", "k": "random vector[d] ~ N(0, I)", "d": "natural"}


class MomentStep(NamedTuple):
    """One line of a derivation, equal to the line before by `reason`; relation "" begins a chain."""

    text: str
    reason: str
    relation: str = "="


class Moments(NamedTuple):
    """Mean and variance as LaTeX that `compare` parses, and the steps of their derivations."""

    mean: str
    variance: str
    steps: tuple[MomentStep, ...]


def moments(expression: str, symbols: Mapping[str, str]) -> Moments:
    """Mean and variance of a scalar that is affine or bilinear in independent random names.

    Args:
        expression: The scalar, such as "q^T k".
        symbols: Names and their types; random names have their laws here.

    Returns:
        Mean, variance and the steps of their derivations.

    Raises:
        OptionError: If a random name is multiplied by itself or occurs in a function that is not linear: then means
            and covariances do not determine the result.

    >>> found = moments("q^T k", STANDARD)
    >>> found.mean, found.variance
    ('0', 'd')
    """
    node = parse(expression, symbols)
    form = form_of(node, expression)
    steps = (*_mean_steps(node, form), *_variance_steps(node, form))
    return Moments(latex(_mean(form)), latex(_variance(form)), steps)


def _mean_steps(node: Node, form: BilinearForm) -> list[MomentStep]:
    names = form.names
    terms = [
        *([] if is_zero(form.constant) else [form.constant]),
        *(Expect((), dot(b, names[r])) for r, b in form.linear.items()),
        *(Expect((), _pair_product(names[r], a, names[s])) for (r, s), a in form.pairs.items()),
    ]
    apart = [
        form.constant,
        *(dot(b, _expected(names[r])) for r, b in form.linear.items()),
        *(_pair_product(_expected(names[r]), a, _expected(names[s])) for (r, s), a in form.pairs.items()),
    ]
    independent = "linearity, and independence of what is multiplied" if form.pairs else "linearity of expectation"
    chain = [
        (Expect((), node), "what is asked"),
        (_sum_of(terms), "linearity of expectation"),
        (_sum_of([term for term in apart if not is_zero(term)]), independent),
        (_mean(form), "the means"),
    ]
    return _chain_steps(chain)


def _variance_steps(node: Node, form: BilinearForm) -> list[MomentStep]:
    names = form.names
    rest = {name: _minus(symbol, _law(symbol).mean) for name, symbol in names.items()}
    parts = [
        *(dot(g, rest[r]) for r, g in _slopes(form).items() if not is_zero(g)),
        *(_pair_product(rest[r], a, rest[s]) for (r, s), a in form.pairs.items()),
    ]
    left_over = _minus(node, _mean(form))
    apart = [
        (left_over, "what is left when the mean is taken away"),
        (_sum_of(parts), "every vector as its mean and a deviation"),
    ]
    chain = [
        (Covariance((), node, node), "what is asked"),
        (Expect((), _square(left_over)), "definition of variance"),
        (
            _sum_of([Expect((), _square(part)) for part in parts]),
            "linearity; between two parts a deviation of mean zero is independent of the rest",
        ),
        (_variance(form), "definition of covariance, and independence of what is multiplied"),
    ]
    deviation = _chain_steps(apart)
    return [*(deviation if deviation[0].text != deviation[-1].text else []), *_chain_steps(chain)]


def _chain_steps(chain: list[tuple[Node, str]]) -> list[MomentStep]:
    """The steps of a chain, without lines that repeat the one before."""
    steps: list[MomentStep] = []
    for node, reason in chain:
        text = latex(node)
        if not steps or text != steps[-1].text:
            steps.append(MomentStep(text, reason, "=" if steps else ""))
    # A chain of one line (the mean of a constant) would not be checked.
    return steps if len(steps) > 1 else [*steps, MomentStep(steps[0].text, "as it stands")]


def _law(symbol: Symbol):
    law = symbol.type.law
    assert law is not None
    return law


def _expected(symbol: Symbol) -> Node:
    return Expect(symbol.shape, symbol)


def _minus(node: Node, other: Node) -> Node:
    return node if is_zero(other) else Add(node.shape, (node, times(number(-1), other)))


def _square(node: Node) -> Node:
    return Power((), node, number(2))


def _sum_of(terms: Sequence[Node]) -> Node:
    if len(terms) < 2:
        return terms[0] if terms else number(0)
    return Add((), tuple(terms))


def _pair_product(left: Node, coefficient: Node, right: Node) -> Node:
    """leftᵀ A right, for vectors or scalars."""
    if len(coefficient.shape) == 2:
        return dot(left, product(coefficient, right))
    if left.shape or right.shape:
        return times(dot(coefficient, left), right) if left.shape else times(left, dot(coefficient, right))
    return times(coefficient, left, right)


def _mean(form: BilinearForm) -> Node:
    means = {name: _law(symbol).mean for name, symbol in form.names.items()}
    return plus(
        form.constant,
        *(dot(b, means[r]) for r, b in form.linear.items()),
        *(_pair_product(means[r], a, means[s]) for (r, s), a in form.pairs.items()),
    )


def _slopes(form: BilinearForm) -> dict[str, Node]:
    """g_r: the coefficient of the deviation of each name when all others are at their means."""
    slopes: dict[str, list[Node]] = {name: [] for name in form.names}
    for name, coefficient in form.linear.items():
        slopes[name].append(coefficient)
    for (r, s), a in form.pairs.items():
        mean_r, mean_s = _law(form.names[r]).mean, _law(form.names[s]).mean
        slopes[r].append(_against(a, mean_s, bool(form.names[r].shape)))
        slopes[s].append(_against(transposed(a) if len(a.shape) == 2 else a, mean_r, bool(form.names[s].shape)))
    return {name: plus(*terms) for name, terms in slopes.items() if terms}


def _against(coefficient: Node, mean: Node, wants_vector: bool) -> Node:
    if len(coefficient.shape) == 2:
        return product(coefficient, mean)
    return times(coefficient, mean) if wants_vector or not coefficient.shape else dot(coefficient, mean)


def _variance(form: BilinearForm) -> Node:
    spread = {name: _law(symbol).covariance for name, symbol in form.names.items()}
    slopes = [_quadratic(g, spread[r]) for r, g in _slopes(form).items() if not is_zero(g)]
    pairs = [_pair_variance(spread[r], a, spread[s]) for (r, s), a in form.pairs.items()]
    return plus(number(0), *pairs, *slopes)


def _quadratic(slope: Node, covariance: Node) -> Node:
    if not slope.shape:
        return times(slope, slope, covariance)
    return dot(slope, product(covariance, slope))


def _pair_variance(left: Node, coefficient: Node, right: Node) -> Node:
    """E[(zᵀAw)²] of independent z, w with mean zero."""
    if len(coefficient.shape) == 2:
        if isinstance(coefficient, Outer):
            return times(_quadratic(coefficient.left, left), _quadratic(coefficient.right, right))
        return trace(product(left, product(coefficient, product(right, transposed(coefficient)))))
    if left.shape or right.shape:
        vector, scalar = (left, right) if left.shape else (right, left)
        return times(scalar, _quadratic(coefficient, vector))
    return times(coefficient, coefficient, left, right)


Point = Sequence[int | Fraction]


class ExactMoments(NamedTuple):
    mean: Fraction
    variance: Fraction


class Discrete:
    """A law on finitely many points of R^d with exact probabilities (equal ones by default).

    >>> coin = Discrete([(1, 0), (0, 2)])
    >>> coin.mean == (Fraction(1, 2), 1), coin.covariance[0][1]
    (True, Fraction(-1, 2))
    """

    def __init__(self, points: Sequence[Point], chances: Sequence[int | Fraction] | None = None) -> None:
        if not points or len({len(point) for point in points}) > 1:
            raise OptionError(complaint("points", repr(points), "one point or more, all of one length"))
        weights = [Fraction(1)] * len(points) if chances is None else [Fraction(chance) for chance in chances]
        if len(weights) != len(points) or min(weights) < 0 or sum(weights) == 0:
            raise OptionError(complaint("chances", repr(chances), "one for each point, none negative, not all zero"))
        self.points = tuple(tuple(Fraction(x) for x in point) for point in points)
        total = sum(weights)
        self.chances = tuple(weight / total for weight in weights)
        width = range(len(self.points[0]))
        cases = list(zip(self.points, self.chances, strict=True))
        self.mean = tuple(sum((c * p[i] for p, c in cases), Fraction(0)) for i in width)
        self.covariance = tuple(
            tuple(
                sum((c * (p[i] - self.mean[i]) * (p[j] - self.mean[j]) for p, c in cases), Fraction(0)) for j in width
            )
            for i in width
        )


def enumerate_moments(score: Callable[..., int | Fraction], **laws: Discrete) -> ExactMoments:
    """Exact mean and variance of score(**points) over all combinations of independent discrete laws.

    Args:
        score: A function of one point for each law.
        **laws: The law of each argument.

    Returns:
        Mean and variance as Fractions.

    Raises:
        OptionError: If there are too many combinations.

    >>> sign = Discrete([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    >>> enumerate_moments(lambda q, k: q[0] * k[0] + q[1] * k[1], q=sign, k=sign)
    ExactMoments(mean=Fraction(0, 1), variance=Fraction(2, 1))
    """
    cases = math.prod(len(law.points) for law in laws.values())
    if cases > MOST_CASES:
        raise OptionError(complaint("laws", f"{cases} combinations", f"at most {MOST_CASES}", "use fewer points"))
    first = second = Fraction(0)
    for case in combinations(*(zip(law.points, law.chances, strict=True) for law in laws.values())):
        value = Fraction(score(**{name: point for name, (point, _) in zip(laws, case, strict=True)}))
        chance = math.prod((chance for _, chance in case), start=Fraction(1))
        first += chance * value
        second += chance * value**2
    return ExactMoments(first, second - first**2)


class Sampled(NamedTuple):
    """Estimates, and their confidence intervals."""

    mean: float
    mean_interval: tuple[float, float]
    variance: float
    variance_interval: tuple[float, float]


def monte_carlo(score, *, samples: int = 40_000, seed: int = 0, confidence: float = 0.999, **laws) -> Sampled:
    """Mean and variance of score(**draws) by sampling normal vectors, each with a confidence interval.

    Args:
        score: A function of arrays of shape (samples, d) that returns one number per sample.
        samples: The number of samples, at least 100.
        seed: The seed of the generator.
        confidence: The confidence of the intervals, between 0 and 1.
        **laws: For each argument its mean (d numbers) and its covariance (d by d).

    Returns:
        Estimates with intervals by the normal approximation; that of the variance uses the fourth central moment.

    Raises:
        OptionError: If `samples` or `confidence` is out of range.

    >>> law = ([0.0, 0.0, 0.0], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> low, high = monte_carlo(lambda q, k: (q * k).sum(1), q=law, k=law).variance_interval
    >>> low < 3 < high
    True
    """
    import statistics

    import numpy as np

    if samples < 100 or not 0 < confidence < 1:
        given = f"samples={samples}, confidence={confidence}"
        raise OptionError(complaint("monte_carlo", given, "100 samples or more and a confidence between 0 and 1"))
    generator = np.random.default_rng(seed)
    draws = {name: generator.multivariate_normal(mean, cov, size=samples) for name, (mean, cov) in laws.items()}
    values = np.asarray(score(**draws), dtype=float)
    found = sample_moments(values)
    wide = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    return Sampled(
        found.mean,
        (found.mean - wide * found.mean_error, found.mean + wide * found.mean_error),
        found.variance,
        (found.variance - wide * found.variance_error, found.variance + wide * found.variance_error),
    )


class SampleMoments(NamedTuple):
    """Mean and variance of a sample, each with its standard error."""

    mean: float
    mean_error: float
    variance: float
    variance_error: float


def sample_moments(values) -> SampleMoments:
    """Mean and variance of an array of at least two numbers, with standard errors from its fourth central moment."""
    samples = len(values)
    mean = float(values.mean())
    centred = values - mean
    variance = float((centred**2).sum() / (samples - 1))
    fourth = float((centred**4).mean())
    return SampleMoments(
        mean,
        math.sqrt(variance / samples),
        variance,
        math.sqrt(max(fourth - variance**2, 0.0) / samples),
    )
