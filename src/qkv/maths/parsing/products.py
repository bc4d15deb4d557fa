"""Products as they are written: side by side, with signs and slashes, and with derivatives among the factors."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from qkv.maths.parsing import scripts
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of
from qkv.maths.parsing.shapes import is_transposed_list, resolved_size, unknown_size
from qkv.maths.tree import Derivative, Multiply, Node, Number, Part, Span, Special, Symbol, Transpose

if TYPE_CHECKING:
    from qkv.maths.parsing.elaborate import Elaborator


LARGEST_EXPONENT = 400


def product(elaborator: Elaborator, part: Syntax) -> Node:
    """The product of factors from left to right; ⊙ and ⊗ bind less tightly than juxtaposition, as in A u ⊙ B v."""
    pieces = flatten_partials(part.parts)
    refuse_many_derivatives(elaborator, pieces, part.span)
    current: Node | None = None
    for how, run in _split_runs(pieces):
        value = _juxtaposed(elaborator, run, part.span)
        span = (part.span[0], span_of(run[-1])[1])
        current = value if current is None else elaborator.multiply(current, value, how, span)
    assert current is not None
    if isinstance(current, Transpose) and is_transposed_list(current) and len(part) > 1:
        return current.body
    return current


def _split_runs(pieces: Sequence[Syntax | Token]) -> list[tuple[str, list[Syntax | Token]]]:
    """The runs of factors between ⊙ and ⊗, each with the sign before it; a derivative acts on all that follows."""
    runs: list[tuple[str, list[Syntax | Token]]] = [("", [])]
    acting = False
    for at, piece in enumerate(pieces):
        acting = acting or derivative_acts(pieces, at)
        if not acting and is_rule(piece, "operator") and is_token(piece[0], "ODOT", "OTIMES"):
            runs.append((str(piece[0]), []))
        else:
            runs[-1][1].append(piece)
    return runs


def _juxtaposed(elaborator: Elaborator, pieces: list[Syntax | Token], span: Span) -> Node:
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
                elaborator.unreadable("there is nothing before the division", span)
            found = inline_derivative(elaborator, pieces, at, span)
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
    is_row = len(row.shape) == 2 and resolved_size(row.shape[0]) == 1
    if not is_row or number.unit is not None or number.value not in (0, 1):
        return number
    return Special((unknown_size(),), "ones" if number.value else "zeros", span=number.span)


def _scientific(left: Node, right: Node) -> Node | None:
    """6.90 × 10^{-13} as one decimal, also as the last scalar of a product; None for anything else."""
    power = scripts.power_of_ten(right)
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


_HIGHEST_ORDER = 4
_MOST_DERIVATIVES = 12
_WRITTEN = "a derivative is written \\frac{\\partial f}{\\partial x}"
_Piece = Syntax | Token
_Targets = list[tuple[_Piece, int]]


def flatten_partials(pieces: Sequence[_Piece]) -> list[_Piece]:
    """The factors of a product, with each ∂ as a factor before what it applies to."""
    found: list[_Piece] = []
    for piece in pieces:
        inner = only(piece)
        if is_rule(inner, "partial") and len(inner) == 2:
            start, stop = span_of(inner[0])
            found += [Syntax("partial", (inner[0],), (start, stop), 0), inner[1]]
        else:
            found.append(piece)
    return found


def derivative_acts(pieces: Sequence[_Piece], at: int) -> bool:
    """Whether a derivative operator is here, which acts on all that follows."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        above = _numerator(inner[1], "∂") or _numerator(inner[1], "d")
        return above is not None and above[1] is None
    bare = _derivative_order(pieces[at], "∂") is not None and at + 1 < len(pieces) and _divides(pieces[at + 1])
    return bare or _nabla(pieces[at]) is not None


def refuse_many_derivatives(elaborator: Elaborator, pieces: Sequence[_Piece], span: Span) -> None:
    """Refuse very many derivatives: each may contain all that follow it."""
    if (
        sum(derivative_acts(pieces, at) or _derivative_order(piece, "d") == 1 for at, piece in enumerate(pieces))
        > _MOST_DERIVATIVES
    ):
        elaborator.unreadable(f"more than {_MOST_DERIVATIVES} derivatives in one product are not read", span)


def fraction_derivative(elaborator: Elaborator, part: Syntax) -> Node | None:
    """The derivative \\frac{∂f}{∂x}; None if this fraction is not a derivative."""
    found = _of_fraction(elaborator, part)
    if found is None:
        return None
    order, body, targets = found
    if body is None:
        elaborator.unreadable("this derivative has nothing to act on", part.span)
    return _derivatives(elaborator, elaborator.term(body), order, targets, part.span)


