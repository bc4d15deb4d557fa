"""Trees put together so that what is plain stays plain: no 0 that is added, no identity that multiplies, σ²σ² as σ⁴.

For writing formulas that people read; equality is decided elsewhere, by normal forms.
"""

from __future__ import annotations

import re
from fractions import Fraction

from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Multiply,
    Node,
    Number,
    Outer,
    Power,
    Size,
    Special,
    Symbol,
    Transpose,
    Type,
)


def number(value: int | Fraction) -> Number:
    return Number((), Fraction(value))


def resolved(node: Node) -> Node:
    """A defined name as what it stands for, down to a name without a definition or to something else."""
    while isinstance(node, Symbol) and node.type.definition is not None:
        node = node.type.definition
    return node


def is_zero(node: Node) -> bool:
    node = resolved(node)
    if isinstance(node, Multiply):
        return any(is_zero(factor) for factor in node.factors)
    return node == Special(node.shape, "zeros") or (isinstance(node, Number) and node.value == 0)


def is_identity(node: Node) -> bool:
    node = resolved(node)
    return isinstance(node, Special) and node.name == "identity"


def zero(shape: tuple[Size, ...]) -> Node:
    return Special(shape, "zeros") if shape else number(0)


def split(node: Node) -> tuple[list[Node], Node | None]:
    """Its scalar factors, and the one vector or matrix among them (None for a scalar)."""
    node = resolved(node) if isinstance(resolved(node), Multiply | Special | Number) else node
    if isinstance(node, Multiply):
        parts = [split(factor) for factor in node.factors]
        bodies = [body for _, body in parts if body is not None]
        return [scalar for scalars, _ in parts for scalar in scalars], bodies[0] if bodies else None
    if isinstance(node, Divide) and node.shape:
        scalars, body = split(node.top)
        return [*scalars, Power((), node.bottom, number(-1))], body
    return ([], node) if node.shape else ([node], None)


def times(*nodes: Node) -> Node:
    """The product of scalars and at most one vector or matrix: numbers first, powers of one base joined.

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
        return zero(shape)
    above = [Power((), b, number(e)) if e != 1 else b for b, e in powers.items() if e > 0]
    below = [Power((), b, number(-e)) if e != -1 else b for b, e in powers.items() if e < 0]
    factors = [*([number(coefficient)] if coefficient != 1 else []), *above, *bodies]
    top = factors[0] if len(factors) == 1 else Multiply(shape, tuple(factors)) if factors else number(1)
    if not below:
        return top
    return Divide(shape, top, below[0] if len(below) == 1 else Multiply((), tuple(below)))


def plus(*nodes: Node) -> Node:
    """The sum, with equal terms gathered.

    >>> x = Symbol((), "x", Type("scalar"))
    >>> plus(x, number(0), x) == Multiply((), (number(2), x))
    True
    """
    gathered: dict[Node, Fraction] = {}
    for node in nodes:
        for term in node.terms if isinstance(node, Add) else (node,):
            if is_zero(term):
                continue
            coefficient, rest = Fraction(1), term
            if isinstance(term, Multiply) and isinstance(term.factors[0], Number) and term.factors[0].unit is None:
                coefficient, others = term.factors[0].value, term.factors[1:]
                rest = others[0] if len(others) == 1 else Multiply(term.shape, others)
            gathered[rest] = gathered.get(rest, Fraction(0)) + coefficient
    terms = [times(number(coefficient), rest) for rest, coefficient in gathered.items() if coefficient]
    if len(terms) < 2:
        return terms[0] if terms else zero(nodes[0].shape)
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
        return zero(shape)
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
    ones = [isinstance(resolved(body), Special) for body in (left_body, right_body)]
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
    """A size as a scalar: 3, d, or what a text such as n+1 says of naturals."""
    if isinstance(size, int):
        return number(size)
    if re.fullmatch(r"[^\W\d]\w*'*", size):
        return Symbol((), size, Type("natural"))
    from qkv.maths.reading import parse

    names = re.findall(r"[^\W\d]\w*'*", size)
    return parse(size, dict.fromkeys(names, "natural"))
