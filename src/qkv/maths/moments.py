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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import product as combinations
from typing import Any, NamedTuple

from qkv.errors import OptionError, complaint
from qkv.maths import tree as t
from qkv.maths.parsing.parse import parse
from qkv.maths.printing import latex
from qkv.maths.sizes import size_node as dimension


def number(value: int | Fraction) -> t.Number:
    return t.Number((), Fraction(value))


def resolve(node: t.Node) -> t.Node:
    """A name replaced by its definition, as long as it has one."""
    while isinstance(node, t.Symbol) and node.type.definition is not None:
        node = node.type.definition
    return node


def is_zero(node: t.Node) -> bool:
    node = resolve(node)
    if isinstance(node, t.Multiply):
        return any(is_zero(factor) for factor in node.factors)
    if isinstance(node, t.Transpose):
        return is_zero(node.body)
    return node == t.Special(node.shape, "zeros") or (isinstance(node, t.Number) and node.value == 0)


def is_identity(node: t.Node) -> bool:
    node = resolve(node)
    return isinstance(node, t.Special) and node.name == "identity"


def zero_of(shape: tuple[t.Size, ...]) -> t.Node:
    return t.Special(shape, "zeros") if shape else number(0)


def split(node: t.Node) -> tuple[list[t.Node], Any]:
    """The scalar factors of a node, and its vector or matrix (None for a scalar)."""
    node = resolve(node) if isinstance(resolve(node), t.Multiply | t.Special | t.Number) else node
    if isinstance(node, t.Multiply):
        parts = [split(factor) for factor in node.factors]
        bodies = [body for _, body in parts if body is not None]
        return [scalar for scalars, _ in parts for scalar in scalars], bodies[0] if bodies else None
    if isinstance(node, t.Divide) and node.shape:
        scalars, body = split(node.top)
        return [*scalars, t.Power((), node.bottom, number(-1))], body
    return ([], node) if node.shape else ([node], None)


def times(*nodes: t.Node) -> t.Node:
    """The product of scalars and at most one vector or matrix: numbers first, powers of one base merged.

    >>> sigma = t.Power((), t.Symbol((), "sigma", t.Type("positive")), number(2))
    >>> times(sigma, number(1), sigma) == t.Power(sigma.shape, sigma.base, number(4))
    True
    """
    parts = [split(node) for node in nodes]
    scalars = [scalar for found, _ in parts for scalar in found]
    bodies = [body for _, body in parts if body is not None]
    shape = bodies[0].shape if bodies else ()
    coefficient = Fraction(1)
    powers: dict[t.Node, Fraction] = {}
    for scalar in scalars:
        base, exponent = scalar, Fraction(1)
        if isinstance(scalar, t.Power) and isinstance(scalar.exponent, t.Number):
            base, exponent = scalar.base, scalar.exponent.value
        if isinstance(base, t.Number) and base.unit is None and exponent.denominator == 1 and base.value:
            coefficient *= base.value ** int(exponent)
        else:
            powers[base] = powers.get(base, Fraction(0)) + exponent
    if coefficient == 0 or any(is_zero(factor) for factor in (*powers, *bodies)):
        return zero_of(shape)
    above = [t.Power((), b, number(e)) if e != 1 else b for b, e in powers.items() if e > 0]
    below = [t.Power((), b, number(-e)) if e != -1 else b for b, e in powers.items() if e < 0]
    factors = [*([number(coefficient)] if coefficient != 1 else []), *above, *bodies]
    top = factors[0] if len(factors) == 1 else t.Multiply(shape, tuple(factors)) if factors else number(1)
    if not below:
        return top
    return t.Divide(shape, top, below[0] if len(below) == 1 else t.Multiply((), tuple(below)))


