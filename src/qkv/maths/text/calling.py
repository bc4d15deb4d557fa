"""Functions: those that qkv knows, with the shapes that they take and give, and declared maps."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import TYPE_CHECKING

from qkv.maths.substitution import symbols_of
from qkv.maths.text import lifting, saying, scripting
from qkv.maths.text.fitting import is_zero
from qkv.maths.text.parsing import Token
from qkv.maths.text.shaping import could_fit, fit, fit_shapes, known, plain_shape
from qkv.maths.text.syntax import Syntax, is_rule, is_token, only, span_of, walk
from qkv.maths.tree import Call, Covariance, Expect, Node, Number, Part, Span, Symbol, Transpose, Type, Written

if TYPE_CHECKING:
    from qkv.maths.text.elaborate import Elaborator

_MOST_CHOSEN = 8
_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt"))
_EXTREMES = frozenset(("max", "min", "argmax"))
_OF_VECTORS = frozenset(("softmax", "argmax", "diag", "norm", "sum"))


def call(elaborator: Elaborator, part: Syntax) -> Node:
    """A function before brackets, such as \\log_2(x) and \\log^2(x)."""
    suffixes = [piece for piece in part.parts[1:-1] if isinstance(piece, Syntax)]
    rows = part[-1][1]

    def arguments() -> list[Node]:
        if len(rows) > 1:
            return [elaborator.term(part[-1])]
        return [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]

    return _called(elaborator, part, suffixes, arguments)


def applied(elaborator: Elaborator, part: Syntax) -> Node:
    """A function before what it acts on, without brackets."""
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
        node = lifting.over(elaborator, part, lower[0], given)
    else:
        node = _with_lower(elaborator, name, lower, given(), span)
    return scripting.raised_by_each(elaborator, node, upper, span)


def regrouped(atom: Syntax | Token, suffixes: list[Syntax]) -> tuple[Syntax | Token, list[Syntax]]:
    """max_j (Q Kᵀ)_{ij} is of (Q Kᵀ)_{ij}: a maximum has no lower index of its own behind it."""
    if not is_rule(atom, "call") or atom[0] not in _EXTREMES or not any(is_token(s[0], "SUB") for s in suffixes):
        return atom, suffixes
    if not any(is_rule(piece, "suffix") and is_token(piece[0], "SUB") for piece in atom):
        return atom, suffixes
    span = (span_of(atom[-1])[0], suffixes[-1].span[1])
    of = Syntax("operand", (atom[-1], *suffixes), span, atom.depth)
    return Syntax("applied", (*atom.parts[:-1], of), (atom.span[0], span[1]), atom.depth), []


def _below_one_letter(lower: Syntax) -> bool:
    written = scripting.spelt(scripting.inside(lower))
    return len(written) == 1 and written.isalpha()


def _with_lower(elaborator: Elaborator, name: str, lower: list[Syntax], arguments: list[Node], span: Span) -> Node:
    """What a lower index says: the base of a logarithm, which norm, what an expectation is over."""
    node: Node
    if lower and name == "log":
        base = scripting.value(elaborator, scripting.inside(lower[0])[0])
        if base.shape:
            elaborator.ill_typed(
                f"the base of a logarithm is a scalar, and this is {plain_shape(base.shape)}", base.span
            )
        top = known_call(elaborator, "log", arguments, span)
        node = elaborator.divide(top, Call((), "log", (base,), span=base.span), span)
    elif lower and name == "norm":
        node = norm(
            elaborator, _one(elaborator, name, arguments, span), scripting.spelt(scripting.inside(lower[0])), span
        )
    elif lower and name not in ("E", "Var", "Cov", "softmax"):
        elaborator.unreadable(f"a lower index on {name} is not read", lower[0].span)
    else:
        if lower and name in ("E", "Var", "Cov"):
            _drawn(elaborator, lower[0], arguments)
        node = known_call(elaborator, name, arguments, span)
    return node


def _drawn(elaborator: Elaborator, lower: Syntax, arguments: list[Node]) -> None:
    """E_{q,k}, E_{q,k∼p}: the names below are random, and no other random name stands inside."""
    below = set()
    for entry in scripting.inside(lower):
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
            reason = f"below an expectation stand random names, and {saying.named(name)} is none"
            elaborator.unreadable(reason, lower.span)
    for name, symbol in symbols_of(*arguments).items():
        if symbol.type.random and name not in below:
            over = ", ".join(map(saying.named, sorted(below)))
            reason = f"an expectation over {over} alone is not read; {saying.named(name)} is random as well"
            elaborator.unreadable(f"{reason}, and E[…] is over all that is", lower.span)


def _one(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) != 1:
        elaborator.ill_typed(f"{name} takes one argument, not {len(arguments)}", span)
    return arguments[0]


def known_call(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    """A function by name with its arguments in their shapes."""
    if name in ("max", "min"):
        return _extreme(elaborator, name, arguments, span)
    if name == "Cov":
        if len(arguments) != 2:
            elaborator.ill_typed(f"Cov takes two arguments, not {len(arguments)}", span)
        return _covariance(elaborator, arguments[0], arguments[1], span)
    if name in _OF_VECTORS and len(arguments) > 1 and not any(argument.shape for argument in arguments):
        arguments = [Written((len(arguments),), tuple(arguments), span=span)]  # softmax(1, 2, 3)
    body = _one(elaborator, name, arguments, span)
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
    shape, text, said = body.shape, elaborator.text(body), plain_shape(body.shape)
    if name == "softmax":
        if not shape:
            elaborator.ill_typed(f"softmax acts on a vector or on the rows of a matrix, and {text} is a scalar", span)
        return Call(shape, name, (body,), span=span)
    if name in ("trace", "det"):
        if len(shape) != 2 or not could_fit(*shape):
            elaborator.ill_typed(f"{name} wants a square matrix, and {text} is {said}", span)
        fit(*shape)
        return Call((), name, (body,), span=span)
    if name == "diag":
        if len(shape) == 1:
            return Call((shape[0], shape[0]), name, (body,), span=span)
        if len(shape) != 2 or not could_fit(*shape):
            elaborator.ill_typed(f"diag wants a vector or a square matrix, and {text} is {said}", span)
        fit(*shape)
        return Call((shape[0],), name, (body,), span=span)
    if name == "argmax" and len(shape) != 1:
        elaborator.ill_typed(f"argmax wants a vector, and {text} is {said}", span)
    return Call((), name, (body,), span=span)


def _extreme(elaborator: Elaborator, name: str, arguments: list[Node], span: Span) -> Node:
    if len(arguments) == 1 and len(arguments[0].shape) == 1:
        return Call((), name, tuple(arguments), span=span)
    for argument in arguments:
        if argument.shape:
            said = plain_shape(argument.shape)
            relu = len(arguments) == 2 and name == "max" and any(is_zero(other) for other in arguments)
            suggestion = saying.said(Call(argument.shape, "relu", (argument,))) if relu else ""
            reason = f"{name} wants one vector or several scalars, and {elaborator.text(argument)} is {said}"
            elaborator.ill_typed(reason, span if relu else argument.span, suggestion)
    return arguments[0] if len(arguments) == 1 else Call((), name, tuple(arguments), span=span)


def _covariance(elaborator: Elaborator, left: Node, right: Node, span: Span) -> Node:
    shapes = (left.shape, right.shape)
    if any(len(shape) > 1 for shape in shapes):
        elaborator.ill_typed("a covariance is of scalars or of vectors", span)
    return Covariance((*left.shape, *right.shape), left, right, span=span)


def norm(elaborator: Elaborator, body: Node, which: str, span: Span) -> Node:
    """‖x‖, ‖x‖_1, ‖x‖_∞, ‖A‖_F, and |x|."""
    if len(body.shape) == 2 and known(body.shape[0]) == 1:
        body = body.body if isinstance(body, Transpose) else elaborator.transpose(body, body.span)
    if not body.shape:
        if which == "F":
            elaborator.ill_typed("‖·‖_F is of a matrix", span)
        return Call((), "abs", (body,), span=span)
    if len(body.shape) == 2:
        if which != "F":
            text = elaborator.text(body)
            reason = f"{text} is {plain_shape(body.shape)}, and only its Frobenius norm is read"
            elaborator.ill_typed(reason, span, saying.said(Call((), "norm_F", (body,))))
        return Call((), "norm_F", (body,), span=span)
    name = {"": "norm", "2": "norm", "1": "norm1", "infinity": "norm_inf", "F": "norm"}.get(which)
    if name is None:
        elaborator.unreadable(f"of norms, _1, _2, _∞ and _F are read, not _{which}", span)
    return Call((), name, (body,), span=span)


def binomial(elaborator: Elaborator, top: Node, bottom: Node, span: Span) -> Node:
    """n over k for a small k: n (n - 1) … / k!"""
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
    """A declared map before its arguments."""
    token, rows = part[0], part[-1][1]
    name = saying.named(token)
    kind: Type = elaborator.types[str(token)]
    arguments = [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]
    if len(rows) != 1 or len(arguments) != len(kind.arguments):
        wanted = saying.several(len(kind.arguments), "argument")
        elaborator.ill_typed(f"{name} takes {wanted}, not {len(arguments)}", part.span)
    turned = False
    for place, shape in enumerate(kind.arguments):
        given = elaborator.as_shape(arguments[place], shape)
        if len(shape) == 1 and len(given.shape) == 2 and known(given.shape[0]) == 1:
            given, turned = _standing(elaborator, given), True
        arguments[place] = given
        if not fit_shapes(given.shape, shape):
            said = plain_shape(given.shape)
            reason = f"{name} takes {plain_shape(shape)}, and {elaborator.text(given)} is {said}"
            elaborator.ill_typed(reason, given.span)
    symbol = Symbol((), str(token), kind, span=span_of(token))
    made = Call(kind.shape, str(token), tuple(arguments), symbol, span=part.span)
    return elaborator.transpose(made, part.span) if turned and len(kind.shape) == 1 else made


def _standing(elaborator: Elaborator, row: Node) -> Node:
    """A row as the vector that it is when it stands."""
    match row:
        case Transpose(body=body):
            return body
        case Part(body=body, indices=(Node() as i, None)) if len(body.shape) == 2:
            return Part((body.shape[1],), body, (i,), span=row.span)
    return elaborator.transpose(row, row.span)