def inline_derivative(elaborator: Elaborator, pieces: list[_Piece], at: int, span: Span) -> tuple[Node, int] | None:
    """The derivative that begins at `at` in a product, and its last position; None if there is none."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        found = _of_fraction(elaborator, inner)
        if found is None or found[1] is not None:
            return None
        return _apply_derivative(elaborator, pieces[at + 1 :], found[0], found[2], span), len(pieces) - 1
    by = _nabla(pieces[at])
    if by is not None:
        node = _apply_derivative(elaborator, pieces[at + 1 :], 1, [(by, 1)], span)
        if not isinstance(node, Derivative) or node.body.shape or len(node.shape) != 1:
            elaborator.ill_typed("∇ is read of a scalar, with the vector below that it is taken by", span)
        return node, len(pieces) - 1
    for letter in ("∂", "d"):
        found = _slash_derivative(elaborator, pieces, at, letter, span)
        if found is not None:
            return found
    return None


def _slash_derivative(
    elaborator: Elaborator, pieces: list[_Piece], at: int, letter: str, span: Span
) -> tuple[Node, int] | None:
    """∂f/∂x, or ∂/∂x before its argument."""
    order = _derivative_order(pieces[at], letter)
    if order is None:
        return None
    slashes = [place for place in range(at + 1, len(pieces) - 2) if _divides(pieces[place])]
    slash = next((place for place in slashes if _derivative_order(pieces[place + 1], letter) == 1), None)
    if slash is None:
        return None
    stop = slash + 1
    while stop + 2 < len(pieces) and _derivative_order(pieces[stop + 2], letter) == 1 and 2 * order > stop + 1 - slash:
        stop += 2
    targets = _denominator(pieces[slash + 1 : stop + 2], letter)
    if targets is None or (letter == "d" and not _is_differential(elaborator, order, targets, span)):
        return None
    if slash == at + 1:
        return _apply_derivative(elaborator, pieces[stop + 2 :], order, targets, span), len(pieces) - 1
    if _is_operator(pieces[at + 1]):
        return None
    body = elaborator.term(_product_syntax(pieces[at + 1 : slash]))
    return _derivatives(elaborator, body, order, targets, span), stop + 1


def _apply_derivative(elaborator: Elaborator, rest: list[_Piece], order: int, targets: _Targets, span: Span) -> Node:
    if not rest or _is_operator(rest[0]):
        elaborator.unreadable("this derivative has nothing to act on", span)
    return _derivatives(elaborator, elaborator.term(_product_syntax(rest)), order, targets, span)


def _derivatives(elaborator: Elaborator, body: Node, order: int, targets: _Targets, span: Span) -> Node:
    if not order or not all(times for _, times in targets):
        elaborator.unreadable("a derivative is taken once or more, not 0 times: leave out the exponent 0", span)
    if order != sum(times for _, times in targets):
        elaborator.unreadable("the numbers of ∂ above and below differ", span)
    if order > _HIGHEST_ORDER:
        elaborator.unreadable(f"derivatives are read up to order {_HIGHEST_ORDER}", span)
    for target, times in targets:
        for _ in range(times):
            body = derivative(elaborator, body, target, span)
        if times > 1 and isinstance(body, Derivative) and body.target.shape:
            elaborator.ill_typed("a second derivative is taken by scalars: name two components", span_of(target))
    return body


def derivative(elaborator: Elaborator, body: Node, target: _Piece, span: Span) -> Node:
    """∂ body / ∂ target."""
    node = elaborator.term(target)
    if not isinstance(node, Symbol) and not (isinstance(node, Part) and isinstance(node.body, Symbol)):
        elaborator.ill_typed("a derivative is taken with respect to a name or a component of one", span_of(target))
    if isinstance(body, Transpose) and len(body.body.shape) == len(node.shape) == 1:
        body = body.body  # ∂aᵀ/∂s has the two axes of ∂a/∂s
    if len(body.shape) + len(node.shape) > 2:
        elaborator.ill_typed("this derivative has more than two axes: take that of a component", span)
    return Derivative((*body.shape, *node.shape), body, node, span=span)


def _of_fraction(elaborator: Elaborator, part: Syntax) -> tuple[int, _Piece | None, _Targets] | None:
    """The order, the body and the targets of a derivative written as a fraction."""
    if part[0] == "binom":
        return None
    below = flatten_partials(_factors(part[2]))
    targets = _denominator(below, "∂")
    if targets is not None:
        above = _numerator(part[1], "∂")
        if above is None:
            elaborator.unreadable(_WRITTEN, part.span)
        return (*above, targets)
    targets, above = _denominator(below, "d"), _numerator(part[1], "d")
    if targets is None or above is None or not _is_differential(elaborator, above[0], targets, part.span):
        return None
    return (*above, targets)


def _is_differential(elaborator: Elaborator, order: int, targets: _Targets, span: Span) -> bool:
    """Whether d is not a name, so that dy/dx is a derivative; refused if it could be either."""
    if elaborator.naturals or order != sum(times for _, times in targets):
        return False
    if "d" not in elaborator.types and "d" not in elaborator.scope:
        return True
    for target, _ in targets:
        atom = only(target)
        atom = atom[0] if is_rule(atom, "operand") else atom
        kind = elaborator.types.get(str(atom))
        if kind is not None and kind.kind != "natural":
            reason = "d is declared, so that this is a quotient or a derivative: write \\partial for a derivative"
            elaborator.unreadable(f"{reason}, and d \\cdot {scripts.script_letters([atom])} for a product", span)
    return False


def _numerator(part: _Piece, letter: str) -> tuple[int, _Piece | None] | None:
    """The order of the ∂ or ∂^k at the beginning, and what follows it."""
    part = _without_braces(part)
    if is_rule(part, "expression"):
        first = _numerator(part[0], letter)
        if first is None or first[1] is None:
            return None
        return first[0], Syntax("expression", (first[1], *part.parts[1:]), part.span, part.depth)
    pieces = flatten_partials(_factors(part))
    order = _derivative_order(pieces[0], letter)
    if order is None or (len(pieces) > 1 and _is_operator(pieces[1])):
        return None
    return order, _product_syntax(pieces[1:]) if len(pieces) > 1 else None


def _denominator(pieces: list[_Piece], letter: str) -> _Targets | None:
    """The targets and their orders in ∂x ∂y^2; None for anything else."""
    if not pieces or len(pieces) % 2:
        return None
    found: _Targets = []
    for mark, target in zip(pieces[::2], pieces[1::2], strict=True):
        atom, suffixes = (target[0], list(target.parts[1:])) if is_rule(target, "operand") else (target, [])
        if (
            _derivative_order(mark, letter) != 1
            or _is_operator(target)
            or (letter == "d" and not is_token(atom, "NAME"))
        ):
            return None
        raised: list[_Piece] = [one for one in suffixes if is_rule(one, "suffix") and is_token(one[0], "SUP")]
        times = _whole(raised[0]) if len(raised) == 1 and isinstance(raised[0], Syntax) else None
        if times is not None or (len(pieces) > 2 and len(raised) == 1 and scripts.script_letters(raised) == "^T"):
            kept = (atom, *(suffix for suffix in suffixes if suffix is not raised[0]))
            target = Syntax("operand", kept, span_of(target), 0)
        found.append((target, 1 if times is None else times))
    return found


def _derivative_order(piece: _Piece, letter: str) -> int | None:
    """1 for ∂ (or d), k for ∂^k, else None."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUP"):
        return _whole(inner[1]) if _is_mark(only(inner[0]), letter) else None
    return 1 if _is_mark(inner, letter) else None