def plus(*nodes: t.Node) -> t.Node:
    """The sum, with equal terms collected.

    >>> x = t.Symbol((), "x", t.Type("scalar"))
    >>> plus(x, number(0), x) == t.Multiply((), (number(2), x))
    True
    """
    collected: dict[t.Node, Fraction] = {}
    for node in nodes:
        for term in node.terms if isinstance(node, t.Add) else (node,):
            if is_zero(term):
                continue
            coefficient, rest = Fraction(1), term
            if isinstance(term, t.Multiply) and isinstance(term.factors[0], t.Number) and term.factors[0].unit is None:
                coefficient, others = term.factors[0].value, term.factors[1:]
                rest = others[0] if len(others) == 1 else t.Multiply(term.shape, others)
            collected[rest] = collected.get(rest, Fraction(0)) + coefficient
    terms = [times(number(coefficient), rest) for rest, coefficient in collected.items() if coefficient]
    if len(terms) < 2:
        return terms[0] if terms else zero_of(nodes[0].shape)
    return t.Add(nodes[0].shape, tuple(terms))


def transposed(node: t.Node) -> t.Node:
    scalars, body = split(node)
    turned = (1, *body.shape) if len(body.shape) == 1 else body.shape[:0:-1] if body.shape[0] == 1 else body.shape[::-1]
    if isinstance(body, t.Transpose):
        body = body.body
    elif isinstance(body, t.Outer):
        body = t.Outer(turned, body.right, body.left)
    elif isinstance(body, t.Contract) and len(body.shape) == 2 and len(body.right.shape) == 2:
        body = product(transposed(body.right), transposed(body.left))
    elif isinstance(body, t.Special) and len(body.shape) == 2:
        body = t.Special(turned, body.name)
    else:
        body = t.Transpose(turned, body)
    return times(*scalars, body)


def product(left: t.Node, right: t.Node) -> t.Node:
    """A matrix times a matrix or a vector; a row times a column is a scalar."""
    (left_scalars, one), (right_scalars, other) = split(left), split(right)
    shape = () if one.shape[0] == 1 and len(other.shape) == 1 else (one.shape[0], *other.shape[1:])
    if is_zero(one) or is_zero(other):
        return zero_of(shape)
    if is_identity(one) or is_identity(other):
        body = other if is_identity(one) else one
    elif isinstance(one, t.Outer) and len(other.shape) == 1:
        body = times(dot(one.right, other), one.left)
    elif isinstance(one, t.Outer):
        body = t.Outer(shape, one.left, product(transposed(other), one.right))
    else:
        body = t.Contract(shape, one, other)
    return times(*left_scalars, *right_scalars, body)


def dot(left: t.Node, right: t.Node) -> t.Node:
    """leftᵀ right of two vectors, a matrix times a vector, or a product with a scalar."""
    if not left.shape or not right.shape:
        return times(left, right)
    if len(left.shape) == 2:
        return product(left, right)
    (a, one), (b, other) = split(left), split(right)
    if all(resolve(body) == t.Special(body.shape, "ones") for body in (one, other)):
        return times(*a, *b, dimension(one.shape[0]))
    return product(transposed(left), right)


def trace(matrix: t.Node) -> t.Node:
    scalars, body = split(matrix)
    if is_zero(body):
        return number(0)
    if isinstance(body, t.Outer):
        return times(*scalars, dot(body.right, body.left))
    return times(*scalars, dimension(body.shape[0]) if is_identity(body) else t.Call((), "trace", (body,)))


MOST_TERMS = 200
DEEPEST = 60


@dataclass
class BilinearForm:
    """constant + Σ_r linear[r]ᵀ r + Σ_{r<s} rᵀ pairs[r, s] s, for a scalar.

    `names` are the random names in source order. The coefficient of a scalar name is a scalar, and that of a scalar and
    a vector is a vector.
    """

    names: dict[str, t.Symbol]
    constant: t.Node
    linear: dict[str, t.Node] = field(default_factory=dict)
    pairs: dict[tuple[str, str], t.Node] = field(default_factory=dict)


def random_symbols(node: t.Node) -> dict[str, t.Symbol]:
    """The random names in a node, in source order; those inside E or Cov do not count."""
    found: dict[str, t.Symbol] = {}
    pending = [node]
    while pending:
        here = resolve(pending.pop())
        if isinstance(here, t.Symbol):
            if here.type.random:
                found.setdefault(here.name, here)
        elif not isinstance(here, t.Expect | t.Covariance):
            pending += reversed(t.children(here))
    return found


Form = dict[tuple[str, ...], t.Node]


