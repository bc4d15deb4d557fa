"""From syntax to the typed tree: every node gets a shape, or the text is refused at the place of the error."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import NoReturn

from qkv.errors import IllTyped, MathsError, Unreadable
from qkv.maths import tree
from qkv.maths.parsing import functions, scripts, shapes, words
from qkv.maths.parsing.grammar import Syntax, Token, is_rule, is_token, only, span_of, walk, without_brackets
from qkv.maths.parsing.shapes import OR, can_unify, describe_shape, node_text, pretty_name, resolved_size, unify
from qkv.maths.sizes import NATURAL
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Index,
    Multiply,
    Node,
    Number,
    Order,
    Shape,
    Span,
    Special,
    Symbol,
    Written,
)

LARGEST_EXPONENT = 400
_MOST_STEPS = 20_000


class Elaborator:
    """Builds the typed tree of one text.

    Args:
        source: The text, for error messages.
        types: Declared names and their types.
        syntax: The syntax tree of the text.
        naturals: Read undeclared names as naturals (in sizes and inside O).
        free: Indices that are given from outside, so that no sum binds them implicitly.
        choice: Which of the readings in `other_readings` to take, instead of the standard one.
    """

    def __init__(
        self,
        source: str,
        types: Mapping[str, tree.Type],
        syntax: Syntax,
        *,
        naturals: bool = False,
        free: Collection[str] = (),
        choice: str = "",
    ) -> None:
        self.source, self.choice = source, choice
        self.other_readings: dict[str, str] = {}
        self.types, self.naturals, self.given_free = types, naturals, frozenset(free)
        self.bound: dict[str, str] = {}
        self.free_spans: dict[str, Span] = {}
        self.scope: dict[str, Node] = {}
        self.free: dict[str, Index] = {}
        self.steps = 0
        self.fresh: set[str] = set()
        self.used = scripts.subscript_names(syntax)
        self.syntax = syntax

    def unreadable(self, reason: str, span: Span) -> NoReturn:
        raise Unreadable(reason, self.source, span)

    def chosen(self, reading: str, note: str) -> bool:
        """Whether to take another reading, which exists here; `note` says in words what it is."""
        self.other_readings.setdefault(reading, note)
        return self.choice == reading

    def term(self, part: Syntax | Token) -> Node:
        """The node of any part of the syntax that has a value."""
        part = without_brackets(part)
        self.steps += 1
        if self.steps > _MOST_STEPS:
            self.unreadable("this takes too many steps to read", span_of(part))
        if isinstance(part, Token):
            return self._token(part)
        if part.kind in _ELSEWHERE:
            return _ELSEWHERE[part.kind](self, part)
        handler = getattr(self, f"_{part.kind}", None)
        if handler is None:
            self.unreadable("this is not an expression", part.span)
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
            else:
                terms.append(reduce(lambda term, sign: self.signed(sign, term), reversed(signs), self.term(piece)))
                signs = []
        return self.add(terms, part.span)

    def signed(self, sign: Token | None, node: Node) -> Node:
        if sign is None or sign.type == "PLUS":
            return node
        span = (span_of(sign)[0], node.span[1])
        if sign.type == "MINUS":
            return self.negate(node, span)
        return tree.PlusMinus(node.shape, self.negate(node, span) if sign == "mp" else node, span=span)

    def _operand(self, part: Syntax) -> Node:
        suffixes = [piece for piece in part.parts[1:] if isinstance(piece, Syntax)]
        return scripts.with_scripts(self, *functions.regrouped(part[0], suffixes), part.span)

    def _group(self, part: Syntax) -> Node:
        rows = part[1]
        assert isinstance(rows, Syntax)
        if functions.is_set(part):
            self.unreadable("an interval or a set is an answer by itself, not a part of an expression", part.span)
        if len(rows) == 1 and len(rows[0]) == 1:
            inner = self.term(rows[0][0])
            listed = is_token(part[0], "LBRACK") and not is_rule(without_brackets(rows[0][0]), "matrix")
            if listed and isinstance(inner, Written) and len(inner.shape) == 1:
                return Written((1, *inner.shape), inner.entries, span=part.span)
            return inner if is_token(part[0], "LBRACE") else replace(inner, span=part.span)
        entries = [[self.term(e) for e in row if not is_token(e, "COMMA")] for row in rows if not is_token(row, "SEMI")]
        if len(entries) == 1:
            return self.listed(entries[0], part.span, str(part[0]))
        return self.written(entries, part.span)

    def listed(self, entries: list[Node], span: Span, brackets: str = "") -> Node:
        """(1, 4, 3) is a vector; a list of vectors of one size, [[1, 2], [3, 4]], is a matrix."""
        if all(isinstance(entry, Written) and len(entry.shape) == 1 for entry in entries):
            return self.written([list(entry.entries) for entry in entries if isinstance(entry, Written)], span)
        self.scalars(entries)
        return Written((len(entries),), tuple(entries), brackets if brackets in "([" else "", span=span)

    def written(self, rows: list[list[Node]], span: Span) -> Node:
        """A matrix from its rows; with one entry in each row, a vector."""
        width = len(rows[0])
        for row in rows:
            self.scalars(row)
            if len(row) != width:
                self.ill_typed(f"the rows of this matrix have {width} and {len(row)} entries", span)
        entries = tuple(entry for row in rows for entry in row)
        return Written((len(rows),) if width == 1 else (len(rows), width), entries, span=span)

    def scalars(self, entries: list[Node]) -> None:
        for entry in entries:
            if entry.shape:
                described = describe_shape(entry.shape)
                self.ill_typed(f"an entry is a scalar, and {self.text(entry)} is {described}", entry.span)

    def _matrix(self, part: Syntax) -> Node:
        lines = [line for line in part if is_rule(line, "line")]
        return self.written([[self.term(e) for e in line if not is_token(e, "AMP")] for line in lines], part.span)

    def _fraction(self, part: Syntax) -> Node:
        derivative = scripts.fraction_derivative(self, part)
        if derivative is not None:
            return derivative
        made = functions.binomial if part[0] == "binom" else Elaborator.divide
        return made(self, self.term(part[1]), self.term(part[2]), part.span)

    def _over(self, part: Syntax) -> Node:
        return self.divide(self.term(part[0]), self.term(part[2]), part.span)

    def _root(self, part: Syntax) -> Node:
        body = self.term(part[-1])
        if len(part) == 2:
            return Call(body.shape, "sqrt", (body,), span=part.span)
        degree = self.term(part[2])
        if body.shape or degree.shape:
            self.ill_typed("this root is taken of scalars only", part.span)
        exponent = self.divide(self.number(1, degree.span), degree, degree.span)
        return scripts.power(self, body, exponent, part.span)

    def _partial(self, part: Syntax) -> Node:
        self.unreadable("∂ is read only in a derivative, \\frac{\\partial f}{\\partial x_j}, and ∇ as ∇_x f", part.span)

    def _order(self, part: Syntax) -> Node:
        before, self.naturals = self.naturals, True
        body = self.term(part[1])
        self.naturals = before
        if body.shape:
            self.ill_typed(f"a rate of growth is a scalar, and this is {describe_shape(body.shape)}", part.span)
        return Order((), str(part[0]), body, span=part.span)

    def _floor(self, part: Syntax) -> Node:
        return functions.known_call(self, str(part[0]), [self.term(part[1])], part.span)

    def _norm(self, part: Syntax) -> Node:
        return functions.norm(self, self.term(part[1]), "", part.span)

    def _bars(self, part: Syntax) -> Node:
        body = self.term(part[1])
        if len(body.shape) == 2 and body.shape[0] != 1:
            meant = OR.join(node_text(Call((), name, (body,))) for name in ("norm_F", "det"))
            self.ill_typed("|·| of a matrix is not read", part.span, meant)
        return functions.norm(self, body, "", part.span)

    def _angle(self, part: Syntax) -> Node:
        left, right = self.term(part[1]), self.term(part[3])
        if len(left.shape) == len(right.shape) == 2 and shapes.unify_shapes(left.shape, right.shape):
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
            case "UNIT":
                return self._unit(token, span)
            case "REALS":
                self.unreadable("a set of numbers is not an expression: give the value itself", span)
            case "CONST":
                return tree.Constant((), str(token), span=span)
            case "ONES" | "ZEROS":
                return Special((shapes.unknown_size(),), token.type.lower(), span=span)
            case "REFUSED":
                self.unreadable(f"{token} as an upper index is not read; the transpose is written ^T", span)
        return self.unreadable(f"{token} was not expected here", span)

    def _number(self, token: Token, span: Span) -> Node:
        if "/" in token:
            top, bottom = (self.number(int(digits), span) for digits in token.split("/"))
            return tree.Divide((), top, bottom, span=span)
        mantissa, _, exponent = str(token).lower().partition("e")
        if len(exponent) > 5 or abs(int(exponent or 0)) > LARGEST_EXPONENT:
            self.unreadable(f"this exponent is beyond ±{LARGEST_EXPONENT}", span)
        scale = Fraction(10) ** int(exponent or 0)
        digits = len(mantissa.partition(".")[2])
        unit = Fraction(1, 10**digits) * scale if "." in mantissa else None
        return Number((), Fraction(mantissa) * scale, unit, span=span)

    def _unit(self, token: Token, span: Span) -> Node:
        """A unit as a factor and base units with exponents."""
        scale, powers = Fraction(1), dict[str, int]()
        for word in token.split():
            sign = -1 if word[0] == "/" else 1
            factor, bases = words.UNITS[word.lstrip("/")]
            if word.lstrip("/") == "KB" and self.chosen("KB", "KB read as 1024 bytes"):
                factor = Fraction(1024)
            scale *= factor**sign
            for base, exponent in bases:
                powers[base] = powers.get(base, 0) + sign * exponent
        factors: list[Node] = [] if scale == 1 and any(powers.values()) else [self.number(scale, span)]
        for base, exponent in powers.items():
            symbol = Symbol((), f"unit {base}", tree.Type("positive"), span=span)
            power = tree.Power((), symbol, self.number(exponent, span), span=span)
            factors += [symbol if exponent == 1 else power] if exponent else []
        return factors[0] if len(factors) == 1 else Multiply((), tuple(factors), span=span)

    def name(self, name: str, span: Span) -> Node:
        """The node of a name: bound, declared, a free index, or a letter with a meaning such as I and e."""
        if name in self.scope:
            bound = self.scope[name]
            return Index((), name, bound.size, span=span) if isinstance(bound, Index) and bound.name == name else bound
        kind = self.types.get(name)
        if kind is not None:
            if kind.kind == "index":
                return Index((), name, kind.shape[0], span=span)
            if kind.kind == "map":
                self.ill_typed(f"{pretty_name(name)} is a map: write {pretty_name(name)}(x)", span)
            return Symbol(kind.shape, name, kind, span=span)
        if self.naturals:
            return Symbol((), name, NATURAL, span=span)
        if name == "I":
            size = shapes.unknown_size()
            return Special((size, size), "identity", span=span)
        if name == "e":
            return tree.Constant((), "e", span=span)
        if name in self.used:
            return self.free_index(name, span)
        return self.undeclared(name, span)

    def free_index(self, name: str, span: Span) -> Index:
        known = self.free.setdefault(name, Index((), name, shapes.unknown_size(), span=span))
        self.free_spans.setdefault(name, span)
        return Index((), name, known.size, span=span)

    def undeclared(self, name: str, span: Span) -> NoReturn:
        names, shown = list(self.types), pretty_name(name)
        other = next((known for known in names if known.lower() == name.lower()), None)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.7) if len(name) > 2 else []
        similar = difflib.get_close_matches(name, words.FUNCTIONS, n=1, cutoff=0.75) if len(name) > 2 else []
        listed = ", ".join(map(pretty_name, names[:12])) + (", …" if len(names) > 12 else "")
        reason, suggestion = f"{shown} is not declared", pretty_name(close[0]) if close else ""
        if other:
            reason, suggestion = f"{reason}; {pretty_name(other)} is, and case matters", pretty_name(other)
        elif "'" in name and name.rstrip("'") in names:
            bare = pretty_name(name.rstrip("'"))
            reason, suggestion = f"{reason}, and a prime is part of a name", f"{bare}ᵀ{OR}{bare}"
        elif similar and not close:
            reason = f"{reason}; the function {similar[0]} is known"
        elif names:
            reason = f"{reason}; {listed} {'are' if len(names) > 1 else 'is'}"
        error = Unreadable(reason, self.source, span, suggestion)
        found = [name, *scripts.undeclared_names(self)]
        error.undeclared = tuple(dict.fromkeys(one for each in found for one in (each if len(each) == 2 else [each])))
        raise error

    def text(self, node: Node) -> str:
        """A node as messages show it."""
        return shapes.shortened(node_text(node) or self.source[slice(*node.span)].strip())

    def ill_typed(self, reason: str, span: Span, suggestion: str = "") -> NoReturn:
        raise IllTyped(reason, self.source, span, suggestion)

    def number(self, value: int | Fraction, span: Span) -> Number:
        return Number((), Fraction(value), span=span)

    def negate(self, node: Node, span: Span) -> Node:
        if isinstance(node, Number):
            return Number((), -node.value, node.unit, node.rounded, span=span)
        if isinstance(node, Multiply):
            first = node.factors[0]
            if isinstance(first, Number) and first.value > 0 and first.value != 1:
                return Multiply(node.shape, (self.negate(first, first.span), *node.factors[1:]), span=span)
            return Multiply(node.shape, (self.number(-1, span), *node.factors), span=span)
        return Multiply(node.shape, (self.number(-1, span), node), span=span)

    def add(self, terms: list[Node], span: Span) -> Node:
        """The sum of terms of one shape; a 0 among vectors is the zero vector."""
        if len(terms) == 1:
            return terms[0]
        if any(isinstance(term, Order) for term in terms):
            return self._orders(terms, span)
        widest = max(terms, key=lambda one: (not shapes.is_transposed_list(one), len(one.shape), not _is_zeros(one)))
        shaped = [self.as_shape(term, widest.shape) for term in terms]
        for term, given in zip(shaped, terms, strict=True):
            if not shapes.unify_shapes(term.shape, widest.shape):
                self._refuse_sum(given, widest, terms)
        flat: list[Node] = []
        for term in shaped:
            flat.extend(term.terms if isinstance(term, Add) else [term])
        return Add(widest.shape, tuple(flat), span=span)

    def _orders(self, terms: list[Node], span: Span) -> Node:
        bodies = [term.body for term in terms if isinstance(term, Order)]
        kinds = {term.kind for term in terms if isinstance(term, Order)}
        if len(kinds) != 1 or len(bodies) != len(terms):
            self.ill_typed("nothing can be added to an asymptotic class: write one class of the whole sum", span)
        return Order((), kinds.pop(), self.add(bodies, span), span=span)

    def as_shape(self, node: Node, shape: Shape) -> Node:
        """A 0 as the zeros of `shape`, and a transposed list as the vector that `shape` expects."""
        if isinstance(node, Number) and node.value == 0 and shape:
            return Special(shape, "zeros", span=node.span)
        if _is_zeros(node) and len(node.shape) != len(shape) and shape:
            return Special(shape, "zeros", span=node.span)
        if len(shape) == 1 and shapes.is_transposed_list(node):
            return node.body
        return node

    def _refuse_sum(self, term: Node, other: Node, terms: list[Node]) -> NoReturn:
        first, second = (term, other) if term.span <= other.span else (other, term)
        reason = (
            f"{self.text(first)} is {describe_shape(first.shape)} and {self.text(second)} is "
            f"{describe_shape(second.shape)}: they cannot be added"
        )
        start, stop = first.span[0], max(first.span[1], second.span[1])
        small, large = sorted((term, other), key=lambda node: len(node.shape))
        like = self._suggested_term(small, large)
        suggestion = ""
        if like is not None:
            within = [like if part is small else part for part in terms if start <= part.span[0] < stop]
            suggestion = node_text(Add(large.shape, tuple(within)))
        self.ill_typed(reason, (start, stop), suggestion)

    def _suggested_term(self, small: Node, large: Node) -> Node | None:
        """The term that was probably meant next to a larger one, for a suggestion."""
        square = len(large.shape) == 2 and can_unify(*large.shape)
        if not small.shape and (len(large.shape) == 1 or square):
            special = Special(large.shape, "identity" if square else "ones")
            one = isinstance(small, Number) and small.value == 1
            return special if one else self.multiply(small, special, "", small.span)
        if len(small.shape) == 2 and fits_transposed(small.shape, large.shape):
            turned = self._toggle_transpose(small)
            return None if turned == large else turned
        return None

    def multiply(self, left: Node, right: Node, how: str, span: Span) -> Node:
        """left times right; `how` is "" or "times" for juxtaposition, "dot", "odot" or "otimes"."""
        if isinstance(left, Order) or isinstance(right, Order):
            self.ill_typed("an asymptotic class cannot be multiplied: write one class of the whole product", span)
        if how == "odot" and left.shape and right.shape:
            return self._hadamard(left, right, span)
        scalars_left, first = _split_scalars(left)
        scalars_right, second = _split_scalars(right)
        scalars = scalars_left + scalars_right
        if first is None or second is None:
            return _scaled_product(scalars, first if second is None else second, span)
        core = self._array_product(first, second, how, scalars, span)
        return _times_scalars(scalars, core, span)

    def _array_product(self, first: Node, second: Node, how: str, scalars: list[Node], span: Span) -> Node:
        """The product of two vectors or matrices; `scalars` are its scalar factors, repeated in suggestions."""
        if how == "dot" and isinstance(first, Written) and shapes.is_transposed_list(second):
            second = second.body  # a list is one vector, transposed or not
        if how == "dot" and len(first.shape) == len(second.shape) == 1:
            if not unify(first.shape[0], second.shape[0]):
                self._refuse_product(first, second, scalars, span)
            return Contract((), tree.Transpose((1, *first.shape), first, span=first.span), second, span=span)
        if how == "otimes":
            if len(first.shape) != 1 or len(second.shape) != 1:
                self.ill_typed("⊗ is the outer product of two vectors", span)
            return tree.Outer((*first.shape, *second.shape), first, second, span=span)
        return self._matrix_product(first, second, scalars, span)

    def _hadamard(self, left: Node, right: Node, span: Span) -> Node:
        if not shapes.unify_shapes(left.shape, right.shape):
            self.ill_typed(
                f"⊙ takes two factors of one shape, and {self.text(left)} is {describe_shape(left.shape)}, "
                f"{self.text(right)} {describe_shape(right.shape)}",
                span,
            )
        return tree.Hadamard(left.shape, left, right, span=span)

    def _matrix_product(self, left: Node, right: Node, scalars: list[Node], span: Span) -> Node:
        a = left.shape
        if len(a) == 2 and shapes.is_transposed_list(right) and not can_unify(a[1], 1):
            right = right.body
        b = right.shape
        if len(a) == 1 and len(b) == 2 and resolved_size(b[0]) == 1:
            inner = right.body if isinstance(right, tree.Transpose) else tree.Transpose((b[1],), right, span=right.span)
            return tree.Outer((a[0], b[1]), left, inner, span=span)
        if len(a) == 2 and len(b) == 1 and unify(a[1], b[0]):
            return Contract(() if resolved_size(a[0]) == 1 else (a[0],), left, right, span=span)
        if len(a) == 2 and len(b) == 2 and unify(a[1], b[0]):
            return Contract((a[0], b[1]), left, right, span=span)
        return self._refuse_product(left, right, scalars, span)

    def _refuse_product(self, left: Node, right: Node, scalars: list[Node], span: Span) -> NoReturn:
        a, b = left.shape, right.shape
        shown = shapes.shortened(shapes.product_text(left, right) or f"{self.text(left)} {self.text(right)}")
        if len(a) == len(b) == 1:
            alike = can_unify(a[0], b[0])
            sizes = "" if alike else f" of sizes {shapes.describe_size(a[0])} and {shapes.describe_size(b[0])}"
            inner = Contract((), tree.Transpose((1, *a), left), right)
            products = [inner] * alike + [tree.Outer((*a, *b), left, right)]
            meant = OR.join(filter(None, (node_text(_times_scalars(scalars, node, span)) for node in products)))
            self.ill_typed(f"{shown}: two columns{sizes} have no product", span, meant)
        pairs = [(left, self._toggle_transpose(right)), (self._toggle_transpose(left), right), (right, left)]
        fitting = next(((x, y) for x, y in pairs if _multipliable(x.shape, y.shape)), None)
        meant = shapes.product_text(*fitting) if fitting else ""
        if fitting and scalars:
            meant = node_text(_times_scalars(scalars, self._matrix_product(*fitting, scalars, span), span))
        self.ill_typed(f"{shown}: ({_times_text(a)})({_times_text(b)}) do not fit", span, meant)

    def _toggle_transpose(self, node: Node) -> Node:
        return node.body if isinstance(node, tree.Transpose) else self.transpose(node, node.span)

    def divide(self, top: Node, bottom: Node, span: Span) -> Node:
        if isinstance(top, Order) or isinstance(bottom, Order):
            self.ill_typed("an asymptotic class cannot be divided: write one class of the whole quotient", span)
        if bottom.shape:
            square = len(bottom.shape) == 2 and can_unify(*bottom.shape)
            reason = f"{self.text(bottom)} is {describe_shape(bottom.shape)}, and nothing is divided by one"
            if square and (not top.shape or can_unify(top.shape[-1], bottom.shape[0])):
                inverse = tree.Power(bottom.shape, bottom, self.number(-1, bottom.span))
                self.ill_typed(reason, span, shapes.product_text(top, inverse))
            self.ill_typed(reason, bottom.span)
        return tree.Divide(top.shape, top, bottom, span=span)

    def transpose(self, node: Node, span: Span) -> Node:
        if not node.shape:
            return node
        if len(node.shape) == 1:
            return tree.Transpose((1, *node.shape), node, span=span)
        return tree.Transpose(_transposed_shape(node.shape), node, span=span)


def whole_text(build: Elaborator, expected: Shape | None, named: bool) -> Node:
    """The tree of the whole text, with all sizes resolved; `named`: keep an undeclared name before an =."""
    syntax = build.syntax
    chain = syntax[-1]
    assert isinstance(chain, Syntax)
    prefixed = is_rule(syntax, "prefixed")
    signs = [str(part) for part in chain if is_token(part, "REL")]
    written = [part for part in chain if not is_token(part, "REL")]
    dropping = all(sign in ("=", "≈") for sign in signs)
    members: list[Node] = []
    kept: list[str] = []
    unfinished = [_attempt(build, part, bool(place) and signs[place - 1] == "in") for place, part in enumerate(written)]
    known = [one.shape for one in unfinished if isinstance(one, Node) and shapes.is_sized(one)]
    other = max(known, key=len) if known and signs and "in" not in signs else None
    for place, part in enumerate(written):
        lone, found = only(part), unfinished[place]
        after = signs[place - 1] if place else ""
        head = dropping and place < len(written) - 1 and _is_head(part)
        try:
            if isinstance(found, MathsError):
                raise found
            member = finish_member(build, found, expected, other)
        except (IllTyped, Unreadable) as error:
            if (named or signs == ["in"]) and not place and is_token(lone, "NAME") and lone not in build.types:
                member = Symbol((), str(lone), tree.Type("scalar"), span=span_of(lone))
            elif head and (isinstance(found, Node) or getattr(error, "undeclared", True)):
                continue
            else:
                raise
        if members:
            kept.append(after)
        members.append(member)
    if (signs and signs[-1] == "≈") or (prefixed and syntax[0] == "≈"):
        members[-1] = _mark_rounded(members[-1])
    if len(members) == 1:
        return members[0]
    if "in" in signs and (signs != ["in"] or not isinstance(members[0], Symbol | tree.Part | Index)):
        build.unreadable("before ∈ a name is expected, and after it an interval, a set or a shape", chain.span)
    return tree.Relation(members[-1].shape, tuple(members), tuple(kept), span=chain.span)


def _attempt(build: Elaborator, part: Syntax | Token, belongs: bool) -> Node | MathsError:
    """One member with sizes that may not be known yet, or the error in it."""
    try:
        return functions.set_node(build, part, belongs) or _read_member(build, part)
    except (IllTyped, Unreadable) as error:
        return error


def _read_member(build: Elaborator, part: Syntax | Token) -> Node:
    """One member of a chain; an index that a sum binds must not occur outside it, unless declared or given as free."""
    build.bound, build.free_spans = {}, {}
    node = build.term(part)
    for name, span in build.free_spans.items():
        if name in build.bound and name not in build.given_free:
            what, shown = build.bound[name], pretty_name(name)
            reason = f"{shown} is bound by the {what} only, and nothing declares it outside"
            build.ill_typed(f"{reason}; put brackets round all that the {what} is over if both are meant", span)
    return node


def _is_head(part: Syntax | Token) -> bool:
    """Whether this may be left unread before an =: a name or a call such as Attention(Q, K, V), with indices."""
    part = only(part)
    if isinstance(part, Token):
        return part.type in ("NAME", "MAP")
    if part.kind == "operand":
        return _is_head(part[0])
    if part.kind == "product":
        named = only(part[0])
        base = named[0] if is_rule(named, "operand") else named
        group = only(part[1])
        inner = group[0] if is_rule(group, "operand") else group
        return len(part) == 2 and is_token(base, "NAME") and is_rule(inner, "group")
    if part.kind == "group":
        rows = part[1]
        return len(rows) == 1 and len(rows[0]) == 1 and _is_head(rows[0][0])
    if part.kind == "fraction":
        return any(is_token(leaf, "PARTIAL") for leaf in walk(part)) or all(map(_starts_with_d, part.parts[1:]))
    return part.kind in ("call", "applied", "mapped", "norm", "bars")


def _starts_with_d(part: Syntax | Token) -> bool:
    """Whether this begins with d, as dL and ds do."""
    return next((str(leaf) for leaf in walk(part) if is_token(leaf, "NAME")), "") == "d"


def finish_member(build: Elaborator, node: Node, expected: Shape | None, other: Shape | None = None) -> Node:
    """The node with all sizes resolved; a 0, 1 or I takes `other`, the shape of another member."""
    if shapes.is_transposed_list(node):
        node = replace(node.body, brackets="")  # a transposed list is a vector, not an interval
    if other is not None:
        node, unknown = build.as_shape(node, other), not shapes.is_sized(node)
        if not shapes.unify_shapes(node.shape, other) and unknown:
            reason = f"{build.text(node)} is {describe_shape(node.shape)}, and the other side {describe_shape(other)}"
            build.ill_typed(reason, node.span)
    if expected is not None:
        node = build.as_shape(node, expected)
        shapes.unify_shapes(node.shape, expected)
    if shapes.depth(node, shapes.DEEPEST) > shapes.DEEPEST:
        build.unreadable("this is nested too deeply, definitions included", node.span)

    def missing(one: Node) -> NoReturn:
        if isinstance(one, Index):
            reason = f"nothing says how far {pretty_name(one.name)} runs: declare it as index[n], or write the range"
            build.ill_typed(f"{reason} of the sum", one.span)
        sign = {"ones": "1", "zeros": "0", "identity": "I"}.get(getattr(one, "name", ""), "1")
        build.unreadable(f"nothing says of what size {build.text(one)} is: write {sign}_d", one.span)

    return shapes.resolve_sizes(node, missing)


def _mark_rounded(node: Node) -> Node:
    if isinstance(node, Number):
        return replace(node, rounded=True)
    if isinstance(node, Written):
        return replace(node, entries=tuple(map(_mark_rounded, node.entries)))
    return node


def product(build: Elaborator, part: Syntax) -> Node:
    """The product of factors from left to right; ⊙ and ⊗ bind less tightly than juxtaposition, as in A u ⊙ B v."""
    pieces = scripts.flatten_partials(part.parts)
    scripts.refuse_many_derivatives(build, pieces, part.span)
    current: Node | None = None
    for how, run in _split_runs(pieces):
        value = _juxtaposed(build, run, part.span)
        span = (part.span[0], span_of(run[-1])[1])
        current = value if current is None else build.multiply(current, value, how, span)
    assert current is not None
    if shapes.is_transposed_list(current) and len(part) > 1:
        return current.body
    return current


def _split_runs(pieces: Sequence[Syntax | Token]) -> list[tuple[str, list[Syntax | Token]]]:
    """The runs of factors between ⊙ and ⊗, each with the sign before it; a derivative acts on all that follows."""
    runs: list[tuple[str, list[Syntax | Token]]] = [("", [])]
    acting = False
    for at, piece in enumerate(pieces):
        acting = acting or scripts.derivative_acts(pieces, at)
        if not acting and is_rule(piece, "operator") and is_token(piece[0], "ODOT", "OTIMES"):
            runs.append((str(piece[0]), []))
        else:
            runs[-1][1].append(piece)
    return runs


def _juxtaposed(build: Elaborator, pieces: list[Syntax | Token], span: Span) -> Node:
    current: Node | None = None
    operator, sign, at = "", None, 0
    while at < len(pieces):
        piece = pieces[at]
        if is_rule(piece, "operator"):
            operator = str(piece[0])
        elif is_rule(piece, "sign"):
            sign = piece[0]
        else:
            if operator in ("/", "//") and current is None:
                build.unreadable("there is nothing before the division", span)
            found = scripts.inline_derivative(build, pieces, at, span)
            if operator == "/" and not found and (stop := _divisor_end(build, current, pieces, at)) > at:
                found = (_juxtaposed(build, pieces[at : stop + 1], (span_of(piece)[0], span_of(pieces[stop])[1])), stop)
            value, at = found or (build.term(piece), at)
            if _is_unit(piece) and isinstance(value, Number) and isinstance(current, Number):  # 12.5%
                value, current = _percent(build, current, value), None
            current = _joined(build, current, value, operator, sign, (span[0], span_of(pieces[at])[1]))
            operator, sign = "", None
        at += 1
    assert current is not None
    return current


def _percent(build: Elaborator, number: Number, part: Number) -> Node:
    span = (number.span[0], part.span[1])
    if number.unit is None:
        return build.divide(number, build.number(1 / part.value, part.span), span)
    return Number((), number.value * part.value, number.unit * part.value, span=span)


def _divisor_end(build: Elaborator, current: Node | None, pieces: list[Syntax | Token], at: int) -> int:
    """The last of the factors side by side after a slash if all of them are read as the divisor, else `at`."""
    stop = at
    while stop + 1 < len(pieces) and not is_rule(pieces[stop + 1], "operator", "sign"):
        if _is_unit(pieces[stop + 1]):
            return stop + 1 if stop == at and _has_unit(current) else at  # 16 GB / 2 GB, but 1/2 GB
        stop += 1
    if stop == at:
        return at
    below = build.source[span_of(pieces[at])[0] : span_of(pieces[stop])[1]]
    numeric = is_token(only(pieces[at]), "NUMBER") and is_token(only(pieces[at - 2]), "NUMBER")
    if numeric and span_of(pieces[at])[1] < span_of(pieces[at + 1])[0]:
        return at  # 1/2 x, with a space, is half of x
    whole = build.source[span_of(pieces[0])[0] : span_of(pieces[stop])[1]]
    note = f"{shapes.shortened(whole)} read as {shapes.shortened(whole[: -len(below)])}({shapes.shortened(below)})"
    return stop if build.chosen("slash", note) else at


def _has_unit(node: Node | None) -> bool:
    return node is not None and any(name.startswith("unit ") for name in tree.names(node))


def _is_unit(part: Syntax | Token) -> bool:
    return is_token(only(part), "UNIT")


def _joined(
    build: Elaborator, current: Node | None, value: Node, operator: str, sign: Token | None, span: Span
) -> Node:
    if sign is not None:
        value = build.signed(sign, value)
    if current is None:
        return value
    if operator in ("/", "//"):
        quotient = build.divide(current, value, span)
        return quotient if operator == "/" else functions.known_call(build, "floor", [quotient], span)
    if operator in ("", "dot") and isinstance(value, Number):
        value = _as_vector(current, value)
    scientific = _scientific(current, value) if operator in ("", "times", "dot") else None
    return scientific or build.multiply(current, value, operator, span)


def _as_vector(row: Node, number: Number) -> Node:
    """A bare 1 or 0 after a row is the vector of ones or of zeros: qᵀ1."""
    is_row = len(row.shape) == 2 and resolved_size(row.shape[0]) == 1
    if not is_row or number.unit is not None or number.value not in (0, 1):
        return number
    return Special((shapes.unknown_size(),), "ones" if number.value else "zeros", span=number.span)


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


def fits_transposed(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) == 2 and can_unify(a[0], b[1]) and can_unify(a[1], b[0])


def _is_zeros(node: Node) -> bool:
    return isinstance(node, Special) and node.name == "zeros"


def _scaled_product(scalars: list[Node], core: Node | None, span: Span) -> Node:
    factors = scalars if core is None else [*scalars, core]
    return factors[0] if len(factors) == 1 else Multiply(core.shape if core else (), tuple(factors), span=span)


def _times_scalars(scalars: list[Node], core: Node, span: Span) -> Node:
    return _scaled_product(scalars, core, span) if core.shape else _scaled_product([*scalars, core], None, span)


def _split_scalars(node: Node) -> tuple[list[Node], Node | None]:
    """The scalar factors of a product, and its vector or matrix, if any."""
    factors = list(node.factors) if isinstance(node, Multiply) else [node]
    return [factor for factor in factors if not factor.shape], next((f for f in factors if f.shape), None)


def _transposed_shape(shape: Shape) -> Shape:
    if len(shape) == 1:
        return (1, *shape)
    return (shape[1],) if resolved_size(shape[0]) == 1 else (shape[1], shape[0])


def _multipliable(a: Shape, b: Shape) -> bool:
    if len(a) == 1:
        return len(b) == 2 and resolved_size(b[0]) == 1
    return can_unify(a[1], b[0])


def _times_text(shape: Shape) -> str:
    return "×".join(shapes.describe_size(size) for size in shape)


_ELSEWHERE = {
    "product": product, "bare": product, "call": functions.call, "applied": functions.applied,
    "mapped": functions.mapped, "big": functions.big_operator,
}  # fmt: skip
