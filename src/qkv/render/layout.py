"""The layout of formulas: from a typed tree to boxes (letters, signs, fractions, scripts), with as few parentheses as
possible. MathML, typst and plain text are written from the same boxes, so that all show the same formula.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from ..maths import printing
from ..maths import tree as t
from ..maths.tree import rebuilt
from .escapes import GREEK

TIMES, APPLY = "\N{INVISIBLE TIMES}", "\N{FUNCTION APPLICATION}"


@dataclass(frozen=True)
class Letter:
    """One letter, slanted unless `upright`."""

    text: str
    upright: bool = False


@dataclass(frozen=True)
class Word:
    """Several upright letters, as the name of a function."""

    text: str


@dataclass(frozen=True)
class Numeral:
    text: str


@dataclass(frozen=True)
class Sign:
    """An operator; `place` is "infix", "prefix" or "postfix"."""

    text: str
    place: str = "infix"


@dataclass(frozen=True)
class Row:
    parts: tuple[Box, ...]


@dataclass(frozen=True)
class Scripts:
    base: Box
    below: Box | None = None
    above: Box | None = None


@dataclass(frozen=True)
class Over:
    """A fraction."""

    top: Box
    bottom: Box


@dataclass(frozen=True)
class Root:
    body: Box


@dataclass(frozen=True)
class Fence:
    left: str
    body: Box
    right: str


@dataclass(frozen=True)
class Big:
    """∑ or ∏ with what it runs over."""

    sign: str
    below: Box
    above: Box | None


@dataclass(frozen=True)
class Grid:
    rows: tuple[tuple[Box, ...], ...]


@dataclass(frozen=True)
class Under:
    """A box with a small label below it, as the size of a matrix."""

    body: Box
    label: Box


Box: TypeAlias = Letter | Word | Numeral | Sign | Row | Scripts | Over | Root | Fence | Big | Grid | Under


@dataclass(frozen=True)
class Sized(t.Node):
    """A matrix with its size below it; only for writers, never parsed."""

    body: t.Node


def with_sizes(node: t.Node) -> t.Node:
    """The tree with the size below every matrix of a product, a sum or a chain.

    >>> from qkv.maths import parse
    >>> with_sizes(parse("X W", {"X": "matrix[3,2]", "W": "matrix[2,5]"})).right.shape
    (2, 5)
    """
    if isinstance(node, t.Relation):
        return _chain_with_sizes(node)
    whole = node.body if isinstance(node, t.Transpose) else node
    if isinstance(whole, t.Symbol | t.Written) and len(whole.shape) == 2 and 1 not in whole.shape:
        return Sized(node.shape, node)
    if isinstance(node, t.Contract | t.Multiply | t.Add | t.Call):
        return rebuilt(node, with_sizes)
    return node


def _chain_with_sizes(chain: t.Relation) -> t.Relation:
    """Each size once: below the names of a product and its result, or below the numbers of a named matrix."""
    products = [not isinstance(each, t.Symbol) and _names_matrix(each) for each in chain.members]
    last = len(chain.members) - 1
    kept = (
        with_sizes(each) if product or (isinstance(each, t.Written) and (place == last or not any(products))) else each
        for place, (each, product) in enumerate(zip(chain.members, products, strict=True))
    )
    return replace(chain, members=tuple(kept))


def _names_matrix(node: t.Node) -> bool:
    if isinstance(node, t.Symbol):
        return len(node.shape) == 2
    return any(map(_names_matrix, t.children(node)))


class _Latex(printing.Latex):
    def _sized(self, node: Sized) -> tuple[str, int]:
        high, wide = map(self.size, node.shape)
        return rf"\underset{{{high} \times {wide}}}{{{self.at(node.body, printing.SUM)}}}", printing.ATOM

    def _call(self, node: t.Call) -> tuple[str, int]:
        text, level = super()._call(node)
        doubled = _is_vector(node.arguments) and text.endswith("))")
        return (text.replace("((", "(", 1)[:-1], level) if doubled else (text, level)


def latex_source(node: t.Node, labels: bool) -> str:
    """The tree in LaTeX, with the sizes of matrices below them where `labels` is true."""
    return _Latex().whole(with_sizes(node) if labels else node)


def in_columns(node: t.Node) -> t.Node:
    """The tree with every written vector as a column, and as a row where it is transposed.

    >>> from qkv.maths import parse
    >>> in_columns(parse("[[1, 0], [0, 1]] (2, 3)", {})).right.shape
    (2, 1)
    """
    if isinstance(node, t.Transpose) and isinstance(node.body, t.Written) and len(node.body.shape) == 1:
        return replace(node.body, shape=(1, *node.body.shape))
    if isinstance(node, t.Written) and len(node.shape) == 1:
        return replace(node, shape=(*node.shape, 1))
    return rebuilt(node, in_columns)


def has_matrix(node: t.Node) -> bool:
    """Whether a matrix is written out anywhere in the tree."""
    level = [node]
    while level:
        if any(isinstance(each, t.Written) and len(each.shape) == 2 for each in level):
            return True
        level = [child for each in level for child in t.children(each)]
    return False


RELATION, ADDITION, PRODUCT, ATOM = range(4)  # precedences

SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}
_OF_SIZES = {"*": TIMES, "-": "−"}
_CONSTANTS = {"pi": "π", "e": "e", "infinity": "∞"}
_WORDS = {"trace": "tr"}
_NORMS = {"norm": None, "norm1": "1", "norm_inf": "∞", "norm_F": "F"}
_ORDERS = {"O": "O", "Theta": "Θ", "Omega": "Ω"}


def boxes(node: t.Node) -> Box:
    """The boxes of a tree no deeper than `document.DEEPEST`.

    >>> from qkv.maths.tree import Symbol, Type
    >>> boxes(Symbol((), "d_model", Type("natural")))
    Scripts(base=Letter(text='d', upright=False), below=Word(text='model'), above=None)
    """
    return _box(node)[0]


def relation(sign: str) -> Sign:
    return Sign(SIGNS.get(sign, sign))


def named(name: str) -> Box:
    """A name: what follows the first underscore is a subscript, primes are a superscript.

    >>> named("x'").above
    Sign(text='′', place='postfix')
    """
    primes = name.count("'")
    base, _, below = name.replace("'", "").partition("_")
    lower = _commas([_letters(part) for part in below.split("_") if part]) if below else None
    upper = Sign("′" * primes, "postfix") if primes else None
    return Scripts(_letters(base), lower, upper) if lower or upper else _letters(base)


def _letters(text: str) -> Box:
    text = GREEK.get(text, text)
    if text.isdigit():
        return Numeral(text)
    return Letter(text) if len(text) == 1 else Word(text)


def _size(size: t.Size) -> Box:
    """A size: a number, or a text such as n+1."""
    parts: list[Box] = []
    for piece in re.findall(r"[^\W\d]\w*'*|\d+|[^\s\w]", str(size)):
        if piece[0].isalpha():
            parts.append(named(piece))
        elif piece.isdigit():
            parts.append(Numeral(piece))
        else:
            parts.append(Sign(_OF_SIZES.get(str(piece), str(piece))))
    return _row(parts)


def _row(parts: Sequence[Box]) -> Box:
    return parts[0] if len(parts) == 1 else Row(tuple(parts))


def _commas(parts: Iterable[Box]) -> Box:
    spread: list[Box] = []
    for part in parts:
        spread += [Sign(","), part] if spread else [part]
    return _row(spread)


def _at(node: t.Node, least: int) -> Box:
    """The box of a node, in parentheses where its precedence is below `least`."""
    box, precedence = _box(node)
    return box if precedence >= least else Fence("(", box, ")")


def _box(node: t.Node) -> tuple[Box, int]:
    """The box, and its precedence."""
    match node:
        case t.Number():
            return _number(node)
        case t.Constant():
            return Letter(_CONSTANTS.get(node.name, node.name), upright=True), ATOM
        case t.Symbol():
            return named(node.name), ATOM
        case t.Index():
            return named(node.name), ATOM
        case t.Special():
            return _special(node), ATOM
        case t.Written():
            return _written(node), ATOM
        case Sized(shape=shape):
            high, wide = map(_size, shape)
            return Under(boxes(node.body), Row((high, Sign("×"), wide))), ATOM
        case t.Add():
            return _sum_of(node.terms), ADDITION
        case t.PlusMinus():
            return Row((Sign("±", "prefix"), _at(node.body, PRODUCT))), ADDITION
        case t.Multiply():
            return _scaled(node)
        case t.Divide():
            return Over(boxes(node.top), boxes(node.bottom)), PRODUCT
        case t.Contract():
            return _product(_spine(node, t.Contract)), PRODUCT
        case t.Outer():
            return _product([node.left, t.Transpose((), node.right)]), PRODUCT
        case t.Hadamard():
            return _product(_spine(node, t.Hadamard), "⊙"), PRODUCT
        case t.Sum():
            return _big(node), PRODUCT
        case t.Relation():
            return _chain(node), RELATION
        case t.Derivative():
            return _derivative(node)
        case t.Power() | t.Transpose() | t.Part() | t.Delta():
            return _scripted(node), ATOM
        case _:
            return _called(node), ATOM


def _number(node: t.Number) -> tuple[Box, int]:
    if node.rounded:
        plain = t.Number(node.shape, node.value, node.unit)
        return Row((Sign("≈", "prefix"), _at(plain, ADDITION))), RELATION
    if node.value < 0:
        return Row((Sign("−", "prefix"), _at(t.Number((), -node.value, node.unit), PRODUCT))), ADDITION
    if node.unit is None:
        if node.value.denominator == 1:
            return Numeral(str(node.value)), ATOM
        return Over(Numeral(str(node.value.numerator)), Numeral(str(node.value.denominator))), PRODUCT
    digits, power = _decimal(node.value, node.unit)
    if power == 0:
        return Numeral(digits), ATOM
    exponent: Box = Numeral(str(abs(power)))
    if power < 0:
        exponent = Row((Sign("−", "prefix"), exponent))
    return Row((Numeral(digits), Sign("×"), Scripts(Numeral("10"), above=exponent))), PRODUCT


def _decimal(value: Fraction, unit: Fraction) -> tuple[str, int]:
    """Digits and a power of ten; every written digit is kept.

    >>> _decimal(Fraction(1, 4), Fraction(1, 100)), _decimal(Fraction(690, 10**15), Fraction(1, 10**15))
    (('0.25', 0), ('6.90', -13))
    """
    places = 0
    while unit * Fraction(10) ** places < 1 and places < 400:
        places += 1
    while unit * Fraction(10) ** places >= 10 and places > -400:
        places -= 1
    whole = str(round(value * Fraction(10) ** places))
    if places >= 0 and (places <= 6 or len(whole) > places - 3):
        padded = whole.rjust(places + 1, "0")
        return (f"{padded[:-places]}.{padded[-places:]}" if places else padded), 0
    digits = f"{whole[0]}.{whole[1:]}" if len(whole) > 1 else whole
    return digits, len(whole) - 1 - places


def _special(node: t.Special) -> Box:
    if node.name == "identity":
        return Letter("I", upright=True)
    if node.name not in ("ones", "zeros"):
        return Word(node.name)
    if not node.shape:
        return Numeral("1" if node.name == "ones" else "0")
    sign = Letter("𝟏" if node.name == "ones" else "𝟎", upright=True)
    if len(node.shape) == 2:
        return Scripts(sign, Row((_size(node.shape[0]), Sign("×"), _size(node.shape[1]))))
    return sign


def _written(node: t.Written) -> Box:
    entries = [boxes(entry) for entry in node.entries]
    if len(node.shape) == 1:
        return Fence("(", _commas(entries), ")")
    height = node.shape[0]
    wide = max(1, len(entries) // height) if isinstance(height, int) and height else max(1, len(entries))
    return Fence("[", Grid(tuple(tuple(entries[n : n + wide]) for n in range(0, len(entries), wide))), "]")


def _negated(node: t.Node) -> t.Node | None:
    """What follows the minus sign, for a node that is written with one; else None."""
    match node:
        case t.Number(value=value) if value < 0 and not node.rounded:
            return t.Number(node.shape, -value, node.unit)
        case t.Multiply(factors=(first, *rest)) if (positive := _negated(first)) is not None:
            unit = isinstance(positive, t.Number) and positive.value == 1 and positive.unit is None
            kept = tuple(rest) if unit and rest else (positive, *rest)
            return kept[0] if len(kept) == 1 else t.Multiply(node.shape, kept)
        case t.Divide(top=top, bottom=bottom) if (positive := _negated(top)) is not None:
            return t.Divide(node.shape, positive, bottom)
    return None


def _sum_of(terms: Sequence[t.Node]) -> Box:
    parts: list[Box] = []
    for term in terms:
        positive = _negated(term)
        if isinstance(term, t.PlusMinus):
            parts += [Sign("±", "infix" if parts else "prefix"), _at(term.body, PRODUCT)]
        elif positive is not None:
            parts += [Sign("−", "infix" if parts else "prefix"), _at(positive, PRODUCT)]
        else:
            parts += [Sign("+"), _at(term, PRODUCT)] if parts else [_at(term, PRODUCT)]
    return _row(parts)


def _scaled(node: t.Multiply) -> tuple[Box, int]:
    positive = _negated(node)
    if positive is None:
        return _product(node.factors, scaled=True), PRODUCT
    return Row((Sign("−", "prefix"), _at(positive, PRODUCT))), ADDITION


def _spine(node: t.Contract | t.Hadamard, kind: type) -> list[t.Node]:
    """((a b) c) d as a, b, c, d."""
    factors: list[t.Node] = []
    left: t.Node = node
    while isinstance(left, kind):
        assert isinstance(left, t.Contract | t.Hadamard)
        factors.append(left.right)
        left = left.left
    return [left, *reversed(factors)]


def _product(factors: Sequence[t.Node], sign: str = "", *, scaled: bool = False) -> Box:
    """Factors next to each other, or with `sign` between them; `scaled` where all but one of them are scalars."""
    parts: list[Box] = []
    for place, factor in enumerate(factors):
        bare = not sign and _needs_no_parentheses(factors, place, scaled)
        box = _at(factor, PRODUCT if bare else ATOM)
        if parts:
            dotted = _starts_with_digit(box) or (isinstance(parts[-1], Numeral) and _negative(box))
            parts.append(Sign(sign or ("·" if dotted else TIMES)))
        parts.append(box)
    return _row(parts)


def _needs_no_parentheses(factors: Sequence[t.Node], place: int, scaled: bool) -> bool:
    """Whether a factor that is itself a product, a fraction or a sum is unambiguous without parentheses."""
    factor, first, last = factors[place], place == 0, place == len(factors) - 1
    if isinstance(factor, t.Sum):
        return last  # a sum extends to the end
    if not isinstance(factor, t.Contract | t.Outer | t.Multiply):
        return isinstance(factor, t.Divide) or _is_fraction(factor)
    if _ends_in_sum(factor) and not last:
        return False
    if not scaled:
        return first
    others = (other for other in factors if other is not factor)
    only = all(other.shape == () and not isinstance(other, t.Contract) for other in others)
    return only and (first or (last and not isinstance(factor, t.Multiply)))


def _is_fraction(node: t.Node) -> bool:
    return isinstance(node, t.Number) and node.unit is None and node.value > 0


def _ends_in_sum(node: t.Node) -> bool:
    while isinstance(node, t.Multiply | t.Contract | t.Outer):
        node = node.factors[-1] if isinstance(node, t.Multiply) else node.right
    return isinstance(node, t.Sum)


def _starts_with_digit(box: Box) -> bool:
    while isinstance(box, Row | Scripts | Over):
        box = box.parts[0] if isinstance(box, Row) else box.base if isinstance(box, Scripts) else box.top
    return isinstance(box, Numeral)


def _negative(box: Box) -> bool:
    """A negative number in parentheses: 2 (−3) gets a dot, or it would look like a function call."""
    return isinstance(box, Fence) and isinstance(box.body, Row) and box.body.parts[0] == Sign("−", "prefix")


def _scripted(node: t.Power | t.Transpose | t.Part | t.Delta) -> Box:
    match node:
        case t.Delta():
            return Scripts(Letter("δ"), _subscript((node.left, node.right)))
        case t.Part():
            return _below(_at(node.body, ATOM), _subscript(node.indices))
        case t.Power():
            return _above(_at(node.base, ATOM), boxes(node.exponent))
        case t.Transpose():
            return _above(_at(node.body, ATOM), Sign("⊤", "postfix"))


def _above(base: Box, script: Box) -> Box:
    if isinstance(base, Scripts):
        return Scripts(
            base.base if base.above is None else Fence("(", base, ")"), None if base.above else base.below, script
        )
    return Scripts(base, above=script)


def _below(base: Box, script: Box) -> Box:
    return Scripts(Fence("(", base, ")") if isinstance(base, Scripts) else base, script)


def _subscript(indices: Sequence[t.Node | None]) -> Box:
    parts = [Sign("·", "postfix") if index is None else boxes(index) for index in indices]
    short = all(isinstance(part, Letter) or index is None for part, index in zip(parts, indices, strict=True))
    return _row(parts) if short else _commas(parts)


def _big(node: t.Sum) -> Box:
    bound = {side.name for _, *pair in node.conditions for side in pair if isinstance(side, t.Index)}
    under: list[Box] = [named(index.name) for index in node.indices if index.name not in bound]
    under += [Row((boxes(left), relation(sign), boxes(right))) for sign, left, right in node.conditions]
    above = None
    if len(node.indices) == 1 and not node.conditions:
        under = [Row((*under, Sign("="), Numeral("1")))]
        above = _size(node.indices[0].size)
    return Row((Big("∏" if node.product else "∑", _commas(under), above), _at(node.body, PRODUCT)))


def _chain(node: t.Relation) -> Box:
    parts = [_at(node.members[0], ADDITION)]
    for sign, member in zip(node.signs, node.members[1:], strict=True):
        if isinstance(member, t.Number) and member.rounded and sign == "≈":
            member = t.Number(member.shape, member.value, member.unit)
        parts += [relation(sign), _at(member, ADDITION)]
    return _row(parts)


def _derivative(node: t.Derivative) -> tuple[Box, int]:
    partial = Letter("∂", upright=True)
    below = Row((partial, _at(node.target, ATOM)))
    body, precedence = _box(node.body)
    if precedence == ATOM:
        return Over(Row((partial, body)), below), PRODUCT
    return Row((Over(partial, below), Fence("(", body, ")"))), PRODUCT


def _called(node: t.Node) -> Box:
    match node:
        case t.Expect(body=body):
            return _applied(Letter("𝔼", upright=True), Fence("[", boxes(body), "]"))
        case t.Covariance(left=left, right=right):
            inside = boxes(left) if left == right else _commas((boxes(left), boxes(right)))
            return _applied(Word("Var" if left == right else "Cov"), Fence("(", inside, ")"))
        case t.Order(kind=kind, body=body):
            return _applied(Letter(_ORDERS.get(kind, kind)), Fence("(", boxes(body), ")"))
        case t.Call(name=name, arguments=arguments, map=symbol):
            inside = _commas([boxes(argument) for argument in arguments])
            if symbol is not None:
                return _applied(named(symbol.name), Fence("(", inside, ")"))
            if name == "sqrt":
                return Root(inside)
            if name == "abs":
                return Fence("|", inside, "|")
            if name in _NORMS:
                below, norm = _NORMS[name], Fence("‖", inside, "‖")
                return norm if below is None else Scripts(norm, _letters(below))
            # A written vector brings its brackets.
            return _applied(Word(_WORDS.get(name, name)), inside if _is_vector(arguments) else Fence("(", inside, ")"))
    return Word(type(node).__name__)


def _is_vector(arguments: Sequence[t.Node]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], t.Written) and len(arguments[0].shape) == 1


def _applied(function: Box, arguments: Box) -> Box:
    return Row((function, Sign(APPLY), arguments))
