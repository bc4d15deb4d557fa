"""Functions: those that qkv knows, with the shapes that they take and give, and declared maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lark import Token

from qkv.maths import scripting
from qkv.maths.shaping import could_fit, fit, fit_shapes, known, plain_shape
from qkv.maths.syntax import Syntax, is_rule, is_token, span_of
from qkv.maths.tree import Call, Covariance, Expect, Index, Node, Part, Span, Symbol, Transpose, Type, Written

if TYPE_CHECKING:
    from qkv.maths.elaborate import Elaborator

_ENTRYWISE = frozenset(("exp", "log", "relu", "sign", "sqrt"))
_OF_VECTORS = frozenset(("softmax", "argmax", "diag", "norm", "sum"))


def call(elaborator: Elaborator, part: Syntax) -> Node:
    """A function before brackets, such as \\log_2(x) and \\log^2(x)."""
    suffixes = [piece for piece in part.parts[1:-1] if isinstance(piece, Syntax)]
    rows = part[-1][1]
    if len(rows) == 1:
        arguments = [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]
    else:
        arguments = [elaborator.term(part[-1])]
    return _called(elaborator, part[0], suffixes, arguments, part.span)


def applied(elaborator: Elaborator, part: Syntax) -> Node:
    """A function before what it acts on, without brackets."""
    suffixes = [piece for piece in part.parts[1:-1] if is_rule(piece, "suffix")]
    argument = elaborator.term(part[-1])
    minus = next((piece for piece in part if is_token(piece, "MINUS")), None)
    if minus is not None:
        argument = elaborator.negate(argument, (span_of(minus)[0], argument.span[1]))
    return _called(elaborator, part[0], suffixes, [argument], part.span)


def _called(elaborator: Elaborator, token: Token, suffixes: list, arguments: list[Node], span: Span) -> Node:
    name = str(token)
    lower = [suffix for suffix in suffixes if is_token(suffix[0], "SUB")]
    upper = [suffix for suffix in suffixes if is_token(suffix[0], "SUP")]
    if lower and name in ("max", "min", "argmax"):
        node = _over(elaborator, name, lower[0], arguments, span)
    elif lower and name == "log":
        base = scripting.value(elaborator, scripting.inside(lower[0])[0])
        top = known_call(elaborator, "log", arguments, span)
        node = elaborator.divide(top, Call((), "log", (base,), span=base.span), span)
    elif lower and name == "norm":
        node = norm(
            elaborator, _one(elaborator, name, arguments, span), scripting.spelt(scripting.inside(lower[0])), span
        )
    elif lower and name not in ("E", "Var", "Cov", "softmax"):
        elaborator.unreadable(f"a lower index on {name} is not read", lower[0].span)
    else:
        node = known_call(elaborator, name, arguments, span)
    for suffix in upper:
        node = scripting.raised(elaborator, node, suffix, span)
    return node


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
            suggestion = f"relu({elaborator.text(argument)})" if len(arguments) == 2 and name == "max" else ""
            reason = f"{name} wants one vector or several scalars, and {elaborator.text(argument)} is {said}"
            elaborator.ill_typed(reason, argument.span, suggestion)
    return arguments[0] if len(arguments) == 1 else Call((), name, tuple(arguments), span=span)


def _over(elaborator: Elaborator, name: str, lower: Syntax, arguments: list[Node], span: Span) -> Node:
    """max_j s_j: the vector that j runs over."""
    body = _one(elaborator, name, arguments, span)
    letter = scripting.spelt(scripting.inside(lower))
    match body:
        case Part(body=inner, indices=(Index(name=j),)) if j == letter and len(inner.shape) == 1:
            vector = inner
        case Part(body=inner, indices=(i, Index(name=j))) if j == letter and i is not None:
            vector = Part((inner.shape[1],), inner, (i,), span=body.span)
        case Part(body=inner, indices=(Index(name=j), i)) if j == letter and i is not None:
            vector = Part((inner.shape[0],), inner, (None, i), span=body.span)
        case _:
            elaborator.unreadable(f"{name} over an index is read of one component, as in {name}_j s_j", span)
    elaborator.free.pop(letter, None)
    return Call((), name, (vector,), span=span)


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
            elaborator.ill_typed(reason, span, f"‖{text}‖_F")
        return Call((), "norm_F", (body,), span=span)
    name = {"": "norm", "2": "norm", "1": "norm1", "infinity": "norm_inf", "F": "norm"}.get(which)
    if name is None:
        elaborator.unreadable(f"of norms, _1, _2, _∞ and _F are read, not _{which}", span)
    return Call((), name, (body,), span=span)


def mapped(elaborator: Elaborator, part: Syntax) -> Node:
    """A declared map before its arguments."""
    token, rows = part[0], part[-1][1]
    kind: Type = elaborator.types[str(token)]
    arguments = [elaborator.term(piece) for piece in rows[0] if not is_token(piece, "COMMA")]
    if len(rows) != 1 or len(arguments) != len(kind.arguments):
        elaborator.ill_typed(f"{token} takes {len(kind.arguments)} arguments, not {len(arguments)}", part.span)
    for place, wanted in enumerate(kind.arguments):
        arguments[place] = elaborator.as_shape(arguments[place], wanted)
        given = arguments[place]
        if not fit_shapes(given.shape, wanted):
            reason = f"{token} takes {plain_shape(wanted)}, and {elaborator.text(given)} is {plain_shape(given.shape)}"
            elaborator.ill_typed(reason, given.span)
    symbol = Symbol((), str(token), kind, span=span_of(token))
    return Call(kind.shape, str(token), tuple(arguments), symbol, span=part.span)
