"""Derivatives as they are written: ∂f/∂x in one fraction, by a stroke, or as an operator before what it acts on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.maths.text import scripting
from qkv.maths.text.parsing import Token
from qkv.maths.text.syntax import Syntax, is_rule, is_token, only, span_of
from qkv.maths.tree import Derivative, Node, Part, Span, Symbol, Transpose

if TYPE_CHECKING:
    from qkv.maths.text.elaborate import Elaborator

_HIGHEST = 4
_MOST = 12
_WRITTEN = "a derivative is written \\frac{\\partial f}{\\partial x}"
_Piece = Syntax | Token
_Targets = list[tuple[_Piece, int]]


def flat(pieces: Sequence[_Piece]) -> list[_Piece]:
    """The factors of a product, in which every ∂ stands for itself before what it belongs to."""
    found: list[_Piece] = []
    for piece in pieces:
        inner = only(piece)
        if is_rule(inner, "partial") and len(inner) == 2:
            start, stop = span_of(inner[0])
            found += [Syntax("partial", (inner[0],), (start, stop), 0), inner[1]]
        else:
            found.append(piece)
    return found


def acts(pieces: Sequence[_Piece], at: int) -> bool:
    """Whether the operator of a derivative stands here, which takes in what follows."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        above = _above(inner[1], "∂") or _above(inner[1], "d")
        return above is not None and above[1] is None
    bare = _times(pieces[at], "∂") is not None and at + 1 < len(pieces) and _divides(pieces[at + 1])
    return bare or _nabla(pieces[at]) is not None


def refuse_many(elaborator: Elaborator, pieces: Sequence[_Piece], span: Span) -> None:
    """Each derivative may hold all that follow it, and no nesting is without end."""
    if sum(acts(pieces, at) or _times(piece, "d") == 1 for at, piece in enumerate(pieces)) > _MOST:
        elaborator.unreadable(f"more than {_MOST} derivatives in one product are not read", span)


def fraction(elaborator: Elaborator, part: Syntax) -> Node | None:
    """\\frac{∂f}{∂x}, of which all that stands above is differentiated; None where this is no derivative."""
    found = _of_fraction(elaborator, part)
    if found is None:
        return None
    order, body, targets = found
    if body is None:
        elaborator.unreadable("this derivative has nothing to act on", part.span)
    return _derivatives(elaborator, elaborator.term(body), order, targets, part.span)


def in_line(elaborator: Elaborator, pieces: list[_Piece], at: int, span: Span) -> tuple[Node, int] | None:
    """A derivative that begins at `at` in a product, and the last place that belongs to it; None where none does."""
    inner = only(pieces[at])
    if is_rule(inner, "fraction"):
        found = _of_fraction(elaborator, inner)
        if found is None or found[1] is not None:
            return None
        return _acting(elaborator, pieces[at + 1 :], found[0], found[2], span), len(pieces) - 1
    by = _nabla(pieces[at])
    if by is not None:
        node = _acting(elaborator, pieces[at + 1 :], 1, [(by, 1)], span)
        if not isinstance(node, Derivative) or node.body.shape or len(node.shape) != 1:
            elaborator.ill_typed("∇ is read of a scalar, with the vector below that it is taken by", span)
        return node, len(pieces) - 1
    for letter in ("∂", "d"):
        found = _by_a_stroke(elaborator, pieces, at, letter, span)
        if found is not None:
            return found
    return None


def _by_a_stroke(
    elaborator: Elaborator, pieces: list[_Piece], at: int, letter: str, span: Span
) -> tuple[Node, int] | None:
    """∂f/∂x, or ∂/∂x before what it acts on."""
    order = _times(pieces[at], letter)
    if order is None:
        return None
    strokes = [place for place in range(at + 1, len(pieces) - 2) if _divides(pieces[place])]
    stroke = next((place for place in strokes if _times(pieces[place + 1], letter) == 1), None)
    if stroke is None:
        return None
    stop = stroke + 1
    while stop + 2 < len(pieces) and _times(pieces[stop + 2], letter) == 1 and 2 * order > stop + 1 - stroke:
        stop += 2
    targets = _below(pieces[stroke + 1 : stop + 2], letter)
    if targets is None or (letter == "d" and not _is_differential(elaborator, order, targets, span)):
        return None
    if stroke == at + 1:
        return _acting(elaborator, pieces[stop + 2 :], order, targets, span), len(pieces) - 1
    if _joins(pieces[at + 1]):
        return None
    body = elaborator.term(_product(pieces[at + 1 : stroke]))
    return _derivatives(elaborator, body, order, targets, span), stop + 1


def _acting(elaborator: Elaborator, rest: list[_Piece], order: int, targets: _Targets, span: Span) -> Node:
    if not rest or _joins(rest[0]):
        elaborator.unreadable("this derivative has nothing to act on", span)
    return _derivatives(elaborator, elaborator.term(_product(rest)), order, targets, span)