def _is_mark(part: _Piece, letter: str) -> bool:
    if letter == "d":
        return is_token(part, "NAME") and part == "d"
    return is_rule(part, "partial") and len(part) == 1 and part[0] == "partial"


def _nabla(piece: _Piece) -> _Piece | None:
    """u for ∇_u, else None."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUB"):
        sign = only(inner[0])
        if is_rule(sign, "partial") and len(sign) == 1 and sign[0] == "nabla":
            (entry, *more) = scripts.script_entries(inner[1])
            return entry[0] if isinstance(entry, Syntax) and len(entry) == 1 and not more else None
    return None


def _whole(suffix: Syntax) -> int | None:
    written = scripts.script_letters(scripts.script_entries(suffix))
    return int(written) if written.isdecimal() and 0 < len(written) < 3 else None


def _is_operator(piece: _Piece) -> bool:
    return is_rule(piece, "operator", "sign")


def _divides(piece: _Piece) -> bool:
    return is_rule(piece, "operator") and is_token(piece[0], "DIV")


def _product_syntax(pieces: Sequence[_Piece]) -> Syntax:
    span = (span_of(pieces[0])[0], span_of(pieces[-1])[1])
    return Syntax("product", tuple(pieces), span, 0)


def _factors(part: _Piece) -> Sequence[_Piece]:
    part = _without_braces(part)
    return part.parts if is_rule(part, "product") else (part,)


def _without_braces(part: _Piece) -> _Piece:
    """A part without braces and wrappers."""
    part = only(part)
    while is_rule(part, "group") and is_token(part[0], "LBRACE") and len(part[1]) == 1 and len(part[1][0]) == 1:
        part = only(part[1][0][0])
    return part