class FormReader:
    """Reads trees as forms: the coefficient of each product of random names, () for the constant.

    The coefficient of a name in a vector is a matrix (a vector, if the name is a scalar). `text` is the source, for
    error messages.
    """

    def __init__(self, text: str, names: dict[str, t.Symbol]) -> None:
        self.text, self.names = text, names
        self.places = {name: place for place, name in enumerate(names)}

    def refusal(self, why: str) -> OptionError:
        hint = "write it with qᵀk, qᵀAk, aᵀq, sums of these, with numbers or fixed names as factors"
        return OptionError(complaint("expression", self.text, f"at most bilinear in independent vectors: {why}", hint))

    def read(self, node: t.Node, depth: int = 0) -> Form:
        """A scalar or a vector, or the transpose of a row, as a form."""
        if depth > DEEPEST:
            raise self.refusal("it is nested too deeply")
        node = resolve(node)
        if not random_symbols(node):
            return {(): transposed(node) if len(node.shape) == 2 else node}
        match node:
            case t.Symbol():
                one = t.Special((*node.shape, *node.shape), "identity") if node.shape else number(1)
                return {(node.name,): one}
            case t.Transpose(body=body):
                return self.read(body, depth + 1)
            case t.Add(terms=terms):
                return self.added([self.read(term, depth + 1) for term in terms])
            case t.Multiply(factors=factors):
                forms = [self.read(factor, depth + 1) for factor in factors]
                # A vector has at most one random factor, which is itself or linear in scalar names.
                chances = [factor for factor in factors if random_symbols(factor)]
                scalars = [key for f, form in zip(factors, forms, strict=True) if not f.shape for key in form]
                wide = any(len(key) > 1 or any(self.names[name].shape for name in key) for key in scalars)
                if node.shape and (len(chances) > 1 or wide):
                    raise self.refusal("a vector is multiplied by more than one random factor")
                return reduce(self.multiplied, forms)
            case t.Divide(top=top, bottom=bottom) if not random_symbols(bottom):
                return self.multiplied({(): t.Divide((), number(1), bottom)}, self.read(top, depth + 1))
            case t.Contract(left=left, right=right) if not node.shape:
                return self.dotted(self.read(left, depth + 1), self.read(right, depth + 1))
            case t.Contract(left=left, right=right) if len(right.shape) == 1 and not random_symbols(left):
                return {key: product(left, value) for key, value in self.read(right, depth + 1).items()}
            case t.Contract(left=left, right=right) if left.shape[:1] == (1,) and not random_symbols(right):
                return {key: product(transposed(right), value) for key, value in self.read(left, depth + 1).items()}
            case t.Call(name="sum", arguments=(body,)):
                return self.dotted({(): t.Special(body.shape, "ones")}, self.read(body, depth + 1))
            case t.Sum(indices=(index,), conditions=(), product=False, body=body):
                return self.summed(index, body, depth)
        raise self.refusal(f"{', '.join(random_symbols(node))} occurs in something that is not linear in it")

    def summed(self, index: t.Index, body: t.Node, depth: int) -> Form:
        """Σ_i u_i v_i as uᵀv, Σ_i u_i as 1ᵀu."""
        factors = body.factors if isinstance(body, t.Multiply) else (body,)
        parts = [f.body for f in factors if isinstance(f, t.Part) and f.indices == (index,) and len(f.body.shape) == 1]
        others = [f for f in factors if not (isinstance(f, t.Part) and f.indices == (index,))]
        if (
            not 1 <= len(parts) <= 2
            or len(parts) + len(others) < len(factors)
            or any(isinstance(n, t.Index) for n in t.walk(*others))
        ):
            raise self.refusal(f"the sum over {index.name} is not a dot product")
        left = self.read(parts[0], depth + 1)
        ones: Form = {(): t.Special((index.size,), "ones")}
        right = self.read(parts[1], depth + 1) if len(parts) == 2 else ones
        return self.multiplied(self.read(times(number(1), *others), depth + 1), self.dotted(left, right))

    def added(self, forms: list[Form]) -> Form:
        total: Form = {}
        for form in forms:
            for key, coefficient in form.items():
                self.put(total, key, coefficient)
        if len(total) > MOST_TERMS:
            raise self.refusal(f"it has more than {MOST_TERMS} terms")
        return total

    def multiplied(self, one: Form, other: Form) -> Form:
        form: Form = {}
        for r, a in one.items():
            for s, b in other.items():
                both = a.shape and b.shape
                self.put(form, r + s, t.Outer((*a.shape, *b.shape), a, b) if both else times(a, b))
        return form

    def dotted(self, left: Form, right: Form) -> Form:
        form: Form = {}
        for r, m in left.items():
            for s, n in right.items():
                if len(m.shape) == len(n.shape) == 1:
                    self.put(form, r + s, dot(m, n))
                elif len(m.shape) == 1:
                    self.put(form, r + s, product(transposed(n), m))
                else:
                    self.put(form, r + s, product(transposed(m), n))
        return form

    def put(self, form: Form, key: tuple[str, ...], coefficient: t.Node) -> None:
        if len(key) > 2:
            raise self.refusal("three or more random factors are multiplied")
        if len(key) == 2 and key[0] == key[1]:
            raise self.refusal(f"{key[0]} is multiplied by itself, whose variance needs its fourth moments")
        if len(key) == 2 and self.places[key[0]] > self.places[key[1]]:
            key = key[::-1]
            coefficient = transposed(coefficient) if len(coefficient.shape) == 2 else coefficient
        form[key] = plus(form[key], coefficient) if key in form else plus(coefficient)


