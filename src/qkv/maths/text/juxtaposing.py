"""Products as they are written: side by side, by signs and strokes, with derivatives among them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from qkv.maths.text import differentiating, scripting
from qkv.maths.text.fitting import is_list_turned
from qkv.maths.text.parsing import Token
from qkv.maths.text.shaping import known, unknown_size
from qkv.maths.text.syntax import Syntax, is_rule, is_token, span_of
from qkv.maths.tree import Multiply, Node, Number, Span, Special, Transpose

if TYPE_CHECKING:
    from qkv.maths.text.elaborate import Elaborator

LARGEST_EXPONENT = 400


def product(elaborator: Elaborator, part: Syntax) -> Node:
    """Factors from left to right; ⊙ and ⊗ hold together less than what stands side by side, as in A u ⊙ B v."""
    pieces = differentiating.flat(part.parts)
    differentiating.refuse_many(elaborator, pieces, part.span)
    current: Node | None = None
    for how, run in _runs(pieces):
        value = _beside(elaborator, run, part.span)
        span = (part.span[0], span_of(run[-1])[1])
        current = value if current is None else elaborator.multiply(current, value, how, span)
    assert current is not None
    if isinstance(current, Transpose) and is_list_turned(current) and len(part) > 1:
        return current.body
    return current


def _runs(pieces: Sequence[Syntax | Token]) -> list[tuple[str, list[Syntax | Token]]]:
    """What stands between ⊙ and ⊗, each with the sign before it; a derivative acts on all that follows."""
    runs: list[tuple[str, list[Syntax | Token]]] = [("", [])]
    acting = False
    for at, piece in enumerate(pieces):
        acting = acting or differentiating.acts(pieces, at)
        if not acting and is_rule(piece, "operator") and is_token(piece[0], "ODOT", "OTIMES"):
            runs.append((str(piece[0]), []))
        else:
            runs[-1][1].append(piece)
    return runs


def _beside(elaborator: Elaborator, pieces: list[Syntax | Token], span: Span) -> Node:
    current: Node | None = None
    operator, sign, at = "", None, 0
    while at < len(pieces):
        piece = pieces[at]
        if is_rule(piece, "operator"):
            operator = "/" if is_token(piece[0], "DIV") else str(piece[0])
        elif is_rule(piece, "sign"):
            sign = piece[0]
        else:
            if operator == "/" and current is None:
                elaborator.unreadable("nothing stands before the division", span)
            found = differentiating.in_line(elaborator, pieces, at, span)
            value, at = found or (elaborator.term(piece), at)
            current = _joined(elaborator, current, value, operator, sign, (span[0], span_of(pieces[at])[1]))
            operator, sign = "", None
        at += 1
    assert current is not None
    return current


def _joined(
    elaborator: Elaborator, current: Node | None, value: Node, operator: str, sign: Token | None, span: Span
) -> Node:
    if sign is not None:
        value = elaborator.signed(sign, value)
    if current is None:
        return value
    if operator == "/":
        return elaborator.divide(current, value, span)
    if operator in ("", "dot") and isinstance(value, Number):
        value = _as_vector(current, value)
    scientific = _scientific(current, value) if operator in ("", "times", "dot") else None
    return scientific or elaborator.multiply(current, value, operator, span)


def _as_vector(row: Node, number: Number) -> Node:
    """A bare 1 or 0 after a row is the vector of ones or of zeros: qᵀ1."""
    is_row = len(row.shape) == 2 and known(row.shape[0]) == 1
    if not is_row or number.unit is not None or number.value not in (0, 1):
        return number
    return Special((unknown_size(),), "ones" if number.value else "zeros", span=number.span)


def _scientific(left: Node, right: Node) -> Node | None:
    """6.90 × 10^{-13} as one number, whose last digit counts; at the end of the scalars of a product as well."""
    power = scripting.power_of_ten(right)
    if power is None or abs(power) > LARGEST_EXPONENT:
        return None
    if isinstance(left, Number) and left.unit is not None:
        scale = Fraction(10) ** power
        return Number((), left.value * scale, left.unit * scale, span=(left.span[0], right.span[1]))
    if isinstance(left, Multiply):
        last = max((at for at, factor in enumerate(left.factors) if not factor.shape), default=-1)
        number = _scientific(left.factors[last], right) if last >= 0 else None
        if number is not None:
            factors = (*left.factors[:last], number, *left.factors[last + 1 :])
            return Multiply(left.shape, factors, span=(left.span[0], right.span[1]))
    return None
