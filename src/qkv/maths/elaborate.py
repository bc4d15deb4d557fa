"""From syntax to the typed tree: every part gets a shape, or the text is refused where it goes wrong."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from lark import Token

from qkv.errors import IllTyped, Unreadable
from qkv.maths import calling, differentiating, scripting, summing
from qkv.maths.extents import NATURAL
from qkv.maths.fitting import Arithmetic, is_list_turned
from qkv.maths.shaping import fit_shapes, plain_shape, settle, unknown_size
from qkv.maths.syntax import Syntax, is_rule, is_token, span_of, unwrapped
from qkv.maths.tree import (
    Call,
    Constant,
    Contract,
    Index,
    Multiply,
    Node,
    Number,
    Order,
    PlusMinus,
    Relation,
    Shape,
    Span,
    Special,
    Symbol,
    Transpose,
    Type,
    Written,
)

_LARGEST_EXPONENT = 400
_MOST_STEPS = 20_000


class Elaborator(Arithmetic):
    """One text with the types of its names. `naturals`: an undeclared name is a natural (in sizes and inside O)."""

    def __init__(self, source: str, types: Mapping[str, Type], syntax: Syntax, *, naturals: bool = False) -> None:
        super().__init__(source)
        self.types, self.naturals = types, naturals
        self.scope: dict[str, Node] = {}
        self.free: dict[str, Index] = {}
        self.steps = 0
        self.used = scripting.subscript_names(syntax)
        self.syntax = syntax

    def unreadable(self, reason: str, span: Span) -> NoReturn:
        raise Unreadable(reason, self.source, span)

    def whole(self, expected: Shape | None) -> Node:
        """The tree of the whole text, its sizes settled."""
        chain = self.syntax[-1]
        assert isinstance(chain, Syntax)
        said = is_rule(self.syntax, "said")
        signs = [str(part) for part in chain if is_token(part, "REL")]
        written = [part for part in chain if not is_token(part, "REL")]
        dropping = all(sign in ("=", "≈") for sign in signs)
        members: list[Node] = []
        kept: list[str] = []
        for place, part in enumerate(written):
            try:
                member = self._finished(self.term(part), expected)
            except IllTyped:
                if not dropping or place == len(written) - 1:
                    raise
                continue
            if members:
                kept.append(signs[place - 1])
            members.append(member)
        if (signs and signs[-1] == "≈") or (said and self.syntax[0] == "≈"):
            members[-1] = _rounded(members[-1])
        if len(members) == 1:
            return members[0]
        shape = members[-1].shape
        return Relation(shape, tuple(members), tuple(kept), span=chain.span)

    def _finished(self, node: Node, expected: Shape | None) -> Node:
        if isinstance(node, Transpose) and is_list_turned(node):
            node = node.body
        if expected is not None:
            node = self.as_shape(node, expected)
            fit_shapes(node.shape, expected)
        return settle(node, self._missing)

    def _missing(self, node: Node) -> NoReturn:
        if isinstance(node, Index):
            self.ill_typed(
                f"nothing says how far {node.name} runs: declare it as index[n], or write the range of the sum",
                node.span,
            )
        sign = {"ones": "1", "zeros": "0", "identity": "I"}.get(getattr(node, "name", ""), "1")
        self.ill_typed(f"nothing says of what size {self.text(node)} is: write {sign}_d", node.span)

    def term(self, part: Syntax | Token) -> Node:
        """Any part of the syntax that stands for a value."""
        part = unwrapped(part)
        self.steps += 1
        if self.steps > _MOST_STEPS:
            self.unreadable("this takes too many steps to read", span_of(part))
        if isinstance(part, Token):
            return self._token(part)
        handler = getattr(self, f"_{part.kind}", None)
        if handler is None:
            self.unreadable("this is no expression", part.span)
        return handler(part)

    def _chain(self, part: Syntax) -> Node:
        if len(part) == 1:
            return self.term(part[0])
        delta = scripting.delta(self, part)
        if delta is None:
            self.unreadable("a relation inside an expression is not read", part.span)
        return delta

    def _expression(self, part: Syntax) -> Node:
        terms: list[Node] = []
        signs: list[Token] = []
        for piece in part:
            if is_rule(piece, "sign"):
                signs.append(piece[0])
                continue
            term = self.term(piece)
            for sign in reversed(signs):
                term = self._signed(sign, term)
            terms.append(term)
            signs = []
        return self.add(terms, part.span)

    def _signed(self, sign: Token | None, node: Node) -> Node:
        if sign is None or sign.type == "PLUS":
            return node
        span = (span_of(sign)[0], node.span[1])
        return self.negate(node, span) if sign.type == "MINUS" else PlusMinus(node.shape, node, span=span)

    def _product(self, part: Syntax) -> Node:
        current: Node | None = None
        operator, sign, at = "", None, 0
        while at < len(part):
            piece = part[at]
            at += 1
            if is_rule(piece, "operator"):
                token = piece[0]
                operator = {"TIMES": str(token), "DIV": "/"}.get(token.type, str(token))
            elif is_rule(piece, "sign"):
                sign = piece[0]
            elif (bare := differentiating.operator_of(piece)) is not None:
                rest = Syntax("product", part.parts[at:], part.span, part.depth)
                if not rest.parts:
                    self.unreadable("this derivative has nothing to act on", part.span)
                value = differentiating.derivative(self, self.term(rest), bare, part.span)
                current = self._joined(current, value, operator, sign, part.span)
                at = len(part)
            else:
                if operator == "/" and current is None:
                    self.unreadable("nothing stands before the division", part.span)
                over = differentiating.differential(piece)
                follows = part[at + 1] if at + 1 < len(part) and is_rule(part[at], "operator") else piece
                under = differentiating.differential(follows) if follows is not piece else None
                if over is not None and under is not None:
                    value = differentiating.derivative(self, self.term(over), under, part.span)
                    at += 2
                else:
                    value = self.term(piece)
                current = self._joined(current, value, operator, sign, (part.span[0], span_of(piece)[1]))
                operator, sign = "", None
        assert current is not None
        if isinstance(current, Transpose) and is_list_turned(current) and len(part) > 1:
            return current.body
        return current

    def _joined(self, current: Node | None, value: Node, operator: str, sign: Token | None, span: Span) -> Node:
        if sign is not None:
            value = self._signed(sign, value)
        if current is None:
            return value
        if operator == "/":
            return self.divide(current, value, span)
        scientific = _scientific(current, value) if operator in ("", "times", "dot") else None
        return scientific or self.multiply(current, value, operator, span)

    def _operand(self, part: Syntax) -> Node:
        suffixes = [piece for piece in part.parts[1:] if isinstance(piece, Syntax)]
        return scripting.suffixed(self, part[0], suffixes, part.span)

    def _group(self, part: Syntax) -> Node:
        rows = part[1]
        assert isinstance(rows, Syntax)
        if len(rows) == 1 and len(rows[0]) == 1:
            inner = self.term(rows[0][0])
            if is_token(part[0], "LBRACK") and isinstance(inner, Written) and len(inner.shape) == 1:
                return Written((1, *inner.shape), inner.entries, span=part.span)
            return inner if is_token(part[0], "LBRACE") else replace(inner, span=part.span)
        if is_token(part[0], "LSET"):
            self.unreadable("a set of several values is not read", part.span)
        entries = [[self.term(e) for e in row if not is_token(e, "COMMA")] for row in rows if not is_token(row, "SEMI")]
        if len(entries) == 1:
            return self._list(entries[0], part.span)
        return self.written(entries, part.span)

    def _list(self, entries: list[Node], span: Span) -> Node:
        """(1, 4, 3): a vector; of vectors of one size, [[1, 2], [3, 4]]: a matrix."""
        if all(isinstance(entry, Written) and len(entry.shape) == 1 for entry in entries):
            return self.written([list(entry.entries) for entry in entries if isinstance(entry, Written)], span)
        self._scalars(entries)
        return Written((len(entries),), tuple(entries), span=span)

    def written(self, rows: list[list[Node]], span: Span) -> Node:
        """Rows of a matrix; one entry in each is a vector."""
        width = len(rows[0])
        for row in rows:
            self._scalars(row)
            if len(row) != width:
                self.ill_typed(f"the rows of this matrix have {width} and {len(row)} entries", span)
        entries = tuple(entry for row in rows for entry in row)
        return Written((len(rows),) if width == 1 else (len(rows), width), entries, span=span)

    def _scalars(self, entries: list[Node]) -> None:
        for entry in entries:
            if entry.shape:
                self.ill_typed(
                    f"an entry is a scalar, and {self.text(entry)} is {plain_shape(entry.shape)}", entry.span
                )

    def _matrix(self, part: Syntax) -> Node:
        lines = [line for line in part if is_rule(line, "line")]
        return self.written([[self.term(e) for e in line if not is_token(e, "AMP")] for line in lines], part.span)

    def _fraction(self, part: Syntax) -> Node:
        top, bottom = part[1], part[2]
        over, under = differentiating.differential(top), differentiating.differential(bottom)
        if under is not None:
            if over is None:
                self.unreadable("a derivative is written \\frac{\\partial f}{\\partial x}", part.span)
            return differentiating.derivative(self, self.term(over), under, part.span)
        return self.divide(self.term(top), self.term(bottom), part.span)

    def _root(self, part: Syntax) -> Node:
        body = self.term(part[-1])
        if len(part) == 2:
            return self.entrywise("sqrt", body, part.span)
        degree = self.term(part[2])
        if body.shape or degree.shape:
            self.ill_typed("this root is taken of scalars only", part.span)
        exponent = self.divide(self.number(1, degree.span), degree, degree.span)
        return scripting.power(self, body, exponent, part.span)

    def _partial(self, part: Syntax) -> Node:
        self.unreadable("∂ stands only in a derivative, \\frac{\\partial f}{\\partial x_j}", part.span)

    def _call(self, part: Syntax) -> Node:
        return calling.call(self, part)

    def _applied(self, part: Syntax) -> Node:
        return calling.applied(self, part)

    def _bare(self, part: Syntax) -> Node:
        return self._product(part)

    def _mapped(self, part: Syntax) -> Node:
        return calling.mapped(self, part)

    def _big(self, part: Syntax) -> Node:
        return summing.big(self, part)

    def _order(self, part: Syntax) -> Node:
        before, self.naturals = self.naturals, True
        body = self.term(part[1])
        self.naturals = before
        if body.shape:
            self.ill_typed(f"a rate of growth is a scalar, and this is {plain_shape(body.shape)}", part.span)
        return Order((), str(part[0]), body, span=part.span)

    def _norm(self, part: Syntax) -> Node:
        return calling.norm(self, self.term(part[1]), "", part.span)

    def _bars(self, part: Syntax) -> Node:
        body = self.term(part[1])
        if len(body.shape) == 2 and body.shape[0] != 1:
            self.ill_typed(
                "|·| of a matrix is not read", part.span, f"‖{self.text(body)}‖_F, or det({self.text(body)})"
            )
        return calling.norm(self, body, "", part.span)

    def _angle(self, part: Syntax) -> Node:
        left, right = self.term(part[1]), self.term(part[3])
        if len(left.shape) == len(right.shape) == 2 and fit_shapes(left.shape, right.shape):
            inner = Contract((left.shape[1], right.shape[1]), self.transpose(left, left.span), right, span=part.span)
            return Call((), "trace", (inner,), span=part.span)
        if len(left.shape) != 1 or len(right.shape) != 1:
            self.ill_typed("⟨ , ⟩ is the product of two vectors of one size", part.span)
        return self.multiply(left, right, "dot", part.span)

    def _token(self, token: Token) -> Node:
        span = span_of(token)
        match token.type:
            case "NUMBER":
                return self._number(token, span)
            case "NAME":
                return self.name(str(token), span)
            case "CONST":
                return Constant((), str(token), span=span)
            case "ONES" | "ZEROS":
                return Special((unknown_size(),), token.type.lower(), span=span)
            case "MAP":
                self.ill_typed(f"{token} is a map: write {token}(x)", span)
            case "REFUSED":
                self.unreadable(f"{token} as an upper index is not read; the transpose is written ^T", span)
        return self.unreadable(f"{token} was not expected here", span)

    def _number(self, token: Token, span: Span) -> Number:
        mantissa, _, exponent = str(token).lower().partition("e")
        if len(exponent) > 5 or abs(int(exponent or 0)) > _LARGEST_EXPONENT:
            self.unreadable(f"this exponent is beyond ±{_LARGEST_EXPONENT}", span)
        scale = Fraction(10) ** int(exponent or 0)
        digits = len(mantissa.partition(".")[2])
        unit = Fraction(1, 10**digits) * scale if "." in mantissa else None
        return Number((), Fraction(mantissa) * scale, unit, span=span)

    def name(self, name: str, span: Span) -> Node:
        """A name as a value: bound, declared, an index that is free, or a letter that means something by itself."""
        if name in self.scope:
            bound = self.scope[name]
            return Index((), name, bound.size, span=span) if isinstance(bound, Index) and bound.name == name else bound
        kind = self.types.get(name)
        if kind is not None:
            if kind.kind == "index":
                return Index((), name, kind.shape[0], span=span)
            return Symbol(() if kind.kind == "map" else kind.shape, name, kind, span=span)
        if self.naturals:
            return Symbol((), name, NATURAL, span=span)
        if name == "I":
            size = unknown_size()
            return Special((size, size), "identity", span=span)
        if name == "e":
            return Constant((), "e", span=span)
        if name in self.used:
            return self.free_index(name, span)
        return self.undeclared(name, span)

    def free_index(self, name: str, span: Span) -> Index:
        known = self.free.setdefault(name, Index((), name, unknown_size(), span=span))
        return Index((), name, known.size, span=span)

    def undeclared(self, name: str, span: Span) -> NoReturn:
        names = list(self.types)
        other = next((known for known in names if known.lower() == name.lower()), None)
        if other:
            self.ill_typed(f"{name} is not declared; {other} is, and case matters", span)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.7) if len(name) > 2 else []
        if "'" in name and name.rstrip("'") in names:
            bare = name.rstrip("'")
            self.ill_typed(f"{name} is not declared, and a prime is part of a name", span, f"{bare}ᵀ, or {bare}")
        said = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        self.ill_typed(f"{name} is not declared" + (f"; {said} are" if names else ""), span, close[0] if close else "")


def _rounded(node: Node) -> Node:
    if isinstance(node, Number):
        return Number((), node.value, node.unit, True, span=node.span)
    if isinstance(node, Written):
        return Written(node.shape, tuple(_rounded(entry) for entry in node.entries), span=node.span)
    return node


def _scientific(left: Node, right: Node) -> Node | None:
    """6.90 × 10^{-13} as one number, whose last digit counts; at the end of the scalars of a product as well."""
    power = scripting.power_of_ten(right)
    if power is None or abs(power) > _LARGEST_EXPONENT:
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