def form_of(node: t.Node, text: str) -> BilinearForm:
    """A scalar as a bilinear form; OptionError if it is not one."""
    if node.shape:
        raise OptionError(complaint("expression", text, "a scalar", "moments are those of one number, such as qᵀk"))
    names = random_symbols(node)
    form = FormReader(text, names).read(node)
    kept = {key: coefficient for key, coefficient in form.items() if key and not is_zero(coefficient)}
    linear = {key[0]: coefficient for key, coefficient in kept.items() if len(key) == 1}
    pairs = {(key[0], key[1]): coefficient for key, coefficient in kept.items() if len(key) == 2}
    return BilinearForm(names, form.get((), number(0)), linear, pairs)


MOST_CASES = 200_000
APART = "linearity; between two parts a deviation of mean zero is independent of the rest"


def _both(law: str) -> dict[str, str]:
    return {name: f"random vector[d] ~ {law}".replace("?", name) for name in "qk"}


ANY_LAW = _both("(mu_?, Sigma_?)") | dict.fromkeys(("mu_q", "mu_k"), "vector[d]")
ANY_LAW |= dict.fromkeys(("Sigma_q", "Sigma_k"), "matrix[d,d]")
VECTOR_MEAN = _both("N(mu, sigma^2 I)") | {"mu": "vector[d]", "sigma": "positive"}
SCALAR_MEAN = _both("N(m 1_d, sigma^2 I)") | {"m": "scalar", "sigma": "positive"}
STANDARD = _both("N(0, I)") | {"d": "natural"}


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


def _mean_steps(node: t.Node, form: BilinearForm) -> list[MomentStep]:
    means = {name: t.Expect(symbol.shape, symbol) for name, symbol in form.names.items()}
    constant = [] if is_zero(form.constant) else [form.constant]
    terms = [*constant, *(t.Expect((), term) for term in _terms(form, form.linear, form.names))]
    apart = [*constant, *(term for term in _terms(form, form.linear, means) if not is_zero(term))]
    independent = "linearity, and independence of what is multiplied" if form.pairs else "linearity of expectation"
    chain = [
        (t.Expect((), node), "what is asked"),
        (_sum_of(terms), "linearity of expectation"),
        (_sum_of(apart), independent),
        (_mean(form), "the means"),
    ]
    return _chain_steps(chain)


def _variance_steps(node: t.Node, form: BilinearForm) -> list[MomentStep]:
    rest = {name: _minus(symbol, _law(symbol).mean) for name, symbol in form.names.items()}
    parts = _terms(form, {name: g for name, g in _slopes(form).items() if not is_zero(g)}, rest)
    left_over = _minus(node, _mean(form))
    apart = [(left_over, "what is left when the mean is taken away")]
    apart.append((_sum_of(parts), "every vector as its mean and a deviation"))
    chain = [
        (t.Covariance((), node, node), "what is asked"),
        (t.Expect((), t.Power((), left_over, number(2))), "definition of variance"),
        (_sum_of([t.Expect((), t.Power((), part, number(2))) for part in parts]), APART),
        (_variance(form), "definition of covariance, and independence of what is multiplied"),
    ]
    deviation = _chain_steps(apart)
    return [*(deviation if deviation[0].text != deviation[-1].text else []), *_chain_steps(chain)]


