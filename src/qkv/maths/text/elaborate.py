"""From syntax to the typed tree: every part gets a shape, or the text is refused where it goes wrong."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from qkv.errors import Unreadable
from qkv.maths.extents import NATURAL
from qkv.maths.text import calling, chains, differentiating, juxtaposing, saying, scripting, summing
from qkv.maths.text.fitting import OR, Arithmetic
from qkv.maths.text.juxtaposing import LARGEST_EXPONENT
from qkv.maths.text.parsing import Token
from qkv.maths.text.saying import named
from qkv.maths.text.shaping import fit_shapes, plain_shape, unknown_size
from qkv.maths.text.syntax import Syntax, is_rule, is_token, span_of, unwrapped
from qkv.maths.text.words import FUNCTIONS
from qkv.maths.tree import (
    Call,
    Constant,
    Contract,
    Index,
    Node,
    Number,
    Order,
    PlusMinus,
    Shape,
    Span,
    Special,
    Symbol,
    Type,
    Written,
)

_MOST_STEPS = 20_000


class Elaborator(Arithmetic):
    """One text with the types of its names.

    `naturals`: an undeclared name is a natural (in sizes and inside O). `told`: indices that are free, whatever the
    text looks like.
    """

    def __init__(
        self,
        source: str,
        types: Mapping[str, Type],
        syntax: Syntax,
        *,
        naturals: bool = False,
        told: Collection[str] = (),
    ) -> None:
        super().__init__(source)
        self.types, self.naturals, self.told = types, naturals, frozenset(told)
        self.bound: dict[str, str] = {}
        self.loose: dict[str, Span] = {}
        self.scope: dict[str, Node] = {}
        self.free: dict[str, Index] = {}
        self.steps = 0
        self.used = scripting.subscript_names(syntax)
        self.syntax = syntax

    def unreadable(self, reason: str, span: Span) -> NoReturn:
        raise Unreadable(reason, self.source, span)

    def whole(self, expected: Shape | None) -> Node:
        """The tree of the whole text, its sizes settled."""
        return chains.whole(self, expected)

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
        if len(part) > 1:
            self.unreadable("a relation inside an expression is not read", part.span)
        return self.term(part[0])

    def _expression(self, part: Syntax) -> Node:
        terms: list[Node] = []
        signs: list[Token] = []
        for piece in part:
            if is_rule(piece, "sign"):
                signs.append(piece[0])
                continue
            term = self.term(piece)
            for sign in reversed(signs):
                term = self.signed(sign, term)
            terms.append(term)
            signs = []
        return self.add(terms, part.span)

    def signed(self, sign: Token | None, node: Node) -> Node:
        if sign is None or sign.type == "PLUS":
            return node
        span = (span_of(sign)[0], node.span[1])
        if sign.type == "MINUS":
            return self.negate(node, span)
        return PlusMinus(node.shape, self.negate(node, span) if sign == "mp" else node, span=span)

    def _product(self, part: Syntax) -> Node:
        return juxtaposing.product(self, part)

    def _operand(self, part: Syntax) -> Node:
        suffixes = [piece for piece in part.parts[1:] if isinstance(piece, Syntax)]
        return scripting.suffixed(self, *calling.regrouped(part[0], suffixes), part.span)

    def _group(self, part: Syntax) -> Node:
        rows = part[1]
        assert isinstance(rows, Syntax)
        if len(rows) == 1 and len(rows[0]) == 1:
            inner = self.term(rows[0][0])
            listed = is_token(part[0], "LBRACK") and not is_rule(unwrapped(rows[0][0]), "matrix")
            if listed and isinstance(inner, Written) and len(inner.shape) == 1:
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
        derivative = differentiating.fraction(self, part)
        if derivative is not None:
            return derivative
        made = calling.binomial if part[0] == "binom" else Elaborator.divide
        return made(self, self.term(part[1]), self.term(part[2]), part.span)

    def _over(self, part: Syntax) -> Node:
        return self.divide(self.term(part[0]), self.term(part[2]), part.span)

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
        self.unreadable("∂ stands only in a derivative, \\frac{\\partial f}{\\partial x_j}, and ∇ as ∇_x f", part.span)

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
                "|·| of a matrix is not read",
                part.span,
                OR.join(saying.said(Call((), name, (body,))) for name in ("norm_F", "det")),
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
            case "NAME" | "MAP":
                return self.name(str(token), span)
            case "CONST":
                return Constant((), str(token), span=span)
            case "ONES" | "ZEROS":
                return Special((unknown_size(),), token.type.lower(), span=span)
            case "REFUSED":
                self.unreadable(f"{token} as an upper index is not read; the transpose is written ^T", span)
        return self.unreadable(f"{token} was not expected here", span)

    def _number(self, token: Token, span: Span) -> Number:
        mantissa, _, exponent = str(token).lower().partition("e")
        if len(exponent) > 5 or abs(int(exponent or 0)) > LARGEST_EXPONENT:
            self.unreadable(f"this exponent is beyond ±{LARGEST_EXPONENT}", span)
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
            if kind.kind == "map":
                self.ill_typed(f"{named(name)} is a map: write {named(name)}(x)", span)
            return Symbol(kind.shape, name, kind, span=span)
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
        self.loose.setdefault(name, span)
        return Index((), name, known.size, span=span)

    def undeclared(self, name: str, span: Span) -> NoReturn:
        names, shown = list(self.types), named(name)
        other = next((known for known in names if known.lower() == name.lower()), None)
        if other:
            self.ill_typed(f"{shown} is not declared; {named(other)} is, and case matters", span, named(other))
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.7) if len(name) > 2 else []
        if "'" in name and name.rstrip("'") in names:
            bare = named(name.rstrip("'"))
            self.ill_typed(f"{shown} is not declared, and a prime is part of a name", span, f"{bare}ᵀ{OR}{bare}")
        listed = ", ".join(map(named, names[:12])) + (", …" if len(names) > 12 else "")
        reason = f"{shown} is not declared" + (f"; {listed} {'are' if len(names) > 1 else 'is'}" if names else "")
        functions = difflib.get_close_matches(name, FUNCTIONS, n=1, cutoff=0.75) if len(name) > 2 and not close else []
        if functions:
            reason = f"{shown} is not declared; the function {functions[0]} is known"
        self.ill_typed(reason, span, named(close[0]) if close else "")