def _derivatives(elaborator: Elaborator, body: Node, order: int, targets: _Targets, span: Span) -> Node:
    if not order or not all(times for _, times in targets):
        elaborator.unreadable("a derivative is taken once or more, not 0 times: leave out the exponent 0", span)
    if order != sum(times for _, times in targets):
        elaborator.unreadable("the ∂ above and those below are not as many", span)
    if order > _HIGHEST:
        elaborator.unreadable(f"derivatives are read up to order {_HIGHEST}", span)
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
    """How often, what, and by what a fraction differentiates."""
    if part[0] == "binom":
        return None
    below = flat(_factors(part[2]))
    targets = _below(below, "∂")
    if targets is not None:
        above = _above(part[1], "∂")
        if above is None:
            elaborator.unreadable(_WRITTEN, part.span)
        return (*above, targets)
    targets, above = _below(below, "d"), _above(part[1], "d")
    if targets is None or above is None or not _is_differential(elaborator, above[0], targets, part.span):
        return None
    return (*above, targets)


def _is_differential(elaborator: Elaborator, order: int, targets: _Targets, span: Span) -> bool:
    """Whether d is no name of its own, so that dy/dx is a derivative; refused where it could be either."""
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
            elaborator.unreadable(f"{reason}, and d \\cdot {scripting.spelt([atom])} for a product", span)
    return False


def _above(part: _Piece, letter: str) -> tuple[int, _Piece | None] | None:
    """∂ or ∂^k at the beginning of this, as its order, and what follows it."""
    part = _opened(part)
    if is_rule(part, "expression"):
        first = _above(part[0], letter)
        if first is None or first[1] is None:
            return None
        return first[0], Syntax("expression", (first[1], *part.parts[1:]), part.span, part.depth)
    pieces = flat(_factors(part))
    order = _times(pieces[0], letter)
    if order is None or (len(pieces) > 1 and _joins(pieces[1])):
        return None
    return order, _product(pieces[1:]) if len(pieces) > 1 else None


def _below(pieces: list[_Piece], letter: str) -> _Targets | None:
    """∂x ∂y^2: what is differentiated by, and how often; None where anything else stands there."""
    if not pieces or len(pieces) % 2:
        return None
    found: _Targets = []
    for mark, target in zip(pieces[::2], pieces[1::2], strict=True):
        atom, suffixes = (target[0], list(target.parts[1:])) if is_rule(target, "operand") else (target, [])
        if _times(mark, letter) != 1 or _joins(target) or (letter == "d" and not is_token(atom, "NAME")):
            return None
        raised: list[_Piece] = [one for one in suffixes if is_rule(one, "suffix") and is_token(one[0], "SUP")]
        times = _whole(raised[0]) if len(raised) == 1 and isinstance(raised[0], Syntax) else None
        if times is not None or (len(pieces) > 2 and len(raised) == 1 and scripting.spelt(raised) == "^T"):
            kept = (atom, *(suffix for suffix in suffixes if suffix is not raised[0]))
            target = Syntax("operand", kept, span_of(target), 0)
        found.append((target, 1 if times is None else times))
    return found


def _times(piece: _Piece, letter: str) -> int | None:
    """1 where this is ∂ (or a d), k where it is ∂^k."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUP"):
        return _whole(inner[1]) if _is_mark(only(inner[0]), letter) else None
    return 1 if _is_mark(inner, letter) else None


def _is_mark(part: _Piece, letter: str) -> bool:
    if letter == "d":
        return is_token(part, "NAME") and part == "d"
    return is_rule(part, "partial") and len(part) == 1 and part[0] == "partial"


def _nabla(piece: _Piece) -> _Piece | None:
    """u where this is ∇_u."""
    inner = only(piece)
    if is_rule(inner, "operand") and len(inner) == 2 and is_token(inner[1][0], "SUB"):
        sign = only(inner[0])
        if is_rule(sign, "partial") and len(sign) == 1 and sign[0] == "nabla":
            (entry, *more) = scripting.inside(inner[1])
            return entry[0] if isinstance(entry, Syntax) and len(entry) == 1 and not more else None
    return None


def _whole(suffix: Syntax) -> int | None:
    written = scripting.spelt(scripting.inside(suffix))
    return int(written) if written.isdecimal() and 0 < len(written) < 3 else None


def _joins(piece: _Piece) -> bool:
    return is_rule(piece, "operator", "sign")


def _divides(piece: _Piece) -> bool:
    return is_rule(piece, "operator") and is_token(piece[0], "DIV")


def _product(pieces: Sequence[_Piece]) -> Syntax:
    span = (span_of(pieces[0])[0], span_of(pieces[-1])[1])
    return Syntax("product", tuple(pieces), span, 0)


def _factors(part: _Piece) -> Sequence[_Piece]:
    part = _opened(part)
    return part.parts if is_rule(part, "product") else (part,)


def _opened(part: _Piece) -> _Piece:
    """A part without the braces and wrappers around it."""
    part = only(part)
    while is_rule(part, "group") and is_token(part[0], "LBRACE") and len(part[1]) == 1 and len(part[1][0]) == 1:
        part = only(part[1][0][0])
    return part
