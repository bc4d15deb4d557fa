"""Adding and multiplying typed trees: which shapes fit, and what to say where they do not."""

from __future__ import annotations

from fractions import Fraction
from typing import NoReturn

from qkv.errors import IllTyped
from qkv.maths.text.saying import beside, said, shortened
from qkv.maths.text.shaping import could_fit, fit, fit_shapes, known, plain_shape, plain_size
from qkv.maths.tree import (
    Add,
    Call,
    Contract,
    Divide,
    Hadamard,
    Multiply,
    Node,
    Number,
    Order,
    Outer,
    Power,
    Shape,
    Span,
    Special,
    Transpose,
    Written,
)

OR = " or "  # between suggestions


class Arithmetic:
    """Builds sums and products over one source, which its complaints point into."""

    def __init__(self, source: str) -> None:
        self.source = source

    def text(self, node: Node) -> str:
        """A part as a sentence shows it."""
        return shortened(said(node) or self.source[slice(*node.span)].strip())

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
        """Terms of one shape; a 0 beside vectors is the zero vector."""
        if len(terms) == 1:
            return terms[0]
        if any(isinstance(term, Order) for term in terms):
            return self._orders(terms, span)
        widest = max(terms, key=lambda term: (not is_list_turned(term), len(term.shape), not _is_zeros(term)))
        shaped = [self.as_shape(term, widest.shape) for term in terms]
        for term, given in zip(shaped, terms, strict=True):
            if not fit_shapes(term.shape, widest.shape):
                self._unlike(given, widest, terms)
        flat: list[Node] = []
        for term in shaped:
            flat.extend(term.terms if isinstance(term, Add) else [term])
        return Add(widest.shape, tuple(flat), span=span)

    def _orders(self, terms: list[Node], span: Span) -> Node:
        bodies = [term.body for term in terms if isinstance(term, Order)]
        kinds = {term.kind for term in terms if isinstance(term, Order)}
        if len(kinds) != 1 or len(bodies) != len(terms):
            self.ill_typed("a class of growth stands alone: nothing is added to it; write one of the whole", span)
        return Order((), kinds.pop(), self.add(bodies, span), span=span)

    def as_shape(self, node: Node, shape: Shape) -> Node:
        """A 0 where a vector or a matrix is wanted, and a written list turned the right way up."""
        if isinstance(node, Number) and node.value == 0 and shape:
            return Special(shape, "zeros", span=node.span)
        if _is_zeros(node) and len(node.shape) != len(shape) and shape:
            return Special(shape, "zeros", span=node.span)
        if len(shape) == 1 and isinstance(node, Transpose) and is_list_turned(node):
            return node.body
        return node

    def _unlike(self, term: Node, other: Node, terms: list[Node]) -> NoReturn:
        first, second = (term, other) if term.span <= other.span else (other, term)
        reason = (
            f"{self.text(first)} is {plain_shape(first.shape)} and {self.text(second)} is "
            f"{plain_shape(second.shape)}: they cannot be added"
        )
        start, stop = first.span[0], max(first.span[1], second.span[1])
        small, large = sorted((term, other), key=lambda node: len(node.shape))
        like = self._made_like(small, large)
        suggestion = ""
        if like is not None:
            within = [like if part is small else part for part in terms if start <= part.span[0] < stop]
            suggestion = said(Add(large.shape, tuple(within)))
        self.ill_typed(reason, (start, stop), suggestion)

    def _made_like(self, small: Node, large: Node) -> Node | None:
        """What a term may have been meant as, beside a larger one."""
        square = len(large.shape) == 2 and could_fit(*large.shape)
        if not small.shape and (len(large.shape) == 1 or square):
            special = Special(large.shape, "identity" if square else "ones")
            one = isinstance(small, Number) and small.value == 1
            return special if one else self.multiply(small, special, "", small.span)
        if len(small.shape) == 2 and fits_turned(small.shape, large.shape):
            turned = self._flipped(small)
            return None if turned == large else turned
        return None

    def multiply(self, left: Node, right: Node, how: str, span: Span) -> Node:
        """left times right; `how` is "" or "times" for juxtaposition, "dot", "odot" or "otimes"."""
        if isinstance(left, Order) or isinstance(right, Order):
            self.ill_typed("a class of growth stands alone: nothing multiplies it", span)
        if how == "odot" and left.shape and right.shape:
            return self._hadamard(left, right, span)
        scalars_left, first = _apart(left)
        scalars_right, second = _apart(right)
        scalars = scalars_left + scalars_right
        if first is None or second is None:
            return _scaled(scalars, first if second is None else second, span)
        core = self._core(first, second, how, scalars, span)
        return _times_scalars(scalars, core, span)

    def _core(self, first: Node, second: Node, how: str, scalars: list[Node], span: Span) -> Node:
        """The product of two vectors or matrices; `scalars` stand beside it, and so they do in a suggestion."""
        if how == "dot" and isinstance(first, Written) and isinstance(second, Transpose) and is_list_turned(second):
            second = second.body  # a list is one vector, lying or standing
        if how == "dot" and len(first.shape) == len(second.shape) == 1:
            if not fit(first.shape[0], second.shape[0]):
                self._mismatch(first, second, scalars, span)
            return Contract((), Transpose((1, *first.shape), first, span=first.span), second, span=span)
        if how == "otimes":
            if len(first.shape) != 1 or len(second.shape) != 1:
                self.ill_typed("⊗ is the outer product of two vectors", span)
            return Outer((*first.shape, *second.shape), first, second, span=span)
        return self._matrix_product(first, second, scalars, span)

    def _hadamard(self, left: Node, right: Node, span: Span) -> Node:
        if not fit_shapes(left.shape, right.shape):
            self.ill_typed(
                f"⊙ wants two of one shape, and {self.text(left)} is {plain_shape(left.shape)}, "
                f"{self.text(right)} {plain_shape(right.shape)}",
                span,
            )
        return Hadamard(left.shape, left, right, span=span)

    def _matrix_product(self, left: Node, right: Node, scalars: list[Node], span: Span) -> Node:
        a = left.shape
        if len(a) == 2 and isinstance(right, Transpose) and is_list_turned(right) and not could_fit(a[1], 1):
            right = right.body
        b = right.shape
        if len(a) == 1 and len(b) == 2 and known(b[0]) == 1:
            inner = right.body if isinstance(right, Transpose) else Transpose((b[1],), right, span=right.span)
            return Outer((a[0], b[1]), left, inner, span=span)
        if len(a) == 2 and len(b) == 1 and fit(a[1], b[0]):
            return Contract(() if known(a[0]) == 1 else (a[0],), left, right, span=span)
        if len(a) == 2 and len(b) == 2 and fit(a[1], b[0]):
            return Contract((a[0], b[1]), left, right, span=span)
        return self._mismatch(left, right, scalars, span)

    def _mismatch(self, left: Node, right: Node, scalars: list[Node], span: Span) -> NoReturn:
        a, b = left.shape, right.shape
        shown = shortened(beside(left, right) or f"{self.text(left)} {self.text(right)}")
        if len(a) == len(b) == 1:
            alike = could_fit(a[0], b[0])
            sizes = "" if alike else f" of sizes {plain_size(a[0])} and {plain_size(b[0])}"
            inner = Contract((), Transpose((1, *a), left), right)
            products = [inner] * alike + [Outer((*a, *b), left, right)]
            meant = OR.join(filter(None, (said(_times_scalars(scalars, node, span)) for node in products)))
            self.ill_typed(f"{shown}: two columns{sizes} have no product", span, meant)
        pairs = [(left, self._flipped(right)), (self._flipped(left), right), (right, left)]
        fitting = next(((x, y) for x, y in pairs if _multipliable(x.shape, y.shape)), None)
        meant = beside(*fitting) if fitting else ""
        if fitting and scalars:
            meant = said(_times_scalars(scalars, self._matrix_product(*fitting, scalars, span), span))
        self.ill_typed(f"{shown}: ({_times(a)})({_times(b)}) do not fit", span, meant)

    def _flipped(self, node: Node) -> Node:
        return node.body if isinstance(node, Transpose) else self.transpose(node, node.span)

    def divide(self, top: Node, bottom: Node, span: Span) -> Node:
        if isinstance(top, Order) or isinstance(bottom, Order):
            self.ill_typed("a class of growth stands alone: it is not divided", span)
        if bottom.shape:
            square = len(bottom.shape) == 2 and could_fit(*bottom.shape)
            reason = f"{self.text(bottom)} is {plain_shape(bottom.shape)}, and nothing is divided by one"
            if square and (not top.shape or could_fit(top.shape[-1], bottom.shape[0])):
                inverse = Power(bottom.shape, bottom, self.number(-1, bottom.span))
                self.ill_typed(reason, span, beside(top, inverse))
            self.ill_typed(reason, bottom.span)
        return Divide(top.shape, top, bottom, span=span)

    def transpose(self, node: Node, span: Span) -> Node:
        if not node.shape:
            return node
        if len(node.shape) == 1:
            return Transpose((1, *node.shape), node, span=span)
        return Transpose(_turned(node.shape), node, span=span)

    def entrywise(self, name: str, node: Node, span: Span) -> Node:
        return Call(node.shape, name, (node,), span=span)


