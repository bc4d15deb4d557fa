"""Function calls and sums: known functions, declared maps, max_j over an index; Σ and Π and what they bind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from math import factorial
from typing import TYPE_CHECKING

from qkv.maths import tree
from qkv.maths.parsing import scripts, shapes
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk
from qkv.maths.parsing.shapes import describe_shape, is_zero, pretty_name, resolved_size, unify, unify_shapes
from qkv.maths.sizes import is_impossible, size_node, size_of
from qkv.maths.tree import Add, Call, Index, Multiply, Node, Number, Part, Span, Special, Sum, Transpose, symbols_of

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator


_MOST_CHOSEN = 8
_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt"))
_EXTREMES = frozenset(("max", "min", "argmax"))
_OF_VECTORS = frozenset(("softmax", "argmax", "diag", "norm", "sum", "mean", "logsumexp", "log_softmax"))
_OF_SCALARS = frozenset(("floor", "ceil", "factorial", "sin", "cos", "tan"))


def call(build: Elaborator, part: Syntax) -> Node:
    """A function with brackets, such as \\log_2(x) and \\log^2(x)."""
    suffixes = [piece for piece in part.parts[1:-1] if isinstance(piece, Syntax)]
    rows = part[-1][1]

    def arguments() -> list[Node]:
        if len(rows) > 1:
            return [build.term(part[-1])]
        return [build.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]

    return _called(build, part, suffixes, arguments)


def applied(build: Elaborator, part: Syntax) -> Node:
    """A function with an argument that has no brackets."""
    suffixes = [piece for piece in part.parts[1:-1] if is_rule(piece, "suffix")]
    minus = next((piece for piece in part if is_token(piece, "MINUS")), None)

    def arguments() -> list[Node]:
        argument = build.term(part[-1])
        return [argument if minus is None else build.negate(argument, (span_of(minus)[0], argument.span[1]))]

    return _called(build, part, suffixes, arguments)


def _called(build: Elaborator, part: Syntax, suffixes: list[Syntax], given: Callable[[], list[Node]]) -> Node:
    name, span = str(part[0]), part.span
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if lower and (name in _EXTREMES or (name == "softmax" and _below_one_letter(lower[0]))):
        node = over_index(build, part, lower[0], given)
    else:
        node = _with_lower(build, name, lower, given(), span)
    if name in ("sin", "cos", "tan") and upper and scripts.script_letters(scripts.script_entries(upper[0])) == "-1":
        build.unreadable(f"{name}^{{-1}} is a reciprocal to some, an inverse function to others", span)
    return scripts.with_upper_indices(build, node, upper, span)


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


def _with_lower(build: Elaborator, name: str, lower: list[Syntax], arguments: list[Node], span: Span) -> Node:
    """A call with a subscript: the base of a logarithm, the kind of a norm, the names an expectation is over."""
    if lower and name == "log":
        base = scripts.script_value(build, scripts.script_entries(lower[0])[0])
        if base.shape:
            build.ill_typed(f"the base of a logarithm is a scalar, and this is {describe_shape(base.shape)}", base.span)
        top = known_call(build, "log", arguments, span)
        return build.divide(top, Call((), "log", (base,), span=base.span), span)
    if lower and name == "norm":
        which = scripts.script_letters(scripts.script_entries(lower[0]))
        return norm(build, _only_argument(build, name, arguments, span), which, span)
    if lower and name in ("E", "Var", "Cov"):
        _check_random_names(build, lower[0], arguments)
    elif lower and name != "softmax":
        build.unreadable(f"a lower index on {name} is not read", lower[0].span)
    return known_call(build, name, arguments, span)


def _check_random_names(build: Elaborator, lower: Syntax, arguments: list[Node]) -> None:
    """E_{q,k}, E_{q,k∼p}: the names below must be random, and all random names inside must be among them."""
    below = set()
    for entry in scripts.script_entries(lower):
        names: Syntax | Token = entry
        if is_rule(entry, "entry") and is_rule(chain := entry[0], "chain") and len(chain) == 3 and chain[1] == "~":
            if not is_token(only(chain[2]), "NAME"):
                reason = "a law below an expectation is not read: the names have theirs declared"
                build.unreadable(reason, lower.span)
            names = chain[0]
        below |= {str(leaf) for leaf in walk(names) if isinstance(leaf, Token)}
    for name in sorted(below):
        kind = build.types.get(name)
        if kind is None or not kind.random:
            reason = f"names below an expectation must be random, and {shapes.pretty_name(name)} is not"
            build.unreadable(reason, lower.span)
    for name, symbol in symbols_of(*arguments).items():
        if symbol.type.random and name not in below:
            over = ", ".join(map(shapes.pretty_name, sorted(below)))
            reason = f"an expectation over {over} alone is not read; {shapes.pretty_name(name)} is random as well"
            build.unreadable(f"{reason}, and E[…] is over all that is", lower.span)


def _only_argument(build: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) != 1:
        build.ill_typed(f"{name} takes one argument, not {len(arguments)}", span)
    return arguments[0]


def known_call(build: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    """The call of a known function, with its arguments checked."""
    if name in ("max", "min"):
        return _extreme(build, name, arguments, span)
    if name == "Cov":
        if len(arguments) != 2:
            build.ill_typed(f"Cov takes two arguments, not {len(arguments)}", span)
        return _covariance(build, arguments[0], arguments[1], span)
    if name in _OF_VECTORS and len(arguments) > 1 and not any(argument.shape for argument in arguments):
        arguments = [tree.Written((len(arguments),), tuple(arguments), span=span)]  # softmax(1, 2, 3)
    body = _only_argument(build, name, arguments, span)
    if name in _ENTRYWISE or name == "abs":
        return Call(body.shape, name, (body,), span=span)
    if name in _OF_SCALARS:
        if body.shape:
            build.ill_typed(f"{name} is of a scalar, and this is {describe_shape(body.shape)}", span)
        return Call((), name, (body,), span=span)
    if name in ("sigmoid", "tanh"):
        return _sigmoid(build, name, body, span)
    if name in ("mean", "logsumexp", "log_softmax"):
        return _of_sums(build, name, body, span)
    if name == "norm":
        return norm(build, body, "", span)
    if name == "E":
        return tree.Expect(body.shape, body, span=span)
    if name == "Var":
        return _covariance(build, body, body, span)
    return _shaped(build, name, body, span)


def _sigmoid(build: Elaborator, name: str, body: Node, span: Span) -> Node:
    """1/(1 + e^{-x}), and tanh(x) as 2/(1 + e^{-2x}) - 1; entry by entry, 1/y is e^{-log y}."""
    one = Special(body.shape, "ones", span=span) if body.shape else build.number(1, span)
    times = build.number(-1 if name == "sigmoid" else -2, span)
    power = Call(body.shape, "exp", (build.multiply(times, body, "", span),), span=span)
    below = build.add([one, power], span)
    if body.shape:
        log = build.negate(Call(body.shape, "log", (below,), span=span), span)
        found: Node = Call(body.shape, "exp", (log,), span=span)
    else:
        found = build.divide(one, below, span)
    if name == "sigmoid":
        return found
    return build.add([build.multiply(build.number(2, span), found, "", span), build.negate(one, span)], span)


def _of_sums(build: Elaborator, name: str, body: Node, span: Span) -> Node:
    """mean, logsumexp and log_softmax by the functions that the tree has."""
    if name == "log_softmax":
        return Call(body.shape, "log", (known_call(build, "softmax", [body], span),), span=span)
    if len(body.shape) != 1 and (name != "mean" or not body.shape):
        build.ill_typed(f"{name} is of a vector, and {build.text(body)} is {describe_shape(body.shape)}", span)
    if name == "logsumexp":
        return Call((), "log", (Call((), "sum", (Call(body.shape, "exp", (body,), span=span),), span=span),), span=span)
    counts = [resolved_size(size) for size in body.shape]
    if not all(isinstance(count, int | str) for count in counts):
        build.unreadable("nothing says of how many entries this is the mean", span)
    count = reduce(lambda left, right: Multiply((), (left, right), span=span), map(size_node, counts))
    return build.divide(Call((), "sum", (body,), span=span), count, span)


def _shaped(build: Elaborator, name: str, body: Node, span: Span) -> Node:
    shape, text, described = body.shape, build.text(body), describe_shape(body.shape)
    square = name in ("trace", "det", "diag") and len(shape) == 2 and unify(*shape)
    if name == "softmax" and not shape:
        build.ill_typed(f"softmax acts on a vector or on the rows of a matrix, and {text} is a scalar", span)
    if name in ("trace", "det") and not square:
        build.ill_typed(f"{name} takes a square matrix, and {text} is {described}", span)
    if name == "diag" and len(shape) != 1 and not square:
        build.ill_typed(f"diag takes a vector or a square matrix, and {text} is {described}", span)
    if name == "argmax" and len(shape) != 1:
        build.ill_typed(f"argmax takes a vector, and {text} is {described}", span)
    made = {"softmax": shape, "diag": shape * 2 if len(shape) == 1 else shape[:1]}.get(name, ())
    return Call(made, name, (body,), span=span)


def _extreme(build: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) == 1 and len(arguments[0].shape) == 1:
        return Call((), name, tuple(arguments), span=span)
    for argument in arguments:
        if argument.shape:
            described = describe_shape(argument.shape)
            relu = len(arguments) == 2 and name == "max" and any(is_zero(other) for other in arguments)
            suggestion = shapes.node_text(Call(argument.shape, "relu", (argument,))) if relu else ""
            reason = f"{name} takes one vector or several scalars, and {build.text(argument)} is {described}"
            build.ill_typed(reason, span if relu else argument.span, suggestion)
    return arguments[0] if len(arguments) == 1 else Call((), name, tuple(arguments), span=span)


def _covariance(build: Elaborator, left: Node, right: Node, span: Span) -> Node:
    if len(left.shape) > 1 or len(right.shape) > 1:
        build.ill_typed("a covariance is of scalars or of vectors", span)
    return tree.Covariance((*left.shape, *right.shape), left, right, span=span)


def norm(build: Elaborator, body: Node, which: str, span: Span) -> Node:
    """‖x‖, ‖x‖_1, ‖x‖_∞, ‖A‖_F, and |x|."""
    if len(body.shape) == 2 and resolved_size(body.shape[0]) == 1:
        body = body.body if isinstance(body, Transpose) else build.transpose(body, body.span)
    if not body.shape:
        if which == "F":
            build.ill_typed("‖·‖_F is of a matrix", span)
        return Call((), "abs", (body,), span=span)
    if len(body.shape) == 2:
        if which != "F":
            text = build.text(body)
            reason = f"{text} is {describe_shape(body.shape)}, and only its Frobenius norm is read"
            build.ill_typed(reason, span, shapes.node_text(Call((), "norm_F", (body,))))
        return Call((), "norm_F", (body,), span=span)
    name = {"": "norm", "2": "norm", "1": "norm1", "infinity": "norm_inf", "F": "norm"}.get(which)
    if name is None:
        build.unreadable(f"of norms, _1, _2, _∞ and _F are read, not _{which}", span)
    return Call((), name, (body,), span=span)


def binomial(build: Elaborator, top: Node, bottom: Node, span: Span) -> Node:
    """The binomial coefficient n over k for a small k: n (n - 1) … / k!"""
    if top.shape or bottom.shape:
        build.ill_typed("a binomial coefficient is of scalars", span)
    chosen = bottom.value if isinstance(bottom, Number) else None
    if chosen is None or chosen.denominator != 1 or not 0 <= chosen <= _MOST_CHOSEN:
        build.unreadable(f"a binomial coefficient is read up to {_MOST_CHOSEN} below", span)
    product: Node = build.number(1, span)
    for less in range(int(chosen)):
        factor = build.add([top, build.number(-less, span)], span) if less else top
        product = build.multiply(product, factor, "", span) if less else factor
    return build.divide(product, build.number(factorial(int(chosen)), span), span) if chosen > 1 else product


def mapped(build: Elaborator, part: Syntax) -> Node:
    """The call of a declared map."""
    rows = part[-1][1]
    arguments = [build.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]
    return map_call(build, part[0], arguments if len(rows) == 1 else [], part.span)


def map_call(build: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    """The call of a declared map; of a vector, it acts on each row of a matrix."""
    kind, shown = build.types[str(name)], shapes.pretty_name(name)
    if len(arguments) != len(kind.arguments):
        wanted = shapes.plural(len(kind.arguments), "argument")
        build.ill_typed(f"{shown} takes {wanted}, not {len(arguments)}", span)
    from_row = False
    for place, shape in enumerate(kind.arguments):
        given = build.as_shape(arguments[place], shape)
        if len(shape) == 1 and len(given.shape) == 2 and resolved_size(given.shape[0]) == 1:
            given, from_row = _as_column(build, given), True
        elif len(shape) == len(arguments) == 1 and len(given.shape) == 2 and unify(given.shape[1], *shape):
            return _by_rows(build, str(name), given, span)
        arguments[place] = given
        if not unify_shapes(given.shape, shape):
            described = describe_shape(given.shape)
            reason = f"{shown} takes {describe_shape(shape)}, and {build.text(given)} is {described}"
            build.ill_typed(reason, given.span)
    called = tree.Symbol((), str(name), kind, span=span_of(name) if isinstance(name, Token) else span)
    made = Call(kind.shape, str(name), tuple(arguments), called, span=span)
    return build.transpose(made, span) if from_row and len(kind.shape) == 1 else made


def _by_rows(build: Elaborator, name: str, matrix: Node, span: Span) -> Node:
    """A map of each row of a matrix: Σ_r e_r f(M_r)ᵀ, the matrix whose rows are f(M_1), f(M_2), …"""
    size = matrix.shape[0]
    index = Index((), fresh_name(build, "r"), size, span=span)
    value = map_call(build, name, [Part(matrix.shape[1:], matrix, (index,), span=span)], span)
    if len(value.shape) > 1:
        build.ill_typed(f"{shapes.pretty_name(name)} of each row would have more than two axes", span)
    return stacked(build, value, index, span)


def stacked(build: Elaborator, value: Node, index: Index, span: Span) -> Node:
    """The vector or the matrix whose entries or rows are the values at `index`: Σ_r e_r f_rᵀ."""
    size = index.size
    unit = Part((size,), Special((size, size), "identity", span=span), (index,), span=span)
    row = tree.Outer((size, *value.shape), unit, value, span=span) if value.shape else Multiply((size,), (value, unit))
    return Sum(row.shape, (index,), row, span=span)


def fresh_name(build: Elaborator, name: str) -> str:
    """A name like this one that no other index has."""
    while name in (*build.scope, *build.types, *build.used, *build.fresh):
        name += "'"
    build.fresh.add(name)
    return name


def is_set(part: Syntax) -> bool:
    """Whether a group is an interval with two kinds of brackets, or a set of several values."""
    several = len(part[1]) == 1 and len(part[1][0]) > 1
    mixed = (part[0].type, part[2].type) in (("LPAR", "RBRACK"), ("LBRACK", "RPAR"))
    return mixed or (several and is_token(part[0], "LSET", "LBRACE"))


def set_node(build: Elaborator, part: Syntax | Token, belongs: bool) -> Node | None:
    """A whole member that is an interval, a set or a shape; None for anything else. `belongs`: it is after ∈."""
    lone = only(part)
    if is_rule(lone, "group") and len(lone[1]) == 1:
        entries = [build.term(e) for e in lone[1][0] if not is_token(e, "COMMA")] if len(lone[1][0]) > 1 else []
        round_or_square = len(entries) == 2 and is_token(lone[0], "LPAR", "LBRACK")
        if is_set(lone) or (round_or_square and (belongs or any(map(_is_infinite, entries)))):
            if not round_or_square and not is_token(lone[0], "LSET", "LBRACE"):
                build.unreadable("an interval has two ends", lone.span)
            build.scalars(entries)
            if round_or_square:
                closed = (is_token(lone[0], "LBRACK"), is_token(lone[2], "RBRACK"))
                return tree.Interval((), entries[0], entries[1], closed, span=lone.span)
            return tree.Collection((), tuple(entries), span=lone.span)
    if belongs:
        return _shape_after_reals(build, lone)
    if is_rule(lone, "product") and all(
        is_rule(piece, "operator") and is_token(piece[0], "TIMES") and piece[0] == "times" for piece in lone.parts[1::2]
    ):
        signs = [build.source[slice(*span_of(piece))] for piece in lone.parts[1::2]]
        sizes = [build.term(piece) for piece in lone.parts[::2]] if not {"*", "@"} & set(signs) else []
        note = f"{shapes.shortened(build.source[slice(*lone.span)])} read as a shape"
        if len(sizes) > 1 and all(map(_is_size, sizes)) and build.chosen("shape", note):
            return tree.Written((len(sizes),), tuple(sizes), span=lone.span)
    return None


def _is_infinite(node: Node) -> bool:
    node = node.factors[-1] if isinstance(node, Multiply) else node
    return isinstance(node, tree.Constant) and node.name == "infinity"


def _is_size(node: Node) -> bool:
    natural = all(symbol.type.kind == "natural" for symbol in symbols_of(node).values())
    size = size_of(node) if natural and not node.shape and scripts.power_of_ten(node) is None else None
    return size is not None and not is_impossible(size) and not getattr(node, "unit", None)


def _shape_after_reals(build: Elaborator, part: Syntax | Token) -> Node:
    """The sizes of ℝ^{n×d} as a list."""
    if not is_rule(part, "operand") or len(part) != 2 or not is_token(part[0], "REALS") or part[1][0] != "^":
        build.unreadable("after ∈ an interval, a set or ℝ with sizes is expected", span_of(part))
    sizes = tuple(size_node(size) for size in scripts.sizes_of(build, part[1], 6))
    return tree.Written((len(sizes),), sizes, span=part.span)


def _as_column(build: Elaborator, row: Node) -> Node:
    """A row (1, d) as the vector (d,)."""
    match row:
        case Transpose(body=body):
            return body
        case Part(body=body, indices=(Node() as i, None)) if len(body.shape) == 2:
            return Part((body.shape[1],), body, (i,), span=row.span)
    return build.transpose(row, row.span)


_LIFTED_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt", "abs"))


def over_index(build: Elaborator, part: Syntax, lower: Syntax, arguments: Callable[[], list[Node]]) -> Node:
    """A function over an index below it; `arguments` reads its argument, in which the index is bound."""
    name, before = str(part[0]), build.scope
    index = single_index(build, lower, part)
    build.scope = {**before, index.name: index}
    given = arguments()
    build.scope = before
    shown = pretty_name(index.name)
    if len(given) != 1 or given[0].shape:
        if name == "softmax":
            return known_call(build, name, given, part.span)
        build.unreadable(f"{name} over {shown} is of one scalar with {shown} in it, as in {name}_j s_j", part.span)
    if index.name not in tree.free_indices(given[0]):
        build.unreadable(f"{shown} does not occur in the argument of {name}", part.span)
    vector = vector_over(given[0], index)
    if name != "softmax":
        build.bound[index.name] = name
        return Call((), name, (vector,), span=part.span)
    place = outer_index(build, index.name, lower.span)
    if isinstance(place, Index):
        unify(place.size, index.size)
    return Part((), Call(vector.shape, name, (vector,), span=part.span), (place,), span=part.span)


def vector_over(node: Node, index: Index) -> Node:
    """The vector whose component j is this scalar at `index` = j."""

    def constant(*parts: Node) -> bool:
        return index.name not in tree.free_indices(*parts)

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
            vector = reduce(lambda left, right: tree.Hadamard(shape, left, right, span=span), moving)
            return Multiply(shape, (*fixed, vector), span=span) if fixed else vector
        case tree.Divide(top=top, bottom=bottom) if constant(bottom):
            return tree.Divide(shape, vector_over(top, index), bottom, span=span)
        case tree.Power(base=base, exponent=Number(value=two)) if two == 2:
            vector = vector_over(base, index)
            return tree.Hadamard(shape, vector, vector, span=span)
        case Call(name=name, arguments=(argument,), map=None) if name in _LIFTED_ENTRYWISE and not argument.shape:
            return Call(shape, name, (vector_over(argument, index),), span=span)
        case Sum(body=body, conditions=(), product=False):
            return replace(node, shape=shape, body=vector_over(body, index))
        case tree.Expect(body=body):
            return tree.Expect(shape, vector_over(body, index), span=span)
        case tree.Contract(left=left, right=Part(body=rows, indices=(j,))) if places(j) and constant(left, rows):
            column = left.body if isinstance(left, Transpose) else Transpose(left.shape[1:], left, span=span)
            return tree.Contract(shape, rows, column, span=span)
        case tree.Contract(left=Transpose(body=Part(body=rows, indices=(j,))), right=right) if places(j):
            if constant(rows, right):
                return tree.Contract(shape, rows, right, span=span)
    # Anything else is a sum of multiples of the columns of the identity.
    column = Part(shape, Special((index.size, index.size), "identity", span=span), (index,), span=span)
    return Sum(shape, (index,), Multiply(shape, (node, column), span=span), span=span)


_LONGEST = 200
_LATEST = 6
_FLIPPED = {">": "<", ">=": "<=", "<": "<", "<=": "<=", "!=": "!="}


@dataclass
class Range:
    """The range of a Σ: bound names in order, lower and upper ends, and comparisons of indices."""

    names: list[str] = field(default_factory=list)
    low: dict[str, Node] = field(default_factory=dict)
    high: dict[str, Node] = field(default_factory=dict)
    pairs: list[tuple[str, str | Index, str | Index]] = field(default_factory=list)

    def bind(self, name: str) -> None:
        if name not in self.names:
            self.names.append(name)


def big_operator(build: Elaborator, part: Syntax) -> Node:
    suffixes = [piece for piece in part if is_rule(piece, "suffix")]
    body = Syntax("expression", tuple(part.parts[1 + len(suffixes) :]), part.span, part.depth)
    bounds = _bounds(build, suffixes, body, part)
    return _expand(build, bounds, body, part[0] == "prod", part.span)


def single_index(build: Elaborator, lower: Syntax, part: Syntax) -> Index:
    """The one index, from 1, below the function of `part`."""
    bounds = _bounds(build, [lower], part, part)
    name = bounds.names[0]
    low = bounds.low.get(name)
    if len(bounds.names) > 1 or bounds.pairs or (low is not None and low != build.number(1, low.span)):
        build.unreadable(f"{part[0]} is read over one index that runs from 1", lower.span)
    return Index((), name, _end_size(build, bounds.high.get(name)), span=lower.span)


def _bounds(build: Elaborator, suffixes: list[Syntax], body: Syntax, part: Syntax) -> Range:
    bounds = Range()
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if len(lower) > 1 or len(upper) > 1:
        build.unreadable("a sum has one lower and one upper end", part.span)
    entries = scripts.script_entries(lower[0]) if lower else []
    unequal = _unequal_to_all(entries)
    if unequal:  # k ≠ i, j binds k alone
        bounds.bind(unequal[0])
        bounds.pairs += [("!=", unequal[0], name) for name in unequal[1:]]
        entries = []
    for entry in entries:
        _condition(build, bounds, entry, body)
    if not lower:
        unbound = sorted(_names_in(body) & build.used - set(build.types) - set(build.scope))
        if len(unbound) != 1:
            build.unreadable("this sum does not say over what: write \\sum_i", part.span)
        bounds.bind(unbound[0])
    if upper:
        end = scripts.script_value(build, scripts.script_entries(upper[0])[0])
        bounds.high = {**dict.fromkeys(bounds.names, end), **bounds.high}
        if end.shape:
            build.ill_typed("a sum runs to a scalar", end.span)
    if not bounds.names:
        build.unreadable("nothing is bound by this sum", part.span)
    return bounds


def _unequal_to_all(entries: list[Syntax | Token]) -> list[str]:
    """k, i and j for k ≠ i, j; nothing for anything else."""
    if len(entries) < 2 or not is_rule(entries[0], "entry") or not is_rule(chain := entries[0][0], "chain"):
        return []
    others = [only(entry[0]) if is_rule(entry, "entry") else entry for entry in entries[1:]]
    parts = [only(chain[0]), only(chain[-1]), *others]
    listed = len(chain) == 3 and chain[1] == "!=" and all(is_token(part, "NAME") for part in parts)
    return [str(part) for part in parts] if listed else []


def _names_in(part: Syntax | Token) -> set[str]:
    return {str(leaf) for leaf in walk(part) if is_token(leaf, "NAME")}


def _condition(build: Elaborator, bounds: Range, entry: Syntax | Token, body: Syntax) -> None:
    """One entry below the sign: i, i = 1, i ≠ j, 1 ≤ i < j ≤ n."""
    chain = entry[0] if is_rule(entry, "entry") and len(entry) == 1 else entry
    if not is_rule(chain, "chain"):
        leaf = only(chain)
        _bare_names(build, bounds, leaf[0] if is_rule(leaf, "script") and len(leaf) == 1 else leaf)
        return
    members = [only(piece) for piece in chain if not is_token(piece, "REL")]
    signs = [str(piece) for piece in chain if is_token(piece, "REL")]
    if not signs:
        _bare_names(build, bounds, members[0])
        return
    bound = _bound_here(build, bounds, members, signs, body)
    for place, sign in enumerate(signs):
        _read_pair(build, bounds, members[place], sign, members[place + 1], bound, span_of(entry))


def _bare_names(build: Elaborator, bounds: Range, part: Syntax | Token) -> None:
    pieces = list(part) if is_rule(part, "product") else [part]
    for piece in pieces:
        leaf = only(piece)
        if not is_token(leaf, "NAME"):
            build.unreadable("below a sum there must be an index", span_of(part))
        bounds.bind(str(leaf))


def _bound_here(build: Elaborator, bounds: Range, members: list, signs: list[str], body: Syntax) -> set[str]:
    """The names that a condition binds.

    A name between two ends is always bound. Of two names that are compared, a name is not bound if it is declared as an
    index, given as free, bound by an outer sum (unless that leaves this sum nothing to bind), used in a subscript
    outside this sum, or missing from the body although the other one occurs there. All others are bound: both in i ≠ j,
    i < j and j ≤ i. If none is left, the names that another condition binds are compared; if there are none either, the
    first name is bound.
    """
    names = [str(member) for member in members if is_token(member, "NAME")]
    if not names:
        return set()
    if "=" in signs or len(names) == 1:
        return {names[0]}
    between = {str(member) for member in members[1:-1] if is_token(member, "NAME")}
    candidates = [name for name in names if name in between or not _is_end(build, name)]
    free = _free_outside(build, body) | set(build.given_free)
    fresh = [name for name in candidates if name not in free and name not in build.scope]
    if not fresh and not bounds.names:  # a sum binds something, if need be again what an outer sum binds
        fresh = candidates
    given = (
        {name for name in fresh if name in build.types and build.types[name].kind == "index"} | free | set(bounds.names)
    )
    summed = _names_in(body) & set(fresh)
    if summed:
        given |= set(fresh) - summed
    first = fresh[0] if fresh else names[0]
    return between | (set(fresh) - given) or set(bounds.names) or {first}


def _is_end(build: Elaborator, name: str) -> bool:
    """Whether a name is declared as a number, which may be the end of a sum."""
    kind = build.types.get(name)
    return name not in build.scope and kind is not None and not kind.shape and kind.kind not in ("index", "map")


def _free_outside(build: Elaborator, body: Syntax) -> set[str]:
    """Names in subscripts of the whole text, outside this sum and not bound by another one."""
    start, stop = body.span
    found: set[str] = set()
    pending: list[tuple[Syntax | Token, frozenset[str]]] = [(build.syntax, frozenset())]
    while pending:
        part, bound = pending.pop()
        left, right = span_of(part)
        if not isinstance(part, Syntax) or (start <= left and right <= stop):
            continue
        if part.kind == "big":
            below = [piece for piece in part if is_rule(piece, "suffix") and is_token(piece[0], "SUB")]
            bound = bound.union(*(_names_in(piece) for piece in below))
        if part.kind == "suffix" and is_token(part[0], "SUB"):
            found |= _names_in(part) - bound
        pending.extend((piece, bound) for piece in part)
    return found


def _read_pair(build, bounds: Range, left, sign: str, right, bound: set[str], span: Span) -> None:
    a = str(left) if is_token(left, "NAME") else ""
    b = str(right) if is_token(right, "NAME") else ""
    if sign == "=":
        if not a:
            build.unreadable("below a sum there must be an index, as in i = 1", span)
        bounds.bind(a)
        bounds.low[a] = build.term(right)
        return
    if sign not in _FLIPPED:
        build.unreadable(f"{sign} below a sum is not read", span)
    if a and a == b:
        build.unreadable(f"{a} is compared with itself", span)
    if a and b and _is_index(build, a, bound) and _is_index(build, b, bound):
        for name in [name for name in (a, b) if name in bound]:
            bounds.bind(name)
        bounds.pairs.append((_FLIPPED[sign], b, a) if sign in (">", ">=") else (_FLIPPED[sign], a, b))
        return
    less = sign in ("<", "<=")
    if sign == "!=":
        build.unreadable("≠ below a sum must be between two indices", span)
    name, end, is_low = (b, left, less) if b in bound else (a, right, not less)
    if not name:
        build.unreadable("below a sum there must be an index", span)
    bounds.bind(name)
    if sign in ("<", ">"):
        build.unreadable("the ends of a sum are written with ≤, as in 1 ≤ i ≤ n", span)
    (bounds.low if is_low else bounds.high)[name] = build.term(end)


def _is_index(build: Elaborator, name: str, bound: set[str]) -> bool:
    kind = build.types.get(name)
    if name in bound or name in build.scope:
        return True
    # An undeclared word or Greek letter is not an index elsewhere either.
    return (len(name) == 1 or not name.isalpha()) if kind is None else kind.kind == "index"


def _compare_ends(build: Elaborator, bounds: Range, ends: dict[str, Node], step: int, span: Span) -> None:
    """Turn ends that are indices into comparisons: i and i + step; step is 1 for lower ends, -1 for upper ones."""
    for name, end in list(ends.items()):
        match scripts.simplify_index(end):
            case Index() as index if step < 0 or name in bounds.high:  # Σ_{j=i} without an upper end may mean i alone
                sign = "<="
            case Add(terms=(Index() as index, Number(value=value))) if value == step:
                sign = "<"
            case _:
                continue
        if index.name in bounds.names:
            build.unreadable(f"{pretty_name(index.name)} is an end of the sum that binds it", span)
        bounds.pairs.append((sign, index, name) if step > 0 else (sign, name, index))
        del ends[name]


def _expand(build: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span) -> Node:
    _compare_ends(build, bounds, bounds.low, 1, span)
    for name, low in bounds.low.items():
        if not isinstance(low, Number) or low.value != 1:
            return _from_other_start(build, bounds, body, product, span, name)
    if len(bounds.names) == 1 and not bounds.pairs and _constant(bounds.high.get(bounds.names[0])) == 0:
        return _written_out(build, body, product, span, bounds.names[0], range(0))
    return _from_one(build, bounds, body, product, span)


def _from_one(build: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span) -> Node:
    _compare_ends(build, bounds, bounds.high, -1, span)  # Σ_{j=1}^{i} is Σ over j ≤ i
    sign, a, b = bounds.pairs[0] if len(bounds.pairs) == 1 else ("", "", "")
    replaced, kept = (a, b) if a in bounds.names else (b, a)
    bound = replaced if isinstance(replaced, str) and replaced in bounds.names else ""
    if sign != "<=" or not bound or not _alike(build, bounds, bound, kept):
        return _sum_node(build, bounds, bounds.pairs, body, product, span, {})
    whole = _sum_node(build, bounds, [("<", a, b)], body, product, span, {})
    diagonal = _sum_node(build, bounds, [], body, product, span, {bound: kept})
    return Multiply((), (whole, diagonal), span=span) if product else Add(whole.shape, (whole, diagonal), span=span)


def _alike(build: Elaborator, bounds: Range, name: str, other: str | Index) -> bool:
    """Whether a bound index may have the range of another one, so that each value of that one is a value of it."""
    end = bounds.high.get(name)
    return end is None or isinstance(other, str) or shapes.can_unify(_end_size(build, end), other.size)


def _from_other_start(build: Elaborator, bounds: Range, body: Syntax, product: bool, span: Span, name: str) -> Node:
    """A range that does not start at 1: written out term by term, or shifted to 1 and corrected by the first terms."""
    low, high = bounds.low[name], bounds.high.get(name)
    high = None if high is None else scripts.simplify_index(high)
    to_index = high is not None and bool(tree.free_indices(high))
    start, stop = _constant(low), _constant(high)
    if start is not None and stop is not None:
        _one_index(build, bounds, span)
        if stop < start - 1:  # an end one before the start is an empty range
            what = "product" if product else "sum"
            build.ill_typed(f"this {what} runs backwards, from {start} to {stop}: exchange its ends", span)
        if stop - start + 1 > _LONGEST:
            build.unreadable(f"a sum written out has at most {_LONGEST} terms", span)
        return _written_out(build, body, product, span, name, range(start, stop + 1))
    # A sum from 3 to an index that is 1 has no first terms to subtract, and one from 2 to t - 1 has none at t = 1.
    latest = 2 if isinstance(high, Index) else 0 if to_index else _LATEST
    if start is None or not 0 <= start <= latest or (product and to_index):
        reason = f"a sum runs from 1: let {pretty_name(name)} start there, or give both its ends as numbers"
        build.unreadable(reason, span)
    _one_index(build, bounds, span)
    if start == 0 and name in _subscripts(body):
        build.unreadable(f"components are counted from 1: let {pretty_name(name)} start there", span)
    size = None if high is None or to_index else size_of(high)
    places = None if size is None else size_of(Add((), (size_node(size), build.number(1 - start, span))))
    long = size is None or scripts.never_negative(scripts.added(size, 1 - start))
    if places is not None and (product or not long or (start == 0 and re.fullmatch(r".*[^-+]-\d+", str(size)))):
        # Σ from 0 to n - 1 is over n places, each one less; Σ from 3 to n over n - 2 places, which may be none.
        bounds.high[name] = size_node(places)
        return _sum_node(build, bounds, [], body, product, span, {}, shift=start - 1)
    whole = _from_one(build, bounds, body, product, span)
    missing = range(1) if start == 0 else range(1, start)
    rest = _written_out(build, body, product, span, name, missing)
    return build.add([whole, rest if start == 0 else build.negate(rest, span)], span)


def _constant(end: Node | None) -> int | None:
    """The whole number that an end is, or None if it has names."""
    size = None if end is None or symbols_of(end) else size_of(end)
    return size if isinstance(size, int) else None


def _one_index(build: Elaborator, bounds: Range, span: Span) -> None:
    if len(bounds.names) > 1 or bounds.pairs:
        build.unreadable("a sum that does not start at 1 binds one index", span)


def _subscripts(body: Syntax) -> set[str]:
    """The letters that are subscripts by themselves."""
    below = [part for part in walk(body) if is_rule(part, "suffix") and is_token(part[0], "SUB")]
    leaves = [leaf for part in below for leaf in scripts.split_indices(scripts.script_entries(part))]
    return {str(leaf) for leaf in leaves if is_token(leaf, "NAME")}


def _written_out(build, body: Syntax, product: bool, span: Span, name: str, values: range) -> Node:
    before, terms = build.scope, list[Node]()
    for value in values:
        build.scope = {**before, name: build.number(value, span)}
        terms.append(build.term(body))
    build.scope = before
    if not terms:
        return build.number(1 if product else 0, span)
    if not product:
        return build.add(terms, span)
    return reduce(lambda total, term: build.multiply(total, term, "", span), terms)


def _sum_node(
    build, bounds: Range, pairs, body: Syntax, product: bool, span: Span, same: dict[str, str | Index], shift: int = 0
) -> Node:
    """The Sum node; `same` replaces one index by another (a diagonal), `shift` is added to each index."""
    before = build.scope
    build.bound |= dict.fromkeys(bounds.names, "product" if product else "sum")
    indices: dict[str, Index] = {}
    for name in bounds.names:
        if name not in same:
            apart = fresh_name(build, name) if name in before else name
            indices[name] = Index((), apart, _end_size(build, bounds.high.get(name)), span=span)
    build.scope = {**before, **indices}
    if shift:
        build.scope |= {n: build.add([ix, build.number(shift, span)], span) for n, ix in indices.items()}

    def side(one: str | Index) -> Node:
        return one if isinstance(one, Index) else indices.get(one) or outer_index(build, one, span)

    for replaced, kept in same.items():
        build.scope[replaced] = side(kept)
    inner = build.term(body)
    conditions = tuple((op, side(a), side(b)) for op, a, b in pairs)
    named = [isinstance(a, str) and isinstance(b, str) for _, a, b in pairs]
    for both, (_, a, b) in zip(named, conditions, strict=True):
        if isinstance(a, Index) and isinstance(b, Index) and not unify(a.size, b.size) and both:
            names = f"{pretty_name(a.name)} and {pretty_name(b.name)}"
            build.ill_typed(f"{names} run to different ends and are compared", span)
    build.scope = before
    if product and inner.shape:
        build.ill_typed("a product over an index is of scalars", span)
    if not indices:
        return inner
    return Sum(inner.shape, tuple(indices.values()), inner, conditions, product, span=span)


def outer_index(build: Elaborator, name: str, span: Span) -> Node:
    """An index that this sum does not bind."""
    if name in build.scope or name in build.types:
        return build.name(name, span)
    return build.free_index(name, span)


def _end_size(build: Elaborator, end: Node | None) -> tree.Size:
    if end is None:
        return shapes.unknown_size()
    size = size_of(end)
    if size is None or (isinstance(end, tree.Symbol) and end.shape):
        build.unreadable("a sum runs to a whole number, a size, an index t or t - 1", end.span)
    if is_impossible(size):
        reason = f"from 1 a sum runs to a whole number from 1, a size or an index, and not to {build.text(end)}"
        build.unreadable(reason, end.span)
    return size
