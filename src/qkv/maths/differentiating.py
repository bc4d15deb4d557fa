"""Derivatives as they are written: ∂f/∂x in one fraction, by a stroke, or as an operator before what it acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lark import Token

from qkv.maths.syntax import Syntax, is_rule, is_token, only, span_of
from qkv.maths.tree import Derivative, Node, Part, Span, Symbol

if TYPE_CHECKING:
    from qkv.maths.elaborate import Elaborator


def derivative(elaborator: Elaborator, body: Node, target: Syntax | Token, span: Span) -> Node:
    """∂ body / ∂ target."""
    node = elaborator.term(target)
    if not isinstance(node, Symbol) and not (isinstance(node, Part) and isinstance(node.body, Symbol)):
        elaborator.ill_typed("a derivative is taken with respect to a name or a component of one", span_of(target))
    if len(body.shape) + len(node.shape) > 2:
        elaborator.ill_typed("this derivative has more than two axes", span, "the derivative of a component")
    return Derivative((*body.shape, *node.shape), body, node, span=span)


def differential(part: Syntax | Token) -> Syntax | Token | None:
    """x where this is ∂x, else None."""
    inner = _opened(part)
    return inner[1] if is_rule(inner, "partial") and len(inner) == 2 else None


def _opened(part: Syntax | Token) -> Syntax | Token:
    """A part without the braces and wrappers around it."""
    part = only(part)
    while is_rule(part, "group") and is_token(part[0], "LBRACE") and len(part[1]) == 1 and len(part[1][0]) == 1:
        part = only(part[1][0][0])
    return part


def operator_of(part: Syntax | Token) -> Syntax | Token | None:
    """x where this is the operator ∂/∂x, else None."""
    inner = only(part)
    if is_rule(inner, "fraction"):
        top, under = _opened(inner[1]), differential(inner[2])
        if is_rule(top, "partial") and len(top) == 1:
            return under
    return None