def _chain_steps(chain: list[tuple[t.Node, str]]) -> list[MomentStep]:
    """The steps of a chain, without lines that repeat the one before."""
    steps: list[MomentStep] = []
    for node, reason in chain:
        text = latex(node)
        if not steps or text != steps[-1].text:
            steps.append(MomentStep(text, reason, "=" if steps else ""))
    # A chain of one line (the mean of a constant) would not be checked.
    return steps if len(steps) > 1 else [*steps, MomentStep(steps[0].text, "as it stands")]


def _law(symbol: t.Symbol):
    law = symbol.type.law
    assert law is not None
    return law


def _minus(node: t.Node, other: t.Node) -> t.Node:
    return node if is_zero(other) else t.Add(node.shape, (node, times(number(-1), other)))


def _sum_of(terms: Sequence[t.Node]) -> t.Node:
    if len(terms) < 2:
        return terms[0] if terms else number(0)
    return t.Add((), tuple(terms))


def _pair_product(left: t.Node, coefficient: t.Node, right: t.Node) -> t.Node:
    """leftᵀ A right, for vectors or scalars."""
    if left.shape and not right.shape:
        return times(dot(coefficient, left), right)
    return dot(left, dot(coefficient, right))


def _terms(form: BilinearForm, linear: dict[str, t.Node], values: Mapping[str, t.Node]) -> list[t.Node]:
    """The linear terms and the pairs, with these values for the names."""
    pairs = [_pair_product(values[r], a, values[s]) for (r, s), a in form.pairs.items()]
    return [*(dot(b, values[r]) for r, b in linear.items()), *pairs]


def _mean(form: BilinearForm) -> t.Node:
    means = {name: _law(symbol).mean for name, symbol in form.names.items()}
    return plus(form.constant, *_terms(form, form.linear, means))


def _slopes(form: BilinearForm) -> dict[str, t.Node]:
    """g_r: the coefficient of the deviation of each name when all others are at their means."""
    slopes: dict[str, list[t.Node]] = {name: [form.linear[name]] if name in form.linear else [] for name in form.names}
    for (r, s), a in form.pairs.items():
        slopes[r].append(dot(a, _law(form.names[s]).mean))
        slopes[s].append(dot(transposed(a) if len(a.shape) == 2 else a, _law(form.names[r]).mean))
    return {name: plus(*terms) for name, terms in slopes.items() if terms}


def _variance(form: BilinearForm) -> t.Node:
    spread = {name: _law(symbol).covariance for name, symbol in form.names.items()}
    slopes = [_quadratic(g, spread[r]) for r, g in _slopes(form).items() if not is_zero(g)]
    pairs = [_pair_variance(spread[r], a, spread[s]) for (r, s), a in form.pairs.items()]
    return plus(number(0), *pairs, *slopes)


def _quadratic(slope: t.Node, covariance: t.Node) -> t.Node:
    return dot(slope, dot(covariance, slope))


def _pair_variance(left: t.Node, coefficient: t.Node, right: t.Node) -> t.Node:
    """E[(zᵀAw)²] of independent z, w with mean zero."""
    if len(coefficient.shape) == 2:
        if isinstance(coefficient, t.Outer):
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

        def average(of: Callable[[tuple[Fraction, ...]], Fraction]) -> Fraction:
            return sum((c * of(p) for p, c in zip(self.points, self.chances, strict=True)), Fraction(0))

        mean = self.mean = tuple(average(lambda p, i=i: p[i]) for i in width)
        self.covariance = tuple(
            tuple(average(lambda p, i=i, j=j: (p[i] - mean[i]) * (p[j] - mean[j])) for j in width) for i in width
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
    ends = [
        (x - wide * e, x + wide * e)
        for x, e in ((found.mean, found.mean_error), (found.variance, found.variance_error))
    ]
    return Sampled(found.mean, ends[0], found.variance, ends[1])


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
    spread = math.sqrt(max(fourth - variance**2, 0.0) / samples)
    return SampleMoments(mean, math.sqrt(variance / samples), variance, spread)
