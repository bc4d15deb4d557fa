"""Function calls: known functions and their shapes, declared maps, and max_j, argmax_j, softmax_j over an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import factorial
from typing import TYPE_CHECKING

from qkv.maths.parsing import scripts, shapes, sums
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk
from qkv.maths.parsing.shapes import can_unify, describe_shape, is_zero, pretty_name, resolved_size, unify, unify_shapes
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Covariance,
    Divide,
    Expect,
    Hadamard,
    Index,
    Multiply,
    Node,
    Number,
    Part,
    Power,
    Span,
    Special,
    Sum,
    Symbol,
    Transpose,
    Type,
    Written,
    free_indices,
    symbols_of,
)

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator


_MOST_CHOSEN = 8
_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt"))
_EXTREMES = frozenset(("max", "min", "argmax"))
_OF_VECTORS = frozenset(("softmax", "argmax", "diag", "norm", "sum"))


def call(elaborator: Elaborator, part: Syntax) -> Node:
    """A function with brackets, such as \\log_2(x) and \\log^2(x)."""
    suffixes = [piece for piece in part.parts[1:-1] if isinstance(piece, Syntax)]
    rows = part[-1][1]

    def arguments() -> list[Node]:
        if len(rows) > 1:
            return [elaborator.term(part[-1])]
        return [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]

    return _called(elaborator, part, suffixes, arguments)


def applied(elaborator: Elaborator, part: Syntax) -> Node:
    """A function with an argument that has no brackets."""
    suffixes = [piece for piece in part.parts[1:-1] if is_rule(piece, "suffix")]
    minus = next((piece for piece in part if is_token(piece, "MINUS")), None)

    def arguments() -> list[Node]:
        argument = elaborator.term(part[-1])
        return [argument if minus is None else elaborator.negate(argument, (span_of(minus)[0], argument.span[1]))]

    return _called(elaborator, part, suffixes, arguments)


def _called(elaborator: Elaborator, part: Syntax, suffixes: list[Syntax], given: Callable[[], list[Node]]) -> Node:
    name, span = str(part[0]), part.span
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if lower and (name in _EXTREMES or (name == "softmax" and _below_one_letter(lower[0]))):
        node = over_index(elaborator, part, lower[0], given)
    else:
        node = _with_lower(elaborator, name, lower, given(), span)
    return scripts.with_upper_indices(elaborator, node, upper, span)


def regrouped(atom: Syntax | Token, suffixes: list[Syntax]) -> tuple[Syntax | Token, list[Syntax]]:
    """max_j (Q Kᵀ)_{ij} takes (Q Kᵀ)_{ij}: a subscript after the brackets belongs to the argument."""
    if not is_rule(atom, "call") or atom[0] not in _EXTREMES or not any(is_token(s[0], "SUB") for s in suffixes):
        return atom, suffixes
    if not any(is_rule(piece, "suffix") and is_token(piece[0], "SUB") for piece in atom):
        return atom, suffixes
    span = (span_of(atom[-1])[0], suffixes[-1].span[1])
    of = Syntax("operand", (atom[-1], *suffixes), span, atom.depth)
    return Syntax("applied", (*atom.parts[:-1], of), (atom.span[0], span[1]), atom.depth), []


def _below_one_letter(lower: Syntax) -> bool:
    written = scripts.script_letters(scripts.script_entries(lower))
    return len(written) == 1 and written.isalpha()


def _with_lower(elaborator: Elaborator, name: str, lower: list[Syntax], arguments: list[Node], span: Span) -> Node:
    """A call with a subscript: the base of a logarithm, the kind of a norm, the names an expectation is over."""
    node: Node
    if lower and name == "log":
        base = scripts.script_value(elaborator, scripts.script_entries(lower[0])[0])
        if base.shape:
            elaborator.ill_typed(
                f"the base of a logarithm is a scalar, and this is {describe_shape(base.shape)}", base.span
            )
        top = known_call(elaborator, "log", arguments, span)
        node = elaborator.divide(top, Call((), "log", (base,), span=base.span), span)
    elif lower and name == "norm":
        node = norm(
            elaborator,
            _only_argument(elaborator, name, arguments, span),
            scripts.script_letters(scripts.script_entries(lower[0])),
            span,
        )
    elif lower and name not in ("E", "Var", "Cov", "softmax"):
        elaborator.unreadable(f"a lower index on {name} is not read", lower[0].span)
    else:
        if lower and name in ("E", "Var", "Cov"):
            _check_random_names(elaborator, lower[0], arguments)
        node = known_call(elaborator, name, arguments, span)
    return node


def _check_random_names(elaborator: Elaborator, lower: Syntax, arguments: list[Node]) -> None:
    """E_{q,k}, E_{q,k∼p}: the names below must be random, and all random names inside must be among them."""
    below = set()
    for entry in scripts.script_entries(lower):
        names: Syntax | Token = entry
        if is_rule(entry, "entry") and is_rule(chain := entry[0], "chain") and len(chain) == 3 and chain[1] == "~":
            if not is_token(only(chain[2]), "NAME"):
                reason = "a law below an expectation is not read: the names have theirs declared"
                elaborator.unreadable(reason, lower.span)
            names = chain[0]
        below |= {str(leaf) for leaf in walk(names) if isinstance(leaf, Token)}
    for name in sorted(below):
        kind = elaborator.types.get(name)
        if kind is None or not kind.random:
            reason = f"names below an expectation must be random, and {shapes.pretty_name(name)} is not"
            elaborator.unreadable(reason, lower.span)
    for name, symbol in symbols_of(*arguments).items():
        if symbol.type.random and name not in below:
            over = ", ".join(map(shapes.pretty_name, sorted(below)))
            reason = f"an expectation over {over} alone is not read; {shapes.pretty_name(name)} is random as well"
            elaborator.unreadable(f"{reason}, and E[…] is over all that is", lower.span)


def _only_argument(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) != 1:
        elaborator.ill_typed(f"{name} takes one argument, not {len(arguments)}", span)
    return arguments[0]


def known_call(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    """The call of a known function, with its arguments checked."""
    if name in ("max", "min"):
        return _extreme(elaborator, name, arguments, span)
    if name == "Cov":
        if len(arguments) != 2:
            elaborator.ill_typed(f"Cov takes two arguments, not {len(arguments)}", span)
        return _covariance(elaborator, arguments[0], arguments[1], span)
    if name in _OF_VECTORS and len(arguments) > 1 and not any(argument.shape for argument in arguments):
        arguments = [Written((len(arguments),), tuple(arguments), span=span)]  # softmax(1, 2, 3)
    body = _only_argument(elaborator, name, arguments, span)
    if name in _ENTRYWISE:
        return Call(body.shape, name, (body,), span=span)
    if name == "abs":
        return Call(body.shape, "abs", (body,), span=span)
    if name == "norm":
        return norm(elaborator, body, "", span)
    if name == "E":
        return Expect(body.shape, body, span=span)
    if name == "Var":
        return _covariance(elaborator, body, body, span)
    return _shaped(elaborator, name, body, span)


def _shaped(elaborator: Elaborator, name: str, body: Node, span: Span) -> Node:
    shape, text, described = body.shape, elaborator.text(body), describe_shape(body.shape)
    if name == "softmax":
        if not shape:
            elaborator.ill_typed(f"softmax acts on a vector or on the rows of a matrix, and {text} is a scalar", span)
        return Call(shape, name, (body,), span=span)
    if name in ("trace", "det"):
        if len(shape) != 2 or not can_unify(*shape):
            elaborator.ill_typed(f"{name} takes a square matrix, and {text} is {described}", span)
        unify(*shape)
        return Call((), name, (body,), span=span)
    if name == "diag":
        if len(shape) == 1:
            return Call((shape[0], shape[0]), name, (body,), span=span)
        if len(shape) != 2 or not can_unify(*shape):
            elaborator.ill_typed(f"diag takes a vector or a square matrix, and {text} is {described}", span)
        unify(*shape)
        return Call((shape[0],), name, (body,), span=span)
    if name == "argmax" and len(shape) != 1:
        elaborator.ill_typed(f"argmax takes a vector, and {text} is {described}", span)
    return Call((), name, (body,), span=span)


def _extreme(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) == 1 and len(arguments[0].shape) == 1:
        return Call((), name, tuple(arguments), span=span)
    for argument in arguments:
        if argument.shape:
            described = describe_shape(argument.shape)
            relu = len(arguments) == 2 and name == "max" and any(is_zero(other) for other in arguments)
            suggestion = shapes.node_text(Call(argument.shape, "relu", (argument,))) if relu else ""
            reason = f"{name} takes one vector or several scalars, and {elaborator.text(argument)} is {described}"
            elaborator.ill_typed(reason, span if relu else argument.span, suggestion)
    return arguments[0] if len(arguments) == 1 else Call((), name, tuple(arguments), span=span)


def _covariance(elaborator: Elaborator, left: Node, right: Node, span: Span) -> Node:
    if len(left.shape) > 1 or len(right.shape) > 1:
        elaborator.ill_typed("a covariance is of scalars or of vectors", span)
    return Covariance((*left.shape, *right.shape), left, right, span=span)


def norm(elaborator: Elaborator, body: Node, which: str, span: Span) -> Node:
    """‖x‖, ‖x‖_1, ‖x‖_∞, ‖A‖_F, and |x|."""
    if len(body.shape) == 2 and resolved_size(body.shape[0]) == 1:
        body = body.body if isinstance(body, Transpose) else elaborator.transpose(body, body.span)
    if not body.shape:
        if which == "F":
            elaborator.ill_typed("‖·‖_F is of a matrix", span)
        return Call((), "abs", (body,), span=span)
    if len(body.shape) == 2:
        if which != "F":
            text = elaborator.text(body)
            reason = f"{text} is {describe_shape(body.shape)}, and only its Frobenius norm is read"
            elaborator.ill_typed(reason, span, shapes.node_text(Call((), "norm_F", (body,))))
        return Call((), "norm_F", (body,), span=span)
    name = {"": "norm", "2": "norm", "1": "norm1", "infinity": "norm_inf", "F": "norm"}.get(which)
    if name is None:
        elaborator.unreadable(f"of norms, _1, _2, _∞ and _F are read, not _{which}", span)
    return Call((), name, (body,), span=span)


def binomial(elaborator: Elaborator, top: Node, bottom: Node, span: Span) -> Node:
    """The binomial coefficient n over k for a small k: n (n - 1) … / k!"""
    if top.shape or bottom.shape:
        elaborator.ill_typed("a binomial coefficient is of scalars", span)
    chosen = bottom.value if isinstance(bottom, Number) else None
    if chosen is None or chosen.denominator != 1 or not 0 <= chosen <= _MOST_CHOSEN:
        elaborator.unreadable(f"a binomial coefficient is read up to {_MOST_CHOSEN} below", span)
    product: Node = elaborator.number(1, span)
    for less in range(int(chosen)):
        factor = elaborator.add([top, elaborator.number(-less, span)], span) if less else top
        product = elaborator.multiply(product, factor, "", span) if less else factor
    return elaborator.divide(product, elaborator.number(factorial(int(chosen)), span), span) if chosen > 1 else product


def mapped(elaborator: Elaborator, part: Syntax) -> Node:
    """The call of a declared map."""
    token, rows = part[0], part[-1][1]
    name = shapes.pretty_name(token)
    kind: Type = elaborator.types[str(token)]
    arguments = [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]
    if len(rows) != 1 or len(arguments) != len(kind.arguments):
        wanted = shapes.plural(len(kind.arguments), "argument")
        elaborator.ill_typed(f"{name} takes {wanted}, not {len(arguments)}", part.span)
    from_row = False
    for place, shape in enumerate(kind.arguments):
        given = elaborator.as_shape(arguments[place], shape)
        if len(shape) == 1 and len(given.shape) == 2 and resolved_size(given.shape[0]) == 1:
            given, from_row = _as_column(elaborator, given), True
        arguments[place] = given
        if not unify_shapes(given.shape, shape):
            described = describe_shape(given.shape)
            reason = f"{name} takes {describe_shape(shape)}, and {elaborator.text(given)} is {described}"
            elaborator.ill_typed(reason, given.span)
    symbol = Symbol((), str(token), kind, span=span_of(token))
    made = Call(kind.shape, str(token), tuple(arguments), symbol, span=part.span)
    return elaborator.transpose(made, part.span) if from_row and len(kind.shape) == 1 else made


def _as_column(elaborator: Elaborator, row: Node) -> Node:
    """A row (1, d) as the vector (d,)."""
    match row:
        case Transpose(body=body):
            return body
        case Part(body=body, indices=(Node() as i, None)) if len(body.shape) == 2:
            return Part((body.shape[1],), body, (i,), span=row.span)
    return elaborator.transpose(row, row.span)


_LIFTED_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt", "abs"))


def over_index(elaborator: Elaborator, part: Syntax, lower: Syntax, arguments: Callable[[], list[Node]]) -> Node:
    """A function over an index below it; `arguments` reads its argument, in which the index is bound."""
    name, before = str(part[0]), elaborator.scope
    index = sums.single_index(elaborator, lower, part)
    elaborator.scope = {**before, index.name: index}
    given = arguments()
    elaborator.scope = before
    shown = pretty_name(index.name)
    if len(given) != 1 or given[0].shape:
        if name == "softmax":
            return known_call(elaborator, name, given, part.span)
        elaborator.unreadable(f"{name} over {shown} is of one scalar with {shown} in it, as in {name}_j s_j", part.span)
    if index.name not in free_indices(given[0]):
        elaborator.unreadable(f"{shown} does not occur in the argument of {name}", part.span)
    vector = vector_over(given[0], index)
    if name != "softmax":
        elaborator.bound[index.name] = name
        return Call((), name, (vector,), span=part.span)
    place = sums.outer_index(elaborator, index.name, lower.span)
    if isinstance(place, Index):
        unify(place.size, index.size)
    return Part((), Call(vector.shape, name, (vector,), span=part.span), (place,), span=part.span)


def vector_over(node: Node, index: Index) -> Node:
    """The vector whose component j is this scalar at `index` = j."""

    def constant(*parts: Node) -> bool:
        return index.name not in free_indices(*parts)

    def places(part: Node | None) -> bool:
        return isinstance(part, Index) and part.name == index.name

    shape, span = (index.size,), node.span
    if constant(node):
        return Multiply(shape, (node, Special(shape, "ones", span=span)), span=span)
    match node:
        case Part(body=body, indices=(j,)) if len(body.shape) == 1 and places(j) and constant(body):
            return body
        case Part(body=body, indices=(Node() as i, j)) if places(j) and constant(body, i):
            return Part(shape, body, (i,), span=span)
        case Part(body=body, indices=(j, Node() as i)) if places(j) and constant(body, i):
            return Part(shape, body, (None, i), span=span)
        case Add(terms=terms):
            return Add(shape, tuple(vector_over(term, index) for term in terms), span=span)
        case Multiply(factors=factors):
            fixed = [factor for factor in factors if constant(factor)]
            moving = [vector_over(factor, index) for factor in factors if not constant(factor)]
            vector = reduce(lambda left, right: Hadamard(shape, left, right, span=span), moving)
            return Multiply(shape, (*fixed, vector), span=span) if fixed else vector
        case Divide(top=top, bottom=bottom) if constant(bottom):
            return Divide(shape, vector_over(top, index), bottom, span=span)
        case Power(base=base, exponent=Number(value=two)) if two == 2:
            vector = vector_over(base, index)
            return Hadamard(shape, vector, vector, span=span)
        case Call(name=name, arguments=(argument,), map=None) if name in _LIFTED_ENTRYWISE and not argument.shape:
            return Call(shape, name, (vector_over(argument, index),), span=span)
        case Sum(body=body, conditions=(), product=False):
            return replace(node, shape=shape, body=vector_over(body, index))
        case Expect(body=body):
            return Expect(shape, vector_over(body, index), span=span)
        case Contract(left=left, right=Part(body=rows, indices=(j,))) if places(j) and constant(left, rows):
            column = left.body if isinstance(left, Transpose) else Transpose(left.shape[1:], left, span=span)
            return Contract(shape, rows, column, span=span)
        case Contract(left=Transpose(body=Part(body=rows, indices=(j,))), right=right) if places(j):
            if constant(rows, right):
                return Contract(shape, rows, right, span=span)
    # Anything else is a sum of multiples of the columns of the identity.
    column = Part(shape, Special((index.size, index.size), "identity", span=span), (index,), span=span)
    return Sum(shape, (index,), Multiply(shape, (node, column), span=span), span=span)