def is_list_turned(node: Node) -> bool:
    """[1, 4, 3]ᵀ, which people write for the vector itself."""
    return isinstance(node, Transpose) and isinstance(node.body, Written) and len(node.body.shape) == 1


def fits_turned(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) == 2 and could_fit(a[0], b[1]) and could_fit(a[1], b[0])


def is_zero(node: Node) -> bool:
    return isinstance(node, Number) and node.value == 0


def _is_zeros(node: Node) -> bool:
    return isinstance(node, Special) and node.name == "zeros"


def _scaled(scalars: list[Node], core: Node | None, span: Span) -> Node:
    factors = scalars if core is None else [*scalars, core]
    return factors[0] if len(factors) == 1 else Multiply(core.shape if core else (), tuple(factors), span=span)


def _times_scalars(scalars: list[Node], core: Node, span: Span) -> Node:
    return _scaled(scalars, core, span) if core.shape else _scaled([*scalars, core], None, span)


def _apart(node: Node) -> tuple[list[Node], Node | None]:
    """The scalars of a product, and its one vector or matrix."""
    factors = list(node.factors) if isinstance(node, Multiply) else [node]
    return [factor for factor in factors if not factor.shape], next((f for f in factors if f.shape), None)


def _turned(shape: Shape) -> Shape:
    if len(shape) == 1:
        return (1, *shape)
    return (shape[1],) if known(shape[0]) == 1 else (shape[1], shape[0])


def _multipliable(a: Shape, b: Shape) -> bool:
    if len(a) == 1:
        return len(b) == 2 and known(b[0]) == 1
    return could_fit(a[1], b[0])


def _times(shape: Shape) -> str:
    return "×".join(plain_size(size) for size in shape)
